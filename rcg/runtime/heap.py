# SPDX-License-Identifier: Apache-2.0
"""Memory that was freed and that the C library keeps, given back to the system.

glibc takes a large block from the system and gives it back when it is freed, at first. But with
each block that is freed so, the limit above which it does so becomes the size of that block, up to
32 MB (``mallopt(3)``, M_MMAP_THRESHOLD). From then on tensors of 20 MB lie in the heap of the
thread that made them, and stay there: after 40 of them an actor had up to 800 MB more than it used.

``malloc_trim(3)`` gives all free pages back: 800 MB in 58 ms of one core; where there was nothing
to give back, in 0.01 ms, and among half a million small free blocks in 10 ms. Threads that allocate
from the same heap wait meanwhile, and memory that is given back costs new pages the next time. So
it is called when a process is idle, and only if much was freed.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, Final

LARGE_BYTES: Final = 128 << 10
"""What the C library may take from the system by itself: at first all larger blocks."""

MUCH_BYTES: Final = 64 << 20
"""What is freed before the heap is worth a look: two of the largest blocks that glibc may keep
(DEFAULT_MMAP_THRESHOLD_MAX in its malloc.c)."""

IDLE_S: Final = 2.0
"""A process of which nothing was asked for this long is idle."""


def give_back_heap() -> None:
    """Give freed memory back to the system; without effect where the C library is not glibc."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], Any] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
