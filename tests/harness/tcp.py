# SPDX-License-Identifier: Apache-2.0
"""Connections over TCP between two ends of a test."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator

from rcg.errors import PlacementError
from rcg.wire.addresses import TcpAddress, connect_tcp, listen_tcp
from rcg.wire.packets import PacketStream
from tests.harness.peers import GUARD_S

LOCAL = "127.0.0.1"


def bare_pair(*, buffer_bytes: int | None = None) -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection, whose kernel holds about so many bytes if that is given."""
    listener, address = listen_tcp(LOCAL)
    with listener:
        if buffer_bytes is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        ours = connect_tcp(address, GUARD_S)
        listener.setblocking(True)
        theirs, _ = listener.accept()
    if buffer_bytes is not None:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
    for each in (ours, theirs):
        each.settimeout(GUARD_S)
    return ours, theirs


@contextlib.contextmanager
def stream_pair(*, buffer_bytes: int | None = None) -> Iterator[tuple[PacketStream, PacketStream]]:
    """Both ends of a connection of packets over TCP."""
    ours, theirs = map(PacketStream, bare_pair(buffer_bytes=buffer_bytes))
    for each in (ours, theirs):
        each.settimeout(GUARD_S)
    with ours, theirs:
        yield ours, theirs


def free_ports(count: int, host: str = LOCAL) -> range:
    """Ports in a row at which nothing listens.

    They lie below those that the kernel gives to connections (from 32,768), one of which may be
    taken by another process at any moment.
    """
    while True:
        first = random.randrange(20_000, 32_768 - count)
        ports = range(first, first + count)
        with contextlib.ExitStack() as made, contextlib.suppress(PlacementError):
            for port in ports:
                made.enter_context(listen_tcp(host, range(port, port + 1))[0])
            return ports


def free_port(host: str = LOCAL) -> int:
    return free_ports(1, host)[0]


def address_of(connection: socket.socket) -> TcpAddress:
    return TcpAddress(*connection.getsockname()[:2])
