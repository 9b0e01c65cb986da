# SPDX-License-Identifier: Apache-2.0
"""Lowering: the records of what the user wrote become the checked ``Graph`` and its ``Bindings``.

Ids are assigned in creation order, and nothing here depends on a hash: the same program gives the
same graph. A ``Graph`` checks itself when it is built; only checks that need the records are here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rcg import cluster
from rcg.dag.records import (
    AttributeRecord,
    CallRecord,
    Constant,
    InputRecord,
    Nested,
    OutputsRecord,
    PartRecord,
    Record,
    RecordArgument,
    ValueRecord,
    reached_from,
)
from rcg.ir.channels import ActorSpec
from rcg.ir.graph import Graph
from rcg.ir.nodes import Argument, ConstArg, InputValue, MethodCall, NestedArg, Node, NodeArg, Part
from rcg.ir.plan import Bindings
from rcg.ir.signature import ExecutionSignature

__all__ = ["lower", "unreached_calls"]


def lower(root: Record) -> tuple[Graph, Bindings]:
    """Return the graph of everything that ``root`` depends on, and the objects behind its ids.

    Raises:
        GraphError: The DAG cannot be compiled; the text names the node and where it was bound.
    """
    outputs = root.outputs if isinstance(root, OutputsRecord) else (root,)
    # Parts of the input that the user named count even if nothing uses them: the graph rejects an
    # argument that callers would have to pass for nothing.
    touched = () if root.source is None else root.source.attributes.values()
    values = _in_creation_order(reached_from(root), touched)
    lowering = _Lowering(values)
    nodes = tuple([lowering.node_of(record) for record in values])
    signature = ExecutionSignature.of([node.key for node in nodes if isinstance(node, InputValue)])
    graph = Graph(
        nodes=nodes,
        outputs=tuple([lowering.ids[record] for record in outputs]),
        is_multi=isinstance(root, OutputsRecord),
        actors=tuple(lowering.actors),
        num_positional=signature.num_positional,
        keywords=signature.keywords,
    )
    return graph, lowering.bindings


def unreached_calls(root: Record) -> list[str]:
    """Return name and place of the calls that ``root`` does not depend on, in creation order.

    Only calls with the same input count, including those whose node the user did not keep.
    """
    if root.source is None:
        return []
    reached = {record.order for record in reached_from(root) if isinstance(record, CallRecord)}
    bound = sorted(root.source.bound.items())
    return [f"{name} ({site})" for order, (name, site) in bound if order not in reached]


def _in_creation_order(
    reached: Iterable[Record], touched: Iterable[AttributeRecord]
) -> list[ValueRecord]:
    values: dict[ValueRecord, None] = {}
    for record in (*reached, *touched):
        if not isinstance(record, OutputsRecord):
            values[record] = None
    return sorted(values, key=lambda record: record.order)


class _Lowering:
    """Assigns ids to records, actors and constants, in the order in which they are found."""

    def __init__(self, values: Iterable[ValueRecord]) -> None:
        self.ids: dict[ValueRecord, int] = {record: index for index, record in enumerate(values)}
        self.actors: list[ActorSpec] = []
        self.bindings = Bindings({}, {})
        self._actor_ids: dict[str, str] = {}

    def node_of(self, record: ValueRecord) -> Node:
        node_id = self.ids[record]
        match record:
            case InputRecord():
                return InputValue(node_id, None, record.site)
            case AttributeRecord(key=key):
                return InputValue(node_id, key, record.site)
            case PartRecord(call=call, index=index):
                return Part(node_id, self.ids[call], index, record.site)
            case CallRecord():
                return MethodCall(
                    node_id,
                    self._actor_of(record),
                    record.method,
                    tuple([self._argument_of(value) for value in record.args]),
                    tuple([(key, self._argument_of(value)) for key, value in record.kwargs]),
                    record.num_returns,
                    record.site,
                )

    def _actor_of(self, call: CallRecord) -> str:
        key = cluster.actor_id(call.handle)
        # Two handles of one actor have the same id; a handle without an id is an actor of its own.
        identity = key or f"handle {id(call.handle)}"
        found = self._actor_ids.get(identity)
        if found is None:
            found = self._actor_ids[identity] = f"a{len(self.actors)}"
            self.actors.append(ActorSpec(found, call.label, key))
            self.bindings.actors[found] = call.handle
        return found

    def _argument_of(self, argument: RecordArgument) -> Argument:
        match argument:
            case Constant(value=value):
                return ConstArg(self._constant(value))
            case Nested(template=template, nodes=nodes):
                return NestedArg(
                    self._constant(template), tuple([self.ids[node] for node in nodes])
                )
            case _:
                return NodeArg(self.ids[argument])

    def _constant(self, value: Any) -> str:
        const = f"k{len(self.bindings.constants)}"
        self.bindings.constants[const] = value
        return const
