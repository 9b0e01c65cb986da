# SPDX-License-Identifier: Apache-2.0
"""Many actors at a glance: a row for each of them, and which one is not as the others.

```
heat     a0  ███▓▓▒▒░░███▓▓▒▒░░      slices of the time; the stronger, the more of it is computed
         a1  ███████████████████     1.50x slower
shares   a1  compute ██████████ ░    where the time of each went, in all; the busiest on top
         a0  compute ██████ ▓▓ ░░░
```

Alike rows are not folded, because the point is to see the one that is not alike.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np

from rcg.text import bytes_text, share_text, time_text, visible
from rcg.trace.analysis.alike import odd_text
from rcg.trace.analysis.events import TimeKind
from rcg.trace.measured import Measured
from rcg.views.data.colours import KIND_COLOURS, KIND_LOOKS, SHADED, TITLES, Look
from rcg.views.data.lettering import DOT
from rcg.views.data.node_lanes import addresses_of, node_heads, order_of
from rcg.views.data.over_time import Floats, bytes_on_the_way, shares_over_time
from rcg.views.scene import QUEUE, Bars, Ints, Name, Row, Scene, Steps

MANY: Final = 16
"""From so many actors on, profiles show them so."""

_LEVELS: Final = 10
_SLICES: Final = 100
_MAX_CELLS: Final = 7_000  # a picture has each as a shape of its own
_MEMORY: Final = 120.0  # pixels


@dataclass(frozen=True, eq=False)
class Heat:
    """For which share of each slice of the time each actor does something.

    Attributes:
        rows: The actors.
        edges: Between the slices, in ns from the beginning of the trace [slices + 1].
        shares: From 0 to 1 [actors, slices].
    """

    rows: tuple[Row, ...]
    edges: Floats
    shares: Floats


def heat_of(measured: Measured, kinds: Collection[TimeKind]) -> Heat:
    """Return what actors do over time, from the first submission to the last result.

    Args:
        measured: What the graph did.
        kinds: The kinds of time that count.
    """
    rows, lanes = rows_of(measured)
    count = max(2, min(_SLICES, _MAX_CELLS // max(len(rows), 1)))
    edges, shares = shares_over_time(measured, kinds, *measured.window, count)
    return Heat(rows, edges, shares[lanes])


def heat_scene(
    measured: Measured,
    kinds: Collection[TimeKind] = (TimeKind.COMPUTE,),
    title: str = "Computing, actor by actor",
) -> Scene:
    """Return for which share of each slice of the time each actor does something.

    Args:
        measured: What the graph did. The time is from the first submission to the last result.
        kinds: The kinds of time that count.
        title: What counts.
    """
    heat = heat_of(measured, kinds)
    rows, shares = heat.rows, heat.shares
    edges: Ints = np.rint(heat.edges).astype(np.int64)
    count = shares.shape[1]
    # A share of nothing has no cell: its ground is hatched. Cells of one level are joined.
    level = np.where(shares > 0, np.minimum((shares * _LEVELS).astype(np.int64), _LEVELS - 1), -1)
    is_first = np.diff(level, axis=1, prepend=-2) != 0
    row, first = np.nonzero(is_first)
    is_last_of_row = np.append(row[1:] != row[:-1], True)[: len(row)]
    end = np.where(is_last_of_row, count, np.append(first[1:], count)[: len(row)])
    looks = level[row, first]
    shown = looks >= 0
    names = tuple(Name(each, "share") for each in _LEVEL_WORDS)
    tints = tuple(
        Look(_LEGEND, KIND_COLOURS[TimeKind.COMPUTE], SHADED, opacity=(at + 1) / _LEVELS)
        for at in range(_LEVELS)
    )
    start = edges[first[shown]]
    kind = np.full(int(shown.sum()), TimeKind.COMPUTE)
    bars = Bars.of(
        row=row[shown], start=start, duration=edges[end[shown]] - start, kind=kind,
        look=looks[shown], name=looks[shown],
    )  # fmt: skip
    words = _about(measured, f"slices of {time_text(float(edges[1] - edges[0]))}")
    begin, until = int(edges[0]), int(edges[-1])
    return Scene("heat", words, begin, until, rows, names, tints, "nothing of it", bars,
                 title=title, noted=_noted(rows))  # fmt: skip


_LEGEND: Final = "stronger colour: a larger share of the slice"
_LEVEL_WORDS: Final = (
    f"under {100 // _LEVELS} %",
    *(f"from {100 * at // _LEVELS} %" for at in range(1, _LEVELS)),
)


def shares_scene(measured: Measured) -> Scene:
    """Return where the time of each actor went in all, those that compute most on top."""
    found, lanes = rows_of(measured)
    of = [measured.shares.lanes[at] for at in lanes]
    order = sorted(range(len(of)), key=lambda at: -of[at].compute_ns)
    names: list[Name] = []
    cells: list[tuple[int, int, int, int, int]] = []
    for row, at in enumerate(order):
        begin = 0.0
        for kind in TimeKind:
            took = of[at].of(kind)
            if kind != TimeKind.IDLE and took > 0:  # which is the ground
                cells.append((row, round(begin), round(begin + took), kind, len(names)))
                share = share_text(took / (of[at].duration_ns or 1), 0)
                names.append(Name(f"{TITLES[kind]} {share}, {time_text(took)}", "share"))
                begin += took
    lane, start, end, look, name = np.array(cells, np.int64).reshape(-1, 5).T
    start_ns, end_ns = measured.window
    rows = tuple(found[at] for at in order)
    bars = Bars.of(row=lane, start=start, duration=end - start, kind=look, name=name)
    about = _about(measured, "those that compute most on top")
    return Scene("shares", about, 0, max(end_ns - start_ns, 1), rows, tuple(names), KIND_LOOKS,
                 "idle", bars, title="Where the time of each actor went",
                 noted=_noted(rows))  # fmt: skip


def memory_scene(measured: Measured) -> Scene:
    """Return how many bytes were written and not read yet."""
    at, sizes = bytes_on_the_way(measured)
    steps = Steps(0, np.rint(at).astype(np.int64), np.rint(sizes).astype(np.int64), 0)
    row = Row("bytes", "bytes", QUEUE, height=_MEMORY)
    about = f"at most {bytes_text(steps.most)}"
    end = max(measured.end_ns - measured.start_ns, 1)
    return Scene("memory", about, 0, end, (row,), (), KIND_LOOKS, "", Bars(), steps=(steps,),
                 title="Memory of values on their way", in_bytes=True,
                 queued="written and not read yet")  # fmt: skip


def rows_of(measured: Measured) -> tuple[tuple[Row, ...], list[int]]:
    """Return a row for each actor, without the driver, and the number of its lane in the record."""
    graph = measured.graph
    actors = {each.id for each in graph.plan.actors}
    nodes = node_heads(graph.plan, addresses_of(graph))
    odd = measured.summary.odd
    lanes = [at for at in order_of(graph.plan) if graph.lanes[at].process in actors]
    rows = []
    for lane in (graph.lanes[at] for at in lanes):
        stands_out = odd.get(lane.label)
        rows.append(
            Row(lane.process, visible(lane.label), node=nodes.get(lane.process, ""),
                note=str(stands_out) if stands_out else "")
        )  # fmt: skip
    return tuple(rows), lanes


def _about(measured: Measured, *words: str) -> str:
    return f" {DOT} ".join(filter(None, [odd_text(measured.summary.odd), *words]))


def _noted(rows: tuple[Row, ...]) -> str:
    return "its calls" if any(row.note for row in rows) else ""
