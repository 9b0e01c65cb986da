# SPDX-License-Identifier: Apache-2.0
"""Where a topology says TCP: on the lines of values that go to another node of the cluster.

A tag stands on its line, near the arrow, and covers neither a box nor another tag. A line without
room for one still has its dashes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rcg.views.data.edge_styles import TCP, style_of
from rcg.views.data.layout import Point, Rect, TopologyLayout
from rcg.views.data.lettering import SMALL, width_of
from rcg.views.data.topology import Topology

TAG: Final = style_of(TCP).title
"""The text of a tag."""

TAG_WIDTH: Final = round(width_of(TAG, SMALL) + 8)
TAG_HEIGHT: Final = 15
"""The size of a tag."""

_PLACES: Final = (0.7, 0.55, 0.8, 0.45, 0.62, 0.35)  # sizes of values stand where lines begin


def tags_of(topology: Topology, layout: TopologyLayout) -> dict[tuple[int, int], Rect]:
    """Return the boxes of the tags, by the source and the target of their edge.

    A value crosses to each node once, so of several lines of one channel to a node one has a tag.
    """
    taken = list(layout.nodes.values())
    borders = [border for frame in layout.frames.values() for border in _borders(frame)]
    found: dict[tuple[int, int], Rect] = {}
    told: set[tuple[str | None, str | None]] = set()
    for edge in topology.edges:
        points = layout.routes.get((edge.source, edge.target))
        crossing = edge.channel, topology.frame_of(topology.nodes[edge.target])
        if edge.kind != TCP or points is None or crossing in told:
            continue
        boxes = [box for box in map(_box_at, _places(points)) if not _covers(box, taken)]
        if boxes:
            box = next((each for each in boxes if not _covers(each, borders)), boxes[0])
            found[edge.source, edge.target] = box
            taken.append(box)
            told.add(crossing)
    return found


def _box_at(point: Point) -> Rect:
    x, y = point
    return Rect(round(x - TAG_WIDTH / 2), round(y - TAG_HEIGHT / 2), TAG_WIDTH, TAG_HEIGHT)


def _borders(frame: Rect) -> list[Rect]:
    return [
        Rect(frame.x, frame.y, frame.width, 0),
        Rect(frame.x, frame.bottom, frame.width, 0),
        Rect(frame.x, frame.y, 0, frame.height),
        Rect(frame.right, frame.y, 0, frame.height),
    ]


def _places(points: tuple[Point, ...]) -> Iterator[Point]:
    """Yield points on the last part of a line, and then on its first."""
    for (x, y), (to_x, to_y) in (points[-2:], points[:2]):
        for part in _PLACES:
            # A curve whose two middle points are in the middle, one at each height.
            bent = 3 * part * part - 2 * part**3
            middle = (x + to_x) / 2
            along = (1 - part) ** 3 * x + 3 * part * (1 - part) * middle + part**3 * to_x
            yield along, y + (to_y - y) * bent


def _covers(box: Rect, others: Sequence[Rect]) -> bool:
    return any(
        box.x < other.right + 2
        and other.x < box.right + 2
        and box.y < other.bottom + 1
        and other.y < box.bottom + 1
        for other in others
    )
