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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from rcg.display import Displayed
from rcg.ir.ids import DRIVER
from rcg.ir.ops import Collective, Pass
from rcg.table import Table
from rcg.text import cut, plural, share_text, time_text, visible
from rcg.trace.analysis.dependencies import Dependencies, Walk
from rcg.trace.analysis.executions import UNSEEN, Executions, executions_of
from rcg.trace.analysis.intervals import Ints, Times
from rcg.trace.analysis.parts import TimeKind
from rcg.trace.analysis.rendezvous import NONE
from rcg.trace.analysis.spread import LEAST
from rcg.trace.analysis.transfers import wire_text
from rcg.trace.model import GraphTrace, LaneTrace, actor_labels

LOST: Final = "unknown: the events before are lost or older than the trace"
"""The text of the first step of a path that is not complete."""

_MOST_CHANNELS: Final = 3  # a process reads so many, or writes them, each under its own name
_MAX_STEPS: Final = 30
_MANY: Final = 10  # executions, of which what is on the path of one or two is no rule
_FEW: Final = 3
_NOTABLE: Final = 0.05  # of a path
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
            words.append(f"{share} is for executions that go first")
        if self.usual_ns is not None:
            least, most = map(time_text, self.usual_ns)
            words.append(f"8 of 10 executions take {least} to {most}")
        return words

    def __str__(self) -> str:
        if not self:
            return "no path: the trace does not hold the execution from its submission to its end"
        least_ns = self.duration_ns * _SHORT
        runs = groupby(self, key=lambda step: step.duration_ns < least_ns)
        steps = [row for is_short, run in runs for row in _rows(list(run), is_short)]
        rows = cut(steps, lambda more: (f"... {more:,} more steps", "", "", ""), _MAX_STEPS)
        head = [self.answer, *(f"  {each}" for each in self.about)]
        return "\n".join([*head, "", Table(_STEP_HEAD, rows, "nwff").text("  ")])

    def __repr__(self) -> str:
        took = time_text(self.duration_ns) if self else "nothing known"
        return f"<CriticalPath: {took}, {plural(len(self), 'step')}>"


def _rows(steps: Sequence[Step], are_short: bool) -> list[tuple[str, str, str, str]]:
    """Return the rows of steps in a table: several that are short in one."""
    if are_short and len(steps) > 1:
        executions = sorted({step.execution for step in steps})
        of = str(executions[0])
        if len(executions) > 1:
            of += f" to {executions[-1]}"
        takes = time_text(sum(step.duration_ns for step in steps))
        return [(f"{len(steps)} steps of less than {_SHORT:.0%}", "", of, takes)]
    return [
        (step.text, step.kind.name.lower(), str(step.execution), time_text(step.duration_ns))
        for step in steps
    ]


