# SPDX-License-Identifier: Apache-2.0
"""Which part of a trace to show: some whole executions, after the pipeline has filled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rcg.trace.model import SPAN_BASE, GraphTrace

__all__ = ["Excerpt", "excerpt_of"]


_MAX_WIDTHS: Final = 48
"""How many calls of usual length, end to end, an excerpt should hold at most."""

_LEAST: Final = 3
"""Of how many executions an excerpt is not made shorter."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A part of a trace.

    Attributes:
        start_ns: When it begins.
        end_ns: When it ends.
        first: The first execution that lies in it with all its calls.
        last: The last.
        executions: How many executions the trace has with all their calls.
        is_open: Whether it shows a call that had not returned when the trace ended.
    """

    start_ns: int
    end_ns: int
    first: int
    last: int
    executions: int
    is_open: bool = False

    @property
    def words(self) -> str:
        """Which executions they are, for people."""
        if self.is_open:
            return f"execution {self.first}, which is not over"
        if self.first == self.last:
            return f"execution {self.first}"
        return f"executions {self.first} to {self.last}"


def excerpt_of(
    graph: GraphTrace, start_ns: int, end_ns: int, *, most: int = 12, most_calls: int = 24
) -> Excerpt | None:
    """Choose the last executions that ran while others came before and after them.

    As many executions as may be in flight are left out at the end, where the pipeline runs empty,
    if there are enough. A call that had not returned when the trace ended, and took longer than all
    that would be shown, is what one looks for: then it is shown.

    Args:
        graph: The record of the graph.
        start_ns: When the trace began.
        end_ns: When it ended.
        most: How many executions to show at most.
        most_calls: How many calls of one process to show at most; one execution is always shown.

    Returns:
        The excerpt; None if no execution has all its calls in the trace.
    """
    calls = []
    wanted, busiest = 0, 1
    for lane in graph.lanes:
        ops = graph.program(lane).ops
        is_call = np.array([op.is_call for op in ops] + [False])
        wanted += int(is_call.sum())
        busiest = max(busiest, int(is_call.sum()))
        op = np.where(lane.events["op"] < SPAN_BASE, lane.events["op"], len(ops))
        calls.append(lane.events[is_call[np.minimum(op, len(ops))]])
    rows = np.concatenate([each[["execution", "start_ns", "end_ns"]] for each in calls])
    rows = rows[(rows["start_ns"] >= start_ns) & (rows["end_ns"] <= end_ns)]
    executions, counts = np.unique(rows["execution"], return_counts=True)
    whole = executions[counts >= max(wanted, 1)]
    held = _held(graph, start_ns, end_ns, len(whole))
    if not len(whole):
        return held
    count = max(1, min(most, most_calls // busiest, len(whole)))
    first, last, begun, ended = _chosen(rows, whole, count, graph.limit)
    # Where calls are far between, fewer executions, so that a call is wide enough to be read.
    usual = max(1.0, float(np.median(rows["end_ns"] - rows["start_ns"])))
    too_long = (ended - begun) / usual / _MAX_WIDTHS
    if too_long > 1 and count > _LEAST:
        count = max(_LEAST, int(count / too_long))
        first, last, begun, ended = _chosen(rows, whole, count, graph.limit)
    if held is not None and held.end_ns - held.start_ns > ended - begun:
        return held
    margin = (ended - begun) // 60
    return Excerpt(
        max(start_ns, begun - margin), min(end_ns, ended + margin), first, last, len(whole)
    )


def _held(graph: GraphTrace, start_ns: int, end_ns: int, executions: int) -> Excerpt | None:
    """Return the excerpt of the call that has not returned for longest, if there is one."""
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
    return Excerpt(start, end_ns, longest.execution, longest.execution, executions, is_open=True)


def _chosen(
    rows: npt.NDArray[np.void], whole: npt.NDArray[np.int64], count: int, limit: int
) -> tuple[int, int, int, int]:
    """The first and the last of so many executions, and when they began and ended."""
    end = len(whole) - min(limit, len(whole) - count)
    first, last = int(whole[end - count]), int(whole[end - 1])
    shown = rows[(rows["execution"] >= first) & (rows["execution"] <= last)]
    return first, last, int(shown["start_ns"].min()), int(shown["end_ns"].max())
