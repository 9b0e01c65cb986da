# SPDX-License-Identifier: Apache-2.0
"""The endpoint of this process: one address, one listening socket, one thread for all its graphs.

It listens on an abstract AF_UNIX address (no file, gone with the process). The first message of a
connection names a service, such as the control of a graph, and proves by the secret of the service
that it may use it. From then on each message goes to the handler that the table of the service has
for it. A wrong message ends its own connection and nothing else; a handler that fails ends its own
service.

The endpoint starts with the first service and ends with the last. A forked child has none: it
closes its copies of the descriptors. There is no lock: state changes in single steps, and what
depends on the state of another thread is looked at again after a change of one's own. So a signal
handler or ``__del__`` may use it anywhere.

The endpoint also holds a pidfd of each peer that a service watches: the kernel reports the death of
a process there, even if a forked child keeps its connection open.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from rcg.descriptors import Descriptor, telling_exhaustion
from rcg.error_text import describe_error, shielding
from rcg.log import Log
from rcg.runtime.control.reception import Reception
from rcg.runtime.control.services import Handler, Peer, Service
from rcg.runtime.sleepers import Sleepers, emptied
from rcg.wire import sockets
from rcg.wire.liveness import EXIT_TIMEOUT_S, Ending, How
from rcg.wire.messages import Message, Opening, UnknownGraph

__all__ = ["Endpoint", "serve"]

_log = Log()

_CLOSE_TIMEOUT_S: Final = 5.0  # the endpoint's thread may be in a ``__del__`` that does not return

# Those of this process, the oldest first: one, but while two threads start the first.
_endpoints: Final[dict[Endpoint, None]] = {}


def serve(service: Service) -> Endpoint:
    """Have a service be reached through the endpoint of this process, which is started if need be.

    On the endpoint's own thread, where a ``__del__`` may come, the service gets an endpoint of its
    own: this thread cannot serve it as long as it waits.

    Raises:
        OutOfDescriptors: There is none left for the endpoint.
        RuntimeError: There is no thread left for it.
    """
    for endpoint in _endpoints.copy():
        if not endpoint.serves_here and endpoint.add(service):
            return endpoint
    made = Endpoint()
    made.add(service)
    try:
        made.start()
        _endpoints[made] = None
    except BaseException:
        made.abandon_service(service)
        raise
    # Another thread may have started one in the meantime. The older one stays.
    for endpoint in _endpoints.copy():
        if endpoint is made:
            break
        if not endpoint.serves_here and endpoint.add(service):
            made.abandon_service(service)
            return endpoint
    return made


class Endpoint:
    """The address of this process, and the thread that serves it.

    Raises:
        OutOfDescriptors: There is none left.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.address = f"\0rcg-{self._pid}-{secrets.token_hex(8)}"
        self._services: dict[str, Service] = {}
        self._news: deque[Service] = deque()  # those that have something to do on the thread
        self._peers: dict[int, Peer] = {}  # by their connection; of the thread, like the next two
        self._watched: dict[int, Peer] = {}  # by their pidfd
        self._hung_up: dict[Peer, float] = {}  # until when its process may end; the oldest first
        self._sleepers = Sleepers()
        self._is_ending = False  # it takes no service any more
        self._is_over = False  # its descriptors are closed
        with telling_exhaustion("for the control socket of a compiled graph"):
            self._poller = select.poll()
            # Closed with the last reference: a thread that rings holds one in the meantime.
            self._doorbell: Descriptor | None = Descriptor(
                os.eventfd, 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK
            )
            self._poller.register(self._doorbell.fd, select.POLLIN)
            try:
                self._reception = Reception(self.address, self._poller)
            except BaseException:
                self._doorbell.close()
                raise
        self._thread = threading.Thread(target=self._run, name="rcg-control", daemon=True)

    # --- any thread

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: There is no thread left.
        """
        try:
            self._thread.start()
        except BaseException:
            self._is_ending = self._is_over = True
            self._reception.close()
            self._doorbell = None
            raise

    @property
    def serves_here(self) -> bool:
        """Whether this is the endpoint's thread: it must not wait for what peers send.

        The garbage collector may run a ``__del__`` here that tears a graph down.
        """
        return threading.current_thread() is self._thread

    def add(self, service: Service) -> bool:
        """Serve a service from now on; False if the endpoint is about to end."""
        if self._pid != os.getpid():
            return False
        self._services[service.service_id] = service
        if self._is_ending:  # looked at after the step before, and set before `_services` is
            self.abandon_service(service)
            return False
        return True

    def abandon_service(self, service: Service) -> None:
        """Undo ``add``, for a service that no peer knows yet."""
        self._services.pop(service.service_id, None)
        self._ring()

    def notify(self, service: Service) -> None:
        """Have the thread look at a service."""
        self._news.append(service)
        self._ring()

    def close(self, service: Service) -> None:
        """Let go of a service that is over. Idempotent.

        Returns when its connections are closed; if it was the last one, when the endpoint has
        ended.
        """
        self.notify(service)
        if self.serves_here:
            return

        def is_closed() -> bool:
            found = self._services
            return self._is_over or (bool(found) and service.service_id not in found)

        self._sleepers.wait(is_closed, _CLOSE_TIMEOUT_S)
        if self._is_over and self._thread.ident is not None:
            self._thread.join(_CLOSE_TIMEOUT_S)

    def _ring(self) -> None:
        doorbell = self._doorbell
        if doorbell is not None:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_write(doorbell.fd, 1)

    def leave_to_parent(self) -> None:
        """Close this process's copies of the descriptors: in a forked child, without a thread."""
        self._is_ending = self._is_over = True
        self._doorbell = None
        self._reception.abandon()
        for peer in self._peers.values():
            peer.close()
        for service in self._services.copy().values():
            service.released()
        self._sleepers = Sleepers()  # nobody of this process waits there

    # --- the endpoint's thread

    def _run(self) -> None:
        try:
            while not self._has_ended():
                self._serve_round()
        except BaseException as problem:  # noqa: BLE001 - a death must not go unseen
            self._is_ending = True
            for service in self._services.copy().values():
                self._fail(service, problem)
                self._release(service)
        finally:
            self._is_ending = True
            self._reception.close()
            self._doorbell = None
            _endpoints.pop(self, None)
            self._is_over = True
            self._sleepers.wake()

    def _has_ended(self) -> bool:
        """Look at services that have news; returns whether none is left."""
        for service in emptied(self._news):
            self._call(service, service.look)
            if service.is_over:
                self._release(service)
        self._is_ending = not self._services
        # A service that came between these two steps may have seen either: then it is still there,
        # or it is about to leave and rings.
        if self._services:
            self._is_ending = False
        return self._is_ending

    def _serve_round(self) -> None:
        """Wait for news and handle them, at most one message of each connection."""
        reception = self._reception
        wake = -1 if self._doorbell is None else self._doorbell.fd
        spoken: list[int] = []
        has_visitor = False
        # Closed after the loop: otherwise a new descriptor could get the number of one of which
        # there is still news to come.
        finished: list[Peer] = []
        for fd, _ in self._poller.poll(self._timeout_ms()):
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
        # After everybody who has spoken was served: room is made by ending a silent one.
        if has_visitor:
            reception.accept()

    def _timeout_ms(self) -> float | None:
        found = self._reception.timeout_ms()
        for until in self._hung_up.values():
            left = max(0.0, until - time.monotonic()) * 1000 + 1
            return left if found is None else min(left, found)
        return found

    def _open(self, fd: int) -> None:
        """Handle the first message of a connection."""
        connection = self._reception.stranger(fd)
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
            pass  # it ends below, and nobody else is concerned
        if peer is not None and is_kept:
            self._peers[fd] = peer
            self._reception.forget(fd)  # at each moment one of the two has it, for a forked child
            if peer.pidfd.fd >= 0:
                self._watched[peer.pidfd.fd] = peer
                self._poller.register(peer.pidfd.fd, select.POLLIN)
            self._news.append(peer.service)
            return
        self._poller.unregister(fd)
        self._reception.forget(fd)
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
        self._call(peer.service, peer.service.lost, peer, ending)
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

    def _release(self, service: Service) -> None:
        """Let go of a service, with the connections of its peers."""
        for peer in [peer for peer in self._peers.values() if peer.service is service]:
            self._forget(peer).close()
        if self._services.pop(service.service_id, None) is not None:
            with shielding():
                service.released()
        self._sleepers.wake()

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
            self._fail(peer.service, problem)
            return False

    def _call(self, service: Service, call: Callable[..., None], *args: Any) -> None:
        try:
            call(*args)
        except BaseException as problem:  # noqa: BLE001 - a death must not go unseen
            self._fail(service, problem)

    def _fail(self, service: Service, problem: BaseException) -> None:
        """End a service because of an error that is no peer's fault; others go on."""
        with shielding():
            service.fail(f"the thread that watches it failed: {describe_error(problem)}")
        self._news.append(service)
        _log.exception("rcg: the control of graph %s failed", service.service_id)


def _is_same(secret: str, expected: str) -> bool:
    return secrets.compare_digest(secret.encode(), expected.encode())


def _leave_all_to_parent() -> None:
    for endpoint in _endpoints.copy():
        endpoint.leave_to_parent()
    _endpoints.clear()


os.register_at_fork(after_in_child=_leave_all_to_parent)
