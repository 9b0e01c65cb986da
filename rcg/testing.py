# SPDX-License-Identifier: Apache-2.0
"""For tests of programs that use rcg: communicators without processes, sockets and Ray.

``LocalCommunicator`` and ``OrderedLocalCommunicator`` work among threads of one process, which meet
through a ``LocalStore``. They pass the suite that rcg's own communicators pass::

    store = LocalStore()
    labels = ("first", "second")

    def run(rank):
        group = LocalCommunicator.open(Membership("example", rank, labels, store))
        tensor = torch.ones(3)
        group.allreduce(tensor, ReduceOp.SUM)
        group.destroy()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]

They are as strict as any communicator may be: ``send`` returns when the tensors have been received,
and a collective when every rank has called it. Ranks that call different operations, or pass
tensors that do not fit, get an error; a real communicator may hang or end the process.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Self

from rcg.comm.base import (
    Communicator,
    Membership,
    ReduceOp,
    check_tensors,
    exchange,
)
from rcg.comm.local_store import LocalStore
from rcg.comm.reduction import as_bytes, reduced, unsupported_reduction
from rcg.comm.refusal import Refusal
from rcg.errors import CommError
from rcg.options import Deadline

__all__ = ["LocalCommunicator", "LocalStore", "Membership", "OrderedLocalCommunicator", "ReduceOp"]

_MAX_TAG: Final = (1 << 31) - 1


@dataclass(slots=True, eq=False)
class _Letter:
    """Tensors on the way from one rank to another."""

    tensors: Sequence[Any]
    is_received: bool = False


@dataclass(slots=True)
class _Round:
    """One collective: what each rank called, and a copy of its tensors."""

    calls: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    tensors: dict[int, list[Any]] = field(default_factory=dict)
    left: int = 0  # how many ranks have the result


class _Group:
    """What the ranks share."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.letters: dict[tuple[int, int, int], deque[_Letter]] = {}
        self.rounds: dict[int, _Round] = {}
        self.broken: str | None = None  # why no operation can work any more

    def break_up(self, why: str) -> None:
        """End all operations of all ranks."""
        with self.changed:
            self.broken = self.broken or why
            self.letters.clear()
            self.rounds.clear()
            self.changed.notify_all()


