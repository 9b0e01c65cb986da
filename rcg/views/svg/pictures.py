# SPDX-License-Identifier: Apache-2.0
"""The pictures of a graph and of its record.

This file decides what is drawn: which executions, which prediction, which figures. The other files
decide how it is drawn. Pages and notebooks show the same pictures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rcg.compiler.simulate import Simulation, simulate
from rcg.errors import DeadlockError, TraceError
from rcg.ir.plan import Plan
from rcg.text import time_text
from rcg.trace.analysis.summary import GraphSummary
from rcg.trace.analysis.what_if import predict
from rcg.trace.model import GraphTrace, Recording
from rcg.views.data.excerpt import excerpt_of
from rcg.views.data.figures import card_of, topology_figures_of
from rcg.views.data.node_lanes import addresses_of
from rcg.views.data.slicing import slices_of
from rcg.views.data.topology import topology_of
from rcg.views.svg.canvas import WIDTH
from rcg.views.svg.schedule import schedule_of
from rcg.views.svg.summary import summary_of
from rcg.views.svg.timeline import timeline_of
from rcg.views.svg.topology import svg_of

_NUM_IN_TIMELINE: Final = 4  # executions in a timeline
_NUM_PREDICTED: Final = 8  # executions of a prediction without a measurement
_MAX_SIMULATED: Final = 100_000


def topology_picture(
    plan: Plan,
    *,
    title: str,
    actor_ids: Mapping[str, str] | None = None,
    addresses: Mapping[str, str] | None = None,
    channel_details: bool = False,
    measured: tuple[GraphTrace, GraphSummary] | None = None,
) -> str:
    """Return actors, methods and the values between them as the text of an SVG file.

    Args:
        plan: The plan.
        title: The title.
        actor_ids: Ray's ids of the actors, for hover texts.
        addresses: The addresses of the nodes of the cluster; None takes those of the record.
        channel_details: Show which channel carries each value.
        measured: A record of the graph and its summary, for times and sizes in the picture.
    """
    if addresses is None and measured is not None:
        addresses = addresses_of(measured[0])
    return svg_of(
        topology_of(plan, actor_ids, addresses),
        title=title,
        channel_details=channel_details,
        measured=None if measured is None else topology_figures_of(*measured),
    )


def summary_picture(summary: GraphSummary) -> str:
    """Return where the time of each actor went, and the key figures."""
    return summary_of(card_of(summary), width=WIDTH)


def schedule_picture(trace: Recording, graph: GraphTrace) -> str | None:
    """Return what each actor did when, and the prediction; None without a complete execution."""
    excerpt = excerpt_of(graph, trace.start_ns, trace.end_ns)
    if excerpt is None:
        return None
    predicted = prediction_of(graph, excerpt.last - excerpt.first + 1)
    return schedule_of(
        slices_of(graph, excerpt.start_ns, excerpt.end_ns, trace.start_ns),
        predicted=predicted,
        unit_ns=None if predicted is None else 1.0,
        about=excerpt.words,
        width=WIDTH,
    )


def predicted_schedule(plan: Plan, limit: int) -> str:
    """Return the predicted schedule of a plan; all calls take equally long if it has no costs.

    Args:
        plan: The plan.
        limit: The limit of executions in flight.
    """
    return schedule_of(
        predicted=simulate(plan, executions=_NUM_PREDICTED, window=limit),
        unit_ns=1.0 if plan.costs else None,
        width=WIDTH,
    )


def timeline_picture(
    trace: Recording, graph: GraphTrace, *, most: int = _NUM_IN_TIMELINE
) -> str | None:
    """Return the timeline of a few executions; None without a complete execution."""
    excerpt = excerpt_of(graph, trace.start_ns, trace.end_ns, most=most)
    if excerpt is None:
        return None
    slices = slices_of(graph, excerpt.start_ns, excerpt.end_ns, trace.start_ns)
    return timeline_of(slices, about=excerpt.words, width=WIDTH)


def whole_timeline_picture(trace: Recording, graph: GraphTrace) -> str:
    """Return the timeline of a whole trace."""
    slices = slices_of(graph, trace.start_ns, trace.end_ns)
    about = f"all {time_text(trace.duration_ns)}"
    return timeline_of(slices, title="Whole trace", about=about, width=WIDTH)


def prediction_of(graph: GraphTrace, executions: int) -> Simulation | None:
    """Return a prediction from the measured costs of a graph, in ns; None if that fails.

    Args:
        graph: The record of the graph.
        executions: Number of executions to compare. The prediction has more before and after them.
    """
    count = executions + 6 * graph.limit
    ops = sum(len(program.ops) for program in graph.plan.programs)
    if ops * executions > _MAX_SIMULATED:
        return None
    most = max(executions, _MAX_SIMULATED // ops)
    try:
        return predict(graph, executions=min(count, most)).simulation
    except (TraceError, DeadlockError):
        return None
