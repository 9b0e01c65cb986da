# SPDX-License-Identifier: Apache-2.0
"""Connections between nodes over TLS, by certificates such as Ray's."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rcg import options
from rcg.channels.base import Signal
from rcg.errors import ChannelClosed, PlacementError, Transfer
from rcg.rdt import reach
from rcg.rdt.envelope import Envelope, Holder, take_apart
from rcg.rdt.groups import MemberGroups
from rcg.rdt.pull import Connections, Wanted
from rcg.rdt.service import Service
from rcg.rdt.store import Entry, Store
from rcg.rdt.transports import OBJECT_STORE, find_transport
from rcg.runtime.codec import make_codec
from rcg.runtime.control.acceptor import Refusals
from rcg.runtime.control.joining import Joined, join
from rcg.runtime.control.stores import ControlStore
from rcg.runtime.remote import handle as handles
from rcg.runtime.remote.handle import CompiledDAGHandle
from rcg.wire import messages, sockets, tls
from rcg.wire.addresses import TcpAddress, connect_tcp
from rcg.wire.certificates import client_context, server_context
from rcg.wire.packets import MAX_MESSAGE_BYTES, PacketStream
from tests.harness.driven import Driven
from tests.harness.peers import GUARD_S, descriptors, until
from tests.harness.served import Served
from tests.harness.tcp import LOCAL, bare_pair
from tests.process.test_endpoint import FORKING_TCP, process_of

ROOT = Path(__file__).parents[2]
NAMES = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")


def openssl(*arguments: object) -> None:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True)
    assert not done.returncode, done.stderr


def make_cluster(folder: Path) -> list[str]:
    """The files of a machine of a new cluster: its certificate, its key, and who signed it."""
    folder.mkdir()
    ca_key, ca, key, asked, cert = (
        folder / name for name in ("ca.key", "ca.crt", "node.key", "node.csr", "node.crt")
    )
    new = "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"
    openssl("req", "-x509", *new, "-keyout", ca_key, "-out", ca, "-days", 2, "-subj", "/CN=ca")
    openssl("req", *new, "-keyout", key, "-out", asked, "-subj", "/CN=node")
    signing = "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-days", 2
    openssl("x509", "-req", "-in", asked, *signing, "-out", cert)
    return [str(each) for each in (cert, key, ca)]


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """The files of machines of two clusters."""
    folder = tmp_path_factory.mktemp("tls")
    return [make_cluster(folder / name) for name in ("ours", "theirs")]


@pytest.fixture(autouse=True)
def is_used(clusters: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, clusters[0])


def use(monkeypatch: pytest.MonkeyPatch, files: list[str] | None) -> None:
    monkeypatch.setenv("RAY_USE_TLS", "0" if files is None else "1")
    for name, path in zip(NAMES, files or (), strict=False):
        monkeypatch.setenv(name, path)


@pytest.fixture
def listening(served: Served) -> Iterator[Served]:
    before = descriptors()
    served.control.listen_tcp(LOCAL)
    yield served
    served.control.close()
    until(lambda: not [each for each in threading.enumerate() if each.name == "rcg-tls"])
    assert descriptors() <= before


def joined(served: Served, kind: Any = messages.UseStore, **fields: Any) -> Joined:
    address = served.control.tcp_address
    assert address is not None
    fields = fields or {"group": "g"}
    opening = kind(graph=served.graph_id, secret=served.control.secret, **fields)
    return join(address, opening, GUARD_S, lambda *_: None)


def test_the_kernel_knows_no_process_of_the_other_side(listening):
    """The bytes come from a local socket of this very process."""
    found = joined(listening)
    assert isinstance(found.connection, PacketStream)
    assert sockets.peer_of(found.connection) == (0, -1)
    host, _, port = found.connection.address.rpartition(":")
    assert host == LOCAL and int(port) == listening.control.tcp_address.port
    found.close()


def test_what_travels_cannot_be_read(listening):
    """By somebody in between."""
    seen: list[bytes] = []
    with socket.socket() as between:
        between.bind((LOCAL, 0))
        between.listen()

        def run() -> None:
            ours, _ = between.accept()
            theirs = connect_tcp(listening.control.tcp_address, GUARD_S)
            with ours, theirs:
                for one, other in ((ours, theirs), (theirs, ours)):
                    threading.Thread(target=forward, args=(one, other), daemon=True).start()
                is_done.wait(GUARD_S)

        def forward(one: socket.socket, other: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := one.recv(1 << 16):
                    seen.append(data)
                    other.sendall(data)
                other.shutdown(socket.SHUT_WR)

        is_done = threading.Event()
        thread = threading.Thread(target=run)
        thread.start()
        control = listening.control
        address = str(TcpAddress(*between.getsockname()))
        store = ControlStore(address, control.service_id, control.secret, "g")
        store.set("key", b"value")
        assert store.has(["key"])
        store.close()
        is_done.set()
        thread.join(GUARD_S)
    whole = b"".join(seen)
    assert len(whole) > 1000 and b"set_value" not in whole and b"type" not in whole


def test_a_machine_of_another_cluster_is_refused(listening, clusters, monkeypatch):
    """Also with the secret: each side looks at the certificate of the other."""
    use(monkeypatch, clusters[1])
    with pytest.raises(PermissionError, match=f"from {LOCAL} to {LOCAL}.*RAY_TLS_CA_CERT"):
        joined(listening)
    # It accepts ours, and we do not accept its own.
    use(monkeypatch, [*clusters[1][:2], clusters[0][2]])
    with pytest.raises(ConnectionResetError, match=f"from {LOCAL} to {LOCAL}.*RAY_TLS_CA_CERT"):
        joined(listening)
    until(lambda: listening.control.refusals() == Refusals(silent=2))
    use(monkeypatch, clusters[0])
    joined(listening).close()


def test_a_machine_without_tls_is_refused(listening, monkeypatch):
    use(monkeypatch, None)
    with connect_tcp(listening.control.tcp_address, GUARD_S) as plain:
        plain.settimeout(GUARD_S)
        plain.sendall(b"\0" * 100)
        with contextlib.suppress(ConnectionError):
            while plain.recv(1 << 16):
                pass
    until(lambda: listening.control.refusals() == Refusals(silent=1))


def test_tls_where_the_other_side_has_none(served, clusters, monkeypatch):
    use(monkeypatch, None)
    served.control.listen_tcp(LOCAL)
    use(monkeypatch, clusters[0])
    with pytest.raises(PermissionError, match="RAY_USE_TLS"):
        joined(served)


def test_connections_that_never_shake_hands_hold_up_nobody(listening):
    silent = [connect_tcp(listening.control.tcp_address, GUARD_S) for _ in range(100)]
    for _ in range(3):
        joined(listening).close()
    until(lambda: listening.control.refusals().flood >= 30)
    for each in silent:
        each.close()


def test_values_of_any_size_and_a_teardown(driven: Callable[..., Driven]):
    graph = driven()
    graph.session.control.listen_tcp(LOCAL)
    facts = graph.engine.facts()
    handle = CompiledDAGHandle(replace(facts, address=facts.tcp))

    def echo() -> None:
        with contextlib.suppress(Signal):
            while True:
                graph.answer(graph.reader.read())

    thread = threading.Thread(target=echo)
    thread.start()
    value = np.arange(5_000_000 // 8)
    refs = [handle.execute(value + number) for number in range(5)]
    for number, ref in enumerate(refs):
        np.testing.assert_array_equal(ref.get(GUARD_S), value + number)
    graph.close()
    thread.join(GUARD_S)
    with pytest.raises(ChannelClosed, match="torn down"):
        handle.execute(1).get(GUARD_S)
    handle.close()
    handles._clients.clear()


def test_a_fork_of_the_owner_keeps_no_connection_of_it():
    with process_of(FORKING_TCP) as owner:
        assert owner.stdin is not None and owner.stdout is not None
        address, secret = owner.stdout.readline().split()
        opening = messages.UseStore(graph="cafe", secret=secret, group="g")
        found = join(address, opening, GUARD_S, lambda *_: None)
        print(file=owner.stdin, flush=True)
        child = int(owner.stdout.readline())
        try:
            owner.kill()
            found.connection.settimeout(GUARD_S)
            assert found.connection.recvmsg(MAX_MESSAGE_BYTES)[0] == b""
            os.kill(child, 0)  # it goes on
        finally:
            os.kill(child, signal.SIGKILL)
            found.close()


def test_a_socket_is_handed_over_as_one_of_this_machine(listening):
    found = joined(listening)
    assert isinstance(found.connection, PacketStream)
    with found.connection.detach() as bare:
        assert bare.gettimeout() is None
        message = sockets.pack_message(messages.HasValues(number=3, keys=()))
        bare.sendall(len(message).to_bytes(4) + bytes(5) + message)
        bare.settimeout(GUARD_S)
        assert b"presence" in bare.recv(1000)


def test_files_that_are_missing(clusters, monkeypatch, served):
    for name in NAMES:
        with monkeypatch.context() as patched:
            patched.setenv(name, "")
            with pytest.raises(ValueError, match=name):
                options.tls_files()

    for at, path, text in (
        (0, "/nowhere", "`RAY_TLS_SERVER_CERT` names '/nowhere': No such file"),
        (0, __file__, "`RAY_TLS_SERVER_CERT` .*are no certificate in PEM and its key"),
        (1, clusters[1][1], "`RAY_TLS_SERVER_KEY` .*are no certificate in PEM and its key"),
        (2, "/nowhere", "`RAY_TLS_CA_CERT` names '/nowhere': No such file"),
        (2, __file__, "`RAY_TLS_CA_CERT` .*is no certificate in PEM"),
    ):
        with monkeypatch.context() as patched:
            patched.setenv(NAMES[at], path)
            with pytest.raises(PlacementError, match=f"TLS cannot be used on this .*{text}"):
                served.control.listen_tcp(LOCAL)
    served.control.listen_tcp(LOCAL)
    monkeypatch.setenv(NAMES[2], "/nowhere")
    with pytest.raises(PlacementError, match="`RAY_TLS_CA_CERT` names '/nowhere'"):
        joined(served)


@pytest.mark.full
@pytest.mark.parametrize("size", [600_000, 800_000])
def test_a_peer_that_does_not_read_for_long_is_not_unreachable(size):
    """Although the thread has nothing left to send: the kernel has all of it."""
    files = options.tls_files()
    assert files is not None
    ours, theirs = bare_pair(buffer_bytes=1 << 14)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    context = client_context(files)
    with (
        tls.secure(theirs, server_context(files), 1.0) as reading,
        tls.secure(tls.shake_hands(ours, context), context, 1.0) as writing,
    ):
        for each in (reading, writing):
            each.settimeout(GUARD_S)
        contents = os.urandom(size)
        writing.sendall(contents)
        time.sleep(3.0)
        got = bytearray()
        while len(got) < size:
            more = reading.recv(1 << 20)
            assert more, f"the connection ended after {len(got)} bytes"
            got += more
        assert got == contents


@pytest.mark.parametrize("is_tls", [True, False])
def test_tensors_for_another_node_over_a_connection_with_and_without_tls(
    clusters: list[list[str]], monkeypatch: pytest.MonkeyPatch, is_tls: bool
) -> None:
    """From the service to the puller, both in this process; also what is freed while it is sent."""
    torch = pytest.importorskip("torch")
    use(monkeypatch, clusters[0] if is_tls else None)
    monkeypatch.setattr("rcg.rdt.reach.is_elsewhere", lambda _: True)
    store, groups = Store("tensors-tls"), MemberGroups("tensors-tls", print)
    service = Service(store, groups, deque(), "secret", f"\0rcg-test-{os.getpid()}-{is_tls}")
    service.open()
    holder = service.holder = Holder(service.address, store.key, "secret", "A", "", "far")
    assert service._endpoint is not None
    place = str(service._endpoint.listen_tcp(LOCAL))
    monkeypatch.setitem(reach._places, store.key, place)
    parts = [torch.arange(5_000_000), torch.zeros(0), *(torch.full((n,), n) for n in range(500))]
    wanted = []
    for key in ("kept", "freed"):
        value = [each.clone() for each in parts]
        contents, payloads = take_apart(value, make_codec())
        store.add(Entry(key, value, contents, payloads, OBJECT_STORE, "The value"))
        envelope = Envelope(key, holder, OBJECT_STORE, contents)
        wanted.append(Wanted(envelope, find_transport(OBJECT_STORE)))
    original = PacketStream.send_raw

    def send_raw(stream: PacketStream, content: memoryview) -> None:
        original(stream, content)
        value[0].untyped_storage().resize_(0)  # the last one's, before its next tensors are sent

    connections = Connections("", groups, deque())
    try:
        (found,) = connections.pull(wanted[:1])
        assert not isinstance(found, Exception)
        got = wanted[0].envelope.contents.put_back(found)
        assert all(torch.equal(one, other) for one, other in zip(got, parts, strict=True))
        monkeypatch.setattr(PacketStream, "send_raw", send_raw)
        gone, again = connections.pull([wanted[1], wanted[0]])
        assert isinstance(gone, Transfer) and "has lost its memory" in str(gone)
        assert isinstance(again, list)  # by the same connection
        assert again[0].view(torch.int64)[-1] == 4_999_999
    finally:
        connections.close()
        service.close()
