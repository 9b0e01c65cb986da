# SPDX-License-Identifier: Apache-2.0
"""Collectives that a method calls by itself, on tensors in its hands, over a group of actors.

Every member of the group calls the same collective; each call returns when its own part is done.
The signatures are those of ``ray.util.collective``: results are written into the tensors given.

On CPUs the members first tell each other what they are about to do, or that they cannot do it. Gloo
would end a process, or wait for ever, where that differs. So all that may fail at one member comes
before: the checks, copies of tensors that are not one run of memory, and memory for the result.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from rcg.comm.base import Communicator, ReduceOp
from rcg.error_text import describe_error, shortened
from rcg.errors import CommError, RcgError, TensorMismatch
from rcg.rdt.all_members import AllMembers
from rcg.rdt.groups import End
from rcg.rdt.process import existing
from rcg.rdt.values import without_bytes
from rcg.text import plural
from rcg.trace.spans import span

DEFAULT: Final = "default"
"""The name of the group that is meant by default."""

_TOLD: Final = 192  # bytes of what a member is about to do
_REFUSED: Final = "nothing, because of "
_MOST_REASON: Final = 120  # characters
_MOST_WORK: Final = 100_000  # steps to find out whether two strided tensors share memory


def allreduce(tensor: Any, group_name: str = DEFAULT, op: ReduceOp = ReduceOp.SUM) -> None:
    """Combine the tensors [*shape] of all members, in place, everywhere."""

    def take_part(turn: _Turn) -> None:
        target = turn.tensor(tensor)
        _check_apart("tensor", [target])
        one = _flat(target)
        with turn.agreed(one, [one]):
            turn.communicator.allreduce(one, turn.op)
        _write(target, one)

    _take_turn("allreduce", group_name, take_part, op)


def broadcast(tensor: Any, src_rank: int = 0, group_name: str = DEFAULT) -> None:
    """Give the tensor [*shape] of one member to all others, in theirs."""

    def take_part(turn: _Turn) -> None:
        is_root = turn.is_rank(src_rank)
        target = turn.tensor(tensor)
        if not is_root:
            _check_apart("tensor", [target])
        one = _flat(target)
        with turn.agreed(one, root=src_rank):
            turn.communicator.broadcast([one], src_rank)
        if not is_root:
            _write(target, one)

    _take_turn("broadcast", group_name, take_part)


def reduce(
    tensor: Any, dst_rank: int = 0, group_name: str = DEFAULT, op: ReduceOp = ReduceOp.SUM
) -> None:
    """Combine the tensors [*shape] of all members in that of one; the others' stay as they are."""

    def take_part(turn: _Turn) -> None:
        is_root = turn.is_rank(dst_rank)
        target = turn.tensor(tensor)
        if is_root:
            _check_apart("tensor", [target])
        one = _flat(target) if is_root else _flat(target).clone()
        with turn.agreed(one, [one], root=dst_rank):
            turn.communicator.reduce(one, dst_rank, turn.op)
        if is_root:
            _write(target, one)

    _take_turn("reduce", group_name, take_part, op)


def allgather(tensor_list: Iterable[Any], tensor: Any, group_name: str = DEFAULT) -> None:
    """Put the tensors [*shape] of all members into a list of as many, by rank, everywhere."""

    def take_part(turn: _Turn) -> None:
        one = _flat(turn.tensor(tensor))
        targets = turn.tensors("tensor_list", tensor_list, one)
        _check_apart("tensor_list", targets)
        output = one.new_empty(turn.communicator.size * one.numel())
        with turn.agreed(one, [one]):
            turn.communicator.allgather(output, one)
        for target, found in zip(targets, output.chunk(len(targets)), strict=True):
            _write(target, found)

    _take_turn("allgather", group_name, take_part)


def reducescatter(
    tensor: Any,
    tensor_list: Iterable[Any],
    group_name: str = DEFAULT,
    op: ReduceOp = ReduceOp.SUM,
) -> None:
    """Combine the lists of all members, an entry [*shape] for each rank; each gets its entry."""

    def take_part(turn: _Turn) -> None:
        target = turn.tensor(tensor)
        _check_apart("tensor", [target])
        parts = turn.tensors("tensor_list", tensor_list, target)
        output = target.new_empty(target.numel())
        every = target.new_empty(len(parts) * target.numel())
        for part, place in zip(parts, every.chunk(len(parts)), strict=True):
            place.copy_(_flat(part))
        with turn.agreed(output, [every]):
            turn.communicator.reducescatter(output, every, turn.op)
        _write(target, output)

    _take_turn("reducescatter", group_name, take_part, op)


