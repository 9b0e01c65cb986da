# SPDX-License-Identifier: Apache-2.0
"""One graph at the endpoint of another node's host, where the members of that node join.

The members of a node connect to its host, which has their shared memory, and watch its process.
The host has one connection to the driver, its *link*. What a member says goes on to the driver, and
what the driver says comes back, so the driver's ``GraphControl`` has the members of all nodes
alike. A death is seen here, by pidfd, and reported. When the link ends, for whatever reason, the
graph is over on this node: all waits end, and the members' connections are closed.

The endpoint's thread hears the members, and a thread of its own hears the driver.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final

import numpy as np

from rcg.channels.crossing import Gate
from rcg.error_text import shielding
from rcg.errors import OutOfThreads, PlacementError
from rcg.log import Log
from rcg.runtime.control import endpoint
from rcg.runtime.control.endpoint import Endpoint
from rcg.runtime.control.joining import join
from rcg.runtime.control.members import accept_link, welcome
from rcg.runtime.control.services import Handler, Peer
from rcg.runtime.node.host import NodeHost, Recorded, Recording, newest_events
from rcg.runtime.node.node import Node
from rcg.runtime.node.snapshot import describe_node
from rcg.threads import start_thread
from rcg.trace.clocks import clock_identity
from rcg.trace.model import EVENT
from rcg.wire import codec, messages, sockets
from rcg.wire.liveness import Ending
from rcg.wire.messages import Message
from rcg.wire.packets import PacketStream

_log = Log()

_controls: Final[weakref.WeakValueDictionary[str, NodeControl]] = weakref.WeakValueDictionary()
"""Those of this process, by the ids of their graphs."""

# Between two looks whether there is news for the driver: while there is some, and at rest.
_LOOK_S: Final = 0.1
_REST_S: Final = 1.0
_LOOKS: Final = 20  # that find nothing new, before it is at rest
_PART_EVENTS: Final = 512  # of one message
_MOST_SPANS: Final = 256
_MOST_SPANS_BYTES: Final = 24 * 1024  # of JSON, beside so many events
_LONGEST_NAME: Final = 200  # of 63 bytes, unless they cannot be printed


class NodeControl:
    """The control of one graph, in the host of a node that is not the driver's.

    Raises:
        OutOfDescriptors: No descriptor is left for the endpoint of this process.
    """

    def __init__(
        self,
        graph_id: str,
        secret: str,
        host: NodeHost,
        processes: Sequence[str],
        senders: Sequence[str],
    ) -> None:
        self.service_id = graph_id
        self.secret = secret
        self._host = host
        self._node = host.node
        self._name = host.node.layout.node
        self._processes = processes
        self._senders = senders
        self._members: dict[str, Peer] = {}  # of the endpoint's thread, which alone changes it
        self._over: set[str] = set()
        self._link: PacketStream | None = None
        self._gate: Gate | None = None
        self._recordings: dict[int, Recording] = {}
        self._sending: weakref.WeakSet[Node] = weakref.WeakSet()
        self._is_closed = False
        self._endpoint: Endpoint = endpoint.serve(self)
        _controls[graph_id] = self

    @property
    def address(self) -> str:
        """Where the members of this node join."""
        return self._endpoint.address

    def open(self, gate: Gate, node_ip: str, driver: str, timeout_s: float) -> None:
        """Listen for other nodes, and connect to the driver.

        Args:
            gate: Publishes what they send; closed with this.
            node_ip: The address of this node.
            driver: The address of the driver's endpoint.
            timeout_s: How long connecting may take.

        Raises:
            PlacementError: The driver cannot be reached, or no port is free.
            OutOfThreads: No more threads can be started.
        """
        self._gate = gate
        address = self._endpoint.listen_tcp(node_ip)
        opening = messages.JoinNode(
            graph=self.service_id,
            secret=self.secret,
            node=self._name,
            pid=os.getpid(),
            clock=clock_identity(),
            address=str(address),
        )
        try:
            joined = join(driver, opening, timeout_s, _any_process)
        except ConnectionAbortedError as error:
            raise PlacementError("the driver's graph has ended") from error
        except (OSError, ValueError) as error:
            raise PlacementError(
                f"the host of node {self._name} cannot reach the driver: {error}", location=node_ip
            ) from error
        link = joined.connection
        if not isinstance(joined.message, messages.Ready) or not isinstance(link, PacketStream):
            joined.close()
            raise PlacementError("the process that answered is not the driver")
        self._link = link
        name = f"rcg-link-{self._name}-{self.service_id[:6]}"
        thread = threading.Thread(target=self._listen, args=(link,), name=name, daemon=True)
        start_thread(thread, "to listen to the driver of a compiled graph")

    # --- any thread

    def link_lost(self, process: str, text: str) -> None:
        """Report that a connection ended over which frames of a process came."""
        self._tell_driver(messages.LinkLost(process=process, node=self._name, text=text))

    def _tell_driver(self, message: Message) -> None:
        link = self._link
        if link is not None:
            with contextlib.suppress(OSError, ValueError):  # the listening thread sees its end
                link.post(sockets.pack_message(message))

    def _describe(self, number: int = 0) -> None:
        """Send a snapshot of this node, as the answer to the question of that number."""
        self._tell_driver(messages.NodeHere(number=number, text=self._description()))

    def _description(self) -> str:
        return describe_node(self._node, str(self._endpoint.refusals()), list(self._sending))

    def add_sender(self, node: Node) -> None:
        """Also describe what a loop of this process sends."""
        self._sending.add(node)

    def close(self) -> None:
        """End it: the graph is over on this node. Idempotent, any thread."""
        if self._is_closed:
            return
        self._is_closed = True
        self._node.end_broken("")  # the first end stands
        if self._gate is not None:
            self._gate.close()
        self._endpoint.close(self)
        self._host.close()
        link = self._link
        if link is not None:
            link.close()

    # --- the thread that hears the driver

    def _listen(self, link: PacketStream) -> None:
        try:
            waiter = sockets.Waiter(link, -1)
            last, same = self._tell_news(""), 0
            while not self._is_closed:
                try:
                    waiter.wait(_LOOK_S if same < _LOOKS else _REST_S)
                except TimeoutError:
                    self._tell_recorded()
                    before, last = last, self._tell_news(last)
                    same = same + 1 if last == before else 0
                    continue
                with sockets.receive(link) as received:
                    if received.message is None:
                        return
                    self._hear_driver(received.message)
        except (OSError, ValueError):
            return  # the end of the link
        except BaseException:  # noqa: BLE001 - members must not go on without a driver
            _log.exception("rcg: the link of graph %s failed", self.service_id)
        finally:
            with shielding():
                self.close()

    def _tell_news(self, last: str) -> str:
        """Send a snapshot if anything has changed since the last one; returns what changed."""
        now = "".join(f"{self._node.now(each)}" for each in self._node.layout.members)
        if now != last:
            self._describe()
        return now

    def _hear_driver(self, message: Message) -> None:
        match message:
            case messages.ToMember(process=process, text=text):
                peer = self._members.get(process)
                if peer is not None:
                    with contextlib.suppress(OSError):  # also one that is stopped and does not read
                        peer.send(codec.decode(text.encode()))
            case messages.EndNode(is_closed=True):
                self._node.end_closed()
            case messages.EndNode(culprit=culprit):
                self._node.end_broken(culprit)
            case messages.RecordEvents(number=number, most=most):
                with contextlib.suppress(OSError, OutOfThreads):  # the answer will have no events
                    self._recordings[number] = Recording(self._host, most)
                self._describe(number)
            case messages.AskEvents():
                self._start_telling(message)
            case messages.AskNode(number=number):
                self._describe(number)
            case _:
                raise ValueError("the host of a node expects no such message")

    def _tell_recorded(self) -> None:
        """Send what was recorded so far: if this process dies, the rest is lost with it."""
        for number, recording in self._recordings.copy().items():
            for each in recording.news():
                for part, data in _parts_of(each):
                    self._send_events(number, part, data, left=1)

    def _send_events(self, number: int, part: Recorded, data: bytes, *, left: int) -> None:
        link = self._link
        if link is not None:
            sockets.send(link, _events_of(number, part, left=left), body=data)

    def _start_telling(self, asked: messages.AskEvents) -> None:
        """Send the events on a thread of its own: they may be many."""
        recording = self._recordings.pop(asked.recording, None)
        if recording is not None:
            recording.stop()
        if asked.recording and recording is None:
            found: Iterator[Recorded] = iter(())  # it could not begin
        else:
            found = newest_events(self._node) if recording is None else recording.recorded()
        args = asked.number, found
        tell = self._tell_events
        thread = threading.Thread(target=tell, args=args, name="rcg-events", daemon=True)
        try:
            start_thread(thread, "to send the events of a profile")
        except OutOfThreads:
            tell(*args)

    def _tell_events(self, number: int, found: Iterator[Recorded]) -> None:
        parts = [part for each in found for part in _parts_of(each)]
        if not parts:
            parts = [(Recorded(self._node.process, 0, np.empty(0, EVENT), ()), b"")]
        with contextlib.suppress(OSError, ValueError):  # the end of the link
            for left, (part, data) in zip(reversed(range(len(parts))), parts, strict=True):
                self._send_events(number, part, data, left=left)

    # --- called by the endpoint's thread

    @property
    def is_over(self) -> bool:
        """See ``Service``. Any thread."""
        return self._is_closed

    def look(self) -> None:
        """Nothing is left to be done."""

    def on_lost(self, peer: Peer, ending: Ending) -> None:
        """A member's connection or process has ended."""
        if self._members.pop(peer.name, None) is not None:
            self._describe()  # its last op
            how, why = ending.how.name, ending.why[:1000]
            self._tell_driver(messages.MemberLost(process=peer.name, how=how, why=why))

    def fail(self, why: str) -> None:
        """End the graph on this node: its members cannot be watched any more."""
        _log.warning("rcg: graph %s ends on this node: %s", self.service_id, why)
        link = self._link
        if link is not None:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def on_released(self) -> None:
        """See ``Service``."""
        self._members.clear()

    # --- the endpoint's thread: handlers of messages

    def _welcome(self, peer: Peer, hello: messages.Hello) -> bool:
        process = hello.process
        if process not in self._processes or process in self._over | self._members.keys():
            return False
        if not welcome(peer, self._host.descriptors()):
            return False
        peer.name = process
        self._members[process] = peer
        self._pass_on(peer, hello)
        return True

    def _pass_on(self, peer: Peer, message: Message) -> bool:
        text = codec.encode(message).decode()
        self._tell_driver(messages.FromMember(process=peer.name, pid=peer.pid, text=text))
        return True

    def _on_ended(self, peer: Peer, message: Message) -> bool:
        self._over.add(peer.name)
        self._members.pop(peer.name, None)
        self._pass_on(peer, message)
        return False

    def _on_lost_link(self, peer: Peer, message: messages.LinkLost) -> bool:
        self._tell_driver(message)
        return True

    def _open_link(self, peer: Peer, opening: messages.OpenLink) -> bool:
        gate, name = self._gate, self._name
        if gate is None:
            return False
        return accept_link(peer, opening, name, gate, self._senders, self.link_lost)

    handlers: ClassVar[Mapping[type[Message], Handler]] = {
        messages.Hello: _welcome,
        messages.OpenLink: _open_link,
        messages.Stopped: _on_ended,
        messages.Failed: _on_ended,
        messages.LinkLost: _on_lost_link,
        **dict.fromkeys(
            (messages.Here, messages.TorchProfiled, messages.Prepared, messages.Done), _pass_on
        ),
    }


