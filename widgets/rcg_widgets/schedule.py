# SPDX-License-Identifier: Apache-2.0
"""The schedule: ``scene.js`` paints the scene of ``rcg.views.scenes.schedule``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rcg.ir.ops import Op
from rcg.text import stated
from rcg.trace.measured import Measured
from rcg.views.data.packing import pack
from rcg.views.scenes.schedule import predicted_scene, schedule_scene
from rcg_widgets.base import View, script
from rcg_widgets.static import schedules
from rcg_widgets.subject import subject_of

__all__ = ["ScheduleWidget"]


class ScheduleWidget(View):
    """The schedule of a graph, execution by execution.

    Each colour is an execution, or a call of its method in the execution (a micro-batch) if there
    are several. Bars are measured, outlines below them are predicted from measured costs. If they
    differ too much, the subtitle says the predicted rate, instead. With only a plan, the prediction
    counts every call as one unit. Controls step through the executions and choose which processes,
    and which of bars and outlines, are shown.

    Args:
        what: A plan, a compiled graph, a trace, or an object with one as ``trace``.
        graph: The graph, if the trace has several: its number, or the beginning of its id.
        executions: Limit of executions: the last ones of a trace, the first ones of a plan. None:
            200 of a trace; of a plan, as many as have about 60 calls of one actor, at most 8.
        op_cost: Returns the duration of an op in nanoseconds, for the prediction; None to use the
            measured ones.
        title: The title.

    Raises:
        TypeError: The argument has no graph.
        TraceError: The trace has no such graph, or it has several and none was chosen.
        ValueError: ``executions`` is below 1.
    """

    _esm = script("common", "lanes", "panel", "scene")

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
        if subject.record is None:
            scene = predicted_scene(subject.plan, executions=executions, op_cost=op_cost)
        else:
            scene = schedule_scene(
                Measured.of(subject.trace, subject.record),
                executions=executions,
                op_cost=op_cost,
            )
        super().__init__(
            f"{len(subject.plan.actors)} actors, {scene.num_executions:,} executions",
            schedules(subject),
            payload=pack(*scene.to_payload()),
            window=scene.window_us,
            title=stated(title, subject.state),
        )
