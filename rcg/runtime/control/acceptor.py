# SPDX-License-Identifier: Apache-2.0
"""Accepting connections: those that have not proven yet that they know the secret are *pending*.

Every process of the machine can connect, or of the network, so pending connections are limited in
number and in time. One above the limit ends the one that has been silent for longest, so a process
that speaks is served, however many others are silent. The one that is ended gets a message to
connect again: it may only be slow.

The first message of a connection answers a challenge. Nothing that came with it is looked at before
that answer was found right, except the id of the service, to find the secret.

A process that has no descriptor left cannot accept a connection, and so cannot refuse it. It keeps
one descriptor in reserve, and closes that to accept the connection and refuse it with the reason.

An endpoint has one acceptor for its own node and one for each address that other nodes reach, each
with limits of its own: a flood from the network ends no pending connection of this node. Used by
one thread; knows nothing of graphs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time
from collections.abc import Mapping
from typing import Final

from rcg.descriptors import Descriptor, out_of_descriptors
from rcg.errors import OutOfDescriptors, OutOfThreads
from rcg.runtime.control.listeners import Listener, Pending, Reason, Tally
from rcg.runtime.control.services import Service
from rcg.wire import proof, sockets
from rcg.wire.messages import Again, Message, Opening, Prove, Refused, UnknownGraph
from rcg.wire.packets import PacketStream
from rcg.wire.sockets import Connection, Received

MAX_PENDING: Final = 64
_SILENCE_TIMEOUT_S: Final = 10.0  # more than a process needs to send its first message
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


class Acceptor:
    """Accepts connections, and keeps those that have not sent a message yet.

    Args:
        listener: Where they come from; closed with the acceptor.
        poller: Learns of the listening socket, from the first ``look``, and of each connection.
        tally: Counts the connections that are refused.
        max_pending: How many such connections are kept.
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
        max_pending: int = MAX_PENDING,
        timeout_s: float = _SILENCE_TIMEOUT_S,
    ) -> None:
        self._poller = poller
        self._max_pending = max_pending
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
        for since, _ in self._pending.values():
            until.append(since + self._timeout_s)
            break
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
        if len(self._pending) >= self._max_pending and not self._evict():
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


Admitted = tuple[Service, Opening]
"""The service that a connection may use, and its first message."""


def admit(
    pending: Pending, received: Received, services: Mapping[str, Service], tally: Tally
) -> Admitted | None:
    """Return what a connection may use and wants, or None if it is refused.

    Args:
        pending: The connection.
        received: What it sent first.
        services: By id.
        tally: Counts refusals.

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
