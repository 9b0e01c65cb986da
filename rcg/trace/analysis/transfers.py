# SPDX-License-Identifier: Apache-2.0
"""Transfers through channels: which Read received the frame of which Write, and queue depths.

A channel carries one frame per execution, so a Write and a Read of the same execution belong
together. An op of a driver may have several events in an execution; one of them moves the frame:

```
Write   | encodes |   other ops, until there is room     | moves |
Read    | waits without getting a frame |  | waits | moves |       | decodes |
```

Transfers of tensors over a communicator are in ``rendezvous.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rcg.ir.plan import Plan
from rcg.trace.analysis.parts import READ
from rcg.trace.model import Events

Ints = npt.NDArray[np.int64]


def write_of(plan: Plan, process: str, channel: str) -> int:
    """Return the index of the op of a process that writes a channel.

    Raises:
        KeyError: The process does not write the channel.
    """
    for index, op in enumerate(plan.program(process).ops):
        if channel in op.values_out:
            return index
    raise KeyError(channel)


def read_of(plan: Plan, process: str, channel: str) -> int:
    """Return the index of the op of a process that reads a channel.

    Raises:
        KeyError: The process does not read the channel.
    """
    for index, op in enumerate(plan.program(process).ops):
        if channel in op.values_in:
            return index
    raise KeyError(channel)


def is_coding(events: Events) -> npt.NDArray[np.bool_]:
    """Return which events of Reads or Writes only encoded or decoded."""
    took = events["end_ns"] - events["start_ns"]
    found: npt.NDArray[np.bool_] = (
        (events["bytes"] == 0) & (events["coded_ns"] > 0) & (events["coded_ns"] >= took)
    )
    return found


def is_waiting(events: Events) -> npt.NDArray[np.bool_]:
    """Return which events of a driver's Read ended without a frame.

    Such an event has no bytes, but a frame may be empty as well. If other events of the Read have
    bytes, an event without bytes that mostly waited had no frame. Otherwise only an event that
    waited until it ended had none.

    Args:
        events: All events of the Read.
    """
    took, waited, has_bytes = (
        events["end_ns"] - events["start_ns"],
        events["waited_ns"],
        events["bytes"] > 0,
    )
    is_most = (waited >= took) | (bool(has_bytes.any()) & (2 * waited >= took))
    found: npt.NDArray[np.bool_] = ~has_bytes & (events["coded_ns"] == 0) & (waited > 0) & is_most
    return found


def movers(events: Events, shape: int) -> Ints:
    """Return the indexes of the events of a driver's op that moved its frames, by execution.

    An execution whose frame was not moved in the trace has none. If the trace contains only the
    decoding of a Read, the decoding event is returned.

    Args:
        events: All events of one op, in any order.
        shape: READ or WRITE.
    """
    execution, codes = events["execution"], is_coding(events)
    rank = np.where(events["bytes"] > 0, 3, 2)
    if shape == READ:
        rank = np.where(is_waiting(events), 0, np.where(codes, 1, rank))
    else:
        rank = np.where(codes, 0, rank)
    if rank.min(initial=2) >= 2 and (np.diff(execution) > 0).all():
        return np.arange(len(events))
    # Events that only wait or encode come before the one that moves, so the last of equals moved.
    order = np.lexsort((events["start_ns"], rank, execution))
    is_last = np.append(execution[order][1:] != execution[order][:-1], True)[: len(order)]
    found = order[is_last]
    chosen: Ints = found[rank[found] > 0]
    return chosen


def taken_ns(reads: Events) -> Ints:
    """Return when each Read got its frame: it waits first, then moves and decodes it."""
    taken: Ints = np.minimum(reads["start_ns"] + reads["waited_ns"], reads["end_ns"])
    return taken


def pairs(writes: Events, reads: Events) -> tuple[Ints, Ints]:
    """Return the indexes of Writes and of the Reads of the same executions.

    Args:
        writes: The Writes of a channel that move its frames.
        reads: The Reads of one reader that move them.
    """
    _, sent, took = np.intersect1d(writes["execution"], reads["execution"], return_indices=True)
    return sent, took


def depth(writes: Events, reads: Sequence[Events], start_ns: int) -> tuple[Ints, Ints]:
    """Return the times at which the number of unread frames in a channel changed, and the numbers.

    A frame is unread from the end of its Write until the last reader has taken it. A frame that was
    taken but whose Write is not in the trace was there from the beginning.

    Args:
        writes: The Writes of the channel that move its frames.
        reads: The Reads that move them, one array per reader.
        start_ns: The first of the returned times.
    """
    executions, gone = reads[0]["execution"], taken_ns(reads[0])
    for others in reads[1:]:
        _, mine, theirs = np.intersect1d(executions, others["execution"], return_indices=True)
        gone = np.maximum(gone[mine], taken_ns(others)[theirs])
        executions = executions[mine]
    _, sent, took = np.intersect1d(writes["execution"], executions, return_indices=True)
    came = writes["end_ns"].copy()
    # The writer records the end of its Write after the frame has become readable.
    came[sent] = np.minimum(came[sent], gone[took])
    before = len(gone) - len(took)

    times = np.concatenate([came, gone])
    steps = np.concatenate([np.ones(len(came), np.int64), np.full(len(gone), -1, np.int64)])
    changed_at, which = np.unique(np.maximum(times, start_ns), return_inverse=True)
    changes = np.bincount(which, steps, len(changed_at)).astype(np.int64)
    kept = changes != 0
    times = np.concatenate([[start_ns], changed_at[kept]]).astype(np.int64)
    return times, before + np.concatenate([[0], np.cumsum(changes[kept])]).astype(np.int64)
