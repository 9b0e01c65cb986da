# SPDX-License-Identifier: Apache-2.0
"""The limits of the machine: a futex and a socket between two processes, and memcpy.

This file is also the program of the answering side: ``python -m rcg.bench.limits futex FD`` answers
through a futex word: each line of its standard input is a number of round trips. ``... tcp PORT
SIZE`` connects to that port of this machine, and sends each message of that size back until the
connection ends, by plain blocking sockets of Python.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from array import array
from collections.abc import Callable

import numpy as np

from rcg.bench import _limits
from rcg.bench.measure import Pace, Turn

ROUND_TRIP_HOPS = 2
PAGE_BYTES = 4096
CHUNK = 200  # round trips between two readings of the clock
CONNECT_TIMEOUT_S = 60
UNCOUNTED = 10  # the first round trips after the other side was asleep


class PingPong:
    """A process that answers through a futex word, until `close`."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("rcg-ping-pong", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, PAGE_BYTES)
        self._other = subprocess.Popen(
            [sys.executable, "-m", "rcg.bench.limits", "futex", str(self._fd)],
            stdin=subprocess.PIPE,
            pass_fds=[self._fd],
            text=True,
        )

    def close(self) -> None:
        """End the other process."""
        if self._other.stdin is not None:
            self._other.stdin.close()
        self._other.wait()
        os.close(self._fd)

    def round_trips_ns(self, count: int) -> array[int]:
        """Return the times of `count` round trips, after a warm-up.

        Raises:
            TimeoutError: The other process does not answer.
        """
        stdin = self._other.stdin
        if stdin is None:
            raise RuntimeError("the ping-pong has been closed")
        stdin.write(f"{UNCOUNTED + count}\n")
        stdin.flush()
        times = array("Q")
        times.frombytes(_limits.ping_pong(self._fd, 0, UNCOUNTED + count))
        return array("q", times[UNCOUNTED:])

    def turn(self, hops: int, work_us: int = 0) -> Turn:
        """Return a turn whose samples are the times of `hops` consecutive wake-ups, and of work."""

        def turn(pace: Pace) -> array[int]:
            samples = array("q")
            end = time.perf_counter_ns() + pace.time_ns
            while len(samples) < pace.calls and time.perf_counter_ns() < end:
                chunk = self.round_trips_ns(min(CHUNK, pace.calls - len(samples)))
                samples.extend(
                    round_trip * hops // ROUND_TRIP_HOPS + work_us * 1000 for round_trip in chunk
                )
            return samples

        return turn


class TcpPingPong:
    """A process that sends messages of one size back by TCP, until `close`.

    `message` is what is sent, and `answer` what came back last.
    """

    def __init__(self, size_bytes: int) -> None:
        self.message, self.answer = bytearray(size_bytes), bytearray(size_bytes)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.settimeout(CONNECT_TIMEOUT_S)
            port = listening.getsockname()[1]
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rcg.bench.limits", "tcp", str(port), str(size_bytes)]
            )
            self._peer, _ = listening.accept()
        self._peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """End the other process."""
        self._peer.close()
        self.process.wait()

    def round_trip(self) -> None:
        """Send a message and receive it.

        Raises:
            ConnectionError: The other process has ended.
        """
        self._peer.sendall(self.message)
        if not receive(self._peer, memoryview(self.answer)):
            raise ConnectionError("the other process has ended")


def memcpy(size_bytes: int, copies: int) -> Callable[[], None]:
    """Return a function that copies `size_bytes` between warm buffers, `copies` times."""
    source = np.ones(size_bytes, dtype=np.uint8)
    target = np.zeros(size_bytes, dtype=np.uint8)

    def call() -> None:
        for _ in range(copies):
            _limits.memcpy(target, source)

    return call


def receive(peer: socket.socket, into: memoryview) -> bool:
    """Receive until a buffer is full; return False if the connection ended before."""
    filled = 0
    while filled < len(into):
        count = peer.recv_into(into[filled:])
        if not count:
            return False
        filled += count
    return True


def answer(kind: str, *numbers: int) -> None:
    """Be the answering side, of a `PingPong` ("futex") or a `TcpPingPong` ("tcp")."""
    if kind == "futex":
        (fd,) = numbers
        for line in sys.stdin:
            _limits.ping_pong(fd, 1, int(line))
        return
    port, size_bytes = numbers
    message = memoryview(bytearray(size_bytes))
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while receive(peer, message):
            peer.sendall(message)


if __name__ == "__main__":
    answer(sys.argv[1], *map(int, sys.argv[2:]))
