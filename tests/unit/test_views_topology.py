# SPDX-License-Identifier: Apache-2.0
"""The topology of a plan against the graph that the plan was made of."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rcg.ir.graph import Graph
from rcg.ir.nodes import InputValue, MethodCall, Part, upstream_of
from rcg.views.data.folding import LEVELS, Folded, Layout, Level, fold
from rcg.views.data.topology import Topology, topology_of
from tests.unit.random_graphs import Case, cases
from tests.unit.views_plans import (
    Builder,
    all_to_all,
    planned,
    scatter_gather,
    steps_around_allreduces,
)


def counted(graph: Graph) -> tuple[int, int]:
    """How many nodes and edges a drawing of a graph must have."""
    keys = [node for node in graph.nodes if isinstance(node, InputValue) and node.key is not None]
    used = {
        value for node in graph.nodes if isinstance(node, MethodCall) for value in upstream_of(node)
    }
    used |= set(graph.outputs)
    parts = [node for node in graph.nodes if isinstance(node, Part) and node.id in used]
    calls = [node for node in graph.nodes if isinstance(node, MethodCall)]
    edges = sum(len(set(upstream_of(call))) for call in calls) + len(set(graph.outputs))
    return 2 + len(keys) + len(calls) + len(parts), edges + len(keys) + len(parts)


@given(cases())
def test_it_has_every_node_and_edge_once(case: Case) -> None:
    topology = topology_of(planned(case.graph))
    assert (len(topology.nodes), len(topology.edges)) == counted(case.graph)
    assert [node.id for node in topology.nodes] == list(range(len(topology.nodes)))
    assert len({(edge.source, edge.target) for edge in topology.edges}) == len(topology.edges)


@given(cases())
def test_an_edge_has_a_channel_if_and_only_if_it_leaves_its_process(case: Case) -> None:
    plan = planned(case.graph)
    topology, channels = topology_of(plan), plan.channels_by_id()
    for edge in topology.edges:
        source, target = topology.nodes[edge.source], topology.nodes[edge.target]
        assert (edge.channel is None) == (source.process == target.process)
        assert edge.kind == ("local" if edge.channel is None else "shm")
        if edge.channel is not None:
            assert channels[edge.channel].writer == source.process
            assert target.process in channels[edge.channel].readers
        is_owned = target.owner == edge.source
        assert bool(edge.arguments) != is_owned
    drawn = {(edge.channel, topology.nodes[edge.target].process) for edge in topology.edges}
    assert drawn - {(None, process) for _, process in drawn} == {
        (channel.id, reader) for channel in plan.channels for reader in channel.readers
    }


def names(topology: Topology) -> list[str]:
    return [str(node) for node in topology.nodes]


def pairs(topology: Topology) -> list[tuple[int, int]]:
    return [(edge.source, edge.target) for edge in topology.edges]


def test_nodes_are_numbered_as_ray_does() -> None:
    # The example of Ray's own documentation of its text format.
    build = Builder()
    one, two, three = build.call("a0", "return_three", 0, num_returns=3)
    four, five = build.call("a1", "echo", one), build.call("a1", "echo", two)
    six, seven = build.call("a1", "return_two", three, num_returns=2)
    topology = topology_of(build.plan(four, five, six, seven))
    assert names(topology)[:5] == ["input", "a0.return_three", "part[0]", "part[1]", "part[2]"]
    assert names(topology)[5:8] == ["a1.echo", "a1.echo", "a1.return_two"]
    assert names(topology)[8:] == ["output", "part[0]", "part[1]"]


# --- folding -------------------------------------------------------------------------------------


def written(folded: Folded) -> list[str]:
    """Each line as text: ``a0.forward 4> a1.forward``, and ``<`` for one that goes back."""

    def name(row: int) -> str:
        card, first = folded.card_of(row), folded.rows[row].nodes[0]
        return ".".join(filter(None, [",".join(card.processes), first.name])) or first.kind

    return [
        f"{name(line.source)} {len(line.edges)}{'<' if line.is_back else '>'} {name(line.target)}"
        for line in folded.lines
    ]


def pipeline(stages: int, batches: int) -> Topology:
    """1F1B: forward through the stages and back, once for each micro-batch."""
    build = Builder()
    values = []
    for _ in range(batches):
        value = 0
        for stage in range(stages):
            value = build.call(f"a{stage}", "forward", value)
        for stage in reversed(range(stages)):
            value = build.call(f"a{stage}", "backward", value)
        values.append(value)
    return topology_of(build.plan(*values))


@given(
    cases(max_calls=16, kinds=["allreduce"]),
    st.sampled_from(LEVELS),
    st.sampled_from(["phases", "actors"]),
)
def test_folding_keeps_every_node_and_every_edge_once(
    case: Case, level: Level, layout: Layout
) -> None:
    topology = topology_of(planned(case.graph))
    folded = fold(topology, level, layout)
    drawn = [node for row in folded.rows for node in row.nodes]
    left_out = {node for node in topology.nodes if node not in drawn}
    assert len(drawn) == len({node.id for node in drawn})
    assert {node.kind for node in left_out} <= {"part", "input"}
    owned = {(node.owner, node.id) for node in topology.nodes}
    edges = [edge for line in folded.lines for edge in line.edges]
    assert sorted(pairs(replace(topology, edges=tuple(edges)))) == sorted(
        set(pairs(topology)) - owned
    )
    for line in folded.lines:
        here, there = folded.card_of(line.source), folded.card_of(line.target)
        assert line.is_back == (here.id > there.id)
        assert folded.is_inside(line) or line.is_back == (here.layer > there.layer)
    if level == "calls":
        assert all(len(row.nodes) == 1 for row in folded.rows)
    assert fold(topology, level, layout) == folded


def test_a_pipeline_is_one_box_for_each_method_of_an_actor_and_one_line_between_two() -> None:
    folded = fold(pipeline(8, 16))
    assert [card.kind for card in folded.cards] == ["input", *["actor"] * 8, "output"]
    assert [card.layer for card in folded.cards[:-1]] == list(range(9))
    boxes = [[(row.nodes[0].name, len(row.nodes)) for row in card.rows] for card in folded.cards]
    assert boxes[1:-1] == [[("forward", 16), ("backward", 16)]] * 8
    between = [f"a{at}.forward 16> a{at + 1}.forward" for at in range(7)]
    back = [f"a{at + 1}.backward 16< a{at}.backward" for at in range(7)]
    ends = ["input 16> a0.forward", "a7.forward 16> a7.backward", "a0.backward 16> output"]
    assert sorted(written(folded)) == sorted([*between, *back, *ends])


def test_around_a_collective_an_actor_has_a_card_for_each_phase() -> None:
    topology = topology_of(steps_around_allreduces(3, 2))
    folded = fold(topology)
    cards = [
        (card.layer, card.kind, "".join(card.processes), [row.nodes[0].name for row in card.rows])
        for card in folded.cards
    ]
    ranks = [f"a{at}" for at in range(3)]
    assert cards == [
        (0, "input", "", [""]),
        *[(1, "actor", each, ["fwd"]) for each in ranks],
        (2, "collective", "", ["allreduce"]),
        *[(3, "actor", each, ["step", "fwd"]) for each in ranks],
        (4, "collective", "", ["allreduce"]),
        *[(5, "actor", each, ["step"]) for each in ranks],
        (6, "output", "", [""]),
    ]
    assert not any(line.is_back for line in folded.lines)
    assert len(fold(topology, layout="actors").cards) == 6
    many = topology_of(steps_around_allreduces(3, 4))  # as in each layer of a model
    assert fold(many) == fold(many, layout="actors")


def test_actors_that_exchange_values_with_several_have_phases_too() -> None:
    folded = fold(topology_of(all_to_all(4)))
    assert [card.layer for card in folded.cards] == [0, *[1] * 4, *[2] * 4, 3]
    assert not any(line.is_back for line in folded.lines)
    for plan in (all_to_all(2), pipeline(3, 4)):
        topology = plan if isinstance(plan, Topology) else topology_of(plan)
        assert fold(topology) == fold(topology, layout="actors")


def test_many_alike_actors_are_one_card() -> None:
    assert len(fold(topology_of(scatter_gather(8))).cards) == 11
    folded = fold(topology_of(scatter_gather(26)))
    workers = ",".join(f"a{at}" for at in range(26))
    assert written(folded) == [
        f"input 26> {workers}.work",
        f"{workers}.work 26> a26.reduce",
        "a26.reduce 1> output",
    ]
    assert len(fold(topology_of(scatter_gather(26)), "actors").cards) == 29


def test_actors_are_alike_only_if_their_neighbours_are() -> None:
    """Two chains of workers: one of 12 ends in a sink, another one in a chain that goes on."""
    build = Builder()
    first = [build.call(f"a{at}", "work", 0) for at in range(24)]
    sink = build.call("a24", "take", *first[:12])
    rest = build.call("a25", "store", *first[12:])
    folded = fold(topology_of(build.plan(sink, rest)))
    assert [len(card.processes) for card in folded.cards] == [0, 12, 12, 1, 1, 0]


def test_a_line_back_from_a_later_method_counts_for_what_an_earlier_one_feeds() -> None:
    build = Builder()
    first = build.call("a0", "first", 0)
    left, right = build.call("a1", "left", 0), build.call("a1", "right", 0)
    outputs = build.call("a2", "take", left), build.call("a0", "last", right), first
    folded = fold(topology_of(build.plan(*outputs)))
    assert "a1.right 1< a0.last" in written(folded)
    assert [card.layer for card in folded.cards] == [0, 1, 2, 3, 4]
