# SPDX-License-Identifier: Apache-2.0
"""Reports of channels that cross: each node has its part of them."""

from __future__ import annotations

import dataclasses
import pickle
import re
import socket
from collections.abc import Iterator

import pytest

from rcg.channels import open_reader, open_writer
from rcg.ir.ids import DRIVER
from rcg.options import Options
from rcg.runtime.control.node_control import NodeControl, note_sender
from rcg.runtime.node.host import NodeHost
from rcg.runtime.node.layout import takers_of
from rcg.runtime.node.memory import Segments
from rcg.runtime.node.snapshot import NodeView, Snapshot, describe_node
from rcg.runtime.observe.report import (
    Backlog,
    Report,
    SocketQueue,
    activities,
    backlogs,
    socket_queues,
)
from rcg.serialization import Codec
from rcg.views.html.report import report_of
from rcg.wire import messages, sockets
from tests.harness.peers import no_threads
from tests.harness.places import place_of
from tests.harness.tcp import stream_pair
from tests.unit.test_place_nodes import FAN, planned

PLAN = planned(FAN, "xxyz")


@pytest.fixture
def segments() -> Iterator[dict[str, Segments]]:
    PLAN.check()
    made = {node.id: Segments(PLAN, cap_bytes=1 << 20, node=node.id) for node in PLAN.nodes}
    yield made
    for each in made.values():
        each.close()


def test_each_node_has_its_part_of_a_channel_that_crosses(segments: dict[str, Segments]) -> None:
    channel = PLAN.channels_by_id()["c1"]
    near, far = place_of(segments["n0"], "a0"), place_of(segments["n1"], "n1")
    writer = open_writer(channel, 1, near)
    for value in range(3):
        writer.write(value)
    open_reader(channel, 0, place_of(segments["n0"], "a1")).read(0)
    assert backlogs([near, far], PLAN) == [
        Backlog("c1", "a0 (Stage)", "a1 (Stage)", 2, 4),
        Backlog("c1", "a0 (Stage)", "n1 gate in a2 (Stage), n2 gate in a3 (Stage)", 3, 4),
    ]
    open_writer(channel, 0, far).write(0)
    assert backlogs([far], PLAN) == [Backlog("c1", "n1 gate in a2 (Stage)", "a2 (Stage)", 1, 4)]
    assert takers_of(near.layout, PLAN, "c1") == [("a1",), ("n1", "n2")]
    assert takers_of(far.layout, PLAN, "c1") == [("a2",)]
    # Its writer reads it like any other reader, and sends what it reads on.
    own = open_reader(channel, 1, near)
    assert [own.read(0) for _ in range(3)] == [0, 1, 2]
    assert near.unread("c1") == [2, 0]


def test_the_age_of_a_lost_nodes_last_report_is_shown(segments: dict[str, Segments]) -> None:
    here, there = place_of(segments["n0"], DRIVER), place_of(segments["n1"], "a2")
    seen = Snapshot.parse(describe_node(there, "2 garbage"), there.layout)
    old = dataclasses.replace(seen, taken_ns=seen.taken_ns - 3_200_000_000)
    unknown = Snapshot.unknown(segments["n2"].layout)

    def report(*nodes: NodeView) -> Report:
        found = activities(nodes, PLAN, left={"a2": "dead"})
        return Report("cafe", "broken", tuple(found), (), 0, 0)

    lost = report(here, old, unknown)
    old_line, unknown_line = lost.ages
    assert re.fullmatch(r"n1 as it was 3\.\d+ s ago", old_line)
    assert unknown_line == "n2 has not reported yet what its processes do"
    assert all(line in str(lost) and line in report_of(lost) for line in lost.ages)
    assert report(here, seen).ages == ()  # it has just answered


def test_what_a_host_sends_and_refuses_is_reported(segments: dict[str, Segments]) -> None:
    """Its gate looks at the node, and its loops send."""
    here, there = place_of(segments["n0"], DRIVER), place_of(segments["n1"], "a2")
    host = NodeHost(PLAN, Options(memory_cap_bytes=1 << 20), Codec(pickle.Pickler), node="n1")
    control = NodeControl("cafe", "secret", host, ["a2"], ["a0"])
    ours, theirs = socket.socketpair()
    try:
        there.link({"n0": ours}, {"c2": ("n0",)}, lambda *_: None)
        note_sender("beef", there)  # of a graph that this process hosts nothing of
        note_sender("cafe", there)
        seen = Snapshot.parse(control._description(), there.layout)
        assert seen.refused == "none"
        assert socket_queues([here, seen], PLAN) == (SocketQueue("a2 (Stage)", "n0", 0, 0),)
    finally:
        there.unlink()
        control.close()
        ours.close()
        theirs.close()
    assert Snapshot.unknown(there.layout).queued() == {}


def test_a_host_that_can_start_no_thread_sends_the_events_that_it_has() -> None:
    host = NodeHost(PLAN, Options(memory_cap_bytes=1 << 20), Codec(pickle.Pickler), node="n1")
    control = NodeControl("cafe", "secret", host, ["a2"], ["a0"])
    with stream_pair() as (ours, theirs):
        theirs.takes_bodies = True
        control._link = ours
        try:
            with no_threads() as names:
                control._hear_driver(messages.RecordEvents(number=1, most=100))
                control._hear_driver(messages.AskEvents(number=2, recording=1))
                control._hear_driver(messages.AskEvents(number=3, recording=0))
            assert names == ["rcg-profile", "rcg-events", "rcg-events"]
            found = [sockets.receive(theirs).message for _ in range(3)]
        finally:
            control.close()
    assert [type(each) for each in found] == [messages.NodeHere] + [messages.EventsHere] * 2
    assert [each.number for each in found] == [1, 2, 3]
