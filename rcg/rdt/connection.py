# SPDX-License-Identifier: Apache-2.0
"""The connection to a process that holds tensors: questions, answers, and what it is told."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from rcg import cluster
from rcg.error_text import describe_error
from rcg.errors import ActorDiedError, PlacementError, RcgError, Transfer
from rcg.rdt.envelope import Holder
from rcg.rdt.watching import Lost, Watch
from rcg.runtime.control.joining import Joined, check_user, join
from rcg.wire import liveness, sockets
from rcg.wire.messages import (
    FreeTensors,
    KeepTensors,
    Message,
    Observed,
    PullTensors,
    Ready,
    SendTensors,
    UseTensors,
)
from rcg.wire.payloads import open_payloads
from rcg.wire.sockets import Received

__all__ = ["JOIN_TIMEOUT_S", "Connection"]

JOIN_TIMEOUT_S: Final = 30.0
"""How long connecting may take."""

_KEYS: Final = 500  # in one message
_ENDING_S: Final = 0.2

_A = TypeVar("_A", bound=Message)


class Connection:
    """The connection to a process that holds tensors.

    Args:
        holder: That process.
        key: The id of the store of this process.
        timeout_s: How long connecting may take.

    Raises:
        ActorDiedError: That process is gone.
        PlacementError: It is on another node.
        Transfer: It does not answer.
    """

    def __init__(self, holder: Holder, key: str, timeout_s: float = JOIN_TIMEOUT_S) -> None:
        self.holder = holder
        self.lock = threading.Lock()
        self.is_closed = False
        self._numbers = itertools.count()
        opening = UseTensors(graph=holder.key, secret=holder.secret, key=key, pid=os.getpid())
        try:
            self._joined: Joined = join(holder.address, opening, timeout_s, check_user)
        except (ConnectionRefusedError, ConnectionAbortedError, ProcessLookupError) as error:
            raise _ended(holder) from error
        except (OSError, ValueError) as error:
            if isinstance(error, RcgError):
                raise
            raise Transfer(
                f"{holder.label}, which holds the tensors, does not answer: {describe_error(error)}"
            ) from error
        self._waiter = sockets.Waiter(self._joined.connection, self._joined.pidfd.fd)
        if not isinstance(self._joined.message, Ready):
            self.close()
            raise Transfer(f"what answered is not {holder.label}")

    def gone(self) -> Exception:
        """Return the error for a process that does not answer any more."""
        pidfd = self._joined.pidfd.fd
        goes_on = pidfd >= 0 and liveness.how_it_ended(pidfd) is liveness.How.LEFT
        if self.is_closed:
            return Transfer(
                f"this process has closed its connection to {self.holder.label}, which holds the "
                "tensors, because another transfer has failed. Get them again"
            )
        if goes_on:
            return Transfer(
                f"the connection to {self.holder.label}, which holds the tensors, was closed, "
                "though that process goes on: its log may say why. Get them again"
            )
        return _ended(self.holder)

    def ask_for(self, key: str, group: str) -> int:
        """Ask for an object; returns the number of the question. The caller holds the lock.

        Raises:
            ActorDiedError: The process is gone.
        """
        number = next(self._numbers)
        self._send(PullTensors(number=number, key=key, group=group))
        return number

    def ask_to_send(self, key: str, told: bytes) -> int:
        """Ask for an object by a transport of the user's; as ``ask_for``.

        Args:
            key: The object.
            told: What the transport says of the transfer.
        """
        number = next(self._numbers)
        self._send(SendTensors(number=number, key=key), told)
        return number

    def observe(self, make: Callable[[int], Message], timeout_s: float) -> bytes:
        """Return what the process says of itself, as JSON; see ``rcg.rdt.observing``.

        Args:
            make: Returns the question, with this number.
            timeout_s: How long it may take.

        Raises:
            ActorDiedError: The process is gone.
            TimeoutError: It did not answer in time.
            Transfer: It answered something else.
        """
        with self.lock:
            self._send(make(next(self._numbers)))
            if not self._waiter.wait(timeout_s):
                raise self.gone()
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
        """
        try:
            if not self._waiter.wait():
                raise self.gone()
            received = sockets.receive(self._joined.connection, 1)
        except (OSError, ValueError) as error:
            if isinstance(error, RcgError):
                raise
            raise self.gone() from error
        if received.message is None:
            received.close()
            raise self.gone()
        return received

    def _send(self, message: Message, body: bytes = b"", *, may_wait: bool = True) -> None:
        try:
            sockets.send(self._joined.connection, message, body=body, may_wait=may_wait)
        except BlockingIOError:
            raise
        except OSError as error:
            raise self.gone() from error

    def asked(
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
        with self.lock:
            self._send(make(next(self._numbers)), body)
            if not self._waiter.wait(timeout_s):
                raise self.gone()
            received = self.next()
        with received:
            if not isinstance(received.message, answer):
                raise Transfer(f"{self.holder.label} gave an answer that was not expected")
            return received.message

    def keep(self, keys: Sequence[str]) -> None:
        """Say that this process keeps objects, as long as this connection lasts.

        Raises:
            ActorDiedError: The process is gone.
            BlockingIOError: It does not read; some may have been told.
        """
        for some in _batches(keys):
            self._send(KeepTensors(keys=some), may_wait=False)

    def free(self, keys: Sequence[str]) -> None:
        """Say that nobody needs objects any more; raises as ``keep``."""
        for some in _batches(keys):
            self._send(FreeTensors(keys=some), may_wait=False)

    @property
    def has_ended(self) -> bool:
        """Whether it is closed or the process is gone; of one on which nothing is said now."""
        return self.is_closed or self.ends_soon(0)

    @property
    def is_over(self) -> bool:
        """Whether the process is gone, or has closed it; what it has said is left to be read."""
        try:
            self.watch(may_speak=True).look()
        except Lost:
            return True
        return False

    def ends_soon(self, within_s: float = _ENDING_S) -> bool:
        """Return whether the process is gone; of a connection on which it says nothing now.

        Args:
            within_s: The sockets of a process that ends do not end at the same moment.
        """
        try:
            self._waiter.wait(within_s)
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Close it."""
        self.is_closed = True
        self._joined.close()


def _ended(holder: Holder) -> Exception:
    """Return the error for a process that does not exist here."""
    here = cluster.node_id() if cluster.is_connected() else holder.node
    if here != holder.node:
        return PlacementError(
            f"{holder.label}, which holds the tensors, is on node {holder.node}, and this is "
            f"node {here}: tensors are passed by reference within a node. Return the value "
            "without a tensor_transport",
            location=here,
        )
    return ActorDiedError(
        f"{holder.label}, which held the tensors, has ended, and they with it. Make them again"
    )


def _batches(keys: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for start in range(0, len(keys), _KEYS):
        yield tuple(keys[start : start + _KEYS])
