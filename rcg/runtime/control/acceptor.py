# SPDX-License-Identifier: Apache-2.0
"""Accepting connections: those that have not proven yet that they know the secret are *pending*.

An endpoint listens at an abstract address for its own node, and at TCP addresses for others. Each
*listener* has an *acceptor* with limits of its own: a flood from the network ends no pending
connection of this node. One thread uses all of it; it knows nothing of graphs.

A connection is sent a challenge before anything of it is read (``rcg.wire.proof``), and its first
message answers that. Nothing that came with it is looked at before the answer was found right,
except the id of the service, to find the secret.

Every process of the machine can connect, or of the network, so pending connections are limited in
number and in time. One above the limit ends the one that has been silent for longest, so a process
that speaks is served, however many others are silent. The one that is ended gets a message to
connect again: it may only be slow.

A user who looks for a connection that does not come about needs to see what was refused. So
refusals are counted by reason, and those that cannot be a mistake of rcg are logged.

A process that has no descriptor left cannot accept a connection, and so cannot refuse it. It keeps
one descriptor in reserve, and closes that to accept the connection and refuse it with the reason.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final, Literal

from rcg.descriptors import Descriptor, out_of_descriptors
from rcg.errors import OutOfDescriptors, OutOfThreads
from rcg.log import Log
from rcg.options import peer_timeout_s, port_range
from rcg.runtime.control.services import Service
from rcg.wire import addresses, proof, sockets, tls
from rcg.wire.certificates import server_context
from rcg.wire.liveness import forget_accepted
from rcg.wire.messages import Again, Challenge, Message, Opening, Prove, Refused, UnknownGraph
from rcg.wire.packets import PacketStream, peer_name
from rcg.wire.sockets import Connection, Received

_log = Log()

MAX_PENDING: Final = 64
_SILENCE_S: Final = 10.0  # more than a process needs to send its first message
_ACCEPT_RETRY_S: Final = 0.05  # while connections cannot be accepted
# The network's errors about a connection that was on its way: the next one may be all right.
_PASSING: Final = (
    errno.EAGAIN,
    errno.ECONNABORTED,
    errno.ENETDOWN,
    errno.EPROTO,
    errno.ENOPROTOOPT,
    errno.EHOSTDOWN,
    errno.ENONET,
    errno.EHOSTUNREACH,
    errno.EOPNOTSUPP,
    errno.ENETUNREACH,
    errno.EPERM,
)


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
    """Counts refusals; one thread counts, any thread reads ``so_far``."""

    __slots__ = ("so_far",)

    def __init__(self) -> None:
        self.so_far = Refusals()

    def count(self, reason: Reason, peer: str = "a process") -> None:
        """Count one more, and log where it came from; the log gets fewer the more there were."""
        count = getattr(self.so_far, reason) + 1
        self.so_far = replace(self.so_far, **{reason: count})
        why = _LOGGED.get(reason)
        if why is not None and count & (count - 1) == 0:  # a power of two
            text = "rcg: refused a connection from %s: %s (%d such connections so far)"
            _log.warning(text, peer, why, count)


@dataclass(frozen=True, slots=True)
class Pending:
    """A connection that has not proven yet that it knows the secret."""

    connection: Connection
    challenge: Challenge  # what it must answer


class LocalListener:
    """Listens on an abstract address, for processes of this user. ``sock`` does not wait.

    Raises:
        OSError: There is no descriptor left, or another process listens there.
    """

    def __init__(self, address: str) -> None:
        self.sock = sockets.listen(address)

    def challenge(self, accepted: socket.socket) -> Pending:
        """Challenge the connection of an accepted socket; closes it if this raises.

        Raises:
            PermissionError: It is of another user.
            OSError: It is over.
        """
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
    """Listens at one address of this machine, for other nodes; ``address`` has the port.

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
        """See ``LocalListener``; from other nodes, any user may connect."""
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


