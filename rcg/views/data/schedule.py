# SPDX-License-Identifier: Apache-2.0
"""The data of a schedule: ops by execution, measured and predicted, and their exchanges.

The widget draws ``schedule_payload``. ``fit`` fits a prediction to a measurement: its unit of time,
its executions and its shift. ``marks_of`` says which calls have one colour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rcg.compiler.costs import UNIT_NS
from rcg.compiler.simulate import Simulation, simulate
from rcg.errors import TraceError
from rcg.ir.ops import Op
from rcg.ir.plan import Plan
from rcg.text import plural, rate_text, time_text, visible
from rcg.trace.analysis.parts import TimeKind, events_of
from rcg.trace.analysis.rendezvous import rendezvous_of, with_waits
from rcg.trace.analysis.what_if import predict
from rcg.trace.model import SPAN_BASE, GraphTrace
from rcg.views.data import ViewPayload
from rcg.views.data.alike import FEW, alike_processes, row_of, typical
from rcg.views.data.colours import EXECUTIONS
from rcg.views.data.edge_styles import COLLECTIVE, style_of
from rcg.views.data.excerpts import MAX_WIDTHS, Excerpt, excerpt_of
from rcg.views.data.lettering import DOT
from rcg.views.data.node_lanes import addresses_of, lanes_under, node_heads, order_of
from rcg.views.data.slices import Ints, Slices
from rcg.views.data.slicing import name_of_op, slices_of, slices_of_simulation

_MAX_MEASURED: Final = 200  # executions, unless the user says how many
MAX_PREDICTED: Final = 8
"""Most executions of a prediction that are drawn."""

_NUM_CALLS: Final = 60  # of one actor, in the executions that are predicted or shown at first

_COLUMNS: Final = (
    ("start", "<f8"),
    ("duration", "<f8"),
    ("execution", "<f8"),  # more than 31 bits in two days
    ("lane", "<u2"),
    ("op", "<u2"),
    ("bytes", "<f8"),
)

Columns = Mapping[str, npt.NDArray[Any]]
Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.integer[Any]]


def schedule_payload(
    plan: Plan,
    record: GraphTrace | None,
    *,
    origin_ns: int = 0,
    end_ns: int = 0,
    executions: int | None = None,
    op_cost: Callable[[Op], float] | None = None,
) -> ViewPayload:
    """Return the payload of a schedule, whose times count from an origin.

    Calls that had not returned when the record ended, at ``end_ns``, are cut off there.
    ``executions`` limits those of a record to the last ones, those of a plan to the first; None:
    a number that can be distinguished. ``op_cost`` returns the duration of an op in nanoseconds,
    for the prediction; None: the measured ones, or those of the plan.
    """
    measured, part = _nothing(), None
    if record is not None:
        part = None if executions else excerpt_of(record, origin_ns, end_ns)
        most = executions or _MAX_MEASURED
        measured = _measured_columns(record, most, origin_ns, end_ns, part)
    shown = np.unique(measured["execution"])
    few = _executions_of_calls(plan)
    count = executions or few if record is None else len(shown)
    first = int(shown[0]) if len(shown) else 0
    predicted, note = _predicted_columns(plan, record, op_cost, first, count, origin_ns)
    window = part.window(origin_ns) if part else None
    window = window if len(shown) else _first_window(plan, predicted, few)
    ops = [[name_of_op(op).text for op in program.ops] for program in plan.programs]
    calls = _calls_of(plan)
    names = list(dict.fromkeys(ops[number][at] for number, at in calls))
    rows = [(number, names.index(ops[number][at]), at) for number, at in calls]
    lane, name, op = np.array(rows, np.int64).reshape(-1, 3).T
    marks = marks_of(lane, name, op)
    turns = [[-1] * len(program.ops) for program in plan.programs]
    tints = [[0] * len(program.ops) for program in plan.programs]
    for number, at, turn, is_other in zip(lane, op, marks.turn, marks.is_other, strict=True):
        turns[number][at], tints[number][at] = int(turn), int(is_other)
    lanes, order = _lanes(plan, record), order_of(plan)
    is_call = [[op.is_call for op in program.ops] for program in plan.programs]
    numbers = {program.process: number for number, program in enumerate(plan.programs)}
    for members in alike_processes(plan, measured if len(shown) else predicted):
        at = [numbers[each] for each in members]
        added = len(lanes)
        label, detail = row_of(members, [lanes[each]["label"] for each in at])
        lanes.append({**lanes[at[0]], "label": label, "detail": detail, "members": at})
        order.insert(order.index(at[0]), added)
        for each in (ops, is_call, turns, tints):
            each.append(each[at[0]])
        measured, predicted = (_with_row(each, at, added) for each in (measured, predicted))
    head = {
        "lanes": lanes,
        "order": order,
        "ops": ops,
        "calls": is_call,
        "turns": turns,
        "tints": tints,
        "repeats": marks.repeats,
        "initials": initials_of(names),
        "count": count,
        "window": window,
        "fits": note is None,
        "first": first,
        "last": int(shown[-1]) if len(shown) else max(count - 1, 0),
        "measured": len(measured["start"]),
        "is_unit": record is None and op_cost is None and not plan.costs,
        "colours": EXECUTIONS,
        "colour_words": marks.words,
        "subtitle": _subtitle(record is not None, count, op_cost is not None, note),
        "rendezvous": _rendezvous(plan),
        "looks": {name: asdict(style_of(name)) for name in (COLLECTIVE, "gloo")},
    }
    columns = {f"measured_{name}": column for name, column in measured.items()}
    columns |= {f"predicted_{name}": column for name, column in predicted.items()}
    return ViewPayload(head, columns)


def _with_row(columns: Columns, members: Sequence[int], number: int) -> Columns:
    """Return columns with the bars of a row for several lanes, which has this number."""
    own = {name: column[np.isin(columns["lane"], members)] for name, column in columns.items()}
    found = typical((own["execution"], own["op"]), own["start"], own["start"] + own["duration"])
    more = {name: column[found.row] for name, column in own.items()}
    more |= {"start": found.start, "duration": found.end - found.start}
    more["lane"] = np.full(len(found.row), number, np.uint16)
    return {name: np.concatenate([column, more[name]]) for name, column in columns.items()}


def _first_window(plan: Plan, bars: Columns, few: int) -> list[float] | None:
    """Return the time of the first calls of a prediction, in us, if there are many more."""
    start, took, execution = _calls_in(plan, bars)
    if not len(start):
        return None
    few = _wide_enough(start, took, execution, few)
    if len(np.unique(execution)) <= few + few // 2:
        return None
    is_first = execution < execution.min() + few
    first, last = float(start[is_first].min()), float((start + took)[is_first].max())
    return [max(first - (last - first) * 0.03, 0.0), last]


def _calls_of(plan: Plan) -> list[tuple[int, int]]:
    """Return the lane and the op of each call."""
    return [
        (number, at)
        for number, program in enumerate(plan.programs)
        for at, op in enumerate(program.ops)
        if op.is_call
    ]


def _calls_in(plan: Plan, bars: Columns) -> list[npt.NDArray[Any]]:
    """Return when calls began, how long they took, and their executions."""
    calls = [(number << 16) + at for number, at in _calls_of(plan)]
    kept = np.isin((bars["lane"].astype(np.int64) << 16) + bars["op"], calls)
    return [bars[name][kept] for name in ("start", "duration", "execution")]


def _wide_enough(start: Floats, took: Floats, execution: Floats, most: int) -> int:
    """Return how many of the first executions, at most ``most``, last ``MAX_WIDTHS``."""
    each, which = np.unique(execution, return_inverse=True)
    ends = np.zeros(len(each))
    np.maximum.at(ends, which, start + took)
    lasts = np.maximum.accumulate(ends) - start.min()
    fit = np.searchsorted(lasts, MAX_WIDTHS * max(float(np.median(took)), 1e-9), side="right")
    return min(most, max(1, int(fit)))


def _measured_columns(
    record: GraphTrace, most: int, origin_ns: int, end_ns: int, part: Excerpt | None = None
) -> Columns:
    """Return the time of each op without waiting, in the last executions or, if earlier, a part."""
    found = []
    for number, lane in enumerate(record.lanes):
        events = with_waits(record, lane)
        if lane.open is not None and not lane.open.waiting_since_ns:
            events = np.concatenate([events, events_of(lane, end_ns)[-1:]])
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
    first = execution.max(initial=0) - most + 1
    first = first if part is None else min(first, part.first)
    is_shown = (execution >= first) & (execution < first + most)
    return _columns(*(column[is_shown] for column in columns))


def _predicted_columns(
    plan: Plan,
    record: GraphTrace | None,
    op_cost: Callable[[Op], float] | None,
    first: int,
    count: int,
    origin_ns: int,
) -> tuple[Columns, str | None]:
    """Return the predicted ops of as many executions, with the pipeline as full as measured.

    The second result says why they do not fit the measurement; None if they do.
    """
    numbers = {program.process: number for number, program in enumerate(plan.programs)}
    # No more executions were in flight than there are.
    window, before, after = 10, 0, 0
    if record is not None:
        window = after = min(record.limit, max(count, 1))
        before = min(first, window)
    total = before + count + after
    simulation = _simulation(plan, record, op_cost, total, window) if count else None
    if simulation is None:
        return _nothing(), None
    offset, shift_ns, note = first - before, None, None
    if record is not None:
        measured = slices_of(record, *_window_of(record, first), origin_ns)
        found = fit(simulation, 1.0, measured)
        if found.slices is None:
            note = found.note
        else:
            offset = found.offset
            shift_ns = found.shift_ns + measured.start_ns - origin_ns
    spans = []
    for span in simulation.timeline:
        number, execution = numbers[span.process], span.execution + offset
        if first <= execution < first + count and not plan.programs[number].ops[span.op].freed():
            took = span.end - span.start
            spans.append((span.start, took, execution, number, span.op, 0))
    rows = np.array(spans, float).reshape(-1, 6)
    if len(rows):
        rows[:, 0] += -rows[:, 0].min() if shift_ns is None else shift_ns
    return _columns(*rows.T), note


def _window_of(record: GraphTrace, first: int) -> tuple[int, int]:
    """Return when the calls from an execution on began and ended."""
    calls = []
    for lane in record.lanes:
        is_call = np.array([op.is_call for op in record.program(lane).ops] or [False])
        events = lane.events[lane.events["op"] < len(is_call)]
        calls.append(events[is_call[events["op"]] & (events["execution"] >= first)])
    found = np.concatenate(calls)
    return (int(found["start_ns"].min()), int(found["end_ns"].max())) if len(found) else (0, 0)


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


def alike_in(record: GraphTrace) -> tuple[tuple[str, ...], ...]:
    """Return the processes that are one row each in a record; see ``alike``."""
    if len(record.plan.actors) <= FEW:
        return ()
    return alike_processes(record.plan, _measured_columns(record, _MAX_MEASURED, 0, 0))


def alike_of(simulation: Simulation) -> tuple[tuple[str, ...], ...]:
    """Return the processes that are one row each in a prediction."""
    return alike_processes(simulation.plan, _columns_of(simulation))


def _columns_of(simulation: Simulation) -> Columns:
    numbers = {program.process: at for at, program in enumerate(simulation.plan.programs)}
    spans = [
        (span.start, span.end - span.start, span.execution, numbers[span.process], span.op, 0)
        for span in simulation.timeline
    ]
    return _columns(*np.array(spans, float).reshape(-1, 6).T)


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


def _lanes(plan: Plan, record: GraphTrace | None) -> list[dict[str, Any]]:
    nodes = node_heads(plan, None if record is None else addresses_of(record))
    under = lanes_under(plan)
    return [
        {
            "process": process,
            "label": visible(plan.label(process)),
            "node": nodes.get(process, ""),
            **dict(zip(("under", "short"), under.get(process, ("", "")), strict=True)),
        }
        for process in (program.process for program in plan.programs)
    ]


def _subtitle(is_measured: bool, count: int, is_given: bool, note: str | None) -> str:
    if not count:
        return "nothing ran"
    if note is not None:
        return f"{plural(count, 'execution')} {DOT} {note}"
    how = "predicted" if is_given else "predicted, every call counts as one"
    if is_measured:
        how = "bars measured, outlines predicted"
    return f"{plural(count, 'execution')} {DOT} {how}"


# --- marks of calls ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CallMarks:
    """What tells calls apart.

    Attributes:
        turn: Which call of its method in its execution each one is, from 0 on: its micro-batch.
        is_other: Which are of another method than the first one of their actor.
        repeats: The largest number of calls of one method by one actor in an execution.
    """

    turn: Ints
    is_other: npt.NDArray[np.bool_]
    repeats: int

    def colour(self, execution: Ints) -> Ints:
        """Return the index of each call's colour in ``EXECUTIONS``."""
        return np.asarray((execution * self.repeats + self.turn) % len(EXECUTIONS))

    @property
    def words(self) -> str:
        """What a colour means."""
        return "execution" if self.repeats == 1 else "execution and call, number = call"


