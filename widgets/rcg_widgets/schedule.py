# SPDX-License-Identifier: Apache-2.0
"""Who works on which execution when, predicted and measured: ``schedule.js`` draws it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rcg.compiler.simulate import Simulation, default_op_cost, simulate
from rcg.errors import TraceError
from rcg.ir.ops import Op
from rcg.ir.plan import Plan
from rcg.trace.trace import SPAN_BASE, GraphTrace
from rcg.trace.what_if import predict
from rcg.views.palette import EXECUTIONS
from rcg.views.text import visible
from rcg_widgets.base import View, script
from rcg_widgets.payload import pack
from rcg_widgets.static import schedules
from rcg_widgets.subject import subject_of

__all__ = ["ScheduleWidget"]

_UNIT_NS: Final = 1e6  # what a call counts for where nothing was measured

_COLUMNS: Final = (
    ("start", "<f8"),
    ("duration", "<f4"),
    ("execution", "<f8"),  # more than 31 bits in two days
    ("lane", "<u2"),
    ("op", "<u2"),
)

Columns = Mapping[str, npt.NDArray[Any]]


class ScheduleWidget(View):
    """The schedule of a graph, execution by execution.

    Each colour is an execution. Bars are what was measured, outlines below what is predicted with
    what the ops took; with a plan alone, the prediction counts every call as one unit.
    Step through the executions, choose which processes are shown and what of the two.

    Args:
        what: A plan, a compiled graph, a trace, or what has one as ``trace``.
        graph: Which graph of a trace with several: its number, or how its id begins.
        executions: How many executions at most: the last ones of a trace, the first ones of a plan
            (8 of them, if this is None; 200 of a trace).
        op_cost: How long an op takes in nanoseconds, for the prediction. Without, as measured.
        title: What stands above it.

    Raises:
        TypeError: There is no graph in what was given.
        TraceError: The trace has no such graph, or several and none was chosen.
        ValueError: ``executions`` is below 1.
    """

    _esm = script("common", "lanes", "schedule")

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
        record, plan = subject.record, subject.plan
        measured = _nothing()
        if record is not None:
            measured = _measured(record, executions or 200, subject.start_ns)
        shown = np.unique(measured["execution"])
        count = executions or 8 if record is None else len(shown)
        first = int(shown[0]) if len(shown) else 0
        predicted = _predicted(plan, record, op_cost, first, count)
        head = {
            "lanes": _lanes(plan),
            "ops": [[visible(op.title()) for op in program.ops] for program in plan.programs],
            "calls": [[op.is_call for op in p.ops] for p in plan.programs],
            "first": first,
            "last": int(shown[-1]) if len(shown) else max(count - 1, 0),
            "measured": len(measured["start"]),
            "is_unit": record is None and op_cost is None,
            "colours": EXECUTIONS,
            "subtitle": _subtitle(record is not None, count, op_cost is not None),
        }
        columns = {f"measured_{name}": column for name, column in measured.items()}
        columns |= {f"predicted_{name}": column for name, column in predicted.items()}
        super().__init__(
            f"{len(plan.actors)} actors, {count:,} executions",
            schedules(subject),
            payload=pack(head, columns),
            title=title,
        )


def _measured(record: GraphTrace, most: int, origin_ns: int) -> Columns:
    """What each op did when it did not wait, in the last executions; times from an origin on."""
    starts, ends, executions, lanes, ops = [], [], [], [], []
    for number, lane in enumerate(record.lanes):
        events = lane.events[lane.events["op"] < SPAN_BASE]
        is_shown = np.array([not op.freed() for op in record.program(lane).ops] or [True])
        events = events[is_shown[events["op"]]]
        starts.append(events["start_ns"] + events["waited_ns"])
        ends.append(events["end_ns"])
        executions.append(events["execution"])
        lanes.append(np.full(len(events), number))
        ops.append(events["op"])
    found = [np.concatenate(each) for each in (starts, ends, executions, lanes, ops)]
    if not len(found[0]):
        return _nothing()
    is_late = found[2] > found[2].max() - most
    start, end, execution, lane_of, op = (each[is_late] for each in found)
    return _columns(start - origin_ns, np.maximum(end - start, 0), execution, lane_of, op)


def _predicted(
    plan: Plan,
    record: GraphTrace | None,
    op_cost: Callable[[Op], float] | None,
    first: int,
    count: int,
) -> Columns:
    """Bars of as many executions, in the state that the pipeline was in: full, or just started."""
    # No more were under way than there were.
    window = min(record.limit, max(count, 1)) if record is not None else 10
    before = min(first, window) if record is not None else 0
    after = window if record is not None else 0
    total = before + count + after
    simulation = _simulated(plan, record, op_cost, total, window) if count else None
    if simulation is None:
        return _nothing()
    numbers = {program.process: number for number, program in enumerate(plan.programs)}
    frees = {
        (program.process, at)
        for program in plan.programs
        for at, op in enumerate(program.ops)
        if op.freed()
    }
    spans = [
        (
            span.start,
            span.end - span.start,
            span.execution - before + first,
            numbers[span.process],
            span.op,
        )
        for span in simulation.timeline
        if before <= span.execution < before + count and (span.process, span.op) not in frees
    ]
    rows = np.array(spans, float).reshape(-1, 5)
    rows[:, 0] -= rows[:, 0].min(initial=np.inf) if len(rows) else 0
    return _columns(*rows.T)


def _simulated(
    plan: Plan,
    record: GraphTrace | None,
    op_cost: Callable[[Op], float] | None,
    executions: int,
    window: int,
) -> Simulation | None:
    if record is None:
        cost = op_cost or (lambda op: default_op_cost(op) * _UNIT_NS)
        return simulate(plan, cost, executions)
    if op_cost is not None:
        return simulate(plan, op_cost, executions, window=window)
    try:
        return predict(record, executions=executions).simulation
    except TraceError:  # nothing was recorded
        return None


def _nothing() -> Columns:
    return _columns(*([np.empty(0)] * 5))


def _columns(*columns: npt.NDArray[Any]) -> Columns:
    start, duration, *rest = columns
    values = (start / 1e3, duration / 1e3, *rest)
    return {
        name: value.astype(dtype) for (name, dtype), value in zip(_COLUMNS, values, strict=True)
    }


def _lanes(plan: Plan) -> list[dict[str, str]]:
    return [
        {"process": program.process, "label": visible(plan.label(program.process))}
        for program in plan.programs
    ]


def _subtitle(is_measured: bool, count: int, is_given: bool) -> str:
    if not count:
        return "nothing ran"
    executions = f"{count:,} execution{'' if count == 1 else 's'}"
    if is_measured:
        how = "bars measured, outlines predicted"
    else:
        how = "predicted" if is_given else "predicted, every call counts as one"
    return f"{executions} \N{MIDDLE DOT} {how}"
