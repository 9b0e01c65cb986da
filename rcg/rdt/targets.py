# SPDX-License-Identifier: Apache-2.0
"""Tensors of the user's into which those of a value are received: whether they fit.

The bytes of a value's tensor come as they lay where it was made. So they may be received where a
tensor of the same type and shape lies the same way. A single tensor that lies otherwise, such as a
transposed one, is received and then copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rcg.rdt.contents import Contents, Whole
from rcg.rdt.parts import tensors_in
from rcg.serialization.payloads import bytes_of
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
        ValueError: They do not fit.
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
        if not target.is_contiguous():
            raise ValueError(f"{each} must be contiguous")
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
