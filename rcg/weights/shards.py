# SPDX-License-Identifier: Apache-2.0
"""Named tensors, and which part of each a process has or wants."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rcg.serialization.tensors import lacking as lost_memory

ITEM_BYTES: Final = {
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    **dict.fromkeys(("float32", "int32", "uint32", "complex32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    "complex128": 16,
}
"""The bytes of an element of the types that have more than one."""

_COMPILED: Final = re.compile(r"(?<![^.])_orig_mod\.")  # in the names of torch.compile's modules


class Slice(NamedTuple):
    """Rows of a tensor, or another dimension's range: ``start`` to ``stop`` of ``size``.

    Attributes:
        dim: Along which dimension.
        start: The first that is there.
        stop: The first after it that is not.
        size: How many the whole tensor has.
    """

    dim: int
    start: int
    stop: int
    size: int


class Shard(NamedTuple):
    """What a process has, or wants, of a tensor.

    Attributes:
        dtype: As torch calls it, without ``torch.``.
        shape: Of the whole tensor.
        dim: Along which dimension it is split.
        start: The first that is there.
        stop: The first after it that is not.
    """

    dtype: str
    shape: tuple[int, ...]
    dim: int
    start: int
    stop: int

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole tensor."""
        return not self.shape or self.stop - self.start == self.shape[self.dim]

    @property
    def ranges(self) -> list[range]:
        """What is there of each dimension."""
        found = [range(size) for size in self.shape]
        if found:
            found[self.dim] = range(self.start, self.stop)
        return found

    @property
    def nbytes(self) -> int:
        """The bytes of this part."""
        return math.prod(map(len, self.ranges)) * item_bytes(self.dtype)


Shards = Mapping[str, Shard]
"""What a process has or wants, by the names of the tensors."""


class Member(NamedTuple):
    """A process that publishes or reads, as it presents itself.

    Attributes:
        label: What errors call it.
        shards: What it has or wants.
        id: Tells it from all others.
        address: How it is reached: the fields of ``rcg.rdt.envelope.Holder``.
        pid: Its process: an actor that runs again is reached at the same address.
        is_publisher: Whether it publishes.
        is_alone: Of a publisher: whether it has said that it has everything.
        spare_bytes: The memory that it may use beside its tensors.
    """

    label: str
    shards: Shards
    id: str = ""
    address: tuple[str, ...] = ()
    pid: int = 0
    is_publisher: bool = False
    is_alone: bool = False
    spare_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """The bytes of what it has or wants."""
        return sum(each.nbytes for each in self.shards.values())


def item_bytes(dtype: str) -> int:
    """Return the bytes of an element."""
    return ITEM_BYTES.get(dtype, 1)


@functools.cache
def dtype_name(dtype: Any) -> str:
    """Return what a type of torch's is called here: ``bfloat16``."""
    return str(dtype).removeprefix("torch.")


def is_plain(tensor: Any) -> bool:
    """Whether the memory of a tensor, one row after another, is its value, in this process.

    It is not if torch negates or conjugates it when it is read.
    """
    is_lazy = tensor.is_conj() or tensor.is_neg()
    return bool(tensor.is_cpu and tensor.is_contiguous() and not is_lazy)


class Tie(NamedTuple):
    """What another tensor a tensor is, too, or a part of.

    Attributes:
        other: The name of that one.
        start: The byte of its value at which this one begins.
    """

    other: str
    start: int


def ties_of(tensors: Mapping[str, Any]) -> dict[str, Tie]:
    """Return the tensors that are others, too, or lie inside of others, by their names.

    Of tensors that are not in one piece only those are found that are the very same.

    Raises:
        ValueError: Two share some of their memory, and neither lies inside of the other.
    """
    found: dict[str, Tie] = {}
    first: dict[tuple[Any, ...], str] = {}
    runs: dict[str, tuple[str, int, int]] = {}  # the device, and where it begins and ends
    for name, each in tensors.items():
        if each.numel():
            start = each.data_ptr()
            place = each.device, start, each.dtype, each.shape, each.stride()
            if first.setdefault(place, name) != name:
                found[name] = Tie(first[place], 0)
            elif each.is_contiguous():
                runs[name] = str(each.device), start, start + each.nbytes
    outer, last = "", ("", 0, 0)
    for name, run in sorted(runs.items(), key=lambda each: (*each[1][:2], -each[1][2])):
        device, start, end = run
        if device != last[0] or start >= last[2]:
            outer, last = name, run
            continue
        if end > last[2]:
            raise ValueError(
                f"{outer} and {name} share some of their memory, and neither lies inside of the "
                "other: leave one out of names="
            )
        found[name] = Tie(outer, start - last[1])
    return found


