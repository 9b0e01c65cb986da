# SPDX-License-Identifier: Apache-2.0
"""The timeline of tensors by reference: when each process waited for tensors, and got them.

A lane is a process that gets tensors. Transfers that overlap in time have a band each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from rcg.text import bytes_text, plural, short_label, time_text
from rcg.trace.analysis.events import TimeKind
from rcg.trace.model import Recording, TensorTransfer
from rcg.views.data.lettering import DOT
from rcg.views.svg.bars import Band, Bars, draw
from rcg.views.svg.canvas import WIDTH, Canvas
from rcg.views.svg.lanes import ChartRow, LaneChart, fitting, heights_for
from rcg.views.svg.looks import kind_entries, kind_looks

_MAX_BYTES: Final = 150_000
_MAX_TRANSFERS: Final = 5_000
_MAX_BANDS: Final = 6
_KINDS: Final = (TimeKind.WAITING, TimeKind.COMMUNICATION)


def references_picture(trace: Recording) -> str | None:
    """Return the timeline of the latest transfers as the text of an SVG file; None without any."""
    shown = trace.transfers[-_MAX_TRANSFERS:]
    if not shown:
        return None
    canvas = Canvas()
    start_ns = min(each.start_ns for each in shown)
    duration_ns = max(1, max(each.end_ns for each in shown) - start_ns)
    targets = sorted({each.target for each in shown})
    bands_of = {target: _bands([x for x in shown if x.target == target]) for target in targets}
    height = heights_for(len(targets), 18.0, 14.0, 9.0)
    gap = heights_for(len(targets), 13.0, 8.0, 4.0)
    count = sum(max(band for _, band in each) + 1 for each in bands_of.values())
    shrink = fitting(count * (height + 2) + len(targets) * gap, len(targets))
    height, gap = round(height * shrink, 1), round(gap * shrink, 1)
    rows, offsets = [], []
    for target in targets:
        count = max(band for _, band in bands_of[target]) + 1
        grounds = tuple((at * (height + 2), at * (height + 2) + height) for at in range(count))
        offsets.append([begin for begin, _ in grounds])
        rows.append(ChartRow(short_label(target), target, grounds[-1][1], (), grounds))
    chart = LaneChart(canvas, rows, gap, WIDTH)
    scale = chart.plot_width / duration_ns
    bands: list[Band] = []
    drawn: list[TensorTransfer] = []
    columns: list[tuple[int, float, float, int, int]] = []
    for lane, target in enumerate(targets):
        first = len(bands)
        bands += [Band(chart.tops[lane] + y, height) for y in offsets[lane]]
        for each, band in sorted(bands_of[target], key=lambda pair: (pair[1], pair[0].start_ns)):
            left = (each.start_ns - start_ns) * scale
            middle = left + each.waited_ns * scale
            right = (each.end_ns - start_ns) * scale
            row = len(drawn)
            drawn.append(each)
            columns.append((first + band, left, middle - left, 0, 2 * row))
            columns.append((first + band, middle, right - middle, 1, 2 * row + 1))
    looks = kind_looks(canvas)
    table = np.array(columns, np.float64)
    whole = table.astype(np.int64)
    bars = Bars(whole[:, 0], table[:, 1], table[:, 2], whole[:, 3], whole[:, 4])

    def labels_of(row: int) -> Sequence[str]:
        each = drawn[row // 2]
        return [short_label(each.source), bytes_text(each.bytes)] if row % 2 else []

    def hover_of(row: int) -> str:
        each = drawn[row // 2]
        did, time_ns = ("moved", each.moved_ns) if row % 2 else ("waited", each.waited_ns)
        words = [
            f"{bytes_text(each.bytes)} from {short_label(each.source)} by {each.transport}",
            f"{did} {time_text(time_ns)} {DOT} at {time_text(each.start_ns - trace.start_ns)}",
        ]
        return "\n".join([*words, *filter(None, [each.error])])

    shapes = draw(
        canvas,
        bands,
        [looks[kind] for kind in _KINDS],
        bars,
        chart.plot_width,
        labels_of=labels_of,
        hover_of=hover_of,
        budget=_MAX_BYTES,
    )
    about = f"{plural(len(trace.transfers), 'transfer')} {DOT} {time_text(duration_ns)}"
    if len(shown) < len(trace.transfers):
        about += f" {DOT} the latest {len(shown)} are drawn"
    title = "Tensors by reference"
    return chart.document(
        title,
        about,
        chart.ticks(duration_ns, start_ns - trace.start_ns),
        ['<g class="rcg-bars">', *shapes.shapes, *shapes.labels, "</g>"],
        kind_entries(canvas, [*_KINDS, TimeKind.IDLE]),
        f"{title}: when {plural(len(targets), 'process')} waited for tensors and got them",
    )


def _bands(transfers: Sequence[TensorTransfer]) -> list[tuple[TensorTransfer, int]]:
    """Return transfers with the band of each: those that overlap have different ones."""
    ends: list[int] = []
    found = []
    for each in sorted(transfers, key=lambda one: one.start_ns):
        band = next((at for at, end in enumerate(ends) if end <= each.start_ns), len(ends))
        band = min(band, _MAX_BANDS - 1)
        if band == len(ends):
            ends.append(each.end_ns)
        ends[band] = max(ends[band], each.end_ns)
        found.append((each, band))
    return found
