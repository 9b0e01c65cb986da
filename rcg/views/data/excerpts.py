# SPDX-License-Identifier: Apache-2.0
"""The part of a trace that pictures show, and views at first: a few executions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rcg.trace.analysis.events import EventTable
from rcg.trace.analysis.intervals import Ints
from rcg.trace.measured import Measured
from rcg.trace.model import GraphTrace

MAX_EXECUTIONS: Final = 8
"""An excerpt has at most so many executions."""

_GOOD_WIDTHS: Final = 48
"""An excerpt should last at most as long as this many calls of median length."""

_MAX_CALLS: Final = 24  # of one process, unless one execution has more

_MIN_EXECUTIONS: Final = 3
"""An excerpt of so many executions is made shorter only if it lasts ``MAX_WIDTHS``."""

MAX_WIDTHS: Final = 200
"""Executions that are drawn last at most so many calls of median length, or there is only one."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A part of a trace, with all calls of its first to its last execution.

    ``is_open`` is whether it shows a call that had not returned when the trace ended instead.
    """

    start_ns: int
    end_ns: int
    first: int
    last: int
    is_open: bool = False

    @property
    def words(self) -> str:
        """A description of these executions; ``part_words`` adds those that are there in parts."""
        if self.is_open:
            return f"execution {self.first:,}, not finished"
        if self.first == self.last:
            return f"all of execution {self.first:,}"
        return f"all of executions {self.first:,} to {self.last:,}"


def whole_executions(measured: Measured) -> tuple[Ints, Ints]:
    """Return the events of calls in a trace, and the executions that have all their calls in it."""
    table, found, each_has = measured.table, [np.empty(0, np.int64)], 0
    for program in measured.graph.plan.programs:
        calls = [at for at, op in enumerate(program.ops) if op.is_call]
        each_has += len(calls)
        found += [table.rows(program.process, at) for at in calls]
    rows = np.concatenate(found)
    is_inside = table.start_ns[rows] >= measured.start_ns
    is_inside &= table.end_ns[rows] <= measured.end_ns
    rows = rows[is_inside]
    executions, counts = np.unique(table.execution[rows], return_counts=True)
    return rows, executions[counts >= max(each_has, 1)]


def excerpt_of(measured: Measured, *, most: int = MAX_EXECUTIONS) -> Excerpt | None:
    """Return an excerpt with the last executions that ran in a full pipeline, at most so many.

    The pipeline empties at the end, so as many executions as may be in flight are left out there,
    if there are enough. If a call had not returned when the trace ended, and took longer than the
    excerpt would last, the excerpt shows that call instead. If no execution has all its calls in
    the trace, there is no excerpt.
    """
    table, graph = measured.table, measured.graph
    start_ns, end_ns = measured.start_ns, measured.end_ns
    rows, whole = whole_executions(measured)
    executions = np.unique(table.execution[rows])
    counts_of_calls = [sum(op.is_call for op in each.ops) for each in graph.plan.programs]
    held = _excerpt_of_hang(graph, start_ns, end_ns)
    if not len(whole):
        return held
    busiest = max([1, *counts_of_calls])
    count = max(1, min(most, _MAX_CALLS // busiest, len(whole)))
    first, last, begun, ended = _choose(table, rows, whole, count, graph.limit)
    # With long gaps between calls, fewer executions are shown, so that a call is wide enough.
    usual = max(1.0, float(np.median(table.end_ns[rows] - table.start_ns[rows])))
    for least, widths in ((_MIN_EXECUTIONS, _GOOD_WIDTHS), (1, MAX_WIDTHS)):
        too_long = (ended - begun) / usual / widths
        if too_long > 1 and count > least:
            count = max(least, int(count / too_long))
            first, last, begun, ended = _choose(table, rows, whole, count, graph.limit)
    if held is not None and held.end_ns - held.start_ns > ended - begun:
        return held
    if count == len(executions):  # all of the trace, with what the driver did before
        own = graph.driver.events[graph.driver.events["execution"] >= first]
        begun = int(own["start_ns"].min(initial=begun))
    margin = (ended - begun) // 60
    return Excerpt(max(start_ns, begun - margin), min(end_ns, ended + margin), first, last)


def _excerpt_of_hang(graph: GraphTrace, start_ns: int, end_ns: int) -> Excerpt | None:
    """Return the excerpt of the longest call that has not returned; None without one."""
    calls = [
        lane.open
        for lane in graph.lanes
        if lane.open is not None
        and lane.open.since_ns < end_ns
        and lane.open.op < len(graph.program(lane).ops)
        and graph.op(lane, lane.open.op).is_call
    ]
    if not calls:
        return None
    longest = min(calls, key=lambda each: each.since_ns)
    before = (end_ns - longest.since_ns) // 8
    start = max(start_ns, longest.since_ns - before)
    return Excerpt(start, end_ns, longest.execution, longest.execution, is_open=True)


def _choose(
    table: EventTable, rows: Ints, whole: Ints, count: int, limit: int
) -> tuple[int, int, int, int]:
    """Return the first and the last of ``count`` executions, and when they began and ended."""
    end = len(whole) - min(limit, len(whole) - count)
    first, last = int(whole[end - count]), int(whole[end - 1])
    of = table.execution[rows]
    shown = rows[(of >= first) & (of <= last)]
    return first, last, int(table.start_ns[shown].min()), int(table.end_ns[shown].max())
