# SPDX-License-Identifier: Apache-2.0
"""What each kind of collective does with the tensors of its rank, once all ranks are ready.

Tensors of one dtype and device are combined in one piece of memory, so several tensors of a rank
cost one operation per dtype; a large one is a piece of its own. Inputs that an actor may hold are
never written to: results lie on the devices of the inputs, in memory that is used again
(``channels.tensor.room_for``). A tensor that nothing else can see any more becomes the result where
it lies (``ownership``).
"""

from __future__ import annotations

import functools
import math
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rcg.channels.tensor import calls_of, nowhere, pieces_of, room_for
from rcg.comm import Communicator, ReduceOp
from rcg.errors import TensorMismatch
from rcg.ir.ops import Collective
from rcg.runtime.node.node import Node
from rcg.serialization.payloads import bytes_of
from rcg.serialization.tensors import device_of, lacking
from rcg.streams import keep_for_this_thread
from rcg.text import plural

__rcg_plumbing__ = True  # see rcg.frames


# A tensor of this size is combined by itself, so that it need not be copied to others. All ranks
# must come to the same pieces, whichever of them may overwrite their tensors.
_LARGE_BYTES: Final = 1 << 18


class Described(NamedTuple):
    """What the other ranks have to know of a tensor."""

    dtype: str  # its name in torch
    shape: tuple[int, ...]
    device: str  # the type of the device that it is on
    size_bytes: int

    @classmethod
    def of(cls, tensor: Any) -> Described:
        """Describe a tensor."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        return cls(dtype, tuple(tensor.shape), device_of(tensor), tensor.nbytes)

    def __str__(self) -> str:
        where = "" if self.device == "cpu" else f" on {self.device}"
        return f"{self.dtype} {list(self.shape)}{where}"


Tensors = Sequence[Any]
Status = tuple[Described, ...]
"""The descriptions of all tensors of a rank."""
Statuses = Sequence[Status]


@functools.lru_cache(maxsize=64)
def status_of(sent: bytes) -> Status:
    """Return the status that a rank sent; see ``Rank.status_bytes``."""
    return tuple([Described(*each) for each in pickle.loads(sent)])


class Rank:
    """One rank's part in one collective of a program."""

    def __init__(self, op: Collective, node: Node) -> None:
        self.op = op
        self.node = node
        self.name = f"{op.word} over {op.group}"
        self.labels = node.groups.labels(op.group)
        self.devices = node.groups.devices(op.group)
        members = node.groups.members(op.group)
        self.size = len(members)
        self.rank = members.index(node.process)
        self.label = self.labels[self.rank]
        self.reduction = ReduceOp(op.reduction or "sum")
        self.root = op.root or 0
        self.is_root = self.rank == self.root
        # What the newest status was of, and that status as bytes: mostly the next one is like it.
        self._like: list[Any] | None = None
        self._status = b""
        self._supported: Any = None  # a dtype

    @property
    def communicator(self) -> Communicator:
        """The communicator, which the loop opens before its first op."""
        return self.node.groups.communicator(self.op.group)

    def checked(self, value: object) -> Any:
        """Return a value as the tensor that it must be: contiguous, no gradient, no user's class.

        What is done with it later runs no user's code, and so cannot fail at this rank only.

        Raises:
            TensorMismatch: It is no tensor, or not one that the communicator takes.
        """
        torch: Any = sys.modules.get("torch")
        if torch is None or not isinstance(value, torch.Tensor):
            raise TensorMismatch(
                f"Expected a torch tensor for each input node of {self.op.word}, but "
                f"{self.label} has a value of type {type(value).__name__}",
                expected="torch.Tensor",
                found=type(value).__name__,
            )
        if device_of(value) not in self.devices:
            expected = ", ".join(sorted(self.devices))
            raise TensorMismatch(
                f"{self.name} takes tensors on {expected}, but {self.label} has one on "
                f"{value.device}: move it there, or name a transport that takes it where the "
                'collective is bound, such as transport="gloo" for the CPU',
                expected=expected,
                found=str(value.device),
            )
        if value.dtype is not self._supported:
            reduction = None if self.op.reduction is None else self.reduction
            why = self.communicator.unsupported(value.dtype, reduction)
            if why is not None:
                raise TensorMismatch(f"{self.name}: {why}", found=value.dtype)
            self._supported = value.dtype
        plain = value.detach()
        if type(plain) is not torch.Tensor:
            plain = plain.as_subclass(torch.Tensor)
        why = lacking(plain)
        if why:
            raise TensorMismatch(
                f"{self.name}: the tensor of {self.label} has lost its memory: {why}"
            )
        if not plain.is_cpu:
            keep_for_this_thread(plain)
        if plain.is_conj() or plain.is_neg():
            plain = plain.resolve_conj().resolve_neg()
        return plain.contiguous()

    def status_bytes(self, tensors: Tensors) -> bytes:
        """Return the status of tensors that are ``checked``, as it is sent; see ``status_of``."""
        like = [(each.dtype, each.shape, each.is_cpu or each.device) for each in tensors]
        if like != self._like:
            status = [tuple(Described.of(tensor)) for tensor in tensors]
            self._status = pickle.dumps(status, pickle.HIGHEST_PROTOCOL)
            self._like = like
        return self._status

    def mismatch(self, statuses: Statuses) -> TensorMismatch:
        """Return the error for ranks whose tensors differ; the same at every rank."""
        found = "; ".join(
            f"{label}, rank {rank}, has {', '.join(map(str, status)) or 'none'}"
            for rank, (label, status) in enumerate(zip(self.labels, statuses, strict=True))
        )
        return TensorMismatch(
            f"{self.name} needs tensors of the same shapes and dtypes, on devices of the same "
            f"type, at all ranks: {found}",
            found=found,
        )

    def room(self, dtype: Any, shape: Sequence[int], device: str) -> Any:
        """Return a tensor with any contents on a device, in recycled memory if there is some."""
        torch = sys.modules["torch"]
        size = math.prod(shape) * dtype.itemsize
        if not size:
            return torch.empty(tuple(shape), dtype=dtype, device=device)
        return room_for(self.node, size, device).view(dtype).view(tuple(shape))

    def room_like(self, tensor: Any, shape: Sequence[int]) -> Any:
        """Return a tensor of the dtype and on the device of another; see ``room``."""
        return self.room(tensor.dtype, shape, device_of(tensor))

    def broadcast(self, tensors: Tensors, devices: Sequence[str]) -> None:
        """Give the bytes [n] of the root's tensors to all: those on a type of device at once."""
        calls = calls_of(pieces_of(tensors), devices)
        _each(self.communicator.broadcast, [(call, self.root) for call in calls])


