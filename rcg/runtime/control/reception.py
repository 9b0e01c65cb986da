# SPDX-License-Identifier: Apache-2.0
"""The listening socket, and the connections that have not sent a message yet: strangers.

Every process of the machine can connect, so strangers are limited in number and in time. A stranger
above the limit ends the one that has been silent for longest, so a process that speaks is served,
however many others are silent. The one that is ended gets a message to connect again: it may only
be slow.

A process that has no descriptor left cannot accept a connection, and so cannot refuse it. It keeps
one descriptor in reserve, and closes that to accept the connection and refuse it with the reason.
Used by one thread; knows nothing of graphs.
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
from rcg.errors import OutOfDescriptors
from rcg.wire import sockets
from rcg.wire.messages import Again, Refused

__all__ = ["MAX_STRANGERS", "Reception", "refusal_of", "refused"]

MAX_STRANGERS: Final = 64
_SILENCE_TIMEOUT_S: Final = 10.0  # more than a process needs to send its first message
_ACCEPT_RETRY_S: Final = 0.05  # while connections cannot be accepted


def refusal_of(error: OutOfDescriptors) -> Refused:
    """Return the message that refuses a connection because there are no descriptors left."""
    return Refused(text=error.message, pid=error.pid or 0, limit=error.limit or 0)


def refused(message: Refused) -> OutOfDescriptors:
    """Return the error for a refusal."""
    return OutOfDescriptors(message.text, pid=message.pid, limit=message.limit or None)


class Reception:
    """Listens on an address and keeps the connections that have not sent a message yet.

    Args:
        address: Abstract.
        poller: Learns of the listening socket and of each connection.
        max_strangers: How many such connections are kept.
        timeout_s: How long each of them may be silent.

    Raises:
        OSError: There is no descriptor left.
    """

    def __init__(
        self,
        address: str,
        poller: select.poll,
        *,
        max_strangers: int = MAX_STRANGERS,
        timeout_s: float = _SILENCE_TIMEOUT_S,
    ) -> None:
        self._poller = poller
        self._max_strangers = max_strangers
        self._timeout_s = timeout_s
        self._strangers: dict[int, tuple[float, socket.socket]] = {}  # the oldest first
        self._paused_until: float | None = None
        self._listener = sockets.listen(address)
        try:
            self._reserve = Descriptor(os.eventfd, 0, os.EFD_CLOEXEC)
        except BaseException:
            self._listener.close()
            raise
        poller.register(self._listener, select.POLLIN)

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
        for fd, (since, connection) in list(self._strangers.items()):
            if now < since + self._timeout_s:
                break
            if not _has_spoken(connection):  # else its turn comes
                self._end(fd)

    def stranger(self, fd: int) -> socket.socket:
        """Return a stranger's connection."""
        return self._strangers[fd][1]

    def forget(self, fd: int) -> None:
        """Have a connection be no stranger any more. It belongs to the caller, open as it is."""
        del self._strangers[fd]

    def accept(self) -> None:
        """Take in one connection."""
        if len(self._strangers) >= self._max_strangers and not self._evict():
            return  # all of them have spoken: they go first
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            self._not_accepted(error)
            return
        self._keep_reserve()
        if sockets.peer_of(connection)[1] != os.getuid():
            connection.close()
            return
        connection.setblocking(True)
        self._strangers[connection.fileno()] = time.monotonic(), connection
        self._poller.register(connection, select.POLLIN)

    def close(self) -> None:
        """Close the address and the strangers."""
        # A forked child may have a copy of the socket. Nobody waits there for an answer of ours.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
            while True:
                self._listener.accept()[0].close()
        self.abandon()

    def abandon(self) -> None:
        """Close the descriptors of this process alone: in a forked child."""
        for _, connection in self._strangers.values():
            connection.close()
        self._strangers.clear()
        self._listener.close()
        self._reserve.close()

    # --- no room, no descriptors

    def _evict(self) -> bool:
        """End the stranger that has been silent for longest; False if none is silent."""
        for fd, (_, connection) in self._strangers.items():
            if not _has_spoken(connection):
                self._end(fd)
                return True
        return False

    def _end(self, fd: int) -> None:
        _, connection = self._strangers.pop(fd)
        self._poller.unregister(fd)
        with contextlib.suppress(OSError):
            sockets.send(connection, Again(), may_wait=False)
        connection.close()

    def _not_accepted(self, error: OSError) -> None:
        """There is still something to accept: make room for it, refuse it, or pause."""
        if error.errno in (errno.EAGAIN, errno.ECONNABORTED):
            return  # it went away again
        told = out_of_descriptors(error, "to accept a connection to its graphs")
        if told is not None and (self._evict() or self._refuse(told)):
            return
        # Nothing can be done at once, and trying without a pause would keep a processor busy.
        self._poller.unregister(self._listener)
        self._paused_until = time.monotonic() + _ACCEPT_RETRY_S
        self._keep_reserve()

    def _refuse(self, told: OutOfDescriptors) -> bool:
        """Use the descriptor that is kept, to say that there is none."""
        if self._reserve.fd < 0:
            return False
        self._reserve.close()
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return False  # another thread took the descriptor
        with contextlib.suppress(OSError):
            sockets.send(connection, refusal_of(told), may_wait=False)
        connection.close()
        self._keep_reserve()
        return True

    def _keep_reserve(self) -> None:
        if self._reserve.fd < 0:
            with contextlib.suppress(OSError):
                self._reserve = Descriptor(os.eventfd, 0, os.EFD_CLOEXEC)


def _has_spoken(connection: socket.socket) -> bool:
    """Whether there is something to receive, be it the end."""
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    return bool(poller.poll(0))
