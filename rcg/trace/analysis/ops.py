# SPDX-License-Identifier: Apache-2.0
"""The times of each op, over all executions of a trace, and the op on which a graph hung.

An op's own time is its duration without waiting: the method of a call, or coding and moving bytes
of a Read, Write or collective. An op of a driver may have several events in an execution, because
inputs are encoded before there is room for them and results are decoded when they are fetched. They
are added.

A trace usually ends while ops are running. A running op is a stall if it has lasted longer than any
execution took, and several times longer than any run of the same op that ended. If no run of it
ended, it is a stall if a process waits for it:

```
driver  |write|read 7: waits . . . . . . . . . . . . . .>
a0      |call 7|write|read 8: waits (nothing was submitted: it is idle)
a1      |read 7|call 7 ───────────────────────────────────>   stalled, 1 process waits
                ^ since                            trace ends
```

Waiting is transitive: a process that waits for another also waits for the processes that the other
one waits for. An actor that waits to read an input has nothing to do and waits for no process. What
nobody waits for is no stall if the driver has fetched its execution, or never submitted it: the
actor was only kept from its processor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rcg.ir.ids import DRIVER
from rcg.ir.index import Place, groups_of
from rcg.ir.ops import Call, Collective
from rcg.trace.analysis.critical import group_names, text_of
from rcg.trace.analysis.events import COLLECTIVE, READ, WRITE, EventTable
from rcg.trace.analysis.executions import UNSEEN, Executions
from rcg.trace.analysis.highest import highest
from rcg.trace.analysis.intervals import Ints, Times, window
from rcg.trace.analysis.spread import spread_of
from rcg.trace.model import GraphTrace, LaneTrace

MAX_GB_PER_S: Final = 100.0
"""More than a process can copy. A Write that seems faster did not copy."""


@dataclass(frozen=True, slots=True)
class OpTimes:
    """The times of one op, in ns.

    Attributes:
        process: Its process.
        op: Its index in the program.
        text: Its displayed name, unique in its graph.
        kind: Its kind: ``call``, ``read``, ``write``, ...
        count: Number of executions in which it is in the trace.
        median_ns: Median of its own time.
        p99_ns: 99th percentile of its own time; of fewer than 100 the largest.
        total_ns: Sum of its own time.
        waited_ns: Total time of waiting.
        bytes: Total bytes moved.
        gb_per_s: For a Write, bytes divided by the time of moving them, without coding; for a
            collective and a Read of tensors as well. None for other ops: a reader uses a value
            where it lies and does not move it. Also None if the rate is higher than copying allows:
            a Write that forwards a value, or one that was made in shared memory, copies nothing,
            and a trace shows that only by the rate.
        group: The group over which it exchanges tensors; None if it does not.
        spread_ns: How far the median may be off (``spread.py``); None if it ran too few times.
    """

    process: str
    op: int
    text: str
    kind: str
    count: int
    median_ns: float
    p99_ns: float
    total_ns: int
    waited_ns: int
    bytes: int
    gb_per_s: float | None
    group: str | None = None
    spread_ns: float | None = None


def ops_of(
    table: EventTable,
    start_ns: int | None = None,
    end_ns: int | None = None,
    *,
    by_method: bool = False,
) -> tuple[OpTimes, ...]:
    """Return the times of each op of a graph that ran, in the order of the programs.

    Args:
        table: The events of the graph.
        start_ns: Time before this is cut off; None cuts nothing.
        end_ns: Time after this is cut off; None cuts nothing.
        by_method: Whether all calls of a method by an actor are one, with the first one's ``op``;
            so are its Reads, and its Writes, if they are many.
    """
    found = []
    for lane in table.graph.lanes:
        count = len(table.graph.program(lane).ops)
        names = (
            group_names(table.graph, lane)
            if by_method
            else [text_of(table.graph, lane, at) for at in range(count)]
        )
        groups = groups_of(table.graph.plan, lane.process)
        alike: dict[str, list[int]] = {}
        for at, name in enumerate(names):
            alike.setdefault(name if by_method else f"{name} {at}", []).append(at)
        texts: Counter[str] = Counter()
        for ops in alike.values():
            runs = _runs_of(table, lane.process, ops, groups, *window(start_ns, end_ns))
            if len(runs.own_ns):
                text = names[ops[0]]
                texts[text] += 1
                text = text if texts[text] == 1 else f"{text} ({texts[text]})"
                found.append(_times(table, lane, ops[0], text, groups[ops[0]], runs))
    return tuple(found)


def runs_of(table: EventTable, start_ns: int, end_ns: int) -> dict[Place, Times]:
    """Return the own time of each run of the calls and collectives that ran.

    Time before and after these is cut off, as in ``ops_of``.
    """
    found = {}
    for lane in table.graph.lanes:
        groups = groups_of(table.graph.plan, lane.process)
        for at, op in enumerate(table.graph.program(lane).ops):
            if isinstance(op, Call | Collective):
                runs = _runs_of(table, lane.process, [at], groups, start_ns, end_ns)
                if len(runs.own_ns):
                    found[lane.process, at] = runs.own_ns
    return found


def has_alike(graph: GraphTrace) -> bool:
    """Return whether ``by_method`` makes a difference."""
    every = (group_names(graph, lane) for lane in graph.lanes)
    return any(len(set(names)) < len(names) for names in every)


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs of ops that count as one, as columns by time: an op in one execution each."""

    own_ns: Times
    waited_ns: Times
    moving_ns: Times
    bytes: Ints