class Source:
    """The tensors of a model or a dict, as they are whenever they are asked for.

    A model may get other tensors: ``model.to("cuda")``, ``model.weight = ...``. A parameter that is
    set again comes last in its state, so only names say which tensor is which.

    Args:
        source: A module of torch's, or a mapping.
        shard: Which part of the whole each tensor is.
        names: Which tensors; None for all.

    Attributes:
        shards: What this process has of each tensor, in the order in which others know them.

    Raises:
        TypeError, ValueError: As ``tensors_of`` and ``shards_of``.
    """

    def __init__(
        self, source: Any, shard: Mapping[str, Slice] | None, names: Iterable[str] | None
    ) -> None:
        self._source = source
        self._shard = None if shard is None else _by_plain_names(shard)
        self._names = [names] if isinstance(names, str) else None if names is None else list(names)
        tensors = tensors_of(source, self._names)
        self.is_split: Final = any(hasattr(type(each), "placements") for each in tensors.values())
        self.shards, _ = shards_of(tensors, self._shard)

    def tensors(self) -> dict[str, Any]:
        """Return the tensors of this process, in the order of ``shards``.

        Raises:
            ValueError: They have other names, shapes or types than at first, or lost their memory.
        """
        tensors = tensors_of(self._source, self._names)
        shards, found = shards_of(tensors, self._shard)
        if shards != self.shards:
            names = sorted(
                name
                for name in {*shards, *self.shards}
                if shards.get(name) != self.shards.get(name)
            )
            raise ValueError(
                f"these weights have changed their shape or type: {', '.join(names)}. Close this "
                "publisher or subscriber and make another one"
            )
        return {name: found[name] for name in self.shards}


def tensors_of(source: Any, names: Iterable[str] | None) -> dict[str, Any]:
    """Return the tensors of a model, or of a dict of them, by their names.

    The names of a model that ``torch.compile`` has made are those of the model itself.

    Args:
        source: A module of torch's, or a mapping.
        names: Which of them; None for all.

    Raises:
        TypeError: It is neither, or something in it is no tensor.
        ValueError: There is no such name, two tensors have the same, or there is nothing at all.
    """
    state = getattr(source, "state_dict", None)
    found = state() if callable(state) else source
    if not isinstance(found, Mapping):
        raise TypeError(
            f"weights are a model or a dict of tensors, got {type(source).__name__}: pass "
            "model, model.state_dict(), or {'name': tensor}"
        )
    wrong = [
        str(name) for name, each in found.items() if not hasattr(type(each), "untyped_storage")
    ]
    wrong += [repr(name) for name in found if not isinstance(name, str)]
    if wrong:
        raise TypeError(f"weights are tensors with names; these are not: {', '.join(wrong)}")
    found = _by_plain_names(found)
    if names is not None:
        names = [_plain_name(name) for name in names]
        missing = [name for name in names if name not in found]
        if missing:
            raise ValueError(f"names= lists what is not there: {', '.join(missing)}")
        found = {name: found[name] for name in names}
    if not found:
        raise ValueError("there are no tensors")
    return dict(found)


def _plain_name(name: str) -> str:
    return _COMPILED.sub("", name)


