# SPDX-License-Identifier: Apache-2.0
"""Fits a scene into a number of bytes: sums before a time, single bars after it.

```
single bars            | a | b | a |   c   | a | b | a | b |
until a time merged    |  a: 3, b: 1  |  c | a | b | a | b |     bars as long as a bin stay single
```

A sum is of the bars of one row, one op and one kind in one bin: how many there are, what they take
in all, and the longest of them. The sums of a bin lie one after the other in it, so that all of its
time is accounted for. What is known of single bars alone (links, critical paths) is left out where
they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from rcg.views.data.packing import pack
from rcg.views.scene import NOBODY, NONE, SUM, Bars, Column, CriticalPaths, Ints, Scene, Steps, Sums

_LEVEL: Final = 6  # of compression
_MAX_SUMS: Final = 60_000
_MAX_BINS: Final = 2_000
_MIN_BARS: Final = 500  # single ones; below, the data is not shown at all
MAX_BARS: Final = 600_000  # single ones; a browser pans that many at 30 frames a second


def packed_within(scene: Scene, most_bytes: int) -> bytes | None:
    """Return the payload of a scene packed into so many bytes; None if that is too little.

    The latest bars stay single, as many as fit.
    """
    count = len(scene.bars)
    single = min(count, MAX_BARS)
    while single >= min(count, _MIN_BARS):
        packed = pack(*with_sums(scene, single).to_payload(), level=_LEVEL)
        if len(packed) <= most_bytes:
            return packed
        single = int(single * min(most_bytes / len(packed), 0.9))
    return None


def with_sums(scene: Scene, single: int) -> Scene:
    """Return a scene with about so many single bars, the latest ones."""
    bars = scene.bars
    start, took = bars.start, bars.duration
    if len(bars) <= single:
        return scene
    until = max(int(np.partition(start, -single)[-single]), 1)
    parts = [getattr(bars, name).astype(np.int64) for name in ("row", "op", "name", "kind")]
    row, op, name, kind = parts
    code = (row << 40) | (op << 24) | (name << 8) | kind
    codes, group = np.unique(code, return_inverse=True)
    bins = max(1, min(_MAX_BINS, min(_MAX_SUMS, single) // len(codes)))
    length = -(-until // bins)
    is_merged = (start + took <= until) & (took < length) & (start >= 0)
    made = _sums(bars, is_merged, group, codes >> 40, length)
    kept = np.flatnonzero(~is_merged)
    joined, moved = Bars.joined([bars.take(kept), made])
    place = np.full(len(bars), -1)
    place[kept] = moved[: len(kept)]
    return replace(
        scene,
        bars=joined,
        links=scene.links.moved(place),
        steps=tuple([_queue(each, until, length, bins) for each in scene.steps]),
        paths=_paths(scene.paths, until),
        causes=_causes(scene.causes, kept, place, len(joined)),
        sums=Sums(until, length, int(is_merged.sum())),
    )


def _sums(bars: Bars, is_merged: Column, group: Column, row_of: Column, length: int) -> Bars:
    """Return the sums of bars. Those of one group are in one sum of each bin.

    Groups are sorted by row, which ``row_of`` has.
    """
    which = np.flatnonzero(is_merged)
    start, took = bars.start[which], bars.duration[which]
    bin_of = start // length
    # A bar is in one bin or in two. It counts in the first.
    later = np.maximum(start + took - (bin_of + 1) * length, 0)
    over = np.flatnonzero(later)
    bar = np.concatenate([which, which[over]])
    bin_of = np.concatenate([bin_of, bin_of[over] + 1])
    part = np.concatenate([took - later, later[over]])
    ones = np.repeat([1, 0], [len(which), len(over)])
    # By row, bin and group.
    width = len(row_of)
    code = ((row_of[group[bar]] * (int(bin_of.max(initial=0)) + 1)) + bin_of) * width + group[bar]
    order = np.argsort(code, kind="stable")
    code = code[order]
    first = np.flatnonzero(np.append(True, code[1:] != code[:-1])[: len(code)])
    if not len(first):
        return Bars().counted()
    bar = bar[order]
    total = np.add.reduceat(part[order], first)
    where = code[first] // width
    begins = np.flatnonzero(np.append(True, where[1:] != where[:-1]))
    before = np.cumsum(total) - total
    before -= np.repeat(before[begins], np.diff(begins, append=len(where)))
    return bars.take(bar[first]).with_columns(
        start=bin_of[order][first] * length + before,
        duration=total,
        execution=np.full(len(first), SUM),
        bytes=np.zeros(len(first)),
        peer=np.full(len(first), NOBODY),
        count=np.add.reduceat(ones[order], first),
        shortest=np.minimum.reduceat(bars.duration[bar], first),
        longest=np.maximum.reduceat(bars.duration[bar], first),
        total=total,
    )


def _causes(causes: Ints, kept: Ints, place: Ints, count: int) -> Ints:
    """Return the causes of single bars that are single bars; ``place`` has the new ones."""
    found = np.full(count if len(causes) else 0, NONE)
    if len(causes):
        of = causes[kept]
        found[place[kept]] = np.where(of == NONE, NONE, place[of])
    return found


def _queue(queue: Steps, until: int, length: int, bins: int) -> Steps:
    """Return a queue with the largest depth of each bin until a time."""
    edges: Ints = np.arange(bins) * length
    edges = edges[edges < until]
    at, depth = queue.at, queue.depth
    last = np.searchsorted(at, until)
    begun = np.searchsorted(at[:last], edges)
    carried = depth[np.maximum(np.searchsorted(at[:last], edges, side="right") - 1, 0)]
    most = np.maximum.reduceat(np.append(depth[:last], 0), begun)
    most = np.where(np.diff(begun, append=last) > 0, np.maximum(most, carried), carried)
    is_new = np.append(True, most[1:] != most[:-1])
    return replace(
        queue,
        at=np.concatenate([edges[is_new], [until], at[last:]]),
        depth=np.concatenate([most[is_new], depth[max(last - 1, 0) : last][-1:], depth[last:]]),
    )


def _paths(paths: CriticalPaths, until: int) -> CriticalPaths:
    """Return the steps of critical paths that end after a time."""
    is_kept = paths.end > until
    kept = np.append(0, np.cumsum(is_kept))
    return CriticalPaths(
        paths.executions,
        paths.row[is_kept],
        paths.begin[is_kept],
        paths.end[is_kept],
        kept[paths.until] if len(paths.until) else paths.until,
    )
