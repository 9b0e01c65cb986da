# SPDX-License-Identifier: Apache-2.0
"""Fits a prediction to a measured schedule: its unit of time, its executions and its shift."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rcg.compiler.simulate import Simulation
from rcg.text import time_text
from rcg.trace.analysis.parts import TimeKind
from rcg.views.data.slices import Slices
from rcg.views.data.slicing import slices_of_simulation

CALL_NS: Final = 1e6
"""The length of a call in nanoseconds, where calls are the unit of time."""

_MAX_TRIED_OFFSETS: Final = 40
_MAX_MISFIT: Final = 4
"""The mean error of a prediction, in calls, from which on it is not shown."""


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
            calls cost the same, as much as the mean measured call.
        measured: The slices of a measurement.
    """
    if unit_ns is None:
        unit_ns = CALL_NS
        note = "predicted, equal cost per call"
        if measured is not None:
            mean = _mean_call(measured)
            rough = _mean_call(slices_of_simulation(simulation, CALL_NS))
            unit_ns = CALL_NS * mean / rough if mean and rough else CALL_NS
            note += f", {time_text(unit_ns)} each"
    else:
        note = "predicted from measured costs"
    predicted = slices_of_simulation(simulation, unit_ns)
    if measured is None:
        return FittedPrediction(predicted, 0.0, note)
    first, last = execution_range(measured)
    spare = max(0, simulation.executions - (last - first + 1))
    misfit, offset, shift = _align(
        _starts(measured), _starts(predicted), range(first, last + 1), spare
    )
    if misfit > _MAX_MISFIT * max(_mean_call(measured), 1.0):
        note = "the prediction is left out: it does not fit"
        if misfit < float("inf"):
            note += f", calls begin {time_text(misfit)} off"
        return FittedPrediction(None, 0.0, note)
    return FittedPrediction(replace(predicted, execution=predicted.execution + offset), shift, note)


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
        differences = np.array(
            [
                measured[lane, execution] - predicted[lane, execution - offset]
                for lane, execution in wanted
                if (lane, execution - offset) in predicted
            ]
        )
        if len(differences):
            shift = float(np.median(differences))
            misfit = float(np.abs(differences - shift).mean())
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
