# SPDX-License-Identifier: Apache-2.0
"""The profile's card: where the time of each process went, and the key figures.

```
a0 (Stage)  █ compute 62 % █▓ 14 %▓░ waiting 20 % ░   1.5 ms   throughput        515 /s
a1 (Stage)  █ compute 79 % ████████▓ 11 %▓░ 7 % ░     1.8 ms   p50 / p99 latency 1.94 / 2.31 ms
```
"""

from __future__ import annotations

from html import escape
from typing import Final

from rcg.text import brief, share_text, shown_text, time_text, visible
from rcg.trace.analysis.parts import TimeKind
from rcg.views.data.colours import TITLES
from rcg.views.data.figures import HINTS, CardRow, ProfileCard
from rcg.views.data.lettering import SIZE, SMALL, width_of
from rcg.views.svg.canvas import MARGIN, Canvas
from rcg.views.svg.lanes import heights_for
from rcg.views.svg.looks import kind_entries, kind_looks

_TOP: Final = MARGIN + 50
_TWO_COLUMNS: Final = 720
_KEYS: Final = 330.0
_LINE: Final = 25.0
_MAX_LINE_CHARS: Final = 80  # of a hover


def summary_of(figures: ProfileCard, *, width: float = 1040) -> str:
    """Return the profile as the text of an SVG file.

    Key figures are beside the bars if the width has room for them, else below.
    """
    return _Summary(figures, width).text()


class _Summary:
    def __init__(self, figures: ProfileCard, width: float) -> None:
        self._figures = figures
        self._canvas = Canvas(None)
        self._width = width
        self._has_two_columns = width >= _TWO_COLUMNS
        self._room = width - 2 * MARGIN - (_KEYS + 36 if self._has_two_columns else 0)
        count = len(figures.shares)
        self._bar = heights_for(count, 18.0, 15.0, 11.0)
        self._gap = heights_for(count, 12.0, 7.0, 4.0)
        self._size = SIZE if count <= 24 else SMALL

    def text(self) -> str:
        figures, canvas = self._figures, self._canvas
        used = [kind for kind in TimeKind if any(each.ns[kind] > 0 for each in figures.shares)]
        legend = canvas.legend(kind_entries(canvas, used), MARGIN, _TOP + 4, self._room)
        top = _TOP + legend.height + 6
        bars, height = self._bars()
        bottom = top + height
        shapes = [
            *canvas.heading("Profile", figures.about, self._width - 2 * MARGIN),
            *legend.shapes,
            f'<g transform="translate({MARGIN:g} {top:g})">',
            *bars,
            "</g>",
        ]
        if self._has_two_columns:
            keys, keys_height = self._keys(_KEYS)
            x, y = self._width - MARGIN - _KEYS, _TOP - 4
        else:
            keys, keys_height = self._keys(self._room)
            x, y = MARGIN, bottom + 12
        shapes += [f'<g transform="translate({x:g} {y:g})">', *keys, "</g>"]
        bottom = max(bottom, y + keys_height)
        return canvas.document(
            shapes, self._width, round(bottom + MARGIN - 6), f"Profile: {figures.about}"
        )

    def _bars(self) -> tuple[list[str], float]:
        figures, canvas = self._figures, self._canvas
        widths = [width_of(visible(each.label), self._size, bold=True) for each in figures.shares]
        names = min(max(widths, default=0.0), self._room / 3)
        titles = [figures.note_title, *(each.note for each in figures.shares)]
        notes = max(width_of(title, SMALL) for title in titles)
        left, plot = names + 14, self._room - names - 14 - (notes + 12 if notes else 0)
        shapes: list[str] = []
        y = 0.0
        if figures.note_title:
            shapes.append(canvas.note(figures.note_title, self._room, 4, notes, anchor="end"))
            y = 12.0
        for each in figures.shares:
            middle = y + self._bar / 2
            lines = [line for line in (each.label, *each.hover.split("\n")) if line]
            hover = "\n".join(brief(line, _MAX_LINE_CHARS) for line in lines)
            shapes.append(canvas.head(each.label, middle, names + 1, self._size, hover))
            shapes += self._stack(each, left, y, plot)
            if each.note:
                y_of_note = middle + SMALL * 0.36
                shapes.append(
                    canvas.note(each.note, self._room, y_of_note, notes + 1, anchor="end")
                )
            y += self._bar + self._gap
        return shapes, max(0.0, y - self._gap)

    def _stack(self, each: CardRow, left: float, y: float, room: float) -> list[str]:
        looks = kind_looks(self._canvas)
        total = sum(each.ns)
        shapes: list[str] = []
        x = left
        for kind in TimeKind:
            if not total or each.ns[kind] <= 0:
                continue
            share = each.ns[kind] / total
            width = share * room
            gap = 0.6 if width > 3 else 0.0
            time = time_text(each.ns[kind])
            hover = f"{brief(each.label)}\n{TITLES[kind]}: {share_text(share, 0)}, {time}"
            shapes.append(
                f'<rect{looks[kind].attributes} x="{x:.1f}" y="{y:g}" '
                f'width="{width - gap:.1f}" height="{self._bar:g}">'
                f"<title>{escape(shown_text(hover))}</title></rect>"
            )
            size = min(SMALL, self._bar * 0.72)
            words = f"{TITLES[kind]} {share_text(share, 0)}"
            if width_of(words, size, bold=True) > width - 8:
                words = share_text(share, 0)
            if width_of(words, size, bold=True) <= width - 4:
                label = self._canvas.text(
                    words,
                    round(x + width / 2, 1),
                    y + self._bar / 2 + size * 0.36,
                    width,
                    role=looks[kind].text if kind != TimeKind.IDLE else "on-idle",
                    size=size,
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
