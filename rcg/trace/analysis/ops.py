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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rcg.ir.ids import DRIVER
from rcg.ir.ops import Collective
from rcg.trace.analysis.critical import group_names, text_of
from rcg.trace.analysis.executions import UNSEEN, Executions, by_execution
from rcg.trace.analysis.intervals import Ints, window
from rcg.trace.analysis.parts import COLLECTIVE, READ, WRITE, bounds_of
from rcg.trace.analysis.rendezvous import groups_of, with_waits
from rcg.trace.analysis.spread import spread_of
from rcg.trace.model import SPAN_BASE, GraphTrace, LaneTrace

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
        p99_ns: 99th percentile of its own time.
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
    graph: GraphTrace,
    start_ns: int | None = None,
    end_ns: int | None = None,
    *,
    by_method: bool = False,
    known: Sequence[OpTimes] = (),
) -> tuple[OpTimes, ...]:
    """Return the times of each op of a graph that ran, in the order of the programs.

    Args:
        graph: The graph.
        start_ns: Time before this is cut off; None cuts nothing.
        end_ns: Time after this is cut off; None cuts nothing.
        by_method: Whether all calls of a method by an actor are one, with the first one's ``op``;
            so are its Reads, and its Writes, if they are many.
        known: The times of each op in the same window, which save time.
    """
    found: list[OpTimes] = []
    for lane in graph.lanes:
        names = group_names(graph, lane)
        alike = np.arange(len(names))
        if known and len(set(names)) == len(names):
            found += [each for each in known if each.process == lane.process]
            continue
        if by_method:
            alike = np.array([names.index(name) for name in names], np.int64)
        else:
            names = [text_of(graph, lane, at) for at in range(len(names))]
        found += _of_lane(graph, lane, names, alike, *window(start_ns, end_ns))
    return tuple(found)


def has_alike(graph: GraphTrace) -> bool:
    """Return whether ``by_method`` makes a difference."""
    every = (group_names(graph, lane) for lane in graph.lanes)
    return any(len(set(names)) < len(names) for names in every)


def _of_lane(
    graph: GraphTrace,
    lane: LaneTrace,
    names: Sequence[str],
    alike: Ints,
    first_ns: int,
    last_ns: int,
) -> Iterator[OpTimes]:
    program = graph.program(lane)
    events = with_waits(graph, lane)
    is_within = (events["end_ns"] >= first_ns) & (events["start_ns"] <= last_ns)
    events = events[is_within & (events["op"] < min(len(program.ops), SPAN_BASE))]
    shape, bounds = bounds_of(program, events)
    # The rate uses the whole event: when in the event the bytes were moved is not known.
    groups = groups_of(graph.plan, lane.process)
    receives = np.array([group is not None for group in groups] or [False])
    receives = receives[np.minimum(events["op"], len(receives) - 1)] & (shape == READ)
    moving = np.where((shape == WRITE) | (shape == COLLECTIVE), bounds[:, 3] - bounds[:, 2], 0)
    moving = np.where(receives, bounds[:, 2] - bounds[:, 1], moving)
    bounds = np.clip(bounds, first_ns, last_ns)
    length = np.diff(bounds, axis=1)
    at = np.arange(len(events))
    waited = length[at, np.where(shape == WRITE, 1, 0)]
    own = bounds[:, 3] - bounds[:, 0] - waited
    op, (own, waited, moving, size, start) = by_execution(
        events["op"].astype(np.int64),
        events["execution"],
        (own, waited, moving, events["bytes"], bounds[:, 0]),
    )
    op = alike[op] if len(op) else op
    in_time = own  # by op and execution; alike ops are one after the other in each
    if len(set(alike.tolist())) < len(alike):
        in_time = own[np.lexsort((start, op))]
    order = np.lexsort((own, op))
    own, waited, moving, size = own[order], waited[order], moving[order], size[order]
    first = np.searchsorted(op[order], np.arange(len(program.ops) + 1))
    ran = np.flatnonzero(np.diff(first))
    begin, end = first[ran], first[ran + 1]
    if not len(ran):
        return
    medians, highest = (_quantiles(own, begin, end, share) for share in (0.5, 0.99))
    totals = [np.add.reduceat(each, begin).tolist() for each in (own, waited, moving, size)]
    texts: dict[str, int] = {}
    for number, each in enumerate(ran.tolist()):
        text = names[each]
        texts[text] = texts.get(text, 0) + 1
        total, wait, moved, count = (values[number] for values in totals)
        yield OpTimes(
            process=lane.process,
            op=each,
            text=text if texts[text] == 1 else f"{text} ({texts[text]})",
            kind=program.ops[each].word,
            count=int(end[number] - begin[number]),
            median_ns=float(medians[number]),
            p99_ns=float(highest[number]),
            total_ns=total,
            waited_ns=wait,
            bytes=count,
            gb_per_s=_rate(count, moved),
            group=groups[each],
            spread_ns=spread_of(in_time[begin[number] : end[number]]),
        )


def _rate(size: int, took_ns: int) -> float | None:
    rate = size / took_ns if size and took_ns else None
    return None if rate is None or rate > MAX_GB_PER_S else rate


def _quantiles(values: Ints, begin: Ints, end: Ints, share: float) -> npt.NDArray[np.float64]:
    """Return an interpolated quantile of each range of sorted values, as ``np.percentile``."""
    place = begin + (end - begin - 1) * share
    below = np.floor(place).astype(np.int64)
    above = np.minimum(below + 1, end - 1)
    low, high = values[below].astype(np.float64), values[above].astype(np.float64)
    found: npt.NDArray[np.float64] = low + (place - below) * (high - low)
    return found


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


def stall_of(graph: GraphTrace, executions: Executions, start_ns: int, end_ns: int) -> Stall | None:
    """Return the op on which a graph hung at the end of its trace; None if it did not hang.

    Of several ops it is the one that most processes wait for, then the one that began first.
    """
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
        stall = _stall(graph, lane, start_ns, end_ns, waiting)
        if stall is None or not (stall.waiting or stall.execution in in_flight):
            continue
        if stall.lasted_ns > longest:
            found.append(stall)
    return max(found, key=lambda each: (len(each.waiting), -each.since_ns), default=None)


def _stall(
    graph: GraphTrace, lane: LaneTrace, start_ns: int, end_ns: int, waiting: tuple[str, ...]
) -> Stall | None:
    now = lane.open
    if now is None or not 0 <= now.op < len(graph.program(lane).ops):
        return None
    lasted = end_ns - now.since_ns
    events = lane.events[lane.events["op"] == now.op]
    own = events["end_ns"] - events["start_ns"] - events["waited_ns"]
    if lasted <= _LONGER * int(own.max(initial=0)) or lasted <= 0:
        return None
    if not waiting and not len(events):
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
