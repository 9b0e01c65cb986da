# SPDX-License-Identifier: Apache-2.0
"""Channels between two lanes of one process: values pass as they are, nothing is copied.

The value waits in a queue of the process, and an empty frame in a ring of shared memory reports it.
So waiting, the end of the graph, the flight recorder and the count of what is unread are those of
every ring, and the driver sees them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from rcg.channels.base import Endpoint
from rcg.ir.channels import ChannelSpec
from rcg.serialization import KIND_BYTES, Failure
from rcg.streams import Marks

__rcg_plumbing__ = True  # see rcg.frames

LocalQueue = deque[tuple[int, Any, Marks]]
"""The values that the writer has handed over and the reader has not taken, each with the number of
its frame, and with what devices must have done before it is used. An interrupt between a frame and
its value loses that value, and shifts no other."""

_NOTHING: Final = b""


def _unread(data: Any, buffers: Sequence[Any] = ()) -> None:
    """Decode a frame that holds nothing."""


class LocalWriter:
    """The writing end; see ``base.Writer``, ``base.PartsWriter`` and ``channels.open_writer``."""

    __slots__ = ("_handover", "_has_parts", "_queue", "_ring", "_write")

    def __init__(self, spec: ChannelSpec, op: int, endpoint: Endpoint) -> None:
        self._ring = endpoint.member.writer(endpoint.rings[spec.id], op)
        self._write = self._ring.write
        self._queue = endpoint.queues[spec.id]
        self._handover = endpoint.handover
        self._has_parts = len(spec.nodes) > 1

    @property
    def seq(self) -> int:
        """See ``base.End``."""
        return int(self._ring.seq)

    def write(self, value: Any, failed: object = None, /) -> None:
        """Hand a value over: the reader gets the very object, or the objects of its parts."""
        self._publish([tuple(value) if self._has_parts else value])

    def hand_over(self, holder: list[Any], index: int, /) -> None:
        """Hand ``holder[index]`` over and let go of it, so that the reader alone holds it."""
        value = [holder[index]]
        holder[index] = None
        self._publish(value)

    def _publish(self, value: list[Any]) -> None:
        """Publish the value in a list, which is empty then: no frame of Python holds it."""
        number = self._ring.seq
        marks = () if self._handover is None else self._handover.mark()
        self._queue.append((number, value.pop(), marks))
        try:
            self._write(KIND_BYTES, _NOTHING)
        except BaseException:
            if self._ring.seq == number:
                self._queue.pop()  # nothing was written
            raise


class LocalReader:
    """The reading end; see ``base.Reader`` and ``channels.open_reader``."""

    __slots__ = ("_handover", "_queue", "_ring")

    def __init__(self, spec: ChannelSpec, op: int, endpoint: Endpoint) -> None:
        self._ring = endpoint.member.reader(endpoint.rings[spec.id], op, _unread, Failure)
        self._queue = endpoint.queues[spec.id]
        self._handover = endpoint.handover

    @property
    def seq(self) -> int:
        """See ``base.End``."""
        return int(self._ring.seq)

    def read(self, timeout_ns: int | None = None, /) -> Any:
        """See ``base.Reader``. Returns the very object that was written."""
        self._ring.read(timeout_ns)
        taken = self._ring.seq - 1
        number, value, marks = self._queue.popleft()
        while number < taken:  # left behind by an interrupt
            number, value, marks = self._queue.popleft()
        if self._handover is not None:
            self._handover.wait(marks)
        return value

    def pending(self) -> int:
        """Return how many values could be read without waiting."""
        return int(self._ring.pending())
