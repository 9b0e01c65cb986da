# SPDX-License-Identifier: Apache-2.0
"""How many frames lie in front of each process: written, and not read yet.

A channel is written once and read once by each reader in every execution, in order. So what lies in
it follows from which execution was written last and which was read last, whatever was lost between.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rcg.trace.parts import Kind
from rcg.views.marks import Marks

__all__ = ["Queue", "queues_of"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Queue:
    """Frames that wait for one process, over time.

    Attributes:
        at: Moments, in nanoseconds from the start of the marks; the first is 0.
        depth: How many frames wait from that moment on, in all channels that it reads.
        slots: How many may wait.
    """

    at: Ints
    depth: Ints
    slots: int


def queues_of(marks: Marks) -> dict[int, Queue]:
    """Return the queue of each lane that reads a channel which was used."""
    written, taken = _ends(marks)
    queues: dict[int, Queue] = {}
    moments: dict[int, list[tuple[Ints, Ints]]] = {}
    slots: dict[int, int] = {}
    before: dict[int, int] = {}
    for channel, readers in marks.reads.items():
        puts = written.get(channel)
        for reader in readers:
            takes = taken.get((channel, reader))
            if puts is None and takes is None:
                continue
            empty = np.empty(0, np.int64)
            at_put, put = puts if puts is not None else (empty, empty)
            at_taken, took = takes if takes is not None else (empty, empty)
            first_put = int(put.min(initial=took.max(initial=-1) + 1))
            first_taken = int(took.min(initial=first_put))
            slots[reader] = slots.get(reader, 0) + marks.slots[channel]
            before[reader] = before.get(reader, 0) + max(0, first_put - first_taken)
            moments.setdefault(reader, []).append((at_put, np.ones(len(at_put), np.int64)))
            moments[reader].append((at_taken, -np.ones(len(at_taken), np.int64)))
    for reader, changes in moments.items():
        at = np.concatenate([each for each, _ in changes])
        change = np.concatenate([each for _, each in changes])
        # What is written comes before what is read at the same moment.
        order = np.lexsort((-change, at))
        depth = before[reader] + np.concatenate(([0], np.cumsum(change[order])))
        at = np.concatenate(([0], at[order]))
        queues[reader] = Queue(at, np.clip(depth, 0, slots[reader]), slots[reader])
    return dict(sorted(queues.items()))


def _ends(
    marks: Marks,
) -> tuple[dict[str, tuple[Ints, Ints]], dict[tuple[str, int], tuple[Ints, Ints]]]:
    """When frames were written, by channel, and taken, by channel and lane, with executions."""
    end = marks.start + marks.duration
    written = {
        channel: (end[rows], marks.execution[rows].astype(np.int64))
        for channel, rows in marks.written.items()
        if len(rows)
    }
    taken: dict[tuple[str, int], tuple[Ints, Ints]] = {}
    for channel, of_readers in marks.taken.items():
        for each in of_readers:
            rows = each[marks.kind[each] != Kind.WAITING]  # the others still wait
            if len(rows):
                execution = marks.execution[rows].astype(np.int64)
                taken[channel, int(marks.lane[rows[0]])] = (marks.start[rows], execution)
    return written, taken
