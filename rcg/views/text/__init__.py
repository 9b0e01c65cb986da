# SPDX-License-Identifier: Apache-2.0
"""Topologies as text: in the sections that Ray prints, and as Graphviz source."""
