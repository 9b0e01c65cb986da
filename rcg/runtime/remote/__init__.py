# SPDX-License-Identifier: Apache-2.0
"""Compiled graphs of other processes: their handles, and the server for handles."""
