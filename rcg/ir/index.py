# SPDX-License-Identifier: Apache-2.0
"""Where the values of a plan are written and read, and which ops go together.

Everything that follows a value through a plan looks it up here: the deadlock check, the analyses of
traces, and the views. A place is an op: its process, and its index in the program of that.

This room must know neither costs nor times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rcg.ir.channels import RING, TENSOR
from rcg.ir.ops import Collective, Pass
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
