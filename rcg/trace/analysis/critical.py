# SPDX-License-Identifier: Apache-2.0
"""The critical path: the ops that determine the latency of an execution, or of all executions.

It is computed backwards from a completion, along the dependencies:

```
driver |write 0|                                       The path of execution 0, from its end:
a0     | waits |read| call          |write|            write of a1, call, read of a1 until its
a1     | waits . . . . . . . . . . .  |...|read|call|write|    wait was over; then a0's write that
                                          ^            ended it, call, read; the driver's write
```

If the inputs of an execution were encoded before there was room for them, the path begins with the
encoding and continues with the Write. The gap between them is not part of the latency
(``executions.py``).

``dependencies.py`` defines on which event each event depends. The time from the end of the peer's
op to the end of the wait is waking up. It counts as waiting of the process that waited. Between
nodes it is the time on the wire, from the end of the Write to the end of the gate's Pass, which is
communication. The path ends where the next event is not in the trace.

This room must know neither shares nor how paths are shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Final, Self

import numpy as np

from rcg.display import Displayed
from rcg.ir.ids import DRIVER
from rcg.ir.ops import Collective, Pass
from rcg.table import Table
from rcg.text import IN_LINE, brief, cut, plural, share_text, time_text, visible
from rcg.trace.analysis.dependencies import Dependencies, Walk
from rcg.trace.analysis.events import NONE, TimeKind
from rcg.trace.analysis.executions import UNSEEN, Executions
from rcg.trace.analysis.intervals import Ints, Times
from rcg.trace.analysis.spread import LEAST
from rcg.trace.analysis.transfers import wire_text
from rcg.trace.model import GraphTrace, LaneTrace, actor_labels

LOST: Final = "unknown: the events before are lost or older than the trace"
"""The text of the first step of a path that is not complete."""

_MOST_CHANNELS: Final = 3  # a process reads so many, or writes them, each under its own name
_MAX_STEPS: Final = 30
_FEW: Final = 3  # executions: what fewer waited for has no usual time
_NOTABLE: Final = 0.05  # of a path: what is beyond the usual time, and less, is no stall
_STANDS_OUT: Final = 0.1  # of a path
_SHORT: Final = 0.01  # of a path: steps that a table has together
_STEP_HEAD: Final = ("", "kind", "execution", "takes")


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a critical path.

    Attributes:
        process: Its process.
        op: Index of the op in its program; None for the time between two ops.
        execution: Index of its execution. It may be another one that had to finish first.
        kind: The kind of time.
        start_ns: When it began.
        end_ns: When it ended.
        text: Its displayed name: ``a1 (Stage).fwd``.
        group: The name of all that counts as one with it (``group_names``).
    """

    process: str
    op: int | None
    execution: int
    kind: TimeKind
    start_ns: int
    end_ns: int
    text: str
    group: str

    @property
    def duration_ns(self) -> int:
        """The duration."""
        return self.end_ns - self.start_ns

    def since(self, origin_ns: int) -> Step:
        """Return the same with times that count from an origin."""
        return replace(self, start_ns=self.start_ns - origin_ns, end_ns=self.end_ns - origin_ns)


