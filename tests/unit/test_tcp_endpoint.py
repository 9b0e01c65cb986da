# SPDX-License-Identifier: Apache-2.0
"""The endpoint as other nodes reach it: whom it accepts, whom it refuses, and that it goes on."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rcg.errors import PlacementError
from rcg.runtime.control import acceptor, endpoint
from rcg.runtime.control.acceptor import Refusals, Tally, TcpListener
from rcg.runtime.control.endpoint import Endpoint
from rcg.runtime.control.joining import Joined, join
from rcg.runtime.control.services import Handler, Peer
from rcg.wire import messages, packets, proof, sockets
from rcg.wire.addresses import TcpAddress, connect_tcp
from rcg.wire.codec import Message, encode, message
from rcg.wire.liveness import Ending, How
from rcg.wire.packets import PacketStream
from tests.harness.peers import GUARD_S, ctrl_c_anywhere, descriptors, until
from tests.harness.served import Served, is_served, together
from tests.harness.tcp import LOCAL, free_port

# --- a service of the tests


@message
class Ask(messages.Opening):
    """The first message of a peer from another node.

    Attributes:
        how: What it wants.
    """

    how: str


@message
class Line(Message):
    """A message in either direction.

    Attributes:
        text: Any text.
    """

    text: str


class Answering:
    """A service that answers its peers, or hands their connection over."""

    def __init__(self) -> None:
        self.service_id, self.secret, self.is_over = os.urandom(8).hex(), os.urandom(8).hex(), False
        self.peers: list[Peer] = []
        self.endings: list[Ending] = []
        self.bare: list[socket.socket] = []
        self.endpoint: Endpoint = endpoint.serve(self)
        self.address = self.endpoint.listen_tcp(LOCAL)

    def ask(self, how: str = "talk", **changes: Any) -> Ask:
        return Ask(**{"graph": self.service_id, "secret": self.secret, "how": how, **changes})

    def join(self, how: str = "talk", timeout_s: float = GUARD_S, **changes: Any) -> Joined:
        return join(str(self.address), self.ask(how, **changes), timeout_s, never)

    def refusals(self) -> Refusals:
        return self.endpoint.refusals()

    def close(self) -> None:
        self.is_over = True
        self.endpoint.close(self)
        for each in self.bare:
            each.close()

    # --- the endpoint's thread

    def look(self) -> None:
        pass

    def on_lost(self, peer: Peer, ending: Ending) -> None:
        self.endings.append(ending)

    def fail(self, why: str) -> None:
        raise AssertionError(why)

    def on_released(self) -> None:
        self.is_over = True

    def _asked(self, peer: Peer, asked: Ask) -> bool:
        assert asked.secret in ("", self.secret)
        self.peers.append(peer)
        peer.send(Line(text="come in"))
        if asked.how == "bare":
            self.bare.append(peer.hand_over())
        return asked.how == "talk"

    def _line(self, peer: Peer, line: Line) -> bool:
        if line.text == "descriptors":
            with pytest.raises(ValueError, match="descriptors"):
                peer.send(Line(text="x"), [0])
        if line.text == "much":
            assert isinstance(peer.connection, PacketStream)
            peer.connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 17)
            for number in range(300):
                peer.send(Line(text=f"{number} " * 1000))
        peer.send(line)
        return True

    handlers: ClassVar[Mapping[type[Message], Handler]] = {Ask: _asked, Line: _line}


def never(_: int, __: int) -> None:
    raise AssertionError("the kernel knows no process of another node")


@pytest.fixture
def service() -> Iterator[Answering]:
    before = descriptors()
    made = Answering()
    yield made
    made.close()
    until(lambda: descriptors() <= before)


def said(connection: sockets.Connection) -> str | None:
    """The text that comes next; None at the end."""
    connection.settimeout(GUARD_S)
    with sockets.receive(connection) as received:
        assert isinstance(received.message, Line | None)
        return None if received.message is None else received.message.text


def is_answered(service: Answering) -> bool:
    """Whether a good client is served."""
    joined = service.join()
    try:
        sockets.send(joined.connection, Line(text="hello"))
        return joined.message == Line(text="come in") and said(joined.connection) == "hello"
    finally:
        joined.close()


def stranger(service: Answering) -> socket.socket:
    """A connection that has said nothing yet."""
    made = connect_tcp(service.address, GUARD_S)
    made.settimeout(GUARD_S)
    return made


def challenged(service: Answering) -> tuple[PacketStream, messages.Challenge]:
    """A connection that was challenged."""
    stream = PacketStream(stranger(service))
    stream.settimeout(GUARD_S)
    with sockets.receive(stream) as received:
        assert isinstance(received.message, messages.Challenge)
        return stream, received.message


def is_ended(connection: PacketStream) -> bool:
    """Whether the peer ends a connection and says nothing more."""
    with sockets.receive(connection) as received:
        return received.message is None


# --- who gets in


def test_a_process_of_another_node_talks_to_a_service(service):
    joined = service.join()
    assert joined.message == Line(text="come in")
    assert isinstance(joined.connection, PacketStream) and joined.pidfd.fd == -1
    for text in ("a", "descriptors", "b" * 10_000):
        sockets.send(joined.connection, Line(text=text))
        assert said(joined.connection) == text
    (peer,) = service.peers
    host, port = joined.connection._socket.getsockname()
    assert peer.is_remote and peer.pid == 0
    assert sockets.peer_name_of(peer.connection) == f"{host}:{port}"
    joined.close()
    until(lambda: service.endings)
    assert service.endings[0].how is How.LEFT
    assert service.refusals() == Refusals()


def test_the_graphs_of_a_process_are_not_reported_to_other_nodes(service):
    opening = messages.AskGraphs(graph=messages.GRAPHS, secret=service.endpoint.address)
    with pytest.raises(ConnectionAbortedError):
        join(str(service.address), opening, GUARD_S, never)
    assert service.refusals() == Refusals(unknown_graph=1)


def test_an_address_is_listened_at_once_and_for_all_services(service):
    other = Answering()
    assert other.address == service.address
    assert service.endpoint.listen_tcp(LOCAL) == service.address
    found: list[TcpAddress] = []
    together(*[lambda: found.append(service.endpoint.listen_tcp("127.0.0.3"))] * 8)
    assert len(set(found)) == 1 and found[0].host == "127.0.0.3"
    second = join(found[0], other.ask(), GUARD_S, never)
    assert second.message == Line(text="come in")
    second.close()
    other.close()
    assert is_answered(service)


def test_ctrl_c_while_an_address_is_opened_leaves_one_that_can_be_opened(service):
    hosts = ["127.0.1.1"]
    names = (
        "rcg.runtime.control.endpoint.Endpoint.listen_tcp",
        "rcg.runtime.control.connections.Connections.open",
        "rcg.runtime.control.acceptor.TcpListener",
        "rcg.runtime.control.acceptor.Acceptor.__init__",
    )
    before = descriptors()
    for _ in ctrl_c_anywhere(lambda: service.endpoint.listen_tcp(hosts[-1]), *names):
        address = service.endpoint.listen_tcp(hosts[-1])
        with contextlib.closing(join(address, service.ask(), GUARD_S, never)) as joined:
            assert joined.message == Line(text="come in")
        # The socket that listens, and the one in reserve.
        until(lambda: len(descriptors() - before) == 2 * len(hosts))
        hosts.append(f"127.0.1.{len(hosts) + 1}")


def test_ipv6(service):
    address = service.endpoint.listen_tcp("::1")
    joined = join(str(address), service.ask(), GUARD_S, never)
    assert joined.message == Line(text="come in")
    assert sockets.peer_name_of(service.peers[0].connection).startswith("[::1]:")
    joined.close()


def test_ports_come_from_the_range(monkeypatch):
    port = free_port()
    monkeypatch.setenv("RCG_PORT_RANGE", f"{port}-{port}")
    made = Answering()
    assert made.address.port == port
    other = Endpoint()
    with pytest.raises(PlacementError, match="RCG_PORT_RANGE"):
        other.listen_tcp(LOCAL)
    made.close()
    again = Answering()  # it is free again
    assert again.address.port == port
    again.close()
    for name in ("RCG_PORT_RANGE", "RCG_PEER_TIMEOUT"):
        monkeypatch.setenv(name, "x")
        with pytest.raises(ValueError, match=name):
            other.listen_tcp(LOCAL)
        monkeypatch.delenv(name)
    other.leave_to_parent()


def test_the_port_is_closed_with_the_endpoint(service):
    service.close()
    with pytest.raises(ConnectionRefusedError) as caught:
        service.join()
    assert f"from {LOCAL} to {LOCAL}:{service.address.port}: connection refused" in str(
        caught.value
    )
    with pytest.raises(ConnectionAbortedError):
        service.endpoint.listen_tcp(LOCAL)


def test_ctrl_c_while_a_socket_is_joined_and_handed_over_loses_no_descriptor(service):
    def take() -> None:
        joined = service.join()
        assert isinstance(joined.connection, PacketStream)
        joined.connection.detach().close()

    take()
    before = descriptors()
    names = (
        "rcg.runtime.control.joining",
        "rcg.wire.addresses.connect_tcp",
        "rcg.wire.packets.PacketStream.__init__",
        "rcg.wire.packets.PacketStream.detach",
    )
    for _ in ctrl_c_anywhere(take, *names):
        until(lambda: descriptors() <= before)


def test_raw_bytes_right_after_the_handshake_are_not_lost(service):
    """They are in the same segment as the proof."""
    stream, asked = challenged(service)
    sent, body = proof.prove(service.ask("bare"), asked)
    packet = sockets.pack_message(sent, body)
    bare = stream._socket
    bare.setblocking(True)
    bare.sendall(struct.pack("!IBI", len(packet), 0, 0) + packet + b"raw frames")
    until(lambda: service.bare)
    got = service.bare[0].recv(100)
    assert got == b"raw frames"
    stream.close()


# --- who does not


def count(service: Answering, **expected: int) -> None:
    """Wait for these refusals and no others, and see that the service goes on."""
    until(lambda: service.refusals() == Refusals(**expected))
    assert is_answered(service)
    assert service.refusals() == Refusals(**expected)


def test_a_wrong_secret(service):
    for number, secret in enumerate(("", "é", service.secret[:-1], "x" * 1000)):
        with pytest.raises(ConnectionAbortedError, match="another secret"):
            service.join(secret=secret)
        assert service.refusals().wrong_secret == number + 1
    assert not service.peers
    count(service, wrong_secret=4)


def test_a_secret_in_the_clear_is_no_proof(service):
    stream, _ = challenged(service)
    sockets.send(stream, service.ask())
    assert is_ended(stream)
    assert not service.peers
    stream.close()
    count(service, wrong_secret=1)


def test_an_unknown_graph(service):
    with pytest.raises(ConnectionAbortedError, match="the graph has ended"):
        service.join(graph="cafe")
    count(service, unknown_graph=1)


def test_a_proof_cannot_be_used_again(service):
    stream, asked = challenged(service)
    sent, body = proof.prove(service.ask(), asked)
    sockets.send(stream, sent, body=body)
    with sockets.receive(stream) as received:
        assert isinstance(received.message, messages.Proven)
    assert said(stream) == "come in"
    again, _ = challenged(service)
    sockets.send(again, sent, body=body)
    assert is_ended(again)
    # Nor with another message beside it.
    third, asked = challenged(service)
    sent, body = proof.prove(service.ask(), asked)
    sockets.send(third, sent, body=body.replace(b"talk", b"bare"))
    assert is_ended(third)
    assert len(service.peers) == 1
    for each in (stream, again, third):
        each.close()
    count(service, wrong_secret=2)


def test_what_comes_with_a_proof_is_checked_after_it(service):
    """The secret is known there, so it is a mistake and no attack."""
    stream, asked = challenged(service)
    opening = messages.UseStore(graph=service.service_id, secret=service.secret, group="g")
    sent, _ = proof.prove(opening, asked)
    body = encode(Line(text="no first message"))
    mac = proof._mac("rcg opens", asked, sent, body, service.secret)
    sockets.send(stream, replace(sent, proof=mac), body=body)
    assert is_ended(stream)
    stream.close()
    # A first message that the service does not know.
    stream, asked = challenged(service)
    sent, body = proof.prove(opening, asked)
    sockets.send(stream, sent, body=body)
    with sockets.receive(stream) as received:
        assert isinstance(received.message, messages.Proven)
    assert is_ended(stream)
    stream.close()
    count(service, garbage=1)


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "zeros": bytes(64),
    "a message that is none": struct.pack("!IBI", 4, 0, 0) + b"null",
    "a message that does not begin": struct.pack("!IBI", 17, 0, 0) + b'{"type": "stop"}\0',
    "a body": struct.pack("!IBI", 1, 1, 0) + b"x",
    "a pickle": struct.pack("!IBI", 5, 0, 0) + b"\x80\x04K\x07.",
    "much": b"\xff" * 1_000_000,
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage(service, name):
    with stranger(service) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(GARBAGE[name])
        while connection.recv(1 << 16):  # the challenge, and then the end
            pass
    count(service, garbage=1)


@given(st.binary(min_size=1, max_size=500))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes(service, found):
    """Whether they are half a packet or something else: it ends, and is counted once."""
    before = service.refusals().total
    with stranger(service) as connection, contextlib.suppress(OSError):
        connection.sendall(found)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 16):
            pass
    until(lambda: service.refusals().total == before + 1)
    assert not service.peers


def test_a_port_scan(service):
    for number in range(20):
        connection = stranger(service)
        if number % 2:  # a reset
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    until(lambda: service.refusals().total == 20)
    found = service.refusals()
    assert found.silent + found.garbage == 20
    assert is_answered(service)


def quick(monkeypatch: pytest.MonkeyPatch, timeout_s: float) -> None:
    """Have strangers be ended after this time."""
    known = {"timeout_s": timeout_s}
    monkeypatch.setattr(acceptor.Acceptor.__init__, "__kwdefaults__", known)


@pytest.mark.parametrize("part", [b"", b"\0\0", struct.pack("!IBI", 100, 0, 0) + b"half"])
def test_a_connection_that_does_not_say_all(monkeypatch, part):
    quick(monkeypatch, 0.05)
    made = Answering()
    with stranger(made) as connection:
        connection.sendall(part)
        with contextlib.suppress(ConnectionError):
            while connection.recv(1 << 16):
                pass
    until(lambda: made.refusals() == Refusals(silent=1))
    made.close()


def test_a_connection_that_says_it_too_slowly():
    """A byte comes now and then, so there is always something new."""
    poller, tally, door = select.poll(), Tally(), TcpListener(LOCAL)
    made = acceptor.Acceptor(door, poller, tally, timeout_s=0.0)
    with connect_tcp(door.address, GUARD_S) as connection:
        until(lambda: made.accept() or len(made))
        connection.sendall(struct.pack("!IBI", 60_000, 0, 0))
        (fd,) = made._pending
        until(lambda: dict(poller.poll(0)).get(fd))
        made.look()
        assert not len(made) and tally.so_far == Refusals(silent=1)
    made.close()


def test_an_acceptor_that_can_do_nothing_pauses():
    poller, door = select.poll(), TcpListener(LOCAL)
    made = acceptor.Acceptor(door, poller, Tally())
    made.look()
    with connect_tcp(door.address, GUARD_S):
        assert [fd for fd, _ in poller.poll(GUARD_S * 1000)] == [door.sock.fileno()]
        made._not_accepted(OSError(errno.ENOMEM, "no memory"))
        assert not poller.poll(0)
        assert 0 < made.timeout_ms() <= 1 + 1000 * acceptor._ACCEPT_RETRY_S
        made._paused_until = time.monotonic()
        made.look()
        assert poller.poll(0) and made.timeout_ms() is None
    made.close()


def test_a_slow_sender_is_served_when_it_is_done_and_holds_up_nobody(service):
    stream, asked = challenged(service)
    sent, body = proof.prove(service.ask(), asked)
    packet = sockets.pack_message(sent, body)
    whole = struct.pack("!IBI", len(packet), 0, 0) + packet
    bare = stream._socket
    for at, byte in enumerate(whole):
        assert len(service.peers) == at // 100  # those of below
        bare.send(bytes([byte]))
        if at % 100 == 99 and at < len(whole) - 1:
            assert is_answered(service)
    with sockets.receive(stream) as received:
        assert isinstance(received.message, messages.Proven)
    assert said(stream) == "come in"
    # As a peer it is as slow.
    packet = sockets.pack_message(Line(text="slow"))
    for byte in struct.pack("!IBI", len(packet), 0, 0) + packet:
        assert is_answered(service)
        bare.send(bytes([byte]))
    assert said(stream) == "slow"
    stream.close()
    assert service.refusals() == Refusals()


def test_a_peer_that_does_not_read_holds_up_nobody(service):
    joined = service.join()
    assert isinstance(joined.connection, PacketStream)
    joined.connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
    sockets.send(joined.connection, Line(text="much"))
    assert is_answered(service)
    for number in range(300):
        assert said(joined.connection) == f"{number} " * 1000
    assert said(joined.connection) == "much"
    joined.close()


def test_a_flood_of_silent_connections(service):
    local = acceptor.MAX_PENDING
    waiting = [
        sockets.connect(service.endpoint.address, GUARD_S) for _ in range(local)
    ]  # of this node: a flood from others ends none of them
    until(lambda: len(service.endpoint._connections.acceptor) == local)
    flood: list[socket.socket] = []

    def come() -> None:
        flood.extend(stranger(service) for _ in range(300))

    def join_in() -> None:
        assert all(is_answered(service) for _ in range(10))

    together(come, join_in, join_in)
    # Those that are kept, and those that made room for others.
    until(lambda: service.refusals().flood >= 300 - acceptor.MAX_PENDING)
    assert service.refusals() == Refusals(flood=service.refusals().flood)
    assert len(service.endpoint._connections.acceptor) == local
    for each in flood:
        each.close()
    until(lambda: service.refusals().total >= 300)
    for each in waiting:
        each.close()


# --- a listener that is not what it says


@contextlib.contextmanager
def listener(answer: Callable[[PacketStream], None]) -> Iterator[TcpAddress]:
    """Something else that listens where rcg is expected."""
    with socket.socket() as made:
        made.bind((LOCAL, 0))
        made.listen()
        is_over = False

        def run() -> None:
            while True:
                accepted, _ = made.accept()
                with PacketStream(accepted) as stream, contextlib.suppress(OSError):
                    if is_over:
                        return
                    stream.settimeout(GUARD_S)
                    answer(stream)

        thread = threading.Thread(target=run)
        thread.start()
        address = TcpAddress(*made.getsockname())
        yield address
        is_over = True
        connect_tcp(address, GUARD_S).close()
        thread.join(GUARD_S)


USE = messages.Use(graph="cafe", secret="secret")


def test_a_listener_that_does_not_know_the_secret():
    seen: list[bytes] = []

    def answer(stream: PacketStream) -> None:
        sockets.send(stream, proof.challenge())
        seen.append(bytes(stream.recvmsg(packets.MAX_MESSAGE_BYTES)[0]))
        sockets.send(stream, messages.Proven(proof="0" * 64))
        sockets.send(stream, messages.Ready())

    with listener(answer) as address, pytest.raises(PermissionError) as caught:
        join(address, USE, GUARD_S, never)
    assert "does not know the secret" in str(caught.value) and str(address.port) in str(
        caught.value
    )
    assert b"secret" not in seen[0].replace(b'"secret": ""', b"").replace(
        b'\\"secret\\": \\"\\"', b""
    )


def saying(*answers: Message) -> Callable[[PacketStream], None]:
    """What says these in turn, one on each connection."""
    turns = itertools.cycle(answers)
    return lambda stream: sockets.send(stream, next(turns))


def speaks_ssh(stream: PacketStream) -> None:
    stream._socket.sendall(b"SSH-2.0-x\r\n")


UNKNOWN = messages.UnknownGraph()


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (saying(messages.Ready()), ValueError, "no process of rcg"),
        (saying(messages.Stop()), ValueError, "no process of rcg"),
        (saying(messages.Proven(proof="x")), ValueError, "no process of rcg"),
        (speaks_ssh, ValueError, f"to {LOCAL}"),
        (saying(messages.Again(), messages.Again(), UNKNOWN), ConnectionAbortedError, "has ended"),
    ],
)
def test_a_listener_that_does_not_ask_for_a_proof_is_not_believed(answer, error, text):
    with listener(answer) as address, pytest.raises(error, match=text):
        join(address, USE, GUARD_S, never)


def test_a_listener_that_says_nothing():
    with (
        listener(lambda stream: stream.recvmsg(packets.MAX_MESSAGE_BYTES) and None) as address,
        pytest.raises(TimeoutError, match=f"from {LOCAL} to {LOCAL}:{address.port}: connected"),
    ):
        join(address, USE, 0.1, never)


# --- graphs


def use(served: Served, kind: Any = messages.Use, **fields: Any) -> Joined:
    address = served.control.listen_tcp(LOCAL)
    opening = kind(graph=served.graph_id, secret=served.control.secret, **fields)
    return join(address, opening, GUARD_S, never)


def test_a_member_of_another_node_does_not_get_shared_memory(served):
    with pytest.raises(ConnectionAbortedError):
        use(served, messages.Hello, process="a0", clock="")
    assert not served.control.lives.pids
    assert is_served(served, "a0")


def test_a_graph_tells_what_it_refused(served):
    served.control.listen_tcp(LOCAL)
    served.control.secret, known = "another", served.control.secret
    opening = messages.Use(graph=served.graph_id, secret=known)
    with pytest.raises(ConnectionAbortedError):
        join(served.control.tcp_address, opening, GUARD_S, never)
    assert served.control.refusals() == Refusals(wrong_secret=1)
