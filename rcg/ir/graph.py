# SPDX-License-Identifier: Apache-2.0
"""The frozen graph: what the user bound, as plain data, checked when it is built.

A ``Graph`` holds the nodes that the root of a DAG reaches, upward, in the order in which the user
made them. Actors, constants and containers appear by id (``a0``, ``k3``); the objects themselves
stay in ``rcg.ir.plan.Bindings``. Building a ``Graph`` runs every check that needs no cluster, so
whoever holds one holds a right one. This room must know neither Ray, nor torch, nor how the DAG is
going to be run.

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

import os
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NoReturn

from rcg.errors import GraphError

__all__ = [
    "ActorSpec",
    "Argument",
    "ConstArg",
    "Graph",
    "InputValue",
    "MethodCall",
    "NestedArg",
    "Node",
    "NodeArg",
    "Part",
    "Site",
    "Template",
    "upstream_of",
]


@dataclass(frozen=True, slots=True)
class Site:
    """A place in the user's source. ``line`` 0 means that only the file is known."""

    file: str
    line: int

    def __str__(self) -> str:
        name = os.path.basename(self.file)
        return f"{name}:{self.line}" if self.line else name


# --- arguments --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An argument that is the value of another node."""

    node: int


@dataclass(frozen=True, slots=True)
class ConstArg:
    """An argument that is the same in every execution; ``const`` is its id in the bindings."""

    const: str


@dataclass(frozen=True, slots=True)
class NestedArg:
    """A container with values of nodes inside; ``template`` is the id of its ``Template``."""

    template: str
    nodes: tuple[int, ...]


Argument = NodeArg | ConstArg | NestedArg


# --- nodes ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InputValue:
    """The whole input (key None), one positional (int) or one keyword (str) argument of it."""

    id: int
    key: int | str | None
    site: Site


@dataclass(frozen=True, slots=True)
class MethodCall:
    """One call of an actor's method. With ``num_returns`` above 1, its values are its parts."""

    id: int
    actor: str
    method: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...]
    num_returns: int
    site: Site

    def arguments(self) -> Iterator[Argument]:
        """Yield the positional arguments, then those given by keyword."""
        yield from self.args
        for _, argument in self.kwargs:
            yield argument


@dataclass(frozen=True, slots=True)
class Part:
    """One of the values of a call that returns several."""

    id: int
    call: int
    index: int
    site: Site


Node = InputValue | MethodCall | Part


@dataclass(frozen=True, slots=True)
class ActorSpec:
    """An actor of the graph: its id here, its name for people, its id in Ray (hex, or empty)."""

    id: str
    label: str
    key: str


# --- the graph --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Graph:
    """Everything the root of a DAG reaches, checked.

    Attributes:
        nodes: The nodes; a node's id is its position, and positions follow creation order, which
            is the order in which an actor runs its calls.
        outputs: Ids of the nodes whose values an execution returns, in the user's order; the same
            node may appear twice.
        is_multi: Whether the user gets a list (``MultiOutputNode``) or one value.
        actors: The actors that the nodes use, ``a0`` first.
        num_positional: How many positional arguments ``execute`` takes.
        keywords: Which keyword arguments ``execute`` takes.

    Raises:
        GraphError: The graph cannot be run as it is; the text names the node and where it was
            bound.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    is_multi: bool
    actors: tuple[ActorSpec, ...]
    num_positional: int
    keywords: tuple[str, ...]

    def __post_init__(self) -> None:
        _Checker(self).run()

    def describe(self, node_id: int) -> str:
        """Return the node as a person would name it: ``Stage.fwd (pipeline.py:12)``."""
        return f"{self.name(node_id)} ({self.nodes[node_id].site})"

    def name(self, node_id: int) -> str:
        """Return the node's name without its place: ``Stage.fwd``, ``InputNode[0]``."""
        match self.nodes[node_id]:
            case InputValue(key=None):
                return "InputNode"
            case InputValue(key=key):
                return f"InputNode[{key!r}]"
            case MethodCall(actor=actor, method=method):
                label = next((spec.label for spec in self.actors if spec.id == actor), actor)
                return f"{label}.{method}"
            case Part(call=call, index=index):
                is_call = 0 <= call < node_id and isinstance(self.nodes[call], MethodCall)
                return f"{self.name(call)}[{index}]" if is_call else f"node {node_id}"


