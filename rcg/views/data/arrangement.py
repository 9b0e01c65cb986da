# SPDX-License-Identifier: Apache-2.0
"""The vertical positions of a topology's parts: which blocks there are, and their order.

An actor, a node of the driver, and a value that skips layers each are a block. So is a node of the
cluster, with what is there inside. A block spans some layers and has a height. One order of all
blocks, from top to bottom, decides which of two blocks that share a layer is above the other, so
boxes cannot overlap.

The search moves each block to the median height of the blocks that it is connected to (after
Gansner, Koutsofios, North and Vo, "A technique for drawing directed graphs", 1993). In small graphs
it also swaps neighbours. It keeps the best order. The calls inside an actor are ordered in the same
way. The result is deterministic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, inf
from typing import Final

from rcg.views.data.blocks import Block, Connector, End, Stack, count_crossings, relax
from rcg.views.data.topology import Topology, TopologyEdge, TopologyNode

ACTOR_PAD: Final = 12.0
"""The space between the box of an actor and the boxes inside."""

FRAME_PAD: Final = 12.0
"""The space between the frame of a node of the cluster and the boxes inside."""

PORT_GAP: Final = 9.0
"""The space between two lines that end at the same box."""

_PART_GAP_DOWN: Final = 4.0
_BOX_MARGIN: Final = 9.0  # of actors and frames
_DRIVER_MARGIN: Final = 8.0
_LANE_MARGIN: Final = 6.0
_CALL_MARGIN: Final = 5.0
_MAX_SWEEPS: Final = 10
_NUM_RELAXATIONS: Final = 24
_CROSSING_COST: Final = 150.0  # as much as this height difference
_MAX_TO_SWAP: Final = 3000  # blocks times lines; more would take too long


@dataclass(frozen=True, slots=True)
class Sizes:
    """The room that texts need.

    Attributes:
        nodes: The least width and height of each node.
        actors: The least width of the head of each actor's box.
        head: The height of that head.
        frames: The least width of the name of each node of the cluster.
        frame_head: The height of that name.
    """

    nodes: Mapping[int, tuple[float, float]]
    actors: Mapping[str, float]
    head: float
    frames: Mapping[str, float] = field(default_factory=dict)
    frame_head: float = 0.0


class Arrangement:
    """The blocks of a topology, ordered from top to bottom.

    Attributes:
        layers: The layer of each node.
        edges: The edges that are drawn as lines: not those from an owner to what it owns.
        actor_blocks: The block of each actor, by its process.
        frame_blocks: The block of each node of the cluster, by its id.
    """

    def __init__(self, topology: Topology, sizes: Sizes) -> None:
        self._topology = topology
        self._sizes = sizes
        self.layers = layers_of(topology)
        self._owned: dict[int, list[TopologyNode]] = {}
        for node in topology.nodes:
            if node.owner is not None:
                self._owned.setdefault(node.owner, []).append(node)
        self.edges = [
            edge for edge in topology.edges if topology.nodes[edge.target].owner != edge.source
        ]
        self._taken = Counter(edge.target for edge in self.edges)
        self._stack = Stack()
        self.actor_blocks: dict[str, Block] = {}
        self.frame_blocks: dict[str, Block] = {}
        self._actor_ends: dict[str, End] = {}  # their upper ends
        self._ends: dict[int, End] = {}  # of nodes
        self._lanes: dict[tuple[int, int], End] = {}
        self._make_blocks()
        self._make_lanes()
        self._lines = self._join()
        self._arrange()

    def parts_of(self, node: TopologyNode) -> list[TopologyNode]:
        """Return the nodes that a node owns."""
        return self._owned.get(node.id, [])

    def y_of(self, node: TopologyNode) -> float:
        """Return the y of a node's middle."""
        return self._ends[node.id].y

    def y_of_lane(self, edge: TopologyEdge) -> float:
        """Return the y of the lane of an edge that skips layers."""
        return self._lanes[edge.source, self._depth(edge)].y

    def y_of_actor(self, process: str) -> float:
        """Return the y of the upper end of an actor's box."""
        return self._actor_ends[process].y

    # Blocks

    def _make_blocks(self) -> None:
        for node in self._topology.nodes:
            if node.owner is not None:
                continue
            layer, height = self.layers[node.id], self.height_of(node)
            around: tuple[Block, ...] = ()
            frame = self._topology.frame_of(node)
            if frame is not None:
                new = Block(
                    layer, layer, 0.0, _BOX_MARGIN, Stack(), self._sizes.frame_head, FRAME_PAD
                )
                around = (self._box(self.frame_blocks, frame, new, around),)
            if node.kind == "call":
                new = Block(layer, layer, 0.0, _BOX_MARGIN, Stack(), self._sizes.head, ACTOR_PAD)
                box = self._box(self.actor_blocks, node.process, new, around)
                self._actor_ends.setdefault(node.process, _end(around, box))
                around = (*around, box)
            own = Block(
                layer, layer, height, _CALL_MARGIN if node.kind == "call" else _DRIVER_MARGIN
            )
            self._inside(around).blocks.append(own)
            self._ends[node.id] = _end(around, own, height / 2)
            for part, offset in self.offsets_of(node, height):
                self._ends[part.id] = _end(around, own, offset)

    def _box(
        self, boxes: dict[str, Block], key: str, new: Block, around: tuple[Block, ...]
    ) -> Block:
        """Return the block of an actor or a frame, which also spans the layer of the new one."""
        block = boxes.setdefault(key, new)
        if block is new:
            self._inside(around).blocks.append(block)
        block.low, block.high = min(block.low, new.low), max(block.high, new.high)
        return block

    def height_of(self, node: TopologyNode) -> float:
        """Return the height of a node's box, with room for its parts and for arriving lines."""
        parts = [self._sizes.nodes[part.id][1] for part in self.parts_of(node)]
        height = max(
            self._sizes.nodes[node.id][1],
            len(parts) * (max(parts, default=0.0) + _PART_GAP_DOWN),
            PORT_GAP * (self._taken[node.id] + 1),
        )
        # The middles are whole numbers, too.
        unit = 2 * max(1, len(parts))
        return unit * ceil(height / unit)

    def offsets_of(self, node: TopologyNode, height: float) -> list[tuple[TopologyNode, float]]:
        """Return the node's parts, each with the y of its middle below the node's upper end."""
        parts = self.parts_of(node)
        step = height / max(1, len(parts))
        return [(part, step * (position + 0.5)) for position, part in enumerate(parts)]

    def _inside(self, around: tuple[Block, ...]) -> Stack:
        """Return the stack inside the last of these blocks; without any, the outermost one."""
        inner = around[-1].inner if around else None
        return self._stack if inner is None else inner

    def _depth(self, edge: TopologyEdge) -> int:
        """Return how many boxes, of actors or of nodes of the cluster, an edge stays inside of."""
        here, there = self._ends[edge.source].blocks, self._ends[edge.target].blocks
        return sum(one is other for one, other in zip(here, there, strict=False))

    def _make_lanes(self) -> None:
        """Make a lane for each value that skips layers, one inside each box that it stays in."""
        last: dict[tuple[int, int], int] = {}
        for edge in self.edges:
            if self.layers[edge.target] > self.layers[edge.source] + 1:
                key = (edge.source, self._depth(edge))
                last[key] = max(last.get(key, 0), self.layers[edge.target])
        actors = set(self.actor_blocks.values())
        for (source, depth), high in last.items():
            lane = Block(self.layers[source] + 1, high - 1, 0.0, _LANE_MARGIN)
            blocks = self._ends[source].blocks
            around = blocks[:depth]
            beside = self._inside(around).blocks
            if around and around[-1] in actors:
                beside.append(lane)
            else:
                # It starts next to the node that makes its value.
                beside.insert(beside.index(blocks[depth]) + 1, lane)
            self._lanes[source, depth] = _end(around, lane)

    def _join(self) -> list[Connector]:
        """Return the lines between ends, and add them to their blocks."""
        lines: dict[tuple[End, End], Connector] = {}
        for edge in self.edges:
            ends = self.ends_of(edge)
            gaps = (self.layers[edge.source], self.layers[edge.target] - 1)
            # A lane has one line from the node that makes its value, for any number of readers.
            for (here, there), gap in zip(pairwise(ends), gaps, strict=False):
                lines[here, there] = Connector(here, there, gap)
        for line in lines.values():
            here, there = line.here, line.there
            for block in here.blocks:
                if block not in there.blocks:
                    block.after.append((here, there))
            for block in there.blocks:
                if block not in here.blocks:
                    block.before.append((there, here))
        return list(lines.values())

    def ends_of(self, edge: TopologyEdge) -> list[End]:
        """Return the ends that an edge connects: source, its lane if it has one, target."""
        ends = [self._ends[edge.source], self._ends[edge.target]]
        if self.layers[edge.target] > self.layers[edge.source] + 1:
            ends.insert(1, self._lanes[edge.source, self._depth(edge)])
        return ends

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
        stacks = [self._stack, *(self._inside((each,)) for each in self.frame_blocks.values())]
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


def _end(around: tuple[Block, ...], block: Block, offset: float = 0.0) -> End:
    """Return the point of a block, which is inside others, at a distance from its upper end."""
    return End((*around, block), sum((each.head for each in around), 0.0) + offset)


def layers_of(topology: Topology) -> list[int]:
    """Return the layer of each node: the length of the longest path to it.

    An owned node has the layer of its owner.
    """
    unit = [node.id if node.owner is None else node.owner for node in topology.nodes]
    waits_for = [0] * len(unit)
    takers: list[list[int]] = [[] for _ in unit]
    for edge in topology.edges:
        source, target = unit[edge.source], unit[edge.target]
        if source != target:
            takers[source].append(target)
            waits_for[target] += 1
    layers = [0] * len(unit)
    ready = [node for node in dict.fromkeys(unit) if not waits_for[node]]
    for node in ready:
        for taker in takers[node]:
            layers[taker] = max(layers[taker], layers[node] + 1)
            waits_for[taker] -= 1
            if not waits_for[taker]:
                ready.append(taker)
    return [layers[node] for node in unit]
