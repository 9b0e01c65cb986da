# SPDX-License-Identifier: Apache-2.0
"""Compiled graphs of other processes: their handles, and the server for handles.

``handle`` and ``client`` in the process that holds a handle, ``server`` in the process that
compiled the graph.
"""
