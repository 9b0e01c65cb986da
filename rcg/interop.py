# SPDX-License-Identifier: Apache-2.0
"""``rcg.compile`` and ``rcg.plan``: for a DAG of rcg's nodes or of ``ray.dag``'s nodes.

Only this room (and the benchmark) knows nodes of ``ray.dag``. It imports that module only if it
gets such a node, so everything works on a Ray without it.

Ray's nodes have no place in the source and no common order, only the position of each call among
the calls of its actor. Records are made of them in an order that agrees with the flow of values and
with those positions; their place is the line that called ``rcg.compile``.

Each rank of a collective is a node of its own there, and they share an object: the operation. It
stands here for the collective among the nodes.
"""

from __future__ import annotations

import heapq
import importlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Unpack

from rcg import cluster
from rcg.callers import at_users_line
from rcg.dag.binding import bind_call
from rcg.dag.collective import bind_collective
from rcg.dag.compile import CompileKeywords, compile_record, plan_record
from rcg.dag.hints import Choice, choice_of, tensor_hint
from rcg.dag.nodes import DAGNode
from rcg.dag.records import (
    AttributeRecord,
    CollectiveRecord,
    InputRecord,
    OutputsRecord,
    PartRecord,
    Record,
    ResultRecord,
    common_source,
    find_site,
)
from rcg.errors import GraphError, UnsupportedNodeError
from rcg.ir.containers import Template
from rcg.ir.nodes import Site
from rcg.ir.ops import COLLECTIVES
from rcg.ir.plan import Plan
from rcg.runtime.driver.compiled_dag import CompiledDAG


@at_users_line
def compile(dag: Any, **options: Unpack[CompileKeywords]) -> CompiledDAG:
    """Compile a DAG and start it on its actors.

    Args:
        dag: The root: a node of rcg, or of ``ray.dag``.
        **options: See ``DAGNode.compile``.

    Raises:
        TypeError: ``dag`` is no node, or there is no such option.
        ValueError: An option's value is out of range.
        GraphError: The DAG is wrong.
        CompileError: The DAG is right but cannot be compiled for these actors.
        ActorDiedError: An actor is dead.
        ChannelTimeout: An actor did not answer in time.
    """
    return compile_record(_record_of(dag, "compile"), options, "compile")


@at_users_line
def plan(dag: Any, **options: Unpack[CompileKeywords]) -> Plan:
    """Return the plan that ``compile`` would start, with its predicted times, and start nothing.

    So alternatives can be compared before one of them runs: where costs are known, declared or
    given as ``costs``, ``plan(dag).predicted`` has the time from one completion to the next and how
    busy each actor will be. Every actor is asked for its node, so all of them must be alive. Blocks
    until they have answered, or until ``timeout``.

    Args:
        dag: The root: a node of rcg, or of ``ray.dag``.
        **options: As for ``compile``; those that are about running have no effect.

    Raises:
        TypeError, ValueError, GraphError, CompileError, ActorDiedError, ChannelTimeout: As in
            ``compile``.
    """
    return plan_record(_record_of(dag, "plan"), options)


def _record_of(dag: Any, caller: str) -> Record:
    """Return the record of a root that a user passed to a function of this name."""
    if isinstance(dag, DAGNode):
        return dag._record
    if is_ray_node(dag):
        return records_of_ray_dag(dag)
    raise TypeError(
        f"{caller}() takes the root of a DAG, a node, got {type(dag).__name__}"
        + (": put the nodes into a MultiOutputNode" if isinstance(dag, list | tuple) else "")
    )


def is_ray_node(thing: object) -> bool:
    """Return whether this is a node of ``ray.dag``, without importing it."""
    return any(base.__module__.startswith("ray.dag.") for base in type(thing).__mro__)


def records_of_ray_dag(root: Any) -> Record:
    """Return the records of a DAG of ``ray.dag``'s nodes.

    Raises:
        UnsupportedNodeError: A node is of a kind that rcg does not run.
        GraphError: The nodes form a cycle, or one is where rcg does not look for one.
    """
    return _Conversion(root, find_site()).run()


