# SPDX-License-Identifier: Apache-2.0
"""The control socket of a graph: handing out descriptors, stopping, and noticing who died.

The driver listens on an abstract AF_UNIX address (no file, gone with the process); each member
connects once. Messages are small JSON packets, so nothing is unpickled here, and the kernel says
who the peer is (``SO_PEERCRED``). Each side also holds the other's pidfd: a dead process is noticed
by the kernel's word, not by a clock, even when a forked child keeps the socket open.

::

    member                          driver
      hello {process, secret}  -->
                               <--  welcome + descriptors of the board and the arenas
      ...                           ...
                               <--  stop
      stopped                  -->                     or: failed {text}
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rcg.errors import PlacementError
from rcg.options import Deadline

__all__ = ["ControlClient", "ControlServer"]

_MOST_BYTES: Final = 64 * 1024
_MOST_DESCRIPTORS: Final = 80
_MOMENT_S: Final = 0.25
_PATIENCE_S: Final = 30.0  # of a member that connected, for the answer


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Return (pid, uid) of the process at the other end, by the kernel's word."""
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return pid, uid


def _open_pidfd(pid: int) -> int:
    """Return a descriptor that becomes readable when the process ends; -1 where there is none."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1  # an old kernel, or a pid of another namespace: the socket's end has to do


def _how_it_ended(pidfd: int) -> str:
    """Say whether a process whose connection ended has ended too; that may take a moment."""
    if pidfd >= 0 and select.select([pidfd], [], [], _MOMENT_S)[0]:
        return "its process ended"
    return "it closed its connection"


def _send(connection: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    data = json.dumps(message).encode()
    if fds:
        socket.send_fds(connection, [data], list(fds))
    else:
        connection.send(data)


def _receive(connection: socket.socket) -> tuple[Any, list[int]]:
    """Return the next message, None at the end, and the descriptors that came with it."""
    try:
        data, fds, _, _ = socket.recv_fds(connection, _MOST_BYTES, _MOST_DESCRIPTORS)
    except ConnectionError:
        return None, []
    return (json.loads(data) if data else None), list(fds)


@dataclass
class _Connected:
    connection: socket.socket
    process: str = ""
    pid: int = -1
    pidfd: int = -1
    state: str = "new"  # new, member, stopped, gone

    def close(self) -> None:
        self.connection.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


@dataclass
class ControlServer:
    """The driver's side.

    Args:
        graph_id: Part of the address, so that people can tell whose it is.
        processes: Who will connect.
        descriptors_for: Process -> the board's descriptor and one per member (-1 for none).
        on_gone: Called with (process, how) on this server's thread when a member's process ends or
            its loop fails before it was told to stop.
    """

    graph_id: str
    processes: Sequence[str]
    descriptors_for: Callable[[str], tuple[int, list[int]]]
    on_gone: Callable[[str, str], None]
    secret: str = field(default_factory=lambda: secrets.token_hex(16))
    pids: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.address = f"\0rcg-{self.graph_id[:12]}-{secrets.token_hex(6)}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self._listener.bind(self.address)
        self._listener.listen(128)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._changed = threading.Condition()
        self._connected: dict[int, _Connected] = {}
        self._over: set[str] = set()
        self._is_stopping = False
        self._is_closed = False
        self._thread = threading.Thread(
            target=self._run, name=f"rcg-control-{self.graph_id[:6]}", daemon=True
        )
        self._thread.start()

    # --- any thread

    def stop(self) -> None:
        """Tell every member to stop; returns at once."""
        with self._changed:
            self._is_stopping = True
        self._notify()

    def wait_stopped(self, deadline: Deadline) -> list[str]:
        """Wait until every member's loop has ended; returns those that have not by then."""
        expected = set(self.processes)
        with self._changed:
            self._changed.wait_for(
                lambda: self._over >= expected or self._is_closed, deadline.remaining_s()
            )
            return sorted(expected - self._over)

    def forget(self, processes: Sequence[str]) -> None:
        """Do not wait for these: they never connected, or were killed."""
        with self._changed:
            self._over.update(processes)
            self._changed.notify_all()

    def close(self) -> None:
        """Close the address and all connections. Idempotent; returns when the thread has ended."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._notify()
        if threading.current_thread() is not self._thread:
            self._thread.join(5)

    def _notify(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            os.eventfd_write(self._wake, 1)

    # --- the server's own thread

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        by_pidfd: dict[int, _Connected] = {}
        has_told_stop = False
        try:
            while True:
                with self._changed:
                    if self._is_closed:
                        return
                    is_stopping = self._is_stopping
                if is_stopping and not has_told_stop:
                    has_told_stop = True
                    for member in self._connected.values():
                        if member.state == "member":
                            with contextlib.suppress(OSError):
                                _send(member.connection, {"type": "stop"})
                for fd, _ in poller.poll():
                    if fd == self._wake:
                        with contextlib.suppress(BlockingIOError):
                            os.eventfd_read(self._wake)
                    elif fd == self._listener.fileno():
                        try:
                            connection, _ = self._listener.accept()
                        except OSError:
                            continue  # it went away again, or there is no descriptor left for it
                        if _peer(connection)[1] != os.getuid():
                            connection.close()
                            continue
                        self._connected[connection.fileno()] = _Connected(connection)
                        poller.register(connection, select.POLLIN)
                    elif fd in by_pidfd:
                        member = by_pidfd.pop(fd)
                        poller.unregister(fd)
                        self._end(member, "its process ended")
                    elif fd in self._connected:
                        member = self._connected[fd]
                        if not self._serve(member, has_told_stop):
                            poller.unregister(fd)
                            del self._connected[fd]
                            if member.pidfd in by_pidfd:
                                poller.unregister(member.pidfd)
                                del by_pidfd[member.pidfd]
                            member.close()
                        elif member.pidfd >= 0 and member.pidfd not in by_pidfd:
                            by_pidfd[member.pidfd] = member
                            poller.register(member.pidfd, select.POLLIN)
        finally:
            for member in self._connected.values():
                member.close()
            self._listener.close()
            os.close(self._wake)
            with self._changed:
                self._is_closed = True
                self._changed.notify_all()

    def _serve(self, member: _Connected, is_stopping: bool) -> bool:
        """Handle one message; False when the connection is over."""
        try:
            message, fds = _receive(member.connection)
        except (OSError, ValueError, RecursionError):
            message, fds = None, []
        for fd in fds:
            os.close(fd)
        if message is not None and not isinstance(message, dict):
            return False
        kind = None if message is None else message.get("type")
        if message is None:
            self._end(member, _how_it_ended(member.pidfd))
            return False
        if member.state == "new":
            return kind == "hello" and self._welcome(member, message, is_stopping)
        if kind == "stopped":
            member.state = "stopped"
            self._mark_over(member.process)
            return False
        if kind == "failed":
            self._end(member, str(message.get("text")))
            return False
        return True

    def _welcome(self, member: _Connected, message: dict[str, Any], is_stopping: bool) -> bool:
        pid, uid = _peer(member.connection)
        process = message.get("process")
        if (
            uid != os.getuid()
            or not secrets.compare_digest(str(message.get("secret")), self.secret)
            or process not in self.processes
            or process in self.pids
        ):
            return False
        board, arenas = self.descriptors_for(str(process))
        present = [fd for fd in arenas if fd >= 0]
        reply = {"type": "welcome", "arenas": [fd >= 0 for fd in arenas]}
        try:
            _send(member.connection, reply, [board, *present])
            if is_stopping:
                _send(member.connection, {"type": "stop"})
        except OSError:
            return False
        member.process, member.pid = str(process), pid
        # A member in this very process needs no watching, and its end is our own.
        member.pidfd = -1 if pid == os.getpid() else _open_pidfd(pid)
        member.state = "member"
        self.pids[member.process] = pid
        return True

    def _end(self, member: _Connected, how: str) -> None:
        if member.state != "member":
            return
        member.state = "gone"
        with self._changed:
            was_told = self._is_stopping or self._is_closed
        if not was_told:
            self.on_gone(member.process, how)
        self._mark_over(member.process)

    def _mark_over(self, process: str) -> None:
        with self._changed:
            self._over.add(process)
            self._changed.notify_all()


class ControlClient:
    """A member's side.

    Args:
        address: The driver's address.
        secret: Proves that the driver sent us.
        process: Who we are in the plan.

    Raises:
        PlacementError: The driver cannot be reached from here.
    """

    def __init__(self, address: str, secret: str, process: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            self._socket.settimeout(_PATIENCE_S)
            self._socket.connect(address)
            pid, uid = _peer(self._socket)
            if uid != os.getuid():
                raise PlacementError(
                    f"the driver runs as another user (uid {uid}, here {os.getuid()}): shared "
                    "memory is only shared within one user"
                )
            _send(self._socket, {"type": "hello", "process": process, "secret": secret})
            message, fds = _receive(self._socket)
        except OSError as error:
            self._socket.close()
            raise PlacementError(
                f"this process cannot reach the driver's control socket ({error}): driver and "
                "actors on a node must share a network namespace (one container, or host network)"
            ) from error
        if message is None:
            self._socket.close()
            raise PlacementError("the driver refused the connection: its graph has ended")
        self._socket.settimeout(None)
        self.board, *present = fds
        arenas = iter(present)
        self.arenas = [next(arenas) if is_present else -1 for is_present in message["arenas"]]
        self._pidfd = -1 if pid == os.getpid() else _open_pidfd(pid)
        self._lock = threading.Lock()
        self._is_over = False

    def close_descriptors(self) -> None:
        """Close what was handed over; what is mapped stays."""
        for fd in (self.board, *self.arenas):
            if fd >= 0:
                os.close(fd)
        self.board, self.arenas = -1, []

    def watch(self, on_owner_gone: Callable[[], None], name: str) -> None:
        """Watch the driver on a thread; calls back when it is gone before the loop ended."""
        threading.Thread(target=self._watch, args=(on_owner_gone,), name=name, daemon=True).start()

    def _watch(self, on_owner_gone: Callable[[], None]) -> None:
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        if self._pidfd >= 0:
            poller.register(self._pidfd, select.POLLIN)
        try:
            while True:
                for fd, _ in poller.poll():
                    if fd == self._pidfd:
                        return
                    message, _ = _receive(self._socket)
                    if message is None:
                        return
                    # "stop" needs no answer here: the poison in shared memory ends the loop.
        except (OSError, ValueError):
            return  # closed by `finish`, or broken: the same to us
        finally:
            with self._lock:
                was_over = self._is_over
            if not was_over:
                on_owner_gone()
            self._close()

    def finish(self, failure: str | None = None) -> None:
        """Say that the loop has ended, and why if it was not told to. Ends the watching thread."""
        with self._lock:
            self._is_over = True
        message = {"type": "stopped"} if failure is None else {"type": "failed", "text": failure}
        with contextlib.suppress(OSError):
            _send(self._socket, message)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of everything; what is mapped stays. For a member whose loop never ran."""
        self.close_descriptors()
        self._close()

    def _close(self) -> None:
        self._socket.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
