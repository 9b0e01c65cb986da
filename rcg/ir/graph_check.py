# SPDX-License-Identifier: Apache-2.0
"""The checks of a graph that need no cluster; every error names the node and where it was bound."""

from __future__ import annotations

from typing import NoReturn

from rcg.errors import GraphError
from rcg.ir.collective_check import check_collectives
from rcg.ir.nodes import (
    CollectiveCall,
    GraphData,
    InputValue,
    MethodCall,
    Node,
    Part,
    upstream_of,
)


def check(graph: GraphData) -> None:
    """Check a graph.

    Raises:
        GraphError: It cannot be run as it is.
    """
    _Checker(graph).run()


class _Checker:
    """The checks of a graph, in an order in which each may rely on those before it."""

    def __init__(self, graph: GraphData) -> None:
        self._graph = graph

    def run(self) -> None:
        self._check_ids()
        self._check_actors()
        self._check_references()
        check_collectives(self._graph)
        self._check_outputs()
        self._check_has_input()
        self._check_calls()
        self._check_inputs()
        self._check_reached()

    def _fail(self, text: str, node_id: int | None = None) -> NoReturn:
        raise self._graph.error(text, node_id)

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
                    self._fail(
                        f"{graph.describe(node.id)} is bound to the actor {node.actor!r}, which "
                        "the graph does not list",
                        node.id,
                    )
        for actor in graph.actors:
            if actor.id not in used:
                self._fail(
                    f"the graph lists the actor {actor.id} ({actor.label}) but never calls it"
                )

    def _check_references(self) -> None:
        graph = self._graph
        count = len(graph.nodes)
        for node in graph.nodes:
            for upstream in upstream_of(node):
                if not 0 <= upstream < count:
                    self._fail(
                        f"{graph.describe(node.id)} takes the value of node {upstream}, which is "
                        "not in the graph",
                        node.id,
                    )
        for node in graph.nodes:
            for upstream in upstream_of(node):
                if upstream < node.id:
                    continue
                cycle = self._find_cycle(node.id, upstream)
                if cycle:
                    self._fail(
                        "the DAG has a cycle: "
                        + " -> ".join(graph.describe(node_id) for node_id in cycle)
                        + "; a value cannot depend on itself",
                        node.id,
                    )
                self._fail(
                    f"{graph.describe(node.id)} takes the value of {graph.describe(upstream)}, "
                    "which was made after it: bind the nodes in the order in which values flow",
                    node.id,
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

    def _check_calls(self) -> None:
        graph = self._graph
        taken: set[tuple[int, int]] = set()
        for node in graph.nodes:
            match node:
                case MethodCall():
                    if node.num_returns < 1:
                        self._fail(
                            f"{graph.describe(node.id)} has num_returns={node.num_returns}: it "
                            "must be at least 1",
                            node.id,
                        )
                    self._check_call_arguments(node)
                case CollectiveCall(args=args):
                    for value in args:
                        self._check_is_value(value, f"{graph.describe(node.id)} takes", node.id)
                case Part(call=call, index=index):
                    owner = graph.nodes[call]
                    if isinstance(owner, InputValue | Part) or owner.num_returns < 2:
                        self._fail(
                            f"node {node.id} ({node.site}) is a part of {graph.describe(call)}, "
                            "which does not return several values",
                            node.id,
                        )
                    if not 0 <= index < owner.num_returns or (call, index) in taken:
                        self._fail(
                            f"node {node.id} ({node.site}) is value {index} of "
                            f"{graph.describe(call)}: each of 0 to {owner.num_returns - 1} may "
                            "be taken once",
                            node.id,
                        )
                    taken.add((call, index))

    def _check_call_arguments(self, node: MethodCall) -> None:
        graph = self._graph
        names = [name for name, _ in node.kwargs]
        if len(set(names)) != len(names):
            self._fail(f"{graph.describe(node.id)} is given a keyword argument twice", node.id)
        upstream = upstream_of(node)
        if not upstream:
            self._fail(
                "Compiled DAGs require each task to take an InputNode or at least one other "
                f"DAGNode as an input: {graph.describe(node.id)} takes none, so nothing would "
                "ever start it. Bind it to the input or to another node's value.",
                node.id,
            )
        for value in upstream:
            self._check_is_value(value, f"{graph.describe(node.id)} takes", node.id)

    def _check_is_value(self, value: int, taker: str, at: int) -> None:
        """A call with several returns is not a value; its parts are."""
        node = self._graph.nodes[value]
        if isinstance(node, MethodCall | CollectiveCall) and node.num_returns > 1:
            self._fail(
                f"{taker} all {node.num_returns} values of {self._graph.describe(value)} as one: "
                "take them apart, `a, b = method.bind(...)`",
                at,
            )

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
                    f"{graph.describe(output)} is an output of the DAG: only what an actor's "
                    "method returns can be one. Leave it out: the caller knows its value.",
                    output,
                )
            self._check_is_value(output, "the DAG returns", output)

    def _check_has_input(self) -> None:
        graph = self._graph
        if not any(isinstance(node, InputValue) for node in graph.nodes):
            root = graph.outputs[0]
            self._fail(
                "No InputNode found in the DAG: when traversing upwards, no upstream node was "
                f"found for {graph.describe(root)}. Bind at least one node to an InputNode.",
                root,
            )

    def _check_inputs(self) -> None:
        graph = self._graph
        inputs = [node for node in graph.nodes if isinstance(node, InputValue)]
        by_key: dict[int | str | None, InputValue] = {}
        for node in inputs:
            if isinstance(node.key, bool) or not isinstance(node.key, int | str | None):
                self._fail(
                    f"{graph.describe(node.id)}: Please only use int index or str as first-level "
                    "key",
                    node.id,
                )
            if isinstance(node.key, int) and node.key < 0:
                self._fail(
                    f"{graph.describe(node.id)}: positional arguments are counted from 0", node.id
                )
            if node.key in by_key:
                self._fail(
                    f"{graph.describe(node.id)} and {graph.describe(by_key[node.key].id)} are the "
                    "same input: use one node for it",
                    node.id,
                )
            by_key[node.key] = node
        if None in by_key and len(by_key) > 1:
            other = next(node for node in inputs if node.key is not None)
            self._fail(
                "All tasks must either use InputNode() directly, or they must index to specific "
                f"args or kwargs. The DAG does both, with {graph.describe(by_key[None].id)} and "
                f"{graph.describe(other.id)}",
                other.id,
            )
        self._check_declared_inputs(by_key)

    def _check_declared_inputs(self, by_key: dict[int | str | None, InputValue]) -> None:
        """Check that ``execute`` takes the arguments that the nodes use.

        A positional argument between two used ones may be unused: it is accepted and ignored, as in
        Ray.
        """
        graph = self._graph
        positional, keywords = graph.num_positional, graph.keywords
        takes = f"{positional} positional arguments and keywords {list(keywords)}"
        if len(set(keywords)) != len(keywords):
            self._fail(f"the DAG lists a keyword argument twice: {list(keywords)}")
        if None in by_key:
            if positional != 1 or keywords:
                whole = by_key[None].id
                self._fail(
                    f"{graph.describe(whole)} is the whole input, so the DAG takes one positional "
                    f"argument, not {takes}",
                    whole,
                )
        else:
            needed = max((key + 1 for key in by_key if isinstance(key, int)), default=0)
            if positional != needed or set(keywords) != {key for key in by_key if type(key) is str}:
                self._fail(
                    f"the DAG is declared to take {takes}, but its inputs are "
                    f"{', '.join(graph.describe(node.id) for node in by_key.values())}"
                )
        self._check_inputs_are_used(by_key)

    def _check_inputs_are_used(self, by_key: dict[int | str | None, InputValue]) -> None:
        graph = self._graph
        used = {value for node in graph.nodes for value in upstream_of(node)}
        unused = [node for node in by_key.values() if node.id not in used]
        if not unused:
            return
        where = ", ".join(graph.describe(node.id) for node in unused)
        is_or_are = "is" if len(unused) == 1 else "are"
        if None in by_key:
            self._fail(f"{where} {is_or_are} unused: bind a node to it", unused[0].id)
        self._fail(
            "Compiled Graph expects input to be accessed using all of attributes "
            f"{', '.join(map(str, by_key))}, but {', '.join(str(node.key) for node in unused)} "
            f"{is_or_are} unused: {where}. Ensure all input attributes are used and contribute "
            "to the output, or do not touch them.",
            unused[0].id,
        )

    def _check_reached(self) -> None:
        graph = self._graph
        reached = [False] * len(graph.nodes)
        ranks: dict[int, list[int]] = {}
        for node in graph.nodes:
            if isinstance(node, CollectiveCall):
                ranks.setdefault(node.collective, []).append(node.id)
        stack = list(graph.outputs)
        while stack:
            current = stack.pop()
            if not reached[current]:
                reached[current] = True
                node = graph.nodes[current]
                stack.extend(upstream_of(node))
                if isinstance(node, CollectiveCall):
                    # All ranks take part, whether their results are used or not.
                    stack.extend(ranks[node.collective])
        for node_id, is_reached in enumerate(reached):
            if not is_reached:
                self._fail(
                    f"{graph.describe(node_id)} does not reach an output: add it to the "
                    "MultiOutputNode or leave it out",
                    node_id,
                )