def marks_of(lane: Numbers, name: Numbers, op: Numbers) -> CallMarks:
    """Return the marks of calls, by lane, number of the method, and index in the program."""
    code = (lane.astype(np.int64) << 32) + (name.astype(np.int64) << 16) + op
    found, which = np.unique(code, return_inverse=True)
    method = found >> 16
    turn = np.arange(len(found)) - np.searchsorted(method, method)
    # The first method of an actor is that of its first op.
    place = np.lexsort((found & 0xFFFF, found >> 32))
    lanes, firsts = np.unique(found[place] >> 32, return_index=True)
    own = method[place[firsts]][np.searchsorted(lanes, found >> 32)] if len(found) else method
    repeats = int(turn.max(initial=0)) + 1
    return CallMarks(turn[which], (method != own)[which], repeats)


def marks_in(slices: Slices) -> CallMarks:
    """Return the marks of all slices; those that are of no call have turn 0."""
    calls = np.flatnonzero(slices.where("call"))
    found = marks_of(slices.lane[calls], slices.name[calls], slices.op[calls])
    turn, is_other = np.zeros(len(slices), np.int64), np.zeros(len(slices), bool)
    turn[calls], is_other[calls] = found.turn, found.is_other
    return CallMarks(turn, is_other, found.repeats)


