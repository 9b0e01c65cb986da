# SPDX-License-Identifier: Apache-2.0
"""What an op usually takes: medians over the executions of a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from rcg.trace.trace import SPAN_BASE, GraphTrace

__all__ = ["OpTimes", "op_times"]

_NONE: Final = 0


@dataclass(frozen=True, slots=True)
class OpTimes:
    """One op of one process over all its executions.

    Attributes:
        count: How often it ran.
        work_ns: Median of its own time, without waiting.
        waited_ns: Median of what it waited.
        bytes: Median of what it moved.
    """

    count: int = _NONE
    work_ns: float = 0.0
    waited_ns: float = 0.0
    bytes: float = 0.0


def op_times(record: GraphTrace) -> Mapping[tuple[str, int], OpTimes]:
    """Return the times of each op that ran, by process and index in its program."""
    found = {}
    for lane in record.lanes:
        events = lane.events[lane.events["op"] < SPAN_BASE]
        order = np.argsort(events["op"], kind="stable")
        ops, starts = np.unique(events["op"][order], return_index=True)
        for op, rows in zip(ops.tolist(), np.split(order, starts[1:]), strict=False):
            some = events[rows]
            work = some["end_ns"] - some["start_ns"] - some["waited_ns"]
            found[lane.process, op] = OpTimes(
                len(some),
                float(np.median(work)),
                float(np.median(some["waited_ns"])),
                float(np.median(some["bytes"])),
            )
    return found
