# SPDX-License-Identifier: Apache-2.0
"""Where an endpoint listens: an abstract address for its own node, TCP addresses for others.

A listener says what happens first with a connection: it is sent a challenge before anything of it
is read (``rcg.wire.proof``). On this node the kernel also says whose process the peer is.

Anybody who reaches the port or the address may connect: a port scan, a program that got a wrong
address, a process of a graph that has ended. None of them disturbs a graph, but a user who looks
for a connection that does not come about needs to see them. So refusals are counted by reason, and
those that cannot be a mistake of rcg are logged.
"""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import asdict, dataclass, replace
from typing import Final, Literal, Protocol

from rcg.log import Log
from rcg.options import peer_timeout_s, port_range
from rcg.wire import addresses, proof, sockets, tls
from rcg.wire.certificates import server_context
from rcg.wire.forks import forget_accepted
from rcg.wire.messages import Challenge
from rcg.wire.packets import PacketStream, peer_name
from rcg.wire.sockets import Connection

_log = Log()

Reason = Literal["wrong_secret", "unknown_graph", "garbage", "silent", "flood", "other_user"]

_LOGGED: Final[dict[Reason, str]] = {
    "wrong_secret": "it did not prove to know the secret",
    "garbage": "it sent something else than messages of rcg",
    "other_user": "only this user's processes may connect",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusals:
    """The connections that an endpoint has refused so far, by reason.

    Attributes:
        wrong_secret: They did not prove to know the secret of the graph that they named.
        unknown_graph: They named a graph that this process does not have, or not any more.
        garbage: They sent something else than messages of rcg, or not those that begin a
            connection.
        silent: They said nothing, or not all of a message, in time, or hung up before.
        flood: They made room for others, because too many were silent at once.
        other_user: They came from a process of another user, on this node.
    """

    wrong_secret: int = 0
    unknown_graph: int = 0
    garbage: int = 0
    silent: int = 0
    flood: int = 0
    other_user: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(asdict(self).values())

    def __str__(self) -> str:
        found = [
            f"{count} {reason.replace('_', ' ')}" for reason, count in asdict(self).items() if count
        ]
        return ", ".join(found) or "none"


class Tally:
    """Counts refusals; one thread counts, any thread reads.

    Attributes:
        so_far: What was counted.
    """

    __slots__ = ("so_far",)

    def __init__(self) -> None:
        self.so_far = Refusals()

    def count(self, reason: Reason, peer: str = "a process") -> None:
        """Count one more, and log it; the log gets fewer of them the more there were.

        Args:
            reason: Why it was refused.
            peer: Where it came from.
        """
        count = getattr(self.so_far, reason) + 1
        self.so_far = replace(self.so_far, **{reason: count})
        why = _LOGGED.get(reason)
        if why is not None and count & (count - 1) == 0:  # a power of two
            text = "rcg: refused a connection from %s: %s (%d such connections so far)"
            _log.warning(text, peer, why, count)


@dataclass(frozen=True, slots=True)
class Pending:
    """A connection that has not proven yet that it knows the secret.

    Attributes:
        connection: The connection.
        challenge: What it must answer.
    """

    connection: Connection
    challenge: Challenge


class Listener(Protocol):
    """Where an endpoint listens.

    Attributes:
        sock: The listening socket; its ``accept`` does not wait.
    """

    sock: socket.socket

    def challenge(self, accepted: socket.socket) -> Pending:
        """Challenge the connection of an accepted socket; closes it if this raises.

        Raises:
            PermissionError: It is of another user.
            OSError: It is over.
        """

    def close(self) -> None:
        """Listen no more; idempotent."""


class LocalListener:
    """Listens on an abstract address, for processes of this user.

    Args:
        address: The address.

    Raises:
        OSError: There is no descriptor left, or another process listens there.
    """

    def __init__(self, address: str) -> None:
        self.sock = sockets.listen(address)

    def challenge(self, accepted: socket.socket) -> Pending:
        """Challenge a process of this user; others may not come in."""
        try:
            uid = sockets.peer_of(accepted)[1]
            if uid != os.getuid():
                raise PermissionError(errno.EPERM, f"a process of the user {uid}")
            accepted.setblocking(True)
            asked = proof.challenge()
            sockets.send(accepted, asked, may_wait=False)
            return Pending(accepted, asked)
        except BaseException:
            accepted.close()
            raise

    def close(self) -> None:
        """Listen no more; idempotent."""
        self.sock.close()


class TcpListener:
    """Listens at one address of this machine, for other nodes.

    Args:
        host: The address.

    Attributes:
        address: With the port.

    Raises:
        PlacementError: No port of ``RCG_PORT_RANGE`` is free there, or the files of Ray's TLS here
            cannot be used.
        ValueError: A variable holds nothing that rcg understands, or ``host`` is no address.
        OSError: There is no descriptor left.
    """

    def __init__(self, host: str) -> None:
        self._pid = os.getpid()
        self._peer_timeout_s = peer_timeout_s()
        self._tls = tls.context_of(server_context)
        self.sock, self.address = addresses.listen_tcp(host, port_range())

    def challenge(self, accepted: socket.socket) -> Pending:
        """Challenge a connection."""
        if self._tls is None:
            stream = PacketStream(accepted)
        else:
            name = peer_name(accepted)
            stream = PacketStream(tls.secure(accepted, self._tls, self._peer_timeout_s), name)
        try:
            if self._tls is None:
                stream.keep_alive(self._peer_timeout_s)
            asked = proof.challenge()
            stream.post(sockets.pack_message(asked))
            return Pending(stream, asked)
        except BaseException:
            stream.close()
            raise

    def close(self) -> None:
        """Listen no more; idempotent. In a forked child this also ends what others accepted.

        The child is a copy of its parent at any moment: a thread that is not in the child may just
        have accepted a connection that nothing of Python's knows of yet.
        """
        if self._pid != os.getpid() and self.sock.fileno() >= 0:
            forget_accepted(self.sock)
        self.sock.close()
