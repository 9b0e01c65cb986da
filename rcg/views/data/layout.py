# SPDX-License-Identifier: Apache-2.0
"""Where the parts of a topology are: in columns, in rows like those of a text.

Values flow from left to right, but for lines that are drawn backward. Layers that are too wide for
the page go on in the next row. The lines between two rows run around their ends::

    input ──> a0 ──> a1 ──> a2 ─┐
    ┌───────────────────────────┘
    └─> a3 ──> a4 ──> a5 ──> output

Where the processes are on several nodes of the cluster, each node has a band of each row, with a
frame around its actors; that of the driver also around the input and the output.

A value that skips layers runs over them in a lane, so lines never cross a card. Lines with a common
end share a lane. ``order`` decides the heights on one long strip; this file adds columns, cuts the
strip into rows, and adds routes. It does not know how anything is drawn: it takes sizes and returns
rectangles and lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, floor, inf
from typing import Final

from rcg.views.data.folding import Card, Folded
from rcg.views.data.order import End, Order

Point = tuple[float, float]
Height = tuple[int, float]
"""The band of a point, and how far down it is there."""

_MAX_COLUMN_GAP: Final = 120.0
_TEXT_GAP: Final = 22.0  # beside the text on a line, with its arrow
_TURN, _TEXT_TURN = 0.09, 0.25  # of the height of a curve is its width, at least
_MAX_TRACKS: Final = 84.0
_FRAME_PAD: Final = 10.0  # between the frame of a node of the cluster and the cards inside


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

    def overlaps(self, other: Rect) -> bool:
        """Return whether the two have an area in common."""
        return (
            self.x < other.right
            and other.x < self.right
            and self.y < other.bottom
            and other.y < self.bottom
        )


@dataclass(frozen=True, slots=True)
class Spacing:
    """The distances between cards, and between the lines around the ends of rows.

    Attributes:
        columns: The least gap between two columns.
        gutter: Between a row of cards and the lines around it.
        track: Between two of these lines.
    """

    columns: float = 34.0
    gutter: float = 11.0
    track: float = 14.0


@dataclass(frozen=True, slots=True)
class RowSize:
    """Where a row is in its card: its height, and its distances from three sides of the card."""

    top: float
    height: float
    left: float = 0.0
    right: float = 0.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """The room that texts need.

    Attributes:
        cards: The width and the height of each card.
        rows: The place of each row in its card.
        lines: The width of the text on each line, by its position in ``Folded.lines``.
        frames: The least width of the name of each node of the cluster.
        frame_head: The height of that name.
        room: The width that the picture should not exceed.
        spacing: The distances.
    """

    cards: Mapping[int, tuple[float, float]]
    rows: Mapping[int, RowSize]
    lines: Mapping[int, float] = field(default_factory=dict)
    frames: Mapping[str, float] = field(default_factory=dict)
    frame_head: float = 0.0
    room: float = inf
    spacing: Spacing = field(default_factory=Spacing)


@dataclass(frozen=True, slots=True)
class TopologyLayout:
    """The positions of cards and lines. The upper left corner is (0, 0).

    Attributes:
        cards: The rectangle of each card.
        rows: The rectangle of each row.
        routes: The points of each line between two cards, by its position in ``Folded.lines``, from
            its left end to its right end. Two points of the same x or the same y are connected by a
            straight line. Others lie on both sides of the gap between two columns and are connected
            by a curve.
        frames: The frame of each node of the cluster in each row that it is in, by its id.
        is_curved: Whether the points of routes are the control points of cubic curves.
    """

    cards: Mapping[int, Rect]
    rows: Mapping[int, Rect]
    routes: Mapping[int, tuple[Point, ...]]
    width: float
    height: float
    frames: Mapping[str, Sequence[Rect]] = field(default_factory=dict)
    is_curved: bool = False


def lay_out(folded: Folded, sizes: Sizes) -> TopologyLayout:
    """Return a layout of a topology in which no two cards overlap and no line crosses one."""
    return _Layout(folded, sizes).result()


class _Layout:
    """Adds columns, rows and routes to an order."""

    def __init__(self, folded: Folded, sizes: Sizes) -> None:
        self._folded = folded
        self._sizes = sizes
        middles = {row: size.top + size.height / 2 for row, size in sizes.rows.items()}
        self._order = Order(folded, {id: high for id, (_, high) in sizes.cards.items()}, middles)
        self._bands = [frame.id for frame in folded.topology.frames]
        self._gutter, self._track = sizes.spacing.gutter, sizes.spacing.track
        self._pad = _FRAME_PAD if self._bands else 0.0
        self._head = sizes.frame_head if self._bands else 0.0
        self._widths = [0.0] * (max(card.layer for card in folded.cards) + 1)
        for card in folded.cards:
            least = sizes.frames.get(card.frame or "", 0.0)
            width = max(sizes.cards[card.id][0], least)
            self._widths[card.layer] = max(self._widths[card.layer], ceil(width))
        self._row_of = [0] * len(self._widths)  # of each layer
        self._tracks: dict[tuple[int, Height, Height], int] = {}
        self._num_tracks: dict[int, int] = {}
        self._aside = self._pad  # of the columns
        for curves in (1.0, 0.5, 0.0):
            self._gaps = self._column_gaps(curves)
            if sum(self._widths) + sum(self._gaps[:-1]) + 2 * self._pad <= sizes.room:
                break
        else:
            self._gaps = self._column_gaps(1.0)
            self._wrap()
        self._left, self._right = self._columns()
        self._shift: dict[tuple[int, int], float] = {}  # of each band of each row
        self._bottoms: list[float] = []  # of the rows
        self._stack()

    def result(self) -> TopologyLayout:
        cards, rows = {}, {}
        frames: dict[tuple[str, int], list[Card]] = {}
        for card in self._folded.cards:
            x, block = self._left[card.layer], self._order.cards[card.id]
            width, height = self._right[card.layer] - x, block.height
            own = self._sizes.cards[card.id][0]
            if card.kind in ("input", "output"):  # with lines on one side only
                x, width = x + (width - own) * (card.kind == "input"), own
            rect = Rect(x, self._y_of(End(block), card.layer), width, height)
            cards[card.id] = rect
            for row in card.rows:
                size = self._sizes.rows[row.id]
                width = rect.width - size.left - size.right
                rows[row.id] = Rect(x + size.left, rect.y + size.top, width, size.height)
            if card.frame is not None:
                frames.setdefault((card.frame, self._row_of[card.layer]), []).append(card)
        pieces: dict[str, list[Rect]] = {}
        for (name, _), inside in frames.items():
            pieces.setdefault(name, []).append(self._around([cards[card.id] for card in inside]))
        routes = {at: self._route(at) for at in self._order.lines}
        boxes = [*cards.values(), *[box for found in pieces.values() for box in found]]
        corners = [(box.right, box.bottom) for box in boxes]
        corners += [point for route in routes.values() for point in route]
        width, height = (max(each) for each in zip(*corners, strict=True))
        return TopologyLayout(cards, rows, routes, width, height, pieces)

    def _around(self, cards: Sequence[Rect]) -> Rect:
        """Return the frame around the cards of a node of the cluster in a row."""
        x, y = min(card.x for card in cards) - self._pad, min(card.y for card in cards) - self._head
        right = max(card.right for card in cards) + self._pad
        bottom = max(card.bottom for card in cards) + self._pad
        return Rect(x, y, right - x, bottom - y)

    # Columns and rows

    def _column_gaps(self, curves: float) -> list[float]:
        """Return the gap to the right of each column: room for curves and the texts on lines.

        Curves get this part of what they should have.
        """
        narrowest = self._sizes.spacing.columns
        gaps = [narrowest] * len(self._widths)
        for at in self._order.lines:
            low, high = self._order.span_of(at)
            text = self._sizes.lines.get(at, 0.0)
            least = max(narrowest, text + _TEXT_GAP if text else 0.0)
            heights = [end.y for end in self._order.ends_of(at)]
            for gap, turn in (
                (low, heights[1] - heights[0]),
                (high - 1, heights[-1] - heights[-2]),
            ):
                # Of a curve with a text more is level, and below the text.
                room = least + curves * (_TEXT_TURN if text else _TURN) * abs(turn)
                gaps[gap] = max(gaps[gap], least, min(room, _MAX_COLUMN_GAP))
        return [float(floor(gap)) for gap in gaps]

    def _wrap(self) -> None:
        """Find the row of each layer: as few rows as fit the room, of about the same widths."""
        # Columns of one width make a grid of several rows.
        self._widths = [max(self._widths)] * len(self._widths)
        self._gaps = [max(self._gaps)] * len(self._gaps)
        needed = 0.0
        while needed > self._aside or not needed:
            # Narrower rows may have more lines around their ends.
            self._aside = needed
            most = self._in_a_row(self._sizes.room - 2 * needed)
            rows = ceil(len(self._widths) / most)
            each = ceil(len(self._widths) / rows)
            self._row_of = [layer // each for layer in range(len(self._widths))]
            needed = self._find_tracks()

    def _in_a_row(self, room: float) -> int:
        """Return how many columns of one width are a row."""
        return max(1, int((room + self._gaps[0]) // (self._widths[0] + self._gaps[0])))

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

    def _find_tracks(self) -> float:
        """Find the place of each line around the ends of two rows; return the room beside the rows.

        Place 0 is nearest to the upper row. Lines are in the order of their heights, so that they
        do not cross. Those with a common end have one place.
        """
        around: dict[int, set[tuple[Height, Height]]] = {}
        for at in self._order.lines:
            for layer, here, there in self._steps(at):
                if self._row_of[layer] != self._row_of[layer + 1]:
                    around.setdefault(layer, set()).add((here.height, there.height))
        self._tracks, self._num_tracks = {}, {}
        for layer, found in around.items():
            heres, theres = ({pair[end] for pair in found} for end in (0, 1))
            common = 0 if len(heres) <= len(theres) else 1
            order = sorted((heres, theres)[common], reverse=True)
            self._tracks |= {(layer, *pair): order.index(pair[common]) for pair in found}
            self._num_tracks[layer] = len(order)
        most = max(self._num_tracks.values(), default=0)
        return ceil(self._pad + self._gutter + self._spacing(most) * most)

    def _spacing(self, count: int) -> float:
        return min(self._track, _MAX_TRACKS / max(count, 1))

    def _stack(self) -> None:
        """Put the bands of each row, and the rows, below each other."""
        extents: dict[tuple[int, int], tuple[float, float]] = {}
        for block in self._order.blocks:
            for row in range(self._row_of[block.low], self._row_of[block.high] + 1):
                top, bottom = extents.get((row, block.band), (inf, -inf))
                found = min(top, block.y), max(bottom, block.y + block.height)
                extents[row, block.band] = found
        y = 0.0
        for row in range(self._row_of[-1] + 1):
            for key in sorted(each for each in extents if each[0] == row):
                top, bottom = extents[key]
                y += self._head
                self._shift[key] = round(y - top)
                y += bottom - top + self._pad + self._gutter
            self._bottoms.append(y - self._gutter)
            last = max(layer for layer, each in enumerate(self._row_of) if each == row)
            tracks = self._num_tracks.get(last, 0)
            y += self._gutter + self._spacing(tracks) * max(0, tracks - 1)

    # Routes

    def _y_of(self, end: End, layer: int) -> float:
        return end.y + self._shift[self._row_of[layer], end.block.band]

    def _steps(self, at: int) -> Iterator[tuple[int, End, End]]:
        """Yield the points of a line at both sides of each gap that it crosses, by layer."""
        low, high = self._order.span_of(at)
        first, *lane, last = self._order.ends_of(at)
        for layer, (here, there) in enumerate(pairwise([first, *(lane * (high - low - 1)), last])):
            yield low + layer, here, there

    def _route(self, at: int) -> tuple[Point, ...]:
        points: list[Point] = []
        for layer, here, there in self._steps(at):
            row, next_row = self._row_of[layer], self._row_of[layer + 1]
            points.append((self._right[layer], self._y_of(here, layer)))
            end = self._left[layer + 1], self._y_of(there, layer + 1)
            if row != next_row:
                place, count = (
                    self._tracks[layer, here.height, there.height],
                    self._num_tracks[layer],
                )
                spacing = self._spacing(count)
                right = max(self._right) + self._pad + self._gutter + spacing * place
                between = self._bottoms[row] + self._gutter + spacing * place
                left = end[0] - self._pad - self._gutter - spacing * (count - 1 - place)
                around = ((right, points[-1][1]), (right, between), (left, between), (left, end[1]))
                points += around
            points.append(end)
        return tuple(points)
