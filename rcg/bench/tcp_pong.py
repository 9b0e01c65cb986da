# SPDX-License-Identifier: Apache-2.0
"""The answering side of the TCP ping-pong, a separate program.

It is called as `python -m rcg.bench.tcp_pong PORT SIZE`, connects to that port of this machine, and
sends each message of that size back until the connection ends. Plain blocking sockets of Python.
"""

from __future__ import annotations

import socket
import sys

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


def main() -> None:
    """Answer until the connection ends."""
    port, size_bytes = map(int, sys.argv[1:])
    message = memoryview(bytearray(size_bytes))
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while receive(peer, message):
            peer.sendall(message)


if __name__ == "__main__":
    main()
