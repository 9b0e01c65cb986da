# SPDX-License-Identifier: Apache-2.0
"""Views of plans and traces over several nodes of the cluster."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from rcg.compiler import compile_graph
from rcg.ir.plan import Plan
from rcg.trace.measured import summarize
from rcg.trace.model import NO_PEER, Clock, GraphTrace, OpenOp
from rcg.trace.trace import Trace
from rcg.views.data.topology import topology_of
from rcg.views.scene import WIRE
from rcg.views.scenes.schedule import schedule_scene
from rcg.views.scenes.timeline import timeline_scene
from rcg.views.svg.pictures import timeline_picture
from rcg.views.text import ascii_of, dot_of
from tests.unit.graphs_by_hand import call, graph, input_value, stages
from tests.unit.traces import event, graph_trace, measure

GRAPH = graph(
    input_value(0),
    call(1, "a0", 0, method="make"),
    call(2, "a2", 1, method="work"),
    call(3, "a1", 1, 2, method="join"),
    actors=stages("Stage", "Beside", "Far"),
)
NODES = {"a0": "cafe", "a1": "cafe", "a2": "beef"}
PLAN = compile_graph(GRAPH, NODES, "cafe", 4).plan
TEXT = re.sub("  Free s0, .*\n", "", str(PLAN))  # what actors free is not looked at here

GATE = [event(0, 0, 0, 130, waited=120, bytes=64), event(0, 1, 130, 260, waited=110, bytes=64)]
ROWS = {
    "driver": [event(1, 0, 0, 10), event(3, 0, 10, 300, waited=280)],
    "a0": [event(0, 0, 0, 20, waited=10), event(1, 0, 20, 90), event(2, 0, 90, 100)],
    "a1": [
        event(0, 0, 0, 105, waited=90),
        event(1, 0, 105, 220, waited=100),
        event(2, 0, 220, 280),
        event(3, 0, 280, 290),
    ],
    "a2": [event(0, 0, 0, 140, waited=125), event(1, 0, 140, 180), event(2, 0, 180, 190)],
    "n0": [event(0, 0, 0, 210, waited=195, bytes=64)],
    "n1": GATE,
}


@pytest.fixture
def plan() -> Plan:
    made = Plan.from_text(TEXT)
    made.check()
    return made


@pytest.fixture
def record() -> GraphTrace:
    waiting = OpenOp(0, 1, 210, 210, NO_PEER)
    return graph_trace(ROWS, plan=TEXT, limit=4, opens={"n0": waiting})


def test_an_edge_to_another_node_is_tcp_and_one_beside_it_shared_memory(plan: Plan) -> None:
    """Also where one channel has both."""
    topology = topology_of(plan)
    edges = {
        f"{topology.nodes[edge.source]} {topology.nodes[edge.target]}": (edge.kind, edge.channel)
        for edge in topology.edges
    }
    assert edges == {
        "input a0.make": ("shm", "c0"),
        "a0.make a1.join": ("shm", "c1"),
        "a0.make a2.work": ("tcp", "c1"),
        "a2.work a1.join": ("tcp", "c2"),
        "a1.join output": ("shm", "c3"),
    }
    kinds = {each.id: each.kind for each in topology.channels}
    assert kinds == {"c0": "shm", "c1": "shm", "c2": "tcp", "c3": "shm"}


def test_nodes_are_frames_around_what_is_there(plan: Plan) -> None:
    topology = topology_of(plan, addresses={"n1": "10.0.0.2"})
    far = [str(node) for node in topology.nodes if topology.frame_of(node) != "n0"]
    assert far == ["a2.work"] and topology.frame_of(topology.nodes[-1]) == "n0"
    assert "n1 \N{MIDDLE DOT} 10.0.0.2: a2 (Far)" in ascii_of(topology)
    source = dot_of(topology)
    assert "subgraph cluster_n1" in source
    assert source.count('label="TCP"') == 2


def test_the_time_on_the_wire_is_known(record: GraphTrace) -> None:
    """From the end of the write to the end of the pass; each is of another clock."""
    far = replace(record.lane("n1"), clock=Clock(7, 5), node="10.0.0.2")
    lanes = tuple(far if each.process == "n1" else each for each in record.lanes)
    to_far, back = measure(replace(record, lanes=lanes)).wires
    assert (to_far.channel, to_far.writer, to_far.node) == ("c1", "a0 (Stage)", "n1")
    assert (to_far.frames, to_far.bytes, to_far.median_ns) == (1, 64, 30)
    assert (to_far.address, to_far.error_ns) == ("10.0.0.2", 5)
    assert (back.channel, back.node, back.median_ns, back.error_ns) == ("c2", "n0", 20, 0)
    text = str(summarize(Trace((record,), 0, 300)))
    assert "Communication between nodes" in text
    assert "c1: a0 (Stage) -> n1" in text


def test_the_critical_path_is_on_the_wire_between_nodes(record: GraphTrace) -> None:
    found = [(step.text, step.kind.name, step.duration_ns) for step in measure(record).paths.of(0)]
    assert found == [
        ("driver write c0", "COMMUNICATION", 10),
        ("a0 (Stage) read c0", "COMMUNICATION", 10),
        ("a0 (Stage).make", "COMPUTE", 70),
        ("a0 (Stage) write c1", "COMMUNICATION", 10),
        ("on the wire c1: a0 (Stage) -> n1", "COMMUNICATION", 25),  # until it was taken
        ("a2 (Far) read c1", "COMMUNICATION", 15),
        ("a2 (Far).work", "COMPUTE", 40),
        ("a2 (Far) write c2", "COMMUNICATION", 10),
        ("on the wire c2: a2 (Far) -> n0", "COMMUNICATION", 15),
        ("a1 (Beside) read c2", "COMMUNICATION", 15),
        ("a1 (Beside).join", "COMPUTE", 60),
        ("a1 (Beside) write c3", "COMMUNICATION", 10),
    ]


def test_lanes_of_a_node_are_together_below_its_name(record: GraphTrace) -> None:
    rows = [row for row in timeline_scene(measure(record, 0, 300)).rows if not row.part]
    assert [row.process for row in rows] == ["driver", "a0", "a1", "n0", "n1", "a2"]
    assert [row.node.partition(" ")[0] for row in rows] == ["n0"] * 4 + ["n1"] * 2
    drawn = timeline_picture(Trace((record,), 0, 300), record) or ""
    assert drawn.count('class="rcg-lane-heading"') == 2
    assert "on the wire between nodes (TCP)" in drawn
    shown = [row.process for row in schedule_scene(measure(record, 0, 300)).rows if not row.part]
    assert shown == ["a0", "a1", "a2"]  # those that call methods, in the same order


def test_a_value_goes_to_the_gate_and_from_there_to_its_readers(record: GraphTrace) -> None:
    scene = timeline_scene(measure(record, 0, 300))
    bars, links = scene.bars, scene.links

    def place(bar: int) -> str:
        return f"{scene.rows[bars.row[bar]].process} {scene.names[bars.name[bar]].text}"

    ways = {
        tuple(place(bar) for bar in links.ends_of(link)): (
            int(links.begin[link]),
            int(links.until[link]),
            links.kind[link] == WIRE,
        )
        for link in range(len(links))
    }
    assert ways["a0 write c1", "n1 pass c1"] == (100, 130, True)
    assert ways["n1 pass c1", "a2 read c1"] == (125, 125, False)  # taken before it was noted
    assert ways["a2 write c2", "n0 pass c2"] == (190, 210, True)
    assert ways["a0 write c1", "a1 read c1"] == (90, 90, False)
    assert ("a0 write c1", "a2 read c1") not in ways
    assert sum(is_wire for _, _, is_wire in ways.values()) == 2


def test_a_gate_that_waits_is_no_stall(record: GraphTrace) -> None:
    long_open = replace(
        record.lane("n1"), open=OpenOp(0, 1, 300, 0, NO_PEER)
    )  # as if it did not say that it waits
    lanes = tuple(long_open if each.process == "n1" else each for each in record.lanes)
    assert measure(replace(record, lanes=lanes), 0, 10_000_000_000).stall is None
