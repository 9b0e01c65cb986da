# SPDX-License-Identifier: Apache-2.0
"""How many frames wait in front of each process: written, and not read yet.

A channel is written once and read once by each reader in every execution, in order. So what lies in
it follows from which execution was written last and which was read last, whatever was lost between.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rcg.views.data.slices import Slices, TransferEnds

__all__ = ["QueueDepth", "queues_of"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class QueueDepth:
    """Frames that wait for one process, over time.

    Attributes:
        at: Moments, in nanoseconds from the start of the slices; the first is 0.
        depth: How many frames wait from that moment on, in all channels that it reads.
        slots: How many may wait.
    """

    at: Ints
    depth: Ints
    slots: int


def queues_of(slices: Slices) -> dict[int, QueueDepth]:
    """Return the queue of each lane that reads a channel which was used."""
    queues: dict[int, QueueDepth] = {}
    changes_of: dict[int, list[tuple[Ints, Ints]]] = {}
    slots: dict[int, int] = {}
    before: dict[int, int] = {}
    for channel, readers in slices.reads.items():
        at_put, put = _times(slices.written.get(channel))
        for reader in readers:
            at_taken, took = _times(slices.taken.get((channel, reader)))
            if not len(put) and not len(took):
                continue
            first_put = int(put.min(initial=took.max(initial=-1) + 1))
            first_taken = int(took.min(initial=first_put))
            slots[reader] = slots.get(reader, 0) + slices.slots[channel]
            before[reader] = before.get(reader, 0) + max(0, first_put - first_taken)
            changes_of.setdefault(reader, []).append((at_put, np.ones(len(at_put), np.int64)))
            changes_of[reader].append((at_taken, -np.ones(len(at_taken), np.int64)))
    for reader, changes in changes_of.items():
        at = np.concatenate([each for each, _ in changes])
        change = np.concatenate([each for _, each in changes])
        # What is written comes before what is read at the same moment.
        order = np.lexsort((-change, at))
        depth = before[reader] + np.concatenate(([0], np.cumsum(change[order])))
        at = np.concatenate(([0], at[order]))
        queues[reader] = QueueDepth(at, np.clip(depth, 0, slots[reader]), slots[reader])
    return dict(sorted(queues.items()))


def _times(ends: TransferEnds | None) -> tuple[Ints, Ints]:
    """When frames were written or taken, and in which executions."""
    if ends is None:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return ends.at, ends.execution
