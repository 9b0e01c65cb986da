# SPDX-License-Identifier: Apache-2.0
"""Where the values of a plan are written and read, and which ops go together.

Everything that follows a value through a plan looks it up here: the deadlock check, the analyses of
traces, and the views. A place is an op: its process, and its index in the program of that.

This room must know neither costs nor times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rcg.ir.channels import LOCAL, RING, TENSOR
from rcg.ir.ops import Collective, Copy, Op, Pass
from rcg.ir.plan import Plan

Place = tuple[str, int]
"""An op: its process, and its index in the program."""


def writes_of(plan: Plan) -> dict[str, Place]:
    """Return where each channel with values is written."""
    return {
        channel: (program.process, at)
        for program in plan.programs
        for at, op in enumerate(program.ops)
        for channel in op.values_out
    }


def reads_of(plan: Plan) -> dict[tuple[str, str], Place]:
    """Return where each channel with values is read, by the channel and the process."""
    return {
        (channel, program.process): (program.process, at)
        for program in plan.programs
        for at, op in enumerate(program.ops)
        for channel in op.values_in
    }


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Ops that go together in every execution.

    Attributes:
        name: The tensor channel, or the word of the collective: ``c3``, ``allreduce``.
        group: The group that carries the tensors.
        ends: The place of each op: of the writer and then the readers of a channel, or of the ranks
            in their order.
        is_collective: Whether it is a collective.
    """

    name: str
    group: str | None
    ends: tuple[Place, ...]
    is_collective: bool


def rendezvous_of(plan: Plan) -> tuple[Rendezvous, ...]:
    """Return the rendezvous of a plan: its tensor channels, then its collectives."""
    ends: dict[str, dict[str, int]] = {}
    ranks: dict[frozenset[str], list[tuple[str, int, Collective]]] = {}
    for program in plan.programs:
        for at, op in enumerate(program.ops):
            for channel in (*op.values_in, *op.values_out):
                ends.setdefault(channel, {})[program.process] = at
            if isinstance(op, Collective):
                # A group of one tells nobody.
                known = frozenset((*op.tells, *op.hears)) or frozenset((f"{program.process} {at}",))
                ranks.setdefault(known, []).append((program.process, at, op))
    members = {group.id: group.members for group in plan.groups}
    found = []
    for spec in plan.channels:
        if spec.kind == TENSOR:
            processes = [each for each in (spec.writer, *spec.readers) if each in ends[spec.id]]
            places = tuple((process, ends[spec.id][process]) for process in processes)
            found.append(Rendezvous(spec.id, spec.group, places, is_collective=False))
    for collective in ranks.values():
        _, _, op = collective[0]
        order = members[op.group].index
        collective.sort(key=lambda each: order(each[0]))
        places = tuple((process, at) for process, at, _ in collective)
        found.append(Rendezvous(op.word, op.group, places, is_collective=True))
    return tuple(found)


def groups_of(plan: Plan, process: str) -> list[str | None]:
    """Return the group over which each op of a process exchanges tensors; None if it does not."""
    tensors = {each.id: each.group for each in plan.channels if each.kind == TENSOR}
    return [
        each.group
        if isinstance(each, Collective)
        else next((tensors[c] for c in (*each.values_in, *each.values_out) if c in tensors), None)
        for each in plan.program(process).ops
    ]


def rank_of(plan: Plan, process: str, group: str) -> int:
    """Return the rank of a member of a group."""
    return next(each for each in plan.groups if each.id == group).members.index(process)


# --- where values come from ----------------------------------------------------------------------


class Origin(NamedTuple):
    """The program and slot where a value was made, and the channel by which it came, if any."""

    process: str
    slot: int
    channel: str | None


class Origins:
    """Finds the origins of values in a plan.

    Channels between lanes of one process, and copies, are passed over: to people, a value that a
    lane receives and hands to a method comes by the channel of the lane.
    """

    def __init__(self, plan: Plan) -> None:
        self._local = {channel.id for channel in plan.channels if channel.kind == LOCAL}
        self._maker: dict[tuple[str, int], Op] = {}
        self._sent: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._found: dict[tuple[str, int], tuple[Origin, ...]] = {}
        for program in plan.programs:
            for op in program.ops:
                for slot in op.made():
                    self._maker[program.process, slot] = op
                for channel in op.values_out:
                    self._sent[channel] = (program.process, op.used())

    def maker(self, origin: Origin) -> Op:
        """Return the op that made the value of an origin."""
        return self._maker[origin.process, origin.slot]

    def carried(self, channel: str) -> tuple[Origin, ...]:
        """Return the origins of the values that a channel carries; one of statuses has none."""
        writer, slots = self._sent.get(channel, ("", ()))
        return tuple([each for slot in slots for each in self.of(writer, slot)])

    def of(self, process: str, slot: int) -> tuple[Origin, ...]:
        """Return the origins of the value in a slot: several if it is a container of values."""
        key = (process, slot)
        if key not in self._found:
            self._found[key] = self._find(process, slot, self._maker[key])
        return self._found[key]

    def _find(self, process: str, slot: int, maker: Op) -> tuple[Origin, ...]:
        if isinstance(maker, Copy):
            return self.of(process, maker.slot)
        if maker.is_holding:
            return tuple([each for used in maker.used() for each in self.of(process, used)])
        if not maker.values_in:
            return (Origin(process, slot, None),)
        (channel,) = maker.values_in
        writer, slots = self._sent[channel]
        found = self.of(writer, slots[maker.made().index(slot)])
        if channel in self._local:
            return found
        return tuple([each._replace(channel=channel) for each in found])


# --- between nodes -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Crossing:
    """The way of a channel to another node.

    Attributes:
        channel: The channel.
        writer: The process that writes it.
        node: The node that it crosses to, whose id is also that of its gate.
        op: The index of the Pass in the program of the gate.
    """

    channel: str
    writer: str
    node: str
    op: int

    @property
    def place(self) -> Place:
        """Where the gate passes it on."""
        return self.node, self.op


def crossings_of(plan: Plan) -> Mapping[tuple[str, str], Crossing]:
    """Return the ways of values to other nodes, by channel and node; none in a plan on one node."""
    channels = plan.channels_by_id()
    gates = {gate.id for gate in plan.gates}
    return {
        (channel, node): Crossing(
            channel, channels[channel].writer, node, plan.program(node).ops.index(passed)
        )
        for channel, nodes in plan.crossings().items()
        for node in nodes
        if channels[channel].kind == RING
        and node in gates
        and (passed := Pass(channel)) in plan.program(node).ops
    }
