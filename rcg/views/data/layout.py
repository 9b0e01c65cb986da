# SPDX-License-Identifier: Apache-2.0
"""The positions of a topology's parts: a layered layout with one box per actor.

Values flow from left to right. The layer of a node is the length of the longest path to it from
the input. The box of an actor spans the layers of all its calls::

    layer 0      layer 1          layer 2          layer 3        layer 4

                ┌ a0 ──────────────────────────────────────┐
    input ───────> fwd ─────┐                 ┌──> bwd ────────> output
                └───────────│─────────────────│────────────┘
                            │  ┌ a1 ───────┐  │
                            └──> loss ────────┘
                               └───────────┘

Where the processes are on several nodes of the cluster, each node is a frame around its actors. The
frame of the driver's node is also around the input and the output.

A value that skips layers runs over them in a lane of its own, which all its readers share, so lines
never cross a node. `arrangement` decides the heights; this file adds columns and routes. The parts
of a call and the attributes of the input are placed at the right edge of their owner. The layout
does not depend on how it is drawn: it takes sizes and returns rectangles and lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil
from typing import Final

from rcg.views.data.arrangement import ACTOR_PAD, FRAME_PAD, PORT_GAP, Arrangement, Sizes
from rcg.views.data.blocks import Block
from rcg.views.data.edge_styles import TCP, style_of
from rcg.views.data.lettering import SMALL, width_of
from rcg.views.data.topology import Topology, TopologyEdge, TopologyNode

Point = tuple[float, float]

PART_GAP: Final = 10.0
_COLUMN_GAP: Final = 72.0
_MAX_COLUMN_GAP: Final = 200.0


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
    """The positions of boxes and lines. The upper left corner is (0, 0).

    Attributes:
        nodes: The box of each node.
        actors: The box around each actor's nodes.
        frames: The frame around what is on each node of the cluster, by its id.
        routes: The points of each edge, by source and target. Two points of the same height are
            connected by a straight line. Two of different heights lie on both sides of the gap
            between two columns and are connected by a curve. There is no route from an owner to
            what it owns: they stand side by side.
        width: The width of the picture.
        height: The height of the picture.
    """

    nodes: Mapping[int, Rect]
    actors: Mapping[str, Rect]
    routes: Mapping[tuple[int, int], tuple[Point, ...]]
    width: float
    height: float
    frames: Mapping[str, Rect] = field(default_factory=dict)


def lay_out(topology: Topology, sizes: Sizes) -> TopologyLayout:
    """Return a layout of a topology in which no two boxes overlap and no line crosses a node."""
    return _Layout(topology, sizes).result()


class _Layout:
    """Adds columns and routes to an arrangement."""

    def __init__(self, topology: Topology, sizes: Sizes) -> None:
        self._topology = topology
        self._sizes = sizes
        self._arrangement = Arrangement(topology, sizes)
        self._layers = self._arrangement.layers

    def result(self) -> TopologyLayout:
        left, right = self._columns()
        nodes: dict[int, Rect] = {}
        for node in self._topology.nodes:
            if node.owner is None:
                nodes.update(self._rects(node, left, right))

        def around(block: Block, y: float, pad: float) -> Rect:
            width = right[block.high] - left[block.low] + 2 * pad
            return Rect(left[block.low] - pad, y, width, block.height)

        actors = {
            process: around(block, self._arrangement.y_of_actor(process), ACTOR_PAD)
            for process, block in self._arrangement.actor_blocks.items()
        }
        frames = {
            name: around(block, block.y, ACTOR_PAD + FRAME_PAD)
            for name, block in self._arrangement.frame_blocks.items()
        }
        routes = self._routes(nodes, left, right)
        boxes = [*nodes.values(), *actors.values(), *frames.values()]
        points = [point for route in routes.values() for point in route]
        return TopologyLayout(
            nodes=nodes,
            actors=actors,
            routes=routes,
            width=max(box.right for box in boxes),
            height=max([*(box.bottom for box in boxes), *(y for _, y in points)]),
            frames=frames,
        )

    def _columns(self) -> tuple[list[float], list[float]]:
        """Return where the boxes of each layer begin and end on the x axis."""
        num_layers = max(self._layers) + 1
        widths = [0.0] * num_layers
        for node in self._topology.nodes:
            if node.owner is None:
                width = self._sizes.nodes[node.id][0] + self._parts_width(node)
                widths[self._layers[node.id]] = max(widths[self._layers[node.id]], width)
        for process, block in self._arrangement.actor_blocks.items():
            widths[block.low] = max(widths[block.low], self._sizes.actors[process])
        frames = self._arrangement.frame_blocks
        for name, block in frames.items():
            widths[block.low] = max(widths[block.low], self._sizes.frames[name])
        aside = FRAME_PAD if frames else 0.0
        # A line that goes far up or down needs room for its curve.
        turns = [0.0] * num_layers
        for edge in self._arrangement.edges:
            ends = self._arrangement.ends_of(edge)
            heights = [abs(here.y - there.y) for here, there in pairwise(ends)]
            first, last = self._layers[edge.source], self._layers[edge.target] - 1
            turns[first] = max(turns[first], heights[0])
            turns[last] = max(turns[last], heights[-1])
        left: list[float] = []
        right: list[float] = []
        x = ACTOR_PAD + aside
        for layer in range(num_layers):
            left.append(x)
            right.append(x + ceil(widths[layer]))
            gap = min(_MAX_COLUMN_GAP, _COLUMN_GAP + 2 * aside + 0.06 * turns[layer])
            x = right[layer] + round(gap)
        return left, right

    def _parts_width(self, node: TopologyNode) -> float:
        widths = [self._sizes.nodes[part.id][0] for part in self._arrangement.parts_of(node)]
        return max(widths) + PART_GAP if widths else 0.0

    def _rects(self, node: TopologyNode, left: list[float], right: list[float]) -> dict[int, Rect]:
        layer = self._layers[node.id]
        height = self._arrangement.height_of(node)
        y = self._arrangement.y_of(node) - height / 2
        parts_width = self._parts_width(node)
        rects = {node.id: Rect(left[layer], y, right[layer] - left[layer] - parts_width, height)}
        for part, offset in self._arrangement.offsets_of(node, height):
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
        arriving: dict[int, list[tuple[float, TopologyEdge]]] = {}
        for edge in self._arrangement.edges:
            y = self._arrangement.ends_of(edge)[-2].y
            arriving.setdefault(edge.target, []).append((y, edge))
        for target, edges in arriving.items():
            # Sorted by origin from top to bottom, so that lines do not cross where they end.
            edges.sort(key=lambda each: (each[0], each[1].source))
            ports = _ports(nodes[target], [y for y, _ in edges])
            for y, (_, edge) in zip(ports, edges, strict=True):
                routes[edge.source, edge.target] = self._route(edge, y, nodes, left, right)
        keys = [(edge.source, edge.target) for edge in self._arrangement.edges]
        return {key: routes[key] for key in keys}

    def _route(
        self,
        edge: TopologyEdge,
        arrival: float,
        nodes: Mapping[int, Rect],
        left: list[float],
        right: list[float],
    ) -> tuple[Point, ...]:
        first, last = self._layers[edge.source], self._layers[edge.target]
        start, end = (right[first], nodes[edge.source].middle), (left[last], arrival)
        if last == first + 1:
            return (start, end)
        y = self._arrangement.y_of_lane(edge)
        return (start, (left[first + 1], y), (right[last - 1], y), end)


def _ports(rect: Rect, heights: Sequence[float]) -> list[float]:
    """Return the heights at which lines end at a box, in the order of the heights they come from.

    A line that comes from a height that the box covers is straight, if there is room beside it.
    """
    half = rect.height / 2 - 6
    straight = [height for height in heights if abs(height - rect.middle) <= half]
    above = sum(height < rect.middle - half for height in heights)
    below = len(heights) - above - len(straight)
    if straight and all(low - high >= PORT_GAP - 2 for high, low in pairwise(straight)):
        ports = [
            *(straight[0] - PORT_GAP * count for count in range(above, 0, -1)),
            *straight,
            *(straight[-1] + PORT_GAP * count for count in range(1, below + 1)),
        ]
        if abs(ports[0] - rect.middle) <= half and abs(ports[-1] - rect.middle) <= half:
            return ports
    first = rect.middle - PORT_GAP * (len(heights) - 1) / 2
    return [first + PORT_GAP * position for position in range(len(heights))]


# --- tags on the lines of values that go to another node of the cluster --------------------------

TAG: Final = style_of(TCP).title
"""The text of a tag."""

TAG_WIDTH: Final = round(width_of(TAG, SMALL) + 8)
TAG_HEIGHT: Final = 15
"""The size of a tag."""

_PLACES: Final = (0.7, 0.55, 0.8, 0.45, 0.62, 0.35)  # sizes of values stand where lines begin


def tags_of(topology: Topology, layout: TopologyLayout) -> dict[tuple[int, int], Rect]:
    """Return the boxes of the tags, by the source and the target of their edge.

    A value crosses to each node once, so of several lines of one channel to a node one has a tag.
    It stands near the arrow and covers neither a box nor another tag. A line without room for one
    still has its dashes.
    """
    taken = list(layout.nodes.values())
    borders = [border for frame in layout.frames.values() for border in _borders(frame)]
    found: dict[tuple[int, int], Rect] = {}
    tagged: set[tuple[str | None, str | None]] = set()
    for edge in topology.edges:
        points = layout.routes.get((edge.source, edge.target))
        crossing = edge.channel, topology.frame_of(topology.nodes[edge.target])
        if edge.kind != TCP or points is None or crossing in tagged:
            continue
        boxes = [box for box in _places(points) if not _covers(box, taken)]
        if boxes:
            box = next((each for each in boxes if not _covers(each, borders)), boxes[0])
            found[edge.source, edge.target] = box
            taken.append(box)
            tagged.add(crossing)
    return found


def _borders(frame: Rect) -> list[Rect]:
    return [
        Rect(frame.x, frame.y, frame.width, 0),
        Rect(frame.x, frame.bottom, frame.width, 0),
        Rect(frame.x, frame.y, 0, frame.height),
        Rect(frame.right, frame.y, 0, frame.height),
    ]


def _places(points: tuple[Point, ...]) -> Iterator[Rect]:
    """Yield boxes on the last part of a line, and then on its first."""
    for (x, y), (to_x, to_y) in (points[-2:], points[:2]):
        for part in _PLACES:
            # A curve whose two middle points are in the middle, one at each height.
            bent = 3 * part * part - 2 * part**3
            middle = (x + to_x) / 2
            along = (1 - part) ** 3 * x + 3 * part * (1 - part) * middle + part**3 * to_x
            left, top = along - TAG_WIDTH / 2, y + (to_y - y) * bent - TAG_HEIGHT / 2
            yield Rect(round(left), round(top), TAG_WIDTH, TAG_HEIGHT)


def _covers(box: Rect, others: Sequence[Rect]) -> bool:
    return any(
        box.x < other.right + 2
        and other.x < box.right + 2
        and box.y < other.bottom + 1
        and other.y < box.bottom + 1
        for other in others
    )
