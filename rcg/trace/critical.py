# SPDX-License-Identifier: Apache-2.0
"""The critical path: what an execution, or all of them, took so long for.

Walked back from a completion, along what each moment hung on:

```
driver |write 0|                                       The path of execution 0, from its end:
a0     | waits |read| call          |write|            write of a1, call, read of a1 until its
a1     | waits . . . . . . . . . . .  |...|read|call|write|    wait was over; then a0's write that
                                          ^            ended it, call, read; the driver's write
```

* A Read that waited hangs on the Write of that channel and execution.
* A Write that waited for room hangs on the Read that made it: by the slowest reader, as many
  executions earlier as the channel has slots.
* Everything else hangs on the event before it in its lane.

What lies between the end of what was waited for and the end of the wait is waking up, and counts as
waiting of whoever waited. Where the events that it hung on are not in the trace the path ends.

An event hangs on at most one other, whatever the execution asked for. So the links are computed
once for all events, and only following them goes event by event.

This room must know neither shares nor how paths are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rcg.plan import DRIVER, Read, Write
from rcg.trace.executions import UNSEEN, Executions, executions_of
from rcg.trace.intervals import Times
from rcg.trace.names import actor_labels, name_of
from rcg.trace.parts import KINDS, READ, WRITE, Kind, bounds_of
from rcg.trace.trace import SPAN_BASE, Events, GraphTrace, Lane

__all__ = ["PathShare", "Paths", "SteadyPath", "Step", "critical_path", "text_of"]

_Indexes = npt.NDArray[np.int64]

_NONE: Final = -1
"""The event hangs on nothing that is in the trace."""

LOST: Final = "unknown: the events before are lost or older than the trace"
"""The text of what a path that had to end early leaves out."""


@dataclass(frozen=True, slots=True)
class Step:
    """One stretch of a critical path.

    Attributes:
        process: Whose.
        op: Index of the op in its program, or None for what lies between ops.
        execution: Of which execution; it may be another that was in the way.
        kind: What it was.
        start_ns: When it began.
        end_ns: When it ended.
        text: For people: ``a1 (Stage).fwd``.
    """

    process: str
    op: int | None
    execution: int
    kind: Kind
    start_ns: int
    end_ns: int
    text: str

    @property
    def duration_ns(self) -> int:
        """How long it lasted."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class PathShare:
    """How much of a long path one kind of time of one op makes up.

    Attributes:
        process: Whose.
        op: Index of the op in its program, or None for what lies between ops.
        kind: What it was.
        total_ns: How long, over all executions.
        share: Of the whole path, from 0 to 1.
        text: For people.
    """

    process: str
    op: int | None
    kind: Kind
    total_ns: int
    share: float
    text: str


@dataclass(frozen=True)
class SteadyPath:
    """The path from the last completion back to the first submission, through all executions.

    Attributes:
        start_ns: The first submission.
        end_ns: The last completion.
        shares: What it is made of, most first; they add up to it.
        bottleneck: The op with the largest part in it, all its kinds together: what to make faster
            first. None if the path is empty, or most of it unknown.
        bottleneck_share: How much of the path that is, from 0 to 1.
        is_whole: Whether the walk came to the first submission.
    """

    start_ns: int
    end_ns: int
    shares: tuple[PathShare, ...]
    bottleneck: PathShare | None
    bottleneck_share: float
    is_whole: bool


def critical_path(graph: GraphTrace, execution: int) -> tuple[Step, ...]:
    """Return what an execution took its latency for, in the order of time.

    The steps follow each other without a gap and add up to the latency. If the trace does not hold
    all of them, the first one is an IDLE step without an op, with a text that says so.

    Args:
        graph: The graph.
        execution: Index of the execution. The path of one whose submission or completion is not in
            the trace is empty.
    """
    return Paths(graph).of(execution)