Listener = LocalListener | TcpListener


class Acceptor:
    """Accepts connections, and keeps those that have not sent a message yet.

    Args:
        listener: Where they come from; closed with the acceptor.
        poller: Learns of the listening socket, from the first ``look``, and of each connection.
        tally: Counts the connections that are refused.
        timeout_s: How long each of them may be silent.

    Raises:
        OSError: There is no descriptor left.
    """

    def __init__(
        self,
        listener: Listener,
        poller: select.poll,
        tally: Tally,
        *,
        timeout_s: float = _SILENCE_S,
    ) -> None:
        self._poller = poller
        self._timeout_s = timeout_s
        self._pending: dict[int, tuple[float, Pending]] = {}  # the oldest first
        self._paused_until: float | None = 0.0  # the poller does not know the listening socket yet
        self._listener = listener
        self._socket = listener.sock
        self.tally = tally
        self._reserve = Descriptor(os.eventfd, 0, os.EFD_CLOEXEC)

    def is_listener(self, fd: int) -> bool:
        """Whether this is the descriptor of the listening socket."""
        return fd == self._socket.fileno()

    def __contains__(self, fd: int) -> bool:
        return fd in self._pending

    def __len__(self) -> int:
        return len(self._pending)

    def timeout_ms(self) -> float | None:
        """Return how long the poller may wait until ``look`` has something to do."""
        until = [] if self._paused_until is None else [self._paused_until]
        if self._pending:
            until.append(next(iter(self._pending.values()))[0] + self._timeout_s)
        return max(0.0, min(until) - time.monotonic()) * 1000 + 1 if until else None

    def look(self) -> None:
        """End connections whose time is up, and accept again after a pause."""
        now = time.monotonic()
        if self._paused_until is not None and now >= self._paused_until:
            self._paused_until = None
            self._poller.register(self._socket, select.POLLIN)
        for fd, (since, pending) in list(self._pending.items()):
            if now < since + self._timeout_s:
                break
            # One that has spoken is about to be served. From another node a part of a message may
            # come again and again, so there the time is up in any case. It may connect again.
            is_remote = isinstance(pending.connection, PacketStream)
            if is_remote or not _has_spoken(pending.connection):
                self._end(fd, "silent")

    def pending(self, fd: int) -> Pending:
        """Return a pending connection."""
        return self._pending[fd][1]

    def forget(self, fd: int) -> None:
        """Keep a connection no longer. It belongs to the caller, open as it is."""
        del self._pending[fd]

    def accept(self) -> None:
        """Take in one connection."""
        if len(self._pending) >= MAX_PENDING and not self._evict():
            return  # all of them have spoken: they go first
        try:
            accepted, _ = self._socket.accept()
        except OSError as error:
            self._not_accepted(error)
            return
        self._keep_reserve()
        try:
            pending = self._listener.challenge(accepted)
        except PermissionError as error:
            self.tally.count("other_user", str(error.strerror))
            return
        except OSError:
            self.tally.count("silent")  # it went away again
            return
        fd = pending.connection.fileno()
        self._pending[fd] = time.monotonic(), pending
        self._poller.register(fd, select.POLLIN)

    def close(self) -> None:
        """Close the address and the pending connections."""
        # A forked child may have a copy of the socket. Nobody waits there for an answer of ours.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
            while True:
                self._socket.accept()[0].close()
        self.abandon()

    def abandon(self) -> None:
        """Close the descriptors of this process alone: in a forked child, or at the end."""
        for _, pending in self._pending.values():
            pending.connection.close()
        self._pending.clear()
        self._listener.close()
        self._reserve.close()

    # --- no room, no descriptors

    def _evict(self) -> bool:
        """End the connection that has been silent for longest; False if none is silent."""
        for fd, (_, pending) in self._pending.items():
            if not _has_spoken(pending.connection):
                self._end(fd, "flood")
                return True
        return False

    def _end(self, fd: int, reason: Reason) -> None:
        self.tally.count(reason)
        connection = self._pending.pop(fd)[1].connection
        self._poller.unregister(fd)
        with contextlib.suppress(OSError):
            sockets.send(connection, Again(), may_wait=False)
        connection.close()

    def _not_accepted(self, error: OSError) -> None:
        """There is still something to accept: make room for it, refuse it, or pause."""
        if error.errno in _PASSING:
            return  # it went away again
        lack = out_of_descriptors(error, "to accept a connection to its graphs")
        if lack is not None and (self._evict() or self._refuse(lack)):
            return
        # Nothing can be done at once, and trying without a pause would keep a processor busy.
        self._poller.unregister(self._socket)
        self._paused_until = time.monotonic() + _ACCEPT_RETRY_S
        self._keep_reserve()

    def _refuse(self, lack: OutOfDescriptors | OutOfThreads) -> bool:
        """Use the descriptor that is kept, to say that there is none."""
        if self._reserve.fd < 0:
            return False
        self._reserve.close()
        try:
            accepted, _ = self._socket.accept()
        except OSError:
            return False  # another thread took the descriptor
        with (
            accepted,
            contextlib.suppress(OSError),
            self._listener.challenge(accepted).connection as connection,
        ):
            sockets.send(connection, refusal_of(lack), may_wait=False)
        self._keep_reserve()
        return True

    def _keep_reserve(self) -> None:
        if self._reserve.fd < 0:
            with contextlib.suppress(OSError):
                self._reserve = Descriptor(os.eventfd, 0, os.EFD_CLOEXEC)


