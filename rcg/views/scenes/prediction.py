# SPDX-License-Identifier: Apache-2.0
"""A prediction beside a measurement: from which costs, of which executions, and where it lies.

There is one prediction for all views: of the executions that views show at first, which it is
fitted to. One that drifts away from them is a number instead of bars.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from rcg.compiler.simulate import Simulation, simulate
from rcg.errors import DeadlockError, TraceError
from rcg.ir.ops import Op
from rcg.ir.plan import Plan
from rcg.text import rate_text
from rcg.trace.analysis.events import TimeKind
from rcg.trace.analysis.what_if import LATEST_NS, from_simulation
from rcg.trace.measured import Measured
from rcg.views.data.colours import PREDICTED
from rcg.views.scene import Bars, Scene
from rcg.views.scenes.timeline import cut_of

Floats = npt.NDArray[np.float64]

MAX_SIMULATED: Final = 100_000
"""A prediction for a view simulates at most so many ops, or one execution."""

_MAX_TRIED_OFFSETS: Final = 40
_MAX_MISFIT: Final = 4  # the mean error, in calls, from which on a prediction is no longer drawn
_MAX_DRIFT: Final = 0.25  # how far a lane moves from where it is on average, in periods


def executions_within_budget(plan: Plan, count: int) -> int:
    """Return how many of these executions of a plan are not too many ops to simulate."""
    ops = sum(len(program.ops) for program in plan.programs)
    return max(1, min(count, MAX_SIMULATED // max(ops, 1)))


def prediction_of(
    measured: Measured, executions: int, op_cost: Callable[[Op], float] | None = None
) -> Simulation | None:
    """Return a prediction in ns, from the measured costs of a graph or from given ones.

    It has more executions than these, before and after them. None if there would be too many ops,
    or nothing was measured.
    """
    graph = measured.graph
    count = executions_within_budget(graph.plan, executions + 6 * graph.limit)
    if count < executions:
        return None
    try:
        if op_cost is None:
            return measured.predict(count)
        return simulate(graph.plan, op_cost, count, window=graph.limit)
    except (TraceError, DeadlockError):
        return None


def scene_of(simulation: Simulation, unit_ns: float = 1.0) -> Scene:
    """Return the cut of a simulation, as if it had been recorded in units of this many ns."""
    scaled = [
        span._replace(start=span.start * unit_ns, end=span.end * unit_ns)
        for span in simulation.timeline
    ]
    made = replace(simulation, timeline=tuple(scaled))
    return cut_of(Measured(from_simulation(made), 0, round(min(made.duration, LATEST_NS))))


def fit(
    simulation: Simulation, measured: Scene, executions: range, costs: str = "measured"
) -> tuple[Bars | None, str]:
    """Fit the calls of a prediction in ns to the measured ones of some executions.

    Args:
        simulation: The prediction.
        measured: The measured bars.
        executions: The executions to fit it to, which have all their calls in the measurement.
        costs: Which costs it is from.

    Returns:
        The predicted calls of these executions, in the rows of their processes and without names;
        None if they do not fit. And which costs they are from, or why they do not fit.
    """
    calls = measured.where("call") & (measured.bars.kind == TimeKind.COMPUTE)
    own = measured.bars.take(np.flatnonzero(calls))
    told = _calls_of(simulation, measured)
    spare = max(0, simulation.executions - len(executions))
    wanted = _starts(own, len(measured.rows), executions)
    known = _starts(told, len(measured.rows), range(simulation.executions))
    misfit, offset, shift, away = _align(wanted, known, executions.start, spare)
    is_in = (own.execution >= executions.start) & (own.execution < executions.stop)
    usual = float(own.duration[is_in].mean()) if is_in.any() else 0.0
    if misfit > _MAX_MISFIT * max(usual, 1.0) or _drift(away) > _MAX_DRIFT * _period(wanted):
        # Not the median: executions may run in groups, whose members follow each other closely.
        gaps = _gaps(known)
        rate = f", {rate_text(len(gaps) * 1e9 / gaps.sum())}," if gaps.sum() > 0 else ""
        return None, f"not drawn: the prediction{rate} has its calls at other times"
    told = told.with_columns(start=told.start + round(shift), execution=told.execution + offset)
    is_in = (told.execution >= executions.start) & (told.execution < executions.stop)
    return told.take(np.flatnonzero(is_in)), f"predicted from {costs} costs"


def _calls_of(simulation: Simulation, scene: Scene) -> Bars:
    """Return the calls of a simulation in the rows of a scene."""
    rows = {row.process: at for at, row in enumerate(scene.rows)}
    is_call = {
        program.process: [op.is_call for op in program.ops] for program in simulation.plan.programs
    }
    calls = [
        (rows[process], op, execution, start, end)
        for process, op, execution, start, end in simulation.timeline
        if process in rows and is_call[process][op]
    ]
    columns = np.rint(np.clip(np.array(calls, float).reshape(-1, 5), 0, LATEST_NS))
    row, op, execution, start, end = columns.astype(np.int64).T
    kind = np.full(len(row), PREDICTED)
    found = Bars.of(
        row=row, op=op, execution=execution, start=start, duration=end - start, kind=kind
    )
    return found.take(np.flatnonzero(start < end))


def _starts(calls: Bars, rows: int, executions: range) -> Floats:
    """Return when each row began its first call of each execution [rows, executions]."""
    is_in = (calls.execution >= executions.start) & (calls.execution < executions.stop)
    calls = calls.take(np.flatnonzero(is_in))
    found = np.full((rows, len(executions)), np.nan)
    np.fmin.at(found, (calls.row, calls.execution - executions.start), calls.start.astype(float))
    return found


def _period(starts: Floats) -> float:
    """Return the median time between two executions of a row; 0 if there is none."""
    gaps = _gaps(starts)
    return float(np.median(gaps)) if len(gaps) else 0.0


def _gaps(starts: Floats) -> Floats:
    """Return the times between two executions of a row, of all rows."""
    gaps = np.diff(starts, axis=1)
    return gaps[~np.isnan(gaps)]


def _drift(differences: Floats) -> float:
    """Return the mean distance of a row's calls from where its prediction is on average."""
    known = differences[~np.isnan(differences).all(axis=1)]
    if not len(known):
        return 0.0
    return float(np.nanmean(np.abs(known - np.nanmedian(known, axis=1, keepdims=True))))


def _align(
    measured: Floats, predicted: Floats, first: int, spare: int
) -> tuple[float, int, float, Floats]:
    """Return the misfit, offset of execution numbers, and shift in time of the best fit.

    The last executions of a prediction run while the pipeline empties, so a third of the spare ones
    is left out. Several offsets are tried because executions may run in groups, of as many as are
    in flight at once. The last result is how much later each call is than predicted
    [rows, executions].
    """
    count = measured.shape[1]
    latest = spare - spare // 3
    best = float("inf"), first - latest, 0.0, np.full_like(measured, np.nan)
    for begin in range(latest, max(-1, latest - _MAX_TRIED_OFFSETS), -1):
        away = measured - predicted[:, begin : begin + count]
        if not np.isnan(away).all():
            shift = float(np.nanmedian(away))
            misfit = float(np.nanmean(np.abs(away - shift)))
            # An earlier one has to fit clearly better.
            if misfit < best[0] * 0.98:
                best = misfit, first - begin, shift, away
    return best
