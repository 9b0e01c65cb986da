# SPDX-License-Identifier: Apache-2.0
"""The order of a topology's parts from top to bottom, and their heights.

A card is a block, and so is the lane in which lines pass layers without ending there. A block spans
some layers and has a height. One order of all blocks decides which of two blocks that share a layer
is above the other, so cards cannot overlap::

    layer 0   layer 1   layer 2   layer 3
              ┌ a0 ─┐
    ┌ input ┐ └─────┘   ┌ a2 ─┐   ┌ output ┐
    └───────┘ ┌ a1 ─┐   └─────┘   └────────┘
              └─────┘
              ════════ a lane ════

The blocks on each node of the cluster are a band, which has heights of its own.

Each block moves to the median height of the blocks that it is connected to, again and again (after
Gansner, Koutsofios, North and Vo, "A technique for drawing directed graphs", 1993).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import copysign, inf
from statistics import median
from typing import Final

from rcg.views.data.folding import Folded, Line

_CARD_MARGIN: Final = 9.0
_LANE_MARGIN: Final = 6.0
_ASIDE: Final = 4.0  # from the middle of a row, where lines arrive and leave on one side
_MAX_SWEEPS: Final = 10
_NUM_RELAXATIONS: Final = 24


@dataclass(slots=True, eq=False)
class Block:
    """A card or a lane.

    Attributes:
        low: The first layer that it spans.
        high: The last layer that it spans.
        height: Its height.
        margin: The space above and below it.
        band: The number of its node of the cluster.
        y: Where it begins.
        before: Its connectors to the left: the end at this block, and the other end.
        after: Its connectors to the right: the end at this block, and the other end.
    """

    low: int
    high: int
    height: float
    margin: float
    band: int = 0
    y: float = 0.0
    before: list[tuple[End, End]] = field(default_factory=list)
    after: list[tuple[End, End]] = field(default_factory=list)

    @property
    def shift(self) -> float:
        """How far down it would have to move for straight connectors."""
        # The median makes one connector straight; the mean would make all nearly straight. The
        # side with more connectors decides, so that what follows a block does not pull it.
        most = max(len(self.before), len(self.after))
        sides = [side for side in (self.before, self.after) if side and len(side) == most]
        shifts = [median([there.y - here.y for here, there in side]) for side in sides]
        return sum(shifts) / len(shifts) if shifts else 0.0

    @property
    def wanted(self) -> float:
        """The height of its centre with straight connectors."""
        return self.y + self.height / 2 + self.shift


@dataclass(frozen=True, slots=True)
class End:
    """A point at a block, so far below its upper end."""

    block: Block
    offset: float = 0.0

    @property
    def y(self) -> float:
        """Its height in its band."""
        return self.block.y + self.offset

    @property
    def height(self) -> tuple[int, float]:
        """Its band, and its height there."""
        return self.block.band, self.y


Side = tuple[int, bool, bool]
"""A side of a row where lines begin, or one where lines end: the row, is it left, do they begin?"""


class Order:
    """The blocks of a topology, in a good order.

    Args:
        folded: The topology.
        heights: The height of each card.
        middles: Where the middle of each row is, below the upper end of its card.

    Attributes:
        blocks: The blocks, from top to bottom.
        cards: The block of each card.
        lines: The lines between cards, by their position in ``Folded.lines``.
    """

    def __init__(
        self, folded: Folded, heights: Mapping[int, float], middles: Mapping[int, float]
    ) -> None:
        self._folded = folded
        self._middles = middles
        self.lines = {
            at: line for at, line in enumerate(folded.lines) if not folded.is_inside(line)
        }
        bands = {frame.id: number for number, frame in enumerate(folded.topology.frames)}
        self.cards = {
            card.id: Block(
                card.layer,
                card.layer,
                heights[card.id],
                _CARD_MARGIN,
                bands.get(card.frame or "", 0),
            )
            for card in sorted(folded.cards, key=lambda card: card.layer)
        }
        # How far from the middle of their row lines begin, and end, where they do both on one side.
        # Lines forward are above those back at both of their ends, so that both are straight.
        sides = {side for line in self.lines.values() for side in _sides(line)}
        self._asides: dict[Side, float] = {
            side: _ASIDE if side[1] == side[2] else -_ASIDE
            for side in sides
            if (*side[:2], not side[2]) in sides
        }
        self._lanes = self._make_lanes()
        lanes = dict.fromkeys(self._lanes.values())
        self.blocks = sorted([*self.cards.values(), *lanes], key=lambda block: block.band)
        self._connectors = self._join()
        self._arrange()
        self._spread()

    def ends_of(self, at: int) -> list[End]:
        """Return the points of a line: its left end, its lane if it has one, its right end."""
        line = self.lines[at]
        source, target = (self._port(side) for side in _sides(line))
        left, right = (target, source) if line.is_back else (source, target)
        return [left, End(self._lanes[at]), right] if at in self._lanes else [left, right]

    def span_of(self, at: int) -> tuple[int, int]:
        """Return the layers of the left and the right end of a line."""
        line = self.lines[at]
        ends = self._folded.card_of(line.source).layer, self._folded.card_of(line.target).layer
        return min(ends), max(ends)

    def _port(self, side: Side) -> End:
        """Return the point at the side of a row where its lines end."""
        offset = self._middles[side[0]] + self._asides.get(side, 0.0)
        return End(self.cards[self._folded.rows[side[0]].card], offset)

    def _spread(self) -> None:
        """Find where lines begin and end on one side of a row if not all of them are straight.

        The straighter ones have the middle; the others are on the side to which they go.
        """
        turns: dict[Side, list[float]] = {}
        for at, line in self.lines.items():
            left, *_, right = heights = [end.y for end in self.ends_of(at)]
            for side in _sides(line):
                turn = heights[-2] - right if side[1] else heights[1] - left
                turns.setdefault(side, []).append(turn)
        usual = {side: median(turns[side]) for side in self._asides}
        for side, turn in usual.items():
            other = (*side[:2], not side[2])
            if max(abs(turn), abs(usual[other])) > 2 * _ASIDE:
                is_straighter = (abs(turn), side) < (abs(usual[other]), other)
                self._asides[side] = 0.0 if is_straighter else copysign(2 * _ASIDE, turn)

    def _make_lanes(self) -> dict[int, Block]:
        """Return the lanes of lines that pass layers: one for those with a common end."""
        far = [at for at in self.lines if self.span_of(at)[1] > self.span_of(at)[0] + 1]
        ends = Counter(side for at in far for side in _sides(self.lines[at]))
        lanes: dict[Side, Block] = {}
        found = {}
        for at in far:
            hub = max(_sides(self.lines[at]), key=lambda side: ends[side])
            low, high = self.span_of(at)
            band = self.cards[self._folded.rows[hub[0]].card].band
            lane = lanes.setdefault(hub, Block(low + 1, high - 1, 0.0, _LANE_MARGIN, band))
            lane.low, lane.high = min(lane.low, low + 1), max(lane.high, high - 1)
            found[at] = lane
        return found

    def _join(self) -> list[tuple[End, End]]:
        """Return the lines between ends, from left to right, and add them to their blocks."""
        joined = dict.fromkeys(pair for at in self.lines for pair in pairwise(self.ends_of(at)))
        for here, there in joined:
            if here.block.band == there.block.band:  # nothing is pulled to another node
                here.block.after.append((here, there))
                there.block.before.append((there, here))
        # A lane follows the cards, not the other way round.
        lanes = set(self._lanes.values())
        for card in self.cards.values():
            for ends in (card.before, card.after):
                ends[:] = [each for each in ends if each[1].block not in lanes] or ends
        return list(joined)

    # Heights

    def _pack(self) -> None:
        """Move every block up as far as those of its band before it allow."""
        ends: dict[tuple[int, int], float] = {}
        for block in self.blocks:
            places = [(block.band, layer) for layer in range(block.low, block.high + 1)]
            # An end includes the margin below. The first block of a layer needs no margin above.
            block.y = max(
                [ends[each] + block.margin for each in places if each in ends], default=0.0
            )
            ends.update(dict.fromkeys(places, block.y + block.height + block.margin))

    def _relax(self, times: int) -> None:
        """Move each block towards straight connectors, as far as those around it allow."""
        neighbours = self._neighbours()
        for turn in range(times):
            for block, above, below in neighbours[:: 1 if turn % 2 else -1]:
                tops = [each.y + each.height + each.margin + block.margin for each in above]
                bottoms = [each.y - each.margin - block.margin for each in below]
                lowest = min(bottoms, default=inf) - block.height
                block.y = max([*tops, min(block.y + block.shift, lowest)])

    def _neighbours(self) -> list[tuple[Block, list[Block], list[Block]]]:
        """Return each block with those of its band directly above and below, in any layer."""
        above: dict[Block, dict[Block, None]] = {block: {} for block in self.blocks}
        below: dict[Block, dict[Block, None]] = {block: {} for block in self.blocks}
        last: dict[tuple[int, int], Block] = {}
        for block in self.blocks:
            for layer in range(block.low, block.high + 1):
                over = last.get((block.band, layer))
                if over is not None:
                    above[block][over] = None
                    below[over][block] = None
                last[block.band, layer] = block
        return [(block, list(above[block]), list(below[block])) for block in self.blocks]

    # The order

    def _arrange(self) -> None:
        """Find the order, and set the heights."""
        best, least = self.blocks, inf
        for _ in range(_MAX_SWEEPS):
            self._pack()
            self._relax(2)
            way = sum(abs(here.y - there.y) for here, there in self._connectors)
            if way < least:
                best, least = self.blocks, way
            self.blocks = sorted(self.blocks, key=lambda block: (block.band, block.wanted))
        self.blocks = best
        self._pack()
        self._relax(_NUM_RELAXATIONS)
        # Whole numbers make sharp lines and short files. The margins are wide enough for rounding.
        for block in self.blocks:
            block.y = round(block.y)


def _sides(line: Line) -> list[Side]:
    """Return the sides where a line begins and ends."""
    return [(line.source, line.is_back, True), (line.target, not line.is_back, False)]
