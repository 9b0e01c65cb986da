# SPDX-License-Identifier: Apache-2.0
"""The positions of a folded topology's parts: layers from left to right, in rows as text is.

Values flow from left to right, but for lines that are drawn backward. Layers that are too wide for
the page go on in the next row. The lines between two rows run around their ends::

    input ──> a0 ──> a1 ──> a2 ─┐
    ┌───────────────────────────┘
    └─> a3 ──> a4 ──> a5 ──> output

Where the processes are on several nodes of the cluster, each node is a frame around its actors. The
frame of the driver's node is also around the input and the output.

A value that skips layers runs over them in a lane, so lines never cross a card. Lines with a common
end share a lane. `arrangement` decides the heights on one long strip; this file adds columns, cuts
the strip into rows, and adds routes. The layout does not depend on how it is drawn: it takes sizes
and returns rectangles and lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from math import ceil, floor, inf
from typing import Final

from rcg.views.data.arrangement import FRAME_PAD, Arrangement, Sizes
from rcg.views.data.folding import Folded

Point = tuple[float, float]

_MAX_COLUMN_GAP: Final = 120.0
_TEXT_GAP: Final = 22.0  # beside the text on a line, with its arrow
_MAX_TRACKS: Final = 84.0


@dataclass(frozen=True, slots=True)
class Rect:
    """An upright rectangle; y grows downward."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """The x of the right side."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """The y of the lower side."""
        return self.y + self.height

    @property
    def middle(self) -> float:
        """The y of the centre."""
        return self.y + self.height / 2


@dataclass(frozen=True, slots=True)
class TopologyLayout:
    """The positions of cards and lines. The upper left corner is (0, 0).

    Attributes:
        cards: The rectangle of each card.
        rows: The rectangle of each row.
        frames: Those around what is on each node of the cluster, by its id: one in each row of
            the picture where it has cards.
        routes: The points of each line between two cards, by its position in ``Folded.lines``, from
            its left end to its right end. Two points of the same x or the same y are connected by a
            straight line. Others lie on both sides of the gap between two columns and are connected
            by a curve.
    """

    cards: Mapping[int, Rect]
    rows: Mapping[int, Rect]
    routes: Mapping[int, tuple[Point, ...]]
    width: float
    height: float
    frames: Mapping[str, Sequence[Rect]] = field(default_factory=dict)


def lay_out(folded: Folded, sizes: Sizes) -> TopologyLayout:
    """Return a layout of a topology in which no two cards overlap and no line crosses one."""
    return _Layout(folded, sizes).result()


class _Layout:
    """Adds columns, rows and routes to an arrangement."""

    def __init__(self, folded: Folded, sizes: Sizes) -> None:
        self._folded = folded
        self._sizes = sizes
        self._arrangement = Arrangement(folded, sizes)
        self._gutter, self._track = sizes.spacing.gutter, sizes.spacing.track
        self._count = max(card.layer for card in folded.cards) + 1
        self._pad = FRAME_PAD if self._arrangement.frame_blocks else 0.0
        self._widths = self._column_widths()
        gaps = self._column_gaps()
        self._gaps = self._with_borders(gaps)
        self._row_of = [0] * self._count  # of each layer
        self._tracks: dict[tuple[int, float, float], int] = {}
        self._num_tracks: dict[int, int] = {}
        self._aside = self._pad  # of the columns
        if sum(self._widths) + sum(self._gaps[:-1]) + 2 * self._pad > sizes.room:
            self._wrap(gaps)
        self._left, self._right = self._columns()
        self._shift, self._bottom = self._row_shifts()

    def result(self) -> TopologyLayout:
        cards, rows = {}, {}
        for card in self._folded.cards:
            x, layer = self._left[card.layer], card.layer
            y = self._arrangement.y_of(card) + self._shift[self._row_of[layer]]
            own, height = self._sizes.cards[card.id]
            width = self._right[layer] - x
            if card.kind in ("input", "output"):  # with lines on one side only
                x += width - own if card.kind == "input" else 0.0
                width = own
            rect = Rect(x, y, width, height)
            cards[card.id] = rect
            for row in card.rows:
                size = self._sizes.rows[row.id]
                width = rect.width - size.left - size.right
                rows[row.id] = Rect(x + size.left, y + size.top, width, size.height)
        frames = {name: list(self._pieces(name)) for name in self._arrangement.frame_blocks}
        routes = {at: self._route(at) for at in self._arrangement.lines}
        corners = [(box.right, box.bottom) for box in cards.values()]
        corners += [(box.right, box.bottom) for boxes in frames.values() for box in boxes]
        corners += [point for route in routes.values() for point in route]
        width, height = (max(each) for each in zip(*corners, strict=True))
        return TopologyLayout(cards, rows, routes, width, height, frames)

    # Columns and rows

    def _column_widths(self) -> list[float]:
        widths = [0.0] * self._count
        for card in self._folded.cards:
            widths[card.layer] = max(widths[card.layer], ceil(self._sizes.cards[card.id][0]))
        for name, blocks in self._arrangement.frame_blocks.items():
            for low in {block.low for block in blocks}:
                widths[low] = max(widths[low], ceil(self._sizes.frames[name]))
        return widths

    def _column_gaps(self) -> list[int]:
        """Return the gap to the right of each column: room for curves and the texts on lines."""
        turns, texts = [0.0] * self._count, [0.0] * self._count
        for at in self._arrangement.lines:
            low, high = self._arrangement.span_of(at)
            heights = self._arrangement.heights_of(at)
            turns[low] = max(turns[low], abs(heights[1] - heights[0]))
            turns[high - 1] = max(turns[high - 1], abs(heights[-1] - heights[-2]))
            text = self._sizes.lines.get(at, 0.0)
            if text:
                gap = high - 1 if len(heights) > 2 else low
                texts[gap] = max(texts[gap], text + _TEXT_GAP)
        narrowest = self._sizes.spacing.columns
        least = [max(narrowest, text) for text in texts]
        # Of a curve with a text more is level, and below the text.
        wanted = [
            max(gap, min(_MAX_COLUMN_GAP, max(narrowest, text) + (0.25 if text else 0.09) * turn))
            for gap, turn, text in zip(least, turns, texts, strict=True)
        ]
        # Curves get as much as leaves all columns in one row.
        spare = self._sizes.room - sum(self._widths) - sum(self._with_borders(least)[:-1])
        more = sum(wanted[:-1]) - sum(least[:-1])
        share = min(1.0, max(0.0, (spare - 2 * self._pad - 2) / more)) if more else 1.0
        return [floor(low + (high - low) * share) for low, high in zip(least, wanted, strict=True)]

    def _with_borders(self, gaps: Sequence[float]) -> list[float]:
        """Return the gaps with room for the frames that end or begin there."""
        blocks = [each for one in self._arrangement.frame_blocks.values() for each in one]
        borders = {block.high for block in blocks} | {block.low - 1 for block in blocks}
        return [gap + 2 * self._pad * (layer in borders) for layer, gap in enumerate(gaps)]

    def _wrap(self, gaps: Sequence[int]) -> None:
        """Find the row of each layer: as few rows as fit the room, of about the same widths."""
        # Columns of one width make a grid of several rows.
        even = [max(self._widths)] * self._count, self._with_borders([max(gaps)] * self._count)
        uneven = self._widths, self._gaps
        aside = 0.0
        while True:
            room = self._sizes.room - 2 * aside
            found = []
            for self._widths, self._gaps in (uneven, even):
                found.append(self._balanced(room))
            self._row_of = found[1]
            if found[1][-1] > found[0][-1]:
                (self._widths, self._gaps), self._row_of = uneven, found[0]
            self._tracks, needed = self._find_tracks()
            # Narrower rows may have more lines around their ends.
            if needed <= aside or room < max(self._widths):
                self._aside = needed
                return
            aside = needed

    def _balanced(self, room: float) -> list[int]:
        """Return the row of each layer if no row is wider than the room, nor than it need be."""
        high = max(room, float(max(self._widths)))
        rows = self._filled(high)
        low = float(max(self._widths))
        while high - low > 1:
            middle = (low + high) / 2
            found = self._filled(middle)
            if found[-1] > rows[-1]:
                low = middle
            else:
                high, rows = middle, found
        return rows

    def _filled(self, room: float) -> list[int]:
        rows, x = [0], float(self._widths[0])
        for width, gap in zip(self._widths[1:], self._gaps, strict=False):
            x += gap + width
            is_new = x > room
            rows.append(rows[-1] + is_new)
            x = width if is_new else x
        return rows

    def _columns(self) -> tuple[list[float], list[float]]:
        """Return where the columns begin and end on the x axis."""
        left: list[float] = []
        x = 0.0
        for layer, width in enumerate(self._widths):
            if not layer or self._row_of[layer] != self._row_of[layer - 1]:
                x = self._aside
            left.append(x)
            x += width + self._gaps[layer]
        return left, [x + width for x, width in zip(left, self._widths, strict=True)]

    def _find_tracks(self) -> tuple[dict[tuple[int, float, float], int], float]:
        """Return the place of each line around the ends of two rows, and the room beside the rows.

        Place 0 is nearest to the upper row. Lines are in the order of their heights, so that they
        do not cross. Those with a common end have one place.
        """
        around: dict[int, set[tuple[float, float]]] = {}
        for at in self._arrangement.lines:
            for layer, here, there in self._steps(at):
                if self._row_of[layer] != self._row_of[layer + 1]:
                    around.setdefault(layer, set()).add((here, there))
        tracks: dict[tuple[int, float, float], int] = {}
        self._num_tracks = {}
        for layer, found in around.items():
            heres, theres = ({pair[end] for pair in found} for end in (0, 1))
            common = 0 if len(heres) <= len(theres) else 1
            order = sorted((heres, theres)[common], reverse=True)
            tracks |= {(layer, *pair): order.index(pair[common]) for pair in found}
            self._num_tracks[layer] = len(order)
        most = max(self._num_tracks.values(), default=0)
        return tracks, ceil(
            self._pad + self._gutter + self._spacing(most) * most
        ) if most else self._pad

    def _spacing(self, count: int) -> float:
        return min(self._track, _MAX_TRACKS / count)

    def _row_shifts(self) -> tuple[list[float], list[float]]:
        """Return how far down the cards of each row move, and where each row ends."""
        count = self._row_of[-1] + 1
        tops, bottoms = [inf] * count, [-inf] * count

        def cover(low: int, high: int, top: float, bottom: float) -> None:
            for row in range(self._row_of[low], self._row_of[high] + 1):
                tops[row], bottoms[row] = min(tops[row], top), max(bottoms[row], bottom)

        for card in self._folded.cards:
            y = self._arrangement.y_of(card)
            cover(card.layer, card.layer, y, y + self._sizes.cards[card.id][1])
        for blocks in self._arrangement.frame_blocks.values():
            for block in blocks:
                cover(block.low, block.high, block.y, block.y + block.height)
        for at in self._arrangement.lines:
            for layer, here, there in self._steps(at):
                cover(layer, layer, here, here)
                cover(layer + 1, layer + 1, there, there)
        shifts: list[float] = []
        ends: list[float] = []
        y = 0.0
        for row in range(count):
            shifts.append(round(y - tops[row]))
            ends.append(bottoms[row] + shifts[row])
            last = max(layer for layer, each in enumerate(self._row_of) if each == row)
            tracks = self._num_tracks.get(last, 0)
            y = ends[row] + 2 * self._gutter + self._spacing(max(tracks, 1)) * max(0, tracks - 1)
        return shifts, ends

    # Frames and routes

    def _pieces(self, name: str) -> Iterator[Rect]:
        """Yield the parts of a frame: one in each row."""
        for block in self._arrangement.frame_blocks[name]:
            for row, found in groupby(
                range(block.low, block.high + 1), key=self._row_of.__getitem__
            ):
                layers = list(found)
                x = self._left[layers[0]] - self._pad
                width = self._right[layers[-1]] + self._pad - x
                yield Rect(x, block.y + self._shift[row], width, block.height)

    def _steps(self, at: int) -> Iterator[tuple[int, float, float]]:
        """Yield the heights of a line at both sides of each gap that it crosses, by layer."""
        low, high = self._arrangement.span_of(at)
        first, *lane, last = self._arrangement.heights_of(at)
        heights = [first, *(lane * (high - low - 1)), last]
        for layer, (here, there) in enumerate(pairwise(heights), start=low):
            yield layer, here, there

    def _route(self, at: int) -> tuple[Point, ...]:
        points: list[Point] = []
        for layer, here, there in self._steps(at):
            row, next_row = self._row_of[layer], self._row_of[layer + 1]
            y, to_y = here + self._shift[row], there + self._shift[next_row]
            points.append((self._right[layer], y))
            if row != next_row:
                place, count = self._tracks[layer, here, there], self._num_tracks[layer]
                spacing = self._spacing(count)
                right = max(self._right) + self._pad + self._gutter + spacing * place
                between = self._bottom[row] + self._gutter + spacing * place
                left = (
                    self._left[layer + 1] - self._pad - self._gutter - spacing * (count - 1 - place)
                )
                points += [(right, y), (right, between), (left, between), (left, to_y)]
            points.append((self._left[layer + 1], to_y))
        return tuple(points)
