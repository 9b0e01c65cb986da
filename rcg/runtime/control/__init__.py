# SPDX-License-Identifier: Apache-2.0
"""The control endpoint: attaching, stopping, and hearing of deaths.

``endpoint`` (one address, socket and thread for all graphs of the process, and a port for other
nodes), ``doors`` (where it listens), ``reception`` (accepting connections, limiting strangers),
``entry`` (what a first message has to prove), ``refusals`` (counted and logged), ``connections``
(those that came in), ``services`` (the interface of what can be reached there), ``graph_control``
(one graph: its members join, stop and die), ``questions`` (asking members for their stacks and
clocks), ``joining`` and ``client`` (the member's side), ``stores`` and ``store_client`` (the stores
where the ranks of groups meet), ``registry`` (the live graphs of the process).
"""
