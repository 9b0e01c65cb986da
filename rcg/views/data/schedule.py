# SPDX-License-Identifier: Apache-2.0
"""The data of a schedule: ops by execution, measured and predicted, and their exchanges.

The widget draws ``schedule_payload``. For a picture, ``fit`` fits a prediction to a measurement:
its unit of time, its executions and its shift.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rcg.compiler.costs import UNIT_NS
from rcg.compiler.simulate import Simulation, simulate
from rcg.errors import TraceError
from rcg.ir.ops import Op
from rcg.ir.plan import Plan
from rcg.text import plural, time_text, visible
from rcg.trace.analysis.parts import TimeKind
from rcg.trace.analysis.rendezvous import rendezvous_of, with_waits
from rcg.trace.analysis.what_if import predict
from rcg.trace.model import SPAN_BASE, GraphTrace
from rcg.views.data import ViewPayload
from rcg.views.data.colours import EXECUTIONS
from rcg.views.data.edge_styles import COLLECTIVE, style_of
from rcg.views.data.lettering import DOT
from rcg.views.data.node_lanes import addresses_of, node_heads, order_of
from rcg.views.data.slices import Slices
from rcg.views.data.slicing import name_of_op, slices_of_simulation

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
        measured = _measured_columns(record, executions or _MAX_MEASURED, origin_ns)
    shown = np.unique(measured["execution"])
    count = executions or _MAX_PREDICTED if record is None else len(shown)
    first = int(shown[0]) if len(shown) else 0
    predicted = _predicted_columns(plan, record, op_cost, first, count)
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


def _measured_columns(record: GraphTrace, most: int, origin_ns: int) -> Columns:
    """Return the time of each op without waiting, in the last executions."""
    found = []
    for number, lane in enumerate(record.lanes):
        events = with_waits(record, lane)
        events = events[events["op"] < SPAN_BASE]
        is_shown = np.array([not op.freed() for op in record.program(lane).ops] or [True])
        events = events[is_shown[events["op"]]]
        start = events["start_ns"] + events["waited_ns"]
        took = np.maximum(events["end_ns"] - start, 0)
        lanes = np.full(len(events), number)
        rest = events["execution"], lanes, events["op"], events["bytes"]
        found.append((start - origin_ns, took, *rest))
    columns = [np.concatenate(each) for each in zip(*found, strict=True)]
    execution = columns[2]
    is_late = execution > execution.max(initial=0) - most
    return _columns(*(column[is_late] for column in columns))


def _predicted_columns(
    plan: Plan,
    record: GraphTrace | None,
    op_cost: Callable[[Op], float] | None,
    first: int,
    count: int,
) -> Columns:
    """Return the predicted ops of as many executions, with the pipeline as full as measured."""
    numbers = {program.process: number for number, program in enumerate(plan.programs)}
    # No more executions were in flight than there are.
    window, before, after = 10, 0, 0
    if record is not None:
        window = after = min(record.limit, max(count, 1))
        before = min(first, window)
    total = before + count + after
    simulation = _simulation(plan, record, op_cost, total, window) if count else None
    if simulation is None:
        return _nothing()
    spans = []
    for span in simulation.timeline:
        number, execution = numbers[span.process], span.execution - before
        if 0 <= execution < count and not plan.programs[number].ops[span.op].freed():
            took = span.end - span.start
            spans.append((span.start, took, execution + first, number, span.op, 0))
    rows = np.array(spans, float).reshape(-1, 6)
    rows[:, 0] -= rows[:, 0].min(initial=np.inf) if len(rows) else 0
    return _columns(*rows.T)


def _simulation(
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
        return predict(record, executions=executions)
    except TraceError:  # nothing was recorded
        return None


def _nothing() -> Columns:
    return _columns(*([np.empty(0)] * len(_COLUMNS)))


def _columns(*columns: npt.NDArray[Any]) -> Columns:
    start, duration, *rest = columns
    values = zip(_COLUMNS, (start / 1e3, duration / 1e3, *rest), strict=True)
    return {name: value.astype(dtype) for (name, dtype), value in values}


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
    how = "predicted" if is_given else "predicted, every call counts as one"
    if is_measured:
        how = "bars measured, outlines predicted"
    return f"{plural(count, 'execution')} {DOT} {how}"


# --- a prediction beside a measurement -----------------------------------------------------------

CALL_NS: Final = 1e6
"""The length of a call in nanoseconds, where calls are the unit of time."""

_MAX_TRIED_OFFSETS: Final = 40
_MAX_MISFIT: Final = 4
"""The mean error of a prediction, in calls, from which on it is a number instead of bars."""

_MAX_DRIFT: Final = 0.25
"""The same for how far a lane moves from where it is on average, in periods."""


@dataclass(frozen=True, eq=False)
class FittedPrediction:
    """A prediction in the time and with the executions of a measurement.

    Attributes:
        slices: The slices; None if the prediction does not fit the measurement.
        shift_ns: How far the slices are moved to fit.
        note: What the prediction is based on, or why it is left out.
    """

    slices: Slices | None
    shift_ns: float
    note: str


def fit(
    simulation: Simulation, unit_ns: float | None, measured: Slices | None = None
) -> FittedPrediction:
    """Return the slices of a prediction, fitted to a measurement if there is one.

    Args:
        simulation: The prediction.
        unit_ns: The length of one unit of its time in nanoseconds. None: a unit is a call, and all
            calls cost the same, so much that executions follow one another as measured.
        measured: The slices of a measurement.
    """
    is_rough = unit_ns is None  # and says so
    if unit_ns is None:
        unit_ns = CALL_NS
        note = "predicted, equal cost per call"
        if measured is not None:
            rough = slices_of_simulation(simulation, CALL_NS)
            # By their periods, or they drift apart from one execution to the next.
            pairs = [[_period(_starts(each)) for each in (measured, rough)]]
            pairs.append([_mean_call(each) for each in (measured, rough)])
            unit_ns = next(
                (CALL_NS * own / other for own, other in pairs if own and other), CALL_NS
            )
            note += f", {time_text(unit_ns)} each"
    else:
        note = "predicted from measured costs"
    predicted = slices_of_simulation(simulation, unit_ns)
    if measured is None:
        return FittedPrediction(predicted, 0.0, note)
    first, last = execution_range(measured)
    shown = range(first, last + 1)
    spare = max(0, simulation.executions - len(shown))
    seen, told = _starts(measured), _starts(predicted)
    misfit, offset, shift = _align(seen, told, shown, spare)
    period, predicted_period = _period(seen), _period(told)
    drift = 0.0 if is_rough else _drift(seen, told, shown, offset)
    if misfit > _MAX_MISFIT * max(_mean_call(measured), 1.0) or drift > _MAX_DRIFT * period:
        note = "the prediction does not fit, and is left out"
        if period and predicted_period:
            note = (
                f"predicted: one execution each {time_text(predicted_period)}, measured: "
                f"{time_text(period)}"
            )
        return FittedPrediction(None, 0.0, note)
    return FittedPrediction(replace(predicted, execution=predicted.execution + offset), shift, note)


def _period(starts: dict[tuple[int, int], int]) -> float:
    """Return the median time between two executions of a lane; 0 if there is none."""
    times = [
        float(starts[lane, execution + 1] - start)
        for (lane, execution), start in starts.items()
        if (lane, execution + 1) in starts
    ]
    return float(np.median(times)) if times else 0.0


def _drift(
    measured: dict[tuple[int, int], int],
    predicted: dict[tuple[int, int], int],
    executions: range,
    offset: int,
) -> float:
    """Return the mean distance of a lane's calls from where its prediction is on average."""
    by_lane: dict[int, list[int]] = {}
    for (lane, execution), start in measured.items():
        if execution in executions and (lane, execution - offset) in predicted:
            by_lane.setdefault(lane, []).append(start - predicted[lane, execution - offset])
    away = [np.abs(np.array(each) - np.median(each)) for each in by_lane.values()]
    return float(np.concatenate(away).mean()) if away else 0.0