def text_of(graph: GraphTrace, lane: Lane, op: int) -> str:
    """Return the name of an op for people: ``a1 (Stage).fwd``, ``driver write c0``."""
    ops = graph.program(lane).ops
    if not 0 <= op < len(ops):
        return f"{lane.label} op {op}"
    name = name_of(ops[op], actor_labels(graph.plan))
    method = getattr(ops[op], "method", None)
    return f"{lane.label} {name}" if method is None else f"{lane.label}.{method}"


class Paths:
    """The critical paths of a graph: links between all its events, made once.

    Args:
        graph: The graph.
        executions: Those of the graph, if they are at hand.
    """

    def __init__(self, graph: GraphTrace, executions: Executions | None = None) -> None:
        self._graph = graph
        self.executions = executions_of(graph) if executions is None else executions
        self._links = _Links(graph)

    def of(self, execution: int) -> tuple[Step, ...]:
        """Return the path of one execution; see ``critical_path``."""
        walk = self._walk_of(execution)
        if walk is None:
            return ()
        kept = np.flatnonzero(walk.start < walk.end)[::-1]
        links = self._links
        steps = []
        for at in kept.tolist():
            event, kind = int(walk.event[at]), Kind(int(walk.kind[at]))
            lane = self._graph.lanes[int(links.lane[event])]
            op, is_between = int(links.op[event]), bool(walk.is_between[at])
            text = self._text(lane, op, is_between, bool(walk.is_unknown[at]))
            steps.append(
                Step(
                    process=lane.process,
                    op=None if is_between else op,
                    execution=int(links.execution[event]),
                    kind=kind,
                    start_ns=int(walk.start[at]),
                    end_ns=int(walk.end[at]),
                    text=text,
                )
            )
        return tuple(steps)

    def events_of(self, execution: int) -> list[tuple[int, int]]:
        """Return the lane and row of each event on the path of an execution, from its end."""
        walk = self._walk_of(execution)
        if walk is None:
            return []
        links, chain = self._links, list(dict.fromkeys(walk.event.tolist()))
        return [(int(links.lane[event]), int(links.row[event])) for event in chain]

    def steady(self) -> SteadyPath | None:
        """Return the path through all executions; None if the trace holds no whole stretch."""
        first, last = self.executions.first_submission_ns, self.executions.last_completion_ns
        if first is None or last is None or last <= first:
            return None
        at = int(np.argmax(self.executions.completed_ns))
        event = self._completion(int(self.executions.index[at]))
        if event == _NONE:
            return None
        walk = self._links.walk(event, last, first)
        return self._steady(walk, first, last)

    def _walk_of(self, execution: int) -> _Walk | None:
        executions = self.executions
        at = int(np.searchsorted(executions.index, execution))
        if at == len(executions) or executions.index[at] != execution:
            return None
        begun, over = int(executions.submitted_ns[at]), int(executions.completed_ns[at])
        event = self._completion(execution)
        if UNSEEN in (begun, over) or over <= begun or event == _NONE:
            return None
        return self._links.walk(event, over, begun)

    def _completion(self, execution: int) -> int:
        """Return the event that completed an execution, as ``executions_of`` has it."""
        links, found = self._links, []
        for op in self._graph.plan.program(DRIVER).ops:
            if isinstance(op, Read):
                event = links.written(op.channel, execution)
                found.append(links.read(op.channel, DRIVER, execution) if event < 0 else event)
        ends = [int(links.bounds[event, 3]) for event in found if event >= 0]
        return max(found, key=lambda event: links.bounds[event, 3]) if ends else _NONE

    def _steady(self, walk: _Walk, first: int, last: int) -> SteadyPath:
        graph, links = self._graph, self._links
        length = walk.end - walk.start
        places = max((len(program.ops) for program in graph.plan.programs), default=0) + 3
        op = np.minimum(links.op[walk.event], places - 3)
        op = np.where(walk.is_unknown, places - 1, np.where(walk.is_between, places - 2, op))
        code = (links.lane[walk.event] * places + op) * len(Kind) + walk.kind
        sums = np.bincount(code, weights=length).astype(np.int64)
        shares = []
        for each in np.flatnonzero(sums).tolist():
            place, kind = divmod(each, len(Kind))
            number, at = divmod(place, places)
            lane, is_between = graph.lanes[number], at >= places - 2
            shares.append(
                PathShare(
                    process=lane.process,
                    op=None if is_between else at,
                    kind=Kind(kind),
                    total_ns=int(sums[each]),
                    share=int(sums[each]) / (last - first),
                    text=self._text(lane, at, is_between, at == places - 1),
                )
            )
        shares.sort(key=lambda share: -share.total_ns)
        by_place: dict[tuple[str, str], list[PathShare]] = {}
        for share in shares:
            by_place.setdefault((share.process, share.text), []).append(share)
        most = max(by_place.values(), key=_total, default=[])
        is_whole = not bool(walk.is_unknown.any() and length[walk.is_unknown].sum())
        known = most[0] if most and most[0].text != LOST else None
        return SteadyPath(
            start_ns=first,
            end_ns=last,
            shares=tuple(shares),
            bottleneck=known,
            bottleneck_share=_total(most) / (last - first) if known else 0.0,
            is_whole=is_whole,
        )

    def _text(self, lane: Lane, op: int, is_between: bool, is_unknown: bool) -> str:
        if is_unknown:
            return LOST
        if is_between:
            what = "your code between its ops" if lane.process == DRIVER else "between its ops"
            return f"{lane.label}: {what}"
        return text_of(self._graph, lane, op)


