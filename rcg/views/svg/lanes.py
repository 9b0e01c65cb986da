# SPDX-License-Identifier: Apache-2.0
"""The chart of all pictures over time: a lane per process, names at the left, an axis below.

All such pictures use it, so a lane has the same position in each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rcg.text import brief, visible
from rcg.views.data.lettering import SIZE, SMALL, width_of
from rcg.views.svg.canvas import MARGIN, Canvas
from rcg.views.svg.looks import idle

_MIN_NAMES_WIDTH: Final = 60.0
_MAX_NAMES_WIDTH: Final = 170.0
_TOP: Final = MARGIN + 50
_AXIS: Final = 26.0
_MANY: Final = 20
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
    """

    label: str
    detail: str
    height: float
    parts: tuple[tuple[str, float], ...] = ()
    grounds: tuple[tuple[float, float], ...] = ()
    heading: str = ""


def headings_of(nodes: Sequence[str]) -> list[str]:
    """Return the heading above each lane: the name of its node, above the first lane of each."""
    return [
        node if not number or node != nodes[number - 1] else "" for number, node in enumerate(nodes)
    ]


def heights_for(count: int, few: float, some: float, many: float) -> float:
    """Return the height for a number of lanes: up to 8, up to 24, or more."""
    return few if count <= 8 else some if count <= 24 else many


class LaneChart:
    """The positions of lanes, and the shapes around them.

    Args:
        canvas: The canvas.
        rows: The lanes, from top to bottom.
        gap: The space between two lanes.
        width: Width of the picture.
    """

    def __init__(self, canvas: Canvas, rows: Sequence[ChartRow], gap: float, width: float) -> None:
        self._canvas = canvas
        self._rows = rows
        self._size = SIZE if len(rows) <= _MANY else SMALL
        parts = max(
            (width_of(word, SMALL) + 12 for row in rows for word, _ in row.parts), default=0.0
        )
        names = max(
            (width_of(visible(row.label), self._size, bold=True) for row in rows), default=0.0
        )
        self._names = min(max(names, _MIN_NAMES_WIDTH), _MAX_NAMES_WIDTH)
        self.left = round(MARGIN + self._names + 14 + parts)
        self.plot_width = max(120.0, width - self.left - MARGIN)
        self.tops: list[float] = []
        y = 0.0
        for row in rows:
            y += _HEADING if row.heading else 0.0
            self.tops.append(y)
            y += row.height + gap
        self.plot_height = max(0.0, y - gap)

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

        Args:
            title: The title.
            subtitle: The line below the title.
            ticks: Positions on the axis, in pixels of the plot, and their labels.
            body: Shapes in the coordinates of the plot, whose upper left corner is (0, 0).
            legend: Shapes and their meaning.
            label: A description for people who cannot see it.
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
                text = self._canvas.text(
                    row.heading, 0, top - 10, width, role="faint", size=SMALL, bold=True
                )
                shapes.append(f'<g class="rcg-lane-heading">{line}{text}</g>')
        return shapes

    def _heads(self) -> list[str]:
        shapes = []
        room = self._names + 8
        for row, top in zip(self._rows, self.tops, strict=True):
            middle = top + (row.grounds[0][0] + row.grounds[0][1]) / 2 if row.grounds else top
            text = self._canvas.text(
                row.label,
                0,
                middle + self._size * 0.36,
                room,
                size=self._size,
                bold=True,
                is_whole_in_hover=False,
            )
            name = brief(row.label)
            hover = f"{name}\n{row.detail}" if row.detail else name
            shapes.append(self._canvas.with_hover(text, hover, "rcg-head"))
            shapes += [
                self._canvas.text(
                    word,
                    self.left - MARGIN - 10,
                    top + y + SMALL * 0.36,
                    _MAX_NAMES_WIDTH,
                    role="faint",
                    size=SMALL,
                    anchor="end",
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
        heights = [self.plot_height + 22, *([-9] if is_tall else [])]
        for y in heights:
            for x, label in ticks:
                room = width_of(label, SMALL)
                anchor = "middle"
                if x + room / 2 > self.plot_width + MARGIN - 4:
                    x, anchor = self.plot_width + MARGIN - 4, "end"
                shapes.append(
                    self._canvas.text(
                        label, round(x, 1), y, room + 1, role="faint", size=SMALL, anchor=anchor
                    )
                )
        return shapes
