# SPDX-License-Identifier: Apache-2.0
"""HTML for notebooks and pages: without a script, with pictures as images."""
