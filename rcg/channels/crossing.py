# SPDX-License-Identifier: Apache-2.0
"""Channels between nodes: the links by which a process sends frames, and the gate that takes them.

::

    writer's node                                  readers' node
    write --> ring --> reader                      gate --> ring --> readers
                `----> link, from the same slot --TCP--^

A frame is encoded once and lies in the ring of the writer's node. The writer's process reads that
ring, too, and sends each frame to the gates of the other nodes that have readers. A gate publishes
it in a ring of its own node, so for readers a channel is a ring wherever they are. The connections
have proved that they belong to the graph.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from rcg import _native
from rcg.channels.base import NoMemory
from rcg.threads import out_of_threads


class Links:
    """A process's connections to the gates of other nodes.

    Args:
        member: The process's member of its node's shared memory.
        connections: The connection to each node, by the node's name; closed by ``close``.
        passes: The number of each channel that crosses.
        crossings: The nodes to which each of these goes.
        failed: Called once with a node and a text if its connection fails, on a thread of the
            links. It must not block.
    """

    def __init__(
        self,
        member: _native.Member,
        connections: Mapping[str, socket.socket],
        passes: Mapping[str, int],
        crossings: Mapping[str, Sequence[str]],
        failed: Callable[[str, str], object],
    ) -> None:
        self._connections = dict(connections)
        nodes = self._nodes = list(self._connections)
        self._passes = passes
        self._crossings = crossings

        def on_failure(link: int, error: int) -> None:
            failed(nodes[link], os.strerror(error))

        fds = [each.fileno() for each in self._connections.values()]
        self._links: _native.Links | None
        try:
            self._links = _native.Links(member, fds, on_failure)
        except BlockingIOError as error:
            raise out_of_threads(error, "to send frames to other nodes") from error

    def carry(self, channel: str, writer: _native.Writer) -> None:
        """Have the frames of a writer go to the other nodes that read its channel."""
        nodes = self._crossings.get(channel, ())
        if nodes and self._links is not None:
            bits = sum(1 << self._nodes.index(node) for node in nodes)
            writer.send_by(self._links, self._passes[channel], bits)

    def queued(self) -> dict[str, tuple[int, int]]:
        """Return (bytes sent so far, frames that wait to be sent), by node."""
        links = self._links  # another thread may close it
        found = [] if links is None else links.statistics()
        return {
            node: (sent, waiting)
            for node, (sent, waiting, _) in zip(self._nodes, found, strict=False)
        }

    def close(self) -> None:
        """Send nothing more, and close the connections. Idempotent, any thread."""
        links, self._links = self._links, None
        if links is not None and links.stop():
            for connection in self._connections.values():
                connection.close()


class Passage(NamedTuple):
    """A channel that arrives at a node."""

    channel: str  # its id in the plan
    number: int  # on the way between nodes
    ring: int  # the number of its ring on this node
    op: int  # the Pass in the gate's program
    writer: str  # the process that sends it

    # Whether its frames arrive, through the heap, even where they are larger than the node's shared
    # memory may be: a rendezvous follows on these frames, and a failure in place of one would keep
    # only some of its processes away.
    is_awaited: bool = False


_WHY: Final[Mapping[int, str]] = {
    _native.LOST_CLOSED: "the connection was closed",
    _native.LOST_SYSTEM: "the connection failed",
    _native.LOST_FRAME: "something arrived that is no frame of rcg's",
    _native.LOST_CHANNEL: "a frame arrived of a channel that this process does not send",
    _native.LOST_ORDER: "frames are missing or came twice",
    _native.LOST_MEMORY: "this process has no memory left",
}


def loss_text(why: int, error: int, channel: str | None, expected: int, found: int) -> str:
    """Return what a gate reports of a connection that has ended, as text."""
    text = _WHY.get(why, "it ended")
    if channel is not None and why in (_native.LOST_ORDER, _native.LOST_CHANNEL):
        text += f" (channel {channel}"
        if why == _native.LOST_ORDER:
            text += f": execution {found} came, {expected} was next"
        text += ")"
    if why == _native.LOST_CLOSED and error:
        return f"{text} within a frame"
    return f"{text}: {os.strerror(error)}" if why == _native.LOST_SYSTEM and error else text


class Gate:
    """Publishes frames from other nodes in the rings of its own.

    Args:
        member: A member of the node's shared memory, which from now on only the gate uses, except
            to look at the recorders and rings of others, and to end their waits.
        passages: What arrives.
        lost: Called with the process that sent and a text when a connection has ended, on the
            gate's thread. It must not block.
        refusal: Returns what a ``Failure`` frame carries in place of a frame of a channel for which
            there is no memory.
    """

    def __init__(
        self,
        member: _native.Member,
        passages: Sequence[Passage],
        lost: Callable[[str, str], object],
        refusal: Callable[[str, NoMemory], bytes],
    ) -> None:
        senders = self._senders = list(dict.fromkeys(passage.writer for passage in passages))
        self._passages = passages
        channels = {passage.number: passage.channel for passage in passages}

        def on_loss(
            sender: int, channel: int, why: int, error: int, expected: int, found: int
        ) -> None:
            text = loss_text(why, error, channels.get(channel), expected, found)
            lost(senders[sender], text)

        def on_refusal(
            channel: int, execution: int, wanted: int, used: int, cap: int, reason: int
        ) -> bytes:
            return refusal(channels[channel], NoMemory(wanted, used, cap, reason))

        entries = [(each.number, each.ring, each.op, each.is_awaited) for each in passages]
        self._gate: _native.Gate | None
        try:
            self._gate = _native.Gate(member, entries, on_loss, on_refusal)
        except BlockingIOError as error:
            raise out_of_threads(error, "to receive frames of other nodes") from error

    def accept(self, process: str, connection: socket.socket) -> None:
        """Take over a connection, from which frames of a process come; no descriptor is needed.

        Raises:
            ValueError: That process sends nothing to this node.
            OSError: There is no memory for it.
        """
        allowed = [at for at, each in enumerate(self._passages) if each.writer == process]
        gate = self._gate
        if not allowed or gate is None:
            raise ValueError(f"{process} sends nothing to this node")
        connection.setblocking(True)
        fd = connection.detach()
        try:
            gate.add(fd, self._senders.index(process), allowed)
        except BaseException:
            os.close(fd)
            raise

    def passed(self) -> tuple[int, int]:
        """Return (frames, bytes) that have passed so far."""
        gate = self._gate
        return (0, 0) if gate is None else gate.statistics()

    def close(self) -> None:
        """Publish nothing more. Idempotent, any thread."""
        gate, self._gate = self._gate, None  # which holds what is called, and so all of us
        if gate is not None:
            gate.stop()
