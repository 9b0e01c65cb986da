# SPDX-License-Identifier: Apache-2.0
"""The timeline: ``timeline.js`` draws the slices of ``rcg.views.data.slices``."""

from __future__ import annotations

from typing import Any

from rcg.text import stated
from rcg.views.data.excerpts import excerpt_of
from rcg.views.data.packing import pack
from rcg.views.data.slicing import slices_of
from rcg.views.data.timeline import timeline_payload
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

    _esm = script("common", "lanes", "timeline")

    def __init__(
        self, trace: Any, *, graph: int | str | None = None, title: str = "Timeline"
    ) -> None:
        subject, record = recorded(trace, graph)
        start_ns, end_ns = subject.start_ns, subject.end_ns
        slices = slices_of(record, start_ns, end_ns)
        part = excerpt_of(record, start_ns, end_ns)
        super().__init__(
            f"{len(record.lanes)} processes, {len(slices):,} bars",
            timelines(subject),
            payload=pack(*timeline_payload(record, slices)),
            window=part and part.window(start_ns),
            title=stated(title, subject.state),
        )