class NoResult(Exception):
    """A rank has done its part, so no other waits for it, but has no result; see the cause."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Exchange:
    """What one kind of collective does; in most kinds the tensors of all ranks are alike."""

    def room(self, rank: Rank, tensors: Tensors, ours: Sequence[bool]) -> Any:
        """Check this rank's tensors, and return memory for the result.

        `ours` says which of the tensors may be overwritten, and so be results themselves.

        What it raises is sent to the other ranks, and none enters the communicator. It also has
        the communicator reserve what it needs: after this a rank must not fail alone.

        Raises:
            TensorMismatch: The tensors are not right for this kind.
            MemoryError, RuntimeError: There is no memory.
        """
        raise NotImplementedError

    def compare(self, rank: Rank, statuses: Statuses) -> None:
        """Compare the tensors of all ranks.

        Raises:
            TensorMismatch: They do not go together. Every rank raises the same.
        """
        if any(status != statuses[0] for status in statuses):
            raise rank.mismatch(statuses)

    def run(self, rank: Rank, tensors: Tensors, room: Any, statuses: Statuses) -> list[Any]:
        """Return the results, one for each slot that the op fills.

        Raises:
            NoResult: This rank has taken part, but could not take the result.
            CommError: The communicator failed.
        """
        raise NotImplementedError

    def bytes_moved(self, rank: Rank, statuses: Statuses) -> int:
        """Return the bytes of the tensors that this rank takes part with."""
        return sum(each.size_bytes for each in statuses[rank.rank])


class _Combining(Exchange):
    """Kinds that combine in place: a large tensor by itself, the others of each dtype together."""

    def room(self, rank: Rank, tensors: Tensors, ours: Sequence[bool]) -> Any:
        """See ``Exchange``. Returns the pieces, and the views of them for the results.

        This rank's tensors are copied there at once: a copy that fails is reported to the others,
        and a rank that has to wait for the others has its copy behind it.
        """
        if len(tensors) == 1 and ours[0]:
            rank.communicator.reserve(rank.op.word, tensors, rank.reduction)
            return tensors, tensors
        views: list[Any] = [None] * len(tensors)
        pieces = []
        for positions in _pieces(tensors):
            first = tensors[positions[0]]
            if len(positions) == 1 and ours[positions[0]]:
                views[positions[0]] = first
                pieces.append(first.view(-1))
                continue
            piece = rank.room_like(first, [sum(tensors[at].numel() for at in positions)])
            pieces.append(piece)
            start = 0
            for at in positions:
                end = start + tensors[at].numel()
                views[at] = piece[start:end].view(tensors[at].shape).copy_(tensors[at])
                start = end
        rank.communicator.reserve(rank.op.word, pieces, rank.reduction)
        return pieces, views


class _AllReduce(_Combining):
    def run(self, rank: Rank, tensors: Tensors, room: Any, statuses: Statuses) -> list[Any]:
        pieces, views = room
        _each(rank.communicator.allreduce, [(piece, rank.reduction) for piece in pieces])
        return list(views)


class _Reduce(_Combining):
    def run(self, rank: Rank, tensors: Tensors, room: Any, statuses: Statuses) -> list[Any]:
        pieces, views = room
        _each(rank.communicator.reduce, [(piece, rank.root, rank.reduction) for piece in pieces])
        return list(views) if rank.is_root else [None] * len(tensors)


class _AllGather(Exchange):
    def room(self, rank: Rank, tensors: Tensors, ours: Sequence[bool]) -> Any:
        outputs = _gathered(rank, tensors)
        rank.communicator.reserve(rank.op.word, tensors)
        return outputs

    def run(self, rank: Rank, tensors: Tensors, room: Any, statuses: Statuses) -> list[Any]:
        _each(rank.communicator.allgather, list(zip(room, _rows(tensors), strict=True)))
        return list(room)


class _Gather(Exchange):
    def room(self, rank: Rank, tensors: Tensors, ours: Sequence[bool]) -> Any:
        if rank.is_root:
            return _gathered(rank, tensors)
        rank.communicator.reserve(rank.op.word, _rows(tensors))
        return [None] * len(tensors)

    def run(self, rank: Rank, tensors: Tensors, room: Any, statuses: Statuses) -> list[Any]:
        pairs = zip(room, _rows(tensors), strict=True)
        _each(rank.communicator.gather, [(*pair, rank.root) for pair in pairs])
        return list(room)


class _ReduceScatter(Exchange):
    def room(self, rank: Rank, tensors: Tensors, ours: Sequence[bool]) -> Any:
        for tensor in tensors:
            if tensor.dim() == 0 or tensor.shape[0] % rank.size:
                raise TensorMismatch(
                    "Expected the first dimension of the input tensor to be divisible by the world "
                    f"size {rank.size}, but {rank.label} has the shape "
                    f"{list(tensor.shape)}: reducescatter gives each rank an equal part",
                    expected=f"a multiple of {rank.size}",
                    found=list(tensor.shape),
                )
        rank.communicator.reserve(rank.op.word, tensors, rank.reduction)
        return [
            rank.room_like(tensor, (tensor.shape[0] // rank.size, *tensor.shape[1:]))
            for tensor in tensors
        ]

    def run(self, rank: Rank, tensors: Tensors, room: Any, statuses: Statuses) -> list[Any]:
        pairs = zip(room, tensors, strict=True)
        _each(rank.communicator.reducescatter, [(*pair, rank.reduction) for pair in pairs])
        return list(room)


class _Broadcast(Exchange):
    """The root's tensors go to all; what the others have does not matter."""

    def room(self, rank: Rank, tensors: Tensors, ours: Sequence[bool]) -> Any:
        if not rank.is_root:
            return None  # the shapes are not known yet
        # The root's result is its own, as those of the others are.
        return [
            tensor if is_ours else rank.room_like(tensor, tensor.shape).copy_(tensor)
            for tensor, is_ours in zip(tensors, ours, strict=True)
        ]

    def compare(self, rank: Rank, statuses: Statuses) -> None:
        found, expected = len(statuses[rank.root]), len(rank.op.outs)
        if found != expected:
            raise TensorMismatch(
                f"{rank.name}: rank {rank.root} has {plural(found, 'tensor')}, expected are "
                f"{expected}"
            )

    def run(self, rank: Rank, tensors: Tensors, room: Any, statuses: Statuses) -> list[Any]:
        described = statuses[rank.root]
        devices = [each.device for each in described]
        if rank.is_root:
            rank.broadcast([bytes_of(each) for each in room], devices)
            return list(room)
        try:
            results = [
                rank.room(getattr(sys.modules["torch"], each.dtype), each.shape, each.device)
                for each in described
            ]
        except (MemoryError, RuntimeError) as error:  # the root sends, whatever happens here
            rank.broadcast(nowhere([each.size_bytes for each in described], devices), devices)
            raise NoResult(error) from error
        rank.broadcast([bytes_of(each) for each in results], devices)
        return results

    def bytes_moved(self, rank: Rank, statuses: Statuses) -> int:
        return sum(each.size_bytes for each in statuses[rank.root])


