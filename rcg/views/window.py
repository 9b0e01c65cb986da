# SPDX-License-Identifier: Apache-2.0
"""Which part of a trace to show: some whole executions, late enough to be in the swing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rcg.plan import Call
from rcg.trace.trace import SPAN_BASE, GraphTrace

__all__ = ["Window", "window_of"]


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a trace.

    Attributes:
        start_ns: When it begins.
        end_ns: When it ends.
        first: The first execution that lies in it with all its calls.
        last: The last.
        executions: How many executions the trace has with all their calls.
    """

    start_ns: int
    end_ns: int
    first: int
    last: int
    executions: int

    @property
    def words(self) -> str:
        """Which executions they are, for people."""
        if self.first == self.last:
            return f"execution {self.first}"
        return f"executions {self.first} to {self.last}"


def window_of(
    graph: GraphTrace, start_ns: int, end_ns: int, *, most: int = 12, most_calls: int = 24
) -> Window | None:
    """Choose the last executions that ran while others came before and after them.

    As many executions as may be in flight are left out at the end, where the pipeline runs empty,
    if there are enough.

    Args:
        graph: The record of the graph.
        start_ns: When the trace began.
        end_ns: When it ended.
        most: How many executions to show at most.
        most_calls: How many calls of one process to show at most; one execution is always shown.

    Returns:
        The window; None if no execution has all its calls in the trace.
    """
    calls = []
    wanted, busiest = 0, 1
    for lane in graph.lanes:
        ops = graph.program(lane).ops
        is_call = np.array([isinstance(op, Call) for op in ops] + [False])
        wanted += int(is_call.sum())
        busiest = max(busiest, int(is_call.sum()))
        op = np.where(lane.events["op"] < SPAN_BASE, lane.events["op"], len(ops))
        calls.append(lane.events[is_call[np.minimum(op, len(ops))]])
    rows = np.concatenate([each[["execution", "start_ns", "end_ns"]] for each in calls])
    rows = rows[(rows["start_ns"] >= start_ns) & (rows["end_ns"] <= end_ns)]
    executions, counts = np.unique(rows["execution"], return_counts=True)
    whole = executions[counts >= max(wanted, 1)]
    if not len(whole):
        return None
    count = max(1, min(most, most_calls // busiest, len(whole)))
    end = len(whole) - min(graph.limit, len(whole) - count)
    chosen = whole[end - count : end]
    first, last = int(chosen[0]), int(chosen[-1])
    shown = rows[(rows["execution"] >= first) & (rows["execution"] <= last)]
    begun, ended = int(shown["start_ns"].min()), int(shown["end_ns"].max())
    margin = (ended - begun) // 60
    return Window(
        max(start_ns, begun - margin), min(end_ns, ended + margin), first, last, len(whole)
    )
