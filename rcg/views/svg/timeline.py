# SPDX-License-Identifier: Apache-2.0
"""The timeline: what each process did when, and the transfers of values between processes.

```
a0 (Stage)  ops    ░░░░│fwd 7 ████████│▓│░░░░░│fwd 8 ███████  colour = kind of time
                        ━━━━━━━━━━━━━━━━┓                      the critical path
a1 (Stage)  ops    ░░░░░░░░░░░░░░░░░░░░│▓│fwd 7 █████████│
                                       ┗━━━━━━━━━━━━━━━━━━
            queue  ▁▁▁▁▁▁▂▂▂▂▁▁▁▁▁▁▁                          values written and not read yet
  comm      ops    ░░░░░░░░░░░░░░│▓▓▓▓│░░░░░░░░░░│▓▓▓▓│░░░░   a lane of the actor
```

A lane has one band per track. Bars of a few pixels are merged, and their height is a share of the
time. Lanes of a node of the cluster are together, below its name. A few transfers have a line from
the write to the read; one to another node is dashed for its time on the wire, to the lane of the
gate there. The ranks of a collective have a line through all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from rcg.text import brief, bytes_text, plural, speed_text, time_text
from rcg.trace.analysis.ops import MAX_GB_PER_S
from rcg.trace.analysis.parts import TimeKind
from rcg.views.data.colours import DEVICE_COLOURS, KIND_COLOURS, TITLES
from rcg.views.data.edge_styles import TCP, style_of
from rcg.views.data.lettering import DOT
from rcg.views.data.schedule import marks_in
from rcg.views.data.slices import HIDDEN, NOBODY, OPS, SPAN, SPANS, STREAMS, Slices
from rcg.views.data.timeline import QueueDepth, Runs, queues_of
from rcg.views.svg.bars import Band, Bars, draw
from rcg.views.svg.canvas import Canvas, Paint
from rcg.views.svg.joins import (
    COLLECTIVE_LINE,
    Joins,
    ends_between,
    exchange_lines_of,
    transfer_lines,
)
from rcg.views.svg.lanes import ChartRow, LaneChart, fitting, headings_of, heights_for, size_of
from rcg.views.svg.looks import kind_entries, kind_looks

_MAX_BARS_BYTES: Final = 210_000
_MAX_TRANSFERS: Final = 16
_MAX_COLLECTIVES: Final = 48
_MAX_QUEUES: Final = 24
_NARROW: Final = 4  # pixels: bars that are narrower are shares of time
_WIRE: Final = style_of(TCP)
_TRACKS: Final = {OPS: "ops", SPANS: "spans"}


def timeline_of(
    slices: Slices,
    *,
    path: Runs | None = None,
    title: str = "Timeline",
    about: str = "",
    width: float = 1040,
) -> str:
    """Return the timeline as the text of an SVG file, of at most about 300 KB.

    ``path`` is the critical path, and ``about`` the line below the title, such as
    ``executions 7 to 18``.
    """
    return _Timeline(slices, path, Canvas(), width).text(title, about)


class _Timeline:
    def __init__(self, slices: Slices, path: Runs | None, canvas: Canvas, width: float) -> None:
        self._slices = slices
        self._path = path
        self._canvas = canvas
        count = len(slices.heads)
        size = size_of(slices.heads)
        queues = queues_of(slices) if size <= _MAX_QUEUES else {}
        self._queues = {at: each for at, each in queues.items() if not slices.heads[at].under}
        self._exchanges = exchange_lines_of(slices)
        # Whether several calls of a process have the same execution number.
        self._is_repeated = marks_in(slices).repeats > 1
        self._tracks = [
            np.unique(slices.track[slices.lane == lane]).tolist() or [OPS] for lane in range(count)
        ]
        bar, thin = heights_for(size, 20.0, 15.0, 14.0), heights_for(size, 14.0, 11.0, 7.0)
        queue, gap = heights_for(size, 9.0, 7.0, 4.0), heights_for(size, 13.0, 8.0, 5.0)
        between = 3.0 if count <= 24 else 1.0
        more = sum(map(len, self._tracks)) - count
        height = count * (bar + gap) + more * (thin + between) + len(self._queues) * queue
        shrink = fitting(height, size)
        self._bar, self._thin, self._queue, self._between, gap = (
            round(each * shrink, 1) for each in (bar, thin, queue, between, gap)
        )
        self._is_named = count <= 24 and any(len(tracks) > 1 for tracks in self._tracks)
        self._offsets: list[dict[int, Band]] = []
        self._queue_offsets: list[float] = []
        self._headings = headings_of([head.node for head in slices.heads])
        self._wires = {
            int(end): int(came - left)
            for (_, end), (left, came) in zip(
                slices.transfers[slices.is_wire], slices.transfer_times[slices.is_wire], strict=True
            )
        }
        self._processes = plural(count, "process")
        self._looks = kind_looks(canvas)
        rows = [self._row(lane) for lane in range(count)]
        self._frame = LaneChart(canvas, rows, gap, width, slices.heads)
        self._scale = self._frame.plot_width / max(slices.duration_ns, 1)

    def _row(self, lane: int) -> ChartRow:
        y = 0.0
        bands: dict[int, Band] = {}
        parts, grounds = [], []
        for track in self._tracks[lane]:
            is_high = track == OPS and not self._slices.heads[lane].under
            height = self._bar if is_high else self._thin
            bands[track] = Band(y, height)
            if self._is_named:
                streams = self._slices.heads[lane].streams
                name = _TRACKS.get(track) or streams[track - STREAMS]
                parts.append((name, y + height / 2))
            if track != SPANS:
                grounds.append((y, y + height))
            y += height + self._between
        self._offsets.append(bands)
        self._queue_offsets.append(y - 1)
        if lane in self._queues:
            y += self._queue
            if self._is_named or len(self._tracks) <= 12:
                parts.append(("queue", y - self._queue / 2 - 1))
        else:
            y -= self._between
        head = self._slices.heads[lane]
        return ChartRow(
            head.short or head.label,
            head.detail,
            y,
            tuple(parts),
            tuple(grounds),
            self._headings[lane],
            bool(head.under),
        )

    def text(self, title: str, about: str) -> str:
        slices, frame = self._slices, self._frame
        bars, bands = self._bars()
        drawn = draw(
            self._canvas,
            bands,
            [self._looks[kind] for kind in range(len(self._looks))],
            bars,
            frame.plot_width,
            labels_of=self._labels,
            hover_of=self._hover,
            budget=_MAX_BARS_BYTES,
            finest=_NARROW,
        )
        transfers, path = self._transfers(), self._path_shapes()
        joins = Joins(self._canvas, slices, self._scale, self._band)
        collectives, more = joins.collectives(_MAX_COLLECTIVES)
        words = [about or f"{time_text(slices.duration_ns)} of {self._processes}"]
        merged = len(drawn.merged)
        if merged > len(slices) / 5:
            words.append(f"{plural(merged, 'narrow bar')}: height = share of time")
        words += [*more, *slices.clock_words()]
        body = [
            *self._queue_shapes(),
            *transfers,
            '<g class="rcg-bars">',
            *drawn.shapes,
            "</g>",
            *collectives,
            *path,
            *drawn.labels,  # no line crosses them
        ]
        return frame.document(
            title,
            f" {DOT} ".join(words),
            frame.ticks(slices.duration_ns, slices.start_ns - slices.origin_ns),
            body,
            self._legend(
                has_transfers=bool(transfers),
                has_collectives=bool(collectives),
                has_path=bool(path),
            ),
            f"{title}: what {self._processes} did when",
        )

    # Bars

    def _bars(self) -> tuple[Bars, list[Band]]:
        slices = self._slices
        bands: list[Band] = []
        number = np.zeros((max(len(slices.heads), 1), 256), np.int64)
        for lane, offsets in enumerate(self._offsets):
            for track, band in offsets.items():
                number[lane, track] = len(bands)
                bands.append(Band(self._frame.tops[lane] + band.y, band.height))
        left = np.clip(slices.start * self._scale, 0, self._frame.plot_width)
        right = np.clip((slices.start + slices.duration) * self._scale, 0, self._frame.plot_width)
        # Slices are already sorted by lane, track and start.
        bar_bands, look = number[slices.lane, slices.track], slices.kind.astype(np.int64)
        return Bars(bar_bands, left, right - left, look, np.arange(len(slices))), bands

    def _labels(self, row: int) -> Sequence[str]:
        slices = self._slices
        name = slices.names[slices.name[row]]
        if slices.kind[row] == TimeKind.WAITING:
            peer = int(slices.peer[row])
            return [] if peer == NOBODY else [f"waits for {slices.heads[peer].label}"]
        if name.role == "span" and self._is_below(row):
            return []
        if name.role == "call":
            execution = f"{slices.execution[row]}"
            return [f"{name.text} {execution}", name.text if self._is_repeated else execution]
        return [] if slices.kind[row] == TimeKind.SERIALIZATION else [name.text]

    def _is_below(self, row: int) -> bool:
        """Whether a span inside a span lies where the label of that would be."""
        slices = self._slices
        middle = slices.start[row] + slices.duration[row] / 2
        inside = row + 1
        while (
            inside < len(slices)
            and (slices.lane[inside], slices.track[inside]) == (slices.lane[row], slices.track[row])
            and slices.start[inside] <= middle
        ):
            if slices.start[inside] + slices.duration[inside] >= middle:
                return True
            inside += 1
        return False

    def _hover(self, row: int) -> str:
        slices = self._slices
        name = slices.names[slices.name[row]]
        time_ns = float(slices.duration[row])
        since = int(slices.start[row]) + slices.start_ns - slices.origin_ns
        words = [
            f"{brief(slices.heads[slices.lane[row]].label)} {brief(name.text)}",
            f"execution {slices.execution[row]} {DOT} {TITLES[int(slices.kind[row])]}",
            f"{time_text(time_ns)} at {time_text(since)}",
        ]
        amount = int(slices.bytes[row])
        if row in self._exchanges:
            words += self._exchanges[row]
        elif amount:
            words[-1] += f" {DOT} {bytes_text(amount)}"
            # The bar of a lane may be a part of what moved these bytes.
            is_whole = not slices.heads[slices.lane[row]].under
            is_moved = slices.kind[row] == TimeKind.COMMUNICATION and is_whole
            if is_moved and amount <= time_ns * MAX_GB_PER_S:
                words[-1] += f" {DOT} {speed_text(amount / time_ns)}"
        if row in self._wires:
            words.append(f"on the wire for {time_text(self._wires[row])}")
        peer = int(slices.peer[row])
        if peer != NOBODY:
            words.append(f"waits for {brief(slices.heads[peer].label)}")
        words += filter(None, [slices.rank_text(row)])
        return "\n".join(words)

    # Transfers

    def _transfers(self) -> list[str]:
        slices = self._slices
        if not 0 < len(slices.transfers) <= _MAX_TRANSFERS:
            return []
        paths: list[str] = []
        wires: list[str] = []
        for (write, read), times, is_wire in zip(
            slices.transfers.tolist(), slices.transfer_times, slices.is_wire.tolist(), strict=True
        ):
            x, to_x = (float(each) * self._scale for each in times)
            y, to_y = ends_between(self._band(write), self._band(read))
            middle = (y + to_y) / 2
            (wires if is_wire else paths).append(
                f"M{x:.1f} {y:g}C{x:.1f} {middle:g} {to_x:.1f} {middle:g} {to_x:.1f} {to_y:g}"
            )
        lines = transfer_lines(self._canvas, paths)
        if wires:
            self._canvas.define("wire", Paint("stroke", _WIRE.light, _WIRE.dark))
            line = self._canvas.paint("wire")
            lines += (
                f'<path{line} fill="none" stroke-width="1.8" stroke-dasharray="{_WIRE.dashes}" '
                f'd="{"".join(wires)}"/>'
            )
        return [f'<g class="rcg-transfers" pointer-events="none">{lines}</g>']

    def _path_shapes(self) -> list[str]:
        """Return the critical path: below the bars that are on it, from lane to lane."""
        if self._path is None or not len(self._path):
            return []
        self._canvas.define("path", Paint("stroke", "#16191d", "#ffffff"))
        runs, steps = [], []
        before = None
        for lane, start, end in self._path.tolist():
            band = self._offsets[lane][OPS]
            y = self._frame.tops[lane] + band.y + band.height + 1
            x, to_x = start * self._scale, end * self._scale
            runs.append(f"M{x:.1f} {y:g}H{max(to_x, x + 1):.1f}")
            if before is not None:
                steps.append(f"M{x:.1f} {before:g}V{y:g}")
            before = y
        if len(runs) * _NARROW > self._frame.plot_width:
            steps = []  # a thicket
        return [
            f'<g class="rcg-critical" pointer-events="none"><g{self._canvas.paint("path")} '
            f'fill="none"><path stroke-width="2.2" d="{"".join(runs)}"/>'
            f'<path stroke-width="1" d="{"".join(steps)}"/></g></g>'
        ]

    def _band(self, row: int) -> Band:
        lane, track = int(self._slices.lane[row]), int(self._slices.track[row])
        band = self._offsets[lane][track]
        return Band(self._frame.tops[lane] + band.y, band.height)

    # Queues

    def _queue_shapes(self) -> list[str]:
        paths = [
            self._steps(queue, self._frame.tops[lane] + self._queue_offsets[lane])
            for lane, queue in self._queues.items()
        ]
        if not any(paths):
            return []
        return [f"<g{self._canvas.paint('queue')}>", *paths, "</g>"]

    def _steps(self, queue: QueueDepth, top: float) -> str:
        """Return the area below the depth. A column of pixels has its highest depth."""
        column = 1 if len(self._queues) <= 12 else 2
        edges = np.arange(0, self._frame.plot_width, column)
        at = queue.at * self._scale
        first = np.maximum(np.searchsorted(at, edges, side="right") - 1, 0)
        depth = np.maximum.reduceat(queue.depth, first)
        most = max(int(queue.depth.max()), 1)
        height = np.round(depth / most * self._queue, 1)
        changes = np.concatenate(([0], np.flatnonzero(np.diff(height)) + 1))
        ends = np.append(edges[changes[1:]], self._frame.plot_width)
        base = top + self._queue
        boxes = "".join(
            f"M{x:g} {base:g}v-{up:g}H{end:g}V{base:g}z"
            for x, end, up in zip(
                edges[changes].tolist(), ends.tolist(), height[changes].tolist(), strict=True
            )
            if up
        )
        if not boxes:
            return ""
        hover = f"up to {most} of {queue.slots} values written and not read yet"
        return f'<path d="{boxes}"><title>{hover}</title></path>'

    # Words

    def _legend(
        self, *, has_transfers: bool, has_collectives: bool, has_path: bool
    ) -> list[tuple[str, str]]:
        canvas = self._canvas
        shown = (*KIND_COLOURS, HIDDEN, *DEVICE_COLOURS, TimeKind.WAITING, SPAN)
        used = [kind for kind in shown if (self._slices.kind == kind).any()]
        entries = kind_entries(canvas, [*used, TimeKind.IDLE])
        if has_path:
            line = '<path{} fill="none" stroke-width="2.2" d="M0 2H6V8H14"/>'
            entries.append((line.format(canvas.paint("path")), "critical path"))
        if has_transfers:
            line = '<path{} fill="none" stroke-width="1.2" d="M3 0C3 6 11 4 11 10"/>'
            entries.append((line.format(canvas.paint("transfer")), "transfer"))
        if has_transfers and self._slices.is_wire.any():
            line = '<path{} fill="none" stroke-width="1.8" stroke-dasharray="4 2" d="M0 5H14"/>'
            entries.append((line.format(canvas.paint("wire")), "on the wire between nodes (TCP)"))
        if has_collectives:
            entries.append((COLLECTIVE_LINE.format(canvas.paint("collective")), "collective"))
        if self._queues:
            most = max(int(queue.depth.max()) for queue in self._queues.values())
            step = f'<path{canvas.paint("queue")} d="M0 10v-3h5v-5h5v4h4v4z"/>'
            entries.append((step, f"values that wait to be read, up to {most}"))
        return entries
