# SPDX-License-Identifier: Apache-2.0
"""Distributes the events of a lane to tracks on which events are disjoint or nested.

Ops of an actor never overlap. Ops of the driver overlap if several threads submit and get. Spans
lie inside calls and are disjoint or nested, unless a method's coroutines alternate.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rcg.trace.model import SPAN_BASE, Events

Ints = npt.NDArray[np.int64]


def nest(events: Events) -> tuple[Ints, Ints]:
    """Return the order in which events nest, and the track of each event in that order.

    On a track no event partly overlaps another, and no op lies inside another event. A span lies
    inside the call or span before it if it fits. There are as many tracks as events overlap,
    usually one.

    Args:
        events: The rows of a lane.
    """
    is_span = events["op"] >= SPAN_BASE
    end = events["end_ns"]
    order = np.lexsort((np.where(is_span, -end, end), is_span, events["start_ns"]))
    starts, ends = events["start_ns"][order], end[order]
    if not is_span.any() and bool((starts[1:] >= ends[:-1]).all()):
        return order, np.zeros(len(order), np.int64)

    tracks: list[list[int]] = []  # for each track, the ends of its open events, the innermost last
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
