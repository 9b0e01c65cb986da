# SPDX-License-Identifier: Apache-2.0
"""One order of all calls and rendezvous of a plan, by greedy list scheduling.

A *task* is a call, or a rendezvous: an op of several processes that all have to be in it at once.
A tensor channel's Write and its Reads are a rendezvous, and so are the parts of all ranks of a
collective. A task is ready when the tasks that make its values are done, and a call also waits for
the call that was bound before it on its actor. A ready task could start when all of its processes
are free. Every op counts with its assumed cost, and a rendezvous keeps all of its processes busy.

Which of the ready tasks comes next: the one whose *middle* would be first in time. Take a call from
3.0 to 4.0, and a rendezvous of 0.1 that could start at 3.2, when the other end is free. If the call
goes first, the rendezvous is 0.8 late, and so is the other end. If the rendezvous goes first, the
call is 0.3 late. One task first delays the other by ``start + cost`` of the one minus ``start`` of
the other, so the smaller delay is that of the earlier middle, ``start + cost / 2``. (With the
earliest start first, stages of a pipeline begin calls a moment before their neighbours could take
their tensors, and each neighbour idles for the length of a call.) Of tasks with the same middle,
what was bound first comes first.

Each process keeps this order among its own tasks. This room must know neither what is put around
the tasks of a program nor how ops are run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from operator import attrgetter
from typing import Final

from rcg.compiler.costs import OpCosts
from rcg.ir.channels import STATUS, TENSOR
from rcg.ir.ops import Call, Collective, Op, Read, Write
from rcg.ir.plan import Plan

_TICKS_PER_CALL: Final = 1_000_000
"""Times are whole numbers: sums of fractions would differ in their last digits. Of a plan with
costs a tick is a nanosecond."""

_Order = tuple[int, int]
"""Which of two tasks with the same middle comes first."""

_Entry = tuple[int, _Order, int]
"""A time, the order of a task, and its number."""


@dataclass(slots=True)
class Task:
    """A call, or a rendezvous.

    Attributes:
        number: Its position among the tasks of the plan.
        bound: The node of the graph that it belongs to; of several ranks the first.
        ops: Its op in each process that takes part.
        ticks: The assumed time that it takes.
    """

    number: int
    bound: int
    ops: list[tuple[str, Op]] = field(default_factory=list)
    ticks: int = 0

    @property
    def order(self) -> _Order:
        """The order of tasks with the same middle."""
        return (self.bound, self.number)


def has_rendezvous(plan: Plan) -> bool:
    """Return whether any processes of a plan have to meet."""
    return any(channel.kind in (TENSOR, STATUS) for channel in plan.channels)


def tasks_of(plan: Plan) -> list[Task]:
    """Return the tasks of a plan.

    Calls are in the order in which they were bound, and independent of the order of ops in the
    programs, the rendezvous by channel.
    """
    channels = {channel.id: at for at, channel in enumerate(plan.channels)}
    calls: list[tuple[int, str, Op]] = []
    # By the position of the first channel; a rank that is alone in its group has none.
    meetings: dict[tuple[int, int], list[tuple[int, str, Op]]] = {}
    for program in plan.programs:
        for op in program.ops:
            match op:
                case Call(node=node):
                    calls.append((node, program.process, op))
                case Collective(node=node):
                    used = [channels[each] for each in (*op.tells, *op.hears)]
                    key = (min(used), 0) if used else (len(channels), node)
                    meetings.setdefault(key, []).append((node, program.process, op))
                case Read(channel=channel) | Write(channel=channel):
                    spec = plan.channels[channels[channel]]
                    if spec.kind == TENSOR:
                        entry = (spec.nodes[0], program.process, op)
                        meetings.setdefault((channels[channel], 0), []).append(entry)
                case _:
                    pass
    calls.sort(key=lambda call: call[0])
    grouped = [[call] for call in calls] + [meetings[key] for key in sorted(meetings)]
    costs = OpCosts(plan)
    scale = 1 if costs.are_times else _TICKS_PER_CALL
    return [
        Task(
            number,
            min(node for node, _, _ in of),
            [(process, op) for _, process, op in of],
            max(round(costs.of(op) * scale) for _, _, op in of),
        )
        for number, of in enumerate(grouped)
    ]


def find_order(plan: Plan) -> dict[str, list[Op]]:
    """Return the tasks of each process in one order that respects data flow and order of calls.

    Near linear: a heap holds one entry for each set of processes with tasks in common. Tasks that
    wait for each other's values, as those of a graph never do, come last, in the order of the
    program.
    """
    if not has_rendezvous(plan):
        return {
            program.process: sorted(
                [op for op in program.ops if isinstance(op, Call | Collective)],
                key=attrgetter("node"),
            )
            for program in plan.programs
        }
    tasks = tasks_of(plan)
    order = _Greedy(plan, tasks).order()
    found: dict[str, list[Op]] = {program.process: [] for program in plan.programs}
    for task in order:
        for process, op in task.ops:
            found[process].append(op)
    if len(order) < len(tasks):
        placed = {task.number for task in order}
        left = {op for task in tasks if task.number not in placed for _, op in task.ops}
        for program in plan.programs:
            found[program.process] += [op for op in program.ops if op in left]
    return found


class _Flow:
    """Which tasks make the values that each op uses, through rings and containers."""

    def __init__(self, plan: Plan, tasks: Iterable[Task]) -> None:
        self._task_of = {(process, op): task for task in tasks for process, op in task.ops}
        self._maker = {
            (program.process, slot): op
            for program in plan.programs
            for op in program.ops
            for slot in op.made()
        }
        self._writer = {
            channel: (program.process, op)
            for program in plan.programs
            for op in program.ops
            for channel in op.channels_out
        }
        self._found: dict[tuple[str, int], dict[int, Task]] = {}

    def before(self, process: str, op: Op) -> dict[int, Task]:
        """Return the tasks that make what the op uses, by number."""
        found: dict[int, Task] = {}
        for slot in op.used():
            found |= self._makers(process, slot)
        return found

    def _makers(self, process: str, slot: int) -> dict[int, Task]:
        key = (process, slot)
        if key in self._found:
            return self._found[key]
        self._found[key] = {}  # programs may pass a value round in a circle
        maker = self._maker[key]
        task = self._task_of.get((process, maker))
        if task is not None:
            found = {task.number: task}
        elif maker.channels_in:
            (channel,) = maker.channels_in
            found = self.before(*self._writer[channel])
        else:
            found = self.before(process, maker)
        self._found[key] = found
        return found


@dataclass(slots=True)
class _Crew:
    """The ready tasks of one set of processes that take the same time.

    Attributes:
        processes: The processes.
        ticks: The time that each takes.
        now: Tasks whose values are there when all processes are free.
        later: Tasks whose values come later than that, with when.
        entry: The entry in the heap of all crews, if it has one: twice the middle of its next task,
            and which it is.
    """

    processes: tuple[str, ...]
    ticks: int
    now: list[tuple[_Order, int]] = field(default_factory=list)
    later: list[_Entry] = field(default_factory=list)
    entry: _Entry | None = None


class _Greedy:
    """The clock of each process, and the tasks that are still to be placed."""

    def __init__(self, plan: Plan, tasks: list[Task]) -> None:
        self._tasks = tasks
        self._free_at = {program.process: 0 for program in plan.programs}
        self._ready_at = [0] * len(tasks)
        self._after: list[list[int]] = [[] for _ in tasks]
        self._num_before = [0] * len(tasks)
        self._crews: dict[tuple[int, tuple[str, ...]], _Crew] = {}
        self._crew_of: list[_Crew] = []
        self._heap: list[_Entry] = []
        flow = _Flow(plan, tasks)
        last_call: dict[str, int] = {}
        for task in tasks:
            before: set[int] = set()
            for process, op in task.ops:
                before |= flow.before(process, op).keys()
                if op.is_call:
                    if process in last_call:
                        before.add(last_call[process])
                    last_call[process] = task.number
            for number in before:
                self._after[number].append(task.number)
            self._num_before[task.number] = len(before)
            processes = tuple(sorted(process for process, _ in task.ops))
            key = (task.ticks, processes)
            self._crew_of.append(self._crews.setdefault(key, _Crew(processes, task.ticks)))

    def order(self) -> list[Task]:
        """Return the tasks in order, but for those that wait for each other."""
        for task in self._tasks:
            if not self._num_before[task.number]:
                self._add(task)
        ordered: list[Task] = []
        while self._heap:
            entry = heappop(self._heap)
            task = self._tasks[entry[-1]]
            crew = self._crew_of[task.number]
            if crew.entry != entry:
                continue  # another one took its place
            if self._next(crew) != crew.entry:
                self._push(crew)
                continue
            if crew.now:
                heappop(crew.now)
            else:
                heappop(crew.later)
            crew.entry = None
            ordered.append(task)
            end = (entry[0] + crew.ticks) // 2
            for process, _ in task.ops:
                self._free_at[process] = end
            self._push(crew)
            for after in self._after[task.number]:
                self._ready_at[after] = max(self._ready_at[after], end)
                self._num_before[after] -= 1
                if not self._num_before[after]:
                    self._add(self._tasks[after])
        return ordered

    def _add(self, task: Task) -> None:
        crew = self._crew_of[task.number]
        heappush(crew.later, (self._ready_at[task.number], task.order, task.number))
        self._push(crew)

    def _push(self, crew: _Crew) -> None:
        """Put the next task of a crew into the heap, unless it is there."""
        entry = self._next(crew)
        if entry is not None and entry != crew.entry:
            heappush(self._heap, entry)
        crew.entry = entry

    def _next(self, crew: _Crew) -> _Entry | None:
        """The entry of the next task of a crew, as the clocks are now."""
        free_at = max(self._free_at[process] for process in crew.processes)
        while crew.later and crew.later[0][0] <= free_at:
            _, order, number = heappop(crew.later)
            heappush(crew.now, (order, number))
        if crew.now:
            order, number = crew.now[0]
            return 2 * free_at + crew.ticks, order, number
        if crew.later:
            ready_at, order, number = crew.later[0]
            return 2 * ready_at + crew.ticks, order, number
        return None
