# SPDX-License-Identifier: Apache-2.0
"""Analyses of a recording: parts of events, executions, shares, paths, figures, what-if.

Every figure is defined in the file that computes it. This room must know nothing of how a recording
is made, and nothing of the files and pictures that are made of it.
"""
