# SPDX-License-Identifier: Apache-2.0
"""A recording in other forms: rcg's own file, the Trace Event Format, a pandas DataFrame."""
