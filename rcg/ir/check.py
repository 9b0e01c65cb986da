# SPDX-License-Identifier: Apache-2.0
"""The rules that a plan keeps and that the runtime relies on; checked between compiler passes.

The rules about slots and channels hold for every op, by what its class declares. A rule that is
about one op alone (inputs, calls, the output) names it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NoReturn

from rcg.errors import InternalError
from rcg.ir.channels import CHANNEL_KINDS, LOCAL, MOST_SLOTS, RING, STATUS, TENSOR, ChannelSpec
from rcg.ir.costs import COST_KINDS
from rcg.ir.ids import DRIVER
from rcg.ir.ops import Call, Collective, Input, Op, Output, Pass
from rcg.ir.programs import FIRST_NODE, MAX_PROCESSES, PlanData, Program
from rcg.ir.signature import ExecutionSignature
from rcg.text import plural

_LIVE, _FREED = 1, 2

_CollectiveKey = tuple[type[Collective], str | None, int | None, str, frozenset[str]]
"""What all ranks of a collective have in common: class, reduction, root, group and channels."""


def check(plan: PlanData) -> None:
    """Check a plan.

    Raises:
        InternalError: The plan breaks a rule that the runtime relies on.
    """
    _Checker(plan).run()


def _fail(text: str, process: str | None = None, op: Op | None = None) -> NoReturn:
    raise InternalError(f"a plan breaks its rules: {text}", process=process, op=op)


def _check_once(what: str, names: Iterable[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            _fail(f"{count} {what} {name}")


def _check_nodes(plan: PlanData) -> None:
    """Check that each process of a plan is on one node, and that no node has too many."""
    if plan.nodes:
        _check_places(plan)
    for node, count in Counter(plan.nodes_by_process().values()).items():
        if count > MAX_PROCESSES:
            _fail(f"{node} has {count} processes, at most {MAX_PROCESSES} fit on a node")


def _check_places(plan: PlanData) -> None:
    processes = [DRIVER, *[actor.id for actor in plan.actors]]
    rank = {process: position for position, process in enumerate(processes)}
    for position, node in enumerate(plan.nodes):
        if node.id != f"n{position}":
            _fail(f"node {position} has the id {node.id!r}")
        for process in node.processes:
            if process not in rank:
                _fail(f"{node.id} has {process}, which is neither an actor nor the driver")
        in_order = sorted(node.processes, key=rank.__getitem__)
        if not in_order or list(node.processes) != in_order:
            _fail(f"{node.id} must have processes, in the order {in_order}")
    if len(plan.nodes) == 1:
        _fail("a plan on one node names none")
    _check_once("nodes have the key", [node.key for node in plan.nodes])
    placed = [process for node in plan.nodes for process in node.processes]
    _check_once("nodes have", placed)
    for process in processes:
        if process not in placed:
            _fail(f"{process} is on no node")
    if plan.nodes[0].processes[0] != DRIVER:
        _fail(f"{FIRST_NODE} is not the driver's node")


def _check_gates(plan: PlanData) -> None:
    """Check that gates are where channels arrive, and that each passes on exactly those."""
    arriving: dict[str, list[Op]] = {}
    for channel, nodes in plan.crossings().items():
        for node in nodes:
            arriving.setdefault(node, []).append(Pass(channel))
    expected = [node.id for node in plan.nodes if node.id in arriving]
    found = [gate.id for gate in plan.gates]
    if found != expected:
        _fail(f"the gates are {found}, but channels arrive at {expected}")
    for gate in plan.gates:
        host = plan.host_of_node(gate.id)
        if gate.host != host:
            _fail(f"{gate.id} is in {gate.host}, but the host of that node is {host}")
    for program in plan.programs:
        if program.process in arriving and list(program.ops) != arriving[program.process]:
            passes = ", ".join(map(str, arriving[program.process]))
            _fail(f"{program.process} must do exactly this: {passes}", program.process)


class _Checker:
    """One run over a plan, each rule after those that it relies on."""

    def __init__(self, plan: PlanData) -> None:
        self._plan = plan
        self._actors = {actor.id for actor in plan.actors}
        self._gates = {gate.id for gate in plan.gates}
        self._hosts = {process: process for process in (DRIVER, *self._actors)}
        self._hosts |= {lane.id: lane.actor for lane in plan.lanes}
        self._hosts |= {gate.id: gate.host for gate in plan.gates}
        self._channels = {channel.id: channel for channel in plan.channels}
        self._reads: set[tuple[str, str]] = set()
        self._written: set[str] = set()
        self._called: set[int] = set()
        self._groups = {group.id: group for group in plan.groups}
        # The parts of each collective, by its class, what it does, and the channels of its ranks.
        self._collectives: dict[_CollectiveKey, list[str]] = {}

    def run(self) -> None:
        plan = self._plan
        self._check_processes()
        _check_nodes(plan)
        self._check_groups()
        self._check_channels()
        _check_gates(plan)
        for program in plan.programs:
            self._check_program(program)
        for channel in plan.channels:
            if channel.id not in self._written:
                _fail(f"{channel.writer} never writes {channel.id}")
            for reader in channel.readers:
                if (channel.id, reader) not in self._reads:
                    _fail(f"{reader} is a reader of {channel.id} but never reads it")
        self._check_inputs()
        self._check_collectives()
        self._check_costs()

    # Processes and groups

    def _check_processes(self) -> None:
        plan = self._plan
        for position, actor in enumerate(plan.actors):
            if actor.id != f"a{position}":
                _fail(f"actor {position} has the id {actor.id!r}")
        for lane in plan.lanes:
            if lane.actor not in self._actors:
                _fail(f"{lane.id} is a lane of {lane.actor}, which is no actor of the plan")
            if not lane.id.startswith(f"{lane.actor}."):
                _fail(f"{lane.id} is not named as a lane of {lane.actor}")
        expected = plan.processes()
        _check_once("processes have the id", expected)
        found = [program.process for program in plan.programs]
        if found[:1] != [DRIVER] or sorted(found) != sorted(expected):
            _fail(f"the programs are those of {found}, they must be those of {expected}")

    def _check_groups(self) -> None:
        plan = self._plan
        _check_once("groups have the id", [group.id for group in plan.groups])
        for group in plan.groups:
            if not group.backend or not group.members:
                _fail(f"{group.id} must have a backend and members")
            for member in group.members:
                if self._hosts.get(member) not in self._actors or member in self._gates:
                    _fail(f"{group.id} has the member {member}, which is no actor or lane")
            _check_once(
                f"ranks of {group.id} are in", [self._hosts[member] for member in group.members]
            )

    # Channels

    def _check_channels(self) -> None:
        plan = self._plan
        if len(self._channels) != len(plan.channels):
            _fail("two channels have the same id")
        for channel in plan.channels:
            ends = {channel.writer, *channel.readers}
            if not ends <= self._hosts.keys():
                missing = sorted(ends - self._hosts.keys())
                _fail(f"{channel.id} has an end at {missing}, not a process")
            if not channel.readers or len(ends) != len(channel.readers) + 1:
                _fail(f"{channel.id} must have readers, each once, and not its own writer")
            if not channel.nodes or len(set(channel.nodes)) != len(channel.nodes):
                _fail(f"{channel.id} must carry one node or more, each once: {channel.nodes}")
            if not 1 <= channel.slots <= MOST_SLOTS:
                _fail(f"{channel.id} has {channel.slots} slots, not 1 to {MOST_SLOTS}")
            if not self._gates.isdisjoint(ends):
                _fail(f"{channel.id} has an end at a gate, which only passes channels on")
            self._check_kind(channel)
            self._check_group_of(channel)

    def _check_kind(self, channel: ChannelSpec) -> None:
        """Check the ends of a channel against the way in which it carries values."""
        writer, readers = channel.writer, channel.readers
        hosts = {self._hosts[each] for each in (writer, *readers)}
        if channel.kind == LOCAL:
            if len(readers) != 1 or len(hosts) != 1:
                _fail(f"{channel.id} is a local channel: it must join two lanes of a process")
        elif channel.kind in (TENSOR, STATUS):
            what = f"{channel.id} is a {channel.kind} channel"
            if not hosts <= self._actors:
                _fail(f"{what}: its ends must be actors or lanes")
            if len(channel.nodes) > 1:
                _fail(f"{what}: it carries one value")
        elif channel.kind != RING:
            known = ", ".join(CHANNEL_KINDS)
            _fail(f"{channel.id} is of the unknown kind {channel.kind!r}, known are {known}")

    def _check_group_of(self, channel: ChannelSpec) -> None:
        if channel.group is None:
            return
        group = self._groups.get(channel.group)
        if channel.kind != TENSOR or group is None:
            _fail(f"{channel.id} names {channel.group}: a tensor channel names a group")
        ends = {channel.writer, *channel.readers}
        if not ends <= set(group.members):
            _fail(f"{channel.id} has an end that is not in {group.id}")
        if len(channel.readers) > 1 and ends != set(group.members):
            _fail(f"{channel.id} is a broadcast: its ends must be all members of {group.id}")

    # Programs

    def _check_program(self, program: Program) -> None:
        process, ops = program.process, program.ops
        state: dict[int, int] = {}
        received: set[int] = set()
        for position, op in enumerate(ops):
            used, made = op.used(), op.made()
            for slot in used:
                if state.get(slot) != _LIVE:
                    when = "after it was freed" if slot in state else "before it is filled"
                    _fail(f"s{slot} is used {when}", process, op)
            for slot in made:
                if slot in state:
                    _fail(f"s{slot} is filled twice", process, op)
                state[slot] = _LIVE
            freed = op.freed()
            if freed:
                if len(set(freed)) != len(freed):
                    _fail("a slot is freed twice", process, op)
                state.update(dict.fromkeys(freed, _FREED))
            for channel in op.channels_in:
                self._check_read(channel, process, op)
                self._check_parts(channel, made, process, op)
                received.update(made)
            for channel in op.channels_out:
                if process == DRIVER and not received.isdisjoint(used):
                    _fail("the driver sends inputs only", process, op)
                self._check_write(channel, process, op)
                self._check_parts(channel, used, process, op)
            self._check_op(process, op, is_last=position == len(ops) - 1)
        if process == DRIVER:
            self._check_last(ops)
        elif not received and process not in self._gates:
            _fail(f"{process} reads nothing, so nothing would ever hold its loop", process)

    def _check_read(self, channel: str, process: str, op: Op) -> None:
        if process not in self._channel(channel, process, op).readers:
            _fail(f"{process} is not a reader of {channel}", process, op)
        if (channel, process) in self._reads:
            _fail(f"{channel} is read twice in one execution", process, op)
        self._reads.add((channel, process))

    def _check_write(self, channel: str, process: str, op: Op) -> None:
        if process != self._channel(channel, process, op).writer:
            _fail(f"{process} is not the writer of {channel}", process, op)
        if channel in self._written:
            _fail(f"{channel} is written twice in one execution", process, op)
        self._written.add(channel)

    def _check_parts(self, channel: str, slots: tuple[int, ...], process: str, op: Op) -> None:
        spec = self._channels[channel]
        if isinstance(op, Collective) != (spec.kind == STATUS):
            _fail(f"{channel} is a {spec.kind} channel, not for {op.word}", process, op)
        count, nodes = len(slots), spec.nodes
        if spec.kind != STATUS and count != len(nodes):
            _fail(f"{channel} carries {plural(len(nodes), 'value')}, not {count}", process, op)

    def _check_op(self, process: str, op: Op, *, is_last: bool) -> None:
        match op:
            case Call(actor=actor, node=node, outs=outs):
                if actor != process or not outs or node in self._called:
                    _fail("a call is in its own actor's program, once", process, op)
                self._called.add(node)
            case Collective():
                self._check_rank(process, op)
            case Input():
                if process != DRIVER:
                    _fail("only the driver takes inputs", process, op)
            case Output():
                if process != DRIVER or not is_last:
                    _fail("an output is the last op of the driver", process, op)
            case Pass():
                if process not in self._gates:
                    _fail("only a gate passes channels on", process, op)
            case _:
                pass

    def _check_rank(self, process: str, op: Collective) -> None:
        """Check one rank's part in a collective."""
        group = self._groups.get(op.group)
        if group is None or process not in group.members:
            _fail(f"{process} is no member of {op.group}", process, op)
        others = [member for member in group.members if member != process]
        tells = [self._channel(channel, process, op) for channel in op.tells]
        hears = [self._channel(channel, process, op) for channel in op.hears]
        if len(tells) != bool(others) or any(set(each.readers) != set(others) for each in tells):
            _fail(f"{process} must tell all other members of {group.id}", process, op)
        if [each.writer for each in hears] != others:
            _fail(f"{process} must hear the other members of {group.id}", process, op)
        if op.root is not None and not 0 <= op.root < len(group.members):
            _fail(f"{group.id} has no rank {op.root}", process, op)
        is_receiver = op.word == "broadcast" and group.members.index(process) != op.root
        if len(op.slots) != len(op.outs) and not (is_receiver and not op.slots):
            _fail("a collective fills a slot for each of its tensors", process, op)
        if not group.members[1:]:
            return
        key = (type(op), op.reduction, op.root, op.group, frozenset((*op.tells, *op.hears)))
        self._collectives.setdefault(key, []).append(process)

    def _check_collectives(self) -> None:
        for (_, _, _, group, channels), found in self._collectives.items():
            missing = set(self._groups[group].members) - set(found)
            if missing:
                _fail(
                    f"{sorted(missing)} have no part in the collective of {group} over "
                    f"{sorted(channels)}"
                )

    def _check_costs(self) -> None:
        plan = self._plan
        _check_once("costs are of", [f"{each.kind} #{each.node}" for each in plan.costs])
        for cost in plan.costs:
            if cost.kind not in COST_KINDS or cost.cost_ns < 0:
                _fail(f"{cost} is no cost")
        processes = plan.processes()
        for each in plan.predicted:
            if each.process not in processes or each.busy_ns < 0 or each.period_ns < 0:
                _fail(f"{each} is no prediction about a process of the plan")

    def _channel(self, channel: str, process: str, op: Op) -> ChannelSpec:
        if channel not in self._channels:
            _fail(f"there is no channel {channel}", process, op)
        return self._channels[channel]

    def _check_last(self, ops: tuple[Op, ...]) -> None:
        last = ops[-1] if ops else None
        if not isinstance(last, Output):
            _fail("the driver's last op must be its output", DRIVER)
        count = len(last.slots)
        if count == 0 or (count != 1 and not self._plan.is_multi):
            _fail(f"{count} outputs are listed", DRIVER, last)

    def _check_inputs(self) -> None:
        plan = self._plan
        keys = [op.key for op in plan.programs[0].ops if isinstance(op, Input)]
        if not keys or len(set(keys)) != len(keys):
            _fail(f"the driver must take inputs, each once, it takes {keys}", DRIVER)
        found = ExecutionSignature.of(keys)
        if (
            plan.num_positional != found.num_positional
            or set(plan.keywords) != set(found.keywords)
            or (None in keys and len(keys) > 1)
        ):
            _fail(
                f"the driver takes the inputs {keys}, declared are {plan.num_positional} "
                f"positional and {list(plan.keywords)}",
                DRIVER,
            )
