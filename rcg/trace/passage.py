# SPDX-License-Identifier: Apache-2.0
"""How values passed through channels: which Read took what a Write sent, and what lay unread.

A channel carries one frame per execution, so the execution joins the two.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rcg.plan import Plan, Read, Write
from rcg.trace.trace import Events

__all__ = ["depth", "pairs", "read_of", "taken_ns", "write_of"]

Ints = npt.NDArray[np.int64]


def write_of(plan: Plan, process: str, channel: str) -> int:
    """Return the index of the op of a process that writes a channel.

    Raises:
        KeyError: It does not write it.
    """
    for index, op in enumerate(plan.program(process).ops):
        if isinstance(op, Write) and op.channel == channel:
            return index
    raise KeyError(channel)


def read_of(plan: Plan, process: str, channel: str) -> int:
    """Return the index of the op of a process that reads a channel.

    Raises:
        KeyError: It does not read it.
    """
    for index, op in enumerate(plan.program(process).ops):
        if isinstance(op, Read) and op.channel == channel:
            return index
    raise KeyError(channel)


def taken_ns(reads: Events) -> Ints:
    """Return when each Read had its frame: it waits first, then moves and decodes it."""
    taken: Ints = np.minimum(reads["start_ns"] + reads["waited_ns"], reads["end_ns"])
    return taken


def pairs(writes: Events, reads: Events) -> tuple[Ints, Ints]:
    """Return the places of Writes and of the Reads that took what they sent, by execution."""
    _, sent, took = np.intersect1d(writes["execution"], reads["execution"], return_indices=True)
    return sent, took


def depth(writes: Events, reads: Sequence[Events], start_ns: int) -> tuple[Ints, Ints]:
    """Return when the number of frames that lie in a channel changed, and to how many.

    A frame lies there from the end of its Write until the last reader has taken it. What was taken
    and not written was there from the beginning.

    Args:
        writes: The Writes of the channel.
        reads: The Reads, of each reader.
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
