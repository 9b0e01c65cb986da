# SPDX-License-Identifier: Apache-2.0
"""Fits the data of a timeline into a number of bytes: sums before a time, single bars after it.

```
single bars            | a | b | a |   c   | a | b | a | b |
until a time merged    |  a: 3, b: 1  |  c | a | b | a | b |     bars as long as a bin stay single
```

A sum is of the bars of one row and one name in one bin: how many there are, what they take in all,
and the longest of them. The sums of a bin lie one after the other in it, so that all of its time is
accounted for. Those of spans inside of spans take more than a bin in all: they are drawn narrower,
in proportion. What is known of single bars alone (transfers, collectives, critical paths) is left
out where they are.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rcg.views.data import ViewPayload
from rcg.views.data.packing import pack

_LEVEL: Final = 6  # of compression
_MAX_SUMS: Final = 60_000
_MAX_BINS: Final = 2_000
_MIN_BARS: Final = 500  # single ones; below, the data is not shown at all
MAX_BARS: Final = 600_000  # single ones; a browser pans that many at 30 frames a second

Column = npt.NDArray[Any]


def packed_within(payload: ViewPayload, most_bytes: int) -> bytes | None:
    """Return the data of a timeline packed into so many bytes; None if that is too little.

    The latest bars stay single, as many as fit.
    """
    count = len(payload.columns["start"])
    single = min(count, MAX_BARS)
    while single >= min(count, _MIN_BARS):
        packed = pack(*with_sums(payload, single), level=_LEVEL)
        if len(packed) <= most_bytes:
            return packed
        single = int(single * min(most_bytes / len(packed), 0.9))
    return None


def with_sums(payload: ViewPayload, single: int) -> ViewPayload:
    """Return the data of a timeline with about so many single bars, the latest ones.

    The head gets ``sums``: None, or ``until_us``, when single bars begin, ``bin_us``, the length of
    a bin, and ``bars``, how many there would be. The columns ``sum_count``, ``sum_total`` and
    ``sum_longest`` (microseconds) are 0 for single bars; they are empty without sums. A sum has no
    execution: -1.
    """
    head, columns = payload
    start = _ns(columns["start"])
    took = _ns(columns["duration"])
    if len(start) <= single:
        none = {"sum_count": np.empty(0, "<i4")}
        none |= {"sum_total": np.empty(0), "sum_longest": np.empty(0)}
        return ViewPayload({**head, "sums": None}, {**columns, **none})
    until = max(int(np.partition(start, -single)[-single]), 1)
    of = ("lane", "track", "op", "name", "kind")
    parts = [columns[name].astype(np.int64) for name in of]
    code, group = np.unique(_code(parts), return_inverse=True)
    bins = max(1, min(_MAX_BINS, min(_MAX_SUMS, single) // len(code)))
    length = -(-until // bins)
    is_merged = (start + took <= until) & (took < length)
    rows, sums = _sums(start, took, is_merged, group, code >> 40, length)
    kept = np.flatnonzero(~is_merged)
    # Sorted by lane, track and start.
    row = np.concatenate([kept, rows])
    begin = np.concatenate([start[kept], sums["start"]])
    order = np.lexsort((begin, columns["track"][row], columns["lane"][row]))
    place = np.full(len(start), -1)
    place[kept] = np.argsort(order)[: len(kept)]

    def joined(name: str, own: Column) -> Column:
        return np.concatenate([own[kept], sums[name]])[order]

    zeros = np.zeros(len(start), np.int64)
    found = {
        name: columns[name][row][order] for name in ("lane", "track", "op", "name", "kind", "peer")
    }
    found |= {
        "start": joined("start", start) / 1e3,
        "duration": joined("took", took) / 1e3,
        "execution": np.concatenate([columns["execution"][kept], np.full(len(rows), -1.0)])[order],
        "bytes": np.concatenate([columns["bytes"][kept], np.zeros(len(rows))])[order],
        "sum_count": joined("count", zeros).astype("<i4"),
        "sum_total": joined("total", zeros) / 1e3,
        "sum_longest": joined("longest", zeros) / 1e3,
    }
    found |= _exchanges(columns, place)
    queues, times, depths = _queues(head["queues"], columns, until, length, bins)
    found |= {"queue_time": times, "queue_depth": depths}
    found |= _paths(columns, until / 1e3)
    words = {"until_us": until / 1e3, "bin_us": length / 1e3, "bars": int(is_merged.sum())}
    count = len(found["transfer_times"]) // 2
    head = {**head, "queues": queues, "sums": words, "count": len(row), "transfers": count}
    return ViewPayload(head, {**columns, **found})


def _ns(times: Column) -> Column:
    return np.rint(times * 1e3).astype(np.int64)


def _code(parts: list[Column]) -> Column:
    """Return one number for a lane, a track, an op, a name and a kind, in this order."""
    lane, track, op, name, kind = parts
    return (lane << 48) | (track << 40) | (op << 24) | (name << 8) | kind


def _sums(
    start: Column, took: Column, is_merged: Column, group: Column, row_of: Column, length: int
) -> tuple[Column, dict[str, Column]]:
    """Return a bar of each sum, and the columns of the sums in nanoseconds.

    Bars of one group are in one sum of each bin. Groups are sorted by row, which ``row_of`` has.
    """
    bars = np.flatnonzero(is_merged)
    which = start[bars] // length
    # A bar is in one bin or in two. It counts in the first.
    later = np.maximum(start[bars] + took[bars] - (which + 1) * length, 0)
    over = np.flatnonzero(later)
    bar = np.concatenate([bars, bars[over]])
    which = np.concatenate([which, which[over] + 1])
    part = np.concatenate([took[bars] - later, later[over]])
    ones = np.repeat([1, 0], [len(bars), len(over)])
    # By row, bin and group.
    width = len(row_of)
    code = ((row_of[group[bar]] * (int(which.max(initial=0)) + 1)) + which) * width + group[bar]
    order = np.argsort(code, kind="stable")
    code = code[order]
    first = np.flatnonzero(np.append(True, code[1:] != code[:-1])[: len(code)])
    if not len(first):
        empty = np.empty(0, np.int64)
        return empty, dict.fromkeys(("start", "took", "total", "count", "longest"), empty)
    bar = bar[order]
    total = np.add.reduceat(part[order], first)
    where = code[first] // width
    begins = np.flatnonzero(np.append(True, where[1:] != where[:-1]))
    sizes = np.diff(begins, append=len(where))
    overfull = np.maximum(np.repeat(np.add.reduceat(total, begins), sizes) / length, 1.0)
    drawn = np.where(overfull > 1, np.floor(total / overfull).astype(np.int64), total)
    before = np.cumsum(drawn) - drawn
    before -= np.repeat(before[begins], sizes)
    columns = {
        "start": which[order][first] * length + before,
        "took": drawn,
        "total": total,
        "count": np.add.reduceat(ones[order], first),
        "longest": np.maximum.reduceat(took[bar], first),
    }
    return bar[first], columns


def _exchanges(columns: Any, place: Column) -> dict[str, Column]:
    """Return the transfers and the collectives that have single bars alone."""
    pairs = place[columns["transfers"].reshape(-1, 2)]
    is_kept = (pairs >= 0).all(axis=1)
    sizes, ranks = np.diff(columns["collective_first"]), columns["collectives"]
    missing = np.zeros(len(sizes), np.int64)
    np.add.at(missing, np.repeat(np.arange(len(sizes)), sizes), place[ranks] < 0)
    is_shown = missing == 0
    return {
        "transfers": pairs[is_kept].ravel().astype("<i4"),
        "transfer_times": columns["transfer_times"].reshape(-1, 2)[is_kept].ravel(),
        "is_wire": columns["is_wire"][is_kept],
        "collectives": place[ranks[np.repeat(is_shown, sizes)]].astype("<i4"),
        "collective_first": np.cumsum([0, *sizes[is_shown]]).astype("<i4"),
        "collective_times": columns["collective_times"].reshape(-1, 2)[is_shown].ravel(),
    }


def _queues(
    heads: list[dict[str, int]], columns: Any, until: int, length: int, bins: int
) -> tuple[list[dict[str, int]], Column, Column]:
    """Return the queues with the largest depth of each bin until a time."""
    edges = np.arange(bins) * length
    edges = edges[edges < until]
    found, times, depths, first = [], [np.empty(0)], [np.empty(0, np.uint16)], 0
    for head in heads:
        own = slice(head["first"], head["first"] + head["count"])
        at, depth = _ns(columns["queue_time"][own]), columns["queue_depth"][own]
        last = np.searchsorted(at, until)
        begun = np.searchsorted(at[:last], edges)
        carried = depth[np.maximum(np.searchsorted(at[:last], edges, side="right") - 1, 0)]
        most = np.maximum.reduceat(np.append(depth[:last], 0), begun)
        most = np.where(np.diff(begun, append=last) > 0, np.maximum(most, carried), carried)
        is_new = np.append(True, most[1:] != most[:-1])
        at = np.concatenate([edges[is_new], [until], at[last:]])
        depth = np.concatenate([most[is_new], depth[max(last - 1, 0) : last][-1:], depth[last:]])
        found.append({**head, "first": first, "count": len(at)})
        times.append(at / 1e3)
        depths.append(depth)
        first += len(at)
    return found, np.concatenate(times), np.concatenate(depths).astype("<u2")


def _paths(columns: Any, until_us: float) -> dict[str, Column]:
    """Return the steps of critical paths that end after a time."""
    is_kept = columns["path_end"] > until_us
    kept = np.append(0, np.cumsum(is_kept))
    names = ("path_lane", "path_start", "path_end")
    steps = {name: columns[name][is_kept] for name in names}
    return steps | {"path_until": kept[columns["path_until"]].astype("<i4")}