def note_sender(graph_id: str, node: Node) -> None:
    """Note the place of a loop of a graph, whose node this process may host."""
    control = _controls.get(graph_id)
    if control is not None:
        control.add_sender(node)


def _any_process(_: int, __: int) -> None:
    """Accept any process at the other end: it has proved that it knows the secret."""


def _events_of(number: int, found: Recorded, *, left: int) -> messages.EventsHere:
    process, lost, _, spans = found
    spans = spans[:_MOST_SPANS]
    return messages.EventsHere(number=number, process=process, lost=lost, spans=spans, left=left)


def _parts_of(found: Recorded) -> Iterator[tuple[Recorded, bytes]]:
    """Yield the events of a process in parts that fit a message; the first has the spans."""
    sizes = [len(json.dumps(name)) for name in found.spans]
    if sum(sizes) > _MOST_SPANS_BYTES:  # they fill a message of their own
        names = zip(found.spans, sizes, strict=True)
        spans = tuple([name if size <= _LONGEST_NAME else name[:30] for name, size in names])
        yield found._replace(spans=spans, lost=0, events=found.events[:0]), b""
        found = found._replace(spans=())
    for start in range(0, max(1, len(found.events)), _PART_EVENTS):
        part = found.events[start : start + _PART_EVENTS]
        if start:
            found = found._replace(lost=0, spans=())
        yield found, part.tobytes()
