# SPDX-License-Identifier: Apache-2.0
"""The control endpoint: attaching, stopping, and hearing of deaths."""
