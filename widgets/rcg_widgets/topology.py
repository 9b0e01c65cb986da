# SPDX-License-Identifier: Apache-2.0
"""Where each value is computed and how it travels: laid out here, drawn by ``topology.js``."""

from __future__ import annotations

from typing import Any

from rcg.views.data.topology_payload import topology_payload
from rcg_widgets.base import View, script
from rcg_widgets.payload import pack
from rcg_widgets.static import topologies
from rcg_widgets.subject import subject_of

__all__ = ["TopologyWidget"]


class TopologyWidget(View):
    """The actors of a graph, their calls, and the values between them.

    With a trace, calls show the median time they took and values how large they were. Click a call
    to highlight it and what it takes and gives; a line, to highlight the value. Drag to pan, wheel
    to zoom (after a click, or with Ctrl); arrows go from call to call, Enter selects.

    Args:
        what: A plan, a compiled graph, a trace, or what has one as ``trace``.
        graph: Which graph of a trace with several: its number, or how its id begins.
        title: The title.

    Raises:
        TypeError: There is no graph in what was given.
        TraceError: The trace has no such graph, or several and none was chosen.
    """

    _esm = script("common", "topology")

    def __init__(
        self, what: Any, *, graph: int | str | None = None, title: str = "Topology"
    ) -> None:
        subject = subject_of(what, graph)
        shown = topology_payload(subject.plan, subject.record)
        about = f"{len(subject.plan.actors)} actors, {len(subject.plan.channels)} channels"
        super().__init__(about, topologies(subject, title), payload=pack(*shown), title=title)
