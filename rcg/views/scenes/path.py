# SPDX-License-Identifier: Apache-2.0
"""The critical path in a scene: from row to row, through an execution or through all of them."""

from __future__ import annotations

from typing import Final

import numpy as np

from rcg.trace.analysis.critical import NO_STEPS, PathSteps
from rcg.trace.measured import Measured
from rcg.views.data.excerpts import Excerpt
from rcg.views.scene import CriticalPaths, Ints

_MAX_PATHS: Final = 400  # executions with a path of their own


def paths_of(measured: Measured) -> CriticalPaths:
    """Return the path through all executions, and those of the last ones, within a recording.

    The first is that of the headline: from the last completion back to the first one. The rows are
    the numbers of lanes in the record; ``CriticalPaths.moved`` makes them rows.
    """
    executions = measured.executions
    order = np.argsort(executions.completed_ns, kind="stable")
    timed = executions.index[order[executions.is_timed[order]]]
    found: dict[int | None, PathSteps] = {None: _steps_of_all(measured)}
    found |= {each: measured.paths.steps_of(each) for each in timed[-_MAX_PATHS:].tolist()}
    return _joined(found, measured.start_ns, measured.start_ns, measured.end_ns)


def path_within(measured: Measured, part: Excerpt) -> CriticalPaths:
    """Return the path through all executions within a part of a recording."""
    found: dict[int | None, PathSteps] = {None: _steps_of_all(measured)}
    return _joined(found, measured.start_ns, part.start_ns, part.end_ns)


def _steps_of_all(measured: Measured) -> PathSteps:
    return NO_STEPS if measured.walk is None else measured.paths.steps_in(measured.walk)


def _joined(
    paths: dict[int | None, PathSteps], origin_ns: int, start_ns: int, end_ns: int
) -> CriticalPaths:
    found = [_runs(steps, start_ns, end_ns) for steps in paths.values()]
    lane, begin, end = np.concatenate([np.empty((0, 3), np.int64), *found]).T
    until = np.cumsum([len(each) for each in found])
    return CriticalPaths(tuple(paths), lane, begin - origin_ns, end - origin_ns, until)


def _runs(steps: PathSteps, start_ns: int, end_ns: int) -> Ints:
    """Return steps by time, in a window, those in one lane that follow each other joined."""
    lane, *times = (each[::-1] for each in steps)
    start, end = (np.clip(each, start_ns, end_ns) for each in times)
    lane, start, end = (each[start < end] for each in (lane, start, end))
    is_first = np.append(True, (lane[1:] != lane[:-1]) | (start[1:] != end[:-1]))
    is_last = np.append(is_first[1:], True)
    is_first, is_last = is_first[: len(lane)], is_last[: len(lane)]
    return np.column_stack([lane[is_first], start[is_first], end[is_last]])
