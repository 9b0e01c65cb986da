# SPDX-License-Identifier: Apache-2.0
"""Views of plans and traces over several nodes of the cluster."""

from __future__ import annotations

import pytest

from rcg.ir.plan import Plan
from rcg.views.data.topology import topology_of
from rcg.views.text import ascii_of, dot_of
from tests.unit.trace_by_hand import NODES


@pytest.fixture
def plan() -> Plan:
    made = Plan.from_text(NODES)
    made.check()
    return made


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
