# SPDX-License-Identifier: Apache-2.0
"""The frozen graph: what the user bound, as plain data, checked when it is built.

A ``Graph`` holds the nodes that the root of a DAG depends on, in the order in which the user made
them. Actors, constants and containers appear by id (``a0``, ``k3``); the objects themselves are in
``rcg.ir.plan.Bindings``. Building a ``Graph`` runs every check that needs no cluster, so every
``Graph`` is valid. This room must know neither Ray, nor torch, nor how the DAG is run.

>>> from rcg.ir.channels import ActorSpec
>>> from rcg.ir.nodes import ConstArg, NodeArg, Site
>>> site = Site("/home/me/pipeline.py", 12)
>>> call = MethodCall(1, "a0", "fwd", (NodeArg(0), ConstArg("k0")), (), 1, site)
>>> graph = Graph(
...     nodes=(InputValue(0, None, site), call),
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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from rcg.errors import GraphError
from rcg.ir.nodes import (
    CollectiveCall,
    GraphData,
    InputValue,
    MethodCall,
    Node,
    Part,
    remote_readers,
    upstream_of,
)
from rcg.ir.ops import COLLECTIVES
from rcg.ir.signature import ExecutionSignature


@dataclass(frozen=True, slots=True)
class Graph(GraphData):
    """Everything the root of a DAG reaches, checked.

    Raises:
        GraphError: The graph cannot be run as it is; the text names the node and where it was
            bound.
    """

    def __post_init__(self) -> None:
        _Checker(self).run()


class _Checker:
    """The checks of a graph, in an order in which each may rely on those before it.

    Much of what users can do wrong is refused where they bind a node (``rcg.dag.binding``); here a
    graph is checked as data, whatever made it.
    """

    def __init__(self, graph: GraphData) -> None:
        self._graph = graph
        self._describe = graph.describe
        self._collectives = graph.collectives()

    def run(self) -> None:
        self._check_ids()
        self._check_actors()
        self._check_references()
        self._check_collectives()
        self._check_communicators()
        self._check_outputs()
        self._check_has_input()
        self._check_calls()
        self._check_inputs()
        self._check_reached()

    def _fail(self, text: str, node_id: int | None = None) -> NoReturn:
        if node_id is None:
            raise GraphError(text)
        graph = self._graph
        raise GraphError(text, node=graph.name(node_id), site=graph.nodes[node_id].site)

    def _refuse(self, node_id: int, why: str) -> NoReturn:
        """Raise the error about a node; its name and place come first."""
        self._fail(f"{self._describe(node_id)} {why}", node_id)

    # Nodes and what they refer to

    def _check_ids(self) -> None:
        seen: dict[int, Node] = {}
        for position, node in enumerate(self._graph.nodes):
            if node.id in seen:
                raise GraphError(
                    f"two nodes have the id {node.id}, bound at {seen[node.id].site} and "
                    f"{node.site}: every node has its own",
                    node=node.id,
                    site=node.site,
                )
            seen[node.id] = node
            if node.id != position:
                raise GraphError(
                    f"the node at position {position} has the id {node.id}: ids count the nodes "
                    "in creation order, from 0",
                    node=node.id,
                    site=node.site,
                )

    def _check_actors(self) -> None:
        graph = self._graph
        for position, actor in enumerate(graph.actors):
            if actor.id != f"a{position}":
                self._fail(
                    f"the actor at position {position} has the id {actor.id!r}: it must be "
                    f"'a{position}'"
                )
        known = {actor.id for actor in graph.actors}
        used = set()
        for node in graph.nodes:
            if isinstance(node, MethodCall | CollectiveCall):
                used.add(node.actor)
                if node.actor not in known:
                    self._refuse(
                        node.id,
                        f"is bound to the actor {node.actor!r}, which the graph does not list",
                    )
        for actor in graph.actors:
            if actor.id not in used:
                self._fail(
                    f"the graph lists the actor {actor.id} ({actor.label}) but never calls it"
                )

    def _check_references(self) -> None:
        graph = self._graph
        edges = [(node.id, upstream) for node in graph.nodes for upstream in upstream_of(node)]
        for node_id, upstream in edges:
            if not 0 <= upstream < len(graph.nodes):
                self._refuse(
                    node_id, f"takes the value of node {upstream}, which is not in the graph"
                )
        for node_id, upstream in edges:
            if upstream < node_id:
                continue
            cycle = self._find_cycle(node_id, upstream)
            if cycle:
                self._fail(
                    f"the DAG has a cycle: {' -> '.join(map(self._describe, cycle))}; a value "
                    "cannot depend on itself",
                    node_id,
                )
            self._refuse(
                node_id,
                f"takes the value of {self._describe(upstream)}, which "
                "was made after it: bind the nodes in the order in which values flow",
            )

    def _find_cycle(self, start: int, upstream: int) -> list[int]:
        """Return the nodes along a cycle in the direction of the values, or an empty list."""
        came_from = {upstream: start}
        stack = [upstream]
        while stack:
            current = stack.pop()
            if current == start:
                path = [start]
                step = came_from[start]
                while step != start:
                    path.append(step)
                    step = came_from[step]
                return [*path, start]
            for above in upstream_of(self._graph.nodes[current]):
                if above not in came_from:
                    came_from[above] = current
                    stack.append(above)
        return []

    # Collectives and communicators

    def _check_collectives(self) -> None:
        found = list(self._collectives)
        if found != list(range(len(found))):
            self._fail(f"collectives are numbered from 0 in creation order, found {found}")
        for ranks in self._collectives.values():
            self._check_ranks(ranks)
            for rank in ranks:
                self._check_rank(rank, len(ranks))

    def _check_ranks(self, ranks: list[CollectiveCall]) -> None:
        """Check that these are all ranks of one collective, and agree about what it is."""
        first = ranks[0]
        name = self._describe(first.id)
        if [node.rank for node in ranks] != list(range(len(ranks))):
            self._fail(
                f"the ranks of {name} must be 0 to {len(ranks) - 1} in the order of their nodes, "
                f"found {[node.rank for node in ranks]}",
                first.id,
            )
        if len({node.actor for node in ranks}) != len(ranks):
            self._fail(f"Expected unique actor handles, but {name} has an actor twice", first.id)
        for node in ranks:
            for field in ("kind", "num_returns", "reduction", "root", "communicates"):
                if getattr(node, field) != getattr(first, field):
                    self._fail(
                        f"the ranks of {self._describe(node.id)} do not agree on its {field}: "
                        f"{getattr(first, field)!r} and {getattr(node, field)!r}",
                        node.id,
                    )

    def _check_rank(self, node: CollectiveCall, size: int) -> None:
        kind = COLLECTIVES.get(node.kind)
        if kind is None:
            name = self._describe(node.id)
            self._fail(f"{name}: there is no collective {node.kind!r}", node.id)
        if (node.reduction is not None) is not kind.is_reducing:
            self._refuse(node.id, f"has the reduction {node.reduction!r}")
        is_root_right = node.root is None
        if kind.has_root:
            is_root_right = node.root is not None and 0 <= node.root < size
        if not is_root_right:
            self._refuse(node.id, f"has {size} ranks and the root {node.root!r}")
        if node.num_returns < 1 or (node.num_returns > 1 and node.kind != "allreduce"):
            self._refuse(node.id, f"gives {node.num_returns} tensors")
        # Where another rank sends, a rank may come without a tensor.
        is_only_receiving = node.kind == "broadcast" and node.rank != node.root
        if len(node.args) != node.num_returns and not (is_only_receiving and not node.args):
            self._refuse(node.id, f"gives {node.num_returns} tensors and takes {len(node.args)}")
        for value in node.args:
            if self._graph.actor_of(value) != node.actor:
                self._refuse(
                    node.id, f"takes {self._describe(value)}, which is not made by its actor"
                )

    def _check_communicators(self) -> None:
        graph = self._graph
        members: dict[str, tuple[str, ...]] = {}
        known = {actor.id for actor in graph.actors}
        for spec in graph.communicators:
            if spec.const in members:
                self._fail(f"the communicator {spec.const} is listed twice")
            if len(set(spec.members)) != len(spec.members) or not known.issuperset(spec.members):
                self._fail(
                    f"the communicator {spec.const} ({spec.backend}) must have each of its actors "
                    f"once, found {', '.join(spec.members)}"
                )
            members[spec.const] = spec.members
        for node, readers in zip(graph.nodes, remote_readers(graph), strict=True):
            if node.hint is not None and node.hint.communicator is not None:
                self._check_known(node.hint.communicator, members, node.id)
                self._check_ends(node.id, readers, members[node.hint.communicator])
            if isinstance(node, CollectiveCall) and node.communicates.communicator is not None:
                const = node.communicates.communicator
                self._check_known(const, members, node.id)
                size = len(self._collectives[node.collective])
                if len(members[const]) != size:
                    self._fail(
                        "Expected actor handles to match the custom communicator group: "
                        f"{self._describe(node.id)} has {size} ranks, {const} has "
                        f"{self._labels_text(members[const])}",
                        node.id,
                    )
                if members[const][node.rank : node.rank + 1] != (node.actor,):
                    self._refuse(node.id, f"is not rank {node.rank} of the communicator {const}")

    def _check_known(self, const: str, members: Mapping[str, object], node_id: int) -> None:
        if const not in members:
            self._refuse(node_id, f"uses the communicator {const}, which the graph does not list")

    def _check_ends(self, node_id: int, readers: tuple[str, ...], members: tuple[str, ...]) -> None:
        """Check that a communicator has the actors between which it carries a value."""
        writer = self._graph.actor_of(node_id)
        if writer is None or not readers or {writer, *readers} <= set(members):
            return
        self._fail(
            "The passed-in communicator must include all of the actors used in the P2P operation. "
            f"The passed-in communicator has actors {self._labels_text(members)} while "
            f"{self._describe(node_id)} is used between actors "
            f"{self._labels_text((writer, *readers))}.",
            node_id,
        )

    def _labels_text(self, actors: tuple[str, ...]) -> str:
        labels = {actor.id: actor.label for actor in self._graph.actors}
        return ", ".join(f"{actor} ({labels[actor]})" for actor in actors)

    # Calls and outputs

    def _check_outputs(self) -> None:
        graph = self._graph
        if not graph.outputs:
            self._fail("the DAG has no output: give MultiOutputNode at least one node")
        if not graph.is_multi and len(graph.outputs) != 1:
            self._fail(f"the DAG has one output, but {len(graph.outputs)} nodes are listed for it")
        for output in graph.outputs:
            if not 0 <= output < len(graph.nodes):
                self._fail(f"the DAG returns node {output}, which is not in the graph")
            if isinstance(graph.nodes[output], InputValue):
                self._fail(
                    f"{self._describe(output)} is an output of the DAG: only what an actor's "
                    "method returns can be one. Leave it out: the caller knows its value.",
                    output,
                )
            self._check_is_value(output, "the DAG returns", output)

    def _check_is_value(self, value: int, taker: str, at: int) -> None:
        """A call with several returns is not a value; its parts are."""
        node = self._graph.nodes[value]
        if isinstance(node, MethodCall | CollectiveCall) and node.num_returns > 1:
            self._fail(
                f"{taker} all {node.num_returns} values of {self._describe(value)} as one: take "
                "them apart, `a, b = method.bind(...)`",
                at,
            )

    def _check_calls(self) -> None:
        taken: set[tuple[int, int]] = set()
        for node in self._graph.nodes:
            match node:
                case MethodCall():
                    self._check_call(node)
                case CollectiveCall(args=args):
                    for value in args:
                        self._check_is_value(value, f"{self._describe(node.id)} takes", node.id)
                case Part(call=call, index=index):
                    owner = self._graph.nodes[call]
                    if isinstance(owner, InputValue | Part) or owner.num_returns < 2:
                        self._fail(
                            f"node {node.id} ({node.site}) is a part of {self._describe(call)}, "
                            "which does not return several values",
                            node.id,
                        )
                    if not 0 <= index < owner.num_returns or (call, index) in taken:
                        self._fail(
                            f"node {node.id} ({node.site}) is value {index} of "
                            f"{self._describe(call)}: each of 0 to {owner.num_returns - 1} may be "
                            "taken once",
                            node.id,
                        )
                    taken.add((call, index))

    def _check_call(self, node: MethodCall) -> None:
        name = self._describe(node.id)
        if node.num_returns < 1:
            self._refuse(node.id, f"has num_returns={node.num_returns}: it must be at least 1")
        if len(dict(node.kwargs)) != len(node.kwargs):
            self._refuse(node.id, "is given a keyword argument twice")
        upstream = upstream_of(node)
        if not upstream:
            self._fail(
                "Compiled DAGs require each task to take a ray.dag.InputNode or at least one other "
                f"DAGNode as an input. {name} must take a ray.dag.InputNode or at least one other "
                "DAGNode as an input: nothing else would start it.",
                node.id,
            )
        for value in upstream:
            self._check_is_value(value, f"{name} takes", node.id)

    # Inputs

    def _check_has_input(self) -> None:
        if not any(isinstance(node, InputValue) for node in self._graph.nodes):
            root = self._graph.outputs[0]
            self._fail(
                "No InputNode found in the DAG: when traversing upwards, no upstream node was "
                f"found for {self._describe(root)}. Bind at least one node to an InputNode.",
                root,
            )

    def _check_inputs(self) -> None:
        inputs = [node for node in self._graph.nodes if isinstance(node, InputValue)]
        by_key: dict[int | str | None, InputValue] = {}
        for node in inputs:
            name = self._describe(node.id)
            if type(node.key) not in (int, str, type(None)):  # no bool or enum: plans are text
                self._fail(f"{name}: Please only use int index or str as first-level key", node.id)
            if isinstance(node.key, int) and node.key < 0:
                self._fail(f"{name}: positional arguments are counted from 0", node.id)
            if node.key in by_key:
                self._refuse(
                    node.id,
                    f"and {self._describe(by_key[node.key].id)} are the same input: use "
                    "one node for it",
                )
            by_key[node.key] = node
        if None in by_key and len(by_key) > 1:
            other = next(node for node in inputs if node.key is not None)
            self._fail(
                "All tasks must either use InputNode() directly, or they must index to specific "
                f"args or kwargs. The DAG does both, with {self._describe(by_key[None].id)} and "
                f"{self._describe(other.id)}",
                other.id,
            )
        self._check_declared_inputs(by_key)
        self._check_inputs_are_used(by_key)

    def _check_declared_inputs(self, by_key: dict[int | str | None, InputValue]) -> None:
        """Check that ``execute`` takes the arguments that the nodes use.

        A positional argument between two used ones may be unused: it is accepted and ignored, as in
        Ray.
        """
        positional, keywords = self._graph.num_positional, self._graph.keywords
        if len(set(keywords)) != len(keywords):
            self._fail(f"the DAG lists a keyword argument twice: {list(keywords)}")
        found = ExecutionSignature.of(by_key)
        if positional == found.num_positional and set(keywords) == set(found.keywords):
            return
        takes = f"{positional} positional arguments and keywords {list(keywords)}"
        if None in by_key:
            whole = by_key[None].id
            self._fail(
                f"{self._describe(whole)} is the whole input, so the DAG takes one positional "
                f"argument, not {takes}",
                whole,
            )
        self._fail(
            f"the DAG is declared to take {takes}, but its inputs are "
            f"{', '.join(self._describe(node.id) for node in by_key.values())}"
        )

    def _check_inputs_are_used(self, by_key: dict[int | str | None, InputValue]) -> None:
        used = {value for node in self._graph.nodes for value in upstream_of(node)}
        unused = [node for node in by_key.values() if node.id not in used]
        if not unused:
            return
        where = ", ".join(self._describe(node.id) for node in unused)
        is_or_are = "is" if len(unused) == 1 else "are"
        if None in by_key:
            self._fail(f"{where} {is_or_are} unused: bind a node to it", unused[0].id)
        self._fail(
            "Compiled Graph expects input to be accessed using all of attributes "
            f"{', '.join(map(str, by_key))}, but {', '.join(str(node.key) for node in unused)} "
            f"{is_or_are} unused. Ensure all input attributes are used and contribute to the "
            f"computation of the Compiled Graph output. Unused: {where}.",
            unused[0].id,
        )

    def _check_reached(self) -> None:
        nodes = self._graph.nodes
        reached: set[int] = set()
        stack = list(self._graph.outputs)
        while stack:
            current = stack.pop()
            if current not in reached:
                reached.add(current)
                node = nodes[current]
                stack.extend(upstream_of(node))
                if isinstance(node, CollectiveCall):
                    # All ranks take part, whether their results are used or not.
                    stack.extend([rank.id for rank in self._collectives[node.collective]])
        for node in nodes:
            if node.id not in reached:
                self._refuse(
                    node.id,
                    "does not reach an output: add it to the MultiOutputNode or leave it out",
                )