class _Conversion:
    """Makes one record for each of Ray's nodes, upstream first."""

    def __init__(self, root: Any, site: Site) -> None:
        self._dag = importlib.import_module("ray.dag")
        self._root = root
        self._site = site
        self._records: dict[Any, Any] = {}
        self._ranks = _ranks_by_operation(root)

    def run(self) -> Record:
        for node in _in_order(self._upstream_first(), self._ranks):
            self._records[node] = record = self._record_of(node)
            choice = None if node in self._ranks else choice_of(node.type_hint)
            if choice is not None:
                self._give_hint(record, choice)
        root: Record = self._records[self._root]
        return root

    def _upstream_first(self) -> dict[Any, list[Any]]:
        """Return every node that the root needs, in post-order, with what it takes."""
        taken: dict[Any, list[Any]] = {}
        finished: dict[Any, list[Any]] = {}
        stack = [self._root]
        while stack:
            node = stack[-1]
            if node in finished:
                stack.pop()
            elif node in taken:
                finished[node] = taken[node]
                stack.pop()
            else:
                self._refuse_unknown(node)
                taken[node] = self._upstream_of(node)
                stack.extend(reversed([above for above in taken[node] if above not in taken]))
        for node in list(finished):
            if type(node) is self._dag.InputNode:
                # Those that are touched but not used are for the graph to refuse.
                for attribute in node.input_attribute_nodes.values():
                    finished.setdefault(attribute, [node])
        return finished

    def _refuse_unknown(self, node: Any) -> None:
        if node in self._ranks:
            return
        dag = self._dag
        kind = type(node)
        reason = None
        if kind is dag.FunctionNode:
            reason = "Compiled DAGs currently only support actor method nodes"
        elif kind is dag.ClassNode or (
            kind is dag.ClassMethodNode
            and node.is_class_method_call
            and node._get_actor_handle() is None
        ):
            reason = (
                "Compiled DAGs can only bind methods to an actor that is already created with "
                "Actor.remote()"
            )
        elif kind not in (
            dag.InputNode,
            dag.InputAttributeNode,
            dag.ClassMethodNode,
            dag.MultiOutputNode,
        ) and not _is_rank(node):
            reason = f"this release has no counterpart of ray.dag's {kind.__name__}"
        elif choice_of(node.type_hint) is None:
            hint = type(node.type_hint).__name__
            if hint != "ChannelOutputType":  # which stands for no hint
                reason = f"this release has no counterpart of Ray's type hint {hint}"
        if reason is not None:
            raise UnsupportedNodeError(
                f"{reason}: found {_name(node)}", node=_name(node), site=self._site
            )

    def _upstream_of(self, node: Any) -> list[Any]:
        dag = self._dag
        kind = type(node)
        if kind is dag.InputNode:
            return []
        if kind is dag.InputAttributeNode:
            return [node._dag_input_node]
        if kind is dag.MultiOutputNode:
            return list(node.get_args())
        if node in self._ranks:
            return [value for rank in self._ranks[node] for value in rank.get_args()]
        if _is_rank(node) and node.is_class_method_call:
            return [node.collective_op]
        if node.is_class_method_output:
            return [node.class_method_call]
        name, found = node.get_method_name(), []
        for argument in (*node.get_args(), *node.get_kwargs().values()):
            found += Template.of(argument, is_ray_node, node=name, site=self._site)[1]
        return found

    def _record_of(self, node: Any) -> Record:
        dag, site = self._dag, self._site
        kind = type(node)
        if kind is dag.InputNode:
            return InputRecord(site=site)
        if kind is dag.InputAttributeNode:
            return self._attribute_record(node)
        if kind is dag.MultiOutputNode:
            outputs = tuple([self._records[output] for output in node.get_args()])
            source = common_source(outputs, taker="MultiOutputNode", site=site)
            return OutputsRecord(site=site, source=source, outputs=outputs)
        if node in self._ranks:
            return self._collective_record(node)
        if _is_rank(node):
            return self._result_record(node)
        if node.is_class_method_output:
            call = self._records[node.class_method_call]
            return PartRecord(site=site, call=call, index=node.output_idx)
        return bind_call(
            node._get_actor_handle(),
            node.get_method_name(),
            node.get_args(),
            node.get_kwargs(),
            options={name: value for name, value in node.get_options().items() if value},
            as_record=lambda value: self._records[value] if is_ray_node(value) else None,
            site=site,
        )

    def _attribute_record(self, node: Any) -> AttributeRecord:
        source: InputRecord = self._records[node._dag_input_node]
        record = AttributeRecord(
            site=self._site,
            source=source,
            key=node.key,
            accessor="attribute" if node._accessor_method == "__getattr__" else "item",
        )
        source.attributes[record.key] = record
        return record

    def _collective_record(self, operation: Any) -> CollectiveRecord:
        ranks = self._ranks[operation]
        kind = type(operation._op).__name__.removesuffix("Op").lower()
        if kind not in COLLECTIVES or len(ranks) != len(operation.actor_handles):
            raise UnsupportedNodeError(
                f"this release cannot take over the collective {kind} of "
                f"{len(operation.actor_handles)} actors: use rcg.collective",
                node=kind,
                site=self._site,
            )
        inputs = [
            list(tensors) for tensors in zip(*[rank.get_args() for rank in ranks], strict=True)
        ]
        return bind_collective(
            kind,
            inputs if len(inputs) > 1 else inputs[0],
            op=getattr(operation._op, "reduceOp", None),
            root=None,
            # Without a user's communicator, Ray writes its default here.
            transport=operation.type_hint.get_custom_communicator(),
            as_entry=lambda value: self._records[value] if is_ray_node(value) else None,
            site=self._site,
        )

    def _result_record(self, node: Any) -> ResultRecord:
        if node.is_class_method_output:
            of_rank: ResultRecord = self._records[node.class_method_call]
            collective, position = of_rank.collective, of_rank.position
        else:
            collective = self._records[node.collective_op]
            position = self._ranks[node.collective_op].index(node)
        return ResultRecord(
            site=self._site,
            collective=collective,
            position=position,
            index=node.output_idx,
        )

    def _give_hint(self, record: Record, choice: Choice) -> None:
        if isinstance(record, OutputsRecord | CollectiveRecord):
            return
        record.cell.hint = tensor_hint(
            choice,
            is_input=isinstance(record, InputRecord | AttributeRecord),
            node=record.name,
            site=self._site,
        )


