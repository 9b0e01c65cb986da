# SPDX-License-Identifier: Apache-2.0
"""The timeline: ``scene.js`` paints the scene of ``rcg.views.scenes.timeline``."""

from __future__ import annotations

from typing import Any

from rcg.text import stated
from rcg.trace.measured import Measured
from rcg.views.data.packing import pack
from rcg.views.scenes.timeline import timeline_scene
from rcg_widgets.base import View, script
from rcg_widgets.static import timelines
from rcg_widgets.subject import recorded

__all__ = ["TimelineWidget"]


class TimelineWidget(View):
    """An interactive timeline of what the processes of one graph did.

    Drag to zoom, use the wheel to zoom (after a click, or with Ctrl), drag with Shift to pan,
    double click to see all. Click a bar to see its details and, for a transfer, both ends.
    Everything works with the keyboard as well. It first shows a few executions.

    Args:
        trace: A trace, a graph of a trace, or an object with one as ``trace``.
        graph: The graph, if the trace has several: its number, or the beginning of its id.
        title: The title.

    Raises:
        TypeError: The argument has no trace.
        TraceError: The trace has no such graph, or it has several and none was chosen.
    """

    _esm = script("common", "lanes", "panel", "scene")

    def __init__(
        self, trace: Any, *, graph: int | str | None = None, title: str = "Timeline"
    ) -> None:
        subject, record = recorded(trace, graph)
        scene = timeline_scene(Measured.of(subject.trace, record))
        super().__init__(
            f"{len(record.lanes)} processes, {len(scene.bars):,} bars",
            timelines(subject),
            payload=pack(*scene.to_payload()),
            window=scene.window_us,
            title=stated(title, subject.state),
        )
