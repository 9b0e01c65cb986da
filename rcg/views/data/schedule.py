# SPDX-License-Identifier: Apache-2.0
"""The schedule for the widget: ops by execution, measured and predicted, and their exchanges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rcg.compiler.costs import UNIT_NS
from rcg.compiler.simulate import Simulation, simulate
from rcg.errors import TraceError
from rcg.ir.ops import Op
from rcg.ir.plan import Plan
from rcg.text import plural, visible
from rcg.trace.analysis.rendezvous import rendezvous_of, with_waits
from rcg.trace.analysis.what_if import predict
from rcg.trace.model import SPAN_BASE, GraphTrace
from rcg.views.data import ViewPayload
from rcg.views.data.colours import EXECUTIONS
from rcg.views.data.edge_styles import COLLECTIVE, style_of
from rcg.views.data.lettering import DOT
from rcg.views.data.node_lanes import addresses_of, node_heads, order_of
from rcg.views.data.slicing import name_of_op

_MAX_MEASURED: Final = 200  # executions, unless the user says how many
_MAX_PREDICTED: Final = 8

_COLUMNS: Final = (
    ("start", "<f8"),
    ("duration", "<f4"),
    ("execution", "<f8"),  # more than 31 bits in two days
    ("lane", "<u2"),
    ("op", "<u2"),
    ("bytes", "<f8"),
)

Columns = Mapping[str, npt.NDArray[Any]]


def schedule_payload(
    plan: Plan,
    record: GraphTrace | None,
    *,
    origin_ns: int = 0,
    executions: int | None = None,
    op_cost: Callable[[Op], float] | None = None,
) -> ViewPayload:
    """Return the payload of a schedule.

    Args:
        plan: The plan.
        record: Its record; None without a measurement.
        origin_ns: The origin of times.
        executions: Limit of executions: the last ones of a record, the first ones of a plan. None:
            a number that can be distinguished.
        op_cost: Returns the duration of an op in nanoseconds, for the prediction; None to use the
            measured ones, or those of the plan.
    """
    measured = _nothing()
    if record is not None:
        measured = _measured(record, executions or _MAX_MEASURED, origin_ns)
    shown = np.unique(measured["execution"])
    count = executions or _MAX_PREDICTED if record is None else len(shown)
    first = int(shown[0]) if len(shown) else 0
    predicted = _predicted(plan, record, op_cost, first, count)
    head = {
        "lanes": _lanes(plan, record),
        "order": order_of(plan),
        "ops": [[name_of_op(op).text for op in program.ops] for program in plan.programs],
        "calls": [[op.is_call for op in program.ops] for program in plan.programs],
        "count": count,
        "first": first,
        "last": int(shown[-1]) if len(shown) else max(count - 1, 0),
        "measured": len(measured["start"]),
        "is_unit": record is None and op_cost is None and not plan.costs,
        "colours": EXECUTIONS,
        "subtitle": _subtitle(record is not None, count, op_cost is not None),
        "rendezvous": _rendezvous(plan),
        "looks": {name: asdict(style_of(name)) for name in (COLLECTIVE, "gloo")},
    }
    columns = {f"measured_{name}": column for name, column in measured.items()}
    columns |= {f"predicted_{name}": column for name, column in predicted.items()}
    return ViewPayload(head, columns)


def _measured(record: GraphTrace, most: int, origin_ns: int) -> Columns:
    """Return the time of each op without waiting, in the last executions."""
    starts, ends, executions, lanes, ops, sizes = [], [], [], [], [], []
    for number, lane in enumerate(record.lanes):
        events = with_waits(record, lane)
        events = events[events["op"] < SPAN_BASE]
        is_shown = np.array([not op.freed() for op in record.program(lane).ops] or [True])
        events = events[is_shown[events["op"]]]
        starts.append(events["start_ns"] + events["waited_ns"])
        ends.append(events["end_ns"])
        executions.append(events["execution"])
        lanes.append(np.full(len(events), number))
        ops.append(events["op"])
        sizes.append(events["bytes"])
    found = [np.concatenate(each) for each in (starts, ends, executions, lanes, ops, sizes)]
    if not len(found[0]):
        return _nothing()
    is_late = found[2] > found[2].max() - most
    start, end, execution, lane_of, op, size = (each[is_late] for each in found)
    took = np.maximum(end - start, 0)
    return _columns(start - origin_ns, took, execution, lane_of, op, size)


def _predicted(
    plan: Plan,
    record: GraphTrace | None,
    op_cost: Callable[[Op], float] | None,
    first: int,
    count: int,
) -> Columns:
    """Return the predicted ops of as many executions, with the pipeline as full as measured."""
    # No more executions were in flight than there are.
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
            0,
        )
        for span in simulation.timeline
        if before <= span.execution < before + count and (span.process, span.op) not in frees
    ]
    rows = np.array(spans, float).reshape(-1, 6)
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
        if op_cost is None and not plan.costs:
            return simulate(plan, lambda op: op.cost * UNIT_NS, executions)
        return simulate(plan, op_cost, executions)
    if op_cost is not None:
        return simulate(plan, op_cost, executions, window=window)
    try:
        return predict(record, executions=executions).simulation
    except TraceError:  # nothing was recorded
        return None


def _nothing() -> Columns:
    return _columns(*([np.empty(0)] * len(_COLUMNS)))


def _columns(*columns: npt.NDArray[Any]) -> Columns:
    start, duration, *rest = columns
    values = (start / 1e3, duration / 1e3, *rest)
    return {
        name: value.astype(dtype) for (name, dtype), value in zip(_COLUMNS, values, strict=True)
    }


def _rendezvous(plan: Plan) -> list[dict[str, Any]]:
    """Return which ops exchange tensors in every execution, as lanes and indexes of ops.

    The first end of a transfer is its writer.
    """
    numbers = {program.process: number for number, program in enumerate(plan.programs)}
    titles = {group.id: style_of(group.backend).title for group in plan.groups}
    return [
        {
            "name": f"{each.name} @{each.group} ({titles[each.group]})",
            "ends": [(numbers[process], op) for process, op in each.ends],
            "is_collective": each.is_collective,
        }
        for each in rendezvous_of(plan)
        if each.group is not None
    ]


def _lanes(plan: Plan, record: GraphTrace | None) -> list[dict[str, str]]:
    nodes = node_heads(plan, None if record is None else addresses_of(record))
    return [
        {
            "process": program.process,
            "label": visible(plan.label(program.process)),
            "node": nodes.get(program.process, ""),
        }
        for program in plan.programs
    ]


def _subtitle(is_measured: bool, count: int, is_given: bool) -> str:
    if not count:
        return "nothing ran"
    executions = plural(count, "execution")
    if is_measured:
        how = "bars measured, outlines predicted"
    else:
        how = "predicted" if is_given else "predicted, every call counts as one"
    return f"{executions} {DOT} {how}"