def _by_plain_names(found: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, each in found.items():
        if (ours := _plain_name(name)) in plain:
            raise ValueError(f"two tensors are called {ours}, without torch.compile's _orig_mod")
        plain[ours] = each
    return plain


def shards_of(
    tensors: Mapping[str, Any], shard: Mapping[str, Slice] | None
) -> tuple[dict[str, Shard], dict[str, Any]]:
    """Return what a process has of each tensor, and the tensors of this process.

    Args:
        tensors: The tensors; a DTensor says itself which part is here.
        shard: Which part of the whole each is; those that are not listed are whole.

    Raises:
        TypeError: Something in ``shard`` is no ``Slice``.
        ValueError: A slice does not fit its tensor, a name is unknown, a tensor is more than its
            bytes or has lost them, or a DTensor is split in a way that is not supported. All of
            them are listed.
    """
    shard = {} if shard is None else shard
    problems = [f"{name}: there is no such tensor" for name in shard if name not in tensors]
    found: dict[str, Shard] = {}
    local: dict[str, Any] = {}
    for name, tensor in tensors.items():
        part = shard.get(name)
        if part is not None and not isinstance(part, Slice):
            raise TypeError(f"shard[{name!r}] is a rcg.weights.Slice, got {type(part).__name__}")
        try:
            found[name], local[name] = _shard_of(tensor, part)
        except ValueError as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise ValueError("these weights cannot be used:\n  " + "\n  ".join(problems))
    return found, local


def _shard_of(tensor: Any, part: Slice | None) -> tuple[Shard, Any]:
    if hasattr(type(tensor), "placements"):
        if part is not None:
            raise ValueError("a DTensor says itself which part it is; leave it out of shard=")
        return _shard_of_dtensor(tensor)
    _check_is_its_bytes(tensor)
    shape = list(tensor.shape)
    dtype = dtype_name(tensor.dtype)
    if part is None:
        return Shard(dtype, tuple(shape), 0, 0, shape[0] if shape else 1), tensor
    dim, start, stop, size = part
    if not 0 <= dim < len(shape):
        raise ValueError(f"it has {len(shape)} dimensions, there is no dimension {dim}")
    if not 0 <= start <= stop <= size:
        raise ValueError(f"{start} to {stop} of {size} is no part of it")
    if shape[dim] != stop - start:
        raise ValueError(
            f"its dimension {dim} has {shape[dim]}, but {start} to {stop} are {stop - start}"
        )
    shape[dim] = size
    return Shard(dtype, tuple(shape), dim, start, stop), tensor


def _check_is_its_bytes(tensor: Any) -> None:
    """Raise ValueError unless the bytes of a tensor are all that it is, and are there now."""
    import torch

    kind = type(tensor)
    if torch.nn.parameter.is_lazy(tensor):
        problem = "it is not initialized yet: call its module once before"
    elif kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        problem = (
            f"it is a {kind.__qualname__} of {kind.__module__}, which consists of other tensors: "
            "give these names of their own, or publish it dequantized"
        )
    elif tensor.is_quantized:
        problem = (
            f"it is quantized ({tensor.dtype}), and its scales are not among its bytes: give "
            "int_repr() and the scales names of their own, or publish dequantize()"
        )
    elif tensor.is_meta:
        problem = "it is on the meta device and has no values"
    elif tensor.layout is not torch.strided or tensor.is_nested:
        layout = "nested" if tensor.is_nested else tensor.layout
        problem = f"its layout is {layout}; only dense tensors travel"
    elif tensor.itemsize != item_bytes(dtype_name(tensor.dtype)):
        problem = f"tensors of {tensor.dtype} do not travel"
    elif not torch._C._has_storage(tensor):  # one of a function that torch transforms
        problem = "it has no memory of its own"
    else:
        problem = lost_memory(tensor)
    if problem:
        raise ValueError(problem)


def _shard_of_dtensor(tensor: Any) -> tuple[Shard, Any]:
    """Return which part of a DTensor is here, as its mesh and placements say."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    local, shape, placements = tensor.to_local(), tuple(tensor.shape), tensor.placements
    _check_is_its_bytes(local)
    if any(each.is_partial() for each in placements):
        raise ValueError("a DTensor of partial sums has no value of its own: redistribute it")
    split = {each.dim for each in placements if not each.is_replicate()}
    if len(split) > 1:
        raise ValueError(f"it is split along the dimensions {sorted(split)}; only one is supported")
    dim = split.pop() if split else 0
    counts = [
        1 if each.is_replicate() else count
        for each, count in zip(placements, tensor.device_mesh.shape, strict=True)
    ]
    for at, each in enumerate(placements):
        # FSDP splits what tensor parallelism has split, and says so by a factor: that is one range.
        factor = getattr(each, "split_factor", None)
        if factor is not None and factor != math.prod(counts[at + 1 :]):
            raise ValueError(f"what is here of it is not one range of rows: {each}")
    sizes, starts = compute_local_shape_and_global_offset(shape, tensor.device_mesh, placements)
    if tuple(sizes) != tuple(local.shape) or len(starts) != len(shape):
        raise ValueError(
            f"this process has {list(local.shape)} of it, but {list(sizes)} of {list(shape)} by "
            f"its placements {placements}"
        )
    if not shape:
        return Shard(dtype_name(local.dtype), shape, 0, 0, 1), local
    start = min(starts[dim], shape[dim])
    return Shard(dtype_name(local.dtype), shape, dim, start, start + sizes[dim]), local


def mismatches(publishers: Sequence[Member], want: Shards) -> list[str]:
    """Return what does not fit what is wanted: one sentence for each tensor, or the empty list."""
    problems: list[str] = []
    published: dict[str, Shard] = {}
    for each in reversed(publishers):
        published.update(each.shards)
    for name, wanted in want.items():
        found = published.get(name)
        if found is None:
            is_first = not any("nobody" in each for each in problems)
            close = next((each for each in published if name in each), "") if is_first else ""
            hint = f"; there is {close}" if close else ""
            problems.append(f"{name}: nobody publishes it{hint}")
            continue
        if found.dtype != wanted.dtype:
            problems.append(f"{name}: it is {found.dtype}, here {wanted.dtype}")
        if found.shape != wanted.shape:
            problems.append(f"{name}: it is {list(found.shape)}, here {list(wanted.shape)}")
    return problems


def disagreements(publishers: Sequence[Member], new: Shards) -> list[str]:
    """Return why what one publisher has does not fit what others have of the same weights."""
    problems: list[str] = []
    for name, shard in new.items():
        for each in publishers:
            other = each.shards.get(name)
            if other is None:
                continue
            if other.dtype != shard.dtype or other.shape != shard.shape:
                problems.append(
                    f"{name}: {each.label} has {other.dtype}{list(other.shape)}, this process "
                    f"{shard.dtype}{list(shard.shape)}"
                )
            elif not other.is_whole and not shard.is_whole and other.dim != shard.dim:
                problems.append(
                    f"{name}: {each.label} splits it along dimension {other.dim}, this process "
                    f"along {shard.dim}"
                )
            else:
                continue
            break
    return problems


def overlaps(publishers: Sequence[Member], new: Member) -> list[str]:
    """Return which slices of a publisher overlap those of others without being copies of them.

    A whole tensor is a copy of every slice of it.
    """
    problems: list[str] = []
    for name, shard in new.shards.items():
        for each in publishers:
            other = each.shards.get(name)
            if other is None or other.is_whole or shard.is_whole:
                continue
            start, stop = max(shard.start, other.start), min(shard.stop, other.stop)
            if start < stop and other != shard:
                what = "rows" if shard.dim == 0 else f"of dimension {shard.dim}"
                problems.append(
                    f"{name}: {each.label} has {what} {other.start} to {other.stop} and "
                    f"{new.label} {shard.start} to {shard.stop}, so both have {start} to {stop}. "
                    "Make them the same, or disjoint"
                )
                break
    return problems


def holes(publishers: Sequence[Member]) -> list[str]:
    """Return the names of tensors of which nobody has some part."""
    whole = {
        name: Shard(some[0].dtype, some[0].shape, 0, 0, some[0].shape[0] if some[0].shape else 1)
        for name, some in _parts(publishers).items()
    }
    return lacking(publishers, whole)


def lacking(publishers: Sequence[Member], want: Shards) -> list[str]:
    """Return the names of tensors of which nobody has some part that is wanted."""
    parts = _parts(publishers)
    return [name for name, wanted in want.items() if not _cover(parts.get(name, ()), wanted)]


def _parts(publishers: Sequence[Member]) -> dict[str, list[Shard]]:
    parts: dict[str, list[Shard]] = {}
    for each in publishers:
        for name, shard in each.shards.items():
            parts.setdefault(name, []).append(shard)
    return parts


def _cover(parts: Sequence[Shard], wanted: Shard) -> bool:
    """Whether parts of a tensor have all of what is wanted of it."""
    if not parts or any(each.is_whole for each in parts):
        return bool(parts)
    needs = wanted.ranges[parts[0].dim]
    end = needs.start
    for each in sorted(parts, key=lambda part: part.start):
        if each.start > end:
            break
        end = max(end, each.stop)
    return end >= needs.stop
