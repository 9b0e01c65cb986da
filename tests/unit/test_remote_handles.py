# SPDX-License-Identifier: Apache-2.0
"""Handles whose graph is on another node: the same as on its own node, over TCP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rcg import cluster
from rcg.channels.base import Signal
from rcg.errors import ChannelBroken, ChannelClosed, ChannelTimeout
from rcg.runtime.control.joining import join
from rcg.runtime.remote import handle as handles
from rcg.runtime.remote import server
from rcg.runtime.remote.client import Client, ask_report
from rcg.runtime.remote.handle import CompiledDAGHandle
from rcg.wire import messages, sockets
from rcg.wire.packets import LargeBody, PacketStream
from rcg.wire.payloads import open_buffers, open_payloads, room_for, send_buffers, send_payloads
from tests.harness.driven import Driven
from tests.harness.peers import GUARD_S, descriptors, until
from tests.harness.tcp import LOCAL, bare_pair, free_port, stream_pair

LARGE_BYTES = 5_000_000


class Echoing:
    """A graph whose actor answers with its input, and a handle on it from elsewhere."""

    def __init__(self, graph: Driven) -> None:
        self.graph = graph
        graph.session.control.listen_tcp(LOCAL)
        self.facts = graph.engine.facts()
        assert self.facts.tcp == str(graph.session.control.tcp_address)
        self.handle = CompiledDAGHandle(replace(self.facts, address=self.facts.tcp))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(Signal):
            while True:
                self.graph.answer(self.graph.reader.read())

    def close(self) -> None:
        self.graph.close()
        self._thread.join(GUARD_S)
        self.handle.close()


def is_handles(thread: threading.Thread) -> bool:
    return "rcg-handle" in thread.name and thread.is_alive()


@pytest.fixture
def echoing(driven: Callable[..., Driven]) -> Iterator[Echoing]:
    made = Echoing(driven())
    yield made
    made.close()
    # One that Ctrl-C kept from starting, in another test, is listed for ever.
    until(lambda: not [each for each in threading.enumerate() if is_handles(each)])
    handles._clients.clear()


VALUES = {
    "small": {"a": [1, 2.5, None]},
    "bytes": os.urandom(LARGE_BYTES),
    "array": np.arange(LARGE_BYTES // 8),
    "arrays": [np.ones(3, np.uint8), np.ones((300, 300)), np.zeros(0)],
}


@pytest.mark.parametrize("name", VALUES)
def test_values_go_to_another_node_and_back(echoing, name):
    value = VALUES[name]
    for _ in range(3):
        found = echoing.handle.execute(value).get(GUARD_S)
        np.testing.assert_equal(found, value)
    if name == "arrays":
        assert all(each.flags.aligned for each in found)


def test_many_executions_are_in_flight(echoing):
    values = [np.full(100_000, number) for number in range(30)]
    refs = [echoing.handle.execute(value) for value in values]
    for ref, value in zip(refs, values, strict=True):
        np.testing.assert_array_equal(ref.get(GUARD_S), value)


def test_an_event_loop_executes_from_another_node(echoing):
    """Its sends must not wait, and large inputs go in many attempts, beside each other."""

    async def run() -> list[Any]:
        async def one(number: int) -> Any:
            ref = await echoing.handle.execute_async(np.full(LARGE_BYTES // 8, number))
            return (await ref)[-1]

        return await asyncio.wait_for(asyncio.gather(*map(one, range(6))), GUARD_S)

    assert asyncio.run(run()) == list(range(6))


def test_a_get_that_waits_long_says_why_once(driven, capsys):
    graph = driven(report_after_s=0.001)
    graph.session.control.listen_tcp(LOCAL)
    facts = graph.engine.facts()
    handle = CompiledDAGHandle(replace(facts, address=facts.tcp))
    try:
        ref = handle.execute(1)
        for _ in range(2):
            with pytest.raises(ChannelTimeout):
                ref.get(0.02)
        (line,) = capsys.readouterr().err.splitlines()
        verdict = line.removeprefix("rcg: get() has waited 1 ms. ")
        assert verdict == str(graph.engine.report(0.0).verdict)
        graph.echo()
        assert ref.get(GUARD_S) == 1
    finally:
        handle.close()
        handles._clients.clear()


def test_a_report_is_read_from_another_node(echoing):
    assert echoing.facts.graph_id[:8] in echoing.handle.report()


@pytest.mark.parametrize("held_up", ["before it is sent", "after it was sent"])
def test_a_teardown_reaches_the_client_while_something_is_being_sent(echoing, monkeypatch, held_up):
    """The thread that sends holds the lock, and the scheduler delays it."""
    assert echoing.handle.execute(1).get(GUARD_S) == 1
    known, is_sending = PacketStream._push, threading.Event()

    def push(stream: PacketStream) -> bool:
        found = known(stream) if held_up.startswith("after") else None
        if threading.current_thread().name.startswith(("rcg-results", "rcg-serve")):
            is_sending.set()
            time.sleep(0.05)
        return known(stream) if found is None else found

    monkeypatch.setattr(PacketStream, "_push", push)
    echoing.handle.execute(2)
    assert is_sending.wait(GUARD_S)
    echoing.graph.session.close_nowait()
    until(lambda: echoing.handle._client.error)
    with pytest.raises(ChannelClosed, match="torn down by its owner"):
        echoing.handle.execute(1)


def test_a_teardown_reaches_the_client_while_the_thread_that_says_so_is_held_up(
    echoing, monkeypatch
):
    """What the client sends meanwhile wakes the thread that would close the connection."""
    known, main = PacketStream.post, threading.current_thread()

    def post(stream: PacketStream, data: bytes) -> None:
        if threading.current_thread() is main:
            with pytest.raises(ChannelClosed):
                echoing.handle.execute(2)
            time.sleep(0.1)
        known(stream, data)

    assert echoing.handle.execute(1).get(GUARD_S) == 1
    monkeypatch.setattr(PacketStream, "post", post)
    echoing.graph.session.close_nowait()
    until(lambda: echoing.handle._client.error)
    with pytest.raises(ChannelClosed, match="torn down by its owner"):
        echoing.handle.execute(1)


def test_a_teardown_reaches_a_client_that_is_slow_to_read_a_large_result(echoing, monkeypatch):
    monkeypatch.setattr(server, "_LINGER_S", GUARD_S)
    known = Client._take

    def take(client: Client, received: Any) -> None:
        if isinstance(received.message, messages.Completed):
            time.sleep(0.5)
        known(client, received)

    monkeypatch.setattr(Client, "_take", take)
    first = echoing.handle.execute(bytes(3 * LARGE_BYTES))
    second = echoing.handle.execute(bytes(3 * LARGE_BYTES))
    until(lambda: second.execution)
    echoing.graph.session.close_nowait()
    with pytest.raises(ChannelClosed, match="torn down by its owner"):
        echoing.handle.execute(1).get(GUARD_S)
    with contextlib.suppress(ChannelClosed):
        assert len(first.get(GUARD_S)) == 3 * LARGE_BYTES


def test_a_connection_that_just_ends_is_no_teardown(echoing):
    assert echoing.handle.execute(1).get(GUARD_S) == 1
    connection = echoing.handle._client._socket
    connection._socket.shutdown(2)  # as if the process there had ended
    until(lambda: echoing.handle._client.error)
    with pytest.raises(ChannelBroken, match="is gone"):
        echoing.handle.execute(1)


def test_an_owner_that_cannot_be_reached(echoing):
    port = free_port()
    for tcp, kind, text in (
        (f"tcp://{LOCAL}:{port}", ChannelBroken, f"to {LOCAL}:{port}: connection refused"),
        (echoing.facts.tcp, ChannelClosed, "torn down"),
    ):
        secret = "x" if kind is ChannelClosed else echoing.facts.secret
        with pytest.raises(kind, match=text):
            CompiledDAGHandle(replace(echoing.facts, address=tcp, secret=secret)).execute(1)


def test_an_owner_that_does_not_answer(echoing):
    """The kernel accepts for it."""
    with socket.socket() as silent:
        silent.bind((LOCAL, 0))
        silent.listen()
        facts = replace(echoing.facts, address=f"tcp://{LOCAL}:{silent.getsockname()[1]}")
        with pytest.raises(ChannelTimeout, match=f"does not answer: .*from {LOCAL} to {LOCAL}"):
            ask_report(facts, 0.05)


def test_a_handle_chooses_the_way_to_its_graph(echoing, monkeypatch):
    monkeypatch.setattr(cluster, "is_connected", lambda: True)
    monkeypatch.setattr(cluster, "node_id", lambda: "here")
    for node, is_remote in (("here", False), ("elsewhere", True)):
        handle = CompiledDAGHandle(replace(echoing.facts, node=node))
        assert handle.execute(node).get(GUARD_S) == node
        assert isinstance(handle._client._socket, PacketStream) is is_remote
        handle.close()
        handles._clients.clear()


def test_a_client_that_does_not_read_its_results_holds_up_nobody(echoing):
    """The endpoint serves others, and so does the graph."""
    facts = echoing.facts
    slow = join(facts.tcp, messages.Use(graph=facts.graph_id, secret=facts.secret), GUARD_S, print)
    value = echoing.handle._codec.encode(np.zeros(LARGE_BYTES // 8))

    def send() -> None:
        for number in range(3):
            send_payloads(slow.connection, messages.Execute(number=number), [value])

    sender = threading.Thread(target=send)
    sender.start()
    for number in range(20):
        assert echoing.handle.execute(number).get(GUARD_S) == number
    kinds = []
    while kinds.count("Completed") < 3:
        with sockets.receive(slow.connection, 1) as received:
            kinds.append(type(received.message).__name__)
            if kinds[-1] == "Completed":
                (payload,) = open_payloads(received)
                assert payload.decode().nbytes == LARGE_BYTES
    sender.join(GUARD_S)
    slow.close()


def test_a_client_that_is_gone_in_the_middle_of_an_input(echoing):
    facts = echoing.facts
    gone = join(facts.tcp, messages.Use(graph=facts.graph_id, secret=facts.secret), GUARD_S, print)
    fd = os.memfd_create("x")
    os.truncate(fd, LARGE_BYTES)
    large = LargeBody(gone.connection, fd, LARGE_BYTES)
    with contextlib.suppress(BlockingIOError):
        large.send(b"its message", 0x40)  # MSG_DONTWAIT
    gone.close()
    os.close(fd)
    assert echoing.handle.execute(7).get(GUARD_S) == 7


# --- payloads


BYTES = [b"x" * 100, os.urandom(300_000), b"", os.urandom(70_000)]


def test_buffers_of_any_size_travel_to_another_node():
    with stream_pair() as (ours, theirs):
        before = descriptors()
        theirs.takes_bodies = True
        for buffers in (BYTES[:1], BYTES):
            views = list(map(memoryview, buffers))
            message = messages.TensorsHere(number=1)
            sender = threading.Thread(target=send_buffers, args=(ours, message, views))
            sender.start()
            with sockets.receive(theirs, 1) as received:
                room = room_for([len(each) for each in buffers])
                open_buffers(received, room)
                assert list(map(bytes, room.parts)) == buffers
            sender.join(GUARD_S)
        assert descriptors() <= before


def test_memory_is_taken_only_for_what_came():
    """A size alone makes the receiver take none."""
    bare, other = bare_pair()
    with bare, PacketStream(other) as stream:
        stream.takes_bodies = True
        message = messages.Execute(size_bytes=1 << 46, table_bytes=1)
        sockets.send(PacketStream(bare), message, body=b"x")
        with sockets.receive(stream, 1) as received, pytest.raises(ValueError, match="size"):
            open_payloads(received)
