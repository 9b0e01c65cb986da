# SPDX-License-Identifier: Apache-2.0
"""A listening socket, and the connections that have not answered their challenge yet: strangers.

Every process of the machine can connect, or of the network, so strangers are limited in number and
in time. A stranger above the limit ends the one that has been silent for longest, so a process that
speaks is served, however many others are silent. The one that is ended gets a message to connect
again: it may only be slow.

A process that has no descriptor left cannot accept a connection, and so cannot refuse it. It keeps
one descriptor in reserve, and closes that to accept the connection and refuse it with the reason.
An endpoint has one reception for its own node and one for each address that other nodes reach, each
with limits of its own: a flood from the network ends no stranger of this node. Used by one thread;
knows nothing of graphs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time
from typing import Final

from rcg.descriptors import Descriptor, out_of_descriptors
from rcg.errors import OutOfDescriptors, OutOfThreads
from rcg.runtime.control.doors import Door, Stranger
from rcg.runtime.control.refusals import Reason, Tally
from rcg.wire import sockets
from rcg.wire.messages import Again, Refused
from rcg.wire.packets import PacketStream
from rcg.wire.sockets import Connection

__all__ = ["MAX_STRANGERS", "Reception", "refusal_of", "refused"]

MAX_STRANGERS: Final = 64
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


def refused(message: Refused) -> OutOfDescriptors | OutOfThreads:
    """Return the error for a refusal."""
    kind = OutOfThreads if message.lacks_threads else OutOfDescriptors
    return kind(message.text, pid=message.pid, limit=message.limit or None)


class Reception:
    """Listens at a door and keeps the connections that have not sent a message yet.

    Args:
        door: Closed with the reception.
        poller: Learns of the listening socket, from the first ``look``, and of each connection.
        tally: Counts the strangers that are ended.
        max_strangers: How many such connections are kept.
        timeout_s: How long each of them may be silent.

    Raises:
        OSError: There is no descriptor left.
    """

    def __init__(
        self,
        door: Door,
        poller: select.poll,
        tally: Tally,
        *,
        max_strangers: int = MAX_STRANGERS,
        timeout_s: float = _SILENCE_TIMEOUT_S,
    ) -> None:
        self._poller = poller
        self._max_strangers = max_strangers
        self._timeout_s = timeout_s
        self._strangers: dict[int, tuple[float, Stranger]] = {}  # the oldest first
        self._paused_until: float | None = 0.0  # the poller does not know the listening socket yet
        self._door = door
        self._listener = door.listener
        self.tally = tally
        self._reserve = Descriptor(os.eventfd, 0, os.EFD_CLOEXEC)

    def is_listener(self, fd: int) -> bool:
        """Whether this is the descriptor of the listening socket."""
        return fd == self._listener.fileno()

    def __contains__(self, fd: int) -> bool:
        return fd in self._strangers

    def __len__(self) -> int:
        return len(self._strangers)

    def timeout_ms(self) -> float | None:
        """Return how long the poller may wait until ``look`` has something to do."""
        until = [] if self._paused_until is None else [self._paused_until]
        for since, _ in self._strangers.values():
            until.append(since + self._timeout_s)
            break
        return max(0.0, min(until) - time.monotonic()) * 1000 + 1 if until else None

    def look(self) -> None:
        """End strangers whose time is up, and accept again after a pause."""
        now = time.monotonic()
        if self._paused_until is not None and now >= self._paused_until:
            self._paused_until = None
            self._poller.register(self._listener, select.POLLIN)
        for fd, (since, stranger) in list(self._strangers.items()):
            if now < since + self._timeout_s:
                break
            # One that has spoken is about to be served. From another node a part of a message may
            # come again and again, so there the time is up in any case. It may connect again.
            is_remote = isinstance(stranger.connection, PacketStream)
            if is_remote or not _has_spoken(stranger.connection):
                self._end(fd, "silent")

    def stranger(self, fd: int) -> Stranger:
        """Return a stranger."""
        return self._strangers[fd][1]

    def forget(self, fd: int) -> None:
        """Have a connection be no stranger any more. It belongs to the caller, open as it is."""
        del self._strangers[fd]

    def accept(self) -> None:
        """Take in one connection."""
        if len(self._strangers) >= self._max_strangers and not self._evict():
            return  # all of them have spoken: they go first
        try:
            accepted, _ = self._listener.accept()
        except OSError as error:
            self._not_accepted(error)
            return
        self._keep_reserve()
        try:
            stranger = self._door.admit(accepted)
        except PermissionError as error:
            self.tally.count("other_user", str(error.strerror))
            return
        except OSError:
            self.tally.count("silent")  # it went away again
            return
        fd = stranger.connection.fileno()
        self._strangers[fd] = time.monotonic(), stranger
        self._poller.register(fd, select.POLLIN)

    def close(self) -> None:
        """Close the address and the strangers."""
        # A forked child may have a copy of the socket. Nobody waits there for an answer of ours.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
            while True:
                self._listener.accept()[0].close()
        self.abandon()

    def abandon(self) -> None:
        """Close the descriptors of this process alone: in a forked child, or at the end."""
        for _, stranger in self._strangers.values():
            stranger.connection.close()
        self._strangers.clear()
        self._door.close()
        self._reserve.close()

    # --- no room, no descriptors

    def _evict(self) -> bool:
        """End the stranger that has been silent for longest; False if none is silent."""
        for fd, (_, stranger) in self._strangers.items():
            if not _has_spoken(stranger.connection):
                self._end(fd, "flood")
                return True
        return False

    def _end(self, fd: int, reason: Reason) -> None:
        self.tally.count(reason)
        connection = self._strangers.pop(fd)[1].connection
        self._poller.unregister(fd)
        with contextlib.suppress(OSError):
            sockets.send(connection, Again(), may_wait=False)
        connection.close()

    def _not_accepted(self, error: OSError) -> None:
        """There is still something to accept: make room for it, refuse it, or pause."""
        if error.errno in _PASSING:
            return  # it went away again
        told = out_of_descriptors(error, "to accept a connection to its graphs")
        if told is not None and (self._evict() or self._refuse(told)):
            return
        # Nothing can be done at once, and trying without a pause would keep a processor busy.
        self._poller.unregister(self._listener)
        self._paused_until = time.monotonic() + _ACCEPT_RETRY_S
        self._keep_reserve()

    def _refuse(self, told: OutOfDescriptors | OutOfThreads) -> bool:
        """Use the descriptor that is kept, to say that there is none."""
        if self._reserve.fd < 0:
            return False
        self._reserve.close()
        try:
            accepted, _ = self._listener.accept()
        except OSError:
            return False  # another thread took the descriptor
        with (
            accepted,
            contextlib.suppress(OSError),
            self._door.admit(accepted).connection as connection,
        ):
            sockets.send(connection, refusal_of(told), may_wait=False)
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
