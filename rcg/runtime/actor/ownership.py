# SPDX-License-Identifier: Apache-2.0
"""Whether a tensor may be overwritten, because nothing else can ever see it again.

A method's result that only its slot holds, and that no later op uses, is as good as memory of our
own: a collective combines it where it lies. Whatever else may see the memory shows itself in a
count: a variable of the actor, a view, a NumPy array, what autograd keeps for the backward pass.
Memory that torch did not allocate itself, or shares with other processes, has no such count.

Work that is queued on a device has no such count either. A user's stream may still have to
read a tensor that nothing holds any more: torch keeps its memory for that (``record_stream``), but
does not keep it from being overwritten. So only tensors on the CPU are overwritten; others are
copied, on their device.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Sequence
from typing import Any

from rcg.serialization.tensors import tensor_type

__rcg_plumbing__ = True  # see rcg.frames


def may_overwrite(holder: Sequence[Any], index: int) -> bool:
    """Return whether nothing can see what is written over the tensor ``holder[index]``."""
    return is_held_only_by(holder, index) and bool(holder[index].is_cpu)


def is_held_only_by(holder: Sequence[Any], index: int) -> bool:
    """Return whether ``holder[index]`` is a tensor that only `holder` holds, memory included."""
    if type(holder[index]) is not tensor_type():
        return False
    if holder[index].layout is not sys.modules["torch"].strided or holder[index].is_inference():
        return False  # it has no storage, or stays read-only outside of inference mode
    counts = _counts(holder, index)
    return counts is not None and counts in _counts_alone()


def _counts(holder: Sequence[Any], index: int) -> tuple[int, ...] | None:
    """Return how often a tensor and its memory are held; None where that cannot be known."""
    torch: Any = sys.modules["torch"]
    count_storage = getattr(torch._C, "_storage_Use_Count", None)
    tensor = holder[index]
    storage = tensor.untyped_storage()
    if count_storage is None or not storage.resizable() or storage.is_shared():
        return None
    base = tensor._base  # what it is a view of, which it keeps
    return (
        *_references(tensor),
        *(() if base is None else _references(base)),
        sys.getrefcount(storage),
        weakref.getweakrefcount(storage),
        count_storage(storage._cdata),
    )


def _references(tensor: Any) -> tuple[int, int, int]:
    return sys.getrefcount(tensor), weakref.getweakrefcount(tensor), tensor._use_count()


@functools.cache
def _counts_alone() -> tuple[tuple[int, ...] | None, ...]:
    """Return the counts of tensors that only a list holds, as this Python and torch count.

    One that has its memory to itself, and a view of one that nothing else holds.
    """
    empty = sys.modules["torch"].empty
    return _counts([empty(2)], 0), _counts([empty(2)[:1]], 0)