EXCHANGES: Final[Mapping[str, Exchange]] = {
    "allreduce": _AllReduce(),
    "allgather": _AllGather(),
    "reducescatter": _ReduceScatter(),
    "broadcast": _Broadcast(),
    "reduce": _Reduce(),
    "gather": _Gather(),
}


def _each(operation: Callable[..., None], calls: Sequence[tuple[Any, ...]]) -> None:
    """Call an operation of a communicator with each of these arguments, as all ranks do.

    Raises NoResult if a user's communicator gave another result than it was asked for.
    """
    wrong: list[TensorMismatch] = []  # the first
    for arguments in calls:
        try:
            operation(*arguments)
        except TensorMismatch as error:
            wrong = wrong or [error]
    if wrong:
        raise NoResult(wrong.pop())  # no local name may hold it: it holds this frame


def _pieces(tensors: Tensors) -> list[list[int]]:
    """Return the positions of the tensors that are combined together; the same at all ranks."""
    alone = []
    alike: dict[tuple[Any, str], list[int]] = {}
    for position, tensor in enumerate(tensors):
        if tensor.nbytes < _LARGE_BYTES:
            alike.setdefault((tensor.dtype, device_of(tensor)), []).append(position)
        else:
            alone.append([position])
    return [*alone, *alike.values()]


def _row(tensor: Any) -> tuple[int, ...]:
    """Return the shape of a tensor among others, one after another: a number is a row of one."""
    return tuple(tensor.shape) or (1,)


def _rows(tensors: Tensors) -> list[Any]:
    return [tensor.reshape(_row(tensor)) for tensor in tensors]


def _gathered(rank: Rank, tensors: Tensors) -> list[Any]:
    """Return the memory for each tensor's rows of all ranks, one rank after another."""
    shapes = [(rank.size * first, *rest) for first, *rest in map(_row, tensors)]
    return [rank.room_like(tensor, each) for tensor, each in zip(tensors, shapes, strict=True)]
