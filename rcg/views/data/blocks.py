# SPDX-License-Identifier: Apache-2.0
"""Stacks of blocks: boxes that span layers, in an order from top to bottom.

One order of all blocks decides which of two blocks that share a layer is above the other, so blocks
cannot overlap. Connectors connect ends, which are points of blocks. This file must not know what
blocks represent.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median


@dataclass(slots=True, eq=False)
class Block:
    """A box that spans layers and has a height.

    Attributes:
        low: The first layer that it spans.
        high: The last layer that it spans.
        height: Its height.
        margin: The space above and below it.
        inner: The blocks inside it.
        head: The space above those.
        foot: The space below those.
        y: Distance from the upper end of its stack.
        before: Its connectors to the left: the end at this block, and the other end.
        after: Its connectors to the right: the end at this block, and the other end.
    """

    low: int
    high: int
    height: float
    margin: float
    inner: Stack | None = None
    head: float = 0.0
    foot: float = 0.0
    y: float = 0.0
    before: list[tuple[End, End]] = field(default_factory=list)
    after: list[tuple[End, End]] = field(default_factory=list)


Neighbours = tuple[Block, list[Block], list[Block]]
"""A block, and those directly above and below it."""


@dataclass(slots=True, eq=False)
class End:
    """A point at a fixed height of a block, which may be inside others.

    Attributes:
        blocks: The block that it belongs to, after those around it.
        offset: Its distance from the upper end of that block, and the heads of those around it.
    """

    blocks: tuple[Block, ...]
    offset: float

    @property
    def y(self) -> float:
        """Distance from the upper end of the outermost stack."""
        return sum(block.y for block in self.blocks) + self.offset


@dataclass(slots=True, eq=False)
class Stack:
    """Blocks, from top to bottom."""

    blocks: list[Block] = field(default_factory=list)

    def sort(self) -> None:
        """Sort the blocks by the heights at which their connectors would be straight."""
        self.blocks.sort(key=lambda block: block.y + block.height / 2 + _shift(block))

    def stacks(self) -> list[Stack]:
        """Return this stack and those inside its blocks, each before those inside its own."""
        found = [self]
        for block in self.blocks:
            if block.inner is not None:
                found += block.inner.stacks()
        return found

    def pack(self) -> float:
        """Move every block up as far as those before it allow; return the height of the stack.

        Blocks with others inside get the height that these need.
        """
        for block in self.blocks:
            if block.inner is not None:
                block.height = block.head + block.inner.pack() + block.foot
        ends: dict[int, float] = {}
        height = 0.0
        for block in self.blocks:
            span = range(block.low, block.high + 1)
            # An end includes the margin below. The first block of a layer needs no margin above.
            tops = [ends[layer] + block.margin for layer in span if layer in ends]
            block.y = max(tops, default=0.0)
            bottom = block.y + block.height
            height = max(height, bottom)
            ends.update(dict.fromkeys(span, bottom + block.margin))
        return height

    def neighbours(self) -> list[Neighbours]:
        """Return each block with its direct neighbours above and below, in any layer."""
        above: dict[Block, dict[Block, None]] = {block: {} for block in self.blocks}
        below: dict[Block, dict[Block, None]] = {block: {} for block in self.blocks}
        last: dict[int, Block] = {}
        for block in self.blocks:
            for layer in range(block.low, block.high + 1):
                if layer in last:
                    above[block][last[layer]] = None
                    below[last[layer]][block] = None
                last[layer] = block
        return [(block, list(above[block]), list(below[block])) for block in self.blocks]


def _shift(block: Block) -> float:
    """Return how far down a block would have to move for straight connectors."""
    # The median makes one connector straight; the mean would make all of them nearly straight. The
    # side with more connectors decides, so that what follows a block does not pull it.
    most = max(len(block.before), len(block.after))
    sides = [side for side in (block.before, block.after) if side and len(side) == most]
    shifts = [median([there.y - here.y for here, there in side]) for side in sides]
    return sum(shifts) / len(shifts) if shifts else 0.0


def relax(neighbours: Iterable[Neighbours], lowest: float, highest: float) -> None:
    """Move each block towards straight connectors, as far as its neighbours allow."""
    for block, above, below in neighbours:
        tops = [each.y + each.height + each.margin + block.margin for each in above]
        bottoms = [each.y - each.margin - block.margin for each in below]
        top, bottom = max(tops, default=lowest), min(bottoms, default=highest)
        wanted = block.y + _shift(block)
        block.y = max(top, min(wanted, bottom - block.height))


@dataclass(frozen=True, slots=True)
class Connector:
    """A line between two ends, and the layer to the right of which it goes up or down."""

    here: End
    there: End
    gap: int


def count_crossings(lines: Iterable[Connector]) -> int:
    """Count the crossings of lines."""
    gaps: dict[int, list[tuple[float, float]]] = {}
    for line in lines:
        gaps.setdefault(line.gap, []).append((line.here.y, line.there.y))
    crossings = 0
    for heights in gaps.values():
        # A line crosses those that start above it and end below it.
        ended: list[float] = []
        for _, end in sorted(heights):
            crossings += len(ended) - bisect_right(ended, end)
            insort(ended, end)
    return crossings
