# SPDX-License-Identifier: Apache-2.0
"""Collectives that a method calls by itself, on tensors in its hands, over a group of actors.

Every member of the group calls the same collective; each call returns when its own part is done.
The signatures are those of ``ray.util.collective``: results are written into the tensors given.

On CPUs the members first tell each other what they are about to do. Gloo would end a process, or
wait for ever, where that differs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

from rcg.comm.base import Communicator, ReduceOp
from rcg.errors import CommError, TensorMismatch
from rcg.rdt.all_members import AllMembers
from rcg.rdt.process import existing
from rcg.text import plural
from rcg.trace.spans import span

DEFAULT: Final = "default"
"""The name of the group that is meant by default."""

_TOLD: Final = 96  # bytes of what a member is about to do


def allreduce(tensor: Any, group_name: str = DEFAULT, op: ReduceOp = ReduceOp.SUM) -> None:
    """Combine the tensors [*shape] of all members, in place, everywhere."""
    with _turn("allreduce", group_name) as (communicator, agree):
        op = _op(op)
        (one,) = _flat(communicator, [tensor], op)
        agree(one, op=op)
        communicator.allreduce(one, op)
        _write(tensor, one)


def broadcast(tensor: Any, src_rank: int = 0, group_name: str = DEFAULT) -> None:
    """Give the tensor [*shape] of one member to all others, in theirs."""
    with _turn("broadcast", group_name) as (communicator, agree):
        _check_rank(src_rank, communicator)
        (one,) = _flat(communicator, [tensor])
        agree(one, root=src_rank)
        communicator.broadcast([one], src_rank)
        _write(tensor, one)


def reduce(
    tensor: Any, dst_rank: int = 0, group_name: str = DEFAULT, op: ReduceOp = ReduceOp.SUM
) -> None:
    """Combine the tensors [*shape] of all members in that of one; the others' stay as they are."""
    with _turn("reduce", group_name) as (communicator, agree):
        _check_rank(dst_rank, communicator)
        op = _op(op)
        (one,) = _flat(communicator, [tensor], op)
        agree(one, op=op, root=dst_rank)
        is_root = communicator.rank == dst_rank
        one = one if is_root else one.clone()
        communicator.reduce(one, dst_rank, op)
        if is_root:
            _write(tensor, one)


def allgather(tensor_list: Sequence[Any], tensor: Any, group_name: str = DEFAULT) -> None:
    """Put the tensors [*shape] of all members into a list of as many, by rank, everywhere."""
    with _turn("allgather", group_name) as (communicator, agree):
        one, *parts = _flat(communicator, [tensor, *tensor_list])
        _check_parts("tensor_list", parts, one, communicator)
        agree(one)
        output = one.new_empty(communicator.size * one.numel())
        communicator.allgather(output, one)
        for part, found in zip(tensor_list, output.chunk(communicator.size), strict=True):
            _write(part, found)


def reducescatter(
    tensor: Any,
    tensor_list: Sequence[Any],
    group_name: str = DEFAULT,
    op: ReduceOp = ReduceOp.SUM,
) -> None:
    """Combine the lists of all members, an entry [*shape] for each rank; each gets its entry."""
    with _turn("reducescatter", group_name) as (communicator, agree):
        op = _op(op)
        one, *parts = _flat(communicator, [tensor, *tensor_list], op)
        _check_parts("tensor_list", parts, one, communicator)
        agree(one, op=op)
        output, every = one.new_empty(one.numel()), one.new_empty(communicator.size * one.numel())
        for part, place in zip(parts, every.chunk(communicator.size), strict=True):
            place.copy_(part)
        communicator.reducescatter(output, every, op)
        _write(tensor, output)


