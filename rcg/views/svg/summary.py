# SPDX-License-Identifier: Apache-2.0
"""The profile's card: where the time of each process went, and the key figures.

```
a0 (Stage)  █ compute 62 % █▓ 14 %▓░ waiting 20 % ░   1.5 ms   throughput        515 /s
a1 (Stage)  █ compute 79 % ████████▓ 11 %▓░ 7 % ░     1.8 ms   median / p99 latency 1.94 / 2.31 ms
```
"""

from __future__ import annotations

from html import escape
from typing import Final

from rcg.text import brief, plural, share_text, shown_text, ticks_of, time_text, visible, wrapped
from rcg.trace.analysis.events import TimeKind
from rcg.views.data.colours import TITLES
from rcg.views.data.figures import HINTS, CardRow, ProfileCard
from rcg.views.data.lettering import DOT, SIZE, SMALL, TITLE, width_of
from rcg.views.svg.bars import MIN_TEXT_HEIGHT
from rcg.views.svg.canvas import MARGIN, Canvas
from rcg.views.svg.lanes import fitting, heights_for
from rcg.views.svg.looks import kind_entries, kind_looks

_TOP: Final = MARGIN + 50
_TWO_COLUMNS: Final = 720
_KEYS: Final = 330.0
_NAMES: Final = 0.4  # of the room
_LINE: Final = 25.0
_MAX_LINE_CHARS: Final = 80  # of a hover
_TEXT_LINE: Final = 18.0
_TRY: Final = 24.0  # where the code of advice begins
_MEAN_WIDTH, _MEAN_WIDTH_BOLD = 0.6, 0.65  # of a character, as a share of its size
_ROOM_FOR_WAITS: Final = 480.0
_COLUMN_GAP: Final = 14.0
_LEAST_PLOT: Final = 84.0  # of bars: notes may take the rest
_APART: Final = 30.0  # above the latency
_HISTOGRAM: Final = 54.0


def summary_of(figures: ProfileCard, *, width: float = 1040) -> str:
    """Return the profile as the text of an SVG file.

    Key figures are beside the bars if the width has room for them, else below.
    """
    return _Summary(figures, width).text()


def _whole_part(text: str, room: float) -> str:
    """Return a note, or its first fact alone if there is no room for all: no figure is cut."""
    is_whole = width_of(text, SMALL, bold=True) <= room
    return text if is_whole else text.partition(f" {DOT} ")[0]


def _moved(shapes: list[str], x: float, y: float) -> list[str]:
    return [f'<g transform="translate({x:g} {y:g})">', *shapes, "</g>"] if shapes else []