def upstream_of(node: Node) -> list[int]:
    """Return the ids of the nodes whose values this node takes, in order, repeats included."""
    match node:
        case InputValue():
            return []
        case Part(call=call):
            return [call]
        case MethodCall():
            found: list[int] = []
            for argument in node.arguments():
                match argument:
                    case NodeArg(node=upstream):
                        found.append(upstream)
                    case NestedArg(nodes=nested):
                        found.extend(nested)
            return found


class _Checker:
    """The checks of a graph, in an order in which each may rely on those before it."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def run(self) -> None:
        self._check_ids()
        self._check_actors()
        self._check_references()
        self._check_outputs()
        self._check_has_input()
        self._check_calls()
        self._check_inputs()
        self._check_reached()

    def _fail(self, text: str, node_id: int | None = None) -> NoReturn:
        if node_id is None:
            raise GraphError(text)
        site = self._graph.nodes[node_id].site
        raise GraphError(text, node=self._graph.name(node_id), site=site)

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
            if isinstance(node, MethodCall):
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
                case Part(call=call, index=index):
                    owner = graph.nodes[call]
                    if not isinstance(owner, MethodCall) or owner.num_returns < 2:
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
        if isinstance(node, MethodCall) and node.num_returns > 1:
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
                    "method returns can be one. Leave it out, its value is known to the caller.",
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
        """What ``execute`` takes must be what the nodes use.

        A positional argument that was never touched may lie between two that were: it is taken
        and ignored, as Ray does.
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
        stack = list(graph.outputs)
        while stack:
            current = stack.pop()
            if not reached[current]:
                reached[current] = True
                stack.extend(upstream_of(graph.nodes[current]))
        for node_id, is_reached in enumerate(reached):
            if not is_reached:
                self._fail(
                    f"{graph.describe(node_id)} does not reach an output: add it to the "
                    "MultiOutputNode or leave it out",
                    node_id,
                )


# --- containers with nodes inside --------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Hole:
    index: int

    def fill(self, values: Sequence[Any]) -> Any:
        return values[self.index]


@dataclass(frozen=True, slots=True, eq=False)
class _Constant:
    value: Any

    def fill(self, values: Sequence[Any]) -> Any:
        return self.value


@dataclass(frozen=True, slots=True, eq=False)
class _ListShape:
    items: tuple[_Shape, ...]

    def fill(self, values: Sequence[Any]) -> Any:
        return [item.fill(values) for item in self.items]


@dataclass(frozen=True, slots=True, eq=False)
class _TupleShape:
    items: tuple[_Shape, ...]

    def fill(self, values: Sequence[Any]) -> Any:
        return tuple([item.fill(values) for item in self.items])


@dataclass(frozen=True, slots=True, eq=False)
class _NamedTupleShape:
    cls: Any
    items: tuple[_Shape, ...]

    def fill(self, values: Sequence[Any]) -> Any:
        return self.cls._make([item.fill(values) for item in self.items])


@dataclass(frozen=True, slots=True, eq=False)
class _DictShape:
    """A dict, or one of its two standard kin; ``empty`` makes the container to fill."""

    empty: Callable[[], dict[Any, Any]] | tuple[Any, ...]
    items: tuple[tuple[Any, _Shape], ...]

    def fill(self, values: Sequence[Any]) -> Any:
        filled = defaultdict(*self.empty) if isinstance(self.empty, tuple) else self.empty()
        for key, item in self.items:
            filled[key] = item.fill(values)
        return filled


