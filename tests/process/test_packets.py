# SPDX-License-Identifier: Apache-2.0
"""Connections between nodes that are cut, that come back, that are not read, and forks."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import os
import select
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from rcg.runtime.control.far_nodes import FarNode
from rcg.runtime.control.graph_control import GraphControl
from rcg.runtime.control.joining import connect_gates, join
from rcg.runtime.node.layout import Layout
from rcg.runtime.node.memory import Shared
from rcg.wire import codec, liveness, messages, sockets
from rcg.wire.liveness import Ending, How
from rcg.wire.packets import MAX_MESSAGE_BYTES, UNREACHABLE, PacketStream
from tests.harness.peers import GUARD_S, until
from tests.harness.tcp import LOCAL, stream_pair

_ATTACH_FILTER = 26  # SO_ATTACH_FILTER


class Cut:
    """Both ends of a connection lose every packet that comes, as if the cable was cut."""

    def __init__(self, *streams: PacketStream) -> None:
        self._sockets = [each._socket for each in streams]
        # One instruction of a socket filter: take 0 bytes of each packet.
        program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
        filtering = struct.pack("HL", 1, ctypes.addressof(program))
        for each in self._sockets:
            each.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, filtering)

    def mend(self) -> None:
        for each in self._sockets:
            each.setsockopt(socket.SOL_SOCKET, 27, 0)  # SO_DETACH_FILTER


def is_broken(stream: PacketStream) -> bool:
    """Wait until the connection has ended; whether because the peer cannot be reached."""
    with sockets.receive(stream) as found:
        return found.is_reset and "cannot be reached" in found.why


@pytest.mark.parametrize("has_sent", [False, True])
def test_a_connection_that_is_cut_ends(has_sent):
    """Whether nothing is under way, or something that is not acknowledged. The kernel ends it."""
    with stream_pair() as (ours, theirs):
        ours.keep_alive(2.0)
        Cut(ours, theirs)
        if has_sent:
            ours.send(b"x")
        assert is_broken(ours)


def test_a_connection_that_is_cut_ends_while_a_send_waits():
    """First its peer did not read, so the kernel's own limit was lifted."""
    with stream_pair(buffer_bytes=1 << 14) as (ours, theirs):
        ours.keep_alive(1.0)
        problems: list[Exception] = []

        def send() -> None:
            try:
                while True:
                    ours.send(bytes(MAX_MESSAGE_BYTES))
            except OSError as problem:
                problems.append(problem)

        sender = threading.Thread(target=send)
        sender.start()
        until(lambda: ours._queue and not select.select([], [ours], [], 0)[1])
        Cut(ours, theirs)
        sender.join(GUARD_S)
        assert not sender.is_alive()
        assert isinstance(problems[0], ConnectionError)


def test_a_stall_is_survived():
    with stream_pair() as (ours, theirs):
        for each in (ours, theirs):
            each.keep_alive(6.0)
        cut = Cut(ours, theirs)
        ours.send(b"before")
        with pytest.raises(TimeoutError):
            sockets.wait_for_message(theirs, -1, 2.0)  # a third of the timeout
        cut.mend()
        assert theirs.recvmsg(MAX_MESSAGE_BYTES)[0] == b"before"


def test_a_peer_that_does_not_read_is_not_unreachable(monkeypatch):
    """It may be suspended for any time: its kernel answers."""
    looks: list[bool] = []

    def is_cut(*args):
        looks.append(known(*args))
        return looks[-1]

    known = liveness.is_cut
    monkeypatch.setattr(liveness, "is_cut", is_cut)
    with stream_pair(buffer_bytes=1 << 14) as (ours, theirs):
        ours.keep_alive(1.0)
        contents = [bytes([number]) * 50_000 for number in range(10)]
        sender = threading.Thread(target=lambda: [ours.send(each) for each in contents])
        sender.start()
        until(lambda: len(looks) >= 10)  # a third of a second each
        assert not any(looks)
        assert [theirs.recvmsg(MAX_MESSAGE_BYTES)[0] for _ in contents] == contents
        sender.join(GUARD_S)


def test_a_node_whose_link_is_cut_is_not_one_whose_host_has_ended(monkeypatch):
    monkeypatch.setenv("RCG_PEER_TIMEOUT", "1")
    gone: list[tuple[str, Ending]] = []
    control = GraphControl(
        "graph",
        ["a0"],
        lambda _: Shared(-1, []),
        lambda *ending: gone.append(ending),
        lambda *_: None,
        [FarNode(Layout("n1", "a0", {"a0": 0}, {}, {}, {}, {}, {}), ("a0",))],
    )
    control.open()
    try:
        entry = {"graph": "graph", "secret": control.secret}
        opening = messages.JoinNode(
            **entry, node="n1", pid=1, clock="", address=f"tcp://{LOCAL}:80"
        )
        joined = join(control.listen_tcp(LOCAL), opening, GUARD_S, lambda *_: None)
        hello = codec.encode(messages.Hello(**entry, process="a0", clock="")).decode()
        sockets.send(joined.connection, messages.FromMember(process="a0", pid=1, text=hello))
        until(lambda: control.lives.pids)
        Cut(control.nodes.links["n1"].connection, joined.connection)
        until(lambda: gone)
        ((process, ending),) = gone
        assert (process, ending.how) == ("a0", How.UNREACHABLE)
        assert ending.why == f"{UNREACHABLE}, node n1 at tcp://{LOCAL}:80"
        joined.close()
    finally:
        control.close()