def _runs_of(
    table: EventTable,
    process: str,
    ops: Sequence[int],
    groups: Sequence[str | None],
    first_ns: int,
    last_ns: int,
) -> _Runs:
    pieces, starts = [], []
    for op in ops:
        rows = table.rows(process, op)
        is_within = (table.end_ns[rows] >= first_ns) & (table.start_ns[rows] <= last_ns)
        rows = rows if is_within.all() else rows[is_within]
        if not len(rows):
            continue
        bounds, shape = table.bounds[rows], int(table.shape[rows[0]])
        # The rate uses the whole event: when in the event the bytes were moved is not known.
        moving = np.zeros(len(rows), np.int64)
        if shape in (WRITE, COLLECTIVE):
            moving = bounds[:, 3] - bounds[:, 2]
        elif shape == READ and groups[op] is not None:
            moving = bounds[:, 2] - bounds[:, 1]
        clipped: Times = np.clip(bounds, first_ns, last_ns)
        waits = 1 if shape == WRITE else 0
        waited = clipped[:, waits + 1] - clipped[:, waits]
        own = clipped[:, 3] - clipped[:, 0] - waited
        begun, columns = table.sums(rows, (own, waited, moving, table.bytes[rows]))
        pieces.append(columns)
        starts.append(table.start_ns[begun])
    if not pieces:
        return _Runs(*(np.empty(0, np.int64),) * 4)
    joined = [np.concatenate(each) for each in zip(*pieces, strict=True)]
    if len(pieces) > 1:
        order = np.argsort(np.concatenate(starts), kind="stable")
        joined = [each[order] for each in joined]
    return _Runs(*joined)


def _times(
    table: EventTable, lane: LaneTrace, op: int, text: str, group: str | None, runs: _Runs
) -> OpTimes:
    size = int(runs.bytes.sum())
    return OpTimes(
        process=lane.process,
        op=op,
        text=text,
        kind=table.graph.op(lane, op).word,
        count=len(runs.own_ns),
        median_ns=float(np.median(runs.own_ns)),
        p99_ns=highest(runs.own_ns),
        total_ns=int(runs.own_ns.sum()),
        waited_ns=int(runs.waited_ns.sum()),
        bytes=size,
        gb_per_s=_rate(size, int(runs.moving_ns.sum())),
        group=group,
        spread_ns=spread_of(runs.own_ns),
    )


def _rate(size: int, took_ns: int) -> float | None:
    rate = size / took_ns if size and took_ns else None
    return None if rate is None or rate > MAX_GB_PER_S else rate


# --- stalls -------------------------------------------------------------------------------------

_LONGER: Final = 5
"""A stalled op has lasted this many times longer than the longest run of it that ended."""


