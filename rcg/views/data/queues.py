# SPDX-License-Identifier: Apache-2.0
"""Queue depths: the number of frames that were written and not yet read, per reading process.

In every execution a channel is written once, and read once by each reader, in order. So its depth
follows from the last written and the last read execution, even if events between were lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rcg.views.data.slices import Slices, TransferEnds

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class QueueDepth:
    """The queue depth of one process over time.

    Attributes:
        at: Times of changes, in nanoseconds from the start of the slices. The first is 0.
        depth: Number of unread frames from then on, in all channels that it reads.
        slots: Number of slots in these channels.
    """

    at: Ints
    depth: Ints
    slots: int


def queues_of(slices: Slices) -> dict[int, QueueDepth]:
    """Return the queue depth of each lane that reads a used channel."""
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
        # At equal times, a write comes before a read.
        order = np.lexsort((-change, at))
        depth = before[reader] + np.concatenate(([0], np.cumsum(change[order])))
        at = np.concatenate(([0], at[order]))
        queues[reader] = QueueDepth(at, np.clip(depth, 0, slots[reader]), slots[reader])
    return dict(sorted(queues.items()))


def _times(ends: TransferEnds | None) -> tuple[Ints, Ints]:
    """Return when frames were written or taken, and their executions."""
    if ends is None:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return ends.at, ends.execution