def execution_range(slices: Slices) -> tuple[int, int]:
    """Return the first and the last of the executions that have the most calls in the window."""
    calls = slices.where("call")
    found, counts = np.unique(slices.execution[calls], return_counts=True)
    if not len(found):
        return 0, 0
    whole = found[counts == counts.max()]
    return int(whole[0]), int(whole[-1])


def _mean_call(slices: Slices) -> float:
    calls = slices.where("call") & (slices.kind == TimeKind.COMPUTE)
    # Without those that the window cuts.
    calls &= (slices.start > 0) & (slices.start + slices.duration < slices.duration_ns)
    return float(slices.duration[calls].mean()) if calls.any() else 0.0


def _align(
    measured: dict[tuple[int, int], int],
    predicted: dict[tuple[int, int], int],
    executions: range,
    spare: int,
) -> tuple[float, int, float]:
    """Return the misfit, the offset of execution numbers and the shift in time of the best fit.

    The last executions of a prediction run while the pipeline empties, so a third of the spare ones
    is left out. Several offsets are tried because executions may run in groups, of as many as are
    in flight at once.
    """
    wanted = [key for key in measured if key[1] in executions]
    latest = spare - spare // 3
    best = (float("inf"), executions.start - latest, 0.0)
    for begin in range(latest, max(-1, latest - _MAX_TRIED_OFFSETS), -1):
        offset = executions.start - begin
        differences = [
            measured[lane, execution] - predicted[lane, execution - offset]
            for lane, execution in wanted
            if (lane, execution - offset) in predicted
        ]
        if differences:
            shift = float(np.median(differences))
            misfit = float(np.abs(np.array(differences) - shift).mean())
            # An earlier one has to fit clearly better.
            if misfit < best[0] * 0.98:
                best = (misfit, offset, shift)
    return best


def _starts(slices: Slices) -> dict[tuple[int, int], int]:
    """Return when each lane began its first call of each execution, by lane and execution."""
    starts: dict[tuple[int, int], int] = {}
    for row in np.flatnonzero(slices.where("call")).tolist():
        key = int(slices.lane[row]), int(slices.execution[row])
        starts[key] = min(starts.get(key, int(slices.start[row])), int(slices.start[row]))
    return starts
