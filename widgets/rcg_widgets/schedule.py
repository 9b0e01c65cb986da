# SPDX-License-Identifier: Apache-2.0
"""When each actor works on which execution, predicted and measured; ``schedule.js`` draws it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rcg.ir.ops import Op
from rcg.views.data.schedule import schedule_payload
from rcg_widgets.base import View, script
from rcg_widgets.payload import pack
from rcg_widgets.static import schedules
from rcg_widgets.subject import subject_of

__all__ = ["ScheduleWidget"]


class ScheduleWidget(View):
    """The schedule of a graph, execution by execution.

    Each colour is an execution. Bars are what was measured, outlines below what is predicted with
    what the ops took; with a plan alone, the prediction counts every call as one unit.
    Step through the executions, choose which processes are shown and what of the two.

    Args:
        what: A plan, a compiled graph, a trace, or what has one as ``trace``.
        graph: Which graph of a trace with several: its number, or how its id begins.
        executions: How many executions at most: the last ones of a trace, the first ones of a plan
            (8 of them, if this is None; 200 of a trace).
        op_cost: How long an op takes in nanoseconds, for the prediction. Without, as measured.
        title: The title.

    Raises:
        TypeError: There is no graph in what was given.
        TraceError: The trace has no such graph, or several and none was chosen.
        ValueError: ``executions`` is below 1.
    """

    _esm = script("common", "lanes", "schedule")

    def __init__(
        self,
        what: Any,
        *,
        graph: int | str | None = None,
        executions: int | None = None,
        op_cost: Callable[[Op], float] | None = None,
        title: str = "Schedule",
    ) -> None:
        if executions is not None and executions < 1:
            raise ValueError(f"`executions` must be a positive integer, found {executions}")
        subject = subject_of(what, graph)
        shown = schedule_payload(
            subject.plan,
            subject.record,
            origin_ns=subject.start_ns,
            executions=executions,
            op_cost=op_cost,
        )
        super().__init__(
            f"{len(subject.plan.actors)} actors, {shown.head['count']:,} executions",
            schedules(subject),
            payload=pack(*shown),
            title=title,
        )
