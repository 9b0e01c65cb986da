# SPDX-License-Identifier: Apache-2.0
"""Arguments of operations that no communicator accepts; checked before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def check_tensors(tensors: Iterable[Any]) -> None:
    """Check that the memory of tensors is what they say, from the first element to the last.

    Raises:
        ValueError: One is strided, or conjugated or negated lazily.
    """
    for tensor in tensors:
        if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            raise ValueError(
                f"a tensor of {list(tensor.shape)} with strides {tensor.stride()} must be made "
                "contiguous and resolved first (resolve_conj, resolve_neg)"
            )


def check_peer(peer: int, tag: int, rank: int, size: int, max_tag: int) -> None:
    """Check the peer and the tag of ``send`` and ``recv``.

    Raises:
        ValueError: The peer is this rank or no rank, or the tag is out of range.
    """
    if peer == rank or not 0 <= peer < size:
        raise ValueError(f"rank {rank} of {size} cannot send to or receive from rank {peer}")
    if not 0 <= tag < max_tag:
        raise ValueError(f"a tag must be from 0 to {max_tag - 1}, found {tag}")


def check_root(root: int, size: int) -> None:
    """Check the root of a collective.

    Raises:
        ValueError: It is no rank.
    """
    if not 0 <= root < size:
        raise ValueError(f"a group of {size} has no rank {root}")


def check_collected(whole: Any, part: Any, size: int) -> None:
    """Check that the parts of all ranks fill a tensor.

    Raises:
        ValueError: They differ in dtype, or the sizes do not fit.
    """
    if whole is None:
        raise ValueError("this rank must give an output")
    if whole.dtype != part.dtype or whole.numel() != size * part.numel():
        raise ValueError(
            f"{size} tensors of {list(part.shape)} {part.dtype} do not fill one of "
            f"{list(whole.shape)} {whole.dtype}"
        )
