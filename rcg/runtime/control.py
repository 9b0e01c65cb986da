# SPDX-License-Identifier: Apache-2.0
"""The control socket of a graph: handing out descriptors, stopping, and noticing who died.

The driver listens on an abstract AF_UNIX address (no file, gone with the process); each member
connects once. Nothing is unpickled here. Each side also holds the other's pidfd: a dead process is
noticed by the kernel's word, not by a clock, even when a forked child keeps the socket open. Others
who use the graph from outside connect here too and are handed on.

::

    member                          driver
      hello {process, secret, clock}  -->
                               <--  welcome + descriptors of the board and the arenas
      ...                           ...
                               <--  where {number}
      here {number, stack, clock_ns}  -->
                               <--  stop
      stopped                  -->                     or: failed {text}

    caller
      call {secret, wants}     -->                     the connection is `callers.py`'s from here on
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from rcg.error_text import shielded, shielding, shortened
from rcg.errors import PlacementError
from rcg.log import Log
from rcg.options import Deadline
from rcg.runtime import packets
from rcg.runtime.packets import Packet
from rcg.trace.clocks import Exchange, clock_identity, clock_of, now_ns
from rcg.trace.trace import Clock

__all__ = ["ControlClient", "ControlServer", "Watched"]

_log = Log()

_PATIENCE_S: Final = 30.0  # of a member that connected, for the answer
_PAUSE_S: Final = 0.05
_EXCHANGES: Final = 8  # about a clock that is not ours
# What keeps a packet within its size.
_DEEPEST_STACK: Final = 40
_LONGEST_LINE: Final = 400
_LONGEST_TEXT: Final = 16_000
_MOST_BYTES: Final = packets.MOST_BYTES * 3 // 4
# What is said of a loop that ended as if it had been told to.
_UNASKED: Final = "its loop failed: it ended, and nobody had told it to"


@dataclass
class _Connected:
    connection: socket.socket
    process: str = ""
    pid: int = -1
    pidfd: int = -1
    state: str = "new"  # new, member, stopped, gone

    def close(self) -> None:
        self.connection.close()
        pidfd, self.pidfd = self.pidfd, -1
        packets.close_pidfd(pidfd)


@dataclass
class ControlServer:
    """The driver's side.

    Args:
        graph_id: Part of the address, so that people can tell whose it is.
        processes: Who will connect.
        descriptors_for: Process -> the board's descriptor and one per member (-1 for none).
        on_gone: Called with (process, how) on this server's thread when a member's process ends or
            its loop fails before it was told to stop.
        on_caller: Called with the connection of one who uses the graph from outside, and what he
            wants; it owns the connection from then on. On this server's thread: must not block.
    """

    graph_id: str
    processes: Sequence[str]
    descriptors_for: Callable[[str], tuple[int, list[int]]]
    on_gone: Callable[[str, str], None]
    on_caller: Callable[[socket.socket, str], None]
    secret: str = field(default_factory=lambda: secrets.token_hex(16))
    pids: dict[str, int] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)  # ended before they were told to
    gone_ns: dict[str, int] = field(default_factory=dict)  # and when that was noticed

    def __post_init__(self) -> None:
        self.address = f"\0rcg-{self.graph_id[:12]}-{secrets.token_hex(6)}"
        self._listener = packets.listen(self.address)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._changed = threading.Condition()
        self._connected: dict[int, _Connected] = {}
        self._over: set[str] = set()
        self._question = 0  # number of the last "where"
        self._asked_ns = 0
        self._answers: dict[str, tuple[int, list[str]]] = {}
        self._exchanges: dict[str, list[Exchange]] = {}
        self._clocks: dict[str, str] = {}
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

    @property
    def over(self) -> frozenset[str]:
        """The members whose loops have ended, however."""
        with self._changed:
            return frozenset(self._over)

    def wait_stopped(self, deadline: Deadline) -> list[str]:
        """Wait until every member's loop has ended; returns those that have not by then."""
        expected = set(self.processes)
        with self._changed:
            self._changed.wait_for(
                lambda: self._over >= expected or self._is_closed, deadline.remaining_s()
            )
            return sorted(expected - self._over)

    def ask_where(self, patience_s: float) -> dict[str, list[str]]:
        """Return the stack of the user's method that each live member is in, [] for none.

        Those that do not answer within ``patience_s`` are missing: they are stopped, or code that
        they run does not let Python go on.
        """
        with self._changed:
            if self._is_closed or not patience_s:
                return {}
            self._question += 1
            number = self._question
            self._notify()

            def is_answered() -> bool:
                asked = set(self.pids) - self._over
                answered = {p for p, (answer, _) in self._answers.items() if answer >= number}
                return asked <= answered or self._is_closed

            self._changed.wait_for(is_answered, patience_s)
            return {p: list(stack) for p, (a, stack) in self._answers.items() if a >= number}

    def clocks(self, patience_s: float) -> dict[str, Clock]:
        """Return how each member's clock relates to ours; those that do not tell are missing.

        Members that read the same clock as we do are not asked.

        Args:
            patience_s: How long the others may take to answer.
        """
        identity = clock_identity()
        is_same = {p: bool(clock) and clock == identity for p, clock in self._clocks.items()}
        if not all(is_same.values()):
            for _ in range(_EXCHANGES):
                self.ask_where(patience_s / _EXCHANGES)
        with self._changed:
            exchanges = {process: list(found) for process, found in self._exchanges.items()}
        clocks = {
            process: clock_of(exchanges.get(process, ()), is_same=same)
            for process, same in is_same.items()
        }
        return {process: clock for process, clock in clocks.items() if clock is not None}

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
        with self._changed:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    # --- the server's own thread

    def _run(self) -> None:
        try:
            self._listen()
        except BaseException:  # noqa: BLE001 - nobody may wait for a death that goes unseen
            for member in list(self._connected.values()):
                with shielding():
                    self._end(member, "its loop failed: the thread that watches it did")
            _log.exception("rcg: the control thread of graph %s failed", self.graph_id)
        finally:
            for member in self._connected.values():
                member.close()
            self._listener.close()
            with self._changed:
                wake, self._wake = self._wake, -1
                os.close(wake)
                self._is_closed = True
                self._changed.notify_all()

    def _listen(self) -> None:
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        by_pidfd: dict[int, _Connected] = {}
        has_told_stop = False
        asked = 0
        while True:
            with self._changed:
                if self._is_closed:
                    return
                is_stopping, question = self._is_stopping, self._question
                if is_stopping and self._over >= set(self.processes):
                    return
            if question > asked:
                asked = question
                self._asked_ns = now_ns()
                self._tell_members({"type": "where", "number": question})
            if is_stopping and not has_told_stop:
                has_told_stop = True
                self._tell_members({"type": "stop"})
            for fd, _ in poller.poll():
                if fd == self._wake:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(self._wake)
                elif fd == self._listener.fileno():
                    try:
                        connection, _ = self._listener.accept()
                    except OSError:
                        # It went away again, or there is no descriptor left for it, and then
                        # trying without a pause would keep a processor busy.
                        time.sleep(_PAUSE_S)
                        continue
                    if packets.peer_of(connection)[1] != os.getuid():
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
                        if member.state == "caller":
                            self._hand_on(member)
                        else:
                            member.close()
                    elif member.pidfd >= 0 and member.pidfd not in by_pidfd:
                        by_pidfd[member.pidfd] = member
                        poller.register(member.pidfd, select.POLLIN)

    def _hand_on(self, member: _Connected) -> None:
        try:
            self.on_caller(member.connection, member.process)
        except Exception:  # noqa: BLE001 - one caller's trouble is no other's
            _log.exception("rcg: a caller of graph %s could not be served", self.graph_id)
            member.close()

    def _tell_members(self, packet: Packet) -> None:
        for member in self._connected.values():
            if member.state == "member":
                with contextlib.suppress(OSError):  # also one that is stopped and does not read
                    packets.send(member.connection, packet, may_wait=False)

    def _serve(self, member: _Connected, is_stopping: bool) -> bool:
        """Handle one message; False when the connection is over, or no more of this server's."""
        try:
            message, _, fds = packets.receive(member.connection)
        except (OSError, ValueError):
            message, fds = None, []
        for fd in fds:
            os.close(fd)
        if message is None:
            self._end(member, packets.how_it_ended(member.pidfd))
            return False
        kind = message.get("type")
        if member.state == "new":
            if kind == "call" and self._is_secret(message) and not is_stopping:
                member.state, member.process = "caller", str(message.get("wants"))
                return False
            return kind == "hello" and self._welcome(member, message, is_stopping)
        if kind == "here":
            self._hear(member.process, message)
            return True
        if kind == "stopped":
            # Unasked only the poison that follows the first failure may end a loop.
            if not self._was_told() and not self.gone:
                self._end(member, _UNASKED)
            member.state = "stopped"
            self._mark_over(member.process)
            return False
        if kind == "failed":
            self._end(member, str(message.get("text")))
            return False
        return True

    def _hear(self, process: str, message: Packet) -> None:
        heard_ns = now_ns()
        match message:
            case {"stack": list(stack), "number": int(number), "clock_ns": int(at)}:
                with self._changed:
                    self._answers[process] = number, list(map(str, stack))
                    if number == self._question:  # else it was asked earlier than `_asked_ns`
                        exchanges = self._exchanges.setdefault(process, [])
                        exchanges.append(Exchange(self._asked_ns, at, heard_ns))
                        del exchanges[:-_EXCHANGES]
                    self._changed.notify_all()

    def _is_secret(self, message: Packet) -> bool:
        given = str(message.get("secret")).encode("utf-8", "surrogatepass")
        return secrets.compare_digest(given, self.secret.encode())

    def _welcome(self, member: _Connected, message: Packet, is_stopping: bool) -> bool:
        pid, uid = packets.peer_of(member.connection)
        process = message.get("process")
        if (
            uid != os.getuid()
            or not self._is_secret(message)
            or process not in self.processes
            or process in self.pids
        ):
            return False
        board, arenas = self.descriptors_for(str(process))
        present = [fd for fd in arenas if fd >= 0]
        reply = {"type": "welcome", "arenas": [fd >= 0 for fd in arenas]}
        try:
            packets.send(member.connection, reply, [board, *present])
            if is_stopping:
                packets.send(member.connection, {"type": "stop"})
        except OSError:
            return False
        member.process, member.pid = str(process), pid
        # A member in this very process needs no watching, and its end is our own.
        member.pidfd = -1 if pid == os.getpid() else packets.open_pidfd(pid)
        member.state = "member"
        self._clocks[member.process] = str(message.get("clock"))
        self.pids[member.process] = pid
        return True

    def _end(self, member: _Connected, how: str) -> None:
        if member.state != "member":
            return
        member.state = "gone"
        try:
            if not self._was_told():
                self.gone_ns[member.process] = now_ns()
                self.gone.add(member.process)
                self.on_gone(member.process, how)
        finally:
            self._mark_over(member.process)

    def _was_told(self) -> bool:
        """Return whether members have been told to stop."""
        with self._changed:
            return self._is_stopping or self._is_closed

    def _mark_over(self, process: str) -> None:
        with self._changed:
            self._over.add(process)
            self._changed.notify_all()


