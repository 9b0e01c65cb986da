# SPDX-License-Identifier: Apache-2.0
"""Layouts: nothing overlaps, lines run forward and touch no box on their way."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.compiler import compile_graph
from rcg.ir.plan import Plan
from rcg.views.data.arrangement import Sizes, layers_of
from rcg.views.data.blocks import Block, Connector, End, count_crossings
from rcg.views.data.layout import Rect, TopologyLayout, lay_out, tags_of
from rcg.views.data.topology import Topology, topology_of
from tests.unit.random_graphs import Case, cases, placements
from tests.unit.views_plans import Builder, planned, ring_of_stages, scatter_gather


def sized(topology: Topology, widths: list[int]) -> Sizes:
    """Boxes of all kinds of sizes."""
    return Sizes(
        nodes={
            node.id: (
                float(widths[node.id % len(widths)]),
                20.0 + widths[-1 - node.id % len(widths)] % 30,
            )
            for node in topology.nodes
        },
        actors={actor.id: float(widths[0]) for actor in topology.actors},
        head=40.0,
        frames={frame.id: float(widths[-1]) for frame in topology.frames},
        frame_head=25.0,
    )


def overlap(one: Rect, other: Rect) -> bool:
    return (
        one.x < other.right
        and other.x < one.right
        and one.y < other.bottom
        and other.y < one.bottom
    )


def check(topology: Topology, layout: TopologyLayout) -> None:
    nodes = layout.nodes
    assert nodes.keys() == {node.id for node in topology.nodes}
    assert layout.actors.keys() == {actor.id for actor in topology.actors}
    for one, other in combinations(nodes.values(), 2):
        assert not overlap(one, other)
    for one, other in combinations(layout.actors.values(), 2):
        assert not overlap(one, other)
    for node in topology.nodes:
        rect = nodes[node.id]
        assert rect.x >= 0 and rect.y >= 0
        assert rect.right <= layout.width and rect.bottom <= layout.height
        for process, box in layout.actors.items():
            if node.process == process:
                assert box.x <= rect.x and rect.right <= box.right
                assert box.y + 40 <= rect.y and rect.bottom <= box.bottom
            else:
                assert not overlap(rect, box)
    check_frames(topology, layout)
    check_lines(topology, layout)


def check_frames(topology: Topology, layout: TopologyLayout) -> None:
    used = {topology.frame_of(node) for node in topology.nodes}
    assert layout.frames.keys() == used - {None}
    for one, other in combinations(layout.frames.values(), 2):
        assert not overlap(one, other)
    for node in topology.nodes:
        boxes = [layout.nodes[node.id], *filter(None, [layout.actors.get(node.process)])]
        for name, frame in layout.frames.items():
            for box in boxes:
                if topology.frame_of(node) == name:
                    assert frame.x < box.x and box.right < frame.right
                    assert frame.y + 25 <= box.y and box.bottom < frame.bottom
                else:
                    assert not overlap(frame, box)
    tags = tags_of(topology, layout)
    kinds = {(edge.source, edge.target): edge.kind for edge in topology.edges}
    assert all(kinds[ends] == "tcp" for ends in tags)
    for one, other in combinations([*tags.values(), *layout.nodes.values()], 2):
        assert not overlap(one, other)


def check_lines(topology: Topology, layout: TopologyLayout) -> None:
    owned = {(node.owner, node.id) for node in topology.nodes if node.owner is not None}
    pairs = {(edge.source, edge.target) for edge in topology.edges}
    assert layout.routes.keys() == pairs - owned
    boxes = list(layout.nodes.values())
    for (source, target), points in layout.routes.items():
        assert points[0] == (layout.nodes[source].right, layout.nodes[source].middle)
        assert points[-1][0] == layout.nodes[target].x
        assert layout.nodes[target].y < points[-1][1] < layout.nodes[target].bottom
        for (x, y), (to_x, to_y) in pairwise(points):
            assert x <= to_x
            # A curve stays inside the rectangle of its ends, so a bounding box is a bound for it.
            swept = Rect(x, min(y, to_y), to_x - x, abs(y - to_y))
            assert not any(overlap(swept, box) for box in boxes)


@given(cases(max_calls=16, max_actors=6), st.lists(st.integers(20, 200), min_size=1, max_size=8))
def test_nothing_overlaps_in_random_graphs(case: Case, widths: list[int]) -> None:
    topology = topology_of(planned(case.graph))
    sizes = sized(topology, widths)
    layout = lay_out(topology, sizes)
    check(topology, layout)
    assert lay_out(topology_of(planned(case.graph)), sizes) == layout


@given(
    cases(max_calls=16, max_actors=6).flatmap(
        lambda case: st.tuples(st.just(case), placements(case.graph))
    ),
    st.lists(st.integers(20, 200), min_size=1, max_size=8),
)
def test_nothing_overlaps_where_there_are_several_nodes(
    placed: tuple[Case, tuple[dict[str, str], str]], widths: list[int]
) -> None:
    """Boxes are in the frame of their node, and no two frames overlap."""
    case, (nodes, driver) = placed
    topology = topology_of(compile_graph(case.graph, nodes, driver, 4).plan)
    check(topology, lay_out(topology, sized(topology, widths)))


@pytest.mark.parametrize("plan", [scatter_gather(62), ring_of_stages(8, 8), ring_of_stages(63, 4)])
def test_nothing_overlaps_in_large_graphs(plan: Plan) -> None:
    topology = topology_of(plan)
    check(topology, lay_out(topology, sized(topology, [90, 60, 130])))


def test_values_flow_forward() -> None:
    topology = topology_of(ring_of_stages(5, 4))
    layers = layers_of(topology)
    for edge in topology.edges:
        is_owned = topology.nodes[edge.target].owner == edge.source
        assert layers[edge.source] < layers[edge.target] or is_owned


def test_a_chain_is_a_straight_line() -> None:
    build = Builder()
    value = 0
    for i in range(6):
        value = build.call(f"a{i}", "fwd", value)
    topology = topology_of(build.plan(value))
    layout = lay_out(topology, sized(topology, [100]))
    assert {y for points in layout.routes.values() for _, y in points} == {layout.nodes[0].middle}


def test_a_scatter_is_symmetric() -> None:
    topology = topology_of(scatter_gather(4))
    layout = lay_out(topology, sized(topology, [100]))
    workers = [layout.nodes[node.id] for node in topology.nodes if node.name == "work"]
    middle = (workers[0].middle + workers[-1].middle) / 2
    for node in topology.nodes:
        if node.name != "work":
            assert abs(layout.nodes[node.id].middle - middle) <= 1


def test_an_untangled_order_is_found() -> None:
    # Bound in an order in which all lines would cross.
    build = Builder()
    first = [build.call(f"a{i}", "f", 0) for i in range(5)]
    second = [build.call(f"a{5 + i}", "g", first[4 - i]) for i in range(5)]
    topology = topology_of(build.plan(*second))
    layout = lay_out(topology, sized(topology, [100]))
    lines = [
        layout.routes[edge.source, edge.target]
        for edge in topology.edges
        if topology.nodes[edge.target].name == "g"
    ]
    assert len(lines) == 5
    for one, other in combinations(lines, 2):
        assert (one[0][1] < other[0][1]) == (one[-1][1] < other[-1][1])


def test_a_value_for_the_driver_does_not_cross_others() -> None:
    build = Builder()
    one, two = build.call("a0", "split", 0, num_returns=2)
    values = [build.call("a1", "even", one), build.call("a2", "odd", two), one]
    topology = topology_of(build.plan(*values))
    layout = lay_out(topology, sized(topology, [100]))
    first, last = (
        [layout.routes[edge.source, edge.target] for edge in topology.edges if edge.source == part]
        for part in (node.id for node in topology.nodes if node.kind == "part")
    )
    # Both ways of the first part stay on one side of the way of the last.
    assert {route[0][1] < last[0][0][1] for route in first} == {
        route[1][1] < last[0][1][1] for route in first
    }


def test_crossings_are_counted() -> None:
    block = Block(0, 0, 100.0, 0.0)
    ends = [End((block,), float(y)) for y in range(4)]

    def lines(*pairs: tuple[int, int], gap: int = 0) -> list[Connector]:
        return [Connector(ends[here], ends[there], gap) for here, there in pairs]

    assert count_crossings(lines((0, 0), (1, 1), (2, 2))) == 0
    assert count_crossings(lines((0, 2), (1, 1), (2, 0))) == 3
    assert count_crossings(lines((0, 3), (0, 1), (1, 2))) == 1
    # Lines that share an end meet there, and lines in different gaps never meet.
    assert count_crossings(lines((0, 1), (0, 2), (3, 2))) == 0
    assert count_crossings(lines((0, 3)) + lines((3, 0), gap=1)) == 0
