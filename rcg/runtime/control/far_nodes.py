# SPDX-License-Identifier: Apache-2.0
"""The other nodes of a graph, as its driver has them: a link to the host of each.

A member of another node is a *far member*: what is said to it goes over the link of its node, and
what it says comes from there. To ``GraphControl`` it is a peer like those on the driver's own node.
The newest snapshot of each node is kept, also when the node is gone.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rcg.options import Deadline
from rcg.runtime.control.services import Peer
from rcg.runtime.node.host import Recorded
from rcg.runtime.node.layout import Layout
from rcg.runtime.node.snapshot import Snapshot
from rcg.runtime.sleepers import Sleepers, take_all
from rcg.trace.model import EVENT
from rcg.trace.recorder import events_from
from rcg.wire import codec
from rcg.wire.messages import (
    AskEvents,
    AskNode,
    EndNode,
    EventsHere,
    JoinNode,
    Message,
    NodeHere,
    Ready,
    RecordEvents,
    ToMember,
)


@dataclass(frozen=True, slots=True)
class FarNode:
    """Another node of a graph."""

    layout: Layout
    members: tuple[str, ...]  # the processes there that join, its host first

    @property
    def name(self) -> str:
        """Its name in the plan."""
        return self.layout.node


@dataclass(frozen=True, slots=True)
class FarMember:
    """A member on another node, as a peer that messages are sent to."""

    name: str
    pid: int  # on its own machine
    link: Peer  # the connection to the host of its node

    def send(self, message: Message) -> None:
        """Send it a message; see ``Peer.send``."""
        self.link.send(ToMember(process=self.name, text=codec.encode(message).decode()))


class FarNodes:
    """The other nodes of one graph. The endpoint's thread changes it; any thread may look.

    Args:
        nodes: These nodes.
        sleepers: Woken when something has arrived.
        notify: Has the endpoint's thread call ``look``.
        is_over: Whether no host will answer, or this thread must not wait for answers.
    """

    def __init__(
        self,
        nodes: Sequence[FarNode],
        sleepers: Sleepers,
        notify: Callable[[], None],
        is_over: Callable[[], bool],
    ) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._sleepers = sleepers
        self._notify = notify
        self._is_over = is_over
        self._home = {member: node.name for node in nodes for member in node.members}
        self.links: dict[str, Peer] = {}
        self.addresses: dict[str, str] = {}  # of the hosts' endpoints, over TCP
        self.clocks: dict[str, str] = {}
        self._joined: set[str] = set()
        self._snapshots = {node.name: Snapshot.unknown(node.layout) for node in nodes}
        self._numbers = itertools.count(1)
        self._asked: deque[int] = deque()
        self._answered: dict[str, int] = dict.fromkeys(self._nodes, 0)
        self._wanted: deque[Message] = deque()  # that other threads want to be sent
        # By the number of the question: the nodes that are not complete, and what came.
        self._pending: dict[int, set[str]] = {}
        self._events: dict[int, list[tuple[EventsHere, bytes]]] = {}

    def __bool__(self) -> bool:
        return bool(self._nodes)

    # --- any thread

    def node_of(self, process: str) -> FarNode | None:
        """Return the node of a process; None if it is on the driver's."""
        name = self._home.get(process)
        return None if name is None else self._nodes[name]

    def host_of(self, name: str) -> str:
        """Return the process that hosts a node."""
        return self._nodes[name].members[0]

    def wait_joined(self, deadline: Deadline) -> list[str]:
        """Wait until the hosts of all nodes have joined; returns those that have not."""

        def missing() -> list[str]:
            return [name for name in self._nodes if name not in self._joined]

        self._sleepers.wait(lambda: not missing() or self._is_over(), deadline.remaining_s())
        return missing()

    def ask(self) -> int:
        """Ask each node what it does; returns the number of the question, at once."""
        number = next(self._numbers)
        if self.links and not self._is_over():
            self._asked.append(number)
            self._notify()
        return number

    def wait(self, number: int, timeout_s: float) -> None:
        """Wait until all nodes have answered a question, or for so long."""

        def have_answered() -> bool:
            return all(self._answered[name] >= number for name in self.links.copy())

        self._sleepers.wait(lambda: self._is_over() or have_answered(), timeout_s)

    def snapshots(self) -> list[Snapshot]:
        """Return what each node does, as it was last seen."""
        return list(self._snapshots.values())

    def end(self, *, is_closed: bool, culprit: str = "") -> None:
        """End every wait on these nodes; returns at once."""
        if self._nodes:
            self._wanted.append(EndNode(is_closed=is_closed, culprit=culprit))
            self._notify()

    def new_recording(self) -> int:
        """Return the number of a recording that is about to begin."""
        return next(self._numbers)

    def record(self, recording: int, most: int, timeout_s: float) -> None:
        """Keep at most so many events of each node from now on, until ``events`` or ``drop``.

        This waits until the hosts have begun. The recording's number is from ``new_recording``.
        """
        self._events[recording] = []
        if self.links and not self._is_over():
            self._wanted.append(RecordEvents(number=recording, most=most))
            self._notify()
            self.wait(recording, timeout_s)

    def drop(self, recording: int) -> None:
        """End a recording, if it goes on; nobody wants its events."""
        if self._events.pop(recording, None) is not None:
            self._wanted.append(AskEvents(number=next(self._numbers), recording=recording))
            self._notify()

    def events(self, recording: int, timeout_s: float) -> list[Recorded]:
        """Return the events of a recording, which ends; or with 0 the newest of each process.

        Those of a node that is gone, or does not send anything for ``timeout_s``, are missing.
        """
        number = next(self._numbers)

        def is_complete() -> bool:
            return not self._pending[number] & self.links.keys() or self._is_over()

        self._events[number] = []
        self._pending[number] = set(self.links.copy())
        try:
            if self._pending[number] and not self._is_over():
                self._wanted.append(AskEvents(number=number, recording=recording))
                self._notify()
            seen = -1
            while not is_complete() and seen < len(self._events[number]):
                seen = len(self._events[number])
                self._sleepers.wait(is_complete, timeout_s)
            return _join_parts([*self._events.get(recording, ()), *self._events[number]])
        finally:
            self._events.pop(recording, None)
            del self._pending[number], self._events[number]

    # --- the endpoint's thread

    def look(self) -> None:
        """Send what other threads want to be sent."""
        for message in take_all(self._wanted):
            self.tell(message)
        asked = max(take_all(self._asked), default=0)
        if asked:
            self.tell(AskNode(number=asked))

    def tell(self, message: Message) -> None:
        """Send a message to every host."""
        for link in list(self.links.values()):
            with contextlib.suppress(OSError):
                link.send(message)

    def join(self, peer: Peer, opening: JoinNode) -> bool:
        """Take in a host; returns whether it belongs to the graph."""
        name = opening.node
        if name not in self._nodes or name in self._joined:
            return False
        peer.send(Ready())
        peer.name = name
        self.addresses[name] = opening.address
        self.clocks[name] = opening.clock
        self.links[name] = peer
        self._joined.add(name)
        self._sleepers.wake()
        return True

    def hear(self, peer: Peer, message: NodeHere) -> None:
        """Take the snapshot of a node.

        Raises:
            ValueError: It is no snapshot of that node.
        """
        node = self._nodes[peer.name]
        self._snapshots[peer.name] = Snapshot.parse(message.text, node.layout)
        self._answered[peer.name] = max(self._answered[peer.name], message.number)
        self._sleepers.wake()

    def take_events(self, peer: Peer, message: EventsHere, data: bytes) -> None:
        """Take a part of the events of a node.

        Raises:
            ValueError: They are not of this node, or no events.
        """
        if message.process not in self._nodes[peer.name].layout.members:
            raise ValueError(f"{message.process} is not on node {peer.name}")
        if len(data) % EVENT.itemsize:
            raise ValueError("these are no events")
        found = self._events.get(message.number)
        if found is None:
            return  # no thread waits for them any more
        found.append((message, data))
        if not message.left:
            self._pending.get(message.number, set()).discard(peer.name)
            self._sleepers.wake()

    def forget(self, peer: Peer) -> FarNode | None:
        """Note that a link has ended; returns its node, None if the peer is no host."""
        if self.links.get(peer.name) is not peer:
            return None
        del self.links[peer.name]
        self._sleepers.wake()
        return self._nodes[peer.name]

    def is_home(self, peer: Peer, process: str) -> bool:
        """Whether a host may speak for a process."""
        return self.links.get(peer.name) is peer and self._home.get(process) == peer.name


def _join_parts(parts: list[tuple[EventsHere, bytes]]) -> list[Recorded]:
    """Return the events of each process, of which parts have come in order."""
    data: dict[str, list[bytes]] = {}
    lost: dict[str, int] = {}
    spans: dict[str, tuple[str, ...]] = {}
    for message, events in parts:
        process = message.process
        data.setdefault(process, []).append(events)
        lost[process] = lost.get(process, 0) + message.lost
        spans[process] = message.spans or spans.get(process, ())
    return [
        Recorded(process, lost[process], events_from(b"".join(found)), spans[process])
        for process, found in data.items()
    ]
