# SPDX-License-Identifier: Apache-2.0
"""The protocol of communicators: tensors among the fixed ranks of a group.

A communicator is one rank's end of a group. All ranks open it together (``open``), call its
operations in the same order, and destroy it. Every operation blocks until this rank's part is done.
Tensors are torch tensors, contiguous and resolved (not conjugated or negated lazily), on a device
that the communicator serves; those of one call are on devices of one type. Results are written into
tensors that the caller gives. The ranks must agree on sizes, dtypes and the types of devices: if
they do not, an operation may fail, hang, or end the process (Gloo).

A device may do its work later, in the order of a stream. What the caller has queued on the current
stream of its thread, for the device of the tensors, comes before the operation, and what it queues
there after the call comes after the operation. How a communicator keeps this order is its own
matter: it may wait for the device, or queue its work between. So "done" means for such a device:
done for all that is queued later on this stream. Nothing is promised about other streams. rcg
changes no stream, and may call on another thread than the one on which a method ran. So a method
that works on a stream of its own must have the default stream wait for it before it returns.

Operations are called by one thread. ``abort`` may be called by any thread at any time, also while
``open`` runs: it ends the operation that is pending and refuses all later ones.

This room must know neither Ray nor graphs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Final, Protocol, Self

from rcg.options import Deadline


class ReduceOp(Enum):
    """How a collective combines the tensors of all ranks, element by element."""

    SUM = "sum"
    PRODUCT = "product"
    MAX = "max"
    MIN = "min"
    AVG = "avg"
    """The sum divided by the number of ranks; towards zero for whole numbers."""

    @classmethod
    def of(cls, op: object) -> Self | None:
        """Return rcg's operation for rcg's or Ray's, which has members of the same names."""
        is_known = isinstance(op, Enum) and type(op).__name__ == cls.__name__
        return cls.__members__.get(op.name) if is_known else None  # type: ignore[attr-defined]


