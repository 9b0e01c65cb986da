# SPDX-License-Identifier: Apache-2.0
"""The pass that decides how every value of a graph gets to the calls that use it.

``rcg.compiler.routes`` chooses the channels and groups, this pass writes the programs. A value is
read once by each process that uses it, also if several of its calls do, and an output that an actor
uses has the driver as one more reader. A container with values inside is built where it is used.
Each rank of a collective gets one op in the program of its actor.

Where the processes are on several nodes of the cluster, channels are the same: a value is
serialized once, and one op writes it, wherever its readers are. What crosses follows from the nodes
that this pass adds to the plan (``Plan.crossings``), with a gate for each node where something
arrives.

The resulting plan keeps all rules of ``Plan.check``. Its ops are in a simple order (reads, then
calls, then writes), which may deadlock: the next pass orders them. ``check_room`` refuses plans
with too many processes on a node, as soon as it is known which actors are where, and again with
lanes. This room must know neither how ops are ordered nor how channels work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rcg.compiler.routes import Routes, find_routes
from rcg.compiler.transports import Gpus
from rcg.errors import PlacementError
from rcg.ir.channels import ClusterNode, Gate
from rcg.ir.graph import Graph
from rcg.ir.ids import DRIVER, Const, Slot
from rcg.ir.nodes import (
    Argument,
    CollectiveCall,
    ConstArg,
    InputValue,
    MethodCall,
    NestedArg,
    NodeArg,
    Part,
)
from rcg.ir.ops import COLLECTIVES, Build, Call, Input, Op, Output, Pass, Read, Write
from rcg.ir.plan import Plan
from rcg.ir.programs import FIRST_NODE, MAX_LINKS, MAX_PROCESSES, Program
from rcg.text import plural


def place(
    graph: Graph,
    locations: Mapping[str, str],
    driver_location: str,
    channel_slots: int,
    gpus: Gpus | None = None,
) -> Plan:
    """Return the plan of a graph with every value's way decided and nothing ordered yet.

    Args:
        graph: The checked graph.
        locations: The node of the cluster that each actor lives on, by actor id.
        driver_location: The node that the compiling process lives on.
        channel_slots: How many frames each channel holds; as many executions may run ahead.
        gpus: The GPUs of the actors, which decide who can be in one group.

    Raises:
        PlacementError: The node of an actor is not known.
        ValueError: ``channel_slots`` is below 1.
    """
    if channel_slots < 1:
        raise ValueError(f"`channel_slots` must be a positive integer, found {channel_slots}")
    _check_locations(graph, locations)
    plan = _plan_of(graph, find_routes(graph, channel_slots, gpus or {}))
    return _with_nodes(plan, locations, driver_location)


def _with_nodes(plan: Plan, locations: Mapping[str, str], driver_location: str) -> Plan:
    """Return a plan with its nodes and gates; one whose processes are on one node stays as it is.

    The driver's node is the first, the others are in the order of their first actors.
    """
    there: dict[str, list[str]] = {driver_location: [DRIVER]}
    for actor in plan.actors:
        there.setdefault(locations[actor.id], []).append(actor.id)
    if len(there) == 1:
        return plan
    nodes = [
        ClusterNode(f"n{number}", key, tuple(processes))
        for number, (key, processes) in enumerate(there.items())
    ]
    plan = replace(plan, nodes=tuple(nodes))
    crossings = plan.crossings()
    programs = {
        node.id: tuple([Pass(channel) for channel, to in crossings.items() if node.id in to])
        for node in nodes
    }
    gates = [Gate(node.id, node.processes[0]) for node in nodes if programs[node.id]]
    return replace(
        plan,
        programs=(*plan.programs, *[Program(gate.id, programs[gate.id]) for gate in gates]),
        gates=tuple(gates),
    )


def _check_locations(graph: Graph, locations: Mapping[str, str]) -> None:
    calls = [node for node in graph.nodes if isinstance(node, MethodCall | CollectiveCall)]
    for actor in graph.actors:
        if locations.get(actor.id) is None:
            node = next(node for node in calls if node.actor == actor.id)
            raise PlacementError(
                f"{graph.describe(node.id)} runs on an actor that is on a node nobody knows: it "
                "may have moved or died. Compile again when Ray says that the actor is alive.",
                actor=actor.id,
                node=graph.name(node.id),
                site=node.site,
            )


def _plan_of(graph: Graph, routes: Routes) -> Plan:
    """Return the programs, with everything visited in creation order."""
    steps: dict[str, list[MethodCall | CollectiveCall]] = {actor.id: [] for actor in graph.actors}
    parts: dict[int, list[Part]] = {}
    for node in graph.nodes:
        match node:
            case CollectiveCall() | MethodCall():
                steps[node.actor].append(node)
            case Part():
                parts.setdefault(node.call, []).append(node)
            case InputValue():
                pass
    ranks = graph.collectives()
    programs = [_ActorProgram(routes, ranks, parts, actor).of(own) for actor, own in steps.items()]
    return Plan(
        programs=(_driver_program(graph, routes), *programs),
        channels=routes.channels,
        actors=graph.actors,
        is_multi=graph.is_multi,
        num_positional=graph.num_positional,
        keywords=graph.keywords,
        groups=routes.groups,
    )


def _driver_program(graph: Graph, routes: Routes) -> Program:
    ops: list[Op] = []
    slot_of: dict[int, int] = {}
    for node in graph.nodes:
        if isinstance(node, InputValue):
            slot_of[node.id] = len(slot_of)
            ops.append(Input(node.key, slot_of[node.id]))
    for channel in routes.channels:
        if channel.writer == DRIVER:
            ops.append(Write(tuple([slot_of[node] for node in channel.nodes]), channel.id))
    for output in sorted(set(graph.outputs)):
        if output not in slot_of:
            channel = routes.arriving[output, DRIVER]
            outs = tuple(range(len(slot_of), len(slot_of) + len(channel.nodes)))
            slot_of.update(zip(channel.nodes, outs, strict=True))
            ops.append(Read(channel.id, outs))
    ops.append(Output(tuple(slot_of[output] for output in graph.outputs)))
    return Program(DRIVER, tuple(ops))


class _ActorProgram:
    """Builds the program of one actor; slots are numbered in the order of first use."""

    def __init__(
        self,
        routes: Routes,
        ranks: Mapping[int, Sequence[CollectiveCall]],
        parts: Mapping[int, Sequence[Part]],
        actor: str,
    ) -> None:
        self._routes = routes
        self._ranks = ranks
        self._parts = parts
        self._actor = actor
        self._slot_of: dict[int, int] = {}
        self._num_slots = 0
        self._reads: list[Op] = []
        self._calls: list[Op] = []
        self._writes: list[Op] = []

    def of(self, steps: Sequence[MethodCall | CollectiveCall]) -> Program:
        for step in steps:
            outs = self._add_call(step) if isinstance(step, MethodCall) else self._add_rank(step)
            self._send(step, outs)
        return Program(self._actor, (*self._reads, *self._calls, *self._writes))

    def _add_call(self, call: MethodCall) -> tuple[int, ...]:
        args = tuple([self._argument(argument) for argument in call.args])
        kwargs = tuple([(name, self._argument(argument)) for name, argument in call.kwargs])
        outs = self._new_slots(call.num_returns)
        self._calls.append(Call(call.actor, call.method, args, kwargs, outs, call.id))
        return outs

    def _add_rank(self, rank: CollectiveCall) -> tuple[int, ...]:
        """Add this actor's part in a collective."""
        status = self._routes.status
        others = [each.id for each in self._ranks[rank.collective] if each.id != rank.id]
        slots = tuple([self._slot(node) for node in rank.args])
        outs = self._new_slots(rank.num_returns)
        self._calls.append(
            COLLECTIVES[rank.kind](
                slots,
                rank.reduction,
                rank.root,
                self._routes.group_of[rank.collective].id,
                (status[rank.id].id,) if others else (),
                tuple([status[node].id for node in others]),
                outs,
                rank.id,
            )
        )
        return outs

    def _send(self, step: MethodCall | CollectiveCall, outs: tuple[int, ...]) -> None:
        """Note where the values of a call are, and send them to all who use them elsewhere."""
        made = [step.id] if step.num_returns == 1 else []
        self._slot_of.update(dict.fromkeys(made, outs[0]))
        for part in self._parts.get(step.id, ()):
            self._slot_of[part.id] = outs[part.index]
            made.append(part.id)
        leaving = [channel for node in made for channel in self._routes.leaving.get(node, ())]
        for channel in dict.fromkeys(leaving):
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
                (out,) = self._new_slots(1)
                self._calls.append(Build(template, slots, out))
                return Slot(out)

    def _slot(self, node_id: int) -> int:
        """The slot that holds a value, reading it on first use if it comes from elsewhere."""
        if node_id not in self._slot_of:
            channel = self._routes.arriving[node_id, self._actor]
            outs = self._new_slots(len(channel.nodes))
            self._slot_of.update(zip(channel.nodes, outs, strict=True))
            self._reads.append(Read(channel.id, outs))
        return self._slot_of[node_id]

    def _new_slots(self, count: int) -> tuple[int, ...]:
        self._num_slots += count
        return tuple(range(self._num_slots - count, self._num_slots))


