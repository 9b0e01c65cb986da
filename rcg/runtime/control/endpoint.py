# SPDX-License-Identifier: Apache-2.0
"""The endpoint of this process: one address, one listening socket, one thread for all its graphs.

It listens on an abstract AF_UNIX address (no file; it disappears with the process) and, once a
service asks for it, at a TCP address for other nodes. The endpoint starts with the first service
and ends with the last. A forked child has none: it closes its copies of the descriptors.

There is no lock, so a signal handler or ``__del__`` may use the endpoint at any point. State
changes in single steps, and each side writes its own word before it reads that of the other::

    any thread, `add`                       the endpoint's thread, `_has_ended`
      services[id] = service                  is_ending = not services
      is_ending?  yes: take it out again      services?  yes: is_ending = False, go on

    any thread, `notify`                    the endpoint's thread, `_end`
      news.append(service)                    is_over = True
      is_over?    yes: news.clear()           news.clear()

    any thread, `Connections.open`          the endpoint's thread, `Connections.close`
      acceptors[listener] = acceptor          is_closed = True
      is_closed?  yes: acceptor.close()       close all of acceptors

Whatever the order of the four steps, at least one side sees what the other wrote: no service is
served by an endpoint that has ended, no news and no address stay behind.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections import deque
from typing import Final

from rcg.descriptors import telling_exhaustion
from rcg.error_text import shielding
from rcg.runtime.control.acceptor import Refusals, TcpListener
from rcg.runtime.control.connections import Connections
from rcg.runtime.control.services import Service
from rcg.runtime.sleepers import Sleepers, take_all
from rcg.threads import start_owner
from rcg.wire.addresses import TcpAddress

_CLOSE_TIMEOUT_S: Final = 5.0  # the endpoint's thread may be in a ``__del__`` that does not return

# Those of this process, the oldest first: one, but while two threads start the first.
_endpoints: Final[dict[Endpoint, None]] = {}


def serve(service: Service, address: str = "") -> Endpoint:
    """Have a service be reached through the endpoint of this process, which is started if need be.

    On the endpoint's own thread, where a ``__del__`` may come, the service gets an endpoint of its
    own: this thread cannot serve it as long as it waits. So does a service that must have a certain
    abstract ``address``.

    Raises:
        OutOfDescriptors: There is none left for the endpoint.
        OSError: Another process listens at the address.
        OutOfThreads: No more threads can be started.
    """
    try:
        return _serve(service, address)
    except BaseException:
        abandon(service)
        raise


def abandon(service: Service) -> None:
    """Undo ``serve``, also if Ctrl-C came before it returned; for a service that no peer knows."""
    for endpoint in _endpoints.copy():
        endpoint.abandon_service(service)


def _serve(service: Service, address: str) -> Endpoint:
    for endpoint in () if address else _endpoints.copy():
        if endpoint.is_shared and not endpoint.serves_here and endpoint.add(service):
            return endpoint
    made = Endpoint(address)
    made.add(service)
    try:
        made.start()
        _endpoints[made] = None
    except BaseException:
        made.abandon_service(service)
        raise
    # Another thread may have started one in the meantime. The older one stays.
    for endpoint in _endpoints.copy():
        if endpoint is made or address:
            break
        if endpoint.is_shared and not endpoint.serves_here and endpoint.add(service):
            made.abandon_service(service)
            return endpoint
    return made


class Endpoint:
    """The address of this process, and the thread that serves it.

    It listens at an address that nothing else has, unless ``address`` gives one.

    Raises:
        OutOfDescriptors: There is none left.
        OSError: Another process listens there.
    """

    def __init__(self, address: str = "") -> None:
        self._pid = os.getpid()
        self.address = address or f"\0rcg-{self._pid}-{secrets.token_hex(8)}"
        self._services: dict[str, Service] = {}
        self._listeners: dict[str, TcpListener] = {}  # for other nodes, by host
        self._news: deque[Service] = deque()  # those that have something to do on the thread
        self._sleepers = Sleepers()
        self._is_ending = False  # it takes no service any more
        self._is_over = False  # its descriptors are closed
        with telling_exhaustion("for the control socket of a compiled graph"):
            self._connections = Connections(self.address, self._services, self._news)
        self.is_shared = not address  # by all services that need no certain address
        self._thread: threading.Thread | None = None  # once it runs

    # --- any thread

    def start(self) -> None:
        """Start the thread.

        Raises:
            OutOfThreads: No more threads can be started.
        """
        name = "rcg-control" if self.is_shared else "rcg-tensors"
        start_owner(self._run, self._end, name, "for the control socket of a compiled graph")

    @property
    def serves_here(self) -> bool:
        """Whether this is the endpoint's thread, which must not wait for messages of peers.

        The garbage collector may run a ``__del__`` here that tears a graph down.
        """
        return threading.current_thread() is self._thread

    def add(self, service: Service) -> bool:
        """Serve a service from now on; False if the endpoint is about to end."""
        if self._pid != os.getpid():
            return False
        self._services[service.service_id] = service
        if self._is_ending:
            self.abandon_service(service)
            return False
        self._sleepers.wake()  # the endpoint does not end, so `close` need not wait for that
        return True

    def listen_tcp(self, host: str) -> TcpAddress:
        """Be reached from other nodes, too, at an address of this machine; idempotent.

        All services of the process share the port, which is closed with the endpoint. Connections
        to other addresses of this machine than ``host``, in numbers, are not heard.

        Raises:
            PlacementError: No port of ``RCG_PORT_RANGE`` is free there, or the address is another
                machine's.
            OutOfDescriptors: There is none left.
            ValueError: A variable holds nothing that rcg understands, or ``host`` is no address.
            ConnectionAbortedError: The endpoint has ended.
        """
        if self._is_over or self._pid != os.getpid():
            raise ConnectionAbortedError("the endpoint has ended")
        with telling_exhaustion("to be reached from other nodes"):
            listener = self._listeners.get(host)
            if listener is None:
                made = TcpListener(host)
                listener = self._listeners.setdefault(host, made)
                if listener is not made:  # another thread was faster
                    made.close()
            try:
                self._connections.open(listener)  # also if Ctrl-C came before it was
            except OSError:
                self._listeners.pop(host, None)
                listener.close()
                raise
        return listener.address

    def refusals(self) -> Refusals:
        """Return how many connections were refused so far, by reason."""
        return self._connections.refusals()

    def abandon_service(self, service: Service) -> None:
        """Undo ``add``, for a service that no peer knows yet."""
        self._services.pop(service.service_id, None)
        self._connections.ring()

    def notify(self, service: Service) -> None:
        """Have the thread look at a service."""
        self._news.append(service)
        # What stayed there would keep the service, with its memory, until garbage is collected.
        if self._is_over:
            self._news.clear()
        self._connections.ring()

    def look_at(self, service: Service, at_ns: int) -> None:
        """Look at a service at this time of the monotonic clock; only on the endpoint's thread."""
        self._connections.look_at(service, at_ns)

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
        if self._is_over and self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT_S)

    def leave_to_parent(self) -> None:
        """Close this process's copies of the descriptors: in a forked child, without a thread."""
        self._is_ending = self._is_over = True
        self._connections.close(in_child=True)
        for service in self._services.copy().values():
            service.on_released()
        self._sleepers = Sleepers()  # no thread of this process waits on the old ones

    # --- the endpoint's thread

    def _run(self) -> None:
        self._thread = threading.current_thread()
        try:
            while not self._has_ended():
                self._connections.serve_round()
        except BaseException as problem:  # noqa: BLE001 - a death must not go unseen
            self._is_ending = True
            for service in self._services.copy().values():
                self._connections.fail(service, problem)
                self._release(service)
        finally:
            self._end()

    def _end(self) -> None:
        self._is_ending = True
        self._connections.close()
        _endpoints.pop(self, None)
        self._is_over = True
        self._sleepers.wake()
        self._news.clear()

    def _has_ended(self) -> bool:
        """Look at services that have news; returns whether none is left."""
        for service in take_all(self._news):
            self._connections.call(service, service.look)
            if service.is_over:
                self._release(service)
        self._is_ending = not self._services
        # One that was added in the meantime stays, or it saw that the endpoint ends. Then it is
        # about to be taken out again, and that rings.
        if self._services:
            self._is_ending = False
        return self._is_ending

    def _release(self, service: Service) -> None:
        """Let go of a service, with the connections of its peers."""
        self._connections.release(service)
        if self._services.pop(service.service_id, None) is not None:
            with shielding():
                service.on_released()
        self._sleepers.wake()


def _leave_all_to_parent() -> None:
    for endpoint in _endpoints.copy():
        endpoint.leave_to_parent()
    _endpoints.clear()


os.register_at_fork(after_in_child=_leave_all_to_parent)
