# SPDX-License-Identifier: Apache-2.0
"""The data of a graph: its nodes, their arguments, and where the user bound them.

``rcg.ir.graph.Graph`` is this data, checked. This room must know neither Ray nor how a DAG is run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from rcg.ir.channels import ActorSpec

__all__ = [
    "Argument",
    "ConstArg",
    "GraphData",
    "InputValue",
    "MethodCall",
    "NestedArg",
    "Node",
    "NodeArg",
    "Part",
    "Site",
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


@dataclass(frozen=True, slots=True)
class GraphData:
    """The fields of a graph.

    Attributes:
        nodes: The nodes; a node's id is its position, and positions follow creation order, which
            is the order in which an actor runs its calls.
        outputs: Ids of the nodes whose values an execution returns, in the user's order; the same
            node may appear twice.
        is_multi: Whether the user gets a list (``MultiOutputNode``) or one value.
        actors: The actors that the nodes use, ``a0`` first.
        num_positional: How many positional arguments ``execute`` takes.
        keywords: Which keyword arguments ``execute`` takes.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    is_multi: bool
    actors: tuple[ActorSpec, ...]
    num_positional: int
    keywords: tuple[str, ...]

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