@dataclass(frozen=True, slots=True)
class Stall:
    """An op that had not ended at the end of the trace, much longer than usual.

    Attributes:
        process: Its process.
        op: Its index in the program.
        text: Its displayed name.
        execution: Index of its execution.
        since_ns: When it began, from the beginning of the trace.
        lasted_ns: Its duration up to the end of the trace.
        usual_ns: Median time of the runs that ended, without waiting; None if none did.
        waiting: Labels of the processes that wait for it, in the order of the lanes.
    """

    process: str
    op: int
    text: str
    execution: int
    since_ns: int
    lasted_ns: int
    usual_ns: float | None
    waiting: tuple[str, ...]


def stall_of(table: EventTable, executions: Executions, start_ns: int, end_ns: int) -> Stall | None:
    """Return the op on which a graph hung at the end of its trace; None if it did not hang.

    Of several ops it is the one that most processes wait for, then the one that began first.
    """
    graph = table.graph
    waits = _waits(graph)
    gates = {gate.id for gate in graph.plan.gates}  # these only wait for what others send
    longest = int(executions.latency_ns.max(initial=0))
    in_flight = set(executions.index[executions.fetched_ns == UNSEEN].tolist())
    found = []
    for lane in graph.lanes:
        if lane.open is None or lane.process in (*waits, *gates, DRIVER):
            continue
        waiting = tuple(
            other.label for other in graph.lanes if lane.process in waits_for(waits, other.process)
        )
        stall = _stall(table, lane, start_ns, end_ns, waiting)
        if stall is None or not (stall.waiting or stall.execution in in_flight):
            continue
        if stall.lasted_ns > longest:
            found.append(stall)
    return max(found, key=lambda each: (len(each.waiting), -each.since_ns), default=None)


def _stall(
    table: EventTable, lane: LaneTrace, start_ns: int, end_ns: int, waiting: tuple[str, ...]
) -> Stall | None:
    graph, now = table.graph, lane.open
    if now is None or not 0 <= now.op < len(graph.program(lane).ops):
        return None
    lasted = end_ns - now.since_ns
    own = table.own_ns[table.rows(lane.process, now.op)]
    if lasted <= _LONGER * int(own.max(initial=0)) or lasted <= 0:
        return None
    if not waiting and not len(own):
        return None
    return Stall(
        process=lane.process,
        op=now.op,
        text=text_of(graph, lane, now.op),
        execution=now.execution,
        since_ns=now.since_ns - start_ns,
        lasted_ns=lasted,
        usual_ns=float(np.median(own)) if len(own) else None,
        waiting=waiting,
    )


def _waits(graph: GraphTrace) -> dict[str, tuple[str, ...]]:
    """Return, for each process that waited at the end, the ones it waited for directly."""
    channels = graph.plan.channels_by_id()
    found: dict[str, tuple[str, ...]] = {}
    for lane in graph.lanes:
        now = lane.open
        ops = graph.program(lane).ops
        if now is None or not now.waiting_since_ns or not 0 <= now.op < len(ops):
            continue
        op = ops[now.op]
        if op.is_call:
            continue  # waiting for a method of another graph is a stall as well
        found[lane.process] = ()
        named = now.peer < len(graph.lanes)
        peer = graph.lanes[now.peer].process if named else ""
        for channel in op.values_in:
            writer = channels[channel].writer
            found[lane.process] = () if writer == DRIVER else (writer,)
        for channel in op.values_out:
            readers = tuple(each for each in channels[channel].readers if each != lane.process)
            found[lane.process] = (peer,) if peer in readers else readers
        if isinstance(op, Collective):
            others = tuple(channels[channel].writer for channel in op.hears)
            found[lane.process] = (peer,) if peer in others else others
    return found


def waits_for(waits: Mapping[str, tuple[str, ...]], process: str) -> set[str]:
    """Return all processes that a process waits for, directly or through others."""
    found: set[str] = set()
    left = list(waits.get(process, ()))
    while left:
        each = left.pop()
        if each not in found:
            found.add(each)
            left += waits.get(each, ())
    return found