class _Agreement:
    """Tells the other members what this one is about to do, and hears it of them; once."""

    def __init__(self, kind: str, communicator: Communicator) -> None:
        self._kind = kind
        self._communicator = communicator
        self.is_open = "cpu" in communicator.devices

    def __call__(self, tensor: Any, *, op: ReduceOp | None = None, root: int = 0) -> None:
        """Go on if all members do the same with tensors of the same size and dtype.

        Raises:
            TensorMismatch: They do not; every member raises, and nothing was sent.
        """
        how = f" {op.name}" if op is not None else ""
        how += f" at rank {root}" if self._kind in ("broadcast", "reduce") else ""
        self._tell(f"{self._kind}{how} of {plural(tensor.numel(), 'element')} of {tensor.dtype}")

    def refuse(self) -> None:
        """Tell the others that this one's arguments were refused."""
        with contextlib.suppress(TensorMismatch):
            self._tell(f"{self._kind} with wrong arguments")

    def _tell(self, text: str) -> None:
        import torch

        if not self.is_open:
            return
        self.is_open = False
        size = self._communicator.size
        own = torch.frombuffer(bytearray(text.encode().ljust(_TOLD)[:_TOLD]), dtype=torch.uint8)
        every = torch.empty(size * _TOLD, dtype=torch.uint8)
        self._communicator.allgather(every, own)
        told = [bytes(each).decode(errors="replace").strip() for each in every.view(size, _TOLD)]
        if len(set(told)) > 1:
            by_rank = "; ".join(f"rank {rank}: {each}" for rank, each in enumerate(told))
            raise TensorMismatch(
                f"group {self._communicator.group}: the members do not do the same: {by_rank}",
                expected=told[0],
                found=text,
            )


@contextlib.contextmanager
def _turn(kind: str, group: str) -> Iterator[tuple[Communicator, _Agreement]]:
    """Use the communicator of all members of a group; the process's other threads wait."""
    ours = existing()
    if ours is None:
        raise CommError(
            f"{kind}: this process is not an actor of rcg's, so it is not in group {group!r}. Call "
            "it in a method of a member; rcg.experimental.collective.create_collective_group makes "
            "a group",
            group=group,
        )
    end = ours.groups.all_members(group, AllMembers)
    with span(f"{kind} @{group}"), end.turn() as communicator:
        agreement = _Agreement(kind, communicator)
        try:
            yield communicator, agreement
        except (TypeError, ValueError):
            agreement.refuse()
            raise


def _op(op: object) -> ReduceOp:
    """Return rcg's operation for rcg's or Ray's."""
    found = ReduceOp.of(op)
    if found is None:
        names = ", ".join(f"ReduceOp.{name}" for name in ReduceOp.__members__)
        raise ValueError(f"Unexpected operation: {op!r}. It is one of {names}.")
    return found


def _tensor(value: Any) -> Any:
    """Return the torch tensor that is, or shares its memory with, what a user gave."""
    import torch

    if type(value).__module__ == "numpy" and hasattr(value, "flags"):
        if not value.flags.writeable:
            raise ValueError("a collective writes into its array, which is read-only: give a copy")
        value = torch.from_numpy(value)
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"a collective takes tensors of torch, found {type(value).__name__}")
    return value.detach()


def _flat(
    communicator: Communicator, values: Sequence[Any], op: ReduceOp | None = None
) -> list[Any]:
    """Return the elements [n] of tensors as a communicator takes them: their memory, or copies."""
    found = [_tensor(value) for value in values]
    for tensor in found:
        if tensor.device.type not in communicator.devices:
            raise ValueError(
                f"group {communicator.group} moves tensors on "
                f"{' and '.join(sorted(communicator.devices))}, found one on {tensor.device}"
            )
        why = communicator.unsupported(tensor.dtype, op)
        if why is not None:
            raise ValueError(why)
    return [tensor.resolve_conj().resolve_neg().reshape(-1) for tensor in found]


def _write(value: Any, flat: Any) -> None:
    """Have the user's tensor hold these elements, if they are not its own memory."""
    tensor = _tensor(value)
    if flat.data_ptr() != tensor.data_ptr() or not tensor.is_contiguous():
        tensor.copy_(flat.view(tensor.shape))


def _check_rank(rank: int, communicator: Communicator) -> None:
    if not 0 <= rank < communicator.size:
        raise ValueError(
            f"group {communicator.group} has the ranks 0 to {communicator.size - 1}, found {rank}"
        )


def _check_parts(name: str, parts: Sequence[Any], one: Any, communicator: Communicator) -> None:
    if len(parts) != communicator.size:
        raise ValueError(
            f"{name} must have a tensor for each of the {communicator.size} members, found "
            f"{len(parts)}"
        )
    for rank, part in enumerate(parts):
        if (part.numel(), part.dtype) != (one.numel(), one.dtype):
            raise ValueError(
                f"{name}[{rank}] has {part.numel()} elements of {part.dtype}, and the tensor "
                f"{one.numel()} of {one.dtype}"
            )
