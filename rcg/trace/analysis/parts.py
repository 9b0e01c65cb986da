# SPDX-License-Identifier: Apache-2.0
"""Parts: what a process did at each time. Each event is three parts of one kind of time each.

Events of a lane overlap if several threads of a driver use its graph. Then each point in time
belongs to one part: work comes before waiting, and then the event that began first comes before
others. ``events.py`` defines the parts of an event.

This room must know neither views nor figures.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rcg.trace.analysis.events import KINDS, EventTable, Mask, TimeKind
from rcg.trace.analysis.intervals import Ints, Times, disjoint, without


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of a lane's events, by start. None is empty, and none overlaps another.

    Attributes:
        row: The index of its event in the ``EventTable``.
        kind: Its ``TimeKind``; never IDLE, which is the time between parts.
        start_ns: When each begins.
        end_ns: When each ends.
    """

    row: Ints
    kind: npt.NDArray[np.uint8]
    start_ns: Times
    end_ns: Times

    def __len__(self) -> int:
        return len(self.row)

    @property
    def duration_ns(self) -> Times:
        """The duration of each part."""
        return self.end_ns - self.start_ns

    def clipped(self, start_ns: int, end_ns: int) -> Parts:
        """Return the parts inside a window, cut at its ends."""
        start = np.maximum(self.start_ns, start_ns)
        end = np.minimum(self.end_ns, end_ns)
        return Parts(self.row, self.kind, start, end).where(start < end)

    def where(self, kept: Mask) -> Parts:
        """Return some of the parts."""
        return Parts(self.row[kept], self.kind[kept], self.start_ns[kept], self.end_ns[kept])


def parts_of(table: EventTable, number: int) -> Parts:
    """Return the parts of the events of one lane of a table."""
    of = table.of_lane(number)
    bounds = table.bounds[of]
    parts = Parts(
        np.repeat(np.arange(of.start, of.stop), 3),
        KINDS[table.shape[of]].ravel(),
        bounds[:, :3].ravel(),
        bounds[:, 1:].ravel(),
    )
    parts = parts.where(parts.start_ns < parts.end_ns)
    if len(parts) and (parts.start_ns[1:] < parts.end_ns[:-1]).any():
        return _one_at_a_time(parts)
    return parts


def _one_at_a_time(parts: Parts) -> Parts:
    is_waiting = parts.kind == TimeKind.WAITING
    work = np.flatnonzero(~is_waiting)
    of, start, end = disjoint(parts.start_ns[work], parts.end_ns[work])
    work = work[of]
    wait = np.flatnonzero(is_waiting)
    of, wait_start, wait_end = disjoint(parts.start_ns[wait], parts.end_ns[wait])
    wait = wait[of]
    of, wait_start, wait_end = without(wait_start, wait_end, start, end)
    index = np.concatenate((work, wait[of]))
    starts, ends = np.concatenate((start, wait_start)), np.concatenate((end, wait_end))
    order = np.argsort(starts, kind="stable")
    index = index[order]
    return Parts(parts.row[index], parts.kind[index], starts[order], ends[order])
