# SPDX-License-Identifier: Apache-2.0
"""The host of a node: how the events of its processes fit into messages, and who ends recording."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from rcg.errors import PlacementError
from rcg.options import Options
from rcg.runtime.control.client import ControlClient
from rcg.runtime.control.far_nodes import FarNode, FarNodes, _join_parts
from rcg.runtime.control.node_control import NodeControl, _events_of, _parts_of
from rcg.runtime.node.host import NodeHost, Recorded
from rcg.runtime.node.layout import Layout
from rcg.runtime.sleepers import Sleepers, take_all
from rcg.serialization import Codec
from rcg.trace.model import EVENT
from rcg.wire import codec
from rcg.wire.messages import AskEvents, RecordEvents
from rcg.wire.sockets import MAX_MESSAGE_BYTES, pack_message
from tests.harness.peers import ctrl_c_anywhere, until
from tests.harness.tcp import stream_pair
from tests.unit.test_report_nodes import PLAN


def test_ctrl_c_while_other_nodes_begin_to_record_leaves_no_recording():
    """The caller knows the number of a recording before it begins, and can end it."""
    layout = Layout("n1", "a0", {"a0": 0}, {}, {}, {}, {}, {})
    nodes = FarNodes([FarNode(layout, ("a0",))], Sleepers(), list, lambda: False)
    nodes.links["n1"] = None
    numbers = iter(nodes.new_recording, None)

    def begin() -> None:
        nodes.record(number, 100, 0.0)

    number = next(numbers)
    for _ in ctrl_c_anywhere(begin, "rcg.runtime.control.far_nodes.FarNodes.record"):
        nodes.drop(number)
        sent = [type(each) for each in take_all(nodes._wanted)]
        assert sent in ([], [AskEvents], [RecordEvents, AskEvents])
        assert not nodes._events
        number = next(numbers)
    assert len(sent) == 2


@pytest.mark.parametrize("count", [0, 1, 512, 1500])
@pytest.mark.parametrize("letter", ["a", "я", "層", "😀", "\x01"])
def test_events_fit_into_messages_whatever_their_spans_are_called(letter, count):
    names = tuple([(letter * 63).encode()[:63].decode(errors="ignore")] * 256)
    events = np.zeros(count, EVENT)
    events["start_ns"] = np.arange(count)
    messages = []
    for part, data in _parts_of(Recorded("a0", 7, events, names)):
        message = _events_of(1, part, left=1)
        assert len(pack_message(message, data)) <= MAX_MESSAGE_BYTES
        messages.append((codec.decode(codec.encode(message)), data))
    ((process, lost, found, spans),) = _join_parts(messages)
    assert (process, lost) == ("a0", 7)
    assert np.array_equal(found, events)
    assert spans == (names if letter.isprintable() else tuple([name[:30] for name in names]))


def test_a_host_takes_each_of_its_own_processes_once():
    host = NodeHost(PLAN, Options(memory_cap_bytes=1 << 20), Codec(pickle.Pickler), node="n1")
    control = NodeControl("cafe", "secret", host, ["a2"], ["a0"])

    def enter(process: str) -> ControlClient:
        return ControlClient(control.address, "cafe", "secret", process)

    with stream_pair() as (control._link, _):
        try:
            member = enter("a2")
            for process in ("a2", "a0", "nobody"):  # is in already, of another node, of none
                with pytest.raises(PlacementError):
                    enter(process)
            member.finish(None)
            until(lambda: "a2" in control._over)
            with pytest.raises(PlacementError):
                enter("a2")
            member.close_descriptors()
        finally:
            control.close()
