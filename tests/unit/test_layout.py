# SPDX-License-Identifier: Apache-2.0
"""The numbers of processes and channels on each node of a plan."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg import _native
from rcg.channels.base import GraphEnded
from rcg.compiler import compile_graph
from rcg.ir.ids import DRIVER
from rcg.ir.programs import MAX_PROCESSES
from rcg.options import Options
from rcg.runtime.node.host import NodeHost
from rcg.runtime.node.layout import Layout
from rcg.runtime.node.memory import MAX_MEMBERS, Segments
from rcg.runtime.node.node import Node
from rcg.serialization import Codec
from tests.harness.board import PICKLE, Failed, buffers_of, reader
from tests.unit.graphs_by_hand import call, graph, input_value
from tests.unit.random_graphs import Case, cases, placements
from tests.unit.test_place_nodes import planned

PLAN = planned(
    graph(input_value(0), call(1, "a0", 0), call(2, "a1", 1), call(3, "a2", 1, 2)), "xyy"
)


def test_each_node_has_its_members_and_rings() -> None:
    PLAN.check()
    here, there = Layout.of(PLAN), Layout.of(PLAN, "n1")
    assert (here.node, here.host, there.node, there.host) == ("n0", DRIVER, "n1", "a1")
    assert [there.channel(ring) for ring in (1, 3)] == ["c2", None]
    # Blocks come from processes of the node, those of other nodes' values from its gate.
    assert here.memory_sources == {DRIVER: 0b101, "a0": 0b111, "n0": 0b100}
    assert there.memory_sources == {"a1": 0b101, "a2": 0b111, "n1": 0b100}
    with pytest.raises(KeyError):
        Layout.of(PLAN, "n2")


def test_a_node_has_room_for_as_many_members_as_a_plan_allows() -> None:
    assert MAX_PROCESSES == MAX_MEMBERS


@given(st.one_of(cases(), cases(has_tensors=True)), st.data(), st.booleans())
def test_the_layouts_of_all_nodes_go_together(
    case: Case, data: st.DataObject, overlap: bool
) -> None:
    locations, driver = data.draw(placements(case.graph))
    plan = compile_graph(case.graph, locations, driver, 3, overlap=overlap).plan
    names = [node.id for node in plan.nodes] or ["n0"]
    layouts = {node: Layout.of(plan, node) for node in names}
    # Each process is a member of its node, and none of another one.
    members = [(process, node) for node, each in layouts.items() for process in each.members]
    assert sorted(members) == sorted([(each, plan.node_of(each)) for each in plan.processes()])
    crossings = plan.crossings()
    for node, layout in layouts.items():
        assert list(layout.members.values()) == list(range(len(layout.members)))
        assert layout.members[layout.host] == 0
        assert layout.passes == {
            each.id: at for at, each in enumerate(plan.channels) if each.id in crossings
        }
        assert list(layout.rings.values()) == list(range(len(layout.rings)))
        assert layout.rings.keys() == layout.writers.keys() == layout.readers.keys()
        assert layout.memory_sources.keys() == layout.members.keys()
        for process, sources in layout.memory_sources.items():
            assert sources >> layout.members[process] & 1
            assert sources < 1 << len(layout.members)
        for channel in plan.channels:
            ends = {end for end in (channel.writer, *channel.readers) if plan.node_of(end) == node}
            assert (channel.id in layout.rings) == bool(ends)
            if not ends:
                continue
            readers = [each for each in channel.readers if each in ends]
            if channel.writer in ends:
                carried = [channel.writer] if channel.id in crossings else []
                assert layout.writer_of(channel.id) == channel.writer
                assert layout.readers_of(channel.id) == readers + carried
            else:
                assert node in crossings[channel.id]
                assert layout.writer_of(channel.id) == node
                assert layout.readers_of(channel.id) == readers
            # What comes by the ring may lie in blocks of its writer.
            for process in readers:
                sources = layout.memory_sources[process]
                assert sources >> layout.writers[channel.id] & 1
    for channel in plan.channels:
        count = sum(channel.id in layout.rings for layout in layouts.values())
        assert count == 1 + len(crossings.get(channel.id, ()))


@pytest.mark.parametrize("node", ["n0", "n1"])
def test_the_memory_of_each_node_is_that_of_its_layout(node: str) -> None:
    segments = Segments(PLAN, cap_bytes=1 << 20, node=node)
    layout = segments.layout
    assert layout == Layout.of(PLAN, node)
    members = [
        _native.Member(
            segments.board, segments.arenas, number, reach=layout.memory_sources[process]
        )
        for process, number in layout.members.items()
    ]
    for channel, ring in layout.rings.items():
        members[layout.writers[channel]].writer(ring, 0).write(PICKLE, b"x", [channel.encode()])
        for number in layout.readers[channel]:
            found = reader(members[number], ring).read(0)
            assert [bytes(each) for each in found] == buffers_of(b"x", [channel.encode()])
    segments.close()


def test_a_host_looks_at_its_node_as_the_gate_of_it() -> None:
    host = NodeHost(PLAN, Options(), Codec(pickle.Pickler), node="n1")
    assert (host.node.process, host.layout.node) == ("n1", "n1")
    assert host.node.member.poisoned == (0, -1)
    host.close()


@pytest.mark.parametrize(("process", "culprit"), [("a2", 1), ("a0", -1)])
def test_of_a_process_on_another_node_the_board_says_no_name(process: str, culprit: int) -> None:
    codec = Codec(pickle.Pickler)
    host = NodeHost(PLAN, Options(), codec, node="n1")
    member = Node(host.descriptors(), host.layout, "a1", Options(), codec, is_looping=True)
    host.node.end_broken(process)
    assert host.node.is_over
    assert host.node.member.poisoned == (_native.POISON_BROKEN, culprit)
    ring = next(at for at, each in enumerate(host.layout.readers.values()) if 0 in each)
    with pytest.raises(GraphEnded) as caught:
        member.wait_any([member.member.reader(ring, 0, buffers_of, Failed)], 0)
    error = caught.value.public()
    assert error.peer == (str(culprit) if culprit >= 0 else None)
    host.close()