class CriticalPath(Displayed, tuple[Step, ...]):
    """The steps that make up the latency of an execution, by time. ``str()`` is a table.

    Args:
        steps: The steps.
        usual_ns: Between which latencies 8 of 10 executions of the trace are; None if that is not
            known.
    """

    usual_ns: tuple[float, float] | None

    def __new__(
        cls, steps: Iterable[Step] = (), usual_ns: tuple[float, float] | None = None
    ) -> Self:
        """Make a path."""
        self = super().__new__(cls, steps)
        self.usual_ns = usual_ns
        return self

    @property
    def duration_ns(self) -> int:
        """How long it is."""
        return self[-1].end_ns - self[0].start_ns if self else 0

    def groups(self) -> list[tuple[str, list[Step]]]:
        """Return the steps of each group, those that take longest together first."""
        found: dict[str, list[Step]] = {}
        for step in self:
            found.setdefault(step.group, []).append(step)
        return sorted(found.items(), key=lambda group: -sum(s.duration_ns for s in group[1]))

    @property
    def answer(self) -> str:
        """What takes most of it: ``72 % of 127 ms is a2 (Shard).work``; "" without steps."""
        if not self:
            return ""
        text, steps = self.groups()[0]
        share = sum(step.duration_ns for step in steps) / max(self.duration_ns, 1)
        most = f"{share_text(share, 0)} of {time_text(self.duration_ns)} is {visible(text)}"
        return most if share >= _STANDS_OUT else f"no step stands out: at most {most}"

    @property
    def about(self) -> list[str]:
        """More about it: its steps, which of it is for other executions, and what is usual."""
        if not self:
            return []
        own = self[-1].execution
        others = sum(step.duration_ns for step in self if step.execution != own)
        words = [f"critical path of execution {own}", plural(len(self), "step")]
        if others:
            share = share_text(others / self.duration_ns, 0)
            words.append(f"{share} is spent on earlier executions")
        if self.usual_ns is not None:
            least, most = map(time_text, self.usual_ns)
            words.append(f"8 of 10 executions take {least} to {most}")
        return words

    def __str__(self) -> str:
        if not self:
            return "no path: the trace does not hold the execution from its submission to its end"
        least_ns = self.duration_ns * _SHORT
        runs = groupby(self, key=lambda step: step.duration_ns < least_ns)
        found = [(each, is_short) for is_short, run in runs for each in _together(run, is_short)]
        middle = found[_MAX_STEPS // 2 :]

        def left_out(count: int) -> tuple[str, str, str, str]:
            left = [step for steps, _ in middle[:count] for step in steps]
            return f"... {plural(len(left), 'more step')}", "", "", _takes(left)

        rows = cut([_row(*each) for each in found], left_out, _MAX_STEPS)
        head = [self.answer, *(f"  {each}" for each in self.about)]
        return "\n".join([*head, "", Table(_STEP_HEAD, rows, "nwff").text("  ")])

    def __repr__(self) -> str:
        took = time_text(self.duration_ns) if self else "nothing known"
        return f"<CriticalPath: {took}, {plural(len(self), 'step')}>"


def _together(steps: Iterable[Step], are_short: bool) -> list[list[Step]]:
    """Return the steps of each row of a table: several that are short are one."""
    return [list(steps)] if are_short else [[step] for step in steps]


def _row(steps: Sequence[Step], are_short: bool) -> tuple[str, str, str, str]:
    """Return a row of a table."""
    if not are_short or len(steps) == 1:
        (step,) = steps
        return step.text, step.kind.name.lower(), str(step.execution), _takes(steps)
    executions = sorted({step.execution for step in steps})
    of = str(executions[0])
    if len(executions) > 1:
        of += f" to {executions[-1]}"
    return f"{len(steps)} steps of less than {share_text(_SHORT, 0)}", "", of, _takes(steps)


def _takes(steps: Iterable[Step]) -> str:
    return time_text(sum(step.duration_ns for step in steps))


PathSteps = tuple[Ints, Times, Times]
"""The number of the lane of each step of a path, and when it begins and ends; the latest first."""

NO_STEPS: Final[PathSteps] = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True, eq=False)
class LongWalk:
    """The steps of a path through many executions.

    Attributes:
        walk: The steps.
        start_ns: Where it begins.
        end_ns: Where it ends.
        is_of_stall: Whether it leads to an op that hangs.
    """

    walk: Walk
    start_ns: int
    end_ns: int
    is_of_stall: bool = False


@dataclass(frozen=True, slots=True)
class PathShare:
    """The share of one kind of time of one op in a long path, without stalls.

    Attributes:
        process: Its process.
        op: Index of the op in its program; None for the time between ops.
        kind: The kind of time.
        total_ns: Its time over all executions.
        share: Its share of the path, from 0 to 1.
        text: Its displayed name, or that of several ops that count as one.
    """

    process: str
    op: int | None
    kind: TimeKind
    total_ns: int
    share: float
    text: str


@dataclass(frozen=True, slots=True)
class PathStall:
    """What one op took in one execution beyond its usual time, if that is a notable part of a path.

    Attributes:
        process: Its process.
        op: Index of the op in its program; None for the time between ops.
        execution: The execution.
        kind: The kind of time.
        took_ns: Its time on the path in this execution.
        usual_ns: The median of this time over the executions; 0 if it has none.
        share: The share of the path that is beyond ``usual_ns``, from 0 to 1.
        text: Its displayed name.
    """

    process: str
    op: int | None
    execution: int
    kind: TimeKind
    took_ns: int
    usual_ns: float
    share: float
    text: str

    def __str__(self) -> str:
        usual = f", usually {time_text(self.usual_ns)}" if self.usual_ns else ""
        name, took = brief(self.text, IN_LINE), time_text(self.took_ns)
        return f"once, in execution {self.execution}: {name} {took}{usual}"


@dataclass(frozen=True, slots=True)
class PathGroup:
    """All that counts as one in a path, over all kinds of time.

    Attributes:
        text: Its displayed name.
        share: The sum of the shares of its parts.
        ops: Its ops, each as its process and its index in the program; none for the time between.
    """

    text: str
    share: float
    ops: frozenset[tuple[str, int]]