def _total(shares: Sequence[PathShare]) -> int:
    return sum(share.total_ns for share in shares)


# --- links --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Walk:
    """Stretches of a path as columns, from its end; some may be empty.

    Attributes:
        event: Whose stretch.
        kind: A ``Kind``.
        start: When it begins.
        end: When it ends.
        is_between: It lies before the event, outside any.
        is_unknown: What was there is not in the trace.
    """

    event: _Indexes
    kind: _Indexes
    start: Times
    end: Times
    is_between: npt.NDArray[np.bool_]
    is_unknown: npt.NDArray[np.bool_]


class _Links:
    """All events of a graph's ops in one numbering, lane by lane, by their ends; and their links.

    Attributes:
        lane: The lane of each.
        row: Its index in ``lane.events``.
        op: Its op.
        execution: Its execution.
        bounds: Of its parts, [n, 4].
        before: The event that it hangs on, or -1.
        entered: From when on it no longer hung on that: the end of its wait, or its start.
        follows: Whether that is an event of another process, or of its lane.
    """

    def __init__(self, graph: GraphTrace) -> None:
        self._graph = graph
        rows, shapes, bounds, events = [], [], [], []
        for lane in graph.lanes:
            row = np.flatnonzero(lane.events["op"] < SPAN_BASE)
            order = np.lexsort((row, lane.events["start_ns"][row], lane.events["end_ns"][row]))
            rows.append(row[order])
            events.append(lane.events[row[order]])
            shape, bound = bounds_of(graph.program(lane), events[-1])
            shapes.append(shape)
            bounds.append(bound)
        counts = [len(row) for row in rows]
        self._offsets = np.concatenate(([0], np.cumsum(counts))).tolist()
        self.lane = np.repeat(np.arange(len(counts)), counts)
        self.row = np.concatenate(rows)
        self.op = np.concatenate([each["op"] for each in events]).astype(np.int64)
        self.execution = np.concatenate([each["execution"] for each in events])
        self.bounds = np.concatenate(bounds)
        self._shape = np.concatenate(shapes)
        self._waited = np.concatenate([_waited(*each) for each in zip(shapes, bounds, strict=True)])
        self._peer = np.concatenate([each["peer"] for each in events])
        self._writes, self._reads = self._ends()
        self._link(events)

    def written(self, channel: str, execution: int) -> int:
        """Return the Write of a channel and execution, or -1."""
        return int(self._writes[channel].at(np.array([execution]))[0])

    def read(self, channel: str, process: str, execution: int) -> int:
        """Return a process's Read of a channel and execution, or -1."""
        return int(self._reads[channel, process].at(np.array([execution]))[0])

    def _ends(self) -> tuple[dict[str, _Table], dict[tuple[str, str], _Table]]:
        """Index the Writes of each channel, and its Reads by each process, by execution."""
        writes: dict[str, _Table] = {}
        reads: dict[tuple[str, str], _Table] = {}
        for number, lane in enumerate(self._graph.lanes):
            first, last = self._offsets[number : number + 2]
            order = np.argsort(self.op[first:last], kind="stable") + first
            ops = self._graph.program(lane).ops
            bounds = np.searchsorted(self.op[order], np.arange(len(ops) + 1))
            for at, op in enumerate(ops):
                if isinstance(op, Read | Write):
                    event = order[bounds[at] : bounds[at + 1]]
                    table = _Table(self.execution[event], event)
                    if isinstance(op, Read):
                        reads[op.channel, lane.process] = table
                    else:
                        writes[op.channel] = table
        return writes, reads

    def _link(self, events: Sequence[Events]) -> None:
        start = self.bounds[:, 0]
        self.before = np.full(len(start), _NONE)
        self.entered = start.copy()
        self.follows = np.zeros(len(start), bool)
        self._is_lost = np.zeros(len(start), bool)
        for number, lane in enumerate(self._graph.lanes):
            self._link_lane(number, lane)
        for channel in self._graph.plan.channels:
            if channel.id in self._writes:
                for reader in channel.readers:
                    if (channel.id, reader) in self._reads:
                        self._link_reads(channel.id, reader)
                self._link_writes(channel.id, channel.readers, channel.slots)

    def _link_lane(self, number: int, lane: Lane) -> None:
        """Link each event to the one of its lane that ended last before it began."""
        first, last = self._offsets[number : number + 2]
        start, end = self.bounds[first:last, 0], self.bounds[first:last, 3]
        own = np.arange(last - first)
        before = np.minimum(np.searchsorted(end, start, side="right"), own) - 1
        if lane.lost and lane.process != DRIVER:
            # An actor's events follow each other without a gap: what is missing was lost.
            is_lost = (before >= 0) & (end[before] < start)
            self._is_lost[first:last] = is_lost
            before = np.where(is_lost, _NONE, before)
        self.before[first:last] = np.where(before >= 0, before + first, _NONE)

    def _link_reads(self, channel: str, reader: str) -> None:
        event = self._reads[channel, reader].event
        event = event[self._waited[event] > 0]
        self._hang(event, self._writes[channel].at(self.execution[event]), self.bounds[event, 1])

    def _link_writes(self, channel: str, readers: Sequence[str], slots: int) -> None:
        event = self._writes[channel].event
        # The first frames find the channel empty.
        event = event[(self._waited[event] > 0) & (self.execution[event] >= slots)]
        wanted = self.execution[event] - slots
        of_readers = [(channel, reader) for reader in readers]
        found = np.array(
            [self._reads[each].at(wanted) for each in of_readers if each in self._reads]
        )
        if not found.size:
            return
        ends = np.where(found >= 0, self.bounds[found, 3], UNSEEN)
        slowest = np.argmax(ends, axis=0)
        at = np.arange(len(event))
        # Where the event says who was waited for, its end is what counts.
        is_peer = (self.lane[found] == self._peer[event]) & (found >= 0)
        slowest = np.where(is_peer.any(axis=0), np.argmax(is_peer, axis=0), slowest)
        self._hang(event, found[slowest, at], self.bounds[event, 2])

    def _hang(self, event: _Indexes, on: _Indexes, until: Times) -> None:
        """Hang events whose wait ended at ``until`` on others, where those explain the wait."""
        is_missing = on < 0
        self.before[event[is_missing]] = _NONE
        self._is_lost[event[is_missing]] = True
        begun = np.where(self._shape[event] == READ, self.bounds[event, 0], self.bounds[event, 1])
        explains = ~is_missing & (self.bounds[on, 3] > begun) & (self.bounds[on, 0] < until)
        chosen = event[explains]
        self.before[chosen] = on[explains]
        self.entered[chosen] = until[explains]
        self.follows[chosen] = True
        self._is_lost[chosen] = False
        lost = event[is_missing]
        self.entered[lost] = until[is_missing]

    def walk(self, event: int, end_ns: int, stop_ns: int) -> _Walk:
        """Follow the links from an event until ``stop_ns``."""
        chain = np.array(self._chain(event, stop_ns))
        bounds, entered = self.bounds[chain], self.entered[chain]
        # The time on the path goes down: from where each event was left towards where it is entered
        # the next is left no later than it ended.
        left = np.minimum(bounds[:, 3], np.concatenate(([end_ns], entered[:-1])))
        left = np.maximum(np.minimum.accumulate(left), stop_ns)
        came = np.minimum(np.maximum(entered, stop_ns), left)
        following = np.concatenate((left[1:], [stop_ns]))
        count = len(chain)
        start, end = np.empty((count, 4), np.int64), np.empty((count, 4), np.int64)
        for part in range(3):  # from the end
            start[:, part] = np.maximum(bounds[:, 2 - part], came)
            end[:, part] = np.maximum(np.minimum(bounds[:, 3 - part], left), start[:, part])
        start[:, 3], end[:, 3] = following, came
        kind = np.empty((count, 4), np.int64)
        kind[:, :3] = KINDS[self._shape[chain]][:, ::-1]
        kind[:, 3] = np.where(self.follows[chain], Kind.WAITING, Kind.IDLE)
        is_between = np.zeros((count, 4), bool)
        is_between[:, 3] = ~self.follows[chain]
        is_unknown = np.zeros((count, 4), bool)
        is_unknown[-1, 3] = True
        kind[-1, 3], is_between[-1, 3] = Kind.IDLE, True
        return _Walk(
            event=np.repeat(chain, 4),
            kind=kind.ravel(),
            start=start.ravel(),
            end=end.ravel(),
            is_between=is_between.ravel(),
            is_unknown=is_unknown.ravel(),
        )

    def _chain(self, event: int, stop_ns: int) -> list[int]:
        before, entered = self.before.item, self.entered.item
        chain = []
        # Clocks that disagree could make events hang on each other in a circle.
        for _ in range(len(self.before)):
            chain.append(event)
            if entered(event) <= stop_ns:
                break
            event = before(event)
            if event < 0:
                break
        return chain


class _Table:
    """Which event is that of an execution; of several the last.

    Args:
        execution: The execution of each.
        event: The events.
    """

    def __init__(self, execution: _Indexes, event: _Indexes) -> None:
        order = np.argsort(execution, kind="stable")
        self._execution = execution[order]
        self.event = event[order]

    def at(self, execution: _Indexes) -> _Indexes:
        """Return the event of each of these executions, or -1."""
        if not len(self.event):
            return np.full(len(execution), _NONE)
        at = np.searchsorted(self._execution, execution, side="right") - 1
        found: _Indexes = np.where(self._execution[at] == execution, self.event[at], _NONE)
        return found


def _waited(shape: _Indexes, bounds: Times) -> Times:
    """Return what each event waited; where it lies depends on its shape."""
    first = np.where(shape == WRITE, 1, 0)
    at = np.arange(len(shape))
    waited: Times = bounds[at, first + 1] - bounds[at, first]
    return waited
