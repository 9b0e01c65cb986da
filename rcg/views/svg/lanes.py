# SPDX-License-Identifier: Apache-2.0
"""The rows of a scene in a picture: where they are, their names at the left, an axis below.

All such pictures use it, so a moment has the same place in all those of a graph and a width.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Final

from rcg.text import brief, plural, ticks_of, visible
from rcg.views.data.lettering import SIZE, SMALL, width_of
from rcg.views.scene import CALL_NS, IDEAL, PREDICTION, QUEUE, Row, Scene
from rcg.views.svg.bars import Band
from rcg.views.svg.canvas import MARGIN, Canvas
from rcg.views.svg.looks import idle

_MIN_NAMES_WIDTH: Final = 60.0
_MAX_NAMES_WIDTH: Final = 200.0
_TOP: Final = MARGIN + 50
_AXIS: Final = 26.0
_MANY: Final = 20
_SOME: Final = 24  # processes: with more, neither their parts have names nor their queues a row
_MOST_HIGH: Final = 670.0  # of all lanes: with what is around them a screen is full
_LEAST_PITCH: Final = 13.0  # names do not touch
_INDENT: Final = 14.0
_PART: Final = width_of("queue", SMALL) + 12
_LEAST_ALIGNED: Final = (
    600.0  # pixels: narrower pictures have no room for a column that may be empty
)
_HEADING: Final = 24.0
_NOTE_GAP: Final = 12.0


def heights_for(count: int, few: float, some: float, many: float) -> float:
    """Return the height for a number of lanes: up to 8, up to 24, or more."""
    return few if count <= 8 else some if count <= _SOME else many


def fitting(height: float, count: int) -> float:
    """Return by which factor to shrink lanes of this height in all, to fit a screen.

    Their names, one for each of ``count``, still have room.
    """
    return min(1.0, max(_MOST_HIGH, count * _LEAST_PITCH) / max(height, 1.0))


class RowChart:
    """The places of the rows of a scene, and the shapes around them.

    Args:
        canvas: The canvas.
        scene: The scene.
        width: Width of the picture.

    Attributes:
        plot_width: The width of its time.
        bands: Where each shown row is, by its index.
        processes: How many processes it is about.
    """

    def __init__(self, canvas: Canvas, scene: Scene, width: float) -> None:
        self._canvas, self._scene = canvas, scene
        rows = scene.rows
        is_few = len({row.process for row in rows if not row.under}) <= _SOME
        shown = [at for at in scene.folded if is_few or rows[at].part != QUEUE]
        self._groups = [list(own) for _, own in groupby(shown, lambda at: rows[at].process)]
        heads = [rows[own[0]] for own in self._groups]
        self.processes = sum(max(1, len(head.members)) for head in heads if not head.under)
        # In a timeline, parts are named; a prediction shows what it is.
        parts = {rows[at].part for at in shown} - {"", PREDICTION, IDEAL}
        is_named = scene.view == "timeline" and bool(parts) and len(heads) <= _SOME
        self._parts = [self._parts_of(own) if is_named else {} for own in self._groups]
        self._size = SIZE if len(heads) <= _MANY else SMALL
        self._place(heads, shown)
        words = [width_of(word, SMALL) + 12 for own in self._parts for word in own.values()]
        names = [width_of(visible(row.label), SIZE, bold=True) for row in rows if not row.under]
        self._names = min(max([_MIN_NAMES_WIDTH, *names]), _MAX_NAMES_WIDTH)
        aside = [_PART] if width >= _LEAST_ALIGNED else [0.0]
        self._left = round(MARGIN + self._names + 14 + max([*aside, *words]))
        notes = [width_of(words, SMALL, bold=True) for words in self._notes(shown)]
        self._right = MARGIN + (_NOTE_GAP + max(notes) if notes else 0.0)
        self.plot_width = max(120.0, width - self._left - self._right)

    def _notes(self, shown: Sequence[int]) -> list[str]:
        """Return the notes of rows, and what they are; nothing without notes."""
        notes = [self._scene.rows[at].note for at in shown if self._scene.rows[at].note]
        return [self._scene.noted, *notes] if notes else []

    def _parts_of(self, own: Sequence[int]) -> dict[int, str]:
        """Return the names of the rows of a process that are the first of their part."""
        found: dict[str, int] = {}
        for at in own:
            found.setdefault(self._scene.rows[at].part, at)
        return {at: part or "ops" for part, at in found.items()}

    def _place(self, heads: Sequence[Row], shown: Sequence[int]) -> None:
        # Two lanes that belong to actors count as one.
        count = len(heads) - sum(bool(head.under) for head in heads) // 2
        size = heights_for(count, 1.0, 0.72, 0.5)
        gap = heights_for(count, 13.0, 8.0, 4.0)
        between = 3.0 if count <= _SOME else 1.0
        high = sum(self._scene.rows[at].height for at in shown) * size
        shrink = fitting(high + len(heads) * gap + (len(shown) - len(heads)) * between, count)
        size, gap = size * shrink, round(gap * shrink, 1)
        self.bands: dict[int, Band] = {}
        self._headings: dict[float, str] = {}
        y, middle, node = 0.0, -_LEAST_PITCH, ""
        for head, own in zip(heads, self._groups, strict=True):
            if self.bands:
                y += gap / 3 if head.under else gap
            if head.node != node:
                y, node = y + _HEADING, head.node
                self._headings[y] = node
            heights = [round(self._scene.rows[at].height * size, 1) for at in own]
            if not head.under:
                y = max(y, middle + _LEAST_PITCH - heights[0] / 2)
                middle = y + heights[0] / 2
            for at, height in zip(own, heights, strict=True):
                self.bands[at] = Band(y, height)
                y += height + between
            y -= between
        self._height = y

    def _ticks(self) -> list[tuple[float, str]]:
        scene, most = self._scene, max(2, int(self.plot_width // 95))
        length = scene.end - scene.begin
        scale = self.plot_width / max(length, 1)
        if not scene.in_calls:
            return [(at * scale, label) for at, label in ticks_of(length, most, scene.begin)]
        # A unit is a call, so ticks are whole numbers.
        unit = 1_000_000_000
        calls = [at // unit for at, _ in ticks_of(length / CALL_NS * unit, most) if at % unit == 0]
        return [(each * CALL_NS * scale, scene.time_text(each * CALL_NS)) for each in calls]

    def document(
        self,
        title: str,
        subtitle: str,
        body: Sequence[str],
        legend: Sequence[tuple[str, str]],
    ) -> str:
        """Return the picture; shapes of the body are in pixels from the upper left of the plot."""
        canvas = self._canvas
        width = self._left + self.plot_width + self._right
        explained = canvas.legend(legend, MARGIN, _TOP + 4, width - 2 * MARGIN)
        is_tall = len(self._groups) > _MANY
        top = _TOP + explained.height + (14 if is_tall else 0) + 4
        shapes = [
            *canvas.heading(title, subtitle, width - 2 * MARGIN),
            *explained.shapes,
            f'<g transform="translate({MARGIN:g} {top:g})">',
            *self._heading_shapes(),
            *self._heads(),
            "</g>",
            f'<g transform="translate({self._left:g} {top:g})">',
            *self._grounds(),
            *self._axis(self._ticks(), is_tall=is_tall),
            *self._note_shapes(),
            *body,
            "</g>",
        ]
        # For people who cannot see it.
        processes = plural(self.processes, "process")
        label = f"{title}: what {processes} did when"
        return canvas.document(shapes, width, top + self._height + _AXIS + 14, label)

    def _heading_shapes(self) -> list[str]:
        """Return the names of nodes, each above a line over the whole width."""
        shapes = []
        width = self._left - MARGIN + self.plot_width
        for top, node in self._headings.items():
            line = f'<path{self._canvas.paint("joint")} d="M0 {top - 5:g}H{width:g}"/>'
            text = self._canvas.note(node, 0, top - 10, width, bold=True)
            shapes.append(f'<g class="rcg-lane-heading">{line}{text}</g>')
        return shapes

    def _heads(self) -> list[str]:
        shapes = []
        room, right = self._names + 8, self._left - MARGIN - 10
        middles = [self.bands[own[0]].middle for own in self._groups]
        heads = [self._scene.rows[own[0]] for own in self._groups]
        # Names do not overlap; those of lanes are left out first.
        named: set[int] = set()
        for number in sorted(range(len(heads)), key=lambda at: bool(heads[at].under)):
            apart = [abs(middles[number] - middles[other]) for other in named]
            if min(apart, default=_LEAST_PITCH) >= _LEAST_PITCH - 0.01:
                named.add(number)
        for number in sorted(named):
            head, middle = heads[number], middles[number]
            name = head.short or head.label
            hover = f"{brief(name)}\n{head.detail}" if head.detail else brief(name)
            if head.under:
                y, left = middle + SMALL * 0.36, room - _INDENT
                note = self._canvas.note(name, _INDENT, y, left, is_whole_in_hover=False)
                shapes.append(f'<g class="rcg-lane"><title>{escape(hover)}</title>{note}</g>')
            else:
                shapes.append(self._canvas.head(name, middle, room, self._size, hover))
            for at, word in self._parts[number].items():
                y = self.bands[at].middle + SMALL * 0.36
                shapes.append(self._canvas.note(word, right, y, _MAX_NAMES_WIDTH, anchor="end"))
        return shapes

    def _note_shapes(self) -> list[str]:
        """Return the notes of rows at the right, below what they are."""
        rows = self._scene.rows
        x, room = self.plot_width + self._right - MARGIN, self._right
        shapes = [
            self._canvas.note(
                rows[at].note, x, band.middle + SMALL * 0.36, room, anchor="end", role="text",
                bold=True,
            )
            for at, band in self.bands.items()
            if rows[at].note
        ]  # fmt: skip
        if not shapes:
            return []
        return [self._canvas.note(self._scene.noted, x, -9, room, anchor="end"), *shapes]

    def _grounds(self) -> list[str]:
        fill = idle(self._canvas)
        bands = [
            self.bands[at] for own in self._groups for at in own if self._scene.rows[at].has_ground
        ]
        rects = [
            f'<rect y="{band.y:g}" width="{self.plot_width:g}" height="{band.height:g}" rx="2"/>'
            for band in bands
        ]
        return [f'<g class="rcg-bands"{fill}>{"".join(rects)}</g>']

    def _axis(self, ticks: Sequence[tuple[float, str]], *, is_tall: bool) -> list[str]:
        lines = "".join(f"M{x:g} -4V{self._height + 6:g}" for x, _ in ticks)
        shapes = [f'<path{self._canvas.paint("grid")} d="{lines}"/>'] if lines else []
        for y in [self._height + 22, *([-9] if is_tall else [])]:
            for x, label in ticks:
                room = width_of(label, SMALL)
                anchor, end = "middle", self.plot_width + MARGIN - 4
                if x + room / 2 > end:
                    x, anchor = end, "end"
                shapes.append(self._canvas.note(label, round(x, 1), y, room + 1, anchor=anchor))
        return shapes