@pytest.mark.full
@pytest.mark.parametrize("is_posted", [False, True])
@pytest.mark.parametrize("count", [3, 5, 20])
def test_what_a_peer_does_not_read_for_long_is_not_lost(count, is_posted):
    """The kernel has taken all of it, so no send waits."""
    with stream_pair() as (ours, theirs):
        for each in (ours, theirs):
            each.keep_alive(1.0)
            each.is_proven = True
        contents = [bytes([number]) * 60_000 for number in range(count)]
        for content in contents:
            (ours.post if is_posted else ours.send)(content)
        assert not ours._queue
        with pytest.raises(BlockingIOError):
            sockets.receive(ours, may_wait=False)
        ended = select.poll()
        ended.register(ours, select.POLLIN)
        assert not ended.poll(3000)
        assert [theirs.recvmsg(MAX_MESSAGE_BYTES)[0] for _ in contents] == contents
        until(lambda: not ours._is_flushing)
        limit = ours._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert limit == 1000  # as before
        Cut(ours, theirs)
        ours.send(b"x")
        assert is_broken(ours)


def test_no_thread_looks_after_a_stranger():
    with stream_pair() as (ours, _):
        ours.keep_alive(1.0)
        for _ in range(5):
            ours.send(bytes(60_000))
        assert not ours._is_flushing


@pytest.mark.parametrize("which", [0, 1])
def test_a_peer_that_has_proven_who_it_is_may_not_read(served, monkeypatch, which):
    monkeypatch.setenv("RCG_PEER_TIMEOUT", "1")
    control = served.control
    entry = {"graph": served.graph_id, "secret": control.secret}
    found: list[PacketStream] = []
    served.client_came = lambda connection, _: found.append(connection)
    joined_to = control.listen_tcp(LOCAL)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        joining = pool.submit(join, joined_to, messages.Use(**entry), GUARD_S, lambda *_: None)
        until(lambda: found)
        sockets.send(found[0], messages.Ready())
        found.append(joining.result(GUARD_S).connection)
    writing, reading = found[which], found[1 - which]
    with writing, reading:
        for _ in range(5):
            writing.send(bytes(60_000))
        ended = select.poll()
        ended.register(writing, select.POLLIN)
        assert not ended.poll(2500)
        for _ in range(5):
            assert reading.recvmsg(MAX_MESSAGE_BYTES)[0] == bytes(60_000)


def test_a_connection_that_is_cut_ends_while_its_peer_does_not_read():
    with stream_pair() as (ours, theirs):
        ours.keep_alive(1.0)
        ours.is_proven = True
        for _ in range(5):
            ours.send(bytes(60_000))
        assert ours._is_flushing and not ours._queue
        Cut(ours, theirs)
        assert is_broken(ours)
        until(lambda: not ours._is_flushing)


@contextlib.contextmanager
def forked() -> Iterator[None]:
    """While there is a forked child, which does nothing."""
    waiting, go = os.pipe()
    child = os.fork()
    if not child:
        os.read(waiting, 1)
        os._exit(0)
    try:
        yield
    finally:
        os.write(go, b"x")
        os.waitpid(child, 0)
        os.close(waiting)
        os.close(go)


def test_a_forked_child_keeps_no_connection_open():
    with stream_pair() as (ours, theirs), forked():
        ours.close()
        assert theirs.recvmsg(MAX_MESSAGE_BYTES)[0] == b""


def test_a_forked_child_keeps_no_link_to_a_gate_open(served):
    class Accepting:
        def accept(self, process: str, connection: socket.socket) -> None:
            kept = connection.dup()  # a gate keeps it open
            kept.settimeout(GUARD_S)
            accepted.append(kept)

    accepted: list[socket.socket] = []
    control = served.control
    control.open_gate(Accepting(), ["a7"])
    gates = {"n0": str(control.listen_tcp(LOCAL))}
    links = connect_gates(gates, served.graph_id, control.secret, "a7", GUARD_S)
    until(lambda: accepted)
    with forked():
        links["n0"].close()
        with accepted[0] as arrived:
            assert arrived.recv(1) == b""
