# SPDX-License-Identifier: Apache-2.0
"""The pictures of a graph and of its record.

This file decides what is drawn: which executions, which prediction, which figures. The other files
decide how it is drawn. Pages and notebooks show the same pictures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from rcg.compiler.simulate import Simulation, simulate
from rcg.errors import DeadlockError, TraceError
from rcg.ir.plan import Plan
from rcg.text import time_text
from rcg.trace.analysis.summary import GraphSummary
from rcg.trace.analysis.what_if import predict
from rcg.trace.model import SPAN_BASE, GraphTrace, Recording
from rcg.views.data.figures import card_of, topology_figures_of
from rcg.views.data.lettering import DOT
from rcg.views.data.node_lanes import addresses_of
from rcg.views.data.schedule import (
    MAX_PREDICTED,
    MAX_WIDTHS,
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

_MAX_EXECUTIONS: Final = 8  # in the schedule and the timeline of a trace
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
    predicted = prediction_of(graph, excerpt.last - excerpt.first + 1)
    return schedule_of(
        slices_of(graph, excerpt.start_ns, excerpt.end_ns, trace.start_ns),
        predicted=predicted,
        unit_ns=None if predicted is None else 1.0,
        alike=alike_in(graph),
        about=_about(trace, excerpt),
        width=WIDTH,
    )


def _about(trace: Recording, excerpt: Excerpt) -> str:
    """Return which executions a picture shows, and which part of the trace."""
    first, last = (each - trace.start_ns for each in (excerpt.start_ns, excerpt.end_ns))
    when = f"{time_text(first)} to {time_text(last)} of {time_text(trace.duration_ns)}"
    return f"{excerpt.words} {DOT} {when}"


def predicted_schedule(plan: Plan, limit: int) -> str:
    """Return the predicted schedule of a plan with at most so many executions in flight.

    All calls take equally long if the plan has no costs.
    """
    predicted = simulate(plan, executions=MAX_PREDICTED, window=limit)
    predicted = predicted.first(executions_to_show(predicted))
    return schedule_of(
        predicted=predicted,
        unit_ns=1.0 if plan.costs else None,
        alike=alike_of(predicted),
        width=WIDTH,
    )


def timeline_picture(
    trace: Recording, graph: GraphTrace, *, most: int = _MAX_EXECUTIONS
) -> str | None:
    """Return the timeline of the executions of the schedule; None without a complete execution."""
    excerpt = excerpt_of(graph, trace.start_ns, trace.end_ns, most=most)
    if excerpt is None:
        return None
    slices = slices_of(graph, excerpt.start_ns, excerpt.end_ns, trace.start_ns)
    path = path_of(graph, slices, excerpt.last)
    return timeline_of(slices, path=path, about=_about(trace, excerpt), width=WIDTH)


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


# --- the part of a trace that is shown -----------------------------------------------------------

_GOOD_WIDTHS: Final = 48
"""An excerpt should last at most as long as this many calls of median length."""

_MAX_CALLS: Final = 24  # of one process, unless one execution has more

_MIN_EXECUTIONS: Final = 3
"""An excerpt of so many executions is made shorter only if it lasts ``MAX_WIDTHS``."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A part of a trace.

    Attributes:
        start_ns: When it begins.
        end_ns: When it ends.
        first: The first execution with all its calls in it.
        last: The last one.
        is_open: Whether it shows a call that had not returned when the trace ended.
    """

    start_ns: int
    end_ns: int
    first: int
    last: int
    is_open: bool = False

    @property
    def words(self) -> str:
        """A description of the executions."""
        if self.is_open:
            return f"execution {self.first}, not finished"
        if self.first == self.last:
            return f"execution {self.first}"
        return f"executions {self.first} to {self.last}"


def excerpt_of(
    graph: GraphTrace, start_ns: int, end_ns: int, *, most: int = _MAX_EXECUTIONS
) -> Excerpt | None:
    """Return an excerpt with the last executions that ran in a full pipeline, at most so many.

    The pipeline empties at the end, so as many executions as may be in flight are left out there,
    if there are enough. If a call had not returned when the trace ended, and took longer than the
    excerpt would last, the excerpt shows that call instead. If no execution has all its calls in
    the trace, there is no excerpt.
    """
    calls = []
    counts_of_calls = []
    for lane in graph.lanes:
        ops = graph.program(lane).ops
        is_call = np.array([op.is_call for op in ops] + [False])
        counts_of_calls.append(int(is_call.sum()))
        op = np.where(lane.events["op"] < SPAN_BASE, lane.events["op"], len(ops))
        calls.append(lane.events[is_call[np.minimum(op, len(ops))]])
    rows = np.concatenate([each[["execution", "start_ns", "end_ns"]] for each in calls])
    rows = rows[(rows["start_ns"] >= start_ns) & (rows["end_ns"] <= end_ns)]
    executions, counts = np.unique(rows["execution"], return_counts=True)
    whole = executions[counts >= max(sum(counts_of_calls), 1)]
    held = _excerpt_of_hang(graph, start_ns, end_ns)
    if not len(whole):
        return held
    busiest = max([1, *counts_of_calls])
    count = max(1, min(most, _MAX_CALLS // busiest, len(whole)))
    first, last, begun, ended = _choose(rows, whole, count, graph.limit)
    # With long gaps between calls, fewer executions are shown, so that a call is wide enough.
    usual = max(1.0, float(np.median(rows["end_ns"] - rows["start_ns"])))
    for least, widths in ((_MIN_EXECUTIONS, _GOOD_WIDTHS), (1, MAX_WIDTHS)):
        too_long = (ended - begun) / usual / widths
        if too_long > 1 and count > least:
            count = max(least, int(count / too_long))
            first, last, begun, ended = _choose(rows, whole, count, graph.limit)
    if held is not None and held.end_ns - held.start_ns > ended - begun:
        return held
    margin = (ended - begun) // 60
    return Excerpt(max(start_ns, begun - margin), min(end_ns, ended + margin), first, last)


def _excerpt_of_hang(graph: GraphTrace, start_ns: int, end_ns: int) -> Excerpt | None:
    """Return the excerpt of the longest call that has not returned; None without one."""
    calls = [
        lane.open
        for lane in graph.lanes
        if lane.open is not None
        and lane.open.since_ns < end_ns
        and lane.open.op < len(graph.program(lane).ops)
        and graph.op(lane, lane.open.op).is_call
    ]
    if not calls:
        return None
    longest = min(calls, key=lambda each: each.since_ns)
    before = (end_ns - longest.since_ns) // 8
    start = max(start_ns, longest.since_ns - before)
    return Excerpt(start, end_ns, longest.execution, longest.execution, is_open=True)


def _choose(
    rows: npt.NDArray[np.void], whole: npt.NDArray[np.int64], count: int, limit: int
) -> tuple[int, int, int, int]:
    """Return the first and the last of ``count`` executions, and when they began and ended."""
    end = len(whole) - min(limit, len(whole) - count)
    first, last = int(whole[end - count]), int(whole[end - 1])
    shown = rows[(rows["execution"] >= first) & (rows["execution"] <= last)]
    return first, last, int(shown["start_ns"].min()), int(shown["end_ns"].max())
