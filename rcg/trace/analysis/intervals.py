# SPDX-License-Identifier: Apache-2.0
"""Intervals of time as arrays: their union, and their difference.

An interval is half open, ``[start, end)``, in whole nanoseconds. Arrays come in pairs of equal
length. Nothing here loops over their elements.

>>> import numpy as np
>>> cover = Cover(np.array([0, 5, 7]), np.array([4, 8, 9]))  # 0 to 4 and 5 to 9
>>> cover.total_ns
8
>>> cover.within(np.array([3]), np.array([6]))  # 3 to 4 and 5 to 6
array([2])

This room must know neither traces nor plans.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Times = Ints

MIN_INT64: Final = int(np.iinfo(np.int64).min)
MAX_INT64: Final = int(np.iinfo(np.int64).max)


def window(start_ns: int | None, end_ns: int | None) -> tuple[int, int]:
    """Return the ends of a window; one that is None is unlimited."""
    return (
        MIN_INT64 if start_ns is None else start_ns,
        MAX_INT64 if end_ns is None else end_ns,
    )


def disjoint(start: Times, end: Times) -> tuple[Times, Times, Times]:
    """Cut intervals so that none overlaps another. The union stays the same.

    Of two that overlap, the one that starts later loses the overlap.

    Args:
        start: When each begins, in any order.
        end: When each ends.

    Returns:
        The indexes of the intervals that are left, by start, and their new starts and ends. None of
        them is empty.
    """
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    if len(start):
        covered = np.maximum.accumulate(end)
        start = np.concatenate((start[:1], np.maximum(start[1:], covered[:-1])))
    kept = start < end
    return order[kept], start[kept], end[kept]


def without(
    start: Times, end: Times, taken_start: Times, taken_end: Times
) -> tuple[Times, Times, Times]:
    """Subtract intervals from others. Both must be sorted and disjoint.

    Returns:
        For each remaining piece the index of its interval, and its start and end, sorted.
    """
    gap_start = np.concatenate(([MIN_INT64], taken_end))
    gap_end = np.concatenate((taken_start, [MAX_INT64]))
    first = np.searchsorted(gap_end, start, side="right")
    last = np.searchsorted(gap_start, end, side="left")
    count = np.maximum(last - first, 0)
    of = np.repeat(np.arange(len(start)), count)
    begun = np.cumsum(count) - count
    gap = np.arange(len(of)) - begun[of] + first[of]
    left_start = np.maximum(start[of], gap_start[gap])
    left_end = np.minimum(end[of], gap_end[gap])
    kept = left_start < left_end
    return of[kept], left_start[kept], left_end[kept]


class Cover:
    """The union of intervals, and how much of other intervals it covers.

    Args:
        start: When each begins, in any order. They may overlap and be empty.
        end: When each ends.
    """

    def __init__(self, start: Times, end: Times) -> None:
        _, self._start, self._end = disjoint(start, end)
        length = self._end - self._start
        self._before = np.concatenate(([0], np.cumsum(length)))

    @property
    def total_ns(self) -> int:
        """The length of the union."""
        return int(self._before[-1])

    def until(self, time: Times) -> Times:
        """Return the length of the union before each time."""
        if not len(self._start):
            return np.zeros(len(time), np.int64)
        at = np.searchsorted(self._start, time, side="right")
        last = np.maximum(at - 1, 0)
        over = np.maximum(self._end[last] - np.maximum(time, self._start[last]), 0)
        return np.where(at > 0, self._before[at] - over, 0)

    def within(self, start: Times, end: Times) -> Times:
        """Return how much of each interval the union covers."""
        return self.until(end) - self.until(start)