class _Summary:
    def __init__(self, figures: ProfileCard, width: float) -> None:
        self._figures = figures
        self._canvas = Canvas()
        self._width = width
        self._has_two_columns = width >= _TWO_COLUMNS
        self._room = width - 2 * MARGIN - (_KEYS + 36 if self._has_two_columns else 0)
        count = len(figures.shares)
        bar, gap = heights_for(count, 18.0, 15.0, 12.0), heights_for(count, 12.0, 7.0, 4.0)
        shrink = fitting(count * (bar + gap), count)
        self._bar, self._gap = round(bar * shrink, 1), round(gap * shrink, 1)
        self._size = SIZE if count <= 24 else SMALL
        self._longest_ns = max((sum(each.ns) for each in figures.shares), default=0.0)

    def text(self) -> str:
        figures, canvas = self._figures, self._canvas
        used = [kind for kind in TimeKind if any(each.ns[kind] > 0 for each in figures.shares)]
        heading, top = self._heading()
        legend = canvas.legend(kind_entries(canvas, used), MARGIN, top + 4, self._room)
        bars_top = top + legend.height + 6
        bars, height = self._bars()
        bottom = bars_top + height
        shapes = [*heading, *legend.shapes, *_moved(bars, MARGIN, bars_top)]
        if self._has_two_columns:
            keys, keys_height = self._keys(_KEYS)
            x, y = self._width - MARGIN - _KEYS, top - 4
        else:
            keys, keys_height = self._keys(self._room)
            x, y = MARGIN, bottom + 12
        shapes += _moved(keys, x, y)
        # The latency goes below what is shorter.
        if self._has_two_columns and bottom <= y + keys_height:
            latency, latency_height = self._latency(self._room)
            shapes += _moved(latency, MARGIN, bottom + _APART)
            bottom = max(bottom + _APART + latency_height, y + keys_height)
        else:
            latency, latency_height = self._latency(_KEYS if self._has_two_columns else self._room)
            shapes += _moved(latency, x, y + keys_height + _APART)
            bottom = max(bottom, y + keys_height + (_APART + latency_height if latency else 0))
        label = figures.answer or figures.about
        return canvas.document(
            shapes, self._width, round(bottom + MARGIN - 6), f"{figures.title}: {label}"
        )

    def _heading(self) -> tuple[list[str], float]:
        """Return the lines above the bars, and where they end: the answer first."""
        figures, canvas = self._figures, self._canvas
        room = self._width - 2 * MARGIN
        if not figures.answer:
            return canvas.heading(figures.title, figures.about, room), _TOP
        shapes = [canvas.text(figures.title, MARGIN, MARGIN + 12, room, size=TITLE, bold=True)]
        y = MARGIN + 33.0
        for line in wrapped(figures.answer, int(room / SIZE / _MEAN_WIDTH_BOLD)):
            shapes.append(canvas.text(line, MARGIN, y, room, bold=True))
            y += _TEXT_LINE
        for advice in figures.advice:
            shapes.append(canvas.text("try", MARGIN, y, _TRY, role="faint"))
            x, free = MARGIN + _TRY, room - _TRY
            most = int(free / width_of("0", SIZE, monospace=True))
            for statement in advice.code.split("; "):
                for line in wrapped(statement, most, later="    "):
                    shapes.append(canvas.text(line, x, y, free, monospace=True))
                    y += _TEXT_LINE
            for line in wrapped(advice.effect, int(free / SIZE / _MEAN_WIDTH)):
                shapes.append(canvas.text(line, x, y, free))
                y += _TEXT_LINE
        for line in wrapped(figures.about, int(room / SIZE / _MEAN_WIDTH)):
            shapes.append(canvas.text(line, MARGIN, y, room, role="faint"))
            y += _TEXT_LINE
        return shapes, y + 1

    def _bars(self) -> tuple[list[str], float]:
        figures, canvas = self._figures, self._canvas
        widths = [width_of(visible(each.label), self._size, bold=True) for each in figures.shares]
        names = min(max(widths, default=0.0), self._room * _NAMES)
        notes = [(figures.note_title, [each.note for each in figures.shares])]
        if self._room >= _ROOM_FOR_WAITS and any(each.waits for each in figures.shares):
            notes.append(("waits most for", [each.waits for each in figures.shares]))
        left = names + 14
        free = self._room - left - _LEAST_PLOT - _COLUMN_GAP * len(notes)
        most = max(self._room / (2 + len(notes)), free / len(notes))
        notes = [(head, [_whole_part(text, most) for text in texts]) for head, texts in notes]
        wide = [
            min(most, max(width_of(text, SMALL, bold=True) for text in (head, *texts)))
            for head, texts in notes
        ]
        ends = [self._room - sum(wide[:at]) - _COLUMN_GAP * at for at in range(len(wide))]
        plot = ends[-1] - wide[-1] - (_COLUMN_GAP if wide[-1] else 0) - left
        shapes: list[str] = []
        y = 0.0
        if figures.note_title:
            for (head, _), end, width in zip(notes, ends, wide, strict=True):
                shapes.append(canvas.note(head, end, 4, width + 1, anchor="end"))
            y = 12.0
        for row, each in enumerate(figures.shares):
            middle = y + self._bar / 2
            lines = [line for line in (each.label, *each.hover.split("\n")) if line]
            hover = "\n".join(brief(line, _MAX_LINE_CHARS) for line in lines)
            # Rather without its class than cut.
            is_whole = widths[row] <= names
            name = each.label if is_whole else each.label.partition(" (")[0]
            shapes.append(canvas.head(name, middle, names + 1, self._size, hover))
            shapes += self._stack(each, left, y, plot)
            for (_, texts), end, width in zip(notes, ends, wide, strict=True):
                if texts[row]:
                    at = middle + SMALL * 0.36
                    style = {"role": "text", "bold": True} if each.is_odd else {}
                    note = canvas.note(texts[row], end, at, width + 1, anchor="end", **style)
                    shapes.append(note)
            y += self._bar + self._gap
        axis = self._axis(left, plot, y)
        return [*axis, *shapes], y + (14 if axis else -self._gap)

    def _axis(self, left: float, plot: float, bottom: float) -> list[str]:
        """Return the axis of the bars: their parts are sums of time, so it begins at 0."""
        if not self._longest_ns:
            return []
        canvas, scale = self._canvas, plot / self._longest_ns
        ticks = ticks_of(self._longest_ns, max(3, int(plot // 60)))
        lines = "".join(f"M{left + at * scale:.1f} 8V{bottom:g}" for at, _ in ticks)
        shapes = [f'<path{canvas.paint("grid")} d="{lines}"/>']
        free = -MARGIN
        for at, label in ticks:
            x, room = round(left + at * scale, 1), width_of(label, SMALL)
            anchor = "end" if x + room / 2 > left + plot else "middle"
            x = left + plot if anchor == "end" else x
            begin = x - (room if anchor == "end" else room / 2)
            if begin >= free:
                shapes.append(canvas.note(label, x, bottom + 13, room + 1, anchor=anchor))
                free = begin + room + 6
        return shapes

    def _latency(self, room: float) -> tuple[list[str], float]:
        """Return how many executions have which latency, and how much of it they are queued."""
        found, canvas = self._figures.latency, self._canvas
        if found is None or not found.counts:
            return [], 0.0
        looks = kind_looks(canvas)
        words = f"up to {plural(max(found.counts), 'execution')}; hatched: in queues"
        shapes = [
            canvas.text("latency", 0, 0, room / 2, role="faint"),
            canvas.note(words, room, 0, room * 0.8, anchor="end"),
        ]
        most, width, base = max(found.counts), room / len(found.counts), 10 + _HISTOGRAM
        step_ns = (found.last_ns - found.first_ns) / len(found.counts)
        for at, (count, queued) in enumerate(zip(found.counts, found.queued, strict=True)):
            if not count:
                continue
            height = max(_HISTOGRAM * count / most, 1.5)
            begin = found.first_ns + at * step_ns
            is_last = found.has_longer and at == len(found.counts) - 1
            until = "and more" if is_last else f"to {time_text(begin + step_ns)}"
            hover = (
                f"{time_text(begin)} {until}: {plural(count, 'execution')}\n"
                f"{share_text(queued, 0)} of it queued"
            )
            size = f'x="{at * width:.1f}" width="{width - 1.5:.1f}"'
            split = base - height * (1 - queued)
            shapes.append(
                f"<g><title>{escape(hover)}</title>"
                f'<rect{looks[TimeKind.WAITING].attributes} {size} y="{base - height:.1f}" '
                f'height="{height * queued:.1f}"/>'
                f'<rect{looks[TimeKind.COMPUTE].attributes} {size} y="{split:.1f}" '
                f'height="{height * (1 - queued):.1f}"/></g>'
            )
        shapes.append(f'<path{canvas.paint("grid")} d="M0 {base:g}H{room:g}"/>')
        last = "and more" if found.has_longer else ""
        free, right = 0.0, room - (width_of(last, SMALL) + 6 if last else 0)
        for at, label in ticks_of(found.last_ns - found.first_ns, 5, found.first_ns):
            x = round(at * room / (found.last_ns - found.first_ns), 1)
            half = width_of(label, SMALL) / 2
            middle = min(max(x, free + half), right - half)  # inside, and still below its tick
            if middle - half < free or abs(middle - x) > half:
                continue
            shapes.append(f'<path{canvas.paint("joint")} d="M{x:g} {base:g}v4"/>')
            shapes.append(canvas.note(label, middle, base + 16, 2 * half + 1, anchor="middle"))
            free = middle + half + 6
        shapes.append(canvas.note(last, room, base + 16, room / 2, anchor="end"))
        return shapes, base + 18

    def _stack(self, each: CardRow, left: float, y: float, room: float) -> list[str]:
        looks = kind_looks(self._canvas)
        total = sum(each.ns)
        scale = room / max(self._longest_ns, 1)
        shapes: list[str] = []
        x = left
        for kind in TimeKind:
            if not total or each.ns[kind] <= 0:
                continue
            share = each.ns[kind] / total
            width = each.ns[kind] * scale
            gap = 0.6 if width > 3 else 0.0
            time = time_text(each.ns[kind])
            hover = f"{brief(each.label)}\n{TITLES[kind]}: {share_text(share, 0)}, {time}"
            shapes.append(
                f'<rect{looks[kind].attributes} x="{x:.1f}" y="{y:g}" '
                f'width="{width - gap:.1f}" height="{self._bar:g}">'
                f"<title>{escape(shown_text(hover))}</title></rect>"
            )
            words = f"{TITLES[kind]} {share_text(share, 0)}"
            if width_of(words, SMALL, bold=True) > width - 8:
                words = share_text(share, 0)
            has_room = width_of(words, SMALL, bold=True) <= width - 4
            if has_room and self._bar >= MIN_TEXT_HEIGHT:
                label = self._canvas.text(
                    words,
                    round(x + width / 2, 1),
                    y + self._bar / 2 + SMALL * 0.36,
                    width,
                    role=looks[kind].text if kind != TimeKind.IDLE else "on-idle",
                    size=SMALL,
                    bold=True,
                    anchor="middle",
                )
                shapes.append(
                    f'<g stroke-width="3" paint-order="stroke" pointer-events="none">{label}</g>'
                )
            x += width
        return shapes

    def _keys(self, room: float) -> tuple[list[str], float]:
        shapes: list[str] = []
        y = 0.0
        for name, value in self._figures.keys:
            y += _LINE
            shown = min(width_of(name, SIZE), room * 0.5)
            words = self._canvas.text(name, 0, y - 8, shown + 1, role="faint")
            words += self._canvas.text(
                value, room, y - 8, room - shown - 14, bold=True, anchor="end"
            )
            hint = HINTS.get(name)
            shapes.append(f"<g><title>{escape(hint)}</title>{words}</g>" if hint else words)
            shapes.append(f'<path{self._canvas.paint("grid")} d="M0 {y:g}H{room:g}"/>')
        return shapes, y