def _has_spoken(connection: Connection) -> bool:
    """Whether there is something to receive, be it the end."""
    poller = select.poll()
    poller.register(connection.fileno(), select.POLLIN)
    return bool(poller.poll(0))


def refusal_of(error: OutOfDescriptors | OutOfThreads) -> Refused:
    """Return the message that refuses a connection for want of descriptors or threads."""
    return Refused(
        text=error.message,
        pid=error.pid or 0,
        limit=error.limit or 0,
        lacks_threads=isinstance(error, OutOfThreads),
    )


def error_of(message: Refused) -> OutOfDescriptors | OutOfThreads:
    """Return the error for a refusal."""
    kind = OutOfThreads if message.lacks_threads else OutOfDescriptors
    return kind(message.text, pid=message.pid, limit=message.limit or None)


Admitted = tuple[Service, Opening]
"""The service that a connection may use, and its first message."""


def admit(
    pending: Pending, received: Received, services: Mapping[str, Service], tally: Tally
) -> Admitted | None:
    """Return what a connection may use and wants, or None if it is refused.

    Raises:
        OSError: The connection is over.
        ValueError: What came is no first message.
    """
    connection, asked, found = pending.connection, pending.challenge, received.message
    if found is None:
        tally.count("silent")
        return None
    peer = sockets.peer_name_of(connection)
    if not isinstance(found, Prove):
        tally.count("wrong_secret" if isinstance(found, Opening) else "garbage", peer)
        return None
    service = services.get(found.graph)
    if service is None or service.is_over:
        tally.count("unknown_graph")
        _answer(connection, UnknownGraph())
        return None
    if not proof.is_proof(found, received.body, service.secret, asked):
        tally.count("wrong_secret", peer)
        return None
    try:
        opening = proof.opening_of(found, received.body)
    except ValueError:
        tally.count("garbage", peer)
        raise
    if isinstance(connection, PacketStream):
        connection.is_proven = True
    _answer(connection, proof.answer(found, received.body, service.secret, asked))
    return service, opening


def _answer(connection: Connection, message: Message) -> None:
    """Send an answer without waiting."""
    if isinstance(connection, PacketStream):
        connection.post(sockets.pack_message(message))
    else:
        sockets.send(connection, message, may_wait=False)
