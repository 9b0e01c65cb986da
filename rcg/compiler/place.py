# SPDX-License-Identifier: Apache-2.0
"""The first pass: decide how every value of a graph gets to the calls that use it.

A value that only its own process uses stays in a slot. A value used elsewhere gets one channel for
all its readers: two nodes of an actor share one read, and an output that another actor also uses
has the driver as one more reader. A container with values inside is built where it is used.

Values that are ready at the same point for the same readers share a channel: the inputs of an
execution, and the values of a call that returns several. They travel in one frame, which costs one
wake-up and not one for each.

The resulting plan keeps all rules of ``Plan.check``. Its ops are in a simple order (reads, then
calls, then writes), which may deadlock: the next pass orders them. This room must know neither how
ops are ordered nor how channels work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rcg.errors import PlacementError
from rcg.ir.channels import RING, ChannelSpec
from rcg.ir.graph import Graph
from rcg.ir.ids import DRIVER
from rcg.ir.nodes import (
    Argument,
    CollectiveCall,
    ConstArg,
    InputValue,
    MethodCall,
    NestedArg,
    NodeArg,
    Part,
    upstream_of,
)
from rcg.ir.operands import Const, Slot
from rcg.ir.ops import Build, Call, Input, Op, Output, Read, Write
from rcg.ir.plan import Plan
from rcg.ir.programs import Program

__all__ = ["MAX_PROCESSES", "place"]

MAX_PROCESSES: Final = 64
"""The most processes that one graph may have on a node, the driver included."""


def place(
    graph: Graph, locations: Mapping[str, str], driver_location: str, channel_slots: int
) -> Plan:
    """Return the plan of a graph with every value's way decided and nothing ordered yet.

    Args:
        graph: The checked graph.
        locations: The node of the cluster that each actor lives on, by actor id.
        driver_location: The node that the compiling process lives on.
        channel_slots: How many frames each channel holds; as many executions may run ahead.

    Raises:
        PlacementError: An actor is on another node than the driver, or there are too many.
        ValueError: ``channel_slots`` is below 1.
    """
    if channel_slots < 1:
        raise ValueError(f"`channel_slots` must be a positive integer, found {channel_slots}")
    _check_locations(graph, locations, driver_location)
    if len(graph.actors) + 1 > MAX_PROCESSES:
        raise PlacementError(
            f"the DAG has {len(graph.actors)} actors on one node, at most {MAX_PROCESSES - 1} can "
            "share channels there: use fewer actors, or several compiled DAGs"
        )
    return _Placement(graph, channel_slots).plan()


def _check_locations(graph: Graph, locations: Mapping[str, str], driver_location: str) -> None:
    first_call: dict[str, MethodCall] = {}
    for node in graph.nodes:
        if isinstance(node, MethodCall):
            first_call.setdefault(node.actor, node)
    for actor in graph.actors:
        location = locations.get(actor.id)
        if location == driver_location:
            continue
        call = first_call[actor.id]
        where = "on a node nobody knows" if location is None else f"on the node {location}"
        raise PlacementError(
            f"{graph.describe(call.id)} is a method of an actor that is {where}, but the driver is "
            f"on {driver_location}: channels between nodes do not exist yet. Place the actor with "
            "the driver, for example with NodeAffinitySchedulingStrategy.",
            actor=actor.id,
            location=location,
            node=graph.name(call.id),
            site=call.site,
        )


class _Placement:
    """The tables of one run of the pass. Everything is visited in creation order."""

    def __init__(self, graph: Graph, channel_slots: int) -> None:
        self._graph = graph
        self._processes = [DRIVER, *(actor.id for actor in graph.actors)]
        self._rank = {process: rank for rank, process in enumerate(self._processes)}
        self._home = [self._home_of(node_id) for node_id in range(len(graph.nodes))]
        self._channels = self._find_channels(channel_slots)
        self._channel_of = {node: channel for channel in self._channels for node in channel.nodes}

    def _home_of(self, node_id: int) -> str:
        """The process that makes a node's value."""
        match self._graph.nodes[node_id]:
            case InputValue():
                return DRIVER
            case MethodCall(actor=actor) | CollectiveCall(actor=actor):
                return actor
            case Part(call=call):
                return self._home_of(call)

    def _find_channels(self, channel_slots: int) -> list[ChannelSpec]:
        graph, home = self._graph, self._home
        readers: list[set[str]] = [set() for _ in graph.nodes]
        for node in graph.nodes:
            if isinstance(node, MethodCall):
                for value in upstream_of(node):
                    readers[value].add(node.actor)
        for output in graph.outputs:
            readers[output].add(DRIVER)
        # The nodes whose values travel together, by where they are made and who reads them.
        together: dict[tuple[int | None, tuple[str, ...]], list[int]] = {}
        for node_id, found in enumerate(readers):
            found.discard(home[node_id])
            if found:
                ordered = tuple(sorted(found, key=self._rank.__getitem__))
                together.setdefault((self._made_at(node_id), ordered), []).append(node_id)
        return [
            ChannelSpec(f"c{number}", home[nodes[0]], ordered, RING, tuple(nodes), channel_slots)
            for number, ((_, ordered), nodes) in enumerate(together.items())
        ]

    def _made_at(self, node_id: int) -> int | None:
        """The call that makes a node's value; None for inputs, which are all there at once."""
        match self._graph.nodes[node_id]:
            case InputValue():
                return None
            case MethodCall() | CollectiveCall():
                return node_id
            case Part(call=call):
                return call

    def plan(self) -> Plan:
        graph = self._graph
        calls: dict[str, list[MethodCall]] = {actor.id: [] for actor in graph.actors}
        for node in graph.nodes:
            if isinstance(node, MethodCall):
                calls[node.actor].append(node)
        parts: dict[int, list[Part]] = {}
        for node in graph.nodes:
            if isinstance(node, Part):
                parts.setdefault(node.call, []).append(node)
        programs = [self._driver_program()]
        for actor in graph.actors:
            programs.append(
                _ActorProgram(self._channel_of, self._home, actor.id, parts).of(calls[actor.id])
            )
        return Plan(
            programs=tuple(programs),
            channels=tuple(self._channels),
            actors=graph.actors,
            is_multi=graph.is_multi,
            num_positional=graph.num_positional,
            keywords=graph.keywords,
        )

    def _driver_program(self) -> Program:
        graph = self._graph
        ops: list[Op] = []
        slot_of: dict[int, int] = {}
        for node in graph.nodes:
            if isinstance(node, InputValue):
                slot_of[node.id] = len(slot_of)
                ops.append(Input(node.key, slot_of[node.id]))
        for channel in self._channels:
            if channel.writer == DRIVER:
                ops.append(Write(tuple([slot_of[node] for node in channel.nodes]), channel.id))
        for output in sorted(set(graph.outputs)):
            if output not in slot_of:
                channel = self._channel_of[output]
                outs = tuple(range(len(slot_of), len(slot_of) + len(channel.nodes)))
                slot_of.update(zip(channel.nodes, outs, strict=True))
                ops.append(Read(channel.id, outs))
        ops.append(Output(tuple(slot_of[output] for output in graph.outputs)))
        return Program(DRIVER, tuple(ops))


