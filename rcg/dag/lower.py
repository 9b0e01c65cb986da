# SPDX-License-Identifier: Apache-2.0
"""Lowering: the records of what the user wrote become the checked ``Graph`` and its ``Bindings``.

Ids are assigned in creation order, and nothing here depends on a hash: the same program gives the
same graph. A ``Graph`` checks itself when it is built; only checks that need the records are here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rcg import cluster
from rcg.comm.registry import ACCELERATOR, accelerator
from rcg.dag.communicators import (
    CREATE,
    DefaultCommunicator,
    actors_by_rank,
    positions_by_rank,
)
from rcg.dag.hints import Hint
from rcg.dag.records import (
    AttributeRecord,
    CallRecord,
    CollectiveRecord,
    Constant,
    InputRecord,
    Member,
    Nested,
    OutputsRecord,
    PartRecord,
    Record,
    RecordArgument,
    ResultRecord,
    TaskRecord,
    ValueRecord,
    maker_of,
    reached_from,
)
from rcg.errors import GraphError, UnsupportedNodeError
from rcg.ir.channels import ActorSpec
from rcg.ir.graph import Graph
from rcg.ir.nodes import (
    KEEP,
    Argument,
    CollectiveCall,
    CommunicatorSpec,
    ConstArg,
    InputValue,
    MethodCall,
    NestedArg,
    Node,
    NodeArg,
    Part,
    TensorHint,
)
from rcg.ir.plan import Bindings
from rcg.ir.signature import ExecutionSignature


def lower(root: Record, default: DefaultCommunicator = CREATE) -> tuple[Graph, Bindings]:
    """Return the graph of everything that ``root`` depends on, and the objects behind its ids.

    Raises:
        GraphError: The DAG cannot be compiled; the text names the node and where it was bound.
        UnsupportedNodeError: It contains a remote function or makes an actor.
    """
    outputs = root.outputs if isinstance(root, OutputsRecord) else (root,)
    # Parts of the input that the user named count even if nothing uses them: the graph rejects an
    # argument that callers would have to pass for nothing.
    touched = () if root.source is None else root.source.attributes.values()
    records = sorted({*reached_from(root), *touched}, key=lambda record: record.order)
    for record in records:
        if isinstance(record, TaskRecord):
            raise UnsupportedNodeError(record.refusal, node=record.name, site=record.site)
    lowering = _Lowering(records, set(outputs), default)
    nodes = tuple([node for record in records for node in lowering.nodes_of(record)])
    signature = ExecutionSignature.of([node.key for node in nodes if isinstance(node, InputValue)])
    graph = Graph(
        nodes=nodes,
        outputs=tuple([lowering.output_of(record) for record in outputs]),
        is_multi=isinstance(root, OutputsRecord),
        actors=tuple(lowering.actors),
        num_positional=signature.num_positional,
        keywords=signature.keywords,
        communicators=lowering.communicators(),
    )
    default.check_hints(graph)
    lowering.bindings.sites.update({node.id: node.site for node in nodes})
    return graph, lowering.bindings


def unreached_calls(root: Record) -> list[str]:
    """Return name and place of the calls of the same input that ``root`` does not depend on.

    Collectives count as calls, and so do calls whose node the user did not keep.
    """
    if root.source is None:
        return []
    reached = {record.order for record in reached_from(root)}
    bound = sorted(root.source.bound.items())
    return [f"{name} ({site})" for order, (name, site) in bound if order not in reached]


class _Lowering:
    """Assigns ids to records, actors and constants, in the order in which they are found."""

    def __init__(
        self, records: Iterable[Record], outputs: set[Record], default: DefaultCommunicator
    ) -> None:
        self.ids: dict[Record, int] = {}
        self._outputs = outputs
        self._kept: dict[Record, int] = {}  # the calls that keep the tensors of outputs
        self.actors: list[ActorSpec] = []
        self.bindings = Bindings()
        self._default = default
        self._actor_ids: dict[str, str] = {}
        # The users' communicators: each with the first hint that names it, and its constant.
        self._chosen: dict[int, tuple[Hint, str, str]] = {}
        # By collective: the number of each, the positions of its members by rank, its results.
        self._numbers: dict[CollectiveRecord, int] = {}
        self._ranks: dict[CollectiveRecord, list[int]] = {}
        self._results: dict[tuple[CollectiveRecord, int], ResultRecord] = {}
        self._assign(records)

    def _assign(self, records: Iterable[Record]) -> None:
        count = 0
        for record in records:
            self.ids[record] = count
            match record:
                case OutputsRecord():
                    pass
                case CollectiveRecord(members=members):
                    self._numbers[record] = len(self._numbers)
                    self._ranks[record] = positions_by_rank(
                        self._default.for_collective(record).communicator,
                        [member.handle for member in members],
                    )
                    count += len(members)
                case ResultRecord(collective=collective, position=position, index=None):
                    rank = self._ranks[collective].index(position)
                    self.ids[record] = self.ids[collective] + rank
                    self._results[collective, position] = record
                case _:
                    count += 1
            if isinstance(record, ValueRecord) and record.cell.kept is not None:
                if record not in self._outputs:
                    raise GraphError(
                        f"{record.name} was given with_tensor_transport(keep=True), which is for "
                        "an output of the DAG: compile it, or put it into the MultiOutputNode",
                        node=record.name,
                        site=record.site,
                    )
                self._kept[record] = count
                count += 1

    def output_of(self, record: Record) -> int:
        """Return the node whose value is the output of a record."""
        return self._kept.get(record, self.ids[record])

    def nodes_of(self, record: Record) -> list[Node]:
        """Return the nodes of a record, and the call that keeps its tensors."""
        nodes = self._own_nodes_of(record)
        if record in self._kept and isinstance(record, CallRecord | PartRecord | ResultRecord):
            nodes.append(self._keeping(record))
        return nodes

    def _keeping(self, record: CallRecord | PartRecord | ResultRecord) -> Node:
        given = record.cell.kept, f"The value of {record.name}"
        return MethodCall(
            self._kept[record],
            self._actor_of(maker_of(record)),
            KEEP,
            (NodeArg(self.ids[record]), *[ConstArg(self._constant(each)) for each in given]),
            (),
            1,
            record.site,
        )

    def _own_nodes_of(self, record: Record) -> list[Node]:
        node_id = self.ids[record]
        match record:
            case InputRecord(cell=cell):
                return [InputValue(node_id, None, record.site, self._hint(cell.hint, record.name))]
            case AttributeRecord(key=key, cell=cell, source=source):
                hint = self._hint(cell.hint or source.cell.hint, record.name)
                return [InputValue(node_id, key, record.site, hint)]
            case PartRecord(call=call, index=index, cell=cell):
                hint = self._hint(cell.hint, record.name)
                return [Part(node_id, self.ids[call], index, record.site, hint)]
            case CallRecord():
                return [self._call(record)]
            case CollectiveRecord():
                return self._collective(record)
            case ResultRecord(collective=collective, index=int(index), cell=cell):
                rank = self._ranks[collective].index(record.position)
                hint = self._hint(cell.hint, record.name)
                return [Part(node_id, self.ids[collective] + rank, index, record.site, hint)]
            case _:
                return []  # the node of the collective's rank, or the end of the DAG

    def _call(self, record: CallRecord) -> Node:
        return MethodCall(
            self.ids[record],
            self._actor_of(record),
            record.method,
            tuple([self._argument_of(value) for value in record.args]),
            tuple([(key, self._argument_of(value)) for key, value in record.kwargs]),
            record.num_returns,
            record.site,
            self._hint(record.cell.hint, record.name),
            record.cost_s,
        )

    # Collectives

    def _collective(self, record: CollectiveRecord) -> list[Node]:
        """Return a node for each rank, in the order of ranks."""
        communicates = self._tensor_hint(self._default.for_collective(record), record.name)
        nodes: list[Node] = []
        positions = self._ranks[record]
        for rank, position in enumerate(positions):
            member = record.members[position]
            result = self._results.get((record, position))
            nodes.append(
                CollectiveCall(
                    id=self.ids[record] + rank,
                    collective=self._numbers[record],
                    actor=self._actor_of(member),
                    rank=rank,
                    kind=record.kind,
                    args=tuple([self.ids[value] for value in member.inputs]),
                    num_returns=record.num_returns,
                    reduction=record.reduction,
                    root=None if record.root is None else positions.index(record.root),
                    communicates=communicates,
                    site=record.site,
                    hint=None if result is None else self._hint(result.cell.hint, result.name),
                )
            )
        return nodes

    # Communicators

    def _hint(self, hint: Hint | None, node: str) -> TensorHint | None:
        return None if hint is None else self._tensor_hint(hint, node)

    def _tensor_hint(self, hint: Hint, node: str) -> TensorHint:
        const = None
        if hint.communicator is not None:
            key = id(hint.communicator)
            if key not in self._chosen:
                self._chosen[key] = hint, self._constant(hint.communicator), node
            const = self._chosen[key][1]
        is_replaced = hint.transport == "nccl" and accelerator() is not None
        return TensorHint(
            transport=ACCELERATOR if is_replaced else hint.transport,
            site=hint.site,
            device=hint.device,
            is_static_shape=hint.is_static_shape,
            is_direct_return=hint.is_direct_return,
            communicator=const,
        )

    def communicators(self) -> tuple[CommunicatorSpec, ...]:
        """Return the users' communicators that were met; call it when all nodes are made.

        Raises:
            GraphError: One has ranks that are none, or an actor that the DAG does not use.
        """
        return tuple(
            CommunicatorSpec(const, hint.transport, self._members(hint, node))
            for hint, const, node in self._chosen.values()
        )

    def _members(self, hint: Hint, node: str) -> tuple[str, ...]:
        try:
            handles = actors_by_rank(hint.communicator)
        except ValueError as error:
            raise GraphError(str(error), node=node, site=hint.site) from error
        strangers = [each for each in handles if cluster.actor_key(each) not in self._actor_ids]
        if strangers:
            raise GraphError(
                f"the communicator {hint.transport} of {node} has actors that the DAG does not "
                f"use: {', '.join(map(repr, strangers))}. Its ranks meet when the DAG is compiled, "
                "so bind a method of each of them, or leave them out of the communicator.",
                node=node,
                site=hint.site,
            )
        return tuple([self._actor_ids[cluster.actor_key(each)] for each in handles])

    # Actors and constants

    def _actor_of(self, user: CallRecord | Member) -> str:
        # Two handles of one actor have the same key.
        key = cluster.actor_key(user.handle)
        found = self._actor_ids.get(key)
        if found is None:
            found = self._actor_ids[key] = f"a{len(self.actors)}"
            self.actors.append(ActorSpec(found, user.label, cluster.actor_id(user.handle)))
            self.bindings.actors[found] = user.handle
        return found

    def _argument_of(self, argument: RecordArgument) -> Argument:
        match argument:
            case Constant(value=value):
                return ConstArg(self._constant(value))
            case Nested(template=template, nodes=nodes):
                const = self._constant(template)
                return NestedArg(const, tuple([self.ids[node] for node in nodes]))
            case _:
                return NodeArg(self.ids[argument])

    def _constant(self, value: Any) -> str:
        const = f"k{len(self.bindings.constants)}"
        self.bindings.constants[const] = value
        return const