class Store(Protocol):
    """Keys and values that all ranks of a group see, for their rendezvous. Any thread may call.

    Every method but ``close`` raises ``GroupAborted`` once the store is closed.
    """

    def set(self, key: str, value: bytes) -> None:
        """Store a value."""

    def get(self, keys: Sequence[str], timeout_s: float | None = None) -> list[bytes]:
        """Return the values of keys; blocks until all are there.

        Raises:
            TimeoutError: They did not come in time.
        """

    def has(self, keys: Sequence[str]) -> bool:
        """Return whether all keys are there."""

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, which begins at 0, and return its new value."""

    def close(self) -> None:
        """End every wait; idempotent."""


LOOPBACK: Final = "127.0.0.1"
"""The address of the loopback device, which reaches this machine only."""


@dataclass(frozen=True, slots=True)
class Membership:
    """What one rank needs to open its end of a group.

    Attributes:
        group: The name of the group, for errors and thread names.
        rank: This rank.
        labels: What errors call each rank; its length is the size of the group.
        store: Where the ranks meet; no other group uses its keys.
        timeout_s: How long ``open`` may take; None for no limit.
        host: The address at which other ranks reach this one: in numbers, and that of the loopback
            device if all ranks are on one machine.
    """

    group: str
    rank: int
    labels: tuple[str, ...]
    store: Store
    timeout_s: float | None = None
    host: str = LOOPBACK

    @property
    def size(self) -> int:
        """How many ranks the group has."""
        return len(self.labels)


class Communicator(ABC):
    """One rank's end of a group.

    Attributes:
        is_tagged: Whether ``send`` and ``recv`` are matched by tag. If not, those between two ranks
            are matched in the order in which they are called, and tags are ignored.
        is_queued: Whether an operation may return when it is queued on the device. Then the ranks
            of two groups over the same devices can come to wait for each other there, in an order
            that no process sees.
        devices: The types of devices whose tensors it takes, as torch names them: ``cpu``,
            ``cuda``, or that of another maker. It gets such tensors where they lie; tensors on
            other devices go through host memory.
        group, rank, size: See ``Membership``.
    """

    is_tagged: ClassVar[bool]
    is_queued: ClassVar[bool] = False
    devices: ClassVar[frozenset[str]]

    def __init__(self, membership: Membership) -> None:
        self.group = membership.group
        self.rank = membership.rank
        self.size = membership.size

    @classmethod
    @abstractmethod
    def open(cls, membership: Membership) -> Self:
        """Meet the other ranks; returns when all of them are connected.

        Raises:
            TimeoutError: Some rank did not come in time.
            GroupAborted: The store was closed meanwhile.
            CommError: The connection cannot be made; nothing of it is left over.
        """

    @abstractmethod
    def unsupported(self, dtype: Any, op: ReduceOp | None = None) -> str | None:
        """Return why it cannot move, or with ``op`` reduce, tensors of a dtype; None if it can."""

    def reserve(  # noqa: B027 - most need nothing
        self, operation: str, tensors: Sequence[Any], op: ReduceOp | None = None
    ) -> None:
        """Take the memory that an operation needs beside these tensors: for the next calls of it.

        So a rank without memory fails here, before any rank has entered the operation; there it
        would leave the others waiting. It replaces what was reserved and not used.

        Args:
            operation: Its name: ``allreduce``.
            tensors: The tensors of this rank, one for each call, so their devices may differ; there
                is memory for the outputs.
            op: Of a reduction.

        Raises:
            MemoryError, RuntimeError: There is no memory; torch raises the second.
        """

    # Each raises ``GroupAborted`` if the group was aborted or destroyed before, or before the
    # operation came to its end, and ``CommError`` if the operation failed; the group cannot be used
    # after that. ``ValueError``: an argument is wrong, such as a dtype that ``unsupported``
    # refuses; nothing was sent. ``TensorMismatch``: a user's object gave another result than it was
    # asked for, at this rank; all tensors were moved, and the group can be used.

    @abstractmethod
    def send(self, tensors: Sequence[Any], peer: int, tag: int = 0) -> None:
        """Send tensors to a rank; returns when they may be overwritten."""

    @abstractmethod
    def recv(self, tensors: Sequence[Any], peer: int, tag: int = 0) -> None:
        """Receive tensors from a rank, of the same number and the same sizes as are sent."""

    @abstractmethod
    def broadcast(self, tensors: Sequence[Any], root: int) -> None:
        """Give the tensors of the rank ``root`` to all others."""

    @abstractmethod
    def allreduce(self, tensor: Any, op: ReduceOp) -> None:
        """Combine the tensors [*shape] of all ranks, in place, everywhere."""

    @abstractmethod
    def allgather(self, output: Any, tensor: Any) -> None:
        """Put the tensors [n, *rest] of all ranks one after another: output [size * n, *rest]."""

    @abstractmethod
    def reducescatter(self, output: Any, tensor: Any, op: ReduceOp) -> None:
        """Combine the tensors [size * n, *rest], and give each rank its part: output [n, *rest]."""

    @abstractmethod
    def reduce(self, tensor: Any, root: int, op: ReduceOp) -> None:
        """Combine the tensors [*shape] in place at ``root``; elsewhere the content is undefined."""

    @abstractmethod
    def gather(self, output: Any | None, tensor: Any, root: int) -> None:
        """As ``allgather``, at ``root`` only; ``output`` is None elsewhere."""

    @abstractmethod
    def barrier(self) -> None:
        """Return when every rank has called it."""

    @abstractmethod
    def abort(self, why: str) -> None:
        """End the pending operation, here and so at its peers, and refuse later ones.

        It ends within two seconds. What is under way may come to its end before that.
        Any thread; idempotent; does not block.
        """

    @abstractmethod
    def destroy(self) -> None:
        """Close all connections and end all threads; idempotent. No operation may be pending."""

    # --- checks for subclasses: each raises ValueError for what no communicator accepts

    def _check_peer(self, peer: int, tag: int, max_tag: int) -> None:
        """Check the peer and the tag of ``send`` and ``recv``."""
        if peer == self.rank or not 0 <= peer < self.size:
            raise ValueError(
                f"rank {self.rank} of {self.size} cannot send to or receive from rank {peer}"
            )
        if not 0 <= tag < max_tag:
            raise ValueError(f"a tag must be from 0 to {max_tag - 1}, found {tag}")

    def _check_root(self, root: int, tensors: Iterable[Any]) -> None:
        """Check the root of a collective, and its tensors."""
        if not 0 <= root < self.size:
            raise ValueError(f"a group of {self.size} has no rank {root}")
        check_tensors(tensors)

    def _check_gather(self, output: Any | None, tensor: Any, root: int) -> None:
        """Check the arguments of ``gather``; the output counts at the root only."""
        self._check_root(root, (tensor,))
        if self.rank == root:
            self._check_collected(output, tensor)

    def _check_collected(self, whole: Any, part: Any) -> None:
        """Check two tensors, and that the parts of all ranks fill the whole, in the same dtype."""
        if whole is None:
            raise ValueError("this rank must give an output")
        if whole.dtype != part.dtype or whole.numel() != self.size * part.numel():
            raise ValueError(
                f"{self.size} tensors of {list(part.shape)} {part.dtype} do not fill one of "
                f"{list(whole.shape)} {whole.dtype}"
            )
        check_tensors((whole, part))


def exchange(membership: Membership, step: str, value: bytes, deadline: Deadline) -> list[bytes]:
    """Publish a value, and return the values of all ranks; blocks until all have published theirs.

    Each rank uses the name ``step`` once.

    Raises:
        TimeoutError: Some ranks did not come in time; the text names them and the group.
        GroupAborted: The store was closed meanwhile.
    """
    store = membership.store
    store.set(f"{step}/{membership.rank}", value)
    keys = [f"{step}/{rank}" for rank in range(membership.size)]
    try:
        return store.get(keys, deadline.remaining_s())
    except TimeoutError:
        labels = zip(keys, membership.labels, strict=True)
        missing = [label for key, label in labels if not store.has([key])]
        raise TimeoutError(
            f"group {membership.group}: {', '.join(missing) or 'some rank'} did not come within "
            f"{deadline.timeout_s} s"
        ) from None


def check_tensors(tensors: Iterable[Any]) -> None:
    """Raise ValueError unless tensors are contiguous, and not conjugated or negated lazily."""
    for tensor in tensors:
        if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            raise ValueError(
                f"a tensor of {list(tensor.shape)} with strides {tensor.stride()} must be made "
                "contiguous and resolved first (resolve_conj, resolve_neg)"
            )
