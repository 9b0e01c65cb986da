# SPDX-License-Identifier: Apache-2.0
"""The topology of a plan against the graph that the plan was made of."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rcg.ir.graph import Graph
from rcg.ir.nodes import InputValue, MethodCall, Part, upstream_of
from rcg.views.data.folding import LEVELS, Layout, Level, fold
from rcg.views.data.topology import Topology, topology_of
from tests.unit.random_graphs import Case, cases
from tests.unit.views_plans import Builder, all_to_all, planned, steps_around_allreduces
from tests.unit.views_traces import microbatches


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


def test_actors_are_alike_only_if_their_neighbours_are() -> None:
    """Two chains of workers: one of 12 ends in a sink, another one in a chain that goes on."""
    build = Builder()
    first = [build.call(f"a{at}", "work", 0) for at in range(24)]
    sink = build.call("a24", "take", *first[:12])
    rest = build.call("a25", "store", *first[12:])
    folded = fold(topology_of(build.plan(sink, rest)))
    assert [len(card.processes) for card in folded.cards] == [0, 12, 12, 1, 1, 0]


def test_actors_have_phases_where_several_meet_and_not_too_many() -> None:
    """As in each layer of a model; two that take turns do not meet several."""
    for plan in (steps_around_allreduces(3, 4), all_to_all(2), microbatches(3, 4)):
        topology = topology_of(plan)
        assert fold(topology) == fold(topology, layout="actors")
    assert len(fold(topology_of(all_to_all(3))).cards) == 8


def test_a_line_back_from_a_later_method_counts_for_what_an_earlier_one_feeds() -> None:
    build = Builder()
    first = build.call("a0", "first", 0)
    left, right = build.call("a1", "left", 0), build.call("a1", "right", 0)
    outputs = build.call("a2", "take", left), build.call("a0", "last", right), first
    folded = fold(topology_of(build.plan(*outputs)))
    (back,) = [line for line in folded.lines if line.is_back]
    ends = [folded.rows[row].nodes[0].name for row in (back.source, back.target)]
    assert ends == ["right", "last"]
    assert [card.layer for card in folded.cards] == [0, 1, 2, 3, 4]
