# SPDX-License-Identifier: Apache-2.0
"""Channels between two threads of one process: values pass as they are, nothing is copied.

The writer and the reader are each a member of the graph's shared memory, so a wait here ends as
every other does: by the other side, by poison, or by a signal handler. Frames are in a deque, whose
operations are single steps; there is no lock. Each side stores first and then wakes the other, and
checks once more before it sleeps: a wake-up in between ends the sleep at once, because ``wait_any``
compares the positions that it has seen.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rcg.channels.base import Endpoint, TimedOut
from rcg.ir.channels import ChannelSpec

__all__ = ["LocalQueue", "LocalReader", "LocalWriter"]


class LocalQueue:
    """The state that both ends of a local channel share.

    Args:
        spec: The channel.
        writer: Endpoint of the writing lane.
        reader: Endpoint of the reading lane.
    """

    __slots__ = ("frames", "has_parts", "reader", "slots", "writer")

    def __init__(self, spec: ChannelSpec, writer: Endpoint, reader: Endpoint) -> None:
        self.frames: deque[Any] = deque()
        self.slots = spec.slots
        self.has_parts = len(spec.nodes) > 1
        self.writer = writer
        self.reader = reader

    def open_writer(self, op: int) -> LocalWriter:
        """Return the writing end; ``op`` is its Write in the program."""
        return LocalWriter(self, op)

    def open_reader(self, op: int) -> LocalReader:
        """Return the reading end; ``op`` is its Read in the program."""
        return LocalReader(self, op)


class _End:
    """Base of both ends: their position, and waiting."""

    __slots__ = ("_member", "_op", "_peer", "_queue", "_seen", "_seq")

    def __init__(self, queue: LocalQueue, op: int, own: Endpoint, peer: Endpoint) -> None:
        self._queue = queue
        self._op = op
        self._member = own.member
        self._peer = peer.member
        self._seen = 0
        self._seq = 0

    @property
    def seq(self) -> int:
        """See ``base.Writer`` and ``base.Reader``."""
        return self._seq

    def _wait_while(self, is_early: Callable[[], bool], timeout_ns: int | None) -> None:
        """Wait while a condition holds, which the other side ends."""
        started_ns = time.monotonic_ns()
        try:
            while is_early():
                left = None
                if timeout_ns is not None:
                    left = timeout_ns - (time.monotonic_ns() - started_ns)
                    if left <= 0:
                        raise TimedOut
                self._seen = self._member.wait_any([], left, self._seen)
        finally:
            self._member.waited(time.monotonic_ns() - started_ns)

    def _done(self) -> None:
        self._seq += 1
        self._peer.interrupt()


class LocalWriter(_End):
    """The writing end; see ``base.Writer``."""

    __slots__ = ("_has_parts",)

    def __init__(self, queue: LocalQueue, op: int) -> None:
        super().__init__(queue, op, queue.writer, queue.reader)
        self._has_parts = queue.has_parts

    def write(self, value: Any, failed: object = None, /) -> None:
        """See ``base.Writer`` and ``base.PartsWriter``. The reader gets the very objects."""
        if self._has_parts:
            value = tuple(value)
        queue = self._queue
        self._member.mark(self._op, self._seq)
        if len(queue.frames) >= queue.slots:
            self._wait_while(lambda: len(queue.frames) >= queue.slots, None)
        queue.frames.append(value)
        self._done()


class LocalReader(_End):
    """The reading end; see ``base.Reader``."""

    __slots__ = ()

    def __init__(self, queue: LocalQueue, op: int) -> None:
        super().__init__(queue, op, queue.reader, queue.writer)

    def read(self, timeout_ns: int | None = None, /) -> Any:
        """See ``base.Reader``. Returns the very object that was written."""
        frames = self._queue.frames
        self._member.mark(self._op, self._seq)
        if not frames:
            self._wait_while(lambda: not frames, timeout_ns)
        value = frames.popleft()
        self._done()
        return value

    def pending(self) -> int:
        """Return how many values could be read without waiting."""
        return len(self._queue.frames)
