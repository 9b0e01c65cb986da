# SPDX-License-Identifier: Apache-2.0
"""The control endpoint: attaching, stopping, and learning of deaths.

At the endpoint, one for all graphs of the process; a file imports only from those above it:

* ``services``: the interface of what can be reached there; ``acceptor``: its addresses,
  connections before they have proven the secret, and those that were refused.
* ``connections``: those that came in; ``endpoint``: the thread that serves them.
* ``far_nodes``: the other nodes of a graph; ``members``: its members, and questions to them.
* ``graph_control``: one graph at its driver; ``node_control``: one graph at the host of a node.

On the other side: ``joining`` (connecting to an endpoint), ``client`` (a member of a graph) and the
ranks' end of ``stores``, where the ranks of groups meet. ``registry``: the live graphs of the
process.
"""