@dataclass(frozen=True, slots=True)
class PathShare:
    """The share of one kind of time of one op in a long path.

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
class Outlier:
    """What one op took in one execution beyond what it usually takes.

    Attributes:
        execution: The execution.
        took_ns: Its time on the path in this execution.
        usual_ns: The median of this time over the executions; 0 if it is on the path of few.
        share: The share of the path that is beyond ``usual_ns``, from 0 to 1.
        text: Its displayed name.
    """

    execution: int
    took_ns: int
    usual_ns: float
    share: float
    text: str


@dataclass(frozen=True)
class SteadyPath:
    """The path from the last completion back to the first submission, through all executions.

    Attributes:
        start_ns: The first submission.
        end_ns: The last completion whose Write is in the trace.
        shares: The parts of the path, largest first. They add up to it.
        bottleneck: The ops of one text with the largest share, over all kinds of time: what to make
            faster first. Each counts with its median time per execution, so that one that was once
            slow is not taken for it; in a graph that hangs, with all its time. None if the path is
            empty, or if its largest share is unknown.
        bottleneck_share: The share of the bottleneck, from 0 to 1, of the path without what its
            outlier took beyond its usual time.
        outlier: What took longest beyond its usual time, if that is 5 % of the path.
        is_whole: Whether the path reaches back to the first submission.
    """

    start_ns: int
    end_ns: int
    shares: tuple[PathShare, ...]
    bottleneck: PathShare | None
    bottleneck_share: float
    is_whole: bool
    outlier: Outlier | None = None

    @property
    def bottleneck_ops(self) -> frozenset[tuple[str, int]]:
        """The ops of the bottleneck, each as its process and its index in the program."""
        most = self.bottleneck
        return frozenset(
            (each.process, each.op)
            for each in self.shares
            if each.op is not None and most is not None and each.text == most.text
        )

    def since(self, origin_ns: int) -> SteadyPath:
        """Return the same with times that count from an origin."""
        return replace(self, start_ns=self.start_ns - origin_ns, end_ns=self.end_ns - origin_ns)


def critical_path(graph: GraphTrace, execution: int) -> CriticalPath:
    """Return the steps that make up the latency of an execution, by time.

    The steps have no gaps and add up to the latency. If some of them are not in the trace, the
    first one is an IDLE step without an op, with the text ``LOST``. If the submission or completion
    of the execution is not in the trace, the path is empty.
    """
    return Paths(graph).of(execution)


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
    """The critical paths of a graph. The dependencies between its events are computed once.

    Args:
        graph: The graph.
        executions: The executions of the graph; None to compute them.
    """

    def __init__(self, graph: GraphTrace, executions: Executions | None = None) -> None:
        self._graph = graph
        self.executions = executions_of(graph) if executions is None else executions
        self._dependencies = Dependencies(graph, is_wired=True)
        self._groups: dict[str, list[str]] = {}

    @property
    def dependencies(self) -> Dependencies | None:
        """The dependencies between the events; None if some of them are wires between nodes."""
        return None if self._graph.plan.gates else self._dependencies

    def of(self, execution: int) -> CriticalPath:
        """Return the path of one execution; see ``critical_path``."""
        walk = self._walk_of(execution)
        if walk is None:
            return CriticalPath()
        kept = np.flatnonzero(walk.start < walk.end)[::-1]
        dependencies = self._dependencies
        steps = self._encoding(execution)
        last = NONE
        for at in kept.tolist():
            event, kind = int(walk.event[at]), TimeKind(int(walk.kind[at]))
            lane = self._graph.lanes[int(dependencies.lane[event])]
            op, is_between = int(dependencies.op[event]), bool(walk.is_between[at])
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
                    execution=int(dependencies.execution[event]),
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

    def events_of(self, execution: int) -> list[tuple[int, int]]:
        """Return the lane and row of each event on the path of an execution, last event first."""
        walk = self._walk_of(execution)
        if walk is None:
            return []
        dependencies, chain = self._dependencies, list(dict.fromkeys(walk.event.tolist()))
        return [(int(dependencies.lane[event]), int(dependencies.row[event])) for event in chain]

    def lanes_of(self, execution: int) -> tuple[Ints, Times, Times]:
        """Return the steps of the path of an execution as columns, without those that are unknown.

        Returns:
            For each step, the latest first, the number of its lane, and when it begins and ends.
        """
        walk = self._walk_of(execution)
        begun, until, _ = self._times(execution)
        if walk is None:
            return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
        # At last the encoding of the inputs, by the driver, if that came before writing them.
        lane = np.append(self._dependencies.lane[walk.event], 0)
        start, end = np.append(walk.start, begun), np.append(walk.end, until)
        kept = (start < end) & ~np.append(walk.is_unknown, False)
        return lane[kept], start[kept], end[kept]

    def steady(self) -> SteadyPath | None:
        """Return the path through all executions; None without a submission and a completion.

        The path ends with the last completion whose Write is in the trace: a driver may receive the
        last results before the actor that sent them has recorded its Write.
        """
        executions = self.executions
        first = executions.first_submission_ns
        completed = np.where(self._is_written(), executions.completed_ns, UNSEEN)
        if completed.max(initial=UNSEEN) == UNSEEN:
            completed = executions.completed_ns
        last = int(completed.max(initial=UNSEEN))
        if first is None or last <= first:
            return None
        event = self._completion(int(executions.index[int(np.argmax(completed))]))
        if event == NONE:
            return None
        walk = self._dependencies.walk(event, last, first)
        return self._steady(walk, first, last, counts_usual=True)

    def until(self, process: str, end_ns: int) -> SteadyPath | None:
        """Return the path that led to the last event of a process."""
        first = self.executions.first_submission_ns
        number = next(at for at, lane in enumerate(self._graph.lanes) if lane.process == process)
        events = np.flatnonzero(self._dependencies.lane == number)
        if first is None or end_ns <= first or not len(events):
            return None
        return self._steady(self._dependencies.walk(int(events[-1]), end_ns, first), first, end_ns)

    def _walk_of(self, execution: int) -> Walk | None:
        begun, written, over = self._times(execution)
        event = self._completion(execution)
        if UNSEEN in (begun, over) or over <= begun or event == NONE:
            return None
        return self._dependencies.walk(event, over, written)

    def _is_written(self) -> npt.NDArray[np.bool_]:
        """Return which executions have all Writes that complete them in the trace."""
        index = self.executions.index
        written = np.ones(len(index), bool)
        for op in self._graph.plan.program(DRIVER).ops:
            for channel in op.values_in:
                written &= self._dependencies.writes_of(channel, index) != NONE
        return written

    def _completion(self, execution: int) -> int:
        """Return the event that completed an execution, as in ``executions_of``."""
        dependencies, found = self._dependencies, []
        for op in self._graph.plan.program(DRIVER).ops:
            for channel in op.values_in:
                event = int(dependencies.passes_of(channel, DRIVER, execution)[0])
                if event == NONE:
                    event = int(dependencies.writes_of(channel, execution)[0])
                if event == NONE:
                    event = int(dependencies.reads_of(channel, DRIVER, execution)[0])
                if event != NONE:
                    found.append(event)
        return max(found, key=lambda event: int(dependencies.bounds[event, 3]), default=NONE)

    def _steady(
        self, walk: Walk, first: int, last: int, *, counts_usual: bool = False
    ) -> SteadyPath:
        graph, dependencies = self._graph, self._dependencies
        length = walk.end - walk.start
        places = max((len(program.ops) for program in graph.plan.programs), default=0) + 3
        op = np.minimum(dependencies.op[walk.event], places - 3)
        op = np.where(walk.is_unknown, places - 1, np.where(walk.is_between, places - 2, op))
        code = (dependencies.lane[walk.event] * places + op) * len(TimeKind) + walk.kind
        # Only combinations that occur: all possible ones are lanes times ops.
        codes, which = np.unique(code, return_inverse=True)
        totals = np.bincount(which, length, len(codes)).astype(np.int64).tolist()
        found = []
        for each, total in zip(codes.tolist(), totals, strict=True):
            place, kind = divmod(each, len(TimeKind))
            number, at = divmod(place, places)
            lane, is_between = graph.lanes[number], at >= places - 2
            _, text = self._names(lane, at, is_between, at == places - 1)
            made = graph.program(lane).ops[at : at + 1]
            if made and isinstance(made[0], Collective):  # of all ranks: they take it together
                text = made[0].title(actor_labels(graph.plan))
            found.append(
                PathShare(
                    process=lane.process,
                    op=None if is_between else at,
                    kind=TimeKind(kind),
                    total_ns=total,
                    share=total / (last - first),
                    text=text,
                )
            )
        names = [each.text for each in found]
        shares = sorted((each for each in found if each.total_ns), key=lambda each: -each.total_ns)
        times = _times_of(names, which, dependencies.execution[walk.event], length)
        weights = {
            name: each.usual_total_ns if counts_usual else float(each.ns.sum())
            for name, each in times.items()
        }
        most = max(weights, key=lambda name: weights[name], default=None)
        outlier = _outlier(times, last - first) if counts_usual else None
        beyond = 0.0 if outlier is None else outlier.share
        usual_ns = (last - first) * (1 - beyond)
        is_whole = not bool(walk.is_unknown.any() and length[walk.is_unknown].sum())
        known = next((each for each in shares if each.text == most), None)
        if known is not None and known.text == LOST:
            known = None
        return SteadyPath(
            start_ns=first,
            end_ns=last,
            shares=tuple(shares),
            bottleneck=known,
            bottleneck_share=min(weights[most] / usual_ns, 1.0) if known and most else 0.0,
            is_whole=is_whole,
            outlier=outlier,
        )

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


@dataclass(frozen=True, slots=True)
class _Times:
    """The time of one place on a path, by execution.

    Attributes:
        execution: The executions on whose way it is, of [n].
        ns: Its time in each, of [n].
        of: How many executions are on the path.
    """

    execution: Ints
    ns: Times
    of: int

    @property
    def usual_ns(self) -> float:
        """What it usually takes; 0 of what is on the path of one or two of many executions."""
        return 0.0 if len(self.ns) < _FEW and self.of >= _MANY else float(np.median(self.ns))

    @property
    def usual_total_ns(self) -> float:
        """What it takes in all executions, if it takes as long as usual in each."""
        return len(self.ns) * self.usual_ns


def _times_of(
    names: Sequence[str], which: Ints, execution: Ints, length: Times
) -> dict[str, _Times]:
    """Return the times of each place.

    Args:
        names: The places; one may be named several times.
        which: For each step of a path the number of its name.
        execution: Its execution.
        length: Its time.
    """
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    place = np.array([numbers[name] for name in names], np.int64)[which]
    executions, row = np.unique(execution, return_inverse=True)
    code, pair = np.unique(place * len(executions) + row, return_inverse=True)
    ns = np.bincount(pair, length, len(code)).astype(np.int64)
    of, row = np.divmod(code, max(len(executions), 1))
    return {
        name: _Times(executions[row[of == number]], ns[of == number], len(executions))
        for name, number in numbers.items()
    }


def _outlier(times: dict[str, _Times], path_ns: int) -> Outlier | None:
    """Return what took longest beyond its usual time; None if nothing notable did."""
    most: Outlier | None = None
    for text, each in times.items():
        if each.of < _FEW or text == LOST:
            continue
        at = int(np.argmax(each.ns))
        usual_ns, took_ns = each.usual_ns, int(each.ns[at])
        share = (took_ns - usual_ns) / path_ns
        if share >= _NOTABLE and (most is None or share > most.share):
            most = Outlier(int(each.execution[at]), took_ns, usual_ns, share, text)
    return most
