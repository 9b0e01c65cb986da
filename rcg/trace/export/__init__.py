# SPDX-License-Identifier: Apache-2.0
"""Exports of a recording: rcg's own file, the Trace Event Format, a pandas DataFrame."""
