# SPDX-License-Identifier: Apache-2.0
"""TCP addresses: their text, listening at one of them, and errors that name both ends."""

from __future__ import annotations

import contextlib
import gc
import socket
import warnings
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg import options
from rcg.errors import PlacementError
from rcg.wire.addresses import TcpAddress, connect_tcp, is_tcp, listen_tcp
from tests.harness.peers import GUARD_S
from tests.harness.tcp import LOCAL, free_port, free_ports


@given(st.ip_addresses(), st.integers(1, 65535))
def test_an_address_comes_back_from_its_text(host, port):
    if host.is_unspecified:
        return
    address = TcpAddress(str(host), port)
    assert TcpAddress.parse(str(address)) == address
    assert is_tcp(str(address))


@pytest.mark.parametrize(
    "text",
    [
        *("", "tcp://", "tcp://:1", "tcp://1.2.3.4", "1.2.3.4:5", "tcp://::1:5", "tcp://[::1]"),
        *("tcp://1.2.3.4:0", "tcp://1.2.3.4:65536", "tcp://1.2.3.4:x", "tcp://1.2.3.4:-1"),
        *("tcp://0.0.0.0:5", "tcp://[::]:5", "tcp://node:5", "tcp://[1.2.3.4]5", "\0rcg-1-2"),
        "tcp://1.2.3.4:²",
    ],
)
def test_these_are_no_addresses(text):
    with pytest.raises(ValueError):
        TcpAddress.parse(text)


def is_heard(host: str, port: int) -> bool:
    try:
        connect_tcp(TcpAddress(host, port), GUARD_S).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", [LOCAL, "::1"])
def test_it_listens_at_one_address_alone(host):
    listener, address = listen_tcp(host)
    with listener:
        assert address.host == host and listener.getsockname()[1] == address.port
        assert is_heard(host, address.port)
        others = {LOCAL, "127.0.0.2", "::1"} - {host}
        assert not any(is_heard(other, address.port) for other in others)
        assert not listener.get_inheritable()
        with pytest.raises(BlockingIOError):
            accept_all(listener)


def accept_all(listener: socket.socket) -> None:
    while True:
        listener.accept()[0].close()


def test_no_address_stands_for_all_of_a_machine():
    for host in ("0.0.0.0", "::", "", "localhost"):
        with pytest.raises(ValueError):
            listen_tcp(host)


def test_the_first_free_port_of_a_range():
    ports = free_ports(3)
    made = []
    try:
        for _ in ports:
            listener, address = listen_tcp(LOCAL, ports)
            made.append(listener)
            assert address.port in ports
        with pytest.raises(PlacementError) as caught:
            listen_tcp(LOCAL, ports)
    finally:
        for each in made:
            each.close()
    assert caught.value.location == LOCAL
    for fact in (f"from {ports[0]} to {ports[-1]}", LOCAL, "RCG_PORT_RANGE"):
        assert fact in str(caught.value)


def test_a_port_is_free_again_when_its_connections_have_ended():
    """They are in TIME_WAIT, on the side that closed first."""
    port = free_port()
    for _ in range(3):
        listener, address = listen_tcp(LOCAL, range(port, port + 1))
        with listener:
            connection = connect_tcp(address, GUARD_S)
            listener.setblocking(True)
            listener.accept()[0].close()
            assert connection.recv(1) == b""
            connection.close()


def test_an_address_of_another_machine():
    with pytest.raises(PlacementError, match=r"192\.0\.2\.1 is no address of this machine"):
        listen_tcp("192.0.2.1")


@pytest.mark.parametrize("host", [LOCAL, "::1"])
def test_a_refusal_names_both_ends(host):
    port = free_port(host)
    with pytest.raises(ConnectionRefusedError) as caught:
        connect_tcp(TcpAddress(host, port), GUARD_S)
    there = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    assert f"from {host} to {there}: connection refused" in str(caught.value)
    assert "RCG_PORT_RANGE" in str(caught.value)


def test_a_listener_that_never_answers_names_both_ends():
    """Its queue is full, so the kernel drops what comes, as a firewall does."""
    with socket.socket() as listener:
        listener.bind((LOCAL, 0))
        listener.listen(0)
        address = TcpAddress(*listener.getsockname())
        first = connect_tcp(address, GUARD_S)
        more = [address] * 3
        with pytest.raises(TimeoutError) as caught:
            all(connect_tcp(each, 0.2) for each in more)
        first.close()
    assert f"from {LOCAL} to {LOCAL}:{address.port}: timed out" in str(caught.value)


class Unlucky(socket.socket):
    """A socket that gets the very port that it connects to, as may happen where none listens."""

    def connect(self, address: tuple[str, int]) -> None:
        if self.type == socket.SOCK_STREAM:
            self.bind(address)
        super().connect(address)


def test_a_connection_to_its_own_port_is_none(monkeypatch):
    port = free_port()
    monkeypatch.setattr(socket, "socket", Unlucky)
    with pytest.raises(ConnectionRefusedError, match="connection refused"):
        connect_tcp(TcpAddress(LOCAL, port), GUARD_S)


# --- the variables


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("", None),
        (" ", None),
        ("20000-20099", range(20000, 20100)),
        (" 1 - 65535 ", range(1, 65536)),
        ("20013", range(20013, 20014)),
    ],
)
def test_the_range_of_ports(text, ports):
    assert options.port_range({"RCG_PORT_RANGE": text}) == ports


@pytest.mark.parametrize(
    "text", ["x", "-", "0-5", "5-", "-5", "9-5", "1-65536", "1-2-3", "1.5-3", "1e3-2e3", "²-³"]
)
def test_what_is_no_range_of_ports(text):
    with pytest.raises(ValueError, match="`RCG_PORT_RANGE` must be a range of ports"):
        options.port_range({"RCG_PORT_RANGE": text})


def test_the_timeout_of_peers():
    assert options.peer_timeout_s({}) == 15.0
    assert options.peer_timeout_s({"RCG_PEER_TIMEOUT": " 7.5 "}) == 7.5
    for text in ("0", "0.5", "-1", "inf", "nan", "none", "x", "1e9"):
        with pytest.raises(ValueError, match="`RCG_PEER_TIMEOUT` must be a number of seconds"):
            options.peer_timeout_s({"RCG_PEER_TIMEOUT": text})


def test_the_variables_are_known():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        options.Options.from_environment({"RCG_PORT_RANGE": "1-2", "RCG_PEER_TIMEOUT": "5"})


def test_the_error_of_a_connection_that_is_refused_holds_no_frame_of_its_callers():
    class Held:
        pass

    def connect() -> weakref.ref[Held]:
        held = Held()
        with contextlib.suppress(ConnectionRefusedError):
            connect_tcp(TcpAddress(LOCAL, free_port(LOCAL)), GUARD_S)
        return weakref.ref(held)

    gc.disable()
    try:
        assert connect()() is None
    finally:
        gc.enable()
