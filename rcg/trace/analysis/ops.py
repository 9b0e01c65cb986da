# SPDX-License-Identifier: Apache-2.0
"""The times of each op, over all executions of a trace.

An op's own time is its duration without waiting: the method of a call, or coding and moving bytes
of a Read, Write or collective. An op of a driver may have several events in an execution, because
inputs are encoded before there is room for them and results are decoded when they are fetched. They
are added.

This room must know neither executions nor paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rcg.trace.analysis.critical import text_of
from rcg.trace.analysis.executions import by_execution
from rcg.trace.analysis.parts import COLLECTIVE, READ, WRITE, bounds_of
from rcg.trace.analysis.rendezvous import group_of, with_waits
from rcg.trace.model import SPAN_BASE, GraphTrace, LaneTrace

Ints = npt.NDArray[np.int64]

_MAX_GB_PER_S: Final = 100.0
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


def ops_of(
    graph: GraphTrace, start_ns: int | None = None, end_ns: int | None = None
) -> tuple[OpTimes, ...]:
    """Return the times of each op of a graph that ran, in the order of the programs.

    Args:
        graph: The graph.
        start_ns: Time before this is cut off; None cuts nothing.
        end_ns: Time after this is cut off; None cuts nothing.
    """
    whole = np.iinfo(np.int64)
    first = whole.min if start_ns is None else start_ns
    last = whole.max if end_ns is None else end_ns
    return tuple(each for lane in graph.lanes for each in _of_lane(graph, lane, first, last))


def _of_lane(graph: GraphTrace, lane: LaneTrace, first_ns: int, last_ns: int) -> Iterator[OpTimes]:
    program = graph.program(lane)
    events = with_waits(graph, lane)
    is_within = (events["end_ns"] >= first_ns) & (events["start_ns"] <= last_ns)
    events = events[is_within & (events["op"] < min(len(program.ops), SPAN_BASE))]
    shape, bounds = bounds_of(program, events)
    # The rate uses the whole event: when in the event the bytes were moved is not known.
    groups = [group_of(graph.plan, lane.process, at) for at in range(len(program.ops))]
    receives = np.array([group is not None for group in groups] or [False])
    receives = receives[np.minimum(events["op"], len(receives) - 1)] & (shape == READ)
    moving = np.where((shape == WRITE) | (shape == COLLECTIVE), bounds[:, 3] - bounds[:, 2], 0)
    moving = np.where(receives, bounds[:, 2] - bounds[:, 1], moving)
    bounds = np.clip(bounds, first_ns, last_ns)
    length = np.diff(bounds, axis=1)
    at = np.arange(len(events))
    waited = length[at, np.where(shape == WRITE, 1, 0)]
    own = bounds[:, 3] - bounds[:, 0] - waited
    op, (own, waited, moving, size) = by_execution(
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
            kind=program.ops[each].word,
            count=int(end[number] - begin[number]),
            median_ns=float(medians[number]),
            p99_ns=float(highest[number]),
            total_ns=total,
            waited_ns=wait,
            bytes=count,
            gb_per_s=_rate(count, moved),
            group=groups[each],
        )


def _rate(size: int, took_ns: int) -> float | None:
    rate = size / took_ns if size and took_ns else None
    return None if rate is None or rate > _MAX_GB_PER_S else rate


def _quantiles(
    values: Ints,
    begin: Ints,
    end: Ints,
    share: float,
) -> npt.NDArray[np.float64]:
    """Return an interpolated quantile of each range of sorted values, as ``np.percentile``."""
    place = begin + (end - begin - 1) * share
    below = np.floor(place).astype(np.int64)
    above = np.minimum(below + 1, end - 1)
    low, high = values[below].astype(np.float64), values[above].astype(np.float64)
    found: npt.NDArray[np.float64] = low + (place - below) * (high - low)
    return found