@dataclass(frozen=True)
class SteadyPath:
    """The path from the last completion back, through all executions.

    It goes back to the first completion, as the throughput does that it explains; of fewer
    executions than have a spread (``spread.py``), to the first submission.

    Attributes:
        start_ns: Where it begins.
        end_ns: The last completion whose Write is in the trace.
        shares: The parts of the path, largest first. With ``stalls`` they add up to it.
        stalls: What was once much slower than usual, largest first; none in a graph that hangs.
        is_whole: Whether the path reaches back to its beginning.
    """

    start_ns: int
    end_ns: int
    shares: tuple[PathShare, ...]
    stalls: tuple[PathStall, ...]
    is_whole: bool

    @cached_property
    def groups(self) -> tuple[PathGroup, ...]:
        """What counts as one, largest first. Stalls are in none."""
        parts: dict[str, list[PathShare]] = {}
        for each in self.shares:
            parts.setdefault(each.text, []).append(each)
        found = [
            PathGroup(
                text,
                sum(each.share for each in own),
                frozenset((each.process, each.op) for each in own if each.op is not None),
            )
            for text, own in parts.items()
        ]
        return tuple(sorted(found, key=lambda each: -each.share))

    @property
    def bottleneck(self) -> PathGroup | None:
        """What to make faster first; None if the path is empty or mostly unknown."""
        most = next(iter(self.groups), None)
        return None if most is None or most.text == LOST else most

    @property
    def is_user_code(self) -> bool:
        """Whether the bottleneck is the user's code between the ops of the driver."""
        most = self.bottleneck
        return most is not None and any(
            each.process == DRIVER and each.op is None and each.text == most.text
            for each in self.shares
        )

    @property
    def stalled(self) -> float:
        """The share of the path that is stalls, from 0 to 1."""
        return sum(each.share for each in self.stalls)

    def since(self, origin_ns: int) -> SteadyPath:
        """Return the same with times that count from an origin."""
        return replace(self, start_ns=self.start_ns - origin_ns, end_ns=self.end_ns - origin_ns)


def text_of(graph: GraphTrace, lane: LaneTrace, op: int) -> str:
    """Return the displayed name of an op: ``a1 (Stage).fwd``, ``driver write c0``."""
    ops = graph.program(lane).ops
    if not 0 <= op < len(ops):
        return f"{lane.label} op {op}"
    name = ops[op].title(actor_labels(graph.plan))
    method = getattr(ops[op], "method", None)
    return f"{lane.label} {name}" if method is None else f"{lane.label}.{method}"


def group_names(graph: GraphTrace, lane: LaneTrace) -> list[str]:
    """Return the name of each op, of which those of one name count as one.

    These are the calls of a method, and the Reads and the Writes of a process if they are many.
    """
    ops = graph.program(lane).ops
    words = Counter(op.word for op in ops if not op.is_call)
    return [
        f"{lane.label} {op.word} of {words[op.word]} channels"
        if op.channels_in + op.channels_out and words[op.word] > _MOST_CHANNELS
        else text_of(graph, lane, at)
        for at, op in enumerate(ops)
    ]


