# SPDX-License-Identifier: Apache-2.0
"""Which events of a lane can be drawn on one line: events that are apart, or nested.

Ops of an actor never overlap; those of the driver do, where several threads submit and get. Spans
lie inside calls, one inside another or apart, unless a method's coroutines take turns.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rcg.trace.model import SPAN_BASE, Events

__all__ = ["nest"]

Ints = npt.NDArray[np.int64]


def nest(events: Events) -> tuple[Ints, Ints]:
    """Return the order in which events nest, and the track of each in that order.

    On a track no event overlaps another in part, an op lies inside nothing, and a span inside the
    call or span that stands before it if that is where it can be. There are as few tracks as ops or
    spans overlap; most often one.

    Args:
        events: The rows of a lane.
    """
    is_span = events["op"] >= SPAN_BASE
    end = events["end_ns"]
    order = np.lexsort((np.where(is_span, -end, end), is_span, events["start_ns"]))
    starts, ends = events["start_ns"][order], end[order]
    if not is_span.any() and bool((starts[1:] >= ends[:-1]).all()):
        return order, np.zeros(len(order), np.int64)

    tracks: list[list[int]] = []  # of each the ends of what is open, the innermost last
    found = []
    for start, stop, span in zip(
        starts.tolist(), ends.tolist(), is_span[order].tolist(), strict=True
    ):
        free = inside = -1
        for track in range(len(tracks) - 1, -1, -1):
            stack = tracks[track]
            while stack and stack[-1] <= start:
                stack.pop()
            if not stack:
                free = track
            elif span and stop <= stack[-1]:
                inside = track
        chosen = inside if inside >= 0 else free
        if chosen < 0:
            chosen = len(tracks)
            tracks.append([])
        tracks[chosen].append(stop)
        found.append(chosen)
    return order, np.array(found, np.int64)
