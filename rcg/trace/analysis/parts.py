# SPDX-License-Identifier: Apache-2.0
"""Parts: what a process did at each time. Each event is split into parts of one kind of time.

```
Read        | waiting for the frame | communication | serialization |
Write       | serialization | waiting for room | communication |
collective  | waiting for the other ranks | serialization | communication |
Call        | waiting for another graph's method | compute |          and every other op
```

A gate's Pass is like a Read: it waits for a frame from another node, and publishes it.

A Write of tensors waits until its readers have taken the frame, and a Read of tensors until the
writer begins to send (``rendezvous.with_waits``).

The parts of an event add up to its duration. Times that contradict each other are cut to fit:
waiting and coding together last at most as long as the event. Events of a lane overlap if several
threads of a driver use its graph. Then each point in time belongs to one part: work comes before
waiting, and then the event that began first comes before others.

This room must know neither views nor figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from rcg.ir.ops import Collective, Op, Pass
from rcg.ir.programs import Program
from rcg.trace.analysis.intervals import Ints, Times, disjoint, window, without
from rcg.trace.analysis.rendezvous import with_waits
from rcg.trace.model import EVENT, SPAN_BASE, Events, GraphTrace, LaneTrace, OpenOp


class TimeKind(IntEnum):
    """What a process spent a part of its time on.

    COMPUTE: the user's methods. COMMUNICATION: moving bytes. SERIALIZATION: turning values into
    bytes and back. WAITING: waiting for another process. IDLE: nothing to do.
    """

    COMPUTE = 0
    COMMUNICATION = 1
    SERIALIZATION = 2
    WAITING = 3
    IDLE = 4


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of a lane's events, by start. None is empty, and none overlaps another.

    Attributes:
        row: The index of its event in ``events_of(lane, end_ns)``, which is ``lane.events`` and,
            for a lane with an open op, one more row at the end.
        kind: Its ``TimeKind``; never IDLE, which is the time between parts.
        start_ns: When each begins.
        end_ns: When each ends.
    """

    row: Ints
    kind: npt.NDArray[np.uint8]
    start_ns: Times
    end_ns: Times

    def __len__(self) -> int:
        return len(self.row)

    @property
    def duration_ns(self) -> Times:
        """The duration of each part."""
        return self.end_ns - self.start_ns

    def clipped(self, start_ns: int, end_ns: int) -> Parts:
        """Return the parts inside a window, cut at its ends."""
        start = np.maximum(self.start_ns, start_ns)
        end = np.minimum(self.end_ns, end_ns)
        return Parts(self.row, self.kind, start, end).where(start < end)

    def where(self, kept: npt.NDArray[np.bool_]) -> Parts:
        """Return some of the parts."""
        return Parts(self.row[kept], self.kind[kept], self.start_ns[kept], self.end_ns[kept])


READ: Final = 0
WRITE: Final = 1
OTHER: Final = 2
COLLECTIVE: Final = 3

KINDS: Final = np.array(
    [
        (TimeKind.WAITING, TimeKind.COMMUNICATION, TimeKind.SERIALIZATION),
        (TimeKind.SERIALIZATION, TimeKind.WAITING, TimeKind.COMMUNICATION),
        (TimeKind.WAITING, TimeKind.COMPUTE, TimeKind.COMPUTE),
        (TimeKind.WAITING, TimeKind.SERIALIZATION, TimeKind.COMMUNICATION),
    ],
    np.uint8,
)
"""The kinds of the three parts of an event, by its shape."""


def bounds_of(program: Program, events: Events) -> tuple[Ints, Times]:
    """Return the shapes of events, and where their parts begin and end.

    Args:
        program: The program of their process.
        events: Events of ops, without spans.

    Returns:
        READ, WRITE, OTHER or COLLECTIVE for each event [n], and its four bounds [n, 4]. Part ``i``
        of an event has the kind ``KINDS[shape, i]`` and lasts from bound ``i`` to bound ``i + 1``.
    """
    op = np.minimum(events["op"], len(program.ops))
    start = events["start_ns"].astype(np.int64)
    length = np.maximum(events["end_ns"] - start, 0)
    waited = np.clip(events["waited_ns"], 0, length)
    coded = np.clip(events["coded_ns"], 0, length - waited)
    shape = shapes_of(program)[op]
    bounds = np.empty((len(events), 4), np.int64)
    bounds[:, 0] = start
    bounds[:, 1] = start + np.where(shape == WRITE, coded, waited)
    bounds[:, 2] = start + np.where(shape == READ, length - coded, waited + coded)
    bounds[:, 3] = start + length
    np.copyto(bounds[:, 2], bounds[:, 3], where=shape == OTHER)
    return shape, bounds


