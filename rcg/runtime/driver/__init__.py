# SPDX-License-Identifier: Apache-2.0
"""In the process that compiled a graph: submission, results, and the graph's end."""
