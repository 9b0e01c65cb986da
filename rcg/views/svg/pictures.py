# SPDX-License-Identifier: Apache-2.0
"""The pictures of a graph and of its record.

This file decides what is drawn: which executions, which prediction, which figures. The other files
decide how it is drawn. Pages and notebooks show the same pictures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from rcg.compiler.simulate import Simulation, simulate
from rcg.errors import DeadlockError, TraceError
from rcg.ir.plan import Plan
from rcg.text import stated, time_text
from rcg.trace.analysis.summary import GraphSummary
from rcg.trace.analysis.what_if import predict
from rcg.trace.model import GraphTrace, Recording
from rcg.views.data.excerpts import MAX_EXECUTIONS, Excerpt, excerpt_of
from rcg.views.data.figures import card_of, topology_figures_of
from rcg.views.data.lettering import DOT
from rcg.views.data.node_lanes import addresses_of
from rcg.views.data.schedule import (
    MAX_PREDICTED,
    alike_in,
    alike_of,
    executions_to_show,
)
from rcg.views.data.slices import Slices
from rcg.views.data.slicing import slices_of
from rcg.views.data.timeline import path_of
from rcg.views.data.topology import topology_of
from rcg.views.svg.canvas import WIDTH
from rcg.views.svg.schedule import schedule_of
from rcg.views.svg.summary import summary_of
from rcg.views.svg.timeline import timeline_of
from rcg.views.svg.topology import svg_of

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
        channel_details: Show each call, and which channel carries each value.
        measured: A record of the graph and its summary, for times and sizes in the picture.
    """
    figures = None
    if measured is not None:
        figures = topology_figures_of(*measured)
        addresses = addresses_of(measured[0]) if addresses is None else addresses
    topology = topology_of(plan, actor_ids, addresses)
    return svg_of(topology, title=title, channel_details=channel_details, measured=figures)


def summary_picture(summary: GraphSummary, width: float = WIDTH, *, has_answer: bool = True) -> str:
    """Return where the time of each actor went, and the key figures.

    What limits the graph and what would help is left out where that stands elsewhere.
    """
    figures = card_of(summary)
    if not has_answer:
        figures = replace(figures, answer="", advice=())
    return summary_of(figures, width=width)


def schedule_picture(trace: Recording, graph: GraphTrace) -> str | None:
    """Return what each actor did when, and the prediction; None without a complete execution."""
    excerpt = excerpt_of(graph, trace.start_ns, trace.end_ns)
    if excerpt is None:
        return None
    # What hangs was not predicted.
    predicted = None if excerpt.is_open else prediction_of(graph, excerpt.last - excerpt.first + 1)
    return schedule_of(
        slices_of(graph, excerpt.start_ns, excerpt.end_ns, trace.start_ns),
        predicted=predicted,
        unit_ns=None if predicted is None else 1.0,
        alike=alike_in(graph),
        title=stated("Schedule", graph.state),
        about=_about(trace, excerpt),
        width=WIDTH,
    )


def _about(trace: Recording, excerpt: Excerpt) -> str:
    """Return which executions a picture shows, and which part of the trace."""
    first, last = (each - trace.start_ns for each in (excerpt.start_ns, excerpt.end_ns))
    when = f"{time_text(first)} to {time_text(last)} of {time_text(trace.duration_ns)}"
    return f"{excerpt.words} {DOT} {when}"


def predicted_schedule(plan: Plan, limit: int, state: str = "") -> str:
    """Return the predicted schedule of a plan with at most so many executions in flight.

    All calls take equally long if the plan has no costs. The title says the state of the graph.
    """
    predicted = simulate(plan, executions=MAX_PREDICTED, window=limit)
    predicted = predicted.first(executions_to_show(predicted))
    return schedule_of(
        predicted=predicted,
        unit_ns=1.0 if plan.costs else None,
        alike=alike_of(predicted),
        title=stated("Schedule", state),
        width=WIDTH,
    )


def timeline_picture(
    trace: Recording, graph: GraphTrace, *, most: int = MAX_EXECUTIONS
) -> str | None:
    """Return the timeline of the executions of the schedule; None without a complete execution."""
    excerpt = excerpt_of(graph, trace.start_ns, trace.end_ns, most=most)
    if excerpt is None:
        return None
    slices = slices_of(graph, excerpt.start_ns, excerpt.end_ns, trace.start_ns)
    path = path_of(graph, slices, excerpt.last)
    title = stated("Timeline", graph.state)
    return timeline_of(slices, path=path, title=title, about=_about(trace, excerpt), width=WIDTH)


def whole_timeline_picture(trace: Recording, slices: Slices) -> str:
    """Return the timeline of a whole trace, whose slices are given."""
    about = f"all {time_text(trace.duration_ns)}"
    return timeline_of(slices, title="Whole trace", about=about, width=WIDTH)


def prediction_of(graph: GraphTrace, executions: int) -> Simulation | None:
    """Return a prediction from the measured costs of a graph, in ns; None if that fails.

    It has more executions than these, before and after them.
    """
    ops = sum(len(program.ops) for program in graph.plan.programs)
    if ops * executions > _MAX_SIMULATED:
        return None
    count = min(executions + 6 * graph.limit, max(executions, _MAX_SIMULATED // ops))
    try:
        return predict(graph, executions=count)
    except (TraceError, DeadlockError):
        return None
