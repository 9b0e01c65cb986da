# SPDX-License-Identifier: Apache-2.0
"""The positions of a topology's parts: a layered layout with every actor in one box.

Values flow from left to right. A node's layer is the longest path to it from the input, and an
actor is a box that spans the layers of all its calls, so an actor that is visited again is a lane::

    layer 0      layer 1          layer 2          layer 3        layer 4

                ┌ a0 ──────────────────────────────────────┐
    input ───────> fwd ─────┐                 ┌──> bwd ────────> output
                └───────────│─────────────────│────────────┘
                            │  ┌ a1 ───────┐  │
                            └──> loss ────────┘
                               └───────────┘

A value that skips layers runs over them in a lane of its own, one for all who take it, so lines
never cross a node. Actors, lanes and the rest are blocks: a block spans some layers and has a
height. One order of all blocks, from top to bottom, decides who is above whom in the layers that
two share; so boxes cannot overlap, whatever the order. The order is sought by moving each block to
the median height of what it is joined to (after Gansner, Koutsofios, North and Vo, "A technique
for drawing directed graphs", 1993), in small graphs also by swapping neighbours, and the best is
kept. Inside an actor the same is done once more. Everything is deterministic.

Parts of a call and attributes of the input stand at the right edge of what they belong to. This
file must not know how anything is drawn: it takes sizes and gives rectangles and lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Final

from rcg.views.data.blocks import Block, End, Line, Stack, count_crossings, relax
from rcg.views.data.topology import Edge, Node, Topology

__all__ = ["TopologyLayout", "Point", "Rect", "Sizes", "layers_of", "lay_out"]

Point = tuple[float, float]

PART_GAP: Final = 10.0
_PART_GAP_DOWN: Final = 4.0
_ACTOR_PAD: Final = 12.0
_COLUMN_GAP: Final = 72.0
_MOST_COLUMN_GAP: Final = 200.0
_MARGINS: Final = {"actor": 9.0, "driver": 8.0, "lane": 6.0, "call": 5.0}
_PORT_GAP: Final = 9.0
_NUM_SWEEPS: Final = 10
_NUM_RELAXATIONS: Final = 24
_CROSSING_COST: Final = 150.0  # as much as so far up and down
_MOST_TO_SWAP: Final = 3000  # blocks times lines; more would take too long


@dataclass(frozen=True, slots=True)
class Rect:
    """An upright rectangle; y grows downward."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Where it ends on the right."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """Where it ends below."""
        return self.y + self.height

    @property
    def middle(self) -> float:
        """The height of its centre."""
        return self.y + self.height / 2


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much room the text of each thing takes.

    Attributes:
        nodes: Width and height of each node, at least.
        actors: Width of the head of each actor's box, at least.
        head: Height of that head.
    """

    nodes: Mapping[int, tuple[float, float]]
    actors: Mapping[str, float]
    head: float


@dataclass(frozen=True, slots=True)
class TopologyLayout:
    """Where things are. The left and upper end of it all is 0.

    Attributes:
        nodes: The box of each node.
        actors: The box around each actor's nodes.
        routes: Between which points each edge runs, by source and target. Two points of one height
            are joined by a line; any others lie between two columns and are joined by a curve.
            There is none from an owner to what it owns, which stand side by side.
        width: How wide it all is.
        height: How high it all is.
    """

    nodes: Mapping[int, Rect]
    actors: Mapping[str, Rect]
    routes: Mapping[tuple[int, int], tuple[Point, ...]]
    width: float
    height: float


def lay_out(topology: Topology, sizes: Sizes) -> TopologyLayout:
    """Return a layout of a topology in which no two boxes overlap and no line crosses a node."""
    return _Placing(topology, sizes).result()


def layers_of(topology: Topology) -> list[int]:
    """Return the layer of each node: the longest path to it. What is owned is with its owner."""
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


class _Placing:
    """One run: blocks, their order, heights, then columns and lines."""

    def __init__(self, topology: Topology, sizes: Sizes) -> None:
        self._topology = topology
        self._sizes = sizes
        self._layers = layers_of(topology)
        self._owned: dict[int, list[Node]] = {}
        for node in topology.nodes:
            if node.owner is not None:
                self._owned.setdefault(node.owner, []).append(node)
        self._edges = [
            edge for edge in topology.edges if topology.nodes[edge.target].owner != edge.source
        ]
        self._taken: dict[int, int] = {}
        for edge in self._edges:
            self._taken[edge.target] = self._taken.get(edge.target, 0) + 1
        self._stack = Stack()
        self._actor_blocks: dict[str, Block] = {}
        self._ends: dict[int, End] = {}  # of nodes
        self._lanes: dict[tuple[int, bool], End] = {}
        self._make_blocks()
        self._make_lanes()
        self._lines = self._join()

    # Blocks

    def _make_blocks(self) -> None:
        for node in self._topology.nodes:
            if node.owner is not None:
                continue
            layer, height = self._layers[node.id], self._height(node)
            if node.kind == "call":
                outer = self._actor_block(node.process, layer)
                own = Block(layer, layer, height, _MARGINS["call"])
                self._inside(outer).blocks.append(own)
                head = self._sizes.head
                self._ends[node.id] = End(outer, own, head + height / 2)
            else:
                outer = Block(layer, layer, height, _MARGINS["driver"])
                own, head = None, 0.0
                self._stack.blocks.append(outer)
                self._ends[node.id] = End(outer, None, height / 2)
            for part, offset in self._offsets(node, height):
                self._ends[part.id] = End(outer, own, head + offset)

    def _height(self, node: Node) -> float:
        parts = [self._sizes.nodes[part.id][1] for part in self._owned.get(node.id, ())]
        height = max(
            self._sizes.nodes[node.id][1],
            len(parts) * (max(parts, default=0.0) + _PART_GAP_DOWN),
            _PORT_GAP * (self._taken.get(node.id, 0) + 1),
        )
        # So that the middles are whole numbers too.
        unit = 2 * max(1, len(parts))
        return unit * ceil(height / unit)

    def _offsets(self, node: Node, height: float) -> list[tuple[Node, float]]:
        """The heights of the middles of what the node owns, below its upper end."""
        parts = self._owned.get(node.id, [])
        step = height / max(1, len(parts))
        return [(part, step * (position + 0.5)) for position, part in enumerate(parts)]

    def _actor_block(self, process: str, layer: int) -> Block:
        block = self._actor_blocks.get(process)
        if block is None:
            block = Block(layer, layer, 0.0, _MARGINS["actor"], inner=Stack())
            self._actor_blocks[process] = block
            self._stack.blocks.append(block)
        block.low, block.high = min(block.low, layer), max(block.high, layer)
        return block

    @staticmethod
    def _inside(block: Block) -> Stack:
        if block.inner is None:
            block.inner = Stack()
        return block.inner

    def _is_inside(self, edge: Edge) -> bool:
        """Whether an edge stays inside an actor's box."""
        source, target = self._topology.nodes[edge.source], self._topology.nodes[edge.target]
        return source.process == target.process and source.process in self._actor_blocks

    def _make_lanes(self) -> None:
        """A lane for each value that skips layers, inside its actor and outside."""
        last: dict[tuple[int, bool], int] = {}
        for edge in self._edges:
            if self._layers[edge.target] > self._layers[edge.source] + 1:
                key = (edge.source, self._is_inside(edge))
                last[key] = max(last.get(key, 0), self._layers[edge.target])
        for (source, is_inside), high in last.items():
            lane = Block(self._layers[source] + 1, high - 1, 0.0, _MARGINS["lane"])
            end = self._ends[source]
            if is_inside:
                self._inside(end.block).blocks.append(lane)
                self._lanes[source, True] = End(end.block, lane, self._sizes.head)
            else:
                # Next to where its value is made, to begin with.
                self._stack.blocks.insert(self._stack.blocks.index(end.block) + 1, lane)
                self._lanes[source, False] = End(lane, None, 0.0)

    def _join(self) -> list[Line]:
        """Return which ends are joined by a line, and tell the blocks."""
        lines: dict[tuple[int, int], Line] = {}
        for edge in self._edges:
            ends = self._ends_of(edge)
            gaps = (self._layers[edge.source], self._layers[edge.target] - 1)
            # A lane is joined once to where its value is made, however many take the value.
            for (here, there), gap in zip(pairwise(ends), gaps, strict=False):
                lines[id(here), id(there)] = Line(here, there, gap)
        for line in lines.values():
            here, there = line.here, line.there
            if here.block is not there.block:
                here.block.after.append((here, there))
                there.block.before.append((there, here))
            if here.inner is not None:
                here.inner.after.append((here, there))
            if there.inner is not None:
                there.inner.before.append((there, here))
        return list(lines.values())

    def _ends_of(self, edge: Edge) -> list[End]:
        ends = [self._ends[edge.source], self._ends[edge.target]]
        if self._layers[edge.target] > self._layers[edge.source] + 1:
            ends.insert(1, self._lanes[edge.source, self._is_inside(edge)])
        return ends

    # Heights

    def _stacks(self) -> list[Stack]:
        return [
            self._stack,
            *(block.inner for block in self._stack.blocks if block.inner is not None),
        ]

    def _pack(self) -> float:
        for block in self._stack.blocks:
            if block.inner is not None:
                block.height = self._sizes.head + block.inner.pack() + _ACTOR_PAD
        return self._stack.pack()

    def _relax(self, times: int) -> None:
        inner = [
            (block.inner.neighbours(), block.height - self._sizes.head - _ACTOR_PAD)
            for block in self._stack.blocks
            if block.inner is not None
        ]
        outer = self._stack.neighbours()
        infinite = float("inf")
        for turn in range(times):
            step = 1 if turn % 2 else -1
            relax(outer[::step], -infinite, infinite)
            for neighbours, room in inner:
                if len(neighbours) > 1:
                    relax(neighbours[::step], 0.0, room)

    def _cost(self) -> float:
        """How bad the order is: how far lines go up and down, and how often they cross."""
        self._pack()
        self._relax(2)
        way = sum(abs(line.here.y - line.there.y) for line in self._lines)
        return way + _CROSSING_COST * count_crossings(self._lines)

    def _arrange(self) -> None:
        """Find a good order, and settle the heights."""
        best, cost = self._orders(), self._cost()
        for _ in range(_NUM_SWEEPS):
            before = self._orders()
            for stack in self._stacks():
                stack.sort()
            if before == self._orders():
                break
            found = self._cost()
            if found < cost:
                best, cost = self._orders(), found
        self._restore(best)
        if len(self._stack.blocks) * len(self._lines) <= _MOST_TO_SWAP:
            self._swap(cost)
        self._pack()
        self._relax(_NUM_RELAXATIONS)
        # Whole numbers make sharp lines and short files; margins are wide enough for that.
        for stack in self._stacks():
            for block in stack.blocks:
                block.y = round(block.y)
        top = min(block.y for block in self._stack.blocks)
        for block in self._stack.blocks:
            block.y -= top

    def _swap(self, cost: float) -> None:
        """Swap neighbours as long as that helps; worth its time in small graphs."""
        blocks = self._stack.blocks
        is_better = True
        while is_better:
            is_better = False
            for at in range(len(blocks) - 1):
                one, other = blocks[at : at + 2]
                if one.low > other.high or other.low > one.high:
                    continue
                blocks[at : at + 2] = other, one
                found = self._cost()
                # By a whole step, so that rounding cannot make it go round in circles.
                if found <= cost - 1:
                    cost, is_better = found, True
                else:
                    blocks[at : at + 2] = one, other

    def _orders(self) -> list[list[Block]]:
        return [list(stack.blocks) for stack in self._stacks()]

    def _restore(self, orders: Sequence[list[Block]]) -> None:
        self._stack.blocks = list(orders[0])
        inner = [block.inner for block in self._stack.blocks if block.inner is not None]
        for stack, blocks in zip(inner, orders[1:], strict=True):
            stack.blocks = list(blocks)

    # Columns and lines

    def result(self) -> TopologyLayout:
        self._arrange()
        left, right = self._columns()
        nodes: dict[int, Rect] = {}
        for node in self._topology.nodes:
            if node.owner is None:
                nodes.update(self._rects(node, left, right))
        actors = {
            process: Rect(
                left[block.low] - _ACTOR_PAD,
                block.y,
                right[block.high] - left[block.low] + 2 * _ACTOR_PAD,
                block.height,
            )
            for process, block in self._actor_blocks.items()
        }
        routes = self._routes(nodes, left, right)
        boxes = [*nodes.values(), *actors.values()]
        points = [point for route in routes.values() for point in route]
        return TopologyLayout(
            nodes=nodes,
            actors=actors,
            routes=routes,
            width=max(box.right for box in boxes),
            height=max([*(box.bottom for box in boxes), *(y for _, y in points)]),
        )

    def _columns(self) -> tuple[list[float], list[float]]:
        """Where each layer's boxes begin and end on the x axis."""
        num_layers = max(self._layers) + 1
        widths = [0.0] * num_layers
        for node in self._topology.nodes:
            if node.owner is None:
                width = self._sizes.nodes[node.id][0] + self._parts_width(node)
                widths[self._layers[node.id]] = max(widths[self._layers[node.id]], width)
        for process, block in self._actor_blocks.items():
            widths[block.low] = max(widths[block.low], self._sizes.actors[process])
        # Lines that go far up or down need room to turn.
        turns = [0.0] * num_layers
        for edge in self._edges:
            ends = self._ends_of(edge)
            heights = [abs(here.y - there.y) for here, there in pairwise(ends)]
            first, last = self._layers[edge.source], self._layers[edge.target] - 1
            turns[first] = max(turns[first], heights[0])
            turns[last] = max(turns[last], heights[-1])
        left: list[float] = []
        right: list[float] = []
        x = _ACTOR_PAD
        for layer in range(num_layers):
            left.append(x)
            right.append(x + ceil(widths[layer]))
            gap = min(_MOST_COLUMN_GAP, _COLUMN_GAP + 0.06 * turns[layer])
            x = right[layer] + round(gap)
        return left, right

    def _parts_width(self, node: Node) -> float:
        widths = [self._sizes.nodes[part.id][0] for part in self._owned.get(node.id, ())]
        return max(widths) + PART_GAP if widths else 0.0

    def _rects(self, node: Node, left: list[float], right: list[float]) -> dict[int, Rect]:
        layer = self._layers[node.id]
        end, height = self._ends[node.id], self._height(node)
        y = end.y - height / 2
        parts_width = self._parts_width(node)
        rects = {node.id: Rect(left[layer], y, right[layer] - left[layer] - parts_width, height)}
        for part, offset in self._offsets(node, height):
            part_height = self._sizes.nodes[part.id][1]
            rects[part.id] = Rect(
                right[layer] - parts_width + PART_GAP,
                y + offset - part_height / 2,
                parts_width - PART_GAP,
                part_height,
            )
        return rects

    def _routes(
        self, nodes: Mapping[int, Rect], left: list[float], right: list[float]
    ) -> dict[tuple[int, int], tuple[Point, ...]]:
        routes: dict[tuple[int, int], tuple[Point, ...]] = {}
        arriving: dict[int, list[tuple[float, Edge]]] = {}
        for edge in self._edges:
            arriving.setdefault(edge.target, []).append((self._ends_of(edge)[-2].y, edge))
        for target, edges in arriving.items():
            # Sorted by where they come from, so that lines do not cross right before they end.
            edges.sort(key=lambda each: (each[0], each[1].source))
            ports = _ports(nodes[target], [y for y, _ in edges])
            for y, (_, edge) in zip(ports, edges, strict=True):
                routes[edge.source, edge.target] = self._route(edge, y, nodes, left, right)
        return {
            (edge.source, edge.target): routes[edge.source, edge.target] for edge in self._edges
        }

    def _route(
        self,
        edge: Edge,
        arrival: float,
        nodes: Mapping[int, Rect],
        left: list[float],
        right: list[float],
    ) -> tuple[Point, ...]:
        first, last = self._layers[edge.source], self._layers[edge.target]
        start, end = (right[first], nodes[edge.source].middle), (left[last], arrival)
        if last == first + 1:
            return (start, end)
        y = self._lanes[edge.source, self._is_inside(edge)].y
        return (start, (left[first + 1], y), (right[last - 1], y), end)


def _ports(rect: Rect, heights: Sequence[float]) -> list[float]:
    """At which heights lines from these heights, from the top down, end at a box.

    Straight, if they come from where the box is, and side by side.
    """
    reach = rect.height / 2 - 6
    straight = [height for height in heights if abs(height - rect.middle) <= reach]
    above = sum(height < rect.middle - reach for height in heights)
    below = len(heights) - above - len(straight)
    if straight and all(low - high >= _PORT_GAP - 2 for high, low in pairwise(straight)):
        ports = [
            *(straight[0] - _PORT_GAP * count for count in range(above, 0, -1)),
            *straight,
            *(straight[-1] + _PORT_GAP * count for count in range(1, below + 1)),
        ]
        if abs(ports[0] - rect.middle) <= reach and abs(ports[-1] - rect.middle) <= reach:
            return ports
    first = rect.middle - _PORT_GAP * (len(heights) - 1) / 2
    return [first + _PORT_GAP * position for position in range(len(heights))]
