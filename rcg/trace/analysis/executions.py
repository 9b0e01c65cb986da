# SPDX-License-Identifier: Apache-2.0
"""When each execution of a graph was submitted, completed and fetched, and what follows from it.

```
driver   |write|                               |read|
actors      | ............ | ........ |write|
         ^ submitted                        ^ completed
         `------------- latency ------------'       ^ fetched
```

The latency includes encoding the inputs, but not waiting for room between encoding and writing
them. If a driver encoded the inputs before there was room, the time of submission is the start of
the Write minus the time of encoding.

A trace may begin or end in the middle of executions, and events may be lost. A time that is not in
the trace is ``UNSEEN`` and is ignored.

Times are those of the record, on the driver's clock. ``since`` makes them count from the beginning
of the trace, as everything does that is displayed or exported.

This room must know neither shares nor paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, overload

import numpy as np
import numpy.typing as npt

from rcg.display import Displayed
from rcg.ir.ids import DRIVER
from rcg.ir.index import crossings_of, writes_of
from rcg.table import Table
from rcg.text import cut, plural, time_text
from rcg.trace.analysis.events import EventTable, TimeKind
from rcg.trace.analysis.intervals import MIN_INT64, Cover, Ints, Times
from rcg.trace.analysis.spread import BATCHES, LEAST, batch_edges, half_width, spread_of

UNSEEN: Final = MIN_INT64
"""Stands for a time that is not in the trace."""

_HEAD: Final = ("execution", "submitted at", "latency", "fetched after")


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution. A time that is not in the trace is None.

    Attributes:
        index: Its index, counted from 0.
        submitted_ns: As in ``Executions``.
        completed_ns: As in ``Executions``.
        fetched_ns: As in ``Executions``.
    """

    index: int
    submitted_ns: int | None
    completed_ns: int | None
    fetched_ns: int | None

    @property
    def latency_ns(self) -> int | None:
        """Time from submission to completion."""
        if self.submitted_ns is None or self.completed_ns is None:
            return None
        return self.completed_ns - self.submitted_ns


