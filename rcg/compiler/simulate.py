# SPDX-License-Identifier: Apache-2.0
"""The last pass: dry-run a plan, and reject it if it could deadlock.

Two actors that each wait for the other first:

>>> from rcg.ir.plan import Plan
>>> plan = Plan.from_text('''
... plan positional=1 keywords=[] returns=one
... actor a0 'Left' ''
... actor a1 'Right' ''
... channel c0 driver -> a0 a1 ring node=0 slots=10
... channel c1 a0 -> a1 ring node=1 slots=10
... channel c2 a1 -> driver a0 ring node=2 slots=10
... program driver
...   Input * -> s0
...   Write s0 -> c0
...   Read c2 -> s1
...   Output s1
... program a0
...   Read c0 -> s0
...   Read c2 -> s1
...   Call a0.f(s0, s1) -> s2 #1
...   Write s2 -> c1
... program a1
...   Read c0 -> s0
...   Read c1 -> s1
...   Call a1.g(s0, s1) -> s2 #2
...   Write s2 -> c2
... ''')
>>> try:
...     simulate(plan)
... except DeadlockError as error:
...     print(error.programs)
driver, in execution 0
      Input * -> s0
      Write s0 -> c0
   => Read c2 -> s1     waits for a1 (Right) to write c2
      Output s1
a0 (Left), in execution 0
      Read c0 -> s0
   => Read c2 -> s1     waits for a1 (Right) to write c2
      Call a0.f(s0, s1) -> s2 #1
      Write s2 -> c1
a1 (Right), in execution 0
      Read c0 -> s0
   => Read c1 -> s1     waits for a0 (Left) to write c1
      Call a1.g(s0, s1) -> s2 #2
      Write s2 -> c2

The model is that of the runtime. A read waits for its frame; a write waits until the slowest reader
has left a slot free; an actor runs its program again and again. The driver submits executions as
its window allows and meanwhile takes results from every channel as they come.

A rendezvous keeps all of its processes until the last has come: the writer and the readers of a
tensor channel, or the ranks of a collective. Each puts a frame that says when it came, which no
other has to make room for, and gets those of the others. So its op is as many frames, and it starts
at the same time everywhere.

How far to run: every channel, and every frame of a rendezvous, is written once and read once by
each reader in an execution, so a plan is a marked graph: ops are its nodes, "must come before" its
edges, and a token on an edge is an execution of distance (one from the last op of a loop to the
first, as many as a channel has slots from a read back to the write). A marked graph runs for ever
unless it has a cycle without a token (Commoner, Holt, Even, Pnueli, "Marked directed graphs", J.
Comput. Syst. Sci. 5, 1971), and such a cycle lies within one execution. So one execution decides,
whatever the number of slots; two are run to show how executions overlap. A driver that does not
drain is not of that form: there the run covers the window.

Gates are left out. They pass frames on as these arrive, whatever their order, so nothing waits for
them, and a channel holds at least its slots on every node. A frame arrives at once here.

This room must know neither graphs, nor clocks, nor Ray: time here is in units of ``op_cost``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rcg.compiler.costs import OpCosts
from rcg.compiler.order import has_rendezvous
from rcg.errors import DeadlockError
from rcg.ir.channels import TENSOR
from rcg.ir.ids import DRIVER
from rcg.ir.index import rendezvous_of
from rcg.ir.ops import Collective, Op, Output
from rcg.ir.plan import Plan
from rcg.ir.programs import Program


class SimulatedOp(NamedTuple):
    """One op of one execution: from when it could go on until it was done."""

    process: str
    op: int
    execution: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """A plan without deadlocks, and its predicted timeline.

    Attributes:
        plan: The plan that was simulated.
        timeline: One span per op and execution, process by process, in the order they run. A
            process waits between its spans.
        executions: How many executions were run.
    """

    plan: Plan
    timeline: tuple[SimulatedOp, ...]
    executions: int

    @property
    def duration(self) -> float:
        """When the last op ends; the first starts at 0."""
        return max((span.end for span in self.timeline), default=0.0)

    @property
    def period(self) -> float:
        """The mean time from one completion to the next; of one execution, its duration."""
        return self.period_without(0)

    def period_without(self, executions: int) -> float:
        """Return the same without so many executions at the beginning and at the end."""
        last = len(self.plan.program(DRIVER).ops) - 1
        ends = [each.end for each in self.timeline if each.op == last and each.process == DRIVER]
        ends = sorted(ends)[executions : len(ends) - executions]
        return (ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 1 else self.duration

    def first(self, executions: int) -> Simulation:
        """Return the beginning, with so many executions."""
        kept = tuple([span for span in self.timeline if span.execution < executions])
        return Simulation(self.plan, kept, min(executions, self.executions))

    def busy(self) -> dict[str, float]:
        """Return how long each process is in ops in each execution, without waiting; no gates."""
        found = {each.process: 0.0 for each in _programs_without_gates(self.plan)}
        for span in self.timeline:
            found[span.process] += span.end - span.start
        return {process: total / self.executions for process, total in found.items()}


@dataclass(frozen=True, slots=True)
class Costs:
    """The time that each op takes, by its process and its index in the program.

    Attributes:
        each: How long the op takes; one that is not in it takes no time.
        waking: How long after the end of its wait a Read or Write continues, if it had to wait. It
            is negative if the peer ends the wait before its own op ends.
    """

    each: Mapping[tuple[str, int], float]
    waking: Mapping[tuple[str, int], float] = field(default_factory=dict)


def simulate(
    plan: Plan,
    op_cost: Callable[[Op], float] | Costs | None = None,
    executions: int = 2,
    *,
    window: int | None = None,
    is_driver_draining: bool = True,
    describe: Callable[[int], str] | None = None,
) -> Simulation:
    """Run all programs of a plan against each other without running any method.

    Linear in the number of ops, executions and channel ends.

    Args:
        plan: The plan, scheduled.
        op_cost: How long an op takes without waiting, in any unit: by its kind, or by its place.
            None for what the plan says: nanoseconds if it has costs, calls if it has none.
        executions: How many executions to run, at least 1.
        window: How many executions may be in flight at once; None is no limit.
        is_driver_draining: Whether the driver takes results while it waits to submit. If not, it
            fills its window first, for which the channels of a plan may be too short.
        describe: Names a graph node for errors (``Graph.describe``).

    Raises:
        DeadlockError: The programs would wait for each other; ``programs`` shows all of them with
            the blocked ops marked.
        InternalError: The plan breaks the rules of ``Plan.check``.
        ValueError: ``executions`` or ``window`` is below 1.
    """
    for name, value in (("executions", executions), ("window", window)):
        if value is not None and value < 1:
            raise ValueError(f"`{name}` must be a positive integer, found {value}")
    plan.check()
    if not is_driver_draining and window is not None:
        executions = max(executions, window)
    cost = OpCosts(plan).of if op_cost is None else op_cost
    run = _Run(plan, cost, executions, window or executions, is_driver_draining)
    if not run.to_end():
        raise _deadlock(plan, run.threads, describe)
    return Simulation(plan, run.timeline(), executions)


def simulated_period(
    plan: Plan,
    costs: Costs,
    executions: int,
    *,
    window: int,
    is_driver_draining: bool = True,
    without: int = 0,
) -> float:
    """Return ``simulate(...).period_without(without)`` in less time.

    At least two executions are simulated, because one has no period but a duration.

    Raises:
        DeadlockError: The programs would wait for each other.
    """
    count = executions if is_driver_draining else max(executions, window)
    run = _Run(plan, costs, count, window, is_driver_draining, has_timeline=False)
    if run.to_end():
        return Simulation(plan, run.timeline(), count).period_without(without)
    # The error shows the ops.
    again = simulate(plan, costs, count, window=window, is_driver_draining=is_driver_draining)
    return again.period_without(without)


def check_deadlock_free(plan: Plan) -> None:
    """Raise what ``simulate`` does unless the plan can run for ever; one execution decides."""
    simulate(plan, executions=1)


def _programs_without_gates(plan: Plan) -> list[Program]:
    """Return the programs that are simulated."""
    gates = {gate.id for gate in plan.gates}
    return [program for program in plan.programs if program.process not in gates]


# --- the machine --------------------------------------------------------------------------------
# Threads run straight through their steps and meet at fifos only. A process has one thread, but for
# a draining driver, which has one to submit, one per channel it reads, and one for its outputs;
# they meet at fifos without a channel. Which thread runs first makes no difference to any time:
# each step waits for given frames, not for the first to arrive (a Kahn network).

_WORK: Final = 0
_GET: Final = 1
_PUT: Final = 2
_MEET: Final = 3

_NO_OP: Final = -1


class _Fifo:
    """A channel, or a link between threads of the driver, seen as frames and times."""

    __slots__ = (
        "capacity",
        "freed_at",
        "num_readers",
        "put_at",
        "readers",
        "taken",
        "waiting_reader",
        "waiting_writer",
        "writer",
    )

    def __init__(self, capacity: int | None, num_readers: int) -> None:
        self.capacity = capacity
        self.num_readers = num_readers
        self.put_at: list[float] = []  # by frame
        self.taken: list[int] = []  # by frame, how many readers have taken it
        self.freed_at: list[float] = []  # by frame, when the last of those took it
        self.writer: _Thread | None = None
        self.readers: list[_Thread] = []
        self.waiting_reader: list[_Thread] = []
        self.waiting_writer: _Thread | None = None

    def put(self, at: float) -> None:
        self.put_at.append(at)
        self.taken.append(0)
        self.freed_at.append(0.0)


class _Step(NamedTuple):
    action: int
    fifo: _Fifo | None
    op: int
    cost: float
    waking: float = 0.0
    others: tuple[_Fifo, ...] = ()  # by which the others of a rendezvous say that they came


class _Thread:
    """A thread of steps: blocks of steps, each for one execution."""

    __slots__ = ("at_block", "at_step", "blocks", "clock", "num_met", "process", "spans")

    def __init__(self, process: str, blocks: list[tuple[list[_Step], int]]) -> None:
        self.process = process
        self.blocks = blocks
        self.at_block = 0
        self.at_step = 0
        self.num_met = 0  # of the others of the rendezvous that it is in
        self.clock = 0.0
        self.spans: list[SimulatedOp] = []
        distinct = {id(steps): steps for steps, _ in blocks}
        for step in (step for steps in distinct.values() for step in steps):
            if step.fifo is not None and step.action == _GET:
                step.fifo.readers.append(self)
            elif step.fifo is not None:
                step.fifo.writer = self

    @property
    def is_done(self) -> bool:
        return self.at_block == len(self.blocks)

    @property
    def step(self) -> _Step:
        """The step that is next."""
        return self.blocks[self.at_block][0][self.at_step]

    @property
    def execution(self) -> int:
        """The execution of the next step."""
        return self.blocks[self.at_block][1]

    def num_taken(self, fifo: _Fifo) -> int:
        """How many frames of a fifo it has taken."""
        begun = [steps for steps, _ in self.blocks[: self.at_block]]
        begun += [] if self.is_done else [self.blocks[self.at_block][0][: self.at_step]]
        return sum(
            any(step.fifo is fifo and step.action == _GET for step in steps) for steps in begun
        )

    def run(self, wake: Callable[[_Thread], None]) -> None:
        """Run until blocked or done, waking the threads that can then continue."""
        clock, at_step = self.clock, self.at_step
        blocks, num_blocks = self.blocks, len(self.blocks)
        while self.at_block < num_blocks:
            steps, execution = blocks[self.at_block]
            num_steps = len(steps)
            while at_step < num_steps:
                action, fifo, op, cost, waking, others = steps[at_step]
                if action == _MEET:
                    if not self._meet(others, execution):
                        self.clock, self.at_step = clock, at_step
                        return
                    came = max(other.put_at[execution] for other in others)
                    start = _later(clock, came, waking)
                    clock = start + cost
                elif fifo is None:
                    start = clock
                    clock += cost
                elif action == _GET:
                    if execution >= len(fifo.put_at):
                        fifo.waiting_reader.append(self)
                        self.clock, self.at_step = clock, at_step
                        return
                    ready = fifo.put_at[execution]
                    start = clock if clock >= ready else _later(clock, ready, waking)
                    clock = start + cost
                    fifo.taken[execution] += 1
                    if clock > fifo.freed_at[execution]:
                        fifo.freed_at[execution] = clock
                    writer = fifo.waiting_writer
                    if writer is not None and fifo.taken[execution] == fifo.num_readers:
                        fifo.waiting_writer = None
                        wake(writer)
                else:
                    start = clock
                    if fifo.capacity is not None and execution >= fifo.capacity:
                        reused = execution - fifo.capacity
                        if fifo.taken[reused] < fifo.num_readers:
                            fifo.waiting_writer = self
                            self.clock, self.at_step = clock, at_step
                            return
                        start = _later(clock, fifo.freed_at[reused], waking)
                    clock = start + cost
                    fifo.put(clock)
                    if fifo.waiting_reader:
                        for reader in fifo.waiting_reader:
                            wake(reader)
                        fifo.waiting_reader.clear()
                if op != _NO_OP:
                    self.spans.append(SimulatedOp(self.process, op, execution, start, clock))
                at_step += 1
            self.at_block += 1
            at_step = 0
        self.clock, self.at_step = clock, 0

    def _meet(self, others: tuple[_Fifo, ...], execution: int) -> bool:
        """Return whether all others of a rendezvous came; if not, the next to come wakes it."""
        while self.num_met < len(others):
            other = others[self.num_met]
            if execution >= len(other.put_at):
                other.waiting_reader.append(self)
                return False
            self.num_met += 1
        self.num_met = 0
        return True


def _later(clock: float, ready: float, waking: float) -> float:
    """Return when an op continues that starts at ``clock`` and waits until ``ready``."""
    return clock if clock >= ready else max(clock, ready + waking)


class _Run:
    """All threads of a plan, from the start until none can go on."""

    def __init__(
        self,
        plan: Plan,
        op_cost: Callable[[Op], float] | Costs,
        executions: int,
        window: int,
        is_driver_draining: bool,
        *,
        has_timeline: bool = True,
    ) -> None:
        self._has_timeline = has_timeline
        self._last = DRIVER, len(plan.program(DRIVER).ops) - 1
        self._fifos = {each.id: _Fifo(each.slots, len(each.readers)) for each in plan.channels}
        # How each process says that it came to a rendezvous: by the process and its op.
        self._came: dict[tuple[str, Op], _Fifo] = {}
        self._others: dict[tuple[str, Op], tuple[_Fifo, ...]] = {}
        ops = {program.process: program.ops for program in plan.programs}
        for meeting in rendezvous_of(plan) if has_rendezvous(plan) else ():
            if len(meeting.ends) > 1:
                came = {(where, ops[where][at]): _Fifo(None, 0) for where, at in meeting.ends}
                self._came |= came
                for each in came:
                    self._others[each] = tuple([came[other] for other in came if other != each])
        self._op_cost = op_cost
        self._executions = executions
        driver, *actors = _programs_without_gates(plan)
        self.threads = (
            self._draining_driver(driver, window)
            if is_driver_draining
            else self._filling_driver(driver, window)
        )
        self._num_driver_threads = len(self.threads)
        self.threads += [self._loop(each.process, self._steps(each)) for each in actors]

    def _steps(self, program: Program) -> list[_Step]:
        steps: list[_Step] = []
        for position, op in enumerate(program.ops):
            came = self._came.get((program.process, op)) if self._came else None
            if came is not None:
                steps.append(_Step(_PUT, came, _NO_OP, 0.0))
            steps.append(self._step(program.process, position, op))
        return steps

    def _step(self, process: str, position: int, op: Op) -> _Step:
        """Return the step that takes the time of an op."""
        if isinstance(self._op_cost, Costs):
            cost = self._op_cost.each.get((process, position), 0.0)
            waking = self._op_cost.waking.get((process, position), 0.0)
        else:
            cost, waking = self._op_cost(op), 0.0
        others = self._others.get((process, op)) if self._others else None
        if not self._has_timeline and (process, position) != self._last:
            position = _NO_OP
        if others is not None:
            return _Step(_MEET, None, position, cost, waking, others)
        moved = (*op.channels_in, *op.channels_out)
        if not moved:
            return _Step(_WORK, None, position, cost)
        (channel,) = moved
        action = _GET if op.channels_in else _PUT
        return _Step(action, self._fifos[channel], position, cost, waking)

    def _loop(self, process: str, steps: list[_Step]) -> _Thread:
        return _Thread(process, [(steps, execution) for execution in range(self._executions)])

    def _draining_driver(self, program: Program, window: int) -> list[_Thread]:
        """Lanes that submit as the window allows, take results as they come, and give them out."""
        given_out = _Fifo(None, 1)
        for _ in range(window):
            given_out.put(0.0)
        submit = [_Step(_GET, given_out, _NO_OP, 0.0)]
        output: list[_Step] = []
        threads: list[_Thread] = []
        last: list[_Step] = []
        for op, step in zip(program.ops, self._steps(program), strict=True):
            if op.channels_in:
                arrived = _Fifo(None, 1)
                threads.append(self._loop(DRIVER, [step, _Step(_PUT, arrived, _NO_OP, 0.0)]))
                output.append(_Step(_GET, arrived, _NO_OP, 0.0))
            elif isinstance(op, Output):
                last.append(step)
            else:
                submit.append(step)
        output += [*last, _Step(_PUT, given_out, _NO_OP, 0.0)]
        return [self._loop(DRIVER, submit), *threads, self._loop(DRIVER, output)]

    def _filling_driver(self, program: Program, window: int) -> list[_Thread]:
        """One thread that fills the window before it takes the first result."""
        steps = self._steps(program)
        reads = [position for position, op in enumerate(program.ops) if op.channels_in]
        first_read = min(reads, default=len(steps))
        submit, collect = steps[:first_read], steps[first_read:]
        blocks = [(submit, execution) for execution in range(min(window, self._executions))]
        for execution in range(self._executions):
            blocks.append((collect, execution))
            if execution + window < self._executions:
                blocks.append((submit, execution + window))
        return [_Thread(DRIVER, blocks)]

    def to_end(self) -> bool:
        """Run; return whether every thread came to its end."""
        ready = deque(self.threads)
        while ready:
            ready.popleft().run(ready.append)
        return all(thread.is_done for thread in self.threads)

    def timeline(self) -> tuple[SimulatedOp, ...]:
        count = self._num_driver_threads
        spans = [span for thread in self.threads[:count] for span in thread.spans]
        spans.sort(key=lambda span: (span.execution, span.op))
        for thread in self.threads[count:]:
            spans += thread.spans
        return tuple(spans)


# --- the report ---------------------------------------------------------------------------------

_LONG_PROGRAM: Final = 40
_AROUND: Final = 6


def _deadlock(
    plan: Plan, threads: Sequence[_Thread], describe: Callable[[int], str] | None
) -> DeadlockError:
    blocked = [thread for thread in threads if not thread.is_done]
    why: dict[str, dict[int, str]] = {}
    standing: dict[str, int] = {}
    for thread in blocked:
        execution = min(thread.execution, standing.get(thread.process, thread.execution))
        standing[thread.process] = execution
        if thread.step.op != _NO_OP:
            op = plan.program(thread.process).ops[thread.step.op]
            text = _why(plan, thread, op, describe)
            why.setdefault(thread.process, {})[thread.step.op] = text
    shown = []
    for program in _programs_without_gates(plan):
        process = program.process
        label = plan.label(process)
        shown.append(_show_program(program, label, standing.get(process), why.get(process, {})))
    return DeadlockError(
        "the programs would wait for each other for ever: "
        f"{', '.join(_describe_cycle(plan, blocked))}. Bind the calls in an order in which every "
        "value is made before it is needed.",
        programs="\n".join(shown),
    )


def _why(plan: Plan, thread: _Thread, op: Op, describe: Callable[[int], str] | None) -> str:
    """What an op waits for: ``waits for a1 (Right) to receive c2``."""
    peers = list(dict.fromkeys(peer.process for peer in _waits_for(thread)))
    nodes: tuple[int, ...]
    if isinstance(op, Collective):
        what, nodes = f"enter {op.word} @{op.group}", (op.node,)
    else:
        (channel,) = (*op.channels_in, *op.channels_out)
        spec = plan.channels_by_id()[channel]
        nodes = spec.nodes
        if spec.kind == TENSOR and spec.writer in peers:
            peers, what = [spec.writer], f"send {channel}"
        elif spec.kind == TENSOR:
            what = f"receive {channel}"
        else:
            what = f"{'write' if op.channels_in else 'read'} {channel}"
    value = f" ({', '.join(map(describe, nodes))})" if describe is not None else ""
    is_full = thread.step.action == _PUT
    return (
        f"waits for {' and '.join(map(plan.label, peers))} to {what}{value}"
        f"{': all its slots are full' if is_full else ''}"
    )


def _waits_for(thread: _Thread) -> list[_Thread]:
    """The threads that a blocked thread waits for."""
    step = thread.step
    fifo = step.fifo
    if step.action == _MEET:
        missing = [other for other in step.others if len(other.put_at) <= thread.execution]
        return [other.writer for other in missing if other.writer is not None]
    if fifo is None:
        return []
    if step.action == _GET:
        return [] if fifo.writer is None else [fifo.writer]
    reused = thread.execution - (fifo.capacity or 0)
    return [reader for reader in fifo.readers if reader.num_taken(fifo) <= reused]


def _describe_cycle(plan: Plan, blocked: Sequence[_Thread]) -> list[str]:
    """Follow the waits until a thread repeats; all threads on the way are blocked."""
    path: list[_Thread] = []
    thread = blocked[0]
    while thread not in path:
        path.append(thread)
        thread = _waits_for(thread)[0]
    cycle = path[path.index(thread) :]
    ops = {program.process: program.ops for program in plan.programs}
    rank = {process: position for position, process in enumerate(ops)}
    first = min(range(len(cycle)), key=lambda position: rank[cycle[position].process])
    cycle = cycle[first:] + cycle[:first]
    return [
        f"{plan.label(thread.process)} waits for {plan.label(_waits_for(thread)[0].process)} at "
        f"`{ops[thread.process][thread.step.op]}`"
        for thread in cycle
        if thread.step.op != _NO_OP
    ]


def _show_program(program: Program, label: str, execution: int | None, why: dict[int, str]) -> str:
    """A program with its blocked ops marked; a long one is cut to the ops around them."""
    lines = [f"{label}, {'done' if execution is None else f'in execution {execution}'}"]
    left_out = 0
    for position, op in enumerate(program.ops):
        is_near = any(abs(position - blocked) <= _AROUND for blocked in why)
        if not is_near and len(program.ops) > _LONG_PROGRAM:
            left_out += 1
            continue
        if left_out:
            lines.append(f"      ... {left_out} ops")
            left_out = 0
        if position in why:
            lines.append(f"   => {op!s:<16}  {why[position]}")
        else:
            lines.append(f"      {op}")
    if left_out:
        lines.append(f"      ... {left_out} ops")
    return "\n".join(lines)