def _fitting(text: str) -> str:
    """Return a text with its middle left out, if need be, so that a packet can hold it."""
    longest = _LONGEST_TEXT
    while len(json.dumps(found := shortened(text, longest))) > _MOST_BYTES:
        longest //= 2
    return found


class Watched(Protocol):
    """A loop, as the thread sees it that listens for the driver."""

    def on_stop(self) -> None:
        """The graph ends."""

    def on_owner_gone(self) -> None:
        """The driver is gone before the loop ended."""

    def where(self) -> list[str]:
        """Return the stack of the user's method that runs now, innermost last; [] in none."""


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
        try:
            self._socket = packets.connect(address, _PATIENCE_S)
            pid, uid = packets.peer_of(self._socket)
            if uid != os.getuid():
                self._socket.close()
                raise PlacementError(
                    f"the driver runs as another user (uid {uid}, here {os.getuid()}): shared "
                    "memory is only shared within one user"
                )
            hello = {
                "type": "hello",
                "process": process,
                "secret": secret,
                "clock": clock_identity(),
            }
            packets.send(self._socket, hello)
            message, _, fds = packets.receive(self._socket)
        except OSError as error:
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
        self._pidfd = -1 if pid == os.getpid() else packets.open_pidfd(pid)
        self._lock = threading.Lock()
        self._is_over = False

    def close_descriptors(self) -> None:
        """Close what was handed over; what is mapped stays."""
        for fd in (self.board, *self.arenas):
            if fd >= 0:
                os.close(fd)
        self.board, self.arenas = -1, []

    def watch(self, loop: Watched, name: str) -> None:
        """Listen for the driver on a thread of this name, until ``finish`` or the driver's end."""
        threading.Thread(target=self._watch, args=(loop,), name=name, daemon=True).start()

    def _watch(self, loop: Watched) -> None:
        try:
            while packets.wait_for_packet(self._socket, self._pidfd):
                message, _, _ = packets.receive(self._socket)
                if message is None:
                    return
                self._answer(message, loop)
        except (OSError, ValueError):
            return  # closed by `finish`, or broken: the same to us
        finally:
            with self._lock:
                was_over = self._is_over
            if not was_over:
                loop.on_owner_gone()
            self._close()

    def _answer(self, message: Packet, loop: Watched) -> None:
        match message.get("type"):
            case "stop":
                loop.on_stop()  # the loop itself is ended by the poison in shared memory
            case "where":
                found = shielded(loop.where, otherwise=list[str]())  # looks into users' modules
                stack = [shortened(line, _LONGEST_LINE) for line in found[-_DEEPEST_STACK:]]
                while len(json.dumps(stack)) > _MOST_BYTES:
                    del stack[0]
                answer = {
                    "type": "here",
                    "number": message["number"],
                    "stack": stack,
                    "clock_ns": now_ns(),
                }
                packets.send(self._socket, answer, may_wait=False)

    def finish(self, failure: str | None = None) -> None:
        """Say that the loop has ended, and why if it was not told to. Ends the watching thread.

        Idempotent: what was said first stands.
        """
        with self._lock:
            was_over, self._is_over = self._is_over, True
        if was_over:
            return
        try:
            message: Packet = {"type": "stopped"}
            if failure is not None:
                message = {"type": "failed", "text": _fitting(failure)}
            with contextlib.suppress(OSError):
                packets.send(self._socket, message)
        finally:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of everything; what is mapped stays. For a member whose loop never ran."""
        self.close_descriptors()
        self._close()

    def _close(self) -> None:
        self._socket.close()
        pidfd, self._pidfd = self._pidfd, -1
        packets.close_pidfd(pidfd)