# --- room on the nodes --------------------------------------------------------------------------


def check_room(plan: Plan) -> None:
    """Check that the processes of a plan fit on their nodes, and reach the others.

    Raises:
        PlacementError: Those of a node are too many, or one sends to too many nodes.
    """
    for node in [each.id for each in plan.nodes] or [FIRST_NODE]:
        processes = plan.processes_of(node)
        if len(processes) > MAX_PROCESSES:
            raise _refusal(plan, node, processes)
    reached: dict[str, set[str]] = {}
    crossings = plan.crossings()
    for channel in plan.channels:
        reached.setdefault(channel.writer, set()).update(crossings.get(channel.id, ()))
    for process, nodes in reached.items():
        if len(nodes) > MAX_LINKS:
            raise PlacementError(
                f"{plan.label(process)} would send to {len(nodes)} other nodes, and a process can "
                f"send to at most {MAX_LINKS}: have another actor pass the value on to some of them"
            )


def has_room(plan: Plan) -> bool:
    """Return whether the processes of a plan fit on their nodes, and reach the others."""
    try:
        check_room(plan)
    except PlacementError:
        return False
    return True


def _refusal(plan: Plan, node: str, processes: tuple[str, ...]) -> PlacementError:
    lanes = {lane.id for lane in plan.lanes}.intersection(processes)
    actors = {actor.id for actor in plan.actors}.intersection(processes)
    counts = [
        *(["the driver"] if DRIVER in processes else []),
        plural(len(actors), "actor"),
        *([plural(len(lanes), "lane")] if lanes else []),
        *(["a gate"] if node in processes else []),
    ]
    key = next((each.key for each in plan.nodes if each.id == node), None)
    where = "one node" if key is None else f"the node {key}"
    ways = ["use fewer actors there", "several compiled DAGs, or actors on more nodes"]
    if lanes:
        ways.insert(0, "compile without overlap")
    return PlacementError(
        f"the DAG would have {len(processes)} processes on {where} ({', '.join(counts)}), and at "
        f"most {MAX_PROCESSES} can share channels on a node: {', '.join(ways)}",
        location=key,
    )
