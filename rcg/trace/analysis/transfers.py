# SPDX-License-Identifier: Apache-2.0
"""How values passed through channels: which Read took what a Write sent, and what lay unread.

A channel carries one frame per execution, so the execution joins the two. In a driver an op may
have several events in an execution, of which one moves the frame:

```
Write   | encodes |   others read, until there is room   | moves |
Read    | waits, in vain or for several |  | waits | moves |       | decodes |
```
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rcg.ir.plan import Plan
from rcg.trace.analysis.parts import READ
from rcg.trace.model import Events

__all__ = ["depth", "is_coding", "is_waiting", "movers", "pairs", "read_of", "taken_ns", "write_of"]

Ints = npt.NDArray[np.int64]


def write_of(plan: Plan, process: str, channel: str) -> int:
    """Return the index of the op of a process that writes a channel.

    Raises:
        KeyError: It does not write it.
    """
    for index, op in enumerate(plan.program(process).ops):
        if channel in op.channels_out:
            return index
    raise KeyError(channel)


def read_of(plan: Plan, process: str, channel: str) -> int:
    """Return the index of the op of a process that reads a channel.

    Raises:
        KeyError: It does not read it.
    """
    for index, op in enumerate(plan.program(process).ops):
        if channel in op.channels_in:
            return index
    raise KeyError(channel)


def is_coding(events: Events) -> npt.NDArray[np.bool_]:
    """Return which events of Reads or Writes did nothing but encode or decode."""
    took = events["end_ns"] - events["start_ns"]
    found: npt.NDArray[np.bool_] = (
        (events["bytes"] == 0) & (events["coded_ns"] > 0) & (events["coded_ns"] >= took)
    )
    return found


def is_waiting(events: Events) -> npt.NDArray[np.bool_]:
    """Return which events of a Read of a driver ended without a frame.

    These have no bytes, but a frame may have none either. Where others have some, that decides;
    where none has, only one that waited to its last nanosecond is sure to be without.

    Args:
        events: All of the Read.
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
    """Return the places of the events of one op of a driver that moved its frames, by execution.

    An execution whose frame was not moved in the trace has none. Of a Read that is in the trace
    only as decoding, that stands for it.

    Args:
        events: All of one op, in any order.
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
    # What only waited or encoded comes before what moves, so of equals the last one did.
    order = np.lexsort((events["start_ns"], rank, execution))
    is_last = np.append(execution[order][1:] != execution[order][:-1], True)[: len(order)]
    found = order[is_last]
    chosen: Ints = found[rank[found] > 0]
    return chosen


def taken_ns(reads: Events) -> Ints:
    """Return when each Read had its frame: it waits first, then moves and decodes it."""
    taken: Ints = np.minimum(reads["start_ns"] + reads["waited_ns"], reads["end_ns"])
    return taken


def pairs(writes: Events, reads: Events) -> tuple[Ints, Ints]:
    """Return the places of Writes and of the Reads that took what they sent, by execution.

    Both are only those that move frames.
    """
    _, sent, took = np.intersect1d(writes["execution"], reads["execution"], return_indices=True)
    return sent, took


def depth(writes: Events, reads: Sequence[Events], start_ns: int) -> tuple[Ints, Ints]:
    """Return when the number of frames that lie in a channel changed, and to how many.

    A frame lies there from the end of its Write until the last reader has taken it. What was taken
    and not written was there from the beginning.

    Args:
        writes: The Writes of the channel that move its frames.
        reads: The Reads that move them, of each reader.
        start_ns: The beginning; the first time is that.
    """
    executions, gone = reads[0]["execution"], taken_ns(reads[0])
    for others in reads[1:]:
        _, mine, theirs = np.intersect1d(executions, others["execution"], return_indices=True)
        gone = np.maximum(gone[mine], taken_ns(others)[theirs])
        executions = executions[mine]
    _, sent, took = np.intersect1d(writes["execution"], executions, return_indices=True)
    came = writes["end_ns"].copy()
    # The writer notes the end of its Write after the frame can be read.
    came[sent] = np.minimum(came[sent], gone[took])
    lay_there = len(gone) - len(took)

    times = np.concatenate([came, gone])
    steps = np.concatenate([np.ones(len(came), np.int64), np.full(len(gone), -1, np.int64)])
    moments, which = np.unique(np.maximum(times, start_ns), return_inverse=True)
    changes = np.bincount(which, steps, len(moments)).astype(np.int64)
    kept = changes != 0
    times = np.concatenate([[start_ns], moments[kept]]).astype(np.int64)
    return times, lay_there + np.concatenate([[0], np.cumsum(changes[kept])]).astype(np.int64)