@dataclass(frozen=True, eq=False, repr=False)
class Executions(Displayed):
    """The executions with at least one event in a trace, by index.

    A sequence of ``Execution``. The arrays have the same values and are faster. ``str()`` is a
    table of the first and last ones.

    Attributes:
        index: Their indexes, ascending.
        submitted_ns: When the driver's first Write began, minus ``encoded_ns``; or ``UNSEEN``.
        completed_ns: When the last Write into a channel that the driver reads ended, but not after
            the driver received the frame. For a channel whose Write is not in the trace, when the
            driver's Read ended. Or ``UNSEEN``.
        fetched_ns: When the driver's last Read ended, or ``UNSEEN``.
        encoded_ns: Time of encoding the inputs, if that happened before writing them.
        window: The largest number in flight at a submission, with the new one.
    """

    index: Ints
    submitted_ns: Times
    completed_ns: Times
    fetched_ns: Times
    encoded_ns: Times
    window: int = 1

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
        times = (self.submitted_ns, self.completed_ns, self.fetched_ns)
        return Execution(int(self.index[place]), *(_known_time(each[place]) for each in times))

    def table(self) -> Table:
        """Return a table of the first and the last ones."""
        places = cut(range(len(self)), lambda _: -1)
        rows = [("...", "", "", "") if place < 0 else _row(self[place]) for place in places]
        return Table(_HEAD, rows, "ffff")

    def __str__(self) -> str:
        head = ran_text(len(self), int(self.is_complete.sum()))
        if not len(self):
            return head
        note = "  submitted at: from the beginning of the trace on"
        return "\n".join([head, self.table().text("  "), note])

    def __repr__(self) -> str:
        return f"<Executions: {ran_text(len(self), int(self.is_complete.sum()))}>"

    @property
    def is_complete(self) -> npt.NDArray[np.bool_]:
        """Which executions have all three times in the trace."""
        complete: npt.NDArray[np.bool_] = self.is_timed & (self.fetched_ns != UNSEEN)
        return complete

    @property
    def is_timed(self) -> npt.NDArray[np.bool_]:
        """Which executions have submission and completion in the trace."""
        unseen: npt.NDArray[np.bool_] = np.minimum(self.submitted_ns, self.completed_ns) == UNSEEN
        return ~unseen

    @cached_property
    def latency_ns(self) -> Times:
        """Time from submission to completion of the executions for which both are known."""
        timed = self.is_timed
        return self.completed_ns[timed] - self.submitted_ns[timed]

    def latency_at(self, percent: float) -> float | None:
        """Return an interpolated percentile of the latencies in ns; None if there is no latency."""
        return float(np.percentile(self.latency_ns, percent)) if len(self.latency_ns) else None

    @cached_property
    def throughput(self) -> float | None:
        """Executions per second; None if unknown.

        This is a number of executions divided by the time from completion to completion, up to the
        last one. The first ``window`` fill the graph at another rate, and are left out if twice as
        many follow. Those in flight together may complete in bursts, so the number is a multiple of
        ``window``, if there are as many:

        ```
        completions   1 2 3     1 2 3       1 2 3       1 2 3    of 3 in flight
                          `-----------------------------------'  9 executions
        ```

        With a single execution it is 1 divided by its latency.
        """
        index, completed = self._rounds
        if len(index) > 1:
            count, took = int(index[-1] - index[0]), int(completed.max() - completed.min())
        else:
            count, took = 1, int(self.latency_ns[0]) if len(self.latency_ns) else 0
        return count * 1e9 / took if took > 0 else None

    @cached_property
    def _rounds(self) -> tuple[Ints, Times]:
        """The completions that ``throughput`` counts, after the first of them: indexes, times."""
        seen = self.completed_ns != UNSEEN
        index, completed = self.index[seen], self.completed_ns[seen]
        count, window = len(index) - 1, self.window
        filling = window - 1 if count >= 3 * window - 1 else 0
        first = filling + (count - filling) % window if count >= window else 0
        return index[first:], completed[first:]

    @cached_property
    def throughput_spread(self) -> float | None:
        """How far ``throughput`` may be off (``spread.py``); None of too few executions."""
        index, completed = self._rounds
        completed = np.maximum.accumulate(completed)
        windows = (len(index) - 1) // self.window
        edges = batch_edges(len(index) - 1)
        if windows >= BATCHES:
            edges = batch_edges(windows) * self.window
        if len(index) <= LEAST or not np.diff(completed[edges]).all():
            return None
        return half_width((1e9 * np.diff(index[edges]) / np.diff(completed[edges])).tolist())

    @cached_property
    def latency_spread_ns(self) -> float | None:
        """How far the median latency may be off (``spread.py``); None of too few executions.

        Those that were submitted before the first completion are left out: until then the graph
        fills, and each of them waits for fewer others than all that follow.
        """
        completed = self.completed_ns[self.completed_ns != UNSEEN]
        first = completed.min(initial=-UNSEEN - 1)
        return spread_of(self.latency_ns[self.submitted_ns[self.is_timed] >= first])

    def throughput_until(self, end_ns: int) -> float | None:
        """Return executions per second of a graph that hangs.

        This is the number of executions that completed after the first one, divided by the time
        from the first completion to ``end_ns``. With a single completion it is 1 divided by the
        time since its submission. None if none completed.
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
        """Return the latencies, and the times so far of the executions that did not complete."""
        in_flight = (self.submitted_ns != UNSEEN) & (self.completed_ns == UNSEEN)
        so_far = np.maximum(end_ns - self.submitted_ns[in_flight], 0)
        return np.concatenate((self.latency_ns, so_far))

    def busy_stretch(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """Return a window without the time before and after all executions.

        The result lasts from the first submission until the driver received the last result. If
        executions were in flight at the start or the end of the window, it begins or ends there.
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
        """Return the same with times that count from an origin; ``UNSEEN`` stays as it is."""
        submitted, completed, fetched = (
            each - np.where(each == UNSEEN, 0, origin_ns)
            for each in (self.submitted_ns, self.completed_ns, self.fetched_ns)
        )
        return replace(self, submitted_ns=submitted, completed_ns=completed, fetched_ns=fetched)

    @cached_property
    def first_submission_ns(self) -> int | None:
        """When the first submission in the trace began; None if there is none."""
        seen = self.submitted_ns[self.submitted_ns != UNSEEN]
        return int(seen.min()) if len(seen) else None

    @cached_property
    def last_completion_ns(self) -> int | None:
        """When the last completion in the trace happened; None if there is none."""
        seen = self.completed_ns[self.completed_ns != UNSEEN]
        return int(seen.max()) if len(seen) else None

    def in_flight(self, start_ns: int, end_ns: int) -> Cover:
        """Return when at least one execution was in flight.

        Executions are submitted and completed in the order of their indexes. So an unseen
        submission is replaced by the last one seen before it, or by ``start_ns``, and an unseen
        completion by the next one seen after it, or by ``end_ns``.
        """
        begun = np.where(self.submitted_ns == UNSEEN, start_ns, self.submitted_ns)
        over = np.where(self.completed_ns == UNSEEN, end_ns, self.completed_ns)
        begun = np.maximum.accumulate(begun)
        over = np.minimum.accumulate(over[::-1])[::-1]
        return Cover(begun, np.maximum(over, begun))


def ran_text(count: int, complete: int, *, is_over: bool = True) -> str:
    """Return how many executions there are, with what is missing of some.

    Args:
        count: How many have an event in the trace.
        complete: How many of them are in it from their submission until they were fetched.
        is_over: Whether the others ended, for all that is known; False for a graph that hangs.

    >>> ran_text(60, 60), ran_text(61, 60)
    ('60 executions', '60 complete executions (1 cut off by the recording)')
    >>> ran_text(3, 2, is_over=False)
    '2 complete executions (1 has not ended)'
    >>> ran_text(2, 0)
    'no complete execution (2 cut off by the recording)'
    """
    if count == complete:
        return plural(count, "execution")
    whole = plural(complete, "complete execution") if complete else "no complete execution"
    others = count - complete
    have = "cut off by the recording"
    if not is_over:
        have = "has not ended" if others == 1 else "have not ended"
    return f"{whole} ({others:,} {have})"


