# SPDX-License-Identifier: Apache-2.0
"""A prediction beside a measurement: from which costs, of which executions, and where it lies.

There is one prediction for all views: of the executions that views show at first, which it is
fitted to. One that drifts away from them is a number instead of bars.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from rcg.views.scene import Scene
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
    scaled = replace(
        simulation,
        timeline=tuple(
            [
                span._replace(start=span.start * unit_ns, end=span.end * unit_ns)
                for span in simulation.timeline
            ]
        ),
    )
    end_ns = round(min(scaled.duration, LATEST_NS))
    return cut_of(Measured(from_simulation(scaled), 0, end_ns))


@dataclass(frozen=True, eq=False)
class Fitted:
    """A prediction in the time and with the executions of a measurement.

    There is no scene if it does not fit; ``note`` says why.
    """

    scene: Scene | None
    note: str


def fit(
    simulation: Simulation, measured: Scene, executions: range, costs: str = "measured"
) -> Fitted:
    """Fit a prediction in ns to the measured calls of some executions.

    Args:
        simulation: The prediction.
        measured: The measured bars.
        executions: The executions to fit it to, which have all their calls in the measurement.
        costs: Which costs it is from.
    """
    predicted = scene_of(simulation)
    spare = max(0, simulation.executions - len(executions))
    processes = list(dict.fromkeys(row.process for row in measured.rows))
    seen = _starts(measured, executions, processes)
    told = _starts(predicted, range(simulation.executions), processes)
    misfit, offset, shift, away = _align(seen, told, executions.start, spare)
    period = _period(seen)
    usual = max(_mean_call(measured, executions), 1.0)
    if misfit > _MAX_MISFIT * usual or _drift(away) > _MAX_DRIFT * period:
        rate = f", {rate_text(1e9 / _period(told))}," if _period(told) else ""
        return Fitted(None, f"not drawn: the prediction{rate} does not keep in step")
    bars = predicted.bars
    bars = bars.with_columns(start=bars.start + round(shift), execution=bars.execution + offset)
    links = predicted.links
    links = replace(links, begin=links.begin + round(shift), until=links.until + round(shift))
    return Fitted(replace(predicted, bars=bars, links=links), f"predicted from {costs} costs")


def _starts(scene: Scene, executions: range, processes: Sequence[str]) -> Floats:
    """Return when each process began its first call of each execution [processes, executions]."""
    bars, numbers = scene.bars, {name: at for at, name in enumerate(processes)}
    of = np.array([numbers.get(row.process, -1) for row in scene.rows] or [-1])[bars.row]
    is_in = (bars.execution >= executions.start) & (bars.execution < executions.stop)
    is_call = scene.where("call") & (bars.kind == TimeKind.COMPUTE)
    calls = np.flatnonzero(is_call & is_in & (of >= 0))
    found = np.full((len(numbers), len(executions)), np.nan)
    at = of[calls], bars.execution[calls] - executions.start
    np.fmin.at(found, at, bars.start[calls].astype(float))
    return found


def _period(starts: Floats) -> float:
    """Return the median time between two executions of a process; 0 if there is none."""
    times = np.diff(starts, axis=1)
    times = times[~np.isnan(times)]
    return float(np.median(times)) if len(times) else 0.0


def _drift(differences: Floats) -> float:
    """Return the mean distance of a process's calls from where its prediction is on average."""
    known = differences[~np.isnan(differences).all(axis=1)]
    if not len(known):
        return 0.0
    return float(np.nanmean(np.abs(known - np.nanmedian(known, axis=1, keepdims=True))))


def _mean_call(scene: Scene, executions: range) -> float:
    bars = scene.bars
    calls = scene.where("call") & (bars.kind == TimeKind.COMPUTE)
    calls &= (bars.execution >= executions.start) & (bars.execution < executions.stop)
    return float(bars.duration[calls].mean()) if calls.any() else 0.0


def _align(
    measured: Floats, predicted: Floats, first: int, spare: int
) -> tuple[float, int, float, Floats]:
    """Return the misfit, offset of execution numbers, and shift in time of the best fit.

    The last executions of a prediction run while the pipeline empties, so a third of the spare ones
    is left out. Several offsets are tried because executions may run in groups, of as many as are
    in flight at once. The last result is how much later each call is than predicted
    [processes, executions].
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
