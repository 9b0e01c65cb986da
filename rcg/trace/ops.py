# SPDX-License-Identifier: Apache-2.0
"""What each op took, over all executions of a trace.

An op's own time is what it lasted without waiting: the method of a call, coding and moving bytes of
a Read or Write. In a driver an op may have several events in an execution (its inputs are encoded
before there is room for them, its results decoded when somebody wants them): they are one here.

This room must know neither executions nor paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rcg.trace.critical import text_of
from rcg.trace.names import kind_of
from rcg.trace.parts import WRITE, bounds_of
from rcg.trace.trace import SPAN_BASE, GraphTrace, Lane

__all__ = ["OpTimes", "ops_of"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OpTimes:
    """What one op took; times are in ns.

    Attributes:
        process: Whose op.
        op: Its index in the program.
        text: Its name for people, one of a kind in its graph.
        kind: What it is: ``call``, ``read``, ``write``, ...
        count: In how many executions it is in the trace.
        median_ns: Of its own time.
        p99_ns: Of its own time: all but the slowest hundredth took no longer.
        total_ns: Of its own time.
        waited_ns: What it waited in all.
        bytes: What it moved in all.
        gb_per_s: Of a Write, bytes by the time of moving them, without coding. None for others: a
            reader does not move what it reads, it looks at it where it lies.
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


def ops_of(graph: GraphTrace) -> tuple[OpTimes, ...]:
    """Return what each op of a graph took, in the order of its programs; only those that ran."""
    return tuple(each for lane in graph.lanes for each in _of_lane(graph, lane))


def _of_lane(graph: GraphTrace, lane: Lane) -> Iterator[OpTimes]:
    program = graph.program(lane)
    events = lane.events[lane.events["op"] < SPAN_BASE]
    events = events[events["op"] < len(program.ops)]
    shape, bounds = bounds_of(program, events)
    length = np.diff(bounds, axis=1)
    at = np.arange(len(events))
    waited = length[at, np.where(shape == WRITE, 1, 0)]
    own = bounds[:, 3] - bounds[:, 0] - waited
    moving = np.where(shape == WRITE, length[:, 2], 0)
    op, (own, waited, moving, size) = _by_execution(
        events["op"].astype(np.int64), events["execution"], (own, waited, moving, events["bytes"])
    )
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
        text = text_of(graph, lane, each)
        texts[text] = texts.get(text, 0) + 1
        total, wait, moved, count = (values[number] for values in totals)
        yield OpTimes(
            process=lane.process,
            op=each,
            text=text if texts[text] == 1 else f"{text} ({texts[text]})",
            kind=kind_of(program.ops[each]),
            count=int(end[number] - begin[number]),
            median_ns=float(medians[number]),
            p99_ns=float(highest[number]),
            total_ns=total,
            waited_ns=wait,
            bytes=count,
            gb_per_s=count / moved if count and moved else None,
        )


def _by_execution(op: Ints, execution: Ints, figures: tuple[Ints, ...]) -> tuple[Ints, list[Ints]]:
    """Add up the figures of events of one op in one execution; returns the op of each sum."""
    order = np.lexsort((execution, op))
    op, execution = op[order], execution[order]
    is_first = np.ones(len(op), bool)
    is_first[1:] = (np.diff(op) != 0) | (np.diff(execution) != 0)
    first = np.flatnonzero(is_first)
    if len(first) == len(op):
        return op, [each[order] for each in figures]
    return op[first], [np.add.reduceat(each[order], first) for each in figures]


def _quantiles(
    values: Ints,
    begin: Ints,
    end: Ints,
    share: float,
) -> npt.NDArray[np.float64]:
    """Return an interpolated quantile of each stretch of sorted values, as ``np.percentile``."""
    place = begin + (end - begin - 1) * share
    below = np.floor(place).astype(np.int64)
    above = np.minimum(below + 1, end - 1)
    low, high = values[below].astype(np.float64), values[above].astype(np.float64)
    found: npt.NDArray[np.float64] = low + (place - below) * (high - low)
    return found
