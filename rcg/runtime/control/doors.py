# SPDX-License-Identifier: Apache-2.0
"""The doors of an endpoint: an abstract address for its own node, TCP addresses for others.

A door says how it listens, and what happens first with a connection that comes through it: it is
sent a challenge before anything of it is read (``rcg.wire.proof``). On this node the kernel also
tells whose process the peer is.
"""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass
from typing import Protocol

from rcg.options import peer_timeout_s, port_range, tls_files
from rcg.wire import addresses, proof, sockets, tls
from rcg.wire.certificates import server_context
from rcg.wire.forks import forget_accepted
from rcg.wire.messages import Challenge
from rcg.wire.packets import PacketStream, peer_name
from rcg.wire.sockets import Connection

__all__ = ["Door", "LocalDoor", "Stranger", "TcpDoor"]


@dataclass(frozen=True, slots=True)
class Stranger:
    """A connection that has not said yet what it wants.

    Attributes:
        connection: The connection.
        asked: What it must answer.
    """

    connection: Connection
    asked: Challenge


class Door(Protocol):
    """Where an endpoint listens.

    Attributes:
        listener: The listening socket; its ``accept`` does not wait.
    """

    listener: socket.socket

    def admit(self, accepted: socket.socket) -> Stranger:
        """Challenge the connection of an accepted socket; closes it if this raises.

        Raises:
            PermissionError: It is of another user.
            OSError: It is over.
        """

    def close(self) -> None:
        """Listen no more; idempotent."""


class LocalDoor:
    """Listens on an abstract address, for processes of this user.

    Args:
        address: The address.

    Raises:
        OSError: There is no descriptor left, or another process listens there.
    """

    def __init__(self, address: str) -> None:
        self.listener = sockets.listen(address)

    def admit(self, accepted: socket.socket) -> Stranger:
        """Challenge a process of this user; others may not come in."""
        try:
            uid = sockets.peer_of(accepted)[1]
            if uid != os.getuid():
                raise PermissionError(errno.EPERM, f"a process of the user {uid}")
            accepted.setblocking(True)
            asked = proof.challenge()
            sockets.send(accepted, asked, may_wait=False)
            return Stranger(accepted, asked)
        except BaseException:
            accepted.close()
            raise

    def close(self) -> None:
        """Listen no more; idempotent."""
        self.listener.close()


class TcpDoor:
    """Listens at one address of this machine, for other nodes.

    Args:
        host: The address.

    Attributes:
        address: With the port.

    Raises:
        PlacementError: No port of ``RCG_PORT_RANGE`` is free there.
        ValueError: A variable holds nothing that rcg understands, or ``host`` is no address.
        OSError: There is no descriptor left.
    """

    def __init__(self, host: str) -> None:
        self._pid = os.getpid()
        self._peer_timeout_s = peer_timeout_s()
        files = tls_files()
        self._tls = None if files is None else server_context(files)
        self.listener, self.address = addresses.listen_tcp(host, port_range())

    def admit(self, accepted: socket.socket) -> Stranger:
        """Challenge a connection."""
        if self._tls is None:
            stream = PacketStream(accepted)
        else:
            name = peer_name(accepted)
            stream = PacketStream(tls.secured(accepted, self._tls, self._peer_timeout_s), name)
        try:
            if self._tls is None:
                stream.keep_alive(self._peer_timeout_s)
            asked = proof.challenge()
            stream.post(sockets.packed(asked))
            return Stranger(stream, asked)
        except BaseException:
            stream.close()
            raise

    def close(self) -> None:
        """Listen no more; idempotent. In a forked child this also ends what others accepted.

        The child is a copy of its parent at any moment: a thread that is not in the child may just
        have accepted a connection that nothing of Python's knows of yet.
        """
        if self._pid != os.getpid() and self.listener.fileno() >= 0:
            forget_accepted(self.listener)
        self.listener.close()