def executions_of(table: EventTable) -> Executions:
    """Return when each execution of a graph was submitted, completed and fetched.

    Clocks of processes may disagree. A completion before the submission is set to the submission,
    and one after the driver received the frame is set to the time of receiving.
    """
    graph = table.graph
    index = table.executions()
    writes, crossings = writes_of(graph.plan), crossings_of(graph.plan)
    node = graph.plan.node_of(DRIVER)
    submitted, encoded, completed, fetched = [], [], [], []
    for op, each in enumerate(graph.plan.program(DRIVER).ops):
        if each.values_out:
            begun, coded = _submissions(table, index, op)
            submitted.append(begun)
            encoded.append(coded)
        for channel in each.values_in:
            reads, moved = table.rows(DRIVER, op), table.moved(DRIVER, op)
            fetched.append(_ends(table, index, reads[~table.polls[reads]]))
            moved = moved[~table.codes[moved]]
            read = _ends(table, index, moved)
            place, crossing = writes.get(channel), crossings.get((channel, node))
            if place is None:
                completed.append(read)
                continue
            if crossing is not None and len(graph.lane(crossing.node).events):
                # It is complete when it has arrived on the driver's node.
                place = crossing.place
            written = _ends(table, index, table.moved(*place))
            here = np.searchsorted(index, table.execution[moved])
            written[here] = np.minimum(written[here], table.taken_ns(moved))
            completed.append(np.where(written == UNSEEN, read, written))
    begun, over = _first(submitted, len(index)), _last(completed, len(index))
    over = np.where((begun == UNSEEN) | (over == UNSEEN), over, np.maximum(over, begun))
    apart = _apart(submitted, encoded, len(index))
    last = _last(fetched, len(index))
    window = _window(index, begun, last, graph.limit)
    return Executions(index, begun, over, last, apart, window)


def _window(index: Ints, submitted_ns: Times, fetched_ns: Times, limit: int) -> int:
    """Return the largest number of executions in flight at a submission, with the new one."""
    fetched, submitted = fetched_ns != UNSEEN, submitted_ns != UNSEEN
    when = np.maximum.accumulate(fetched_ns[fetched])
    at, number = submitted_ns[submitted], index[submitted]
    most = max(1, min(limit, len(index)))
    if not len(at) or not len(when):
        return most
    before = np.searchsorted(when, at, side="right")
    last = index[fetched][np.maximum(before - 1, 0)]
    # Executions before the first one in the trace are assumed to be over.
    in_flight = np.where(before > 0, number - last, number - index[0] + 1)
    return int(np.clip(in_flight.max(), 1, most))


def _known_time(time: np.int64) -> int | None:
    return None if time == UNSEEN else int(time)


def _submissions(table: EventTable, index: Ints, op: int) -> tuple[Times, Times]:
    """Return when each execution was submitted by a Write, and the time of encoding in advance."""
    moves, rows = table.moved(DRIVER, op), table.rows(DRIVER, op)
    apart = rows[table.codes[rows]]
    coded = np.zeros(len(index), np.int64)
    took = table.time_of(apart, TimeKind.SERIALIZATION)
    np.add.at(coded, np.searchsorted(index, table.execution[apart]), took)
    times = np.full(len(index), UNSEEN)
    at = np.searchsorted(index, table.execution[moves])
    times[at] = table.start_ns[moves] - coded[at]
    return times, coded


def _apart(submitted: list[Times], encoded: list[Times], count: int) -> Times:
    """Return the time of encoding in advance that belongs to the earliest submission of each."""
    if not submitted:
        return np.zeros(count, np.int64)
    first = np.argmin(submitted, axis=0)
    apart: Times = np.array(encoded)[first, np.arange(count)]
    return apart


def _ends(table: EventTable, index: Ints, rows: Ints) -> Times:
    """Return the end of the last event of each execution; ``rows`` are by execution and time."""
    times = np.full(len(index), UNSEEN)
    times[np.searchsorted(index, table.execution[rows])] = table.end_ns[rows]
    return times


def _first(times: list[Times], count: int) -> Times:
    """Return the earliest of several times for each execution; ``UNSEEN`` if one is."""
    if not times:
        return np.full(count, UNSEEN)
    earliest: Times = np.minimum.reduce(times)  # UNSEEN is the smallest of all
    return earliest


def _last(times: list[Times], count: int) -> Times:
    """Return the latest of several times for each execution; ``UNSEEN`` if one is."""
    if not times:
        return np.full(count, UNSEEN)
    unseen = np.minimum.reduce(times) == UNSEEN
    return np.where(unseen, UNSEEN, np.maximum.reduce(times))


def _row(execution: Execution) -> tuple[str, str, str, str]:
    completed, fetched = execution.completed_ns, execution.fetched_ns
    waited = None if fetched is None or completed is None else fetched - completed
    return (
        str(execution.index),
        time_text(execution.submitted_ns),
        time_text(execution.latency_ns),
        time_text(waited),
    )