class Paths:
    """The critical paths of a graph.

    Args:
        dependencies: What each event depends on.
        executions: The executions of the graph.
    """

    def __init__(self, dependencies: Dependencies, executions: Executions) -> None:
        self._dependencies = dependencies
        self._table = dependencies.table
        self._graph = dependencies.table.graph
        self.executions = executions
        self._groups: dict[str, list[str]] = {}

    def of(self, execution: int) -> CriticalPath:
        """Return the steps that make up the latency of an execution, by time.

        The steps have no gaps and add up to the latency. If some of them are not in the trace, the
        first one is an IDLE step without an op, with the text ``LOST``. If the submission or
        completion of the execution is not in the trace, the path is empty.
        """
        walk = self._walk_of(execution)
        if walk is None:
            return CriticalPath()
        kept = np.flatnonzero(walk.start < walk.end)[::-1]
        dependencies, table = self._dependencies, self._table
        steps = self._encoding(execution)
        last = NONE
        for at in kept.tolist():
            event, kind = int(walk.event[at]), TimeKind(int(walk.kind[at]))
            lane = self._graph.lanes[int(table.lane[event])]
            op, is_between = int(table.op[event]), bool(walk.is_between[at])
            text, group = self._names(lane, op, is_between, bool(walk.is_unknown[at]))
            if steps and steps[-1].text == text and event == last and dependencies.is_pass[event]:
                # A value is on the wire before and while the gate takes it.
                steps[-1] = replace(steps[-1], end_ns=int(walk.end[at]))
                continue
            last = event
            steps.append(
                Step(
                    process=lane.process,
                    op=None if is_between else op,
                    execution=int(table.execution[event]),
                    kind=kind,
                    start_ns=int(walk.start[at]),
                    end_ns=int(walk.end[at]),
                    text=text,
                    group=group,
                )
            )
        latency = self.executions.latency_ns
        is_known = len(latency) >= LEAST
        least, most = np.percentile(latency, (10, 90)) if is_known else (0.0, 0.0)
        return CriticalPath(steps, (float(least), float(most)) if is_known else None)

    def _encoding(self, execution: int) -> list[Step]:
        """Return the step of encoding the inputs, if that happened before writing them."""
        begun, until, _ = self._times(execution)
        ops = self._graph.plan.program(DRIVER).ops
        op = next((at for at, each in enumerate(ops) if each.values_out), None)
        if op is None or begun >= until:
            return []
        kind = TimeKind.SERIALIZATION
        return [
            Step(DRIVER, op, execution, kind, begun, until, *self._names(self._graph.driver, op))
        ]

    def _times(self, execution: int) -> tuple[int, int, int]:
        """Return when an execution was submitted, when encoding in advance ended, and its end."""
        executions = self.executions
        at = int(np.searchsorted(executions.index, execution))
        if at == len(executions) or executions.index[at] != execution:
            return UNSEEN, UNSEEN, UNSEEN
        begun, over = int(executions.submitted_ns[at]), int(executions.completed_ns[at])
        return begun, min(begun + int(executions.encoded_ns[at]), over), over

    def rows_of(self, execution: int) -> list[int]:
        """Return the row of each event on the path of an execution, last event first."""
        walk = self._walk_of(execution)
        return [] if walk is None else list(dict.fromkeys(walk.event.tolist()))

    def steps_of(self, execution: int) -> PathSteps:
        """Return the steps of the path of an execution as columns, as ``steps_in``."""
        walk = self._walk_of(execution)
        begun, until, _ = self._times(execution)
        if walk is None:
            return NO_STEPS
        # At last the encoding of the inputs, by the driver, if that came before writing them.
        lane = np.append(self._table.lane[walk.event], 0)
        start, end = np.append(walk.start, begun), np.append(walk.end, until)
        kept = (start < end) & ~np.append(walk.is_unknown, False)
        return lane[kept], start[kept], end[kept]

    def through_all(self) -> LongWalk | None:
        """Return the path through all executions; None without a beginning and a completion.

        The path ends with the last completion whose Write is in the trace: a driver may receive the
        last results before the actor that sent them has recorded its Write.
        """
        executions = self.executions
        is_written = self._dependencies.is_written(executions.index)
        completed = np.where(is_written, executions.completed_ns, UNSEEN)
        if completed.max(initial=UNSEEN) == UNSEEN:
            completed = executions.completed_ns
        last = int(completed.max(initial=UNSEEN))
        first = executions.first_submission_ns
        if executions.throughput_spread is not None:
            first = int(completed[completed != UNSEEN].min())
        if first is None or last <= first:
            return None
        event = self._dependencies.completion(int(executions.index[int(np.argmax(completed))]))
        if event == NONE:
            return None
        return LongWalk(self._dependencies.walk(event, last, first), first, last)

    def until(self, process: str, end_ns: int) -> LongWalk | None:
        """Return the path that led to the last event of a process."""
        first = self.executions.first_submission_ns
        of = self._table.of_lane(self._table.number(process))
        if first is None or end_ns <= first or of.start == of.stop:
            return None
        walk = self._dependencies.walk(of.stop - 1, end_ns, first)
        return LongWalk(walk, first, end_ns, is_of_stall=True)

    def steps_in(self, path: LongWalk) -> PathSteps:
        """Return the steps of a path as columns, without those that are unknown."""
        walk = path.walk
        kept = (walk.start < walk.end) & ~walk.is_unknown
        return self._table.lane[walk.event[kept]], walk.start[kept], walk.end[kept]

    def _walk_of(self, execution: int) -> Walk | None:
        begun, written, over = self._times(execution)
        event = self._dependencies.completion(execution)
        if UNSEEN in (begun, over) or over <= begun or event == NONE:
            return None
        return self._dependencies.walk(event, over, written)

    def steady(self, path: LongWalk) -> SteadyPath:
        """Return what a path through many executions is made of."""
        walk, first, last = path.walk, path.start_ns, path.end_ns
        graph, table = self._graph, self._table
        length = walk.end - walk.start
        places = max((len(program.ops) for program in graph.plan.programs), default=0) + 3
        op = np.minimum(table.op[walk.event], places - 3)
        op = np.where(walk.is_unknown, places - 1, np.where(walk.is_between, places - 2, op))
        code = (table.lane[walk.event] * places + op) * len(TimeKind) + walk.kind
        # Only combinations that occur: all possible ones are lanes times ops.
        codes, which = np.unique(code, return_inverse=True)
        totals = np.bincount(which, length, len(codes)).astype(np.int64)
        parts = []
        for each in codes.tolist():
            place, kind = divmod(each, len(TimeKind))
            number, at = divmod(place, places)
            lane, is_between = graph.lanes[number], at >= places - 2
            _, text = self._names(lane, at, is_between, at == places - 1)
            made = graph.program(lane).ops[at : at + 1]
            if made and isinstance(made[0], Collective):  # of all ranks: they take it together
                text = made[0].title(actor_labels(graph.plan))
            parts.append(
                PathShare(lane.process, None if is_between else at, TimeKind(kind), 0, 0.0, text)
            )
        stalls: list[PathStall] = []
        if not path.is_of_stall and len(np.unique(table.execution[walk.event])) >= _FEW:
            for at, stall in self._stalls(walk, parts, which, last - first):
                totals[at] -= round(stall.share * (last - first))
                stalls.append(stall)
        found = [
            replace(part, total_ns=total, share=total / (last - first))
            for part, total in zip(parts, totals.tolist(), strict=True)
            if total
        ]
        return SteadyPath(
            start_ns=first,
            end_ns=last,
            shares=tuple(sorted(found, key=lambda each: -each.total_ns)),
            stalls=tuple(sorted(stalls, key=lambda each: -each.share)),
            is_whole=not bool(walk.is_unknown.any() and length[walk.is_unknown].sum()),
        )

    def _stalls(
        self, walk: Walk, parts: Sequence[PathShare], which: Ints, path_ns: int
    ) -> Iterator[tuple[int, PathStall]]:
        """Yield what took notably longer than usual in one execution, with the number of its part.

        Args:
            walk: The steps of the path.
            parts: The parts of the path.
            which: The number of the part of each step.
            path_ns: The length of the path.
        """
        of_step = self._table.execution[walk.event]
        most = int(of_step.max()) + 1
        code, pair = np.unique(which * most + of_step, return_inverse=True)
        took = np.bincount(pair, walk.end - walk.start, len(code)).astype(np.int64)
        part, of = np.divmod(code, most)
        for at in np.flatnonzero(took >= _NOTABLE * path_ns).tolist():
            number, took_ns = int(part[at]), int(took[at])
            if parts[number].text == LOST:
                continue
            usual_ns = self._usual_ns(parts[number], took[part == number])
            share = round(took_ns - usual_ns) / path_ns
            if share >= _NOTABLE:
                own = parts[number]
                yield (
                    number,
                    PathStall(
                        own.process,
                        own.op,
                        int(of[at]),
                        own.kind,
                        took_ns,
                        usual_ns,
                        share,
                        own.text,
                    ),
                )

    def _usual_ns(self, part: PathShare, on_path: Times) -> float:
        """Return how long a part of an op usually takes.

        Args:
            part: The part.
            on_path: How long it took on the path, in each execution that has it there. Waiting is
                compared with this: off the path, a wait says nothing about the op.
        """
        if part.op is None or part.kind in (TimeKind.WAITING, TimeKind.IDLE):
            return float(np.median(on_path)) if len(on_path) >= _FEW else 0.0
        took = self._table.time_of(self._table.rows(part.process, part.op), part.kind)
        return float(np.median(took[took > 0]))  # an op of a driver may have events without it

    def _names(
        self, lane: LaneTrace, op: int, is_between: bool = False, is_unknown: bool = False
    ) -> tuple[str, str]:
        """Return the displayed name of a step, and that of all that counts as one with it."""
        ops = self._graph.program(lane).ops
        if is_unknown:
            text = LOST
        elif is_between:
            what = "your code between its ops" if lane.process == DRIVER else "between its ops"
            text = f"{lane.label}: {what}"
        elif isinstance(passed := next(iter(ops[op : op + 1]), None), Pass):
            text = wire_text(self._graph.plan, passed.channel, lane.process)
        elif passed is None:
            text = text_of(self._graph, lane, op)
        else:
            if lane.process not in self._groups:
                self._groups[lane.process] = group_names(self._graph, lane)
            return text_of(self._graph, lane, op), self._groups[lane.process][op]
        return text, text
