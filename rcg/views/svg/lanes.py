# SPDX-License-Identifier: Apache-2.0
"""The chart of all pictures over time: a lane per process, names at the left, an axis below.

All such pictures use it, so a lane has the same position in each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from rcg.text import brief, ticks_of, visible
from rcg.views.data.lettering import SIZE, SMALL, width_of
from rcg.views.svg.canvas import MARGIN, Canvas
from rcg.views.svg.looks import idle

_MIN_NAMES_WIDTH: Final = 60.0
_MAX_NAMES_WIDTH: Final = 200.0
_TOP: Final = MARGIN + 50
_AXIS: Final = 26.0
_MANY: Final = 20
_SOME: Final = 24
_MOST_HIGH: Final = 670.0  # of all lanes: with what is around them a screen is full
_LEAST_PITCH: Final = 13.0  # names do not touch
_INDENT: Final = 14.0
_PART: Final = width_of("queue", SMALL) + 12
_HEADING: Final = 24.0


@dataclass(frozen=True, slots=True)
class ChartRow:
    """One lane of a chart.

    Attributes:
        label: Its name.
        detail: More facts, for the hover text.
        height: Its height.
        parts: The names of its parts if it has several, each with the y of the part's middle below
            the upper end of the lane.
        grounds: The areas that are hatched as idle: upper and lower end, below the upper end of the
            lane.
        heading: What stands above it, such as the name of the node that it is the first lane of.
        is_lane: Whether it belongs to the row above and is indented below it.
    """

    label: str
    detail: str
    height: float
    parts: tuple[tuple[str, float], ...] = ()
    grounds: tuple[tuple[float, float], ...] = ()
    heading: str = ""
    is_lane: bool = False

    @property
    def middle(self) -> float:
        """Where its name stands, below its upper end."""
        return sum(self.grounds[0]) / 2 if self.grounds else 0.0


def headings_of(nodes: Sequence[str]) -> list[str]:
    """Return the heading above each lane: the name of its node, above the first lane of each."""
    return [
        node if not number or node != nodes[number - 1] else "" for number, node in enumerate(nodes)
    ]


def heights_for(count: int, few: float, some: float, many: float) -> float:
    """Return the height for a number of lanes: up to 8, up to 24, or more."""
    return few if count <= 8 else some if count <= _SOME else many


def fitting(height: float, count: int) -> float:
    """Return by which factor to shrink lanes of this height in all, to fit a screen.

    Their names, one for each of ``count``, still have room.
    """
    return min(1.0, max(_MOST_HIGH, count * _LEAST_PITCH) / max(height, 1.0))


class LaneChart:
    """The positions of lanes, and the shapes around them.

    Args:
        canvas: The canvas.
        rows: The lanes, from top to bottom.
        gap: The space between two lanes; above an indented one it is a third of it.
        width: Width of the picture.
        names: The names of all processes of the graph. Pictures with the same ones have the same
            room for names, so that a moment has the same place in all of them.
    """

    def __init__(
        self,
        canvas: Canvas,
        rows: Sequence[ChartRow],
        gap: float,
        width: float,
        names: Sequence[str] = (),
    ) -> None:
        self._canvas = canvas
        self._rows = rows
        self._size = SIZE if len(rows) <= _MANY else SMALL
        words = [word for row in rows for word, _ in row.parts]
        parts = max((width_of(word, SMALL) + 12 for word in words), default=0.0)
        parts = max(parts, _PART) if names else parts
        shown = [row.label for row in rows if not row.is_lane]
        widths = [
            width_of(visible(name), SIZE if names else self._size, bold=True)
            for name in (*shown, *names)
        ]
        self._names = min(max([_MIN_NAMES_WIDTH, *widths]), _MAX_NAMES_WIDTH)
        self.left = round(MARGIN + self._names + 14 + parts)
        self.plot_width = max(120.0, width - self.left - MARGIN)
        self.tops: list[float] = []
        y, middle = 0.0, -_LEAST_PITCH
        for number, row in enumerate(rows):
            if number:
                y += gap / 3 if row.is_lane else gap
            y += _HEADING if row.heading else 0.0
            if not row.is_lane:
                y = max(y, middle + _LEAST_PITCH - row.middle)
                middle = y + row.middle
            self.tops.append(y)
            y += row.height
        self.plot_height = y
        self.most_ticks = max(2, int(self.plot_width // 95))

    def ticks(self, duration_ns: float, first_ns: float) -> list[tuple[float, str]]:
        """Return the ticks of an axis over the whole plot; see ``ticks_of``."""
        scale = self.plot_width / max(duration_ns, 1)
        ticks = ticks_of(duration_ns, self.most_ticks, first_ns)
        return [(at * scale, label) for at, label in ticks]

    def document(
        self,
        title: str,
        subtitle: str,
        ticks: Sequence[tuple[float, str]],
        body: Sequence[str],
        legend: Sequence[tuple[str, str]],
        label: str,
    ) -> str:
        """Return the picture.

        Ticks and shapes of the body are in pixels of the plot, whose upper left corner is (0, 0).
        The label describes the picture for people who cannot see it.
        """
        canvas = self._canvas
        width = self.left + self.plot_width + MARGIN
        explained = canvas.legend(legend, MARGIN, _TOP + 4, width - 2 * MARGIN)
        is_tall = len(self._rows) > _MANY
        top = _TOP + explained.height + (14 if is_tall else 0) + 4
        shapes = [
            *canvas.heading(title, subtitle, width - 2 * MARGIN),
            *explained.shapes,
            f'<g transform="translate({MARGIN:g} {top:g})">',
            *self._headings(),
            *self._heads(),
            "</g>",
            f'<g transform="translate({self.left:g} {top:g})">',
            *self._grounds(),
            *self._axis(ticks, is_tall=is_tall),
            *body,
            "</g>",
        ]
        return canvas.document(shapes, width, top + self.plot_height + _AXIS + 14, label)

    def _headings(self) -> list[str]:
        """Return the headings, each above a line over the whole width."""
        shapes = []
        width = self.left - MARGIN + self.plot_width
        for row, top in zip(self._rows, self.tops, strict=True):
            if row.heading:
                line = f'<path{self._canvas.paint("joint")} d="M0 {top - 5:g}H{width:g}"/>'
                text = self._canvas.note(row.heading, 0, top - 10, width, bold=True)
                shapes.append(f'<g class="rcg-lane-heading">{line}{text}</g>')
        return shapes

    def _heads(self) -> list[str]:
        shapes = []
        room, right = self._names + 8, self.left - MARGIN - 10
        middles = [top + row.middle for row, top in zip(self._rows, self.tops, strict=True)]
        # Names do not overlap; those of lanes are left out first.
        named: dict[int, float] = {}
        for are_lanes in (False, True):
            for number, middle in enumerate(middles):
                is_free = all(
                    abs(middle - other) >= _LEAST_PITCH - 0.01 for other in named.values()
                )
                if self._rows[number].is_lane == are_lanes and is_free:
                    named[number] = middle
        for number, (row, top) in enumerate(zip(self._rows, self.tops, strict=True)):
            if number not in named:
                continue
            middle = named[number]
            hover = f"{brief(row.label)}\n{row.detail}" if row.detail else brief(row.label)
            if row.is_lane:
                y, left = middle + SMALL * 0.36, self._names + 8 - _INDENT
                note = self._canvas.note(row.label, _INDENT, y, left, is_whole_in_hover=False)
                shapes.append(f'<g class="rcg-lane"><title>{escape(hover)}</title>{note}</g>')
            else:
                shapes.append(self._canvas.head(row.label, middle, room, self._size, hover))
            shapes += [
                self._canvas.note(
                    word, right, top + y + SMALL * 0.36, _MAX_NAMES_WIDTH, anchor="end"
                )
                for word, y in row.parts
            ]
        return shapes

    def _grounds(self) -> list[str]:
        fill = idle(self._canvas)
        return [
            f'<g class="rcg-bands"{fill}>'
            + "".join(
                f'<rect y="{top + begin:g}" width="{self.plot_width:g}" '
                f'height="{end - begin:g}" rx="2"/>'
                for begin, end in row.grounds
            )
            + "</g>"
            for row, top in zip(self._rows, self.tops, strict=True)
        ]

    def _axis(self, ticks: Sequence[tuple[float, str]], *, is_tall: bool) -> list[str]:
        lines = "".join(f"M{x:g} -4V{self.plot_height + 6:g}" for x, _ in ticks)
        shapes = [f'<path{self._canvas.paint("grid")} d="{lines}"/>'] if lines else []
        for y in [self.plot_height + 22, *([-9] if is_tall else [])]:
            for x, label in ticks:
                room = width_of(label, SMALL)
                anchor, end = "middle", self.plot_width + MARGIN - 4
                if x + room / 2 > end:
                    x, anchor = end, "end"
                shapes.append(self._canvas.note(label, round(x, 1), y, room + 1, anchor=anchor))
        return shapes
