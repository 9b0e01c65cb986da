# SPDX-License-Identifier: Apache-2.0
"""The data of a graph: its nodes, their arguments, and where the user bound them.

``rcg.ir.graph.Graph`` is this data, checked. What follows from it is here as well: between which
processes values travel. A communicator carries tensors from actor to actor; the driver is no member
of one. This room must know neither Ray nor how a DAG is run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rcg.ir.channels import ActorSpec


@dataclass(frozen=True, slots=True)
class Site:
    """A place in the user's source. ``line`` 0 means that only the file is known."""

    file: str
    line: int

    def __str__(self) -> str:
        name = os.path.basename(self.file)
        if not self.line:
            return name
        return f"{name} line {self.line}" if name.startswith("In [") else f"{name}:{self.line}"


@dataclass(frozen=True, slots=True)
class TensorHint:
    """How the tensors in a node's value travel to other processes (``with_tensor_transport``).

    Attributes:
        transport: ``auto``, ``shm``, or the name of a communicator's class: ``gloo``.
        site: Where the user gave the hint.
        device: Where tensors arrive: ``default`` (a device of the type that they were on), or the
            type of a device: ``cpu``, ``cuda``.
        is_static_shape: Whether the tensors of every execution have the shapes and dtypes of the
            first.
        is_direct_return: Whether the value is exactly one tensor.
        communicator: The id of the user's communicator in the bindings (``k3``), if it is one.
    """

    transport: str
    site: Site
    device: str = "default"
    is_static_shape: bool = False
    is_direct_return: bool = False
    communicator: str | None = None


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
    hint: TensorHint | None = None


KEEP: Final = "rcg_keep"
"""The method of rcg's actors that keeps the tensors of an output: lowering adds a call of it."""


@dataclass(frozen=True, slots=True)
class MethodCall:
    """One call of an actor's method. With ``num_returns`` above 1, its values are its parts.

    ``cost_s`` is how long it takes, if the user has declared that for this call.
    """

    id: int
    actor: str
    method: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...]
    num_returns: int
    site: Site
    hint: TensorHint | None = None
    cost_s: float | None = None

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
    hint: TensorHint | None = None


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One rank's part in a collective. With ``num_returns`` above 1, its values are its parts.

    Attributes:
        collective: Which collective of the graph it belongs to; its ranks have the same number, and
            all ranks are in the graph.
        actor: The actor that is this rank.
        rank: Its position among the ranks.
        kind: One of ``rcg.ir.ops.COLLECTIVES``: ``allreduce``, ``broadcast``, ...
        args: The nodes of its tensors; none where it only receives.
        num_returns: How many tensors it yields.
        reduction: ``sum``, ``product``, ``max``, ``min`` or ``avg``, for kinds that reduce.
        root: The rank that sends or receives alone, for kinds that have one.
        communicates: The transport of the collective itself, and where the user chose it.
        hint: How its values travel on.
    """

    id: int
    collective: int
    actor: str
    rank: int
    kind: str
    args: tuple[int, ...]
    num_returns: int
    reduction: str | None
    root: int | None
    communicates: TensorHint
    site: Site
    hint: TensorHint | None = None


Node = InputValue | MethodCall | Part | CollectiveCall


def upstream_of(node: Node) -> list[int]:
    """Return the ids of the nodes whose values this node takes, in order, repeats included."""
    match node:
        case InputValue():
            return []
        case Part(call=call):
            return [call]
        case CollectiveCall(args=args):
            return list(args)
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
class CommunicatorSpec:
    """A communicator that the user made: its id in the bindings, and its actors by rank."""

    const: str
    backend: str
    members: tuple[str, ...]


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
        communicators: The user's communicators that hints and collectives name.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    is_multi: bool
    actors: tuple[ActorSpec, ...]
    num_positional: int
    keywords: tuple[str, ...]
    communicators: tuple[CommunicatorSpec, ...] = ()

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
                return f"{self._label(actor)}.{method}"
            case CollectiveCall(actor=actor, kind=kind):
                return f"{kind} of {self._label(actor)}"
            case Part(call=call, index=index):
                is_call = 0 <= call < node_id and not isinstance(self.nodes[call], Part)
                return f"{self.name(call)}[{index}]" if is_call else f"node {node_id}"

    def actor_of(self, node_id: int) -> str | None:
        """Return the actor that makes a node's value; None for the input, which the driver has."""
        match self.nodes[node_id]:
            case InputValue():
                return None
            case Part(call=call):
                return self.actor_of(call)
            case MethodCall(actor=actor) | CollectiveCall(actor=actor):
                return actor

    def collectives(self) -> dict[int, list[CollectiveCall]]:
        """Return the ranks of each collective by its number, in creation order."""
        found: dict[int, list[CollectiveCall]] = {}
        for node in self.nodes:
            if isinstance(node, CollectiveCall):
                found.setdefault(node.collective, []).append(node)
        return found

    def _label(self, actor: str) -> str:
        return next((spec.label for spec in self.actors if spec.id == actor), actor)


# --- between which processes the values of nodes travel -----------------------------------------


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
