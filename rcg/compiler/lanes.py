# SPDX-License-Identifier: Apache-2.0
r"""The pass after ``place`` where overlap is on: transfers get programs beside those of the calls.

An actor that calls methods and exchanges tensors gets *lanes*: programs of its own with a thread
each, which ``local`` channels join to the calls. So tensors move while a method runs. Every other
pass, and the runtime, sees lanes as it sees processes.

::

    a1         Read c6 (local) ──> Call ──> Write c7 (local)
                    ▲                            │
    a1.recv    Read c1 (tensor)                  ▼
    a1.comm                              Write c2 (tensor), collectives

* ``a1.comm`` sends, and takes part in collectives. ``a1.recv`` receives, so that receiving what the
  next execution needs never waits until this one's result was sent. An actor that does only one of
  the two has only ``a1.comm``. What travels over a user's own communicator stays in ``a1.comm``
  together, because such a communicator may not be made for two threads.
* A ring is read, or written, where its values are used, or made.
* A lane runs ahead of the calls, or behind them, by what its local channels hold: ``LOCAL_SLOTS``
  frames each, and by the one value that it has in its hands. That holds for any number of
  executions in flight, so the memory of transfers is bounded by the plan (``Plan.held_values``).
* A lane is on the node of its actor, so gates have the same to do as before.
* A rank of a group is one lane. A group in which an actor both sends and receives becomes two, in
  each of which the actor is there once, whichever lane that is. (A communicator is used by one
  thread, and NCCL has one rank for a GPU.)

Whether a plan with lanes could deadlock is decided as for all plans: each program is a restriction
of one order of all calls and rendezvous (``schedule``), and a local channel is one more fifo, which
``simulate`` runs with its number of slots.

>>> from rcg.ir.plan import Plan
>>> plan = Plan.from_text('''
... plan positional=1 keywords=[] returns=one
... actor a0 'First' ''
... actor a1 'Second' ''
... group g0 gloo a0 a1
... channel c0 driver -> a0 ring node=0 slots=10
... channel c1 a0 -> a1 tensor @g0 node=1 slots=10
... channel c2 a1 -> driver ring node=2 slots=10
... program driver
...   Input * -> s0
...   Write s0 -> c0
...   Read c2 -> s1
...   Output s1
... program a0
...   Read c0 -> s0
...   Call a0.f(s0) -> s1 #1
...   Write s1 -> c1
... program a1
...   Read c1 -> s0
...   Call a1.g(s0) -> s1 #2
...   Write s1 -> c2
... ''')
>>> print(*str(with_lanes(plan)).splitlines()[3:], sep="\n")
lane a0.comm of a0
lane a1.comm of a1
group g0 gloo a0.comm a1.comm
channel c0 driver -> a0 ring node=0 slots=10
channel c1 a0.comm -> a1.comm tensor @g0 node=1 slots=10
channel c2 a1 -> driver ring node=2 slots=10
channel c3 a0 -> a0.comm local node=1 slots=1
channel c4 a1.comm -> a1 local node=1 slots=1
program driver
  Input * -> s0
  Write s0 -> c0
  Read c2 -> s1
  Output s1
program a0
  Read c0 -> s0
  Call a0.f(s0) -> s1 #1
  Write s1 -> c3
program a0.comm
  Read c3 -> s1
  Write s1 -> c1
program a1
  Read c4 -> s0
  Call a1.g(s0) -> s1 #2
  Write s1 -> c2
program a1.comm
  Read c1 -> s0
  Write s0 -> c4

This room must know neither graphs nor the order of ops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Final

from rcg.ir.channels import LOCAL, TENSOR, ChannelSpec, Group, Lane
from rcg.ir.ids import DRIVER
from rcg.ir.ops import Call, Collective, Op, Read, Write
from rcg.ir.plan import Plan
from rcg.ir.programs import Program

LOCAL_SLOTS: Final = 1
"""How many frames a local channel holds. The lane has one more value in its hands, so a transfer
goes on while a method runs and the next value lies ready: more slots would only take memory."""

_COMM: Final = "comm"
_RECV: Final = "recv"


def with_lanes(plan: Plan) -> Plan:
    """Return a placed plan whose actors exchange tensors in lanes; ops stay in any order.

    Args:
        plan: A plan without lanes.

    Raises:
        InternalError: The plan breaks the rules of ``Plan.check``.
    """
    plan.check()
    split = _Split(plan)
    return split.plan() if split.has_lanes else plan


def without_lanes(plan: Plan) -> Plan:
    """Return a plan in which actors exchange tensors in the programs of their calls.

    A value is made before it is used; more of an order comes from ``schedule``.
    """
    actor_of = {lane.id: lane.actor for lane in plan.lanes}
    local = {channel.id for channel in plan.channels if channel.kind == LOCAL}
    ops: dict[str, list[Op]] = {}
    for program in plan.programs:
        of = ops.setdefault(actor_of.get(program.process, program.process), [])
        of += [op for op in program.ops if local.isdisjoint((*op.channels_in, *op.channels_out))]

    def whole(processes: Sequence[str]) -> tuple[str, ...]:
        return tuple([actor_of.get(each, each) for each in processes])

    return replace(
        plan,
        programs=tuple([Program(process, _by_use(each)) for process, each in ops.items()]),
        channels=tuple(
            replace(each, writer=whole([each.writer])[0], readers=whole(each.readers))
            for each in plan.channels
            if each.id not in local
        ),
        lanes=(),
        groups=tuple(replace(each, members=whole(each.members)) for each in plan.groups),
    )


def _by_use(ops: list[Op]) -> tuple[Op, ...]:
    """Return ops in an order in which each slot is filled before it is used."""
    wanted = [set(op.used()) for op in ops]
    users: dict[int, list[int]] = {}
    for at, slots in enumerate(wanted):
        for slot in slots:
            users.setdefault(slot, []).append(at)
    ready = [at for at, slots in enumerate(wanted) if not slots]  # ascending, so it is a heap
    found = list[Op]()
    while ready:
        op = ops[heappop(ready)]
        found.append(op)
        for slot in op.made():
            for at in users.pop(slot, ()):
                wanted[at].discard(slot)
                if not wanted[at]:
                    heappush(ready, at)
    if len(found) < len(ops):
        raise ValueError("an op uses a slot that no op fills")
    return tuple(found)


@dataclass
class _Actor:
    """The programs of one actor.

    Attributes:
        id: The actor.
        ops: The ops of each program, by its id: the calls' first.
        made: The program that fills each slot.
    """

    id: str
    ops: dict[str, list[Op]]
    made: dict[int, str] = field(default_factory=dict)

    @property
    def lanes(self) -> list[str]:
        """Its programs without that of the calls."""
        return list(self.ops)[1:]


class _Split:
    """One run of the pass. Everything is visited in the order of the plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._channels = plan.channels_by_id()
        self._users_own = {group.id for group in plan.groups if group.communicator is not None}
        self._locals: list[ChannelSpec] = []
        gates = {gate.id for gate in plan.gates}
        self._gates = [each for each in plan.programs if each.process in gates]
        self._actors = [
            self._split(each) for each in plan.programs if each.process not in {DRIVER, *gates}
        ]
        self.has_lanes = any(len(actor.ops) > 1 for actor in self._actors)

    def plan(self) -> Plan:
        """Return the plan with lanes."""
        plan = self._plan
        for actor in self._actors:
            self._join(actor)
        groups, group_of = self._groups()
        programs = [
            Program(where, tuple([_over(op, group_of) for op in ops]))
            for actor in self._actors
            for where, ops in actor.ops.items()
        ]
        return replace(
            plan,
            programs=(plan.program(DRIVER), *programs, *self._gates),
            channels=(*self._moved_channels(group_of), *self._locals),
            lanes=tuple([Lane(lane, actor.id) for actor in self._actors for lane in actor.lanes]),
            groups=groups,
        )

    def _moved_channels(self, group_of: Mapping[str, str]) -> list[ChannelSpec]:
        """Return the channels of the plan between the programs that have their ops now."""
        writer: dict[str, str] = {}
        reader: dict[tuple[str, str], str] = {}
        for actor, where, op in self._placed_ops():
            writer.update(dict.fromkeys(op.channels_out, where))
            reader.update({(channel, actor): where for channel in op.channels_in})
        return [
            replace(
                channel,
                writer=writer.get(channel.id, channel.writer),
                readers=tuple([reader.get((channel.id, each), each) for each in channel.readers]),
                group=channel.group and group_of[channel.id],
            )
            for channel in self._plan.channels
        ]

    # Which op is in which program

    def _split(self, program: Program) -> _Actor:
        actor = program.process
        lane_of = {op: lane for op in program.ops if (lane := self._lane_of(op)) is not None}
        if not lane_of or not any(op.is_call for op in program.ops):
            return _Actor(actor, {actor: list(program.ops)})
        if _COMM not in lane_of.values():
            lane_of = dict.fromkeys(lane_of, _COMM)
        self._follow(program, lane_of)
        found = _Actor(actor, {actor: []})
        for lane in sorted(set(lane_of.values())):
            found.ops[f"{actor}.{lane}"] = []
        for op in program.ops:
            where = f"{actor}.{lane_of[op]}" if op in lane_of else actor
            found.ops[where].append(op)
            found.made.update(dict.fromkeys(op.made(), where))
        return found

    def _lane_of(self, op: Op) -> str | None:
        """Return the lane that an op moves tensors in; None if it moves none."""
        match op:
            case Collective():
                return _COMM
            case Write(channel=channel) if self._channels[channel].kind == TENSOR:
                return _COMM
            case Read(channel=channel) if self._channels[channel].kind == TENSOR:
                return _COMM if self._channels[channel].group in self._users_own else _RECV
        return None

    def _follow(self, program: Program, lane_of: dict[Op, str]) -> None:
        """Put rings into the lane that alone uses, or makes, their values."""
        users: dict[int, set[str | None]] = {}
        makers: dict[int, str | None] = {}
        for op in program.ops:
            for slot in op.used():
                users.setdefault(slot, set()).add(lane_of.get(op))
            makers.update(dict.fromkeys(op.made(), lane_of.get(op)))
        for op in program.ops:
            if op in lane_of or not isinstance(op, Read | Write):
                continue
            if isinstance(op, Read):
                lanes = set().union(*(users.get(slot, set()) for slot in op.outs))
            else:
                lanes = {makers[slot] for slot in op.slots}
            lane = lanes.pop() if len(lanes) == 1 else None
            if lane is not None:
                lane_of[op] = lane

    # Values that pass from program to program

    def _join(self, actor: _Actor) -> None:
        """Add a local channel for each value that another program of the actor uses."""
        nodes = self._nodes_of(actor)
        wanted = [
            (slot, where)
            for where, ops in actor.ops.items()
            for op in ops
            for slot in op.used()
            if actor.made.get(slot, where) != where
        ]
        for slot, reader in dict.fromkeys(wanted):
            writer = actor.made[slot]
            number = len(self._plan.channels) + len(self._locals)
            channel = ChannelSpec(
                f"c{number}", writer, (reader,), LOCAL, (nodes[slot],), LOCAL_SLOTS
            )
            self._locals.append(channel)
            actor.ops[writer].append(Write((slot,), channel.id))
            actor.ops[reader].insert(0, Read(channel.id, (slot,)))

    def _nodes_of(self, actor: _Actor) -> dict[int, int]:
        """Return the graph node of each slot; of a part that no channel carries, its call's."""
        found: dict[int, int] = {}
        for ops in actor.ops.values():
            for op in ops:
                if isinstance(op, Call | Collective):
                    for slot in op.outs:
                        found.setdefault(slot, op.node)
                for channel, slots in (
                    *[(each, op.made()) for each in op.values_in],
                    *[(each, op.used()) for each in op.values_out],
                ):
                    found.update(zip(slots, self._channels[channel].nodes, strict=True))
        return found

    # Groups

    def _groups(self) -> tuple[tuple[Group, ...], dict[str, str]]:
        """Return groups in which each actor is there with one program, and which each use is in.

        A use is a tensor channel, or a collective by the first of its status channels.
        """
        divided: dict[str, list[_Ends]] = {group.id: [] for group in self._plan.groups}
        for use, group, ends in self._uses():
            fitting = next((each for each in divided[group] if each.fit(ends)), None)
            if fitting is None:
                fitting = _Ends()
                divided[group].append(fitting)
            fitting.uses.append(use)
            fitting.program_of.update(ends)
        first_lanes = {actor.id: next(iter(actor.lanes), actor.id) for actor in self._actors}
        groups: list[Group] = []
        group_of: dict[str, str] = {}
        for each in self._plan.groups:
            for part in divided[each.id]:
                programs = part.program_of
                if each.communicator is not None:  # all of its members, whatever they do
                    programs = {**first_lanes, **programs}
                members = [programs[actor] for actor in each.members if actor in programs]
                name = f"g{len(groups)}"
                groups.append(replace(each, id=name, members=tuple(members)))
                group_of.update(dict.fromkeys(part.uses, name))
        return tuple(groups), group_of

    def _uses(self) -> list[tuple[str, str, dict[str, str]]]:
        """Return the uses of groups in the order of the plan, with the program of each actor."""
        found: dict[str, tuple[str, dict[str, str]]] = {}
        for actor, where, op in self._placed_ops():
            if isinstance(op, Collective):
                found.setdefault(_use_of(op), (op.group, {}))[1][actor] = where
            for channel in (*op.values_in, *op.values_out):
                spec = self._channels.get(channel)
                if spec is not None and spec.group is not None:
                    found.setdefault(channel, (spec.group, {}))[1][actor] = where
        return [(use, group, ends) for use, (group, ends) in found.items()]

    def _placed_ops(self) -> Iterator[tuple[str, str, Op]]:
        """Yield all ops with their actors and programs."""
        for actor in self._actors:
            for where, ops in actor.ops.items():
                for op in ops:
                    yield actor.id, where, op


@dataclass
class _Ends:
    """What one group carries.

    Attributes:
        uses: Its uses.
        program_of: The program of each actor that takes part in them.
    """

    uses: list[str] = field(default_factory=list)
    program_of: dict[str, str] = field(default_factory=dict)

    def fit(self, ends: Mapping[str, str]) -> bool:
        """Return whether no actor would be there with two programs."""
        return all(self.program_of.get(actor, where) == where for actor, where in ends.items())


def _use_of(op: Collective) -> str:
    """Return what names a collective at all of its ranks; one of a group of one tells nobody."""
    status = (*op.tells, *op.hears)
    return min(status, key=lambda channel: int(channel[1:])) if status else f"#{op.node}"


def _over(op: Op, group_of: Mapping[str, str]) -> Op:
    """Return an op with the group that it is over now."""
    return replace(op, group=group_of[_use_of(op)]) if isinstance(op, Collective) else op
