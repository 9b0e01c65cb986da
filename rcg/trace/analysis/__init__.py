# SPDX-License-Identifier: Apache-2.0
"""Analyses of a recording: parts of events, executions, shares, paths, figures, what-if.

Each figure is defined in the file that computes it. This room must not know how a recording is
made, exported or drawn.
"""
