# SPDX-License-Identifier: Apache-2.0
"""Services: what connections to the endpoint of a process can reach.

A service has an id, a secret, and one table of handlers by class of message. The control of a graph
is a service (``graph_control``). Everything here is called on the endpoint's thread, which serves
all services of the process: nothing may block.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from rcg.descriptors import Descriptor
from rcg.wire import sockets
from rcg.wire.liveness import Ending
from rcg.wire.messages import Message
from rcg.wire.packets import PacketStream
from rcg.wire.sockets import Connection


class Peer:
    """A connection whose first message named a service, and proved that it may use it.

    Attributes:
        connection: Closed by ``close``, unless it was handed over.
        fd: Its descriptor, also after it was handed over.
        is_remote: Whether it comes from another node: no descriptors go there.
        pid: The process at the other end; 0 if the kernel does not know it.
        pidfd: Becomes readable at the end of that process. The handler of the first message opens
            it, if the end of the process matters to the service.
        service: The service that it named.
        name: Its name within the service.
        body: The bytes that came with the message that is being handled.
    """

    def __init__(self, connection: Connection, service: Service) -> None:
        self.connection = connection
        self.fd = connection.fileno()
        self.is_remote = isinstance(connection, PacketStream)
        self.pid = sockets.peer_of(connection)[0]
        self.pidfd = Descriptor()
        self.service = service
        self.name = ""
        self.body: bytes | bytearray = b""
        self._is_handed_over = False

    def send(
        self,
        message: Message,
        fds: Sequence[int] = (),
        body: bytes | bytearray = b"",
        *,
        may_wait: bool = False,
    ) -> None:
        """Send a message, with descriptors and bytes. On the endpoint's thread it must not wait.

        Raises:
            BlockingIOError: The peer does not read; of this node, because to another node the
                message is sent later then.
            OSError: The connection is over.
            ValueError: A field of the message has a wrong value, or there are descriptors for
                another node.
        """
        if isinstance(self.connection, PacketStream) and not may_wait and not fds:
            self.connection.post(sockets.pack_message(message, body))
        else:
            sockets.send(self.connection, message, fds, body=body, may_wait=may_wait)

    def hand_over(self) -> socket.socket:
        """Return the bare socket, which ``close`` does not close from now on.

        Nothing was read of what followed the last message, and all messages were sent.

        Raises:
            ConnectionError: The peer of another node has sent a part of a message, or does not
                read.
        """
        found = self.connection
        bare = found.detach() if isinstance(found, PacketStream) else found
        self._is_handed_over = True
        return bare

    def hand_over_messages(self) -> Connection:
        """Return the connection, which ``close`` does not close from now on.

        Its calls wait, and values of any size may come, because the peer has proven who it is.
        """
        if isinstance(self.connection, PacketStream):
            self.connection.takes_bodies = True
        self._is_handed_over = True
        return self.connection

    def take_back(self) -> None:
        """Undo ``hand_over_messages``."""
        self._is_handed_over = False

    def close(self) -> None:
        """Close its connection and descriptors; idempotent."""
        if not self._is_handed_over:
            self.connection.close()
        self.pidfd.close()


Handler = Callable[[Any, Peer, Any], bool]
"""Called with the service, the peer and the message. Returns whether the endpoint goes on listening
to the peer; if not, it closes what belongs to the peer. ValueError: the message is wrong."""


class Service(Protocol):
    """A service of the endpoint."""

    service_id: str  # first messages name it
    secret: str  # first messages prove to know it

    @property
    def handlers(self) -> Mapping[type[Message], Handler]:
        """The handlers of messages, by class. First messages are ``Opening``."""

    @property
    def is_over(self) -> bool:
        """Whether it no longer needs the endpoint. Any thread; it stays true."""

    def look(self) -> None:
        """Do pending work; called after ``Endpoint.notify`` and after each message."""

    def on_lost(self, peer: Peer, ending: Ending) -> None:
        """The connection of a peer ended."""

    def fail(self, why: str) -> None:
        """The endpoint cannot go on with this service."""

    def on_released(self) -> None:
        """Called when the endpoint has removed the service and closed its connections."""
