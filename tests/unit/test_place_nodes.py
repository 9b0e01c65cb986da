# SPDX-License-Identifier: Apache-2.0
"""Graphs whose actors are on several nodes of the cluster: nodes, gates, and what crosses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.compiler import compile_graph
from rcg.compiler.lanes import with_lanes
from rcg.compiler.place import place
from rcg.compiler.schedule import schedule
from rcg.compiler.simulate import simulate
from rcg.errors import DeadlockError, PlacementError
from rcg.ir.channels import LOCAL, ClusterNode, Gate
from rcg.ir.costs import Cost
from rcg.ir.graph import Graph
from rcg.ir.ids import DRIVER
from rcg.ir.nodes import TensorHint
from rcg.ir.ops import Call, Pass
from rcg.ir.plan import Plan
from rcg.ir.programs import MAX_LINKS, MAX_PROCESSES, Program
from tests.unit.graphs_by_hand import call, graph, input_value, site
from tests.unit.random_graphs import Case, cases, placements

GLOO = TensorHint("gloo", site(7))


FAN = graph(
    input_value(0),
    call(1, "a0", 0),
    call(2, "a1", 1),
    call(3, "a2", 1),
    call(4, "a3", 1),
    outputs=(2, 3, 4),
)
"""One stage whose value three others read."""


def planned(graph: Graph, nodes: str, driver: str = "x", **options: Any) -> Plan:
    """Compile for actors on the nodes of these one-letter names."""
    locations = {actor.id: node for actor, node in zip(graph.actors, nodes, strict=True)}
    return compile_graph(graph, locations, driver, 4, **options).plan


def test_a_value_crosses_to_each_node_once_and_its_channel_stays_one():
    plan = planned(FAN, "xxyz")
    assert plan.nodes == (
        ClusterNode("n0", "x", (DRIVER, "a0", "a1")),
        ClusterNode("n1", "y", ("a2",)),
        ClusterNode("n2", "z", ("a3",)),
    )
    assert plan.gates == (Gate("n0", DRIVER), Gate("n1", "a2"), Gate("n2", "a3"))
    assert str(plan.channels[1]) == "channel c1 a0 -> a1 a2 a3 ring node=1 slots=4"
    assert plan.crossings() == {"c1": ("n1", "n2"), "c3": ("n0",), "c4": ("n0",)}
    assert plan.programs[-3:] == (
        Program("n0", (Pass("c3"), Pass("c4"))),
        Program("n1", (Pass("c1"),)),
        Program("n2", (Pass("c1"),)),
    )
    alone = planned(FAN, "xxxx")
    assert (alone.nodes, alone.gates, alone.channels) == ((), (), plan.channels)
    assert alone.programs == plan.programs[:-3]


def test_the_first_node_is_the_drivers_and_others_come_by_their_first_actor():
    plan = planned(FAN, "zxyz", driver="y")
    assert [(node.key, node.processes) for node in plan.nodes] == [
        ("y", (DRIVER, "a2")),
        ("z", ("a0", "a3")),
        ("x", ("a1",)),
    ]


def test_gates_are_not_predicted():
    plan = planned(FAN, "xxyz", costs=[Cost("call", 1, 1000)])
    assert [each.process for each in plan.predicted] == [DRIVER, "a0", "a1", "a2", "a3"]


def test_a_deadlock_between_nodes_is_refused_and_shows_no_gates():
    built = graph(
        input_value(0), call(1, "a0", 0), call(2, "a1", 1), call(3, "a0", 2), outputs=(3,)
    )
    placed = place(built, {"a0": "x", "a1": "y"}, "x", 4)
    with pytest.raises(DeadlockError, match=r"a0 .* waits for a1 .*, a1 .* waits for a0") as caught:
        simulate(placed)
    assert "Pass" not in str(caught.value.programs)
    simulate(schedule(placed))


# --- how many -----------------------------------------------------------------------------------


def star(*counts: int, hint: TensorHint | None = None) -> tuple[Graph, str]:
    """A stage for each of so many actors on each node, and the nodes; each reads the one before."""
    where = "".join(name * count for name, count in zip("xyz", counts, strict=False))
    calls = [call(1, "a0", 0, hint=hint)]
    calls += [call(1 + at, f"a{at}", at, hint=hint) for at in range(1, len(where))]
    return graph(input_value(0), *calls, outputs=(len(where),)), where


def test_each_node_has_room_for_as_many_processes():
    built, where = star(MAX_PROCESSES - 2, MAX_PROCESSES - 1, MAX_PROCESSES - 1)
    plan = planned(built, where)
    assert len(plan.programs) == 3 * MAX_PROCESSES
    assert {len(plan.processes_of(node.id)) for node in plan.nodes} == {MAX_PROCESSES}
    assert len(planned(*star(MAX_PROCESSES - 1)).programs) == MAX_PROCESSES


@pytest.mark.parametrize(
    ("counts", "what", "location"),
    [
        ((MAX_PROCESSES, 0), r"65 processes on one node \(the driver, 64 actors\)", None),
        ((MAX_PROCESSES - 1, 1), r"65 .* on the node x \(the driver, 63 actors, a gate\)", "x"),
        ((1, MAX_PROCESSES), r"65 processes on the node y \(64 actors, a gate\)", "y"),
    ],
)
def test_too_many_processes_on_a_node_are_refused_by_its_name(
    counts: Any, what: str, location: str | None
):
    built, where = star(*counts)
    with pytest.raises(
        PlacementError, match=f"{what}, and at most 64 can share channels on a node: use fewer"
    ) as caught:
        planned(built, where)
    assert caught.value.location == location


def test_lanes_count_on_their_node():
    built, where = star(2, 25, hint=GLOO)
    assert planned(built, where).node_of("a26") == "n1"
    with pytest.raises(
        PlacementError,
        match=r"on the node y \(25 actors, \d+ lanes, a gate\).*: compile without overlap, use",
    ):
        planned(built, where, overlap=True)


@pytest.mark.parametrize("count", [MAX_LINKS, MAX_LINKS + 1])
def test_a_process_sends_to_so_many_nodes(count):
    calls = [call(1 + at, f"a{at}", 0) for at in range(count)]
    built = graph(input_value(0), *calls, outputs=tuple(range(1, 1 + count)))
    where = "".join(chr(ord("一") + at) for at in range(count))
    if count <= MAX_LINKS:
        assert len(planned(built, where).nodes) == 1 + count
        return
    with pytest.raises(PlacementError, match=r"driver would send to 65 other nodes, .* most 64: "):
        planned(built, where)


# --- any graph, anywhere ------------------------------------------------------------------------


def check_nodes(plan: Plan, locations: dict[str, str], driver: str) -> None:
    """Compare what a plan says of nodes with where its processes were."""
    where = {DRIVER: driver, **locations} | {lane.id: locations[lane.actor] for lane in plan.lanes}
    if len({*where.values()}) == 1:
        assert (plan.nodes, plan.gates, plan.crossings()) == ((), (), {})
        return
    keys = {node.id: node.key for node in plan.nodes}
    gates = {gate.id for gate in plan.gates}
    assert {
        process: keys[plan.node_of(process)] for process in plan.processes() if process not in gates
    } == where
    crossings = plan.crossings()
    for channel in plan.channels:
        far = {where[reader] for reader in channel.readers} - {where[channel.writer]}
        assert {keys[node] for node in crossings.get(channel.id, ())} == far
        assert not far or channel.kind != LOCAL
    for node in plan.nodes:
        arriving = [
            Pass(each.id) for each in plan.channels if node.id in crossings.get(each.id, ())
        ]
        assert (node.id in gates) == bool(arriving)
        if arriving:
            assert list(plan.program(node.id).ops) == arriving
            assert plan.host_of(node.id) == plan.host_of_node(node.id) == node.processes[0]


@given(st.one_of(cases(), cases(has_tensors=True)), st.data(), st.booleans())
def test_any_graph_on_any_nodes_is_compiled(case: Case, data: st.DataObject, overlap: bool):
    locations, driver = data.draw(placements(case.graph))
    plan = compile_graph(case.graph, locations, driver, 3, overlap=overlap).plan
    plan.check()
    check_nodes(plan, locations, driver)
    assert Plan.from_text(str(plan)) == plan == Plan.from_json(plan.to_json())
    assert plan == compile_graph(case.graph, locations, driver, 3, overlap=overlap).plan
    crossings, gates = plan.crossings(), {gate.id for gate in plan.gates}
    for process, sources in plan.memory_sources.items():
        assert {plan.node_of(each) for each in sources} <= {plan.node_of(process)}
        arrives = any(process in each.readers for each in plan.channels if each.id in crossings)
        assert not arrives or plan.node_of(process) in {*sources} & gates or process in sources


@given(st.one_of(cases(), cases(has_tensors=True)), st.data(), st.booleans())
def test_where_actors_are_changes_nothing_but_nodes_and_gates(
    case: Case, data: st.DataObject, overlap: bool
):
    locations, driver = data.draw(placements(case.graph))
    plan = compile_graph(case.graph, locations, driver, 3, overlap=overlap).plan
    here = dict.fromkeys(locations, driver)
    gates = {gate.id for gate in plan.gates}
    programs = tuple([each for each in plan.programs if each.process not in gates])
    alone = replace(plan, programs=programs, nodes=(), gates=())
    assert alone == compile_graph(case.graph, here, driver, 3, overlap=overlap).plan


@given(cases(has_tensors=True), st.data())
def test_passes_leave_gates_as_they_are(case: Case, data: st.DataObject):
    locations, driver = data.draw(placements(case.graph))
    placed = place(case.graph, locations, driver, 3)
    placed.check()
    for plan in (schedule(placed), with_lanes(placed), schedule(with_lanes(placed))):
        plan.check()
        assert plan.nodes == placed.nodes
        assert plan.gates == placed.gates
        for gate in plan.gates:
            assert plan.program(gate.id) == placed.program(gate.id)
    assert not any(
        isinstance(op, Call) for gate in placed.gates for op in placed.program(gate.id).ops
    )
