# SPDX-License-Identifier: Apache-2.0
"""Tensors of the user's into which those of a value are received: whether they fit.

The bytes of a value's tensor come as they lay where it was made. So they may be received where a
tensor of the same type and shape lies the same way. A single tensor that lies otherwise, such as a
transposed one, is received and then copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from rcg.rdt.contents import Contents, Whole
from rcg.rdt.parts import tensors_in
from rcg.serialization.payloads import bytes_of
from rcg.serialization.tensors import lacking
from rcg.text import plural

__all__ = ["checked_targets"]


def checked_targets(contents: Contents, targets: Sequence[Any], name: str) -> list[Any] | None:
    """Return the bytes of tensors of the user's, into which a value's tensors are received.

    Args:
        contents: The value.
        targets: The tensors.
        name: What errors call them.

    Returns:
        Tensors of uint8 [n] over their memory; None if the value is one tensor that lies otherwise
        in memory than the target, into which it can be copied.

    Raises:
        TypeError: One is no tensor.
        ValueError: They do not fit, or what is received there would be lost.
    """
    sizes = contents.sizes
    if len(targets) != len(sizes):
        raise ValueError(
            f"{name}: the value has {plural(len(sizes), 'tensor')} with memory of its own, and "
            f"there are {len(targets)} to receive into"
        )
    names = [f"{name}[{at}]" if len(targets) > 1 else name for at in range(len(targets))]
    for each, target in zip(names, targets, strict=True):
        if not hasattr(target, "untyped_storage"):
            raise TypeError(f"{each} is no tensor, found {type(target).__name__}")
        why = _unfit(target)
        if why:
            raise ValueError(f"{each} {why}")
    _check_apart(names, targets)
    if isinstance(contents, Whole):
        (target,) = targets
        _check_type(name, target, contents.table.dtype, contents.table.shape)
        return [bytes_of(target)]
    value, tensors = _likeness(contents)
    for each, target, size, found in zip(names, targets, sizes, tensors, strict=True):
        if found is None:
            raise ValueError(f"{each}: what the value has there is no dense tensor")
        _check_type(each, target, _type_name(found), tuple(found.shape))
        if not _lies_like(found, target, size):
            if value is found:
                return None
            raise ValueError(
                f"{each}: the value's tensor lies otherwise in memory (strides {found.stride()}): "
                "leave it out, or have the method return it contiguous"
            )
    return [bytes_of(each) for each in targets]


def _unfit(target: Any) -> str:
    """Return why what is received into a tensor would be lost there; "" if it would not."""
    import torch

    if target.layout is not torch.strided or target.is_nested or target.is_quantized:
        return f"must be a dense tensor, found {target.layout}"
    if not target.is_contiguous():
        return "must be contiguous"
    if target.is_conj() or target.is_neg():
        return (
            "must be resolved first (resolve_conj, resolve_neg): it shows other numbers than it has"
        )
    has_storage = torch._C._has_storage(target)
    if not has_storage or target.untyped_storage().device.type == "meta":
        return f"has no memory that anything could be received into: it is on {target.device}"
    why = lacking(target)
    return f"has lost its memory: {why}" if why else ""


def _check_apart(names: Sequence[str], targets: Sequence[Any]) -> None:
    """Check that no two targets share memory, so that one would get what belongs to the other.

    Raises:
        ValueError: Two do.
    """
    places = sorted(
        (str(each.device), each.data_ptr(), each.nbytes, name)
        for name, each in zip(names, targets, strict=True)
        if each.numel()
    )
    for (device, start, size, name), (other_device, other_start, _, other) in pairwise(places):
        if device == other_device and other_start < start + size:
            raise ValueError(f"{name} and {other} share memory: only one could be received there")


def _check_type(name: str, target: Any, dtype: str, shape: tuple[int, ...]) -> None:
    found = _type_name(target), tuple(target.shape)
    if found != (dtype, shape):
        raise ValueError(
            f"{name} is of {found[0]} and shape {list(found[1])}, the value of {dtype} and shape "
            f"{list(shape)}"
        )


def _type_name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _likeness(contents: Contents) -> tuple[Any, list[Any]]:
    """Return a value like the one that is to come, and its first tensor over each payload."""
    import torch

    payloads = [
        torch.empty(size, dtype=torch.uint8, device=device)
        for size, device in zip(contents.sizes, contents.devices, strict=True)
    ]
    value = contents.put_back(payloads)
    at_of = {each.untyped_storage().data_ptr(): at for at, each in enumerate(payloads)}
    found: list[Any] = [None] * len(payloads)
    for tensor in tensors_in(value):
        try:
            at = at_of.get(tensor.untyped_storage().data_ptr())
        except (RuntimeError, NotImplementedError):  # a sparse one has no storage
            continue
        if at is not None and (found[at] is None or tensor.nbytes > found[at].nbytes):
            found[at] = tensor
    return value, found


def _lies_like(tensor: Any, target: Any, size: int) -> bool:
    """Whether the bytes of a payload are those of a contiguous target."""
    is_plain = not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)
    return is_plain and tensor.is_contiguous() and tensor.nbytes == target.nbytes == size
