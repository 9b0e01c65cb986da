# SPDX-License-Identifier: Apache-2.0
"""The critical path in a scene: from row to row, through an execution or through all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from rcg.trace.analysis.critical import Paths
from rcg.trace.measured import Measured
from rcg.views.data.excerpts import Excerpt
from rcg.views.scene import CriticalPaths, Ints

_MAX_PATHS: Final = 400  # executions with a path of their own
_MAX_STEPS: Final = 1_000_000  # of the path through all executions

_Steps = tuple[Ints, Ints, Ints]  # the lane of each step, the latest first, and its two times


def paths_of(measured: Measured) -> CriticalPaths:
    """Return the path through all executions, and those of the last ones, within a recording.

    The rows are the numbers of lanes in the record; ``CriticalPaths.moved`` makes them rows.
    """
    paths, start_ns = measured.paths, measured.start_ns
    chain = _Chain(paths)
    last = chain.completed[-1:]
    found: dict[int | None, list[_Steps]] = {None: chain.until(last[0], start_ns) if last else []}
    found |= {each: [paths.lanes_of(each)] for each in chain.completed[-_MAX_PATHS:]}
    return _joined(found, start_ns, start_ns, measured.end_ns)


def path_until(measured: Measured, part: Excerpt) -> CriticalPaths:
    """Return the path until the last execution of a part of a recording."""
    steps = _Chain(measured.paths).until(part.last, part.start_ns)
    return _joined({None: steps}, measured.start_ns, part.start_ns, part.end_ns)


class _Chain:
    """How the paths of executions follow each other."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        executions = paths.executions
        order = np.argsort(executions.completed_ns, kind="stable")
        order = order[executions.is_timed[order]]
        self._ended = executions.completed_ns[order]
        self.completed: list[int] = executions.index[order].tolist()

    def until(self, execution: int, start_ns: int) -> list[_Steps]:
        """Return the path of an execution, and those of executions that ended before it began.

        The time between two of them is the driver's. It is not followed to before a time.
        """
        found = []  # the latest first
        count = 0
        while len((path := self._paths.lanes_of(execution))[0]):
            found.append(path)
            count += len(path[0])
            begun = int(path[1][-1])
            at = int(np.searchsorted(self._ended, begun, side="right")) - 1
            if at < 0 or begun <= start_ns or count > _MAX_STEPS:
                break
            found.append((np.zeros(1, np.int64), self._ended[at : at + 1], np.array([begun])))
            execution = self.completed[at]
        return found


def _joined(
    paths: dict[int | None, list[_Steps]], origin_ns: int, start_ns: int, end_ns: int
) -> CriticalPaths:
    found = [_runs(steps, start_ns, end_ns) for steps in paths.values()]
    lane, begin, end = np.concatenate([np.empty((0, 3), np.int64), *found]).T
    until = np.cumsum([len(each) for each in found])
    return CriticalPaths(tuple(paths), lane, begin - origin_ns, end - origin_ns, until)


def _runs(steps: Sequence[_Steps], start_ns: int, end_ns: int) -> Ints:
    """Return steps by time, in a window, those in one lane that follow each other joined."""
    columns = [np.concatenate(each)[::-1] for each in zip(*steps, strict=True)]
    if not columns:
        return np.empty((0, 3), np.int64)
    lane, *times = columns
    start, end = (np.clip(each, start_ns, end_ns) for each in times)
    lane, start, end = (each[start < end] for each in (lane, start, end))
    is_first = np.append(True, (lane[1:] != lane[:-1]) | (start[1:] != end[:-1]))
    is_last = np.append(is_first[1:], True)
    is_first, is_last = is_first[: len(lane)], is_last[: len(lane)]
    return np.column_stack([lane[is_first], start[is_first], end[is_last]])
