# SPDX-License-Identifier: Apache-2.0
"""The vertical positions of a topology's parts: which blocks there are, and their order.

A card and a value that skips layers each are a block. So is a node of the cluster, with what is
there inside. A block spans some layers and has a height. One order of all blocks, from top to
bottom, decides which of two blocks that share a layer is above the other, so cards cannot overlap.

The search moves each block to the median height of the blocks that it is connected to (after
Gansner, Koutsofios, North and Vo, "A technique for drawing directed graphs", 1993). In small graphs
it also swaps neighbours. It keeps the best order. The result is deterministic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import copysign, inf
from statistics import median
from typing import Final

from rcg.views.data.blocks import Block, Connector, End, Stack, count_crossings, relax
from rcg.views.data.folding import Card, Folded, Line

FRAME_PAD: Final = 10.0
"""The space between the frame of a node of the cluster and the cards inside."""

_FRAME_MARGIN: Final = 9.0
_CARD_MARGIN: Final = 9.0
_LANE_MARGIN: Final = 6.0
_ASIDE: Final = 4.0  # from the middle of a row, where lines arrive and leave on one side
_MAX_SWEEPS: Final = 10
_NUM_RELAXATIONS: Final = 24
_CROSSING_COST: Final = 150.0  # as much as this height difference
_MAX_TO_SWAP: Final = 3000  # blocks times lines; more would take too long


@dataclass(frozen=True, slots=True)
class RowSize:
    """Where a row is in its card: its height, and its distances from three sides of the card."""

    top: float
    height: float
    left: float = 0.0
    right: float = 0.0


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


class Arrangement:
    """The blocks of a topology, ordered from top to bottom.

    Heights are those of one long strip from the first layer to the last.

    Attributes:
        lines: The lines between cards, by their position in ``Folded.lines``.
        frame_blocks: The blocks of each node of the cluster, by its id: one for the layers from
            one without a card of it to the next.
    """

    def __init__(self, folded: Folded, sizes: Sizes) -> None:
        self._folded = folded
        self._sizes = sizes
        self.lines = {
            at: line for at, line in enumerate(folded.lines) if not folded.is_inside(line)
        }
        self._stack = Stack()
        self.frame_blocks: dict[str, list[Block]] = {}
        self._blocks: dict[int, tuple[Block, ...]] = {}  # of cards, after those around them
        self._lanes: dict[int, End] = {}  # by line
        # How far from the middle of their row lines begin, and end, where they do both on one side.
        # Lines forward are above those back at both of their ends, so that both are straight.
        sides = {side for line in self.lines.values() for side in _sides(line)}
        self._asides: dict[Side, float] = {
            side: _ASIDE if side[1] == side[2] else -_ASIDE
            for side in sides
            if (*side[:2], not side[2]) in sides
        }
        self._make_blocks()
        self._make_lanes()
        self._lines = self._join()
        self._arrange()
        self._spread()

    def y_of(self, card: Card) -> float:
        """Return the y of the upper end of a card."""
        return End(self._blocks[card.id], self._head_of(card)).y

    def heights_of(self, at: int) -> list[float]:
        """Return the heights of a line at its left end, in its lane if it has one, at its right."""
        return [end.y for end in self._ends_of(at)]

    def span_of(self, at: int) -> tuple[int, int]:
        """Return the layers of the left and the right end of a line."""
        line = self.lines[at]
        ends = self._folded.card_of(line.source).layer, self._folded.card_of(line.target).layer
        return min(ends), max(ends)

    # Blocks

    def _make_blocks(self) -> None:
        for card in sorted(self._folded.cards, key=lambda card: card.layer):
            around: tuple[Block, ...] = ()
            layer = card.layer
            if card.frame is not None:
                pieces = self.frame_blocks.setdefault(card.frame, [])
                if not pieces or pieces[-1].high < layer - 1:
                    head = self._sizes.frame_head
                    new = Block(layer, layer, 0.0, _FRAME_MARGIN, Stack(), head, FRAME_PAD)
                    self._stack.blocks.append(new)
                    pieces.append(new)
                pieces[-1].high = layer
                around = (pieces[-1],)
            own = Block(layer, layer, self._sizes.cards[card.id][1], _CARD_MARGIN)
            self._inside(around).blocks.append(own)
            self._blocks[card.id] = (*around, own)

    def _inside(self, around: tuple[Block, ...]) -> Stack:
        """Return the stack inside the last of these blocks; without any, the outermost one."""
        inner = around[-1].inner if around else None
        return self._stack if inner is None else inner

    def _head_of(self, card: Card) -> float:
        return 0.0 if card.frame is None else self._sizes.frame_head

    def _port(self, side: Side) -> End:
        """Return the point at the side of a row where its lines end."""
        card, size = self._folded.card_of(side[0]), self._sizes.rows[side[0]]
        middle = self._head_of(card) + size.top + size.height / 2
        offset = middle + self._asides.get(side, 0.0)
        return End(self._blocks[card.id], offset)

    def _spread(self) -> None:
        """Find where lines begin and end on one side of a row if not all of them are straight.

        The straighter ones have the middle; the others are on the side to which they go.
        """
        turns: dict[Side, list[float]] = {}
        for at, line in self.lines.items():
            left, *_, right = ends = [end.y for end in self._ends_of(at)]
            for side in _sides(line):
                turns.setdefault(side, []).append(ends[-2] - right if side[1] else ends[1] - left)
        usual = {side: median(turns[side]) for side in self._asides}
        for side, turn in usual.items():
            other = (*side[:2], not side[2])
            if max(abs(turn), abs(usual[other])) > 2 * _ASIDE:
                is_straighter = (abs(turn), side) < (abs(usual[other]), other)
                self._asides[side] = 0.0 if is_straighter else copysign(2 * _ASIDE, turn)

    def _make_lanes(self) -> None:
        """Make lanes for lines that skip layers: one for those that have an end in common."""
        far = [at for at in self.lines if self.span_of(at)[1] > self.span_of(at)[0] + 1]
        ends = Counter(side for at in far for side in _sides(self.lines[at]))
        lanes: dict[object, Block] = {}
        for at in far:
            line, (low, high) = self.lines[at], self.span_of(at)
            hub = max(_sides(line), key=lambda side: ends[side])
            here, there = (
                self._blocks[self._folded.rows[row].card][:-1] for row in (line.source, line.target)
            )
            around = here if here == there else ()
            key = hub, around
            if key not in lanes:
                lanes[key] = Block(low + 1, high - 1, 0.0, _LANE_MARGIN)
                self._inside(around).blocks.append(lanes[key])
            lane = lanes[key]
            lane.low, lane.high = min(lane.low, low + 1), max(lane.high, high - 1)
            self._lanes[at] = End((*around, lane), self._sizes.frame_head if around else 0.0)

    def _ends_of(self, at: int) -> list[End]:
        line = self.lines[at]
        source, target = (self._port(side) for side in _sides(line))
        left, right = (target, source) if line.is_back else (source, target)
        return [left, self._lanes[at], right] if at in self._lanes else [left, right]

    def _join(self) -> list[Connector]:
        """Return the lines between ends, and add them to their blocks."""
        lines = []
        joined = set()
        for at in self.lines:
            low, high = self.span_of(at)
            for (here, there), gap in zip(
                pairwise(self._ends_of(at)), (low, high - 1), strict=False
            ):
                key = here.blocks[-1], here.offset, there.blocks[-1], there.offset
                if key in joined:
                    continue
                joined.add(key)
                lines.append(Connector(here, there, gap))
                for block in here.blocks:
                    if block not in there.blocks:
                        block.after.append((here, there))
                for block in there.blocks:
                    if block not in here.blocks:
                        block.before.append((there, here))
        # A lane follows the cards, not the other way round.
        lanes = {end.blocks[-1] for end in self._lanes.values()}
        for *_, card in self._blocks.values():
            for ends in (card.before, card.after):
                ends[:] = [each for each in ends if each[1].blocks[-1] not in lanes] or ends
        return lines

    # Heights

    def _relax(self, times: int) -> None:
        inner = [
            (block.inner.neighbours(), block.height - block.head - block.foot)
            for stack in self._stack.stacks()
            for block in stack.blocks
            if block.inner is not None
        ]
        outer = self._stack.neighbours()
        for turn in range(times):
            step = 1 if turn % 2 else -1
            relax(outer[::step], -inf, inf)
            for neighbours, room in inner:
                if len(neighbours) > 1:
                    relax(neighbours[::step], 0.0, room)

    def _cost(self) -> float:
        """Return the cost of the order: the vertical length of the lines, and their crossings."""
        self._stack.pack()
        self._relax(2)
        way = sum(abs(line.here.y - line.there.y) for line in self._lines)
        return way + _CROSSING_COST * count_crossings(self._lines)

    def _arrange(self) -> None:
        """Find a good order, and set the vertical positions."""
        best, cost = self._orders(), self._cost()
        for _ in range(_MAX_SWEEPS):
            before = self._orders()
            for stack in self._stack.stacks():
                stack.sort()
            if before == self._orders():
                break
            found = self._cost()
            if found < cost:
                best, cost = self._orders(), found
        for stack, blocks in best:
            stack.blocks = blocks
        self._swap(cost)
        self._stack.pack()
        self._relax(_NUM_RELAXATIONS)
        # Whole numbers make sharp lines and short files. The margins are wide enough for rounding.
        for stack in self._stack.stacks():
            for block in stack.blocks:
                block.y = round(block.y)
        top = min(block.y for block in self._stack.blocks)
        for block in self._stack.blocks:
            block.y -= top

    def _swap(self, cost: float) -> None:
        """Swap neighbours as long as that lowers the cost, in graphs that are small enough."""
        stacks = self._stack.stacks()
        if sum(len(stack.blocks) for stack in stacks) * len(self._lines) > _MAX_TO_SWAP:
            return
        is_better = True
        while is_better:
            is_better = False
            for blocks in [stack.blocks for stack in stacks]:
                for at in range(len(blocks) - 1):
                    one, other = blocks[at : at + 2]
                    if one.low > other.high or other.low > one.high:
                        continue
                    blocks[at : at + 2] = other, one
                    found = self._cost()
                    # Lower by at least 1, so that rounding errors cannot cause an endless loop.
                    if found <= cost - 1:
                        cost, is_better = found, True
                    else:
                        blocks[at : at + 2] = one, other

    def _orders(self) -> list[tuple[Stack, list[Block]]]:
        return [(stack, list(stack.blocks)) for stack in self._stack.stacks()]


Side = tuple[int, bool, bool]
"""A side of a row where lines begin, or one where lines end: the row, is it left, do they begin?"""


def _sides(line: Line) -> list[Side]:
    """Return the sides where a line begins and ends."""
    return [(line.source, line.is_back, True), (line.target, not line.is_back, False)]
