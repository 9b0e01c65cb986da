# SPDX-License-Identifier: Apache-2.0
"""Pulling tensors from the processes that hold them.

There is one connection to each of these. It carries one question at a time, so what comes through a
group comes in the order of the questions.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from rcg import cluster
from rcg.errors import ActorDiedError, CommError, PlacementError, RcgError, Transfer
from rcg.rdt.envelope import Envelope, Holder
from rcg.rdt.groups import MemberGroups
from rcg.runtime.control.client import check_user
from rcg.runtime.control.joining import Joined, join
from rcg.wire import sockets
from rcg.wire.messages import (
    Message,
    PullTensors,
    Ready,
    TensorsComing,
    TensorsGone,
    TensorsHere,
    UseTensors,
)
from rcg.wire.payloads import open_payloads
from rcg.wire.sockets import Received

__all__ = ["Connection", "Connections"]

_JOIN_TIMEOUT_S: Final = 30.0

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

    def __init__(self, holder: Holder, key: str, timeout_s: float = _JOIN_TIMEOUT_S) -> None:
        self.holder = holder
        self.lock = threading.Lock()
        self._numbers = itertools.count()
        opening = UseTensors(graph=holder.key, secret=holder.secret, key=key, pid=os.getpid())
        try:
            self._joined: Joined = join(holder.address, opening, timeout_s, check_user)
        except (ConnectionRefusedError, ConnectionAbortedError, ProcessLookupError) as error:
            raise self.gone() from error
        except (OSError, ValueError) as error:
            if isinstance(error, RcgError):
                raise
            raise Transfer(
                f"{holder.label}, which holds the tensors, does not answer: {error}"
            ) from (error)
        if not isinstance(self._joined.message, Ready):
            self.close()
            raise Transfer(f"what answered is not {holder.label}")

    def gone(self) -> Exception:
        """Return the error for a process that does not exist here."""
        holder = self.holder
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

    def ask(self, make: Callable[[int], Message]) -> Received:
        """Send a question and return what comes; the caller holds the lock, and closes it.

        Raises:
            ActorDiedError: The process is gone.
        """
        try:
            sockets.send(self._joined.connection, make(next(self._numbers)))
            if not sockets.wait_for_message(self._joined.connection, self._joined.pidfd.fd):
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

    def asked(self, make: Callable[[int], Message], answer: type[_A]) -> _A:
        """Ask for an answer of a class.

        Raises:
            ActorDiedError: The process is gone.
            Transfer: The answer was another.
        """
        with self.lock, self.ask(make) as received:
            if not isinstance(received.message, answer):
                raise Transfer(f"{self.holder.label} gave an answer that was not expected")
            return received.message

    def close(self) -> None:
        """Close it."""
        self._joined.close()


class Connections:
    """The connections of this process to those that hold tensors. Any thread.

    Args:
        key: The id of the store of this process.
        groups: The groups that it is a member of.
    """

    def __init__(self, key: str, groups: MemberGroups) -> None:
        self._key = key
        self._groups = groups
        self._open: dict[tuple[str, str], Connection] = {}
        self._lock = threading.Lock()

    def to(self, holder: Holder, timeout_s: float = _JOIN_TIMEOUT_S) -> Connection:
        """Return the connection to a process; raises as ``Connection`` does."""
        found = self._open.get((holder.address, holder.key))
        if found is not None:
            return found
        made = Connection(holder, self._key, timeout_s)
        with self._lock:
            found = self._open.setdefault((holder.address, holder.key), made)
        if found is not made:
            made.close()
        return found

    def drop(self, connection: Connection) -> None:
        """Close a connection that is of no use any more."""
        with self._lock:
            holder = connection.holder
            if self._open.get((holder.address, holder.key)) is connection:
                del self._open[holder.address, holder.key]
        connection.close()

    def close(self) -> None:
        """Close all of them."""
        with self._lock:
            found = list(self._open.values())
            self._open.clear()
        for connection in found:
            connection.close()

    def pull(self, envelope: Envelope, group: str) -> Sequence[Any]:
        """Return the tensors of an object, of uint8 [n], in memory of this process.

        Args:
            envelope: The object.
            group: Through which group; "" for none.

        Raises:
            ActorDiedError: Whoever held them is gone.
            Transfer: They are not there any more, or the group failed.
        """
        connection = self.to(envelope.holder)
        try:
            with connection.lock:
                return self._pull(connection, envelope, group)
        except ActorDiedError:
            self.drop(connection)
            if group:
                self._groups.fail(group, f"{envelope.holder.label} has ended")
            raise

    def _pull(self, connection: Connection, envelope: Envelope, group: str) -> Sequence[Any]:
        def question(number: int) -> Message:
            return PullTensors(number=number, key=envelope.key, group=group)

        with connection.ask(question) as received:
            match received.message:
                case TensorsGone() as gone:
                    if gone.is_system_error:
                        self._groups.fail(group, gone.text)
                    raise Transfer(f"{envelope.holder.label} cannot send tensors: {gone.text}")
                case TensorsHere():
                    return _in_message(received, envelope.table.sizes)
                case TensorsComing():
                    pass
                case _:
                    raise Transfer(f"{envelope.holder.label} gave an answer that was not expected")
        return self._receive(connection, envelope, group)

    def _receive(self, connection: Connection, envelope: Envelope, group: str) -> Sequence[Any]:
        import torch

        payloads = [torch.empty(size, dtype=torch.uint8) for size in envelope.table.sizes]
        holder = envelope.holder
        try:
            pair = self._groups.pair_for(group, holder, holder.key, is_holder=False)
            pair.recv(payloads)
        except (CommError, TimeoutError, RuntimeError) as error:
            self._groups.fail(group, str(error))
            self.drop(connection)  # what comes on it now is not known
            if not _is_there(connection):
                raise connection.gone() from error
            raise Transfer(
                f"tensors of {holder.label} did not arrive: {error}. The group is closed; its "
                "actors can be put into a new one"
            ) from error
        return payloads


def _is_there(connection: Connection) -> bool:
    """Return whether the process at the other end still listens."""
    try:
        sockets.connect(connection.holder.address, 1.0).close()
    except OSError:
        return False
    return True


def _in_message(received: Received, sizes: Sequence[int]) -> Sequence[Any]:
    import torch

    (payload,) = open_payloads(received)
    buffers = payload.encoded[2] or []
    found = [memoryview(each).nbytes for each in buffers]
    if found != list(sizes):
        raise Transfer(f"tensors of {sum(sizes)} bytes were expected, {sum(found)} arrived")
    # A message's memory is this process's own, and writable where the flags say so.
    return [torch.frombuffer(each, dtype=torch.uint8) for each in buffers]