def shapes_of(program: Program) -> Ints:
    """Return the shape of each op of a program, READ for example, and one more OTHER at the end.

    The last one is for ops that the program does not have: ``shapes[np.minimum(op, len(ops))]``.
    """
    return np.array([_shape(op) for op in program.ops] + [OTHER])


def _shape(op: Op) -> int:
    if isinstance(op, Collective):
        return COLLECTIVE
    if op.values_in or isinstance(op, Pass):
        return READ
    return WRITE if op.values_out else OTHER


def events_of(lane: LaneTrace, end_ns: int) -> Events:
    """Return a lane's events and, as the last row, its open op if it has one.

    Args:
        lane: The lane.
        end_ns: When the open op is assumed to end, usually the end of the trace.
    """
    now = lane.open
    if now is None:
        return lane.events
    end = max(end_ns, now.since_ns)
    waited = max(end - max(now.waiting_since_ns, now.since_ns), 0) if now.waiting_since_ns else 0
    row = (now.since_ns, end, waited, 0, now.execution, 0, now.op, now.peer)
    return np.concatenate((lane.events, np.array([row], EVENT)))


def parts_of(
    graph: GraphTrace, lane: LaneTrace, start_ns: int | None = None, end_ns: int | None = None
) -> Parts:
    """Return the parts of a lane's events.

    User spans are left out: they lie inside calls. The op that was open when the trace ended
    (``lane.open``) counts as an event that ends at ``end_ns``.

    Args:
        graph: The lane's graph.
        lane: One of its lanes.
        start_ns: Time before this is cut off; None cuts nothing.
        end_ns: Time after this is cut off. None cuts nothing, and an open op ends with the last
            event of the graph.
    """
    program = graph.program(lane)
    last = last_end_ns(graph) if end_ns is None and lane.open is not None else (end_ns or 0)
    row = np.flatnonzero(lane.events["op"] < SPAN_BASE)
    events = with_waits(graph, lane)
    events = events if len(row) == len(events) else events[row]
    shape, bounds = bounds_of(program, events)
    rows, kinds = np.repeat(row, 3), KINDS[shape].ravel()
    starts, ends = bounds[:, :3].ravel(), bounds[:, 1:].ravel()
    if lane.open is not None:
        more = _open_parts(lane.open, len(lane.events), program, last)
        rows, kinds = np.append(rows, more.row), np.append(kinds, more.kind)
        starts, ends = np.append(starts, more.start_ns), np.append(ends, more.end_ns)
    parts = Parts(rows, kinds, starts, ends).clipped(*window(start_ns, end_ns))
    if len(parts) and (parts.start_ns[1:] < parts.end_ns[:-1]).any():
        return _one_at_a_time(parts)
    return parts


def last_end_ns(graph: GraphTrace) -> int:
    """Return when the last event of a graph ended; 0 if it has none."""
    return max(
        (int(lane.events["end_ns"].max()) for lane in graph.lanes if len(lane.events)), default=0
    )


def _open_parts(now: OpenOp, row: int, program: Program, end_ns: int) -> Parts:
    """Return the parts of an op that had not ended.

    A Read does nothing before it waits, and interrupts its wait now and then. A collective waits
    for one rank after the other. All of their time counts as waiting.
    """
    shape = _shape(program.ops[now.op]) if 0 <= now.op < len(program.ops) else OTHER
    is_waiting = bool(now.waiting_since_ns)
    waiting_since = max(now.waiting_since_ns, now.since_ns) if is_waiting else end_ns
    if is_waiting and shape in (READ, COLLECTIVE):
        waiting_since = now.since_ns
    waiting_since = min(waiting_since, end_ns)
    before = TimeKind.COMPUTE if shape == OTHER else TimeKind.COMMUNICATION
    if is_waiting and shape == WRITE:
        before = TimeKind.SERIALIZATION
    return Parts(
        np.full(2, row),
        np.array([before, TimeKind.WAITING], np.uint8),
        np.array([now.since_ns, waiting_since]),
        np.array([waiting_since, end_ns]),
    )


def _one_at_a_time(parts: Parts) -> Parts:
    is_waiting = parts.kind == TimeKind.WAITING
    work = np.flatnonzero(~is_waiting)
    of, start, end = disjoint(parts.start_ns[work], parts.end_ns[work])
    work = work[of]
    wait = np.flatnonzero(is_waiting)
    of, wait_start, wait_end = disjoint(parts.start_ns[wait], parts.end_ns[wait])
    wait = wait[of]
    of, wait_start, wait_end = without(wait_start, wait_end, start, end)
    index = np.concatenate((work, wait[of]))
    starts, ends = np.concatenate((start, wait_start)), np.concatenate((end, wait_end))
    order = np.argsort(starts, kind="stable")
    index = index[order]
    return Parts(parts.row[index], parts.kind[index], starts[order], ends[order])
