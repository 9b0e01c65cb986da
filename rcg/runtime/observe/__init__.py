# SPDX-License-Identifier: Apache-2.0
"""Looking at running graphs: reports, statistics, profiles."""
