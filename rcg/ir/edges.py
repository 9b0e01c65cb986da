# SPDX-License-Identifier: Apache-2.0
"""The edges of a graph: between which processes the values of its nodes travel.

A transport that is a communicator carries tensors from actor to actor; the driver is no member.
"""

from __future__ import annotations

from rcg.ir.nodes import CollectiveCall, GraphData, InputValue, MethodCall, TensorHint, upstream_of


def is_communicator(hint: TensorHint | None) -> bool:
    """Return whether a hint asks for a communicator, whatever the actors' nodes."""
    return hint is not None and hint.transport not in ("auto", "shm")


def remote_readers(graph: GraphData) -> list[tuple[str, ...]]:
    """Return for each node the other actors that use an actor's value, in creation order.

    None for the input, which comes from the driver; nor does the driver count as a reader.
    """
    found: list[dict[str, None]] = [{} for _ in graph.nodes]
    for node in graph.nodes:
        if isinstance(node, MethodCall | CollectiveCall):
            for value in upstream_of(node):
                if graph.actor_of(value) not in (None, node.actor):
                    found[value][node.actor] = None
    return [tuple(readers) for readers in found]


def driver_edges(graph: GraphData) -> list[int]:
    """Return the nodes whose hint asks for a communicator although the driver is at one end."""
    return [
        node.id
        for node in graph.nodes
        if is_communicator(node.hint) and (isinstance(node, InputValue) or node.id in graph.outputs)
    ]


def group_members(graph: GraphData) -> dict[str, int]:
    """Return the actors that take part in a group of a communicator, each with the first reason.

    The reason is a node: a rank of a collective, or a value that travels through a communicator.
    """
    found: dict[str, int] = {}
    for node, readers in zip(graph.nodes, remote_readers(graph), strict=True):
        if isinstance(node, CollectiveCall):
            found.setdefault(node.actor, node.id)
        writer = graph.actor_of(node.id)
        if is_communicator(node.hint) and writer is not None and readers:
            for actor in (writer, *readers):
                found.setdefault(actor, node.id)
    return found