class _Turn:
    """One collective of this member: its communicator, and what the others are told, once."""

    def __init__(self, kind: str, end: End, communicator: Communicator) -> None:
        self.communicator = communicator
        self.op: Any = None
        self._kind = kind
        self._end = end
        self._is_to_tell = "cpu" in communicator.devices

    @contextlib.contextmanager
    def agreed(
        self, tensor: Any, reserved_for: Sequence[Any] = (), root: int | None = None
    ) -> Iterator[None]:
        """Enter the collective if all members do the same with tensors of the same size and dtype.

        Args:
            tensor: This member's, of [n].
            reserved_for: What the communicator reserves memory for.
            root: The rank that gives or gets.

        Raises:
            TensorMismatch: They do not; every member raises, and nothing was sent.
        """
        if reserved_for:
            self.communicator.reserve(self._kind, reserved_for, self.op)
        how = f" {self.op.name}" if self.op is not None else ""
        how += f" at rank {root}" if root is not None else ""
        self._tell(f"{self._kind}{how} of {plural(tensor.numel(), 'element')} of {tensor.dtype}")
        try:
            yield
        except RcgError:
            raise
        except BaseException as error:  # the others may wait for this one
            self._end.abort(f"a member failed in {self._kind}: {describe_error(error)}")
            raise

    def refuse(self, error: BaseException) -> None:
        """Tell the others that this one cannot take part, unless they know what it does."""
        with contextlib.suppress(RcgError):
            self._tell(_REFUSED + shortened(describe_error(error), _MOST_REASON))

    def _tell(self, text: str) -> None:
        import torch

        if not self._is_to_tell:
            return
        self._is_to_tell = False
        size = self.communicator.size
        own = torch.frombuffer(bytearray(text.encode().ljust(_TOLD)[:_TOLD]), dtype=torch.uint8)
        every = torch.empty(size * _TOLD, dtype=torch.uint8)
        self.communicator.allgather(every, own)
        told = [bytes(each).decode(errors="replace").strip() for each in every.view(size, _TOLD)]
        if len(set(told)) > 1:
            by_rank = "; ".join(f"rank {rank}: {each}" for rank, each in enumerate(told))
            raise TensorMismatch(
                f"group {self.communicator.group}: the members do not do the same: {by_rank}",
                expected=told[0],
                found=text,
            )

    def is_rank(self, rank: int) -> bool:
        """Return whether a rank is this one, after checking that there is such a rank."""
        communicator = self.communicator
        if not 0 <= operator.index(rank) < communicator.size:
            raise ValueError(
                f"group {communicator.group} has the ranks 0 to {communicator.size - 1}, found "
                f"{rank}"
            )
        return rank == communicator.rank

    def tensor(self, value: Any) -> Any:
        """Return the torch tensor that is, or shares its memory with, what a user gave."""
        import torch

        if type(value).__module__ == "numpy" and hasattr(value, "flags"):
            if not value.flags.writeable:
                raise ValueError(
                    "a collective writes into its array, which is read-only: give a copy"
                )
            value = torch.from_numpy(value)
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"a collective takes tensors of torch, found {type(value).__name__}")
        tensor, communicator = value.detach(), self.communicator
        why = without_bytes(tensor)
        if why:
            raise ValueError(f"a tensor of a collective {why}")
        if tensor.device.type not in communicator.devices:
            raise ValueError(
                f"group {communicator.group} moves tensors on "
                f"{' and '.join(sorted(communicator.devices))}, found one on {tensor.device}"
            )
        refusal = communicator.unsupported(tensor.dtype, self.op)
        if refusal is not None:
            raise ValueError(refusal)
        return tensor

    def tensors(self, name: str, values: Iterable[Any], one: Any) -> list[Any]:
        """Return the tensors of a list with one for each rank, each as large as ``one``."""
        found = [self.tensor(each) for each in values]
        if len(found) != self.communicator.size:
            raise ValueError(
                f"{name} must have a tensor for each of the {self.communicator.size} members, "
                f"found {len(found)}"
            )
        for rank, part in enumerate(found):
            if (part.numel(), part.dtype) != (one.numel(), one.dtype):
                raise ValueError(
                    f"{name}[{rank}] has {part.numel()} elements of {part.dtype}, and the tensor "
                    f"{one.numel()} of {one.dtype}"
                )
        return found


