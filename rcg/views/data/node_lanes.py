# SPDX-License-Identifier: Apache-2.0
"""Lanes by node of the cluster: their order in pictures over time, and the name of each node.

The lanes of a node are together, below its name. Its gate, where values from other nodes arrive, is
the first of them. The driver's node begins with the driver, so its gate is the last. On one node
the order is that of the plan, and there are no names. A lane of an actor follows its actor and has
a short name below it.
"""

from __future__ import annotations

from rcg.ir.plan import Plan
from rcg.ir.programs import FIRST_NODE
from rcg.text import visible
from rcg.trace.model import GraphTrace
from rcg.views.data.lettering import DOT


def order_of(plan: Plan) -> list[int]:
    """Return the positions of a plan's programs in the order in which they are drawn."""
    numbers = list(range(len(plan.programs)))
    if not plan.nodes:
        return numbers
    nodes = plan.nodes_by_process()
    rank = {node.id: number for number, node in enumerate(plan.nodes)}

    def place(number: int) -> tuple[int, int]:
        process = plan.programs[number].process
        node = nodes[process]
        aside = 1 if node == FIRST_NODE else -1
        return rank[node], aside if process == node else 0

    return sorted(numbers, key=place)


def lanes_under(plan: Plan) -> dict[str, tuple[str, str]]:
    """Return the actor of each lane, and the lane's name below it: ``a0`` and ``comm``."""
    return {lane.id: (lane.actor, lane.id.removeprefix(f"{lane.actor}.")) for lane in plan.lanes}


def addresses_of(graph: GraphTrace) -> dict[str, str]:
    """Return the addresses of the nodes in a record, by their ids; nothing on one node."""
    if not graph.plan.nodes:
        return {}
    nodes = graph.plan.nodes_by_process()
    return {nodes[lane.process]: lane.node for lane in graph.lanes if lane.node}


def node_heads(plan: Plan, addresses: dict[str, str] | None = None) -> dict[str, str]:
    """Return the name of the node of each process; nothing on one node."""
    if not plan.nodes:
        return {}
    known = addresses or {}
    names = {node.id: node_head(node.id, known.get(node.id) or node.key[:6]) for node in plan.nodes}
    return {process: names[node] for process, node in plan.nodes_by_process().items()}


def node_head(node: str, place: str) -> str:
    """Return the name of a node with where it is: ``n1 · 10.0.0.2``."""
    return f"{node} {DOT} {visible(place)}" if place else node
