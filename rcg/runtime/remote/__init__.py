# SPDX-License-Identifier: Apache-2.0
"""Compiled graphs of other processes: handles, and what serves them."""
