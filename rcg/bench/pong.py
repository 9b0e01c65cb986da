# SPDX-License-Identifier: Apache-2.0
"""The answering side of the ping-pongs of ``limits``, a separate program.

``python -m rcg.bench.pong futex FD`` answers through a futex word: each line of its standard input
is a number of round trips, and it ends with its standard input. ``python -m rcg.bench.pong tcp PORT
SIZE`` connects to that port of this machine, and sends each message of that size back until the
connection ends, by plain blocking sockets of Python.
"""

from __future__ import annotations

import socket
import sys

from rcg.bench import _limits

__all__ = ["receive"]


def receive(peer: socket.socket, into: memoryview) -> bool:
    """Receive until a buffer is full; return False if the connection ended before."""
    filled = 0
    while filled < len(into):
        count = peer.recv_into(into[filled:])
        if not count:
            return False
        filled += count
    return True


def answer_by_futex(fd: int) -> None:
    """Answer until the standard input ends."""
    for line in sys.stdin:
        _limits.ping_pong(fd, 1, int(line))


def answer_by_tcp(port: int, size_bytes: int) -> None:
    """Answer until the connection ends."""
    message = memoryview(bytearray(size_bytes))
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while receive(peer, message):
            peer.sendall(message)


if __name__ == "__main__":
    kind, *numbers = sys.argv[1:]
    if kind == "futex":
        answer_by_futex(int(numbers[0]))
    else:
        answer_by_tcp(int(numbers[0]), int(numbers[1]))
