# SPDX-License-Identifier: Apache-2.0
"""The topology: ``rcg.views.svg.diagram`` draws it, ``topology.js`` adds events to it."""

from __future__ import annotations

from typing import Any

from rcg.text import stated
from rcg.views.data.packing import pack
from rcg.views.svg.pictures import topology_payload
from rcg_widgets.base import View, script
from rcg_widgets.static import topologies
from rcg_widgets.subject import subject_of

__all__ = ["TopologyWidget"]


class TopologyWidget(View):
    """The actors of a graph, their methods, and the values between them.

    The calls of one method are one box, and many alike actors are one card. Click such a box to
    open it; the buttons choose whether to show alike actors as one, each actor, or each call. With
    a trace, boxes show the median time of their calls and are tinted by their share of the critical
    path, and lines show how many bytes they carry. Click a call to highlight it with its inputs and
    outputs, and a line to highlight the value. Drag to pan, use the wheel to zoom (after a click,
    or with Ctrl). Arrow keys move from box to box, Enter opens or selects.

    Args:
        what: A plan, a compiled graph, a trace, or an object with one as ``trace``.
        graph: The graph, if the trace has several: its number, or the beginning of its id.
        title: The title; by default that of the graph.

    Raises:
        TypeError: The argument has no graph.
        TraceError: The trace has no such graph, or it has several and none was chosen.
    """

    _esm = script("common", "topology")

    def __init__(self, what: Any, *, graph: int | str | None = None, title: str = "") -> None:
        subject = subject_of(what, graph)
        title = stated(title, subject.state) if title else subject.title or "Topology"
        shown = topology_payload(subject.plan, subject.measured, subject.addresses, subject.marks)
        about = f"{len(subject.plan.actors)} actors, {len(subject.plan.channels)} channels"
        super().__init__(about, topologies(subject, title), payload=pack(*shown), title=title)
