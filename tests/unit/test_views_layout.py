# SPDX-License-Identifier: Apache-2.0
"""Layouts: nothing overlaps, and lines touch no card on their way."""

from __future__ import annotations

from itertools import combinations, pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.compiler import compile_graph
from rcg.ir.plan import Plan
from rcg.views.data.folding import LEVELS, Folded, Level, fold
from rcg.views.data.layout import Rect, RowSize, Sizes, TopologyLayout, lay_out
from rcg.views.data.topology import topology_of
from tests.unit.random_graphs import Case, cases, placements
from tests.unit.views_plans import (
    Builder,
    all_to_all,
    planned,
    ring_of_stages,
    scatter_gather,
    steps_around_allreduces,
)

HEAD, ROW, FRAME_HEAD = 25.0, 26.0, 24.0


def sized(folded: Folded, widths: list[int], room: float = inf) -> Sizes:
    """Cards of all kinds of sizes."""
    return Sizes(
        cards={
            card.id: (float(widths[card.id % len(widths)]), HEAD + ROW * len(card.rows) + 7)
            for card in folded.cards
        },
        rows={
            row.id: RowSize(HEAD + ROW * place, ROW - 4, 5, 5)
            for card in folded.cards
            for place, row in enumerate(card.rows)
        },
        lines={at: float(widths[at % len(widths)]) for at in range(0, len(folded.lines), 3)},
        frames={frame.id: float(widths[-1]) for frame in folded.topology.frames},
        frame_head=FRAME_HEAD,
        room=room,
    )


def check(folded: Folded, layout: TopologyLayout) -> None:
    cards, rows = layout.cards, layout.rows
    assert cards.keys() == {card.id for card in folded.cards}
    assert rows.keys() == {row.id for row in folded.rows}
    for one, other in combinations([*cards.values()], 2):
        assert not one.overlaps(other)
    for one, other in combinations([*rows.values()], 2):
        assert not one.overlaps(other)
    for card in folded.cards:
        rect = cards[card.id]
        assert rect.x >= 0 and rect.y >= 0
        assert rect.right <= layout.width and rect.bottom <= layout.height
        for row in card.rows:
            assert rect.x <= rows[row.id].x and rows[row.id].right <= rect.right
            assert rect.y <= rows[row.id].y and rows[row.id].bottom <= rect.bottom
    check_frames(folded, layout)
    check_lines(folded, layout)
    check_turns(folded, layout)


def check_frames(folded: Folded, layout: TopologyLayout) -> None:
    assert layout.frames.keys() == {card.frame for card in folded.cards} - {None}
    pieces = [(name, piece) for name, found in layout.frames.items() for piece in found]
    for (_, one), (_, other) in combinations(pieces, 2):
        assert not one.overlaps(other)
    for card in folded.cards:
        box = layout.cards[card.id]
        around = [name for name, piece in pieces if piece.overlaps(box)]
        assert around == [card.frame] * (card.frame is not None)
        for piece in layout.frames.get(card.frame or "", ()):
            if piece.overlaps(box):
                assert piece.x < box.x and box.right < piece.right
                assert piece.y + FRAME_HEAD <= box.y and box.bottom < piece.bottom
    for name, piece in pieces:
        inside = [card for card in folded.cards if piece.overlaps(layout.cards[card.id])]
        assert inside and {card.frame for card in inside} == {name}


def check_lines(folded: Folded, layout: TopologyLayout) -> None:
    between = {at for at, line in enumerate(folded.lines) if not folded.is_inside(line)}
    assert layout.routes.keys() == between
    boxes = list(layout.cards.values())
    for at, points in layout.routes.items():
        line = folded.lines[at]
        ends = (line.target, line.source) if line.is_back else (line.source, line.target)
        left, right = (layout.rows[row] for row in ends)
        assert points[0][0] == layout.cards[folded.rows[ends[0]].card].right
        assert points[-1][0] == layout.cards[folded.rows[ends[1]].card].x
        assert left.y < points[0][1] < left.bottom and right.y < points[-1][1] < right.bottom
        for (x, y), (to_x, to_y) in pairwise(points):
            assert 0 <= x <= layout.width and 0 <= y <= layout.height
            # A curve stays inside the rectangle of its ends, so a bounding box is a bound for it.
            swept = Rect(min(x, to_x), min(y, to_y), abs(to_x - x), abs(y - to_y))
            assert not any(swept.overlaps(box) for box in boxes)


def check_turns(folded: Folded, layout: TopologyLayout) -> None:
    """Lines around the ends of two rows lie on each other only if they have a common end."""
    ways: dict[tuple[float, float], set[int]] = {}
    for at, points in layout.routes.items():
        for (x, y), (to_x, to_y) in pairwise(points[1:-1]):
            if y == to_y and x > to_x:
                ways.setdefault((x, y), set()).add(at)
    for together in ways.values():
        for one, other in combinations([folded.lines[at] for at in together], 2):
            assert {one.source, one.target} & {other.source, other.target}


widths_of = st.lists(st.integers(20, 200), min_size=1, max_size=8)
rooms = st.sampled_from([300.0, 500.0, 1000.0, inf])


@given(cases(max_calls=16, max_actors=6), widths_of, rooms, st.sampled_from(LEVELS))
def test_nothing_overlaps_in_random_graphs(
    case: Case, widths: list[int], room: float, level: Level
) -> None:
    folded = fold(topology_of(planned(case.graph)), level)
    sizes = sized(folded, widths, room)
    layout = lay_out(folded, sizes)
    check(folded, layout)
    assert lay_out(fold(topology_of(planned(case.graph)), level), sizes) == layout


@given(
    cases(max_calls=16, max_actors=6).flatmap(
        lambda case: st.tuples(st.just(case), placements(case.graph))
    ),
    widths_of,
    rooms,
)
def test_nothing_overlaps_where_there_are_several_nodes(
    placed: tuple[Case, tuple[dict[str, str], str]], widths: list[int], room: float
) -> None:
    """Cards are in a frame of their node, frames do not overlap, and none is empty."""
    case, (nodes, driver) = placed
    folded = fold(topology_of(compile_graph(case.graph, nodes, driver, 4).plan))
    check(folded, lay_out(folded, sized(folded, widths, room)))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "plan",
    [
        scatter_gather(62),
        ring_of_stages(8, 8),
        ring_of_stages(63, 4),
        steps_around_allreduces(63),
        all_to_all(8),
    ],
)
def test_nothing_overlaps_in_large_graphs(plan: Plan, level: Level) -> None:
    folded = fold(topology_of(plan), level)
    layout = lay_out(folded, sized(folded, [90, 60, 130], 1000))
    check(folded, layout)
    assert layout.width <= 1000


def test_an_untangled_order_is_found() -> None:
    # Bound in an order in which all lines would cross.
    build = Builder()
    first = [build.call(f"a{i}", "f", 0) for i in range(5)]
    second = [build.call(f"a{5 + i}", "g", first[4 - i]) for i in range(5)]
    folded = fold(topology_of(build.plan(*second)))
    layout = lay_out(folded, sized(folded, [100]))
    lines = [
        layout.routes[at]
        for at, line in enumerate(folded.lines)
        if folded.rows[line.target].nodes[0].name == "g"
    ]
    assert len(lines) == 5
    for one, other in combinations(lines, 2):
        assert (one[0][1] < other[0][1]) == (one[-1][1] < other[-1][1])
