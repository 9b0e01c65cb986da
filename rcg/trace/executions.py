# SPDX-License-Identifier: Apache-2.0
"""When each execution of a graph was submitted, completed and fetched, and what follows from it.

```
driver   |write|                               |read|
actors      | ............ | ........ |write|
         ^ submitted                        ^ completed
         `------------- latency ------------'       ^ fetched
```

A trace may begin or end in the middle of executions, and events may be lost: what was not seen is
``UNSEEN`` and counts for nothing.

This room must know neither shares nor paths.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from rcg.plan import DRIVER, Read, Write
from rcg.trace.intervals import Cover, Times
from rcg.trace.trace import SPAN_BASE, GraphTrace, Lane

__all__ = ["UNSEEN", "Executions", "executions_of"]

UNSEEN: Final = int(np.iinfo(np.int64).min)
"""Stands for a moment that the trace does not hold."""


@dataclass(frozen=True, eq=False)
class Executions:
    """The executions of a graph that a trace holds anything of, by index.

    Attributes:
        index: Their indexes, rising.
        submitted_ns: When the driver's first Write of each began, or ``UNSEEN``.
        completed_ns: When the last of its Writes into channels that the driver reads ended; for a
            channel whose Write is not in the trace, when the driver's Read ended. Or ``UNSEEN``.
        fetched_ns: When the driver's last Read of each ended, or ``UNSEEN``.
    """

    index: npt.NDArray[np.int64]
    submitted_ns: Times
    completed_ns: Times
    fetched_ns: Times

    def __len__(self) -> int:
        return len(self.index)

    @property
    def is_complete(self) -> npt.NDArray[np.bool_]:
        """Whether all of these three moments of each are in the trace."""
        complete: npt.NDArray[np.bool_] = self.is_timed & (self.fetched_ns != UNSEEN)
        return complete

    @property
    def is_timed(self) -> npt.NDArray[np.bool_]:
        """Whether the trace holds each from its submission to its completion."""
        unseen: npt.NDArray[np.bool_] = np.minimum(self.submitted_ns, self.completed_ns) == UNSEEN
        return ~unseen

    @cached_property
    def latency_ns(self) -> Times:
        """From submission to completion, of those of which the trace holds both."""
        timed = self.is_timed
        return self.completed_ns[timed] - self.submitted_ns[timed]

    def latency_at(self, percent: float) -> float | None:
        """Return a percentile of the latency in ns, interpolated; None where there is none."""
        return float(np.percentile(self.latency_ns, percent)) if len(self.latency_ns) else None

    @cached_property
    def throughput(self) -> float | None:
        """Executions per second; None if unknown.

        That is how many indexes lie between the first and the last completion, by the time between
        these two; of a single execution, one by its latency.
        """
        seen = self.completed_ns != UNSEEN
        index, completed = self.index[seen], self.completed_ns[seen]
        if len(index) > 1:
            count, took = int(index[-1] - index[0]), int(completed.max() - completed.min())
        else:
            count, took = 1, int(self.latency_ns[0]) if len(self.latency_ns) else 0
        return count * 1e9 / took if took > 0 else None

    @cached_property
    def first_submission_ns(self) -> int | None:
        """When the first submission in the trace began; None if there is none."""
        seen = self.submitted_ns[self.submitted_ns != UNSEEN]
        return int(seen.min()) if len(seen) else None

    @cached_property
    def last_completion_ns(self) -> int | None:
        """When the last completion in the trace was; None if there is none."""
        seen = self.completed_ns[self.completed_ns != UNSEEN]
        return int(seen.max()) if len(seen) else None

    def in_flight(self, start_ns: int, end_ns: int) -> Cover:
        """Return when at least one execution was between its submission and its completion.

        Executions are submitted and completed in the order of their indexes. So one whose
        submission was not seen counts from the last one seen before it, or from ``start_ns``; one
        whose completion was not seen counts until the next one seen after it, or to ``end_ns``.
        """
        begun = np.where(self.submitted_ns == UNSEEN, start_ns, self.submitted_ns)
        over = np.where(self.completed_ns == UNSEEN, end_ns, self.completed_ns)
        begun = np.maximum.accumulate(begun)
        over = np.minimum.accumulate(over[::-1])[::-1]
        return Cover(begun, np.maximum(over, begun))


def executions_of(graph: GraphTrace) -> Executions:
    """Find out when each execution of a graph was submitted, completed and fetched.

    A completion that clocks which disagree put before its submission is moved there.
    """
    index = _indexes(graph)
    driver, ops = graph.driver, graph.plan.program(DRIVER).ops
    writes = [op for op, each in enumerate(ops) if isinstance(each, Write)]
    submitted = [_moments(index, driver, op, "start_ns") for op in writes]
    channels = graph.plan.channels_by_id()
    completed, fetched = [], []
    for op, each in enumerate(ops):
        if not isinstance(each, Read):
            continue
        read = _moments(index, driver, op, "end_ns")
        fetched.append(read)
        writer = graph.lane(channels[each.channel].writer)
        at = next(
            (
                at
                for at, other in enumerate(graph.program(writer).ops)
                if isinstance(other, Write) and other.channel == each.channel
            ),
            None,
        )
        if at is None:
            completed.append(read)
            continue
        written = _moments(index, writer, at, "end_ns")
        completed.append(np.where(written == UNSEEN, read, written))
    begun, over = _first(submitted, len(index)), _last(completed, len(index))
    over = np.where((begun == UNSEEN) | (over == UNSEEN), over, np.maximum(over, begun))
    return Executions(index, begun, over, _last(fetched, len(index)))


def _indexes(graph: GraphTrace) -> npt.NDArray[np.int64]:
    found = [
        np.unique(lane.events["execution"][lane.events["op"] < SPAN_BASE]) for lane in graph.lanes
    ]
    return np.unique(np.concatenate(found)).astype(np.int64)


def _moments(index: npt.NDArray[np.int64], lane: Lane, op: int, field: str) -> Times:
    """Return the first start or the last end of one op by execution.

    In a driver it may have several events: one for coding, one for moving bytes.
    """
    events = lane.events[lane.events["op"] == op]
    moments = np.full(len(index), UNSEEN)
    if field == "start_ns":
        events = events[::-1]  # events are in the order of their starts, and the last one stands
    moments[np.searchsorted(index, events["execution"])] = events[field]
    return moments


def _first(moments: list[Times], count: int) -> Times:
    """Return the earliest of several moments where all were seen."""
    if not moments:
        return np.full(count, UNSEEN)
    earliest: Times = np.minimum.reduce(moments)  # UNSEEN is the smallest of all
    return earliest


def _last(moments: list[Times], count: int) -> Times:
    """Return the latest of several moments where all were seen."""
    if not moments:
        return np.full(count, UNSEEN)
    unseen = np.minimum.reduce(moments) == UNSEEN
    return np.where(unseen, UNSEEN, np.maximum.reduce(moments))
