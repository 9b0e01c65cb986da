# SPDX-License-Identifier: Apache-2.0
"""The connections of an endpoint: strangers, peers of services, and the deaths of their processes.

The first message of a connection names a service and proves by its secret that it may use it. From
then on the connection is a peer of that service, and each message goes to the handler that the
table of the service has for it. A wrong message ends its own connection and nothing else; a handler
that fails ends its own service.

A service that wants to know when the process of a peer dies opens a pidfd for the peer. The kernel
reports the death there, even if a forked child of the process keeps the connection open.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from rcg.descriptors import Descriptor
from rcg.error_text import describe_error, shielding
from rcg.log import Log
from rcg.runtime.control.reception import Reception
from rcg.runtime.control.services import Handler, Peer, Service
from rcg.wire import sockets
from rcg.wire.liveness import EXIT_TIMEOUT_S, Ending, How
from rcg.wire.messages import Message, Opening, UnknownGraph

__all__ = ["Connections"]

_log = Log()


class Connections:
    """The connections of the endpoint, on its thread.

    Args:
        address: Where to listen.
        services: The services that first messages may name, by id.
        news: The queue of services that have work to do.

    Raises:
        OSError: There is no descriptor left.
    """

    def __init__(self, address: str, services: Mapping[str, Service], news: deque[Service]) -> None:
        self._services = services
        self._news = news
        self._peers: dict[int, Peer] = {}  # by their connection
        self._watched: dict[int, Peer] = {}  # by their pidfd
        self._hung_up: dict[Peer, float] = {}  # until when its process may end; the oldest first
        self._poller = select.poll()
        # Closed with the last reference: a thread that rings holds one in the meantime.
        self._doorbell: Descriptor | None = Descriptor(
            os.eventfd, 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK
        )
        self._poller.register(self._doorbell.fd, select.POLLIN)
        try:
            self.reception = Reception(address, self._poller)
        except BaseException:
            self._doorbell.close()
            raise

    def ring(self) -> None:
        """End the wait of ``serve_round``. Any thread."""
        doorbell = self._doorbell
        if doorbell is not None:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_write(doorbell.fd, 1)

    def serve_round(self) -> None:
        """Wait for news and handle them, at most one message of each connection."""
        reception = self.reception
        wake = -1 if self._doorbell is None else self._doorbell.fd
        spoken: list[int] = []
        has_visitor = False
        # Closed after the loop: otherwise a new descriptor could get the number of one of which
        # there is still news to come.
        finished: list[Peer] = []
        ready = [fd for fd, _ in self._poller.poll(self._timeout_ms())]
        # Deaths first: what a peer reports in the same round may only follow from one.
        for fd in sorted(ready, key=lambda fd: fd not in self._watched):
            if fd == wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(wake)
            elif reception.is_listener(fd):
                has_visitor = True
            elif fd in reception:
                spoken.append(fd)
            elif fd in self._watched:
                finished.append(self._lose(self._watched[fd], Ending(How.DIED)))
            elif fd in self._peers and not self._hear(self._peers[fd]):
                finished.append(self._forget(self._peers[fd]))
        now = time.monotonic()
        for peer, until in list(self._hung_up.items()):
            if now < until:
                break
            finished.append(self._lose(peer, Ending(How.LEFT)))
        for peer in finished:
            peer.close()
        for fd in spoken:
            self._open(fd)
        reception.look()
        # After all that have spoken were served: a silent one is ended to make room.
        if has_visitor:
            reception.accept()

    def release(self, service: Service) -> None:
        """Close the connections of a service."""
        for peer in [peer for peer in self._peers.values() if peer.service is service]:
            self._forget(peer).close()

    def call(self, service: Service, call: Callable[..., None], *args: Any) -> None:
        """Call code of a service; an error ends only that service."""
        try:
            call(*args)
        except BaseException as problem:  # noqa: BLE001 - a death must not go unseen
            self.fail(service, problem)

    def fail(self, service: Service, problem: BaseException) -> None:
        """End a service because of an error that is no peer's fault; others go on."""
        with shielding():
            service.fail(f"the thread that watches it failed: {describe_error(problem)}")
        self._news.append(service)
        _log.exception("rcg: the control of graph %s failed", service.service_id)

    def close(self) -> None:
        """Close the address and all connections."""
        self._doorbell = None
        self.reception.close()
        self._close_peers()

    def abandon(self) -> None:
        """Close this process's copies of the descriptors: in a forked child."""
        self._doorbell = None
        self.reception.abandon()
        self._close_peers()

    def _close_peers(self) -> None:
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()

    # --- strangers and peers

    def _timeout_ms(self) -> float | None:
        found = self.reception.timeout_ms()
        for until in self._hung_up.values():
            left = max(0.0, until - time.monotonic()) * 1000 + 1
            return left if found is None else min(left, found)
        return found

    def _open(self, fd: int) -> None:
        """Handle the first message of a connection."""
        connection = self.reception.stranger(fd)
        peer: Peer | None = None
        is_kept = False
        try:
            with sockets.receive(connection) as received:
                opening = received.message
            if isinstance(opening, Opening):
                service = self._services.get(opening.graph)
                if service is None or service.is_over:
                    sockets.send(connection, UnknownGraph(), may_wait=False)
                elif _is_same(opening.secret, service.secret):
                    handler = service.handlers.get(type(opening))
                    if handler is not None:
                        peer = Peer(connection, service)
                        is_kept = self._handle(peer, handler, opening)
        except (OSError, ValueError):
            pass  # this connection ends below, and no other
        if peer is not None and is_kept:
            self._peers[fd] = peer
            self.reception.forget(fd)  # at each moment one of the two has it, for a forked child
            if peer.pidfd.fd >= 0:
                self._watched[peer.pidfd.fd] = peer
                self._poller.register(peer.pidfd.fd, select.POLLIN)
            self._news.append(peer.service)
            return
        self._poller.unregister(fd)
        self.reception.forget(fd)
        if peer is not None:
            peer.close()
        else:
            connection.close()

    def _hear(self, peer: Peer) -> bool:
        """Handle one message; returns whether to go on listening to the peer."""
        service = peer.service
        try:
            with sockets.receive(peer.connection) as received:
                message = received.message
                if message is not None:
                    handler = service.handlers.get(type(message))
                    if handler is None or isinstance(message, Opening):
                        raise ValueError("it is not expected here")
                    self._news.append(service)
                    return self._handle(peer, handler, message)
        except OSError:
            pass  # as if it had hung up
        except ValueError as problem:
            self._tell_lost(peer, Ending(How.FAILED, f"it sent a wrong message: {problem}"))
            return False
        if peer.pidfd.fd >= 0:
            # The kernel closes the connections of a process first. Its end may be about to come.
            self._poller.unregister(peer.connection)
            self._hung_up[peer] = time.monotonic() + EXIT_TIMEOUT_S
            return True
        self._tell_lost(peer, Ending(How.LEFT))
        return False

    def _tell_lost(self, peer: Peer, ending: Ending) -> None:
        self.call(peer.service, peer.service.lost, peer, ending)
        self._news.append(peer.service)

    def _lose(self, peer: Peer, ending: Ending) -> Peer:
        self._tell_lost(peer, ending)
        return self._forget(peer)

    def _forget(self, peer: Peer) -> Peer:
        """Listen to a peer no more; returns it, to be closed."""
        fd = peer.connection.fileno()
        if self._peers.pop(fd, None) is not None and self._hung_up.pop(peer, None) is None:
            self._poller.unregister(fd)
        if self._watched.pop(peer.pidfd.fd, None) is not None:
            self._poller.unregister(peer.pidfd.fd)
        return peer

    def _handle(self, peer: Peer, handler: Handler, message: Message) -> bool:
        """Call the handler of a message; returns whether to go on listening to the peer.

        Raises:
            OSError: The connection is over.
            ValueError: The message is wrong.
        """
        try:
            return handler(peer.service, peer, message)
        except (OSError, ValueError):
            raise
        except BaseException as problem:  # noqa: BLE001 - a death must not go unseen
            self.fail(peer.service, problem)
            return False


def _is_same(secret: str, expected: str) -> bool:
    return secrets.compare_digest(secret.encode(), expected.encode())
