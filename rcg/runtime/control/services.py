# SPDX-License-Identifier: Apache-2.0
"""Services: what connections to the endpoint of a process can reach.

A service has an id, a secret, and one table of handlers by class of message. The control of a graph
is a service (``graph_control``). Everything here is called on the endpoint's thread, which serves
all services of the process: nothing may block.
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
        pidfd: Becomes readable at the end of that process. The handler of the first
            message opens it, if the end of the process matters to the service.
        service: The service that it named.
        name: Its name within the service.
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
        """Close its connection and descriptors; idempotent."""
        if not self._is_handed_over:
            self.connection.close()
        self.pidfd.close()


Handler = Callable[[Any, Peer, Any], bool]
"""Called with the service, the peer and the message. Returns whether the endpoint goes on listening
to the peer; if not, it closes what belongs to the peer. ValueError: the message is wrong."""


class Service(Protocol):
    """A service of the endpoint.

    Attributes:
        service_id: The id that first messages name.
        secret: The secret that first messages must contain.
        handlers: The handlers of messages, by class. First messages are ``Opening``.
    """

    service_id: str
    secret: str

    @property
    def handlers(self) -> Mapping[type[Message], Handler]:
        """The table of handlers."""

    @property
    def is_over(self) -> bool:
        """Whether it no longer needs the endpoint. Any thread; it stays true."""

    def look(self) -> None:
        """Do pending work; called after ``Endpoint.notify`` and after each message."""

    def lost(self, peer: Peer, ending: Ending) -> None:
        """The connection of a peer ended."""

    def fail(self, why: str) -> None:
        """The endpoint cannot go on with this service."""

    def released(self) -> None:
        """Called when the endpoint has removed the service and closed its connections."""
