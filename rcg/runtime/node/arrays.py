# SPDX-License-Identifier: Apache-2.0
"""Arrays that are made in a graph's shared memory: ``rcg.empty``.

Which graph's memory is a context variable that a graph's loop sets on its thread, as for spans: it
goes along into coroutines and into ``asyncio.to_thread``, and not into a thread that a method
starts by itself.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

import numpy as np

_QUANTIZED: Final = ("torch.q",)  # dtypes of tensors that are more than their bytes

Lender = Callable[[int], Any]
"""Returns a loan of so many bytes, which has the buffer protocol; None for few bytes, and
if there is no memory."""

here: Final[ContextVar[Lender | None]] = ContextVar("rcg_lender", default=None)
"""Lends memory of the graph whose method runs in this context."""

outside: Final[list[Lender]] = []
"""Lends memory where no graph's method runs: set by ``rcg.rdt``, which stands above."""


def empty(shape: Any, dtype: Any = np.float64) -> Any:
    """Return a new array that lies in the shared memory of the graph whose method runs.

    A method that returns it, a contiguous view of it, or a value with either inside (in a dict, a
    list, an attribute) sends it without a copy::

        def forward(self, batch):
            out = rcg.empty(batch.shape, np.float32)
            np.multiply(batch, self.scale, out=out)
            return out

    ``CompiledDAG.empty`` is the same for the process that compiled the graph.

    From the moment it is sent the array is read-only, and so is the view that was sent; it may be
    read, kept and sent again. Take a new array for the next value. Do not write through another
    view, a memoryview or a tensor over the same memory that was made before: they cannot be found.
    Torch has no read-only tensors: do not write to a tensor that was sent. Readers may see what is
    written in spite of this.

    A reader gets a tensor without a copy if its maker drops it when it is sent, as a method does
    that returns it. Such a tensor cannot grow (``resize_``). Strided views and subclasses of arrays
    are copied. A child that is forked meanwhile shares the memory.

    An array that is never sent gives its memory back when it is dropped, as do those that were sent
    when the last process has dropped them.

    It is an ordinary array, which is copied when it is sent, if it has at most 4 KiB or contains
    objects, if there is no shared memory for it now, and where no method of a graph runs. But in
    actors of rcg tensors by reference over it, of 1 MiB or more, are mapped by takers of the same
    node: nothing is copied, and it may be written to later, which the takers do not see.

    Args:
        shape: An integer or a sequence of them, as for ``numpy.empty``.
        dtype: Whatever NumPy takes as a dtype; a ``torch.dtype`` makes a tensor.

    Returns:
        An array, or a tensor, with arbitrary contents.

    Raises:
        TypeError, ValueError, MemoryError: As ``numpy.empty``, or RuntimeError as ``torch.empty``.
    """
    return empty_in(here.get() or (outside[0] if outside else None), shape, dtype)


def empty_in(lend: Lender | None, shape: Any, dtype: Any) -> Any:
    """Return a new array in memory that ``lend`` returns, or elsewhere; see ``empty``."""
    torch: Any = sys.modules.get("torch")
    is_tensor = torch is not None and isinstance(dtype, getattr(torch, "dtype", ()))
    if is_tensor:
        loan = _loan(lend, shape, dtype.itemsize)
        if loan is None or str(dtype).startswith(_QUANTIZED):
            return torch.empty(shape, dtype=dtype, device="cpu")
        return torch.frombuffer(loan, dtype=dtype).view(shape)
    kind = np.dtype(dtype)
    loan = None if kind.hasobject else _loan(lend, shape, kind.itemsize)
    if loan is None:
        return np.empty(shape, kind)
    # The array is made on the loan itself, so that it is the `base` of all its views.
    return np.ndarray(shape, kind, loan)


def _loan(lend: Lender | None, shape: Any, itemsize: int) -> Any:
    """Return a loan for an array; None if it shall be, or is certain to be, an ordinary one."""
    if lend is None:
        return None
    try:
        sizes = list(map(operator.index, shape if hasattr(shape, "__len__") else [shape]))
    except TypeError:
        return None  # the library has the words for it
    size_bytes = math.prod(sizes) * itemsize
    if min(sizes, default=0) < 0 or size_bytes > sys.maxsize:
        return None
    return lend(size_bytes)