class _ActorProgram:
    """Builds the program of one actor; slots are numbered in the order of first use."""

    def __init__(
        self,
        channel_of: Mapping[int, ChannelSpec],
        home: Sequence[str],
        actor: str,
        parts: Mapping[int, list[Part]],
    ) -> None:
        self._channel_of = channel_of
        self._home = home
        self._actor = actor
        self._parts = parts
        self._slot_of: dict[int, int] = {}
        self._num_slots = 0
        self._reads: list[Op] = []
        self._calls: list[Op] = []
        self._writes: list[Op] = []

    def of(self, calls: Sequence[MethodCall]) -> Program:
        for call in calls:
            self._add(call)
        return Program(self._actor, (*self._reads, *self._calls, *self._writes))

    def _add(self, call: MethodCall) -> None:
        args = tuple([self._argument(argument) for argument in call.args])
        kwargs = tuple([(name, self._argument(argument)) for name, argument in call.kwargs])
        outs = tuple([self._new_slot() for _ in range(call.num_returns)])
        self._calls.append(Call(call.actor, call.method, args, kwargs, outs, call.id))
        made = [call.id] if call.num_returns == 1 else []
        self._slot_of.update(dict.fromkeys(made, outs[0]))
        for part in self._parts.get(call.id, ()):
            self._slot_of[part.id] = outs[part.index]
            made.append(part.id)
        # What anyone else uses is sent.
        sent = [self._channel_of[node] for node in made if node in self._channel_of]
        for channel in dict.fromkeys(sent):
            slots = tuple([self._slot_of[node] for node in channel.nodes])
            self._writes.append(Write(slots, channel.id))

    def _argument(self, argument: Argument) -> Slot | Const:
        match argument:
            case ConstArg(const=const):
                return Const(const)
            case NodeArg(node=node):
                return Slot(self._slot(node))
            case NestedArg(template=template, nodes=nodes):
                slots = tuple([self._slot(node) for node in nodes])
                out = self._new_slot()
                self._calls.append(Build(template, slots, out))
                return Slot(out)

    def _slot(self, node_id: int) -> int:
        """The slot that holds a value, reading it on first use if it comes from elsewhere."""
        if node_id not in self._slot_of:
            channel = self._channel_of[node_id]
            outs = tuple([self._new_slot() for _ in channel.nodes])
            self._slot_of.update(zip(channel.nodes, outs, strict=True))
            self._reads.append(Read(channel.id, outs))
        return self._slot_of[node_id]

    def _new_slot(self) -> int:
        self._num_slots += 1
        return self._num_slots - 1
