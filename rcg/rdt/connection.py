# SPDX-License-Identifier: Apache-2.0
"""The connection to a process that holds tensors: questions and answers, and whether it is gone."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Final, TypeVar

from rcg.error_text import describe_error
from rcg.errors import ActorDiedError, RcgError, Transfer
from rcg.options import Deadline
from rcg.rdt.envelope import Envelope, Holder
from rcg.rdt.lent import MOST_BLOCKS
from rcg.rdt.peer_memory import may_read, read
from rcg.rdt.places import Spans
from rcg.rdt.reach import ended_error, find_all, is_elsewhere, lives, place_if_known_of, reach
from rcg.runtime.control.joining import Joined
from rcg.threads import run_together
from rcg.wire import liveness, sockets
from rcg.wire.messages import (
    AnnounceTensors,
    CheckObjects,
    CheckTensors,
    FreeTensors,
    KeepTensors,
    Message,
    NoteSlices,
    Observed,
    PullSlices,
    PullTensors,
    Ready,
    SendTensors,
    TensorsGone,
    UseTensors,
)
from rcg.wire.packets import UNREACHABLE, PacketStream
from rcg.wire.payloads import open_payloads
from rcg.wire.sockets import Received


class Watch:
    """Says whether the process at the other end of a connection is gone.

    Args:
        connection: The connection.
        pidfd: Of that process, -1 for none.
        may_speak: Whether a message is nothing unusual.
        is_closed: Whether another thread has closed the connection, whose descriptors may be those
            of something else by then.
    """

    def __init__(
        self,
        connection: sockets.Connection,
        pidfd: int,
        *,
        may_speak: bool = True,
        is_closed: Callable[[], bool] = bool,
    ) -> None:
        self._is_closed = is_closed
        self._fd = connection.fileno()
        self._poll = select.poll()
        self._poll.register(self._fd, 0 if may_speak else select.POLLIN)
        if pidfd >= 0:
            self._poll.register(pidfd, select.POLLIN)

    def look(self) -> None:
        """Raise if it is gone, or has said something."""
        if self._is_closed():
            raise Lost(has_spoken=False)
        ready = self._poll.poll(0)
        if ready:
            is_over = select.POLLHUP | select.POLLERR | select.POLLNVAL
            raise Lost(all(fd == self._fd and not events & is_over for fd, events in ready))


class Lost(Exception):
    """The process at the other end is gone, or has something to say."""

    def __init__(self, has_spoken: bool) -> None:
        super().__init__("the process at the other end is gone")
        self.has_spoken = has_spoken


class Silent(TimeoutError):
    """A process did not answer in time."""


class Patience:
    """How long a process may take for its next answer, in a call that has a deadline.

    It is a moment at least, so that a call that polls gets what is there. What has begun to come is
    not given up at the deadline, but when the process falls silent.
    """

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._least_s = _MOMENT_S

    def left_s(self) -> float | None:
        """Return how long the next answer may take; None sets no limit."""
        left_s = self._deadline.remaining_s()
        return None if left_s is None else max(left_s, self._least_s)

    def came(self) -> None:
        """An answer has come."""
        self._least_s = _SILENCE_S


_MOMENT_S: Final = 0.03
_SILENCE_S: Final = 0.5
_FOR_EVER: Final = Patience(Deadline(None))

JOIN_TIMEOUT_S: Final = 30.0
"""How long connecting may take."""

ASK_TIMEOUT_S: Final = 0.5
"""How long a process may take to say what it holds."""

_FAR_TIMEOUT_S: Final = 2.0  # the same of one on another node

_MOST_AT_ONCE: Final = 64  # processes that are asked
_LOOK_TIMEOUT_S: Final = 5.0  # for a node to say where a process listens, the first time
_numbers: Final = itertools.count()  # of the questions of this process
_KEYS: Final = 500  # in one message
_TABLE_BYTES: Final = 32 << 10  # of a table of slices, in one message
_ENDING_S: Final = 0.2  # for the news why a pair has ended
_ROOM_S: Final = 0.002  # between two looks whether a process that does not read has read
_PIECE_BYTES: Final = 4 << 20  # of what follows an answer, each of which is waited for

_A = TypeVar("_A", bound=Message)
_T = TypeVar("_T")


class Connection:
    """The connection to a process that holds tensors.

    Args:
        holder: That process.
        key: The id of the store of this process.
        timeout_s: How long connecting may take.
        look: As in ``rcg.rdt.reach.reach``.

    Attributes:
        holder: As given.
        is_remote: Whether it leads to another node.
        is_closed: Whether it was closed here.
        failed: How this process has tried in vain to read there.
        lock: Of whoever asks.
        patience: Of whoever asks, which he sets back.

    Raises:
        ActorDiedError: That process is gone.
        OutOfThreads: It can start no thread that would answer.
        PlacementError: It is on another node, and cannot listen for this one.
        Transfer: It does not answer.
    """

    def __init__(
        self,
        holder: Holder,
        key: str,
        timeout_s: float = JOIN_TIMEOUT_S,
        look: Callable[[Holder], str] | None = None,
    ) -> None:
        self.holder = holder
        self.lock = threading.Lock()
        self.patience = _FOR_EVER
        self.is_closed = False
        self.failed: set[str] = set()
        opening = UseTensors(graph=holder.key, secret=holder.secret, key=key, pid=os.getpid())
        try:
            self._joined: Joined = reach(holder, opening, timeout_s, look)
        except (OSError, ValueError) as error:
            if isinstance(error, RcgError):
                raise
            raise Transfer(
                f"{holder.label}, which holds the tensors, does not answer: {describe_error(error)}"
            ) from error
        self._pid = sockets.peer_of(self._joined.connection)[0]
        self.is_remote = isinstance(self._joined.connection, PacketStream)
        self._waiter = sockets.Waiter(self._joined.connection, self._joined.pidfd.fd)
        if not isinstance(self._joined.message, Ready):
            self.close()
            raise Transfer(f"what answered is not {holder.label}")

    def gone_error(self, *, looks: bool = True, is_cut: bool = False) -> Exception:
        """Return the error for a process that does not answer any more.

        Args:
            looks: Whether to ask the node of a process elsewhere if that has ended.
            is_cut: Whether it could not be reached for so long that the connection was ended.
        """
        if self.is_closed:
            return Transfer(
                f"this process has closed its connection to {self.holder.label}, which holds the "
                "tensors, because another transfer has failed. Get them again"
            )
        if is_cut:
            return Transfer(
                f"{self.holder.label}, which holds the tensors, cannot be reached any more from "
                "this node. Get them again"
            )
        goes_on = self._goes_on(looks)
        if goes_on is False:
            return ended_error(self.holder)
        but = ", though that process goes on: its log may say why" if goes_on else ""
        return Transfer(
            f"the connection to {self.holder.label}, which holds the tensors, was closed{but}. "
            "Get them again"
        )

    def _goes_on(self, looks: bool) -> bool | None:
        """Return whether the process, whose connection has ended, goes on; None if unknown."""
        pidfd = self._joined.pidfd.fd
        if pidfd >= 0:
            return liveness.how_it_ended(pidfd) is not liveness.How.DIED
        return lives(self.holder) if looks and self.is_remote else None

    def ask_for(self, key: str, group: str, *, reads: str = "") -> int:
        """Ask for an object; returns the number of the question. The caller holds the lock.

        Args:
            key: The object.
            group: Through which group, "" for none.
            reads: How this process would read it where it lies; "" if it cannot.

        Raises:
            ActorDiedError: The process is gone.
        """
        number = next(_numbers)
        self._send(PullTensors(number=number, key=key, group=group, reads=reads))
        return number

    @cached_property
    def may_read(self) -> bool:
        """Whether this process may read the memory of the other one."""
        return not self.is_remote and may_read(self._pid)

    def note_slices(self, table: bytes) -> int:
        """Say which slices will be pulled; returns how to call them. The caller holds the lock.

        Args:
            table: As ``rcg.rdt.slices.rows_of`` makes it.

        Raises:
            ActorDiedError: The process is gone.
        """
        slices = next(_numbers)
        for start in range(0, len(table), _TABLE_BYTES):
            self._send(NoteSlices(slices=slices), table[start : start + _TABLE_BYTES])
        return slices

    def ask_for_slices(self, key: str, slices: int, *, reads: str) -> int:
        """Ask for slices of an object's tensors; as ``ask_for``."""
        number = next(_numbers)
        self._send(PullSlices(number=number, key=key, slices=slices, reads=reads))
        return number

    def read(self, spans: Spans) -> None:
        """Read memory of the process; see ``rcg.rdt.peer_memory.read``."""
        read(self._pid, spans)

    def end_reading(self, number: int) -> None:
        """Ask whether what was read lay there until now.

        Raises:
            ActorDiedError: The process is gone.
        """
        self._send(CheckTensors(number=number))

    def ask_to_check(self, keys: tuple[str, ...]) -> int:
        """Ask whether objects, as many as ``batches`` gives, lay there until they were read.

        Returns the number of the question. The caller holds the lock.

        Raises:
            ActorDiedError: The process is gone.
        """
        number = next(_numbers)
        self._send(CheckObjects(number=number, keys=keys))
        return number

    def ask_to_send(self, key: str, metadata: bytes) -> int:
        """Ask for an object by a user's transport; as ``ask_for``."""
        number = next(_numbers)
        self._send(SendTensors(number=number, key=key), metadata)
        return number

    def observe(self, make: Callable[[int], Message]) -> bytes:
        """Return what the process says of itself, as JSON; see ``rcg.rdt.observe``.

        Args:
            make: Returns the question, with this number.

        Raises:
            ActorDiedError: The process is gone.
            TimeoutError: It did not answer in time.
            Transfer: It answered something else.
        """
        with self.lock:
            self._send(make(next(_numbers)))
            if not self._waiter.wait(_FAR_TIMEOUT_S if self.is_remote else ASK_TIMEOUT_S):
                raise self.gone_error()
            with self.next() as received:
                if not isinstance(received.message, Observed):
                    raise Transfer(f"{self.holder.label} gave an answer that was not expected")
                found: bytes = open_payloads(received)[0].decode()
                return found

    def watch(self, *, may_speak: bool) -> Watch:
        """Return what says whether the process is gone, or has said something.

        Raises:
            Lost: The connection is closed.
        """
        if self.is_closed:
            raise Lost(has_spoken=False)
        return Watch(
            self._joined.connection,
            self._joined.pidfd.fd,
            may_speak=may_speak,
            is_closed=lambda: self.is_closed,
        )

    def next(self) -> Received:
        """Return the next answer, which the caller closes; he holds the lock.

        Raises:
            ActorDiedError: The process is gone.
            Silent: The patience of the caller is over.
        """
        try:
            if not self._waiter.wait(self.patience.left_s()):
                raise self.gone_error()
            self.patience.came()
            received = sockets.receive(self._joined.connection, MOST_BLOCKS)
        except TimeoutError as error:
            raise self._silent_error() from error
        except (OSError, ValueError) as error:
            if isinstance(error, RcgError):
                raise
            raise self.gone_error() from error
        if received.message is None:
            received.close()
            raise self.gone_error(is_cut=received.why == UNREACHABLE)
        return received

    def recv_raw_into(self, memory: memoryview) -> None:
        """Receive bytes that follow the last answer of a process on another node.

        Raises:
            ActorDiedError: The process is gone.
            Silent: The patience of the caller is over.
            Transfer: The connection is over.
        """
        stream = self._joined.connection
        if not isinstance(stream, PacketStream):
            raise Transfer(f"{self.holder.label} gave an answer that was not expected")
        try:
            for start in range(0, len(memory), _PIECE_BYTES):
                stream.settimeout(self.patience.left_s())
                stream.recv_raw_into(memory[start : start + _PIECE_BYTES])
        except TimeoutError as error:
            raise self._silent_error() from error
        except OSError as error:
            raise self.gone_error(is_cut=error.strerror == UNREACHABLE) from error
        finally:
            stream.settimeout(None)

    def last_word(self, number: int) -> str:
        """Return why the process does not go on with an answer, "" if it does not say so now.

        The connection is of no use any more. The caller holds the lock.

        Raises:
            ActorDiedError: The process is gone.
            Transfer: It has closed the connection without a word.
        """
        try:
            if not self._waiter.wait(_ENDING_S):
                raise self.gone_error()
        except TimeoutError:
            return ""
        with self.next() as received:
            found = received.message
        if isinstance(found, TensorsGone) and found.number == number:
            return found.text
        return ""

    def _send(self, message: Message, body: bytes = b"", *, may_wait: bool = True) -> None:
        left_s = self.patience.left_s() if may_wait else None
        deadline, waits = Deadline(left_s), may_wait and left_s is None
        while True:
            try:
                sockets.send(self._joined.connection, message, body=body, may_wait=waits)
                return
            except BlockingIOError:
                if not may_wait:
                    raise
            except OSError as error:
                raise self.gone_error(looks=may_wait) from error
            if deadline.expired:
                raise self._silent_error()
            time.sleep(_ROOM_S)

    def _silent_error(self) -> Silent:
        process = f" (process {self._pid})" if self._pid > 0 else ""
        return Silent(
            f"{self.holder.label}{process} does not answer: it may be stopped, or busy sending"
        )

    def ask(
        self,
        make: Callable[[int], Message],
        answer: type[_A],
        body: bytes = b"",
        timeout_s: float | None = None,
    ) -> _A:
        """Ask for an answer of a class.

        Args:
            make: Returns the question, with this number.
            answer: The class.
            body: Bytes that go with the question.
            timeout_s: How long it may take; None sets no limit.

        Raises:
            ActorDiedError: The process is gone.
            TimeoutError: It did not answer in time.
            Transfer: The answer was another.
        """
        deadline = Deadline(timeout_s)
        with self.lock:
            number = next(_numbers)
            self._send(make(number), body)
            while True:
                if not self._waiter.wait(deadline.remaining_s()):
                    raise self.gone_error()
                with self.next() as received:
                    found = received.message
                    if not isinstance(found, answer):
                        text = f"{self.holder.label} gave an answer that was not expected"
                        raise Transfer(text)
                    # Ctrl-C may have ended the wait for the answer to an earlier question.
                    if getattr(found, "number", number) == number:
                        return found

    def keep(self, keys: Sequence[str]) -> None:
        """Say that this process keeps objects, as long as this connection lasts.

        Raises:
            ActorDiedError: The process is gone.
            BlockingIOError: It does not read; some keys may have been sent.
        """
        for some in batches(keys):
            self._send(KeepTensors(keys=some), may_wait=False)

    def free(self, keys: Sequence[str]) -> None:
        """Say that nobody needs objects any more; raises as ``keep``."""
        for some in batches(keys):
            self._send(FreeTensors(keys=some), may_wait=False)

    def announce(self, envelope: Envelope) -> None:
        """Say that a call which has not run yet takes a value; raises as ``keep``."""
        packed = pickle.dumps(envelope)
        if len(packed) <= _TABLE_BYTES:  # a larger one is mostly not tensors
            self._send(AnnounceTensors(), packed, may_wait=False)

    @property
    def has_ended(self) -> bool:
        """Whether it is closed or the process is gone; of one on which nothing is said now."""
        if self.is_closed:
            return True
        try:
            self._waiter.wait(0)
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Close it."""
        self.is_closed = True
        self._joined.close()


def ask_all(
    holders: Sequence[Holder],
    ask: Callable[[Connection], _T],
    death_of: Callable[[Holder], str | None],
) -> tuple[dict[str, _T], dict[str, str]]:
    """Ask processes at the same time.

    Args:
        holders: The processes.
        ask: Asks one by a connection to it, and returns its answer; raises as
            ``Connection.observe``.
        death_of: Returns why a process is dead that is not there; None if it lives.

    Returns:
        The answers, and why others are dead, by the ids of their stores.
    """
    answers: dict[str, _T] = {}
    missing: list[Holder] = []

    def ask_one(holder: Holder) -> None:
        timeout_s = ASK_TIMEOUT_S if holder.key not in known else _FAR_TIMEOUT_S
        try:
            with contextlib.closing(Connection(holder, "", timeout_s, _look)) as connection:
                answers[holder.key] = ask(connection)
        except ActorDiedError:
            missing.append(holder)
        except (OSError, RcgError):
            pass

    known = {each.key for each in holders if is_elsewhere(each)}
    run_together([partial(ask_one, each) for each in holders], "rcg-tensors-ask", _MOST_AT_ONCE)
    far = find_all(missing, _LOOK_TIMEOUT_S)
    known |= {each.key for each in far}
    missing = [each for each in missing if each.key not in known]
    run_together([partial(ask_one, each) for each in far], "rcg-tensors-ask", _MOST_AT_ONCE)
    deaths = {each.key: why for each in missing if (why := death_of(each)) is not None}
    return answers, deaths


def _look(holder: Holder) -> str:
    return place_if_known_of(holder, _LOOK_TIMEOUT_S)


def batches(keys: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Give as many ids at a time as fit into one message."""
    for start in range(0, len(keys), _KEYS):
        yield tuple(keys[start : start + _KEYS])