def initials_of(methods: Iterable[str]) -> dict[str, str]:
    """Return the initial of each method if these differ, and there are a few; else nothing."""
    initials = {method: method[:1].upper() for method in dict.fromkeys(methods)}
    return initials if 1 < len(initials) == len(set(initials.values())) <= 4 else {}


def executions_to_show(simulation: Simulation) -> int:
    """Return how many executions have about ``_NUM_CALLS`` calls of the busiest actor.

    Fewer if these last more than ``MAX_WIDTHS``.
    """
    most = _executions_of_calls(simulation.plan)
    start, took, each = _calls_in(simulation.plan, _columns_of(simulation.first(most)))
    return _wide_enough(start, took, each, most) if len(start) else most


def _executions_of_calls(plan: Plan) -> int:
    most = max(sum(op.is_call for op in program.ops) for program in plan.programs)
    return min(MAX_PREDICTED, max(1, round(_NUM_CALLS / max(most, 1))))


# --- a prediction beside a measurement -----------------------------------------------------------

CALL_NS: Final = 1e6
"""The length of a call in nanoseconds, where calls are the unit of time."""

_MAX_TRIED_OFFSETS: Final = 40
_MOST_EXECUTIONS: Final = 1 << 16  # that a prediction is compared with, from the first
_MAX_MISFIT: Final = 4
"""The mean error of a prediction, in calls, from which on it is a number instead of bars."""

