# SPDX-License-Identifier: Apache-2.0
"""The layout of Graphviz's ``dot``: its input for a folded topology, and its answer.

A card is a table with a cell for each row, at which lines end. Lines backward are given from their
target to their source, so that ``dot`` puts cards in the same order as rcg does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rcg.views.data.folding import Card, Folded
from rcg.views.data.layout import Point, Rect, Sizes, TopologyLayout

_PER_INCH: Final = 72.0
_TEXT_GAP: Final = 22.0  # beside the text on a line, with its arrow


def source_of(folded: Folded, sizes: Sizes) -> str:
    """Return what ``dot`` is to lay out."""
    gap = max([sizes.spacing.columns, *[width + _TEXT_GAP for width in sizes.lines.values()]])
    lines = [
        "digraph {",
        f"rankdir=LR newrank=true ranksep={1.5 * gap / _PER_INCH:g} nodesep=0.25",
        "node [shape=plain fontsize=1] edge [arrowhead=none]",
        *[f"{card.id} [label=<{_table(card, sizes)}>]" for card in folded.cards],
    ]
    for frame in folded.topology.frames:
        inside = "; ".join(str(card.id) for card in folded.cards if card.frame == frame.id)
        head = f'label=<<TABLE BORDER="0" WIDTH="{sizes.frames[frame.id]:g}" HEIGHT="18"><TR><TD>'
        lines.append(
            f"subgraph cluster_{frame.id} {{ margin=12 {head}</TD></TR></TABLE>> {inside} }}"
        )
    for at, line in enumerate(folded.lines):
        if not folded.is_inside(line):
            left, right = (line.source, line.target)[:: -1 if line.is_back else 1]
            here, there = (f"{folded.rows[row].card}:{row}" for row in (left, right))
            lines.append(f"{here}:e -> {there}:w [id={at}]")
    return "\n".join([*lines, "}"])


def _table(card: Card, sizes: Sizes) -> str:
    width, height = sizes.cards[card.id]
    cells, y = [], 0.0
    for row in card.rows:
        size = sizes.rows[row.id]
        cells += [("", size.top - y), (f' PORT="{row.id}"', size.height)]
        y = size.top + size.height
    cells.append(("", height - y))
    rows = "".join(
        f'<TR><TD{port} FIXEDSIZE="TRUE" WIDTH="{width:g}" HEIGHT="{high:g}"></TD></TR>'
        for port, high in cells
        if high
    )
    return f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="0">{rows}</TABLE>'


def layout_of(folded: Folded, sizes: Sizes, answer: Mapping[str, Any]) -> TopologyLayout:
    """Return the positions in the answer of ``dot``, as JSON; its y grows upward."""
    left, low, right, high = _numbers(answer["bb"])
    cards, rows, frames = {}, {}, {}
    for each in answer.get("objects", ()):
        if "bb" in each:
            x, bottom, to_x, top = _numbers(each["bb"])
            rect = Rect(x - left, high - top, to_x - x, top - bottom)
            frames[each["name"].removeprefix("cluster_")] = [rect]
            continue
        card = folded.cards[int(each["name"])]
        (x, y), (width, height) = _numbers(each["pos"]), sizes.cards[card.id]
        rect = Rect(round(x - left - width / 2), round(high - y - height / 2), width, height)
        cards[card.id] = rect
        for row in card.rows:
            size = sizes.rows[row.id]
            room = width - size.left - size.right
            rows[row.id] = Rect(rect.x + size.left, rect.y + size.top, room, size.height)
    routes: dict[int, tuple[Point, ...]] = {}
    for each in answer.get("edges", ()):
        points = [_numbers(point) for point in each["pos"].split()]
        routes[int(each["id"])] = tuple((round(x - left, 1), round(high - y, 1)) for x, y in points)
    return TopologyLayout(cards, rows, routes, right - left, high - low, frames, is_curved=True)


def _numbers(text: str) -> list[float]:
    return [float(each) for each in text.split(",")]
