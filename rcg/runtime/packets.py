# SPDX-License-Identifier: Apache-2.0
"""Packets over a local socket: a small JSON object each, with descriptors or bytes beside it.

Nothing here is unpickled, and the kernel says who the peer is.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rcg.options import Deadline

__all__ = [
    "Packet",
    "close_pidfd",
    "connect",
    "how_it_ended",
    "listen",
    "open_pidfd",
    "peer_of",
    "receive",
    "send",
    "wait_for_packet",
]

Packet = dict[str, Any]

MOST_BYTES: Final = 64 * 1024
_MOST_DESCRIPTORS: Final = 80
_MOMENT_S: Final = 0.25
_AGAIN_S: Final = 0.01
_KIND: Final = socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC


def listen(address: str) -> socket.socket:
    """Return a socket that listens on an abstract address."""
    listener = socket.socket(socket.AF_UNIX, _KIND)
    listener.bind(address)
    listener.listen(128)
    return listener


def connect(address: str, timeout_s: float) -> socket.socket:
    """Return a socket that is connected to an abstract address; its calls end after a timeout.

    Raises:
        OSError: Nobody listens there.
    """
    deadline = Deadline(timeout_s)
    connection = socket.socket(socket.AF_UNIX, _KIND)
    try:
        connection.settimeout(timeout_s)
        while True:
            try:
                connection.connect(address)
                return connection
            except BlockingIOError:  # many connect at once, and the kernel does not queue us
                if deadline.expired:
                    raise
                time.sleep(_AGAIN_S)
    except BaseException:
        connection.close()
        raise


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return (pid, uid) of the process at the other end, by the kernel's word."""
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return pid, uid


def open_pidfd(pid: int) -> int:
    """Return a descriptor that becomes readable when the process ends; -1 where there is none."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1  # an old kernel, or a pid of another namespace: the socket's end has to do


def close_pidfd(pidfd: int) -> None:
    """Close what ``open_pidfd`` returned."""
    if pidfd >= 0:
        os.close(pidfd)


def how_it_ended(pidfd: int) -> str:
    """Say whether a process whose connection ended has ended too; that may take a moment."""
    if pidfd >= 0 and select.select([pidfd], [], [], _MOMENT_S)[0]:
        return "its process ended"
    return "it closed its connection"


def send(
    connection: socket.socket,
    packet: Mapping[str, Any],
    fds: Sequence[int] = (),
    *,
    body: bytes = b"",
    may_wait: bool = True,
) -> None:
    """Send one packet.

    Args:
        connection: Where to.
        packet: What JSON can hold.
        fds: Descriptors that go with it.
        body: Bytes that go with it; the whole must stay below ``MOST_BYTES``.
        may_wait: Whether to wait while the peer does not read.

    Raises:
        BlockingIOError: The peer does not read.
        OSError: The connection is over.
    """
    data = json.dumps(packet).encode() + b"\0" + body
    flags = 0 if may_wait else socket.MSG_DONTWAIT
    if fds:
        socket.send_fds(connection, [data], list(fds), flags)
    else:
        connection.send(data, flags)


def wait_for_packet(connection: socket.socket, pidfd: int, timeout_s: float | None = None) -> bool:
    """Wait until there is something to receive, be it the end of the connection.

    Returns:
        False when the peer's process has ended instead, also if a child of his keeps the connection
        open.

    Raises:
        TimeoutError: Neither happened in time.
    """
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    if pidfd >= 0:
        poller.register(pidfd, select.POLLIN)
    ready = {fd for fd, _ in poller.poll(None if timeout_s is None else timeout_s * 1000)}
    if not ready:
        raise TimeoutError
    return connection.fileno() in ready


def receive(connection: socket.socket) -> tuple[Packet | None, bytes, list[int]]:
    """Return the next packet, None at the end, and the bytes and descriptors that came with it.

    Descriptors are missing where this process had none left for them.

    Raises:
        OSError: The connection broke, or the time was up.
        ValueError: It was no packet of ours.
    """
    try:
        data, fds, flags, _ = socket.recv_fds(connection, MOST_BYTES, _MOST_DESCRIPTORS)
    except ConnectionError:
        return None, b"", []
    if not data:
        return None, b"", []
    if flags & socket.MSG_CTRUNC:
        for fd in fds:
            os.close(fd)
        fds = []
    head, _, body = data.partition(b"\0")
    try:
        packet = json.loads(head)
    except (ValueError, RecursionError):
        packet = None
    if not isinstance(packet, dict):
        for fd in fds:
            os.close(fd)
        raise ValueError("this is no packet of rcg")
    return packet, body, list(fds)
