# SPDX-License-Identifier: Apache-2.0
"""The data that views draw: topologies and their layout, slices, queues, figures, colours.

SVG files and widgets draw the same data. This room must not know how it is drawn.
"""
