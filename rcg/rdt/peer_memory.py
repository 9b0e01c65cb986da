# SPDX-License-Identifier: Apache-2.0
"""Reading the memory of another process of this node: ``process_vm_readv(2)``.

The kernel copies each byte once, into pages of this process, and no code runs in the other one. It
allows what a debugger may do: the same user, and no ban by ``ptrace_scope`` or a container's rules.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Sequence
from typing import Any, Final

_MOST_PARTS: Final = 1024  # of one call: IOV_MAX


class _Part(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def may_read(pid: int) -> bool:
    """Return whether the kernel lets this process read the memory of another one.

    Args:
        pid: Its process id here; 0 for one of another namespace.
    """
    if not pid or not _has_call():
        return False
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC))  # checked alike
    except OSError:
        return False
    return True


def read(pid: int, places: Sequence[tuple[int, Any]]) -> None:
    """Copy memory of another process.

    Args:
        pid: The process.
        places: An address there, and the tensor of uint8 [n] here that gets the bytes from it on.

    Raises:
        OSError: It may not be read, or something is not there any more; some has been copied.
    """
    left = [(at, into.data_ptr(), into.numel()) for at, into in places if into.numel()]
    left.reverse()
    while left:
        parts = left[: -_MOST_PARTS - 1 : -1]
        theirs, ours = ((_Part * len(parts))() for _ in range(2))
        for number, (at, into, size) in enumerate(parts):
            theirs[number] = _Part(at, size)
            ours[number] = _Part(into, size)
        count = _call()(pid, ours, len(parts), theirs, len(parts), 0)
        if count <= 0:
            problem = ctypes.get_errno() if count else errno.EFAULT
            raise OSError(problem, os.strerror(problem))
        while count:  # at most 2 GiB, or what lay before something that is not there
            at, into, size = left.pop()
            if count < size:
                left.append((at + count, into + count, size - count))
            count -= min(count, size)


@functools.cache
def _call() -> Any:
    found = ctypes.CDLL(None, use_errno=True).process_vm_readv
    found.restype = ctypes.c_ssize_t
    number = ctypes.c_ulong
    pointer = ctypes.c_void_p
    found.argtypes = (ctypes.c_int, pointer, number, pointer, number, number)
    return found


@functools.cache
def _has_call() -> bool:
    """Return whether this process may make the call at all: it reads a byte of its own."""
    byte, copy = (ctypes.c_ubyte * 1)(7), (ctypes.c_ubyte * 1)()
    theirs, ours = (_Part(ctypes.addressof(each), 1) for each in (byte, copy))
    try:
        count = _call()(os.getpid(), ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
    except AttributeError:  # another C library
        return False
    return count == 1 and copy[0] == byte[0]
