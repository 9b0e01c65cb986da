# SPDX-License-Identifier: Apache-2.0
"""A process's place on a node: its access to the board of a graph there.

All processes of a graph on one node are members of one board. Each has a number, ends of channels
and an arena of its own. Each can read what the others do, even if those hang or died, and each can
end all waits. Processes and channels have their names from the plan.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from rcg import _native
from rcg.channels import shm
from rcg.channels.base import Groups
from rcg.channels.crossing import Links
from rcg.errors import InternalError
from rcg.options import Options
from rcg.runtime.heap import MUCH_BYTES, give_back_heap
from rcg.runtime.node.arrays import Lender, empty_in
from rcg.runtime.node.layout import Layout
from rcg.runtime.node.memory import EVENTS_PER_MEMBER, Shared
from rcg.serialization import Codec, Encoded
from rcg.serialization.pinned import Pins
from rcg.streams import Handover
from rcg.trace.model import Events
from rcg.trace.recorder import Counters, Now, Recorder, counters_of, now_of
from rcg.trace.spans import SpanWriter

ABI_VERSION: Final = _native.ABI_VERSION
"""The layout of shared memory, which all members must agree on."""


class _NoGroups:
    """The groups of a process that is in none."""

    def communicator(self, group: str) -> NoReturn:
        raise InternalError(f"this process is not in the group {group}")

    members = labels = devices = communicator


_NO_CULPRIT: Final = -1


class MemoryUse(NamedTuple):
    """The shared memory of a graph on one node.

    Attributes:
        used_bytes: Bytes that blocks take, including free blocks that keep their memory.
        cap_bytes: Bytes that blocks may take.
        claimed_bytes: Bytes in blocks of this process that are claimed or on their way to readers.
        stashes: Values that passed through a process's heap, because there was no shared memory.
    """

    used_bytes: int
    cap_bytes: int
    claimed_bytes: int
    stashes: int


class Node:
    """This process's place on its node; an ``Endpoint`` and a ``Waiter`` of its channels.

    Args:
        shared: The shared memory of its node. The caller keeps the descriptors.
        layout: The numbers of processes and channels.
        process: Which process this is.
        options: Of the graph.
        codec: Encodes this process's values.
        is_looping: Whether one thread runs a program here, and records each op; otherwise any
            number of threads submit and fetch.
        groups: The communicator groups that this process is in.
        queues: What is on its way through each local channel of this process.
        handover: Orders what devices do for the values in these.

    Raises:
        OSError: The memory cannot be mapped.
        FrameDamaged: These are no segments of rcg's.
    """

    def __init__(
        self,
        shared: Shared,
        layout: Layout,
        process: str,
        options: Options,
        codec: Codec,
        *,
        is_looping: bool,
        groups: Groups | None = None,
        queues: Mapping[str, deque[Any]] | None = None,
        handover: Handover | None = None,
    ) -> None:
        self.process = process
        self.handover = handover
        self._is_looping = is_looping
        self._pins: dict[str, Pins] = {}  # by type of devices
        self.queues: Mapping[str, deque[Any]] = queues or {}
        self.groups: Groups = groups or _NoGroups()
        self.layout = layout
        self.codec = codec
        self.rings: Mapping[str, int] = layout.rings
        self.encode: Callable[..., Encoded] = codec.encode
        member = self.member = _native.Member(
            shared.board,
            shared.arenas,
            layout.members[process],
            options.wait,
            options.record,
            is_looping,
            layout.memory_sources[process],
            shm.ERRORS,
            shared.bell,
        )
        # Bound once: the paths on which microseconds count make one call.
        self.submit: Callable[..., int | None] = member.submit
        self.wait_any: Callable[..., int] = member.wait_any
        self.interrupt = member.interrupt
        self.await_frames: Callable[[Any, int], None] = member.await_frames
        self.listen = member.listen
        self.mark = member.mark
        self.record = member.record
        self.waited = member.waited
        self.survey = member.survey
        self.expect = member.expect
        self.lend: Lender = member.loan
        self._links: Links | None = None

    def pins(self, device: str) -> Pins | None:
        """See ``Endpoint``."""
        if not self._is_looping or device in ("default", "cpu"):
            return None
        return self._pins.setdefault(device, Pins(device, shm.BUFFER_TYPES[:1]))

    # --- other nodes

    def link(
        self,
        connections: Mapping[str, socket.socket],
        crossings: Mapping[str, Sequence[str]],
        failed: Callable[[str, str], object],
    ) -> None:
        """Send frames to other nodes from now on; before any channel is opened.

        Args:
            connections: The connection to the gate of each node, by its name.
            crossings: The nodes to which each channel crosses.
            failed: Called with a node and a text if a connection fails; it must not block.

        Raises:
            OSError: There is no descriptor or thread for it.
        """
        if connections:
            self._links = Links(self.member, connections, self.layout.passes, crossings, failed)

    def carry(self, channel: str, writer: Any) -> None:
        """See ``Endpoint``."""
        if self._links is not None:
            self._links.carry(channel, writer)

    def queued(self) -> dict[str, tuple[int, int]]:
        """Return (bytes sent so far, frames that wait to be sent) for each other node."""
        return {} if self._links is None else self._links.queued()

    def unlink(self) -> None:
        """Send nothing more to other nodes. Idempotent."""
        if self._links is not None:
            self._links.close()

    # --- the end

    @property
    def is_over(self) -> bool:
        """Whether the graph was closed, or broke."""
        return self.member.poisoned[0] != 0

    def end_closed(self) -> None:
        """End every wait of every member: the graph was closed. The first end stands."""
        self.member.poison(_native.POISON_CLOSED)

    def end_broken(self, process: str) -> None:
        """End every wait of every member: a process is gone. The first end stands.

        A process on another node has no number here, so nobody here learns from the board which.
        """
        self.member.poison(_native.POISON_BROKEN, self.layout.members.get(process, _NO_CULPRIT))

    def forget(self, process: str) -> None:
        """Let go of the blocks that a dead process held."""
        self.member.forget(self.layout.members[process])

    # --- what processes do

    @property
    def age_s(self) -> float:
        """See ``NodeView``: what this node says is new."""
        return 0.0

    def now(self, process: str) -> Now:
        """Return what a process does now."""
        return now_of(self.member, self.layout.members[process])

    def counters(self, process: str) -> Counters:
        """Return the counters of a process."""
        return counters_of(self.member, self.layout.members[process])

    def waiting_since_ns(self, process: str) -> int:
        """Return since when a process sleeps; 0 if it does not."""
        return self.member.waiting_since(self.layout.members[process])

    def newest_events(self, process: str) -> Events:
        """Return the events of a process that its recorder still has."""
        # Older ones that lie about since a profile are not asked for: there are holes between.
        first = max(0, self.now(process).events - EVENTS_PER_MEMBER)
        return Recorder(self.member, self.layout.members[process], first).drain()

    def spans(self, process: str) -> tuple[str, ...]:
        """Return the names of a process's spans, by their numbers."""
        return tuple(self.member.spans(self.layout.members[process]))

    def span_writer(self, execution: Callable[[], int]) -> SpanWriter:
        """Return the recorder of this process's spans.

        Args:
            execution: Returns the index of the execution that runs now.
        """
        return SpanWriter(self.member, execution)

    def unread(self, channel: str) -> list[int]:
        """Return how many frames of a channel each of its readers has not read yet."""
        published, consumed = self.member.ring(self.layout.rings[channel])
        return [published - seen for seen in consumed]

    # --- memory

    def empty(self, shape: Any, dtype: Any) -> Any:
        """Return a new array in this process's shared memory; see ``arrays.empty``."""
        return empty_in(self.lend, shape, dtype)

    def memory(self) -> MemoryUse:
        """Return how much shared memory the graph has here."""
        found = self.member.statistics()
        return MemoryUse(*(found[name] for name in MemoryUse._fields))

    def unpin(self) -> None:
        """Unlock the memory that was locked for devices; before it is unmapped."""
        for pins in self._pins.values():
            pins.close()

    def trim(self) -> None:
        """Give this process's free blocks back to the system, and unlock all blocks.

        If it has moved large values, methods have freed some, too, and the C library keeps these.
        While memory is locked here, its owner cannot give it back to the system either.
        """
        for pins in self._pins.values():
            pins.release()
        self.member.trim()
        if int(self.newest_events(self.process)["bytes"].sum()) >= MUCH_BYTES:
            give_back_heap()
