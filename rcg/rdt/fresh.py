# SPDX-License-Identifier: Apache-2.0
"""Memory into which tensors are received.

The kernel gives memory page by page, when it is first written to. For large tensors that costs more
than the bytes do: copying 100 MB from another process (``process_vm_readv``) took 53 ms into new
pages of 4 KiB, and 23 ms into huge ones, which Linux gives to those who ask (``madvise(2)``,
``MADV_HUGEPAGE``).
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from typing import Any, Final

__all__ = ["fresh_memory"]

_LARGE_BYTES: Final = 4 << 20  # two huge pages and more: one of them is whole
_MADV_HUGEPAGE: Final = getattr(mmap, "MADV_HUGEPAGE", None)


def fresh_memory(size: int, device: str) -> Any:
    """Return a tensor of uint8 [size] with memory of its own.

    Args:
        size: Its bytes.
        device: The type of the device that it is on.

    Raises:
        RuntimeError: There is no memory.
    """
    import torch

    made = torch.empty(size, dtype=torch.uint8, device=device)
    if size >= _LARGE_BYTES and made.is_cpu:
        _ask_for_huge_pages(made.data_ptr(), size)
    return made


def _ask_for_huge_pages(address: int, size: int) -> None:
    """Ask for huge pages; whether there are any makes no difference but in time."""
    advise = _madvise()
    if advise is not None:
        start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (address + size) // mmap.PAGESIZE * mmap.PAGESIZE
        advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_HUGEPAGE)


@functools.cache
def _madvise() -> Any:
    return None if _MADV_HUGEPAGE is None else getattr(ctypes.CDLL(None), "madvise", None)
