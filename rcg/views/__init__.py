# SPDX-License-Identifier: Apache-2.0
"""Views: plain data about a graph, and text and pictures of it.

A view is a pure function from data to a string: the same data gives the same bytes. This room must
know neither Ray nor torch nor IPython, and not how a plan is executed.
"""