_Shape = _Hole | _Constant | _ListShape | _TupleShape | _NamedTupleShape | _DictShape


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """A container with holes where values of nodes go.

    Lists, tuples, named tuples and dicts (``OrderedDict`` and ``defaultdict`` too) that lead to a
    hole are made anew by every ``fill``; whatever else is inside is the user's own object, as a
    plain constant argument is.

    >>> template, nodes = Template.of(["scale", {"x": 1j}], lambda item: isinstance(item, complex))
    >>> nodes
    [1j]
    >>> template.fill(["filled"])
    ['scale', {'x': 'filled'}]
    """

    shape: _Shape
    num_holes: int

    @classmethod
    def of(
        cls,
        value: object,
        is_node: Callable[[object], bool],
        *,
        node: str | None = None,
        site: Site | None = None,
    ) -> tuple[Template, list[Any]]:
        """Take a value apart into a template and the nodes in it, in order of appearance.

        Args:
            value: What the user gave as an argument.
            is_node: Tells a node from anything else.
            node: The name of the node that takes the argument, for errors.
            site: Where it was bound, for errors.

        Returns:
            The template, and one node per hole. Without nodes the template is the constant itself
            and the list is empty.

        Raises:
            GraphError: A node is where rcg does not look for one at run time: in a set, among the
                keys of a dict, in a dataclass or a container class of the user's own, or in a
                container that contains itself.
        """
        taker = _TakeApart(is_node, node, site)
        if not taker.has_node(value):
            return cls(_Constant(value), 0), []
        shape = taker.take(value)
        return cls(shape, len(taker.nodes)), taker.nodes

    def fill(self, values: Sequence[Any]) -> Any:
        """Return a new container with these values in the holes.

        Raises:
            ValueError: The number of values is not the number of holes.
        """
        if len(values) != self.num_holes:
            raise ValueError(f"the template has {self.num_holes} holes, got {len(values)} values")
        return self.shape.fill(values)


class _TakeApart:
    """One walk through an argument; collects the nodes it meets."""

    def __init__(
        self, is_node: Callable[[object], bool], node: str | None, site: Site | None
    ) -> None:
        self.nodes: list[Any] = []
        self._is_node = is_node
        self._node = node
        self._site = site
        self._open: set[int] = set()

    def has_node(self, value: object) -> bool:
        """Whether a node can be reached through containers; works on cyclic values too."""
        if self._is_node(value):
            return True
        seen: set[int] = set()
        stack = [value]
        while stack:
            container = stack.pop()
            if id(container) in seen:
                continue
            for item in _items_of(container):
                if self._is_node(item):
                    return True
                if isinstance(item, _CONTAINERS) or is_dataclass(item):
                    stack.append(item)
            seen.add(id(container))
        return False

    def take(self, value: Any) -> _Shape:
        if self._is_node(value):
            self.nodes.append(value)
            return _Hole(len(self.nodes) - 1)
        if not (isinstance(value, _CONTAINERS) or is_dataclass(value)):
            return _Constant(value)
        if id(value) in self._open:
            self._fail(f"a {type(value).__name__} that contains itself")
        self._open.add(id(value))
        before = len(self.nodes)
        shape = self._take_container(value)
        self._open.discard(id(value))
        return shape if len(self.nodes) > before else _Constant(value)

    def _take_container(self, value: Any) -> _Shape:
        cls = type(value)
        if cls is list:
            return _ListShape(tuple([self.take(item) for item in value]))
        if cls is tuple:
            return _TupleShape(tuple([self.take(item) for item in value]))
        if issubclass(cls, tuple) and hasattr(cls, "_fields") and hasattr(cls, "_make"):
            return _NamedTupleShape(cls, tuple([self.take(item) for item in value]))
        if cls in (dict, OrderedDict, defaultdict):
            for key in value:
                if self._is_node(key) or self.has_node(key):
                    self._fail(f"a key of a {cls.__name__}")
            items = tuple([(key, self.take(item)) for key, item in value.items()])
            return _DictShape((value.default_factory,) if cls is defaultdict else cls, items)
        if self.has_node(value):
            self._fail(f"a {cls.__name__}")
        return _Constant(value)

    def _fail(self, where: str) -> NoReturn:
        taker = f" of {self._node}" if self._node else ""
        raise GraphError(
            f"an argument{taker} has a DAG node inside {where}: nodes may be nested in lists, "
            "tuples, named tuples and the values of dicts; put it there, or pass it as an "
            "argument of its own",
            node=self._node,
            site=self._site,
        )


_CONTAINERS = (list, tuple, dict, set, frozenset)


def _items_of(container: Any) -> Iterable[Any]:
    if isinstance(container, dict):
        return [*container.keys(), *container.values()]
    if isinstance(container, list | tuple | set | frozenset):
        return container
    if is_dataclass(container) and not isinstance(container, type):
        return [getattr(container, field.name, None) for field in fields(container)]
    return ()
