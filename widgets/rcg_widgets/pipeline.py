# SPDX-License-Identifier: Apache-2.0
"""The pipeline: ``scene.js`` paints the scene of ``rcg.views.scenes.pipeline``."""

from __future__ import annotations

from typing import Any

from rcg.errors import TraceError
from rcg.text import stated
from rcg.trace.measured import Measured
from rcg.views.data.packing import pack
from rcg.views.scenes.pipeline import pipeline_scene
from rcg_widgets.base import View, script
from rcg_widgets.static import pipelines
from rcg_widgets.subject import recorded

__all__ = ["PipelineWidget"]


class PipelineWidget(View):
    """One execution of a pipeline: a cell for each call, with the number of its micro-batch.

    Below the measured cells are the ideal ones: each call takes the median of its method, and waits
    for its values and its actor only. The bubble at the right is the share of the execution, from
    its first call to its last, in which a stage runs none of its calls. A click on a cell lights
    its micro-batch through all stages. The execution is the middle one of those that are whole in
    the trace.

    Args:
        trace: A trace, a graph of a trace, or an object with one as ``trace``.
        graph: The graph, if the trace has several: its number, or the beginning of its id.
        title: The title; None for what stands out, and the bubble.

    Raises:
        TypeError: The argument has no trace.
        TraceError: The trace has no such graph, or it has several and none was chosen; the graph
            has no micro-batches; or no execution has all its calls in the trace.
    """

    _esm = script("common", "lanes", "panel", "scene")

    def __init__(
        self, trace: Any, *, graph: int | str | None = None, title: str | None = None
    ) -> None:
        subject, record = recorded(trace, graph)
        scene = pipeline_scene(Measured.of(subject.trace, record))
        if scene is None:
            raise TraceError(
                "no pipeline: it needs an execution with all its calls in the trace, of a graph "
                "that calls methods of its actors several times, for one micro-batch each"
            )
        super().__init__(
            f"{len(record.plan.actors)} actors, {scene.title}",
            pipelines(subject),
            payload=pack(*scene.to_payload()),
            title=stated(scene.title if title is None else title, subject.state),
        )
