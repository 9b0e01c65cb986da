# SPDX-License-Identifier: Apache-2.0
"""When each execution of a graph was submitted, completed and fetched, and what follows from it.

```
driver   |write|                               |read|
actors      | ............ | ........ |write|
         ^ submitted                        ^ completed
         `------------- latency ------------'       ^ fetched
```

Encoding the inputs counts, queueing for room between that and writing them does not: where a driver
encoded them before there was room, an execution was submitted by so much before they were written.

A trace may begin or end in the middle of executions, and events may be lost: what was not seen is
``UNSEEN`` and counts for nothing.

Moments are those of the record, on the driver's clock; ``since`` counts them from the beginning of
the trace, as everything does that is shown or given away.

This room must know neither shares nor paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, overload

import numpy as np
import numpy.typing as npt

from rcg.display import Displayed
from rcg.ir.ids import DRIVER
from rcg.text import columns, cut, plural, time_text
from rcg.trace.analysis.intervals import Cover, Times
from rcg.trace.analysis.parts import READ, WRITE
from rcg.trace.analysis.transfers import is_coding, is_waiting, movers, taken_ns
from rcg.trace.model import SPAN_BASE, Events, GraphTrace

__all__ = ["UNSEEN", "Execution", "Executions", "executions_of"]

UNSEEN: Final = int(np.iinfo(np.int64).min)
"""Stands for a moment that the trace does not hold."""

EXECUTION_HEAD: Final = ("execution", "submitted at", "latency", "fetched after")
"""The columns of a table of executions."""


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution; a moment that the trace does not hold is None.

    Attributes:
        index: Which one, counted from 0.
        submitted_ns: See ``Executions``.
        completed_ns: See there.
        fetched_ns: See there.
    """

    index: int
    submitted_ns: int | None
    completed_ns: int | None
    fetched_ns: int | None

    @property
    def latency_ns(self) -> int | None:
        """From submission to completion."""
        if self.submitted_ns is None or self.completed_ns is None:
            return None
        return self.completed_ns - self.submitted_ns


