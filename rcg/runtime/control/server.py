# SPDX-License-Identifier: Apache-2.0
"""The control socket of a graph: handing out descriptors, stopping, and noticing who died.

The driver listens on an abstract AF_UNIX address (no file, gone with the process); each member
connects once. Nothing is unpickled here. Each side also holds the other's pidfd: a dead process is
noticed by the kernel's word, not by a clock, even when a forked child keeps the socket open. Others
who use the graph from outside connect here too and are handed on. What anybody sends is checked
before it is used: it ends his own connection if it is wrong, and nothing else.

There is no lock: state changes in single steps, and who waits looks again (``sleepers``). So a
signal handler or ``__del__`` may come anywhere and use the graph.

::

    member                          driver
      hello {process, secret, clock}  -->
                               <--  welcome + descriptors of the board and the arenas,
                                    or: again {} (too many strangers), refused {text, pid, limit}
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
import itertools
import os
import secrets
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from rcg.descriptors import Descriptor, out_of_descriptors, telling_exhaustion
from rcg.error_text import describe_error, shielding
from rcg.log import Log
from rcg.options import Deadline
from rcg.runtime.control.reception import Reception, refusal_of
from rcg.runtime.sleepers import Sleepers, emptied
from rcg.trace.clocks import Exchange, clock_identity, clock_of, now_ns
from rcg.trace.model import Clock
from rcg.wire import liveness, messages
from rcg.wire.liveness import Ending, How
from rcg.wire.messages import Message, natural_of, printable, text_of

__all__ = ["ControlServer"]

_log = Log()

_EXCHANGES: Final = 8  # about a clock that is not ours
# What is said of a loop that ended as if it had been told to.
_UNASKED: Final = Ending(How.FAILED, "it ended, and nobody had told it to")
_LAST_NS: Final = (1 << 63) - 1  # of any clock


@dataclass
class _Connected:
    connection: socket.socket
    process: str = ""
    pid: int = -1
    pidfd: Descriptor = field(default_factory=Descriptor)
    state: str = "new"  # new, member, stopped, gone, caller

    def close(self) -> None:
        self.connection.close()
        self.pidfd.close()


@dataclass
class ControlServer:
    """The driver's side.

    Args:
        graph_id: Part of the address, so that people can tell whose it is.
        processes: Who will connect.
        descriptors_for: Process -> the board's descriptor and one per member (-1 for none).
        on_gone: Called with (process, ending) on this server's thread when a member's process ends
            or its loop fails before it was told to stop.
        on_caller: Called with the connection of one who uses the graph from outside, and what he
            wants; it owns the connection from then on. On this server's thread: must not block.
    """

    graph_id: str
    processes: Sequence[str]
    descriptors_for: Callable[[str], tuple[int, list[int]]]
    on_gone: Callable[[str, Ending], None]
    on_caller: Callable[[socket.socket, str], None]
    secret: str = field(default_factory=lambda: secrets.token_hex(16))
    pids: dict[str, int] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)  # ended before they were told to
    gone_ns: dict[str, int] = field(default_factory=dict)  # and when that was noticed

    def __post_init__(self) -> None:
        self.address = f"\0rcg-{self.graph_id[:12]}-{secrets.token_hex(6)}"
        self._sleepers = Sleepers()
        self._connected: dict[int, _Connected] = {}
        self._over: set[str] = set()
        self._numbers = itertools.count(1)
        self._asked: deque[int] = deque()  # numbers of questions to come
        self._question = 0  # number of the last "where"; of the thread, like what follows
        self._asked_ns = 0
        self._answers: dict[str, tuple[int, list[str]]] = {}
        self._exchanges: dict[str, tuple[Exchange, ...]] = {}
        self._clocks: dict[str, str] = {}
        self._is_stopping = False
        self._is_closed = False
        with telling_exhaustion("for the control socket of a compiled graph"):
            self._poller = select.poll()
            # Closed with the last reference: whoever rings it holds one meanwhile.
            self._doorbell: Descriptor | None = Descriptor(
                os.eventfd, 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK
            )
            self._poller.register(self._doorbell.fd, select.POLLIN)
            try:
                self._reception = Reception(self.address, self._poller)
            except BaseException:
                self._doorbell.close()
                raise
        self._thread = threading.Thread(
            target=self._run, name=f"rcg-control-{self.graph_id[:6]}", daemon=True
        )
        try:
            self._thread.start()
        except BaseException:
            self._reception.close()
            self._doorbell.close()
            raise

    # --- any thread

    def stop(self) -> None:
        """Tell every member to stop; returns at once."""
        self._is_stopping = True
        self._notify()

    @property
    def serves_here(self) -> bool:
        """Whether this thread is the one that hears members: it must not wait for what they say.

        The garbage collector may run a ``__del__`` here that tears a graph down.
        """
        return threading.current_thread() is self._thread

    @property
    def over(self) -> frozenset[str]:
        """The members whose loops have ended, however."""
        return frozenset(self._over)

    def wait_stopped(self, deadline: Deadline) -> list[str]:
        """Wait until every member's loop has ended; returns those that have not by then.

        Once the server is closed nobody hears of any end, and none is waited for.
        """
        expected = set(self.processes)
        self._sleepers.wait(
            lambda: self._over >= expected or self._is_closed, deadline.remaining_s()
        )
        return [] if self._is_closed else sorted(expected - self._over)

    def ask_where(self, patience_s: float) -> dict[str, list[str]]:
        """Return the stack of the user's method that each live member is in, [] for none.

        Those that do not answer within ``patience_s`` are missing: they are stopped, or code that
        they run does not let Python go on.
        """
        if self._is_closed or not patience_s or self.serves_here:
            return {}
        number = next(self._numbers)
        self._asked.append(number)
        self._notify()

        def answers() -> dict[str, list[str]]:
            known = self._answers.copy()
            return {p: list(stack) for p, (answer, stack) in known.items() if answer >= number}

        self._sleepers.wait(
            lambda: set(self.pids) - self._over <= answers().keys() or self._is_closed, patience_s
        )
        return answers()

    def clocks(self, patience_s: float) -> dict[str, Clock]:
        """Return how each member's clock relates to ours; those that do not tell are missing.

        Members that read the same clock as we do are not asked.

        Args:
            patience_s: How long the others may take to answer.
        """
        identity = clock_identity()
        known = self._clocks.copy()
        is_same = {p: bool(clock) and clock == identity for p, clock in known.items()}
        if not all(is_same.values()):
            for _ in range(_EXCHANGES):
                self.ask_where(patience_s / _EXCHANGES)
        clocks = {
            process: clock_of(self._exchanges.get(process, ()), is_same=same)
            for process, same in is_same.items()
        }
        return {process: clock for process, clock in clocks.items() if clock is not None}

    def forget(self, processes: Sequence[str]) -> None:
        """Do not wait for these: they never connected, or were killed."""
        self._over.update(processes)
        self._sleepers.wake()

    def close(self) -> None:
        """Close the address and all connections. Idempotent; returns when the thread has ended."""
        self._is_closed = True
        self._sleepers.wake()
        self._notify()
        if not self.serves_here:
            self._thread.join(5)

    def _notify(self) -> None:
        doorbell = self._doorbell
        if doorbell is not None:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_write(doorbell.fd, 1)

    # --- the server's own thread

    def _run(self) -> None:
        try:
            self._listen()
        except BaseException as problem:  # noqa: BLE001 - nobody may wait for a death unseen
            why = f"the thread that watches it failed: {describe_error(problem)}"
            for member in list(self._connected.values()):
                with shielding():
                    self._end(member, Ending(How.FAILED, why))
            _log.exception("rcg: the control thread of graph %s failed", self.graph_id)
        finally:
            self._is_closed = True
            for member in self._connected.values():
                member.close()
            self._reception.close()
            self._doorbell = None
            self._sleepers.wake()

    def _listen(self) -> None:
        poller, reception = self._poller, self._reception
        wake = -1 if self._doorbell is None else self._doorbell.fd
        by_pidfd: dict[int, _Connected] = {}
        has_told_stop = False
        while not self._is_closed:
            is_stopping = self._is_stopping
            if is_stopping and self._over >= set(self.processes):
                return
            asked = max(emptied(self._asked), default=0)
            if asked > self._question:
                self._question, self._asked_ns = asked, now_ns()
                self._tell_members({"type": "where", "number": asked})
            if is_stopping and not has_told_stop:
                has_told_stop = True
                self._tell_members({"type": "stop"})
            has_visitor = False
            # Closed after the round: else a new descriptor could get the number of one of which
            # there is still news to come in this round.
            finished: list[_Connected] = []
            for fd, _ in poller.poll(reception.timeout_ms()):
                if fd == wake:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(wake)
                elif reception.is_listener(fd):
                    has_visitor = True
                elif fd in by_pidfd:
                    member = by_pidfd.pop(fd)
                    poller.unregister(fd)
                    self._end(member, Ending(How.DIED))
                elif fd in reception or fd in self._connected:
                    member = self._connected.get(fd) or _Connected(reception.take(fd))
                    self._connected[fd] = member
                    if not self._serve(member, has_told_stop):
                        poller.unregister(fd)
                        del self._connected[fd]
                        if by_pidfd.pop(member.pidfd.fd, None):
                            poller.unregister(member.pidfd.fd)
                        finished.append(member)
                    elif member.pidfd.fd >= 0 and member.pidfd.fd not in by_pidfd:
                        by_pidfd[member.pidfd.fd] = member
                        poller.register(member.pidfd.fd, select.POLLIN)
            for member in finished:
                if member.state == "caller":
                    self._hand_on(member)
                else:
                    member.close()
            reception.look()
            # After everybody who has spoken was served: room is made by ending who is silent.
            if has_visitor:
                reception.accept()

    def _hand_on(self, member: _Connected) -> None:
        try:
            self.on_caller(member.connection, member.process)
        except Exception as problem:  # noqa: BLE001 - one caller's trouble is no other's
            told = out_of_descriptors(problem, "to serve another user of its graph")
            if told is not None:
                with contextlib.suppress(OSError):
                    messages.send(member.connection, refusal_of(told), may_wait=False)
            member.close()
            _log.warning(
                "rcg: a caller of graph %s could not be served: %r", self.graph_id, problem
            )

    def _tell_members(self, message: Message) -> None:
        for member in self._connected.values():
            if member.state == "member":
                with contextlib.suppress(OSError):  # also one that is stopped and does not read
                    messages.send(member.connection, message, may_wait=False)

    def _serve(self, member: _Connected, is_stopping: bool) -> bool:
        """Handle one message; False when the connection is over, or no more of this server's."""
        try:
            with messages.receive(member.connection) as received:
                if received.message is None:
                    self._end(member, Ending(liveness.how_it_ended(member.pidfd.fd)))
                    return False
                return self._take(member, received.message, is_stopping)
        except OSError:
            self._end(member, Ending(liveness.how_it_ended(member.pidfd.fd)))
        except ValueError as problem:
            self._end(member, Ending(How.FAILED, f"it sent a wrong message: {problem}"))
        return False

    def _take(self, member: _Connected, message: Message, is_stopping: bool) -> bool:
        """Handle a message; False as in ``_serve``.

        Raises:
            ValueError: It is none.
        """
        kind = message.get("type")
        if member.state == "new":
            if kind == "call" and self._is_secret(message) and not is_stopping:
                member.state, member.process = "caller", text_of(message, "wants")
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
            self._end(member, Ending(How.FAILED, text_of(message, "text")))
            return False
        raise ValueError("its type is unknown")

    def _hear(self, process: str, message: Message) -> None:
        heard_ns = now_ns()
        number = natural_of(message, "number", self._question)
        at = natural_of(message, "clock_ns", _LAST_NS)
        stack = message.get("stack")
        if not isinstance(stack, list):
            raise ValueError("it has no stack")
        self._answers[process] = number, list(map(printable, stack))
        if number == self._question:  # else it was asked earlier than `_asked_ns`
            exchange = Exchange(self._asked_ns, at, heard_ns)
            known = self._exchanges.get(process, ())
            self._exchanges[process] = (*known, exchange)[-_EXCHANGES:]
        self._sleepers.wake()

    def _is_secret(self, message: Message) -> bool:
        return secrets.compare_digest(text_of(message, "secret").encode(), self.secret.encode())

    def _welcome(self, member: _Connected, message: Message, is_stopping: bool) -> bool:
        process, clock = text_of(message, "process"), text_of(message, "clock")
        if not self._is_secret(message) or process not in self.processes or process in self.pids:
            return False
        pid, _ = messages.peer_of(member.connection)
        board, arenas = self.descriptors_for(process)
        present = [fd for fd in arenas if fd >= 0]
        reply = {"type": "welcome", "arenas": [fd >= 0 for fd in arenas]}
        try:
            member.pidfd = liveness.pidfd_of(pid)
            messages.send(member.connection, reply, [board, *present], may_wait=False)
            if is_stopping:
                messages.send(member.connection, {"type": "stop"}, may_wait=False)
        except OSError as error:
            told = out_of_descriptors(error, "to take in a process of its graph")
            if told is not None:
                with contextlib.suppress(OSError):
                    messages.send(member.connection, refusal_of(told), may_wait=False)
            return False
        member.process, member.pid = process, pid
        member.state = "member"
        self._clocks[process] = clock
        self.pids[process] = pid
        return True

    def _end(self, member: _Connected, ending: Ending) -> None:
        if member.state != "member":
            return
        member.state = "gone"
        try:
            if not self._was_told():
                self.gone_ns[member.process] = now_ns()
                self.gone.add(member.process)
                self.on_gone(member.process, ending)
        finally:
            self._mark_over(member.process)

    def _was_told(self) -> bool:
        """Return whether members have been told to stop."""
        return self._is_stopping or self._is_closed

    def _mark_over(self, process: str) -> None:
        self._over.add(process)
        self._sleepers.wake()