def _take_turn(
    kind: str, group: str, take_part: Callable[[_Turn], None], op: object = None
) -> None:
    """Use the communicator of all members of a group; the process's other threads wait.

    What is raised before ``agreed`` is told to the other members, and all of them raise.
    """
    ours = existing()
    if ours is None:
        raise CommError(
            f"{kind}: this process is not an actor of rcg's, so it is not in group {group!r}. Call "
            "it in a method of a member; rcg.experimental.collective.create_collective_group makes "
            "a group",
            group=group,
        )
    end = ours.groups.all_members(group, AllMembers)

    def use(communicator: Communicator) -> None:
        turn = _Turn(kind, end, communicator)
        try:
            turn.op = None if op is None else _op(op)
            take_part(turn)
        except BaseException as error:
            turn.refuse(error)
            raise

    with span(f"{kind} @{group}"):
        end.run(use)


def _op(op: object) -> ReduceOp:
    """Return rcg's operation for rcg's or Ray's."""
    found = ReduceOp.of(op)
    if found is None:
        names = ", ".join(f"ReduceOp.{name}" for name in ReduceOp.__members__)
        raise ValueError(f"Unexpected operation: {op!r}. It is one of {names}.")
    return found


def _flat(tensor: Any) -> Any:
    """Return the elements [n] of a tensor as a communicator takes them: its memory, or a copy."""
    return tensor.resolve_conj().resolve_neg().reshape(-1).contiguous()


def _write(target: Any, flat: Any) -> None:
    """Have a tensor hold these elements, if they are not its own memory."""
    import torch

    if flat.data_ptr() != target.data_ptr() or not target.is_contiguous():
        with torch.inference_mode(target.is_inference()):
            target.copy_(flat.view(target.shape))


def _check_apart(name: str, targets: Sequence[Any]) -> None:
    """Check that no two elements of tensors that are written to share memory.

    Raises:
        ValueError: Two do, so that one result would be lost.
    """
    places = []
    for at, each in enumerate(targets):
        if each.numel():
            places.append((str(each.device), each.data_ptr(), _extent(name, each), at))
    places.sort()
    strided = functools.cache(lambda at: np.asarray(_Bytes(targets[at])))
    for number, (device, start, size, at) in enumerate(places):
        for other_device, other_start, _, other in places[number + 1 :]:
            if other_device != device or other_start >= start + size:
                break
            if _share_memory(strided(at), strided(other)):
                raise ValueError(
                    f"{name}[{at}] and {name}[{other}] share memory: only one result could be there"
                )


def _extent(name: str, tensor: Any) -> int:
    """Return the bytes from a tensor's first element to its last one.

    Raises:
        ValueError: Some of its elements share memory.
    """
    if tensor.is_contiguous():
        return int(tensor.nbytes)
    last = 0  # of the dimensions before
    for step, count in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if count > 1 and step <= last:
            raise ValueError(
                f"{name} is written to, and has elements that share memory, as those of an "
                "expanded tensor: give a copy"
            )
        last += (count - 1) * step
    return int((1 + last) * tensor.element_size())


def _share_memory(one: Any, other: Any) -> bool:
    """Whether two strided arrays have a byte in common; True if that takes long to find out."""
    try:
        return np.shares_memory(one, other, _MOST_WORK)  # type: ignore[arg-type]
    except RuntimeError:  # numpy.exceptions.TooHardError
        return True


class _Bytes:
    """Where the bytes of a tensor lie, on any device, as NumPy wants it; nothing reads them."""

    def __init__(self, tensor: Any) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "data": (tensor.data_ptr(), False),
            "shape": tuple(tensor.shape),
            "strides": tuple(step * size for step in tensor.stride()),
            "typestr": f"|V{size}",
        }
