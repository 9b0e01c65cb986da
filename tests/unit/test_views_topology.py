# SPDX-License-Identifier: Apache-2.0
"""The topology of a plan against the graph that the plan was made of."""

from __future__ import annotations

import json

from hypothesis import given

from rcg.ir.graph import Graph
from rcg.ir.nodes import InputValue, MethodCall, Part, upstream_of
from rcg.ir.plan import Plan
from rcg.views.data.topology import Topology, topology_of
from tests.unit.random_graphs import Case, cases
from tests.unit.views_plans import Builder, planned


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


@given(cases())
def test_it_travels_as_json_and_does_not_depend_on_the_schedule(case: Case) -> None:
    plan = planned(case.graph)
    topology = topology_of(plan)
    data = json.loads(json.dumps(topology.to_json()))
    assert len(data["nodes"]) == len(topology.nodes)
    assert data["edges"][0].keys() == {"source", "target", "kind", "channel", "arguments"}
    assert topology_of(Plan.from_text(str(plan))) == topology


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
    assert pairs(topology) == [
        (0, 1),
        (1, 2),
        (1, 3),
        (1, 4),
        (2, 5),
        (3, 6),
        (4, 7),
        (5, 8),
        (6, 8),
        (7, 9),
        (7, 10),
        (9, 8),
        (10, 8),
    ]


def test_arguments_are_named_also_inside_containers() -> None:
    build = Builder(keys=(0, "mask"))
    left = build.call("a0", "f", 0)
    both = build.call("a1", "g", left, [left, 1], scale=1)
    topology = topology_of(build.plan(both, left, both))
    by_pair = {
        (str(topology.nodes[edge.source]), str(topology.nodes[edge.target])): edge.arguments
        for edge in topology.edges
    }
    assert by_pair["a0.f", "a1.g"] == ("0", "1")
    assert by_pair["attribute[mask]", "a1.g"] == ("1", "scale")
    assert by_pair["a1.g", "output"] == ("0", "2")
    assert by_pair["input", "attribute[mask]"] == ()


def test_ids_in_ray_come_from_the_caller_or_the_plan() -> None:
    build = Builder()
    plan = build.plan(build.call("a1", "g", build.call("a0", "f", 0)))
    known = topology_of(plan)
    given_ids = topology_of(plan, {"a1": "beef"})
    assert [actor.key for actor in given_ids.actors] == [known.actors[0].key, "beef"]


def test_what_an_output_takes_is_numbered_before_what_is_further_down() -> None:
    # As Ray does: its search goes upward too, so the end of a long branch comes early.
    build = Builder()
    value = 0
    for name in ("a", "b", "c", "d", "e"):
        value = build.call("a0", name, value)
    topology = topology_of(build.plan(build.call("a1", "short", 0), value))
    assert names(topology) == [
        "input",
        "a0.a",
        "a1.short",
        "a0.b",
        "output",
        "a0.c",
        "a0.e",
        "a0.d",
    ]
