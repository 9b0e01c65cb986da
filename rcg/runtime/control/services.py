# SPDX-License-Identifier: Apache-2.0
"""What is reached through the endpoint of a process, and the connections that reach it.

A service has an id, a secret, and one table that says what handles each class of messages. The
control of a graph is one (``graph_control``). Everything here is called on the endpoint's thread,
which serves all services of the process: nothing may block.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from rcg.descriptors import Descriptor
from rcg.wire import sockets
from rcg.wire.liveness import Ending
from rcg.wire.messages import Message

__all__ = ["Handler", "Peer", "Service"]


class Peer:
    """A connection whose first message named a service.

    Attributes:
        connection: Closed by ``close``, unless it was handed over.
        pid: The process at the other end.
        pidfd: Becomes readable at the end of that process. The handler that takes the connection
            in opens it, if the end of the process matters to the service.
        service: The service that it named.
        name: What the service calls it.
    """

    __slots__ = ("_is_handed_over", "connection", "name", "pid", "pidfd", "service")

    def __init__(self, connection: socket.socket, service: Service) -> None:
        self.connection = connection
        self.pid = sockets.peer_of(connection)[0]
        self.pidfd = Descriptor()
        self.service = service
        self.name = ""
        self._is_handed_over = False

    def hand_over(self) -> socket.socket:
        """Return the connection, which ``close`` does not close from now on."""
        self._is_handed_over = True
        return self.connection

    def close(self) -> None:
        """Close what belongs to it; idempotent."""
        if not self._is_handed_over:
            self.connection.close()
        self.pidfd.close()


Handler = Callable[[Any, Peer, Any], bool]
"""Called with the service, the peer and the message. Returns whether the endpoint goes on listening
to the peer; if not, it closes what belongs to the peer. ValueError: the message is wrong."""


class Service(Protocol):
    """What is reached through the endpoint.

    Attributes:
        service_id: What first messages name.
        secret: What they prove their right with.
        handlers: What handles a message, by its class. First messages are ``Opening``.
    """

    service_id: str
    secret: str

    @property
    def handlers(self) -> Mapping[type[Message], Handler]:
        """The table of handlers."""

    @property
    def is_over(self) -> bool:
        """Whether it needs the endpoint no more. Any thread; it stays true."""

    def look(self) -> None:
        """Do what there is to do: after ``Endpoint.notify``, and after each message."""

    def lost(self, peer: Peer, ending: Ending) -> None:
        """The connection of a peer ended."""

    def fail(self, why: str) -> None:
        """The endpoint cannot go on with this service."""

    def released(self) -> None:
        """The endpoint has let go of the service and closed the connections of its peers."""