def _is_rank(node: Any) -> bool:
    """Return whether a node of Ray's is a rank of a collective, or one of its tensors."""
    return type(node).__name__ == "CollectiveOutputNode"


def _ranks_by_operation(root: Any) -> dict[Any, list[Any]]:
    """Return the ranks of every collective that Ray's node is connected with, in their order.

    The ranks are not upstream of each other: they are reached through what they have in common.
    """
    met: dict[int, Any] = {id(root): root}
    ranks: dict[Any, list[Any]] = {}
    stack = [root]
    while stack:
        node = stack.pop()
        if _is_rank(node) and node.is_class_method_call:
            ranks.setdefault(node.collective_op, []).append(node)
        # By `__dict__`, as a node of the input would take any attribute for an argument.
        for near in (*vars(node)["_upstream_nodes"], *vars(node)["_downstream_nodes"]):
            if id(near) not in met:
                met[id(near)] = near
                stack.append(near)
    for operation, found in ranks.items():
        order = [cluster.actor_key(handle) for handle in operation.actor_handles]
        found.sort(key=lambda rank: order.index(cluster.actor_key(rank._get_actor_handle())))
    return ranks


def _in_order(
    upstream: Mapping[Any, Sequence[Any]], ranks: Mapping[Any, Sequence[Any]]
) -> list[Any]:
    """Sort nodes so that values flow forward and each actor's calls are in its bind order.

    Kahn's algorithm; among nodes that are free, the one met first goes first.

    Raises:
        GraphError: No such order exists.
    """
    position = {node: index for index, node in enumerate(upstream)}
    before: dict[Any, set[Any]] = {node: set(above) for node, above in upstream.items()}
    for earlier, later in _bind_order(upstream, ranks):
        before[later].add(earlier)
    after: dict[Any, list[Any]] = {node: [] for node in before}
    for node, earlier_nodes in before.items():
        for earlier in earlier_nodes:
            after[earlier].append(node)
    missing = {node: len(earlier_nodes) for node, earlier_nodes in before.items()}
    free = [(position[node], node) for node, count in missing.items() if not count]
    heapq.heapify(free)
    ordered: list[Any] = []
    while free:
        _, node = heapq.heappop(free)
        ordered.append(node)
        for later in after[node]:
            missing[later] -= 1
            if not missing[later]:
                heapq.heappush(free, (position[later], later))
    if len(ordered) < len(before):
        stuck = [node for node, count in missing.items() if count]
        raise GraphError(
            "the DAG has a cycle, or calls bound to an actor in an order in which they cannot run, "
            f"among {', '.join(map(_name, stuck))}",
            node=_name(stuck[0]),
        )
    return ordered


def _bind_order(
    nodes: Iterable[Any], ranks: Mapping[Any, Sequence[Any]]
) -> Iterator[tuple[Any, Any]]:
    """Yield pairs of calls and collectives of one actor, the earlier first, by Ray's bind index.

    Every copy of a handle counts its own calls, so calls are compared only if they were bound
    through the same one.
    """
    bound: dict[int, list[tuple[int, Any]]] = {}

    def add(call: Any, node: Any) -> None:
        handle = id(call._get_actor_handle())
        bound.setdefault(handle, []).append((call._get_bind_index(), node))

    for node in nodes:
        if node in ranks:
            for rank in ranks[node]:
                add(rank, node)
        # By name, as a node of the input would take any attribute for an argument.
        elif type(node).__name__ == "ClassMethodNode" and node.is_class_method_call:
            add(node, node)
    for of_one_handle in bound.values():
        of_one_handle.sort(key=lambda pair: pair[0])
        yield from itertools.pairwise([node for _, node in of_one_handle])


def _name(node: Any) -> str:
    """What a person would call it; Ray prints a node with everything above it."""
    kind = type(node).__name__
    if kind == "_CollectiveOperation":
        return "collective"
    if kind != "ClassMethodNode":
        return kind
    call = node.class_method_call if node.is_class_method_output else node
    handle = call._get_actor_handle()
    label = kind if handle is None else cluster.actor_label(handle)
    return f"{label}.{call.get_method_name()}"