@dataclass(frozen=True, eq=False, repr=False)
class Executions(Displayed):
    """The executions of a graph that a trace holds anything of, by index.

    A sequence of ``Execution``, in the order of their indexes; and as arrays, which is faster.
    Prints as a table with its head and its tail.

    Attributes:
        index: Their indexes, rising.
        submitted_ns: When the driver's first Write of each began, or ``UNSEEN``. Where its inputs
            had been encoded apart from that, ``encoded_ns`` before.
        completed_ns: When the last of its Writes into channels that the driver reads ended, but not
            after the driver had it; for a channel whose Write is not in the trace, when the
            driver's Read ended. Or ``UNSEEN``.
        fetched_ns: When the driver's last Read of each ended, or ``UNSEEN``.
        encoded_ns: How long encoding its inputs took, where that was no part of writing them.
    """

    index: npt.NDArray[np.int64]
    submitted_ns: Times
    completed_ns: Times
    fetched_ns: Times
    encoded_ns: Times

    def __len__(self) -> int:
        return len(self.index)

    def __iter__(self) -> Iterator[Execution]:
        return map(self.__getitem__, range(len(self)))

    @overload
    def __getitem__(self, place: int) -> Execution: ...
    @overload
    def __getitem__(self, place: slice) -> list[Execution]: ...
    def __getitem__(self, place: int | slice) -> Execution | list[Execution]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        moments = (self.submitted_ns, self.completed_ns, self.fetched_ns)
        return Execution(int(self.index[place]), *(_seen(each[place]) for each in moments))

    def __str__(self) -> str:
        return _text(self)

    def __repr__(self) -> str:
        return f"<Executions: {len(self):,}, {int(self.is_complete.sum()):,} of them whole>"

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

    def throughput_until(self, end_ns: int) -> float | None:
        """Return executions per second of a graph that hangs: the time since counts as well.

        That is how many completed after the first, by the time from the first to ``end_ns``; of
        one, by the time since its submission. None if none completed.
        """
        seen = self.completed_ns != UNSEEN
        index, completed = self.index[seen], self.completed_ns[seen]
        if not len(index):
            return None
        count, begun = int(index[-1] - index[0]), int(completed.min())
        if len(index) == 1:
            count, begun = 1, begun - (int(self.latency_ns[0]) if len(self.latency_ns) else 0)
        return count * 1e9 / (end_ns - begun) if end_ns > begun else None

    def latencies_until(self, end_ns: int) -> Times:
        """Return the latencies, and how long those have taken so far that were not completed."""
        under_way = (self.submitted_ns != UNSEEN) & (self.completed_ns == UNSEEN)
        so_far = np.maximum(end_ns - self.submitted_ns[under_way], 0)
        return np.concatenate((self.latency_ns, so_far))

    def busy_stretch(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """Return the time between two moments without what lies before and after all executions.

        That is from the first submission until the driver had the last result. Where executions
        were under way when the trace began it begins with the trace, and where some were when it
        ended it ends with that.
        """
        submitted = self.submitted_ns != UNSEEN
        over = np.maximum(self.completed_ns, self.fetched_ns)
        ended = over != UNSEEN
        if not submitted.any() or not ended.any():
            begun = int(self.submitted_ns[submitted].min()) if submitted.any() else start_ns
            return max(begun, start_ns), end_ns
        first = int(np.argmax(submitted))
        begun = int(self.submitted_ns[submitted].min()) if first == 0 else start_ns
        last = len(ended) - 1 - int(np.argmax(ended[::-1]))
        is_over = not bool(submitted[last + 1 :].any())
        until = int(over.max()) if is_over else end_ns
        begun = min(max(begun, start_ns), end_ns)
        return begun, max(min(until, end_ns), begun)

    def since(self, origin_ns: int) -> Executions:
        """Return the same with moments from an origin on; what was not seen stays ``UNSEEN``."""
        submitted, completed, fetched = (
            each - np.where(each == UNSEEN, 0, origin_ns)
            for each in (self.submitted_ns, self.completed_ns, self.fetched_ns)
        )
        return Executions(self.index, submitted, completed, fetched, self.encoded_ns)

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

    A completion that clocks which disagree put before its submission is moved there, and one that
    they put after the driver had it to that moment.
    """
    index = _indexes(graph)
    driver, ops = graph.driver, graph.plan.program(DRIVER).ops
    submitted, encoded = [], []
    for op, each in enumerate(ops):
        if each.channels_out:
            begun, coded = _submissions(index, driver.events[driver.events["op"] == op])
            submitted.append(begun)
            encoded.append(coded)
    channels = graph.plan.channels_by_id()
    completed, fetched = [], []
    for op, each in enumerate(ops):
        if not each.channels_in:
            continue
        (channel,) = each.channels_in
        reads = driver.events[driver.events["op"] == op]
        fetched.append(_ends(index, reads[~is_waiting(reads)]))
        moved = reads[movers(reads, READ)]
        moved = moved[~is_coding(moved)]
        read = _ends(index, moved)
        writer = graph.lane(channels[channel].writer)
        at = next(
            (
                at
                for at, other in enumerate(graph.program(writer).ops)
                if channel in other.channels_out
            ),
            None,
        )
        if at is None:
            completed.append(read)
            continue
        writes = writer.events[writer.events["op"] == at]
        written = _ends(index, writes[movers(writes, WRITE)] if writer is driver else writes)
        here = np.searchsorted(index, moved["execution"])
        written[here] = np.minimum(written[here], taken_ns(moved))
        completed.append(np.where(written == UNSEEN, read, written))
    begun, over = _first(submitted, len(index)), _last(completed, len(index))
    over = np.where((begun == UNSEEN) | (over == UNSEEN), over, np.maximum(over, begun))
    apart = _apart(submitted, encoded, len(index))
    return Executions(index, begun, over, _last(fetched, len(index)), apart)


def _seen(moment: np.int64) -> int | None:
    return None if moment == UNSEEN else int(moment)


def _indexes(graph: GraphTrace) -> npt.NDArray[np.int64]:
    found = [
        np.unique(lane.events["execution"][lane.events["op"] < SPAN_BASE]) for lane in graph.lanes
    ]
    return np.unique(np.concatenate(found)).astype(np.int64)


def _submissions(index: npt.NDArray[np.int64], writes: Events) -> tuple[Times, Times]:
    """Return when each execution was submitted by one Write, and how much of that was apart."""
    moves = writes[movers(writes, WRITE)]
    coded = np.zeros(len(index), np.int64)
    apart = writes[is_coding(writes)]
    np.add.at(coded, np.searchsorted(index, apart["execution"]), apart["coded_ns"])
    moments = np.full(len(index), UNSEEN)
    at = np.searchsorted(index, moves["execution"])
    moments[at] = moves["start_ns"] - coded[at]
    return moments, coded


def _apart(submitted: list[Times], encoded: list[Times], count: int) -> Times:
    """Return how much of the earliest submission of each was encoding apart from writing."""
    if not submitted:
        return np.zeros(count, np.int64)
    first = np.argmin(submitted, axis=0)
    apart: Times = np.array(encoded)[first, np.arange(count)]
    return apart


def _ends(index: npt.NDArray[np.int64], events: Events) -> Times:
    """Return the last end of events of one op by execution; they are in the order of starts."""
    moments = np.full(len(index), UNSEEN)
    moments[np.searchsorted(index, events["execution"])] = events["end_ns"]
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


def execution_row(execution: Execution) -> tuple[str, str, str, str]:
    """Return what a table says of an execution; its moments have the zero of the execution's."""
    completed, fetched = execution.completed_ns, execution.fetched_ns
    waited = None if fetched is None or completed is None else fetched - completed
    return (
        str(execution.index),
        time_text(execution.submitted_ns),
        time_text(execution.latency_ns),
        time_text(waited),
    )


def _text(executions: Executions) -> str:
    """Return the executions of a graph as text."""
    count, whole = len(executions), int(executions.is_complete.sum())
    head = plural(count, "execution")
    if whole < count:
        head += f", {whole:,} of them whole"
    if not count:
        return head
    places = cut(range(count), lambda _: -1)
    rows = [
        ("...", "", "", "") if place < 0 else execution_row(executions[place]) for place in places
    ]
    note = "  submitted at: from the beginning of the trace on"
    return "\n".join([head, *columns([EXECUTION_HEAD, *rows], left=0), note])
