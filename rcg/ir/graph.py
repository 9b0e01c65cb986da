# SPDX-License-Identifier: Apache-2.0
"""The frozen graph: what the user bound, as plain data, checked when it is built.

A ``Graph`` holds the nodes that the root of a DAG depends on, in the order in which the user made
them. Actors, constants and containers appear by id (``a0``, ``k3``); the objects themselves are in
``rcg.ir.plan.Bindings``. Building a ``Graph`` runs every check that needs no cluster, so every
``Graph`` is valid. This room must know neither Ray, nor torch, nor how the DAG is run.

>>> from rcg.ir.channels import ActorSpec
>>> from rcg.ir.nodes import ConstArg, InputValue, MethodCall, NodeArg, Site
>>> site = Site("/home/me/pipeline.py", 12)
>>> graph = Graph(
...     nodes=(
...         InputValue(0, None, site),
...         MethodCall(1, "a0", "fwd", (NodeArg(0), ConstArg("k0")), (), 1, site),
...     ),
...     outputs=(1,),
...     is_multi=False,
...     actors=(ActorSpec("a0", "Stage", ""),),
...     num_positional=1,
...     keywords=(),
... )
>>> graph.describe(1)
'Stage.fwd (pipeline.py:12)'
"""

from __future__ import annotations

from dataclasses import dataclass

from rcg.ir.graph_check import check
from rcg.ir.nodes import GraphData


@dataclass(frozen=True, slots=True)
class Graph(GraphData):
    """Everything the root of a DAG reaches, checked.

    Raises:
        GraphError: The graph cannot be run as it is; the text names the node and where it was
            bound.
    """

    def __post_init__(self) -> None:
        check(self)
