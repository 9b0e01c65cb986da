# SPDX-License-Identifier: Apache-2.0
"""When each process did what; ``timeline.js`` draws the slices of ``rcg.views.data.slices``."""

from __future__ import annotations

from typing import Any

from rcg.views.data.slicing import slices_of
from rcg.views.data.timeline import timeline_payload
from rcg_widgets.base import View, script
from rcg_widgets.payload import pack
from rcg_widgets.static import timelines
from rcg_widgets.subject import recorded

__all__ = ["TimelineWidget"]


class TimelineWidget(View):
    """A timeline of what the processes of one graph did, to look into.

    Drag to zoom, wheel to zoom (after a click, or with Ctrl), Shift and drag to pan, double click
    to see all. Click a bar to see what it is and, of a transfer, both its ends. All of it works
    from the keyboard as well.

    Args:
        trace: A trace, one graph of one, or what has one as ``trace``.
        graph: Which graph of a trace with several: its number, or how its id begins.
        title: The title.

    Raises:
        TypeError: There is no trace in what was given.
        TraceError: The trace has no such graph, or several and none was chosen.
    """

    _esm = script("common", "lanes", "timeline")

    def __init__(
        self, trace: Any, *, graph: int | str | None = None, title: str = "Timeline"
    ) -> None:
        subject, record = recorded(trace, graph)
        slices = slices_of(record, subject.start_ns, subject.end_ns)
        about = f"{len(record.lanes)} processes, {len(slices):,} bars"
        super().__init__(
            about, timelines(subject), payload=pack(*timeline_payload(record, slices)), title=title
        )
