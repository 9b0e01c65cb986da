# SPDX-License-Identifier: Apache-2.0
"""The timeline: what every process did at each moment, and how values went from one to the next.

```
Stage#1  ops    ░░░░│fwd 7 ████████│▓│░░░░░│fwd 8 ███████     colour = kind of time
                                    ╲
Stage#2  ops    ░░░░░░░░░░░░░░░░░░░░│▓│fwd 7 █████████│       a line joins a write and its read
         queue  ▁▁▁▁▁▁▂▂▂▂▁▁▁▁▁▁▁                             frames written and not read yet
```

A lane has a strip for each of its tracks, so streams of communicators will be strips as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from rcg.text import brief, bytes_text, plural, ticks_of, time_text
from rcg.trace.analysis.parts import Kind
from rcg.views.data.colours import KIND_COLOURS, TITLES
from rcg.views.data.lettering import DOT
from rcg.views.data.queues import Queue, queues_of
from rcg.views.data.slices import NOBODY, OPS, SPAN, SPANS, Marks, repeats_of
from rcg.views.svg.bars import Bars, Strip, draw
from rcg.views.svg.canvas import Canvas, Paint
from rcg.views.svg.lanes import Frame, Row, heights_for
from rcg.views.svg.looks import idle, kind_looks

__all__ = ["timeline_of"]

_BUDGET: Final = 210_000
_MOST_LINKS: Final = 180
_TRACKS: Final = {OPS: "ops", SPANS: "spans"}


def timeline_of(
    marks: Marks,
    *,
    title: str = "Timeline",
    about: str = "",
    width: float = 1040,
    dark: bool | None = None,
) -> str:
    """Return the timeline as the text of an SVG file, of at most about 300 KB.

    Args:
        marks: What to show: all of it. To look closer, take marks of less time.
        title: What stands above.
        about: What is shown, for the line below the title: ``executions 7 to 18``.
        width: Of the picture.
        dark: Whether the ground is dark; None leaves it to the reader's browser.
    """
    return _Timeline(marks, Canvas(dark), width).text(title, about)


class _Timeline:
    def __init__(self, marks: Marks, canvas: Canvas, width: float) -> None:
        self._marks = marks
        self._canvas = canvas
        self._queues = queues_of(marks)
        # Whether an execution's number does not tell the calls of a process apart.
        self._is_repeated = repeats_of(marks) > 1
        count = len(marks.heads)
        self._bar = heights_for(count, 20.0, 15.0, 10.0)
        self._thin = heights_for(count, 14.0, 11.0, 6.0)
        self._queue = heights_for(count, 9.0, 7.0, 4.0)
        self._between = 3.0 if count <= 24 else 1.0
        self._tracks = [
            np.unique(marks.track[marks.lane == lane]).tolist() or [OPS] for lane in range(count)
        ]
        self._is_named = count <= 24 and any(len(tracks) > 1 for tracks in self._tracks)
        self._offsets: list[dict[int, Strip]] = []
        self._queue_offsets: list[float] = []
        rows = [self._row(lane) for lane in range(count)]
        self._frame = Frame(canvas, rows, heights_for(count, 13.0, 8.0, 4.0), width)
        self._scale = self._frame.plot_width / max(marks.duration_ns, 1)

    def _row(self, lane: int) -> Row:
        y = 0.0
        strips: dict[int, Strip] = {}
        parts, grounds = [], []
        for track in self._tracks[lane]:
            height = self._bar if track == OPS else self._thin
            strips[track] = Strip(y, height)
            if self._is_named:
                parts.append((_TRACKS.get(track, f"stream {track - SPANS}"), y + height / 2))
            if track != SPANS:
                grounds.append((y, y + height))
            y += height + self._between
        self._offsets.append(strips)
        self._queue_offsets.append(y - 1)
        if lane in self._queues:
            y += self._queue
            if self._is_named or len(self._tracks) <= 12:
                parts.append(("queue", y - self._queue / 2 - 1))
        else:
            y -= self._between
        head = self._marks.heads[lane]
        return Row(head.label, head.detail, y, tuple(parts), tuple(grounds))

    @property
    def _processes(self) -> str:
        count = len(self._marks.heads)
        return plural(count, "process")

    def text(self, title: str, about: str) -> str:
        marks, frame = self._marks, self._frame
        bars, strips = self._bars()
        drawn = draw(
            self._canvas,
            strips,
            [kind_looks(self._canvas)[kind] for kind in range(SPAN + 1)],
            bars,
            frame.plot_width,
            labels_of=self._labels,
            hover_of=self._hover,
            budget=_BUDGET,
        )
        links, note = self._links()
        words = [about or f"{time_text(marks.duration_ns)} of {self._processes}"]
        merged = len(drawn.merged)
        if merged > len(marks) / 5:
            words.append(f"{plural(merged, 'bar')} under a pixel: height = share of time")
        words += note
        most = max(2, int(frame.plot_width // 95))
        first = marks.start_ns - marks.origin_ns
        ticks = [
            (at * self._scale, label) for at, label in ticks_of(marks.duration_ns, most, first)
        ]
        body = [*self._queue_marks(), *links, '<g class="rcg-bars">', *drawn.marks, "</g>"]
        return frame.document(
            title,
            f" {DOT} ".join(words),
            ticks,
            body,
            self._legend(has_links=bool(links)),
            f"{title}: what {self._processes} did at each moment",
        )

    # Bars

    def _bars(self) -> tuple[Bars, list[Strip]]:
        marks = self._marks
        strips: list[Strip] = []
        number = np.zeros((max(len(marks.heads), 1), 256), np.int64)
        for lane, offsets in enumerate(self._offsets):
            for track, strip in offsets.items():
                number[lane, track] = len(strips)
                strips.append(Strip(self._frame.tops[lane] + strip.y, strip.height))
        left = np.clip(marks.start * self._scale, 0, self._frame.plot_width)
        right = np.clip((marks.start + marks.duration) * self._scale, 0, self._frame.plot_width)
        # Marks are by lane and by track already, and by start.
        return (
            Bars(
                number[marks.lane, marks.track],
                left,
                right - left,
                marks.kind.astype(np.int64),
                np.arange(len(marks)),
            ),
            strips,
        )

    def _labels(self, row: int) -> Sequence[str]:
        marks = self._marks
        name = marks.names[marks.name[row]]
        if marks.kind[row] == Kind.WAITING:
            peer = int(marks.peer[row])
            return [] if peer == NOBODY else [f"waits for {marks.heads[peer].label}"]
        if name.role == "call":
            execution = f"{marks.execution[row]}"
            return [f"{name.text} {execution}", name.text if self._is_repeated else execution]
        if name.role == "span":
            return [name.text]
        if marks.kind[row] == Kind.SERIALIZATION:
            return []
        return [name.text]

    def _hover(self, row: int) -> str:
        marks = self._marks
        name = marks.names[marks.name[row]]
        words = [f"{brief(marks.heads[marks.lane[row]].label)} {brief(name.text)}"]
        time_ns = float(marks.duration[row])
        words.append(f"execution {marks.execution[row]} {DOT} {TITLES[int(marks.kind[row])]}")
        since = int(marks.start[row]) + marks.start_ns - marks.origin_ns
        words.append(f"{time_text(time_ns)} at {time_text(since)}")
        amount = int(marks.bytes[row])
        if amount and marks.kind[row] == Kind.COMMUNICATION and time_ns:
            rate = bytes_text(amount / time_ns * 1e9)
            words[-1] += f" {DOT} {bytes_text(amount)} {DOT} {rate}/s"
        elif amount:
            words[-1] += f" {DOT} {bytes_text(amount)}"
        peer = int(marks.peer[row])
        if peer != NOBODY:
            words.append(f"waits for {brief(marks.heads[peer].label)}")
        return "\n".join(words)

    # Transfers

    def _links(self) -> tuple[list[str], list[str]]:
        marks = self._marks
        count = len(marks.links)
        if not count:
            return [], []
        if count > _MOST_LINKS:
            return [], [f"{plural(count, 'transfer')} not drawn"]
        self._canvas.define("link", Paint("stroke", "#b34e00", "#ff8a3d"))
        paths = []
        for (write, read), moments in zip(marks.links.tolist(), marks.moments, strict=True):
            x, to_x = (float(moment) * self._scale for moment in moments)
            here, there = self._strip(write), self._strip(read)
            is_down = there.y > here.y
            y = here.y + here.height if is_down else here.y
            to_y = there.y if is_down else there.y + there.height
            middle = (y + to_y) / 2
            paths.append(
                f"M{x:.1f} {y:g}C{x:.1f} {middle:g} {to_x:.1f} {middle:g} {to_x:.1f} {to_y:g}"
            )
        line = self._canvas.paint("link")
        return [
            f'<g class="rcg-links" pointer-events="none"><path{line} fill="none" '
            f'stroke-width="1.2" stroke-opacity=".75" d="{"".join(paths)}"/></g>'
        ], []

    def _strip(self, row: int) -> Strip:
        lane, track = int(self._marks.lane[row]), int(self._marks.track[row])
        strip = self._offsets[lane][track]
        return Strip(self._frame.tops[lane] + strip.y, strip.height)

    # Queues

    def _queue_marks(self) -> list[str]:
        paths = []
        for lane, queue in self._queues.items():
            top = self._frame.tops[lane] + self._queue_offsets[lane]
            paths.append(self._steps(queue, top))
        if not any(paths):
            return []
        return [f"<g{self._canvas.paint('queue')}>", *paths, "</g>"]

    def _steps(self, queue: Queue, top: float) -> str:
        """The area below the depth; of each column of pixels its highest."""
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
        hover = f"up to {most} of {queue.slots} frames written and not read yet"
        return f'<path d="{boxes}"><title>{hover}</title></path>'

    # Words

    def _legend(self, *, has_links: bool) -> list[tuple[str, str]]:
        canvas = self._canvas
        looks = kind_looks(canvas)
        used = set(np.unique(self._marks.kind).tolist())
        entries = [
            (f'<rect{looks[kind].attributes} width="14" height="10" rx="2"/>', TITLES[kind])
            for kind in (*KIND_COLOURS, Kind.WAITING, SPAN)
            if kind in used
        ]
        entries.append((f'<rect{idle(canvas)} width="14" height="10" rx="2"/>', "idle"))
        if has_links:
            line = '<path{} fill="none" stroke-width="1.2" d="M3 0C3 6 11 4 11 10"/>'
            entries.append((line.format(canvas.paint("link")), "transfer"))
        if self._queues:
            most = max(int(queue.depth.max()) for queue in self._queues.values())
            step = f'<path{canvas.paint("queue")} d="M0 10v-3h5v-5h5v4h4v4z"/>'
            entries.append((step, f"frames that wait to be read, up to {most}"))
        return entries
