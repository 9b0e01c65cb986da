# SPDX-License-Identifier: Apache-2.0
"""The connections of an endpoint: pending ones, peers of services, and the deaths of processes.

The first message of a connection names a service and proves that it may use it (``acceptor``). From
then on the connection is a peer of that service, and each message goes to the handler that the
table of the service has for it. A wrong message ends its own connection and nothing else; a handler
that fails ends its own service.

A service that wants to know when the process of a peer dies opens a pidfd for the peer. The kernel
reports the death there, even if a forked child of the process keeps the connection open.

One service is always there, and does not keep the endpoint: ``Graphs`` tells other processes of
this user on this node what the graphs of this one do.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from rcg.descriptors import Descriptor
from rcg.error_text import describe_error, shielding
from rcg.log import Log
from rcg.runtime.control.acceptor import (
    Acceptor,
    Admitted,
    Listener,
    LocalListener,
    Refusals,
    Tally,
    admit,
)
from rcg.runtime.control.graphs import Graphs
from rcg.runtime.control.services import Handler, Peer, Service
from rcg.wire import sockets
from rcg.wire.liveness import EXIT_TIMEOUT_S, Ending, How
from rcg.wire.messages import Message, Opening

_log = Log()


class Connections:
    """The connections of the endpoint, on its thread.

    Raises:
        OSError: There is no descriptor left.
    """

    def __init__(self, address: str, services: Mapping[str, Service], news: deque[Service]) -> None:
        self._services = services
        self._graphs = Graphs(address)
        self._news = news
        self._peers: dict[int, Peer] = {}  # by their connection
        self._watched: dict[int, Peer] = {}  # by their pidfd
        self._hung_up: dict[Peer, float] = {}  # until when its process may end; the oldest first
        self._looks_ns: dict[Service, int] = {}  # when services want to be looked at
        self._poller = select.poll()
        # Closed with the last reference: a thread that rings holds one in the meantime.
        self._doorbell: Descriptor | None = Descriptor(
            os.eventfd, 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK
        )
        self._poller.register(self._doorbell.fd, select.POLLIN)
        self._tally = Tally()
        self._is_closed = False
        listener = LocalListener(address)
        try:
            self.acceptor = Acceptor(listener, self._poller, self._tally)
        except BaseException:
            self._doorbell.close()
            listener.close()
            raise
        # The others accept connections of other nodes.
        self._acceptors: dict[Listener, Acceptor] = {listener: self.acceptor}

    def ring(self) -> None:
        """End the wait of ``serve_round``. Any thread."""
        doorbell = self._doorbell
        if doorbell is not None:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_write(doorbell.fd, 1)

    def open(self, listener: Listener) -> None:
        """Also accept connections of other nodes. Any thread; idempotent.

        Raises:
            OSError: There is no descriptor left.
        """
        if listener not in self._acceptors:
            self._acceptors.setdefault(listener, Acceptor(listener, self._poller, self._tally))
        if self._is_closed:
            self._acceptors[listener].close()
        self.ring()  # so that the poller looks there

    def refusals(self) -> Refusals:
        """Return how many connections were refused. Any thread."""
        return self._tally.so_far

    def serve_round(self) -> None:
        """Wait for news and handle them, at most one message of each connection."""
        acceptors = list(self._acceptors.copy().values())
        for acceptor in acceptors:
            acceptor.look()
        wake = -1 if self._doorbell is None else self._doorbell.fd
        spoken: list[tuple[Acceptor, int]] = []
        visited: list[Acceptor] = []
        # Closed after the loop: otherwise a new descriptor could get the number of one of which
        # there is still news to come.
        finished: list[Peer] = []
        ready = [fd for fd, _ in self._poller.poll(self._timeout_ms())]
        # Deaths first: what a peer reports in the same round may only follow from one.
        for fd in sorted(ready, key=lambda fd: fd not in self._watched):
            if fd == wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(wake)
            elif fd in self._watched:
                finished.append(self._lose(self._watched[fd], Ending(How.DIED)))
            elif fd in self._peers:
                if not self._hear(self._peers[fd]):
                    finished.append(self._forget(self._peers[fd]))
            else:
                visited += [each for each in acceptors if each.is_listener(fd)]
                spoken += [(each, fd) for each in acceptors if fd in each]
        now_ns = time.monotonic_ns()
        for service, at_ns in list(self._looks_ns.items()):
            if now_ns >= at_ns:
                del self._looks_ns[service]
                self._news.append(service)
        now = time.monotonic()
        for peer, until in list(self._hung_up.items()):
            if now < until:
                break
            finished.append(self._lose(peer, Ending(How.LEFT)))
        for peer in finished:
            peer.close()
        for acceptor, fd in spoken:
            self._open(acceptor, fd)
        # After all that have spoken were served: a silent one is ended to make room.
        for acceptor in visited:
            acceptor.accept()

    def look_at(self, service: Service, at_ns: int) -> None:
        """Look at a service at this time, whatever happens until then."""
        self._looks_ns[service] = at_ns

    def release(self, service: Service) -> None:
        """Close the connections of a service."""
        self._looks_ns.pop(service, None)
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

    def close(self, *, in_child: bool = False) -> None:
        """Close all addresses and connections; in a forked child its copies of the descriptors."""
        self._doorbell = None
        self._is_closed = True
        for acceptor in self._acceptors.copy().values():
            if in_child:
                acceptor.abandon()
            else:
                acceptor.close()
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()

    # --- pending connections and peers

    def _timeout_ms(self) -> float | None:
        known = [each.timeout_ms() for each in self._acceptors.copy().values()]
        if self._hung_up:
            until = next(iter(self._hung_up.values()))
            known.append(max(0.0, until - time.monotonic()) * 1000 + 1)
        if self._looks_ns:
            left_ns = min(self._looks_ns.values()) - time.monotonic_ns()
            known.append(max(0, left_ns) / 1e6 + 1)
        return min((each for each in known if each is not None), default=None)

    def _open(self, acceptor: Acceptor, fd: int) -> None:
        """Handle the first message of a connection."""
        pending = acceptor.pending(fd)
        connection = pending.connection
        peer: Peer | None = None
        is_kept = False
        found: Admitted | None = None
        try:
            received = sockets.receive(connection, may_wait=False)
        except BlockingIOError:
            return  # a part of a message: the rest may come in time
        except (OSError, ValueError):
            self._tally.count("garbage", sockets.peer_name_of(connection))
        else:
            services = self._services
            if acceptor is self.acceptor:
                services = {**services, self._graphs.service_id: self._graphs}
            with received, contextlib.suppress(OSError, ValueError):
                found = admit(pending, received, services, self._tally)
        if found is not None:
            service, opening = found
            handler = service.handlers.get(type(opening))
            if handler is not None:
                peer = Peer(connection, service)
                with contextlib.suppress(OSError, ValueError):  # this connection ends, no other
                    is_kept = self._handle(peer, handler, opening)
        if peer is not None and is_kept:
            self._peers[fd] = peer
            acceptor.forget(fd)  # at each moment one of the two has it, for a forked child
            if peer.pidfd.fd >= 0:
                self._watched[peer.pidfd.fd] = peer
                self._poller.register(peer.pidfd.fd, select.POLLIN)
            self._news.append(peer.service)
            return
        self._poller.unregister(fd)
        acceptor.forget(fd)
        if peer is not None:
            peer.close()
        else:
            connection.close()

    def _hear(self, peer: Peer) -> bool:
        """Handle one message; returns whether to go on listening to the peer."""
        service = peer.service
        why = ""
        try:
            try:
                received = sockets.receive(peer.connection, may_wait=False)
            except BlockingIOError:
                return True  # a part of a message
            with received:
                message, why = received.message, received.why
                if message is not None:
                    handler = service.handlers.get(type(message))
                    if handler is None or isinstance(message, Opening):
                        raise ValueError("it is not expected here")
                    self._news.append(service)
                    peer.body = received.body
                    return self._handle(peer, handler, message)
        except OSError:
            pass  # as if it had hung up
        except ValueError as problem:
            self._report_lost(peer, Ending(How.FAILED, f"it sent a wrong message: {problem}"))
            return False
        if peer.pidfd.fd >= 0:
            # The kernel closes the connections of a process first. Its end may be about to come.
            self._poller.unregister(peer.fd)
            self._hung_up[peer] = time.monotonic() + EXIT_TIMEOUT_S
            return True
        self._report_lost(peer, Ending(How.LEFT, why))
        return False

    def _report_lost(self, peer: Peer, ending: Ending) -> None:
        self.call(peer.service, peer.service.on_lost, peer, ending)
        self._news.append(peer.service)

    def _lose(self, peer: Peer, ending: Ending) -> Peer:
        self._report_lost(peer, ending)
        return self._forget(peer)

    def _forget(self, peer: Peer) -> Peer:
        """Listen to a peer no more; returns it, to be closed."""
        fd = peer.fd
        if self._peers.pop(fd, None) is not None and self._hung_up.pop(peer, None) is None:
            self._poller.unregister(fd)
        if self._watched.pop(peer.pidfd.fd, None) is not None:
            self._poller.unregister(peer.pidfd.fd)
        return peer

    def _handle(self, peer: Peer, handler: Handler, message: Message) -> bool:
        """Call the handler of a message; returns whether to go on listening to the peer."""
        try:
            return handler(peer.service, peer, message)
        except (OSError, ValueError):
            raise
        except BaseException as problem:  # noqa: BLE001 - a death must not go unseen
            self.fail(peer.service, problem)
            return False