class LocalCommunicator(Communicator):
    """A group of threads; see ``rcg.comm.Communicator``. The store must be a ``LocalStore``."""

    is_tagged: ClassVar[bool] = True
    devices: ClassVar[frozenset[str]] = frozenset({"cpu", "cuda"})

    def __init__(self, membership: Membership, group: _Group) -> None:
        super().__init__(membership)
        self._shared = group
        self._refusal = Refusal(membership)
        self._round = 0

    @classmethod
    def open(cls, membership: Membership) -> Self:
        """Meet the other ranks; see ``Communicator``."""
        store = membership.store
        if not isinstance(store, LocalStore):
            raise CommError(
                f"{cls.__name__} works among threads of one process, which meet through a "
                "LocalStore",
                group=membership.group,
                rank=membership.rank,
            )
        exchange(membership, "here", b"", Deadline(membership.timeout_s))
        return cls(membership, store.share("group", _Group))

    def unsupported(self, dtype: Any, op: ReduceOp | None = None) -> str | None:
        """Return why a dtype cannot be reduced; every dtype can be moved."""
        return None if op is None else unsupported_reduction(dtype, op)

    # --- between two ranks

    def send(self, tensors: Sequence[Any], peer: int, tag: int = 0) -> None:
        """Send tensors to a rank; returns when they have been received."""
        self._check_peer(peer, tag, _MAX_TAG)
        check_tensors(tensors)
        letter = _Letter(tuple(tensor.detach() for tensor in tensors))
        with self._shared.changed:
            self._check()
            self._letters(self.rank, peer, tag).append(letter)
            self._shared.changed.notify_all()
            self._wait(lambda: letter.is_received)

    def recv(self, tensors: Sequence[Any], peer: int, tag: int = 0) -> None:
        """Receive tensors from a rank; see ``Communicator``."""
        self._check_peer(peer, tag, _MAX_TAG)
        check_tensors(tensors)
        with self._shared.changed:
            self._check()
            # Looked up each time: ``break_up`` removes them.
            self._wait(lambda: self._letters(peer, self.rank, tag))
            letter = self._letters(peer, self.rank, tag).popleft()
            sent, found = ([_outline(each) for each in some] for some in (letter.tensors, tensors))
            if sent != found:
                self._fail(f"rank {peer} sends {sent}, and rank {self.rank} receives {found}")
            for target, source in zip(tensors, letter.tensors, strict=True):
                _copy(target, source)
            letter.is_received = True
            self._shared.changed.notify_all()

    def _letters(self, source: int, target: int, tag: int) -> deque[_Letter]:
        key = source, target, tag if self.is_tagged else 0
        return self._shared.letters.setdefault(key, deque())

    # --- among all

    def _check_dtype(self, tensor: Any, op: ReduceOp) -> None:
        why = self.unsupported(tensor.dtype, op)  # a subclass may refuse more
        if why is not None:
            raise ValueError(why)

    def broadcast(self, tensors: Sequence[Any], root: int) -> None:
        """Give the tensors of a rank to all others; see ``Communicator``."""
        self._check_root(root, tensors)
        all_tensors = self._meet(("broadcast", root), *tensors)
        if self.rank != root:
            for target, source in zip(tensors, all_tensors[root], strict=True):
                _copy(target, source)

    def allreduce(self, tensor: Any, op: ReduceOp) -> None:
        """Combine the tensors of all ranks, in place; see ``Communicator``."""
        check_tensors((tensor,))
        self._check_dtype(tensor, op)
        found = self._meet(("allreduce", op), tensor)
        _copy(tensor, _reduced(found, tensor.dtype, op))

    def allgather(self, output: Any, tensor: Any) -> None:
        """Put the tensors of all ranks one after another; see ``Communicator``."""
        self._check_collected(output, tensor)
        _concatenate(output, self._meet(("allgather",), tensor))

    def reducescatter(self, output: Any, tensor: Any, op: ReduceOp) -> None:
        """Combine the tensors of all ranks, and give each its part; see ``Communicator``."""
        self._check_collected(tensor, output)
        self._check_dtype(tensor, op)
        found = self._meet(("reducescatter", op), tensor)
        whole = _reduced(found, tensor.dtype, op)
        _copy(output, whole.reshape(self.size, -1)[self.rank])

    def reduce(self, tensor: Any, root: int, op: ReduceOp) -> None:
        """Combine the tensors of all ranks at one; see ``Communicator``."""
        self._check_root(root, (tensor,))
        self._check_dtype(tensor, op)
        found = self._meet(("reduce", root, op), tensor)
        if self.rank == root:
            _copy(tensor, _reduced(found, tensor.dtype, op))

    def gather(self, output: Any | None, tensor: Any, root: int) -> None:
        """Put the tensors of all ranks one after another at one; see ``Communicator``."""
        self._check_gather(output, tensor, root)
        found = self._meet(("gather", root), tensor)
        if self.rank == root:
            _concatenate(output, found)

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self._meet(("barrier",))

    def _meet(self, call: tuple[Any, ...], *tensors: Any) -> list[list[Any]]:
        """Return the tensors of each rank, once every rank has made the same call."""
        shared = self._shared
        with shared.changed:
            self._check()
            number = self._round
            self._round += 1
            mine = shared.rounds.setdefault(number, _Round())
            mine.calls[self.rank] = (*call, *(_outline(tensor) for tensor in tensors))
            # As bytes: torch cannot copy tensors of every dtype.
            mine.tensors[self.rank] = [as_bytes(tensor).clone() for tensor in tensors]
            if len(mine.calls) == self.size:
                for rank, other in mine.calls.items():
                    if other != mine.calls[0]:
                        self._fail(f"rank 0 calls {mine.calls[0]}, and rank {rank} calls {other}")
                shared.changed.notify_all()
            self._wait(lambda: len(mine.calls) == self.size)
            mine.left += 1
            if mine.left == self.size:
                shared.rounds.pop(number, None)
            return [mine.tensors[rank] for rank in range(self.size)]

    # --- the end

    def abort(self, why: str) -> None:
        """End the pending operation and refuse later ones; see ``Communicator``."""
        self._end(why)

    def destroy(self) -> None:
        """Leave the group; idempotent."""
        self._end(f"group {self.group} was destroyed")

    def _end(self, why: str) -> None:
        with self._shared.changed:
            self._refusal.abort(why)
            self._shared.break_up(f"rank {self.rank} has left group {self.group}")

    # --- under the lock

    def _check(self) -> None:
        if self._refusal.errors:
            raise self._refusal.error()
        if self._shared.broken is not None:
            raise CommError(self._shared.broken, group=self.group, rank=self.rank)

    def _wait(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds, or the group has ended."""
        shared = self._shared
        shared.changed.wait_for(
            lambda: self._refusal.errors or condition() or shared.broken is not None
        )
        if self._refusal.errors or not condition():
            self._check()

    def _fail(self, why: str) -> None:
        self._shared.break_up(why)
        self._check()


class OrderedLocalCommunicator(LocalCommunicator):
    """As ``LocalCommunicator``, but without tags: messages are matched by their order."""

    is_tagged: ClassVar[bool] = False


def _outline(tensor: Any) -> tuple[int, Any]:
    """Return what must agree between ranks: the number of elements and the dtype."""
    return tensor.numel(), tensor.dtype


def _copy(target: Any, source: Any) -> None:
    as_bytes(target).copy_(as_bytes(source))


def _concatenate(output: Any, found: list[list[Any]]) -> None:
    whole = as_bytes(output).reshape(len(found), -1)
    for rank, (tensor,) in enumerate(found):
        whole[rank].copy_(tensor)


def _reduced(found: list[list[Any]], dtype: Any, op: ReduceOp) -> Any:
    return reduced([tensor.view(dtype) for (tensor,) in found], op)