_MAX_DRIFT: Final = 0.25
"""The same for how far a lane moves from where it is on average, in periods."""


@dataclass(frozen=True, eq=False)
class FittedPrediction:
    """A prediction in the time and with the executions of a measurement.

    There are no slices if it does not fit: the note says why. ``offset`` is the execution that the
    first one of the simulation is.
    """

    slices: Slices | None
    shift_ns: float
    note: str
    offset: int = 0


def fit(
    simulation: Simulation, unit_ns: float | None, measured: Slices | None = None
) -> FittedPrediction:
    """Return the slices of a prediction, fitted to a measurement if there is one.

    ``unit_ns`` is the length of one unit of its time in nanoseconds. None: a unit is a call, and
    all calls cost the same, so much that executions follow one another as measured.
    """
    is_rough = unit_ns is None  # and says so
    if unit_ns is None:
        unit_ns = CALL_NS
        note = "predicted, equal cost per call"
        if measured is not None:
            rough = slices_of_simulation(simulation, CALL_NS)
            # By their periods, or they drift apart from one execution to the next.
            pairs = [[_starts(each).period for each in (measured, rough)]]
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
    shown = range(first, min(last + 1, first + _MOST_EXECUTIONS))
    spare = max(0, simulation.executions - len(shown))
    seen, told = _starts(measured), _starts(predicted)
    misfit, offset, shift, away = _align(seen, told, shown, spare)
    drift = 0.0 if is_rough else _drift(away)
    if misfit > _MAX_MISFIT * max(_mean_call(measured), 1.0) or drift > _MAX_DRIFT * seen.period:
        rate = f", {rate_text(1e9 / told.period)}," if told.period else ""
        note = f"not drawn: the prediction{rate} is not like what was measured"
        return FittedPrediction(None, 0.0, note)
    return FittedPrediction(
        replace(predicted, execution=predicted.execution + offset), shift, note, offset
    )


