# SPDX-License-Identifier: Apache-2.0
"""What makes nodes of nodes: the ``bind`` of a method and of a collective.

The checks are in ``rcg.dag.binding`` and ``rcg.dag.collective``, which know records only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rcg import cluster
from rcg.dag.binding import bind_call
from rcg.dag.collective import Entry, Receiver, bind_collective
from rcg.dag.nodes import ClassMethodNode, CollectiveOutputNode, value_record
from rcg.dag.records import PartRecord, ResultRecord, ValueRecord, find_site


def bind_method(
    handle: Any,
    method: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
) -> ClassMethodNode | tuple[ClassMethodNode, ...]:
    """Make the node of a method's call; ``actor.method.bind(...)`` calls this.

    The arguments are those of ``rcg.dag.binding.bind_call``.

    Returns:
        The node, or a tuple of k nodes if the method returns k values.

    Raises:
        SignatureError: The arguments do not fit the method.
        GraphError: A node is in a place that rcg does not support, or depends on another input.
        UnsupportedNodeError: The method is a generator, or a node is not rcg's.
        PlacementError: The handle belongs to a Ray Client connection.
    """
    cluster.refuse_client(handle)
    site = find_site()
    name = f"{cluster.actor_label(handle)}.{method}"

    def as_record(value: object) -> ValueRecord | None:
        return value_record(value, taker=name, site=site)

    call = bind_call(handle, method, args, kwargs, options=options, as_record=as_record, site=site)
    node = ClassMethodNode(call, args, kwargs, options)
    if call.num_returns == 1:
        return node
    parts = [PartRecord(site=site, call=call, index=index) for index in range(call.num_returns)]
    return tuple([ClassMethodNode(part, (node, part.index)) for part in parts])


def bind_collective_nodes(
    kind: str,
    inputs: Any,
    *,
    op: object = None,
    root: object = None,
    transport: Any = None,
    handle_of: Callable[[object], Any | None],
) -> list[Any]:
    """Make the nodes of a collective; ``rcg.collective`` calls this.

    The arguments are those of ``rcg.dag.collective.bind_collective``; ``handle_of`` returns Ray's
    handle for a handle of an actor, None for any other value.

    Returns:
        The result of each member, in the order of the list. With several lists the results of each
        member are a list.

    Raises:
        GraphError: Something in it cannot be.
        UnsupportedNodeError: A node is not rcg's.
        PlacementError: A handle belongs to a Ray Client connection.
    """
    site = find_site()

    def as_entry(value: object) -> Entry | None:
        record = value_record(value, taker=kind, site=site)
        if record is not None:
            return record
        cluster.refuse_client(value)
        handle = handle_of(value)
        return None if handle is None else Receiver(handle)

    collective = bind_collective(
        kind, inputs, op=op, root=root, transport=transport, as_entry=as_entry, site=site
    )

    def result(position: int, index: int | None) -> CollectiveOutputNode:
        return CollectiveOutputNode(
            ResultRecord(site=site, collective=collective, position=position, index=index)
        )

    positions = range(len(collective.members))
    if collective.num_returns == 1:
        return [result(position, None) for position in positions]
    indices = range(collective.num_returns)
    return [[result(position, index) for index in indices] for position in positions]