@dataclass(frozen=True, eq=False)
class _Starts:
    """When each lane began its first call of each execution, from ``first`` on.

    The times are [lanes, executions]; NaN where a lane called nothing.
    """

    at: Floats
    first: int

    @property
    def period(self) -> float:
        """The median time between two executions of a lane; 0 if there is none."""
        times = np.diff(self.at, axis=1)
        times = times[~np.isnan(times)]
        return float(np.median(times)) if len(times) else 0.0

    def of(self, executions: range) -> Floats:
        """Return the columns of some executions; NaN for those that there are not."""
        found = np.full((len(self.at), len(executions)), np.nan)
        begin = max(executions.start, self.first)
        end = min(executions.stop, self.first + self.at.shape[1])
        if begin < end:
            known = self.at[:, begin - self.first : end - self.first]
            found[:, begin - executions.start : end - executions.start] = known
        return found


def _starts(slices: Slices) -> _Starts:
    calls = np.flatnonzero(slices.where("call"))
    execution = slices.execution[calls]
    first = int(execution.min()) if len(calls) else 0
    count = min(int(execution.max(initial=first)) - first + 1, _MOST_EXECUTIONS)
    calls, execution = (each[execution - first < count] for each in (calls, execution))
    at = np.full((len(slices.heads), count), np.nan)
    np.fmin.at(at, (slices.lane[calls], execution - first), slices.start[calls].astype(float))
    return _Starts(at, first)


def _drift(differences: Floats) -> float:
    """Return the mean distance of a lane's calls from where its prediction is on average."""
    known = differences[~np.isnan(differences).all(axis=1)]
    if not len(known):
        return 0.0
    return float(np.nanmean(np.abs(known - np.nanmedian(known, axis=1, keepdims=True))))


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
    measured: _Starts, predicted: _Starts, executions: range, spare: int
) -> tuple[float, int, float, Floats]:
    """Return the misfit, offset of execution numbers, and shift in time of the best fit.

    The last executions of a prediction run while the pipeline empties, so a third of the spare ones
    is left out. Several offsets are tried because executions may run in groups, of as many as are
    in flight at once. The last result is how much later each call is than predicted
    [lanes, executions].
    """
    wanted = measured.of(executions)
    latest = spare - spare // 3
    best = float("inf"), executions.start - latest, 0.0, np.full_like(wanted, np.nan)
    for begin in range(latest, max(-1, latest - _MAX_TRIED_OFFSETS), -1):
        away = wanted - predicted.of(range(begin, begin + len(executions)))
        if not np.isnan(away).all():
            shift = float(np.nanmedian(away))
            misfit = float(np.nanmean(np.abs(away - shift)))
            # An earlier one has to fit clearly better.
            if misfit < best[0] * 0.98:
                best = misfit, executions.start - begin, shift, away
    return best
