# SPDX-License-Identifier: Apache-2.0
"""Locking pages as a device does it, without one: a pipe holds them.

``vmsplice`` puts references to pages of memory into a pipe. What is read from the pipe is what is
in these pages then, also when their file has given them back and has others at the same addresses.
So it is what a device would copy that has locked them (``cudaHostRegister``).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
from typing import Any

__all__ = ["CopyingDevice", "is_possible"]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.tee.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint]


class _Span(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def is_possible() -> bool:
    """Return whether this kernel has what is needed."""
    memory = ctypes.create_string_buffer(1)
    ends = os.pipe()
    try:
        span = _Span(ctypes.addressof(memory), 1)
        return bool(_libc.vmsplice(ends[1], ctypes.byref(span), ctypes.c_ulong(1), 0) == 1)
    finally:
        for end in ends:
            os.close(end)


def _pipe(size: int) -> tuple[int, int]:
    """Return a pipe with room for so many bytes, each page of them by itself."""
    ends = os.pipe()
    fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, size)
    return ends


class CopyingDevice:
    """A registrar (see ``rcg.serialization.pinned``) that copies from what it has locked.

    Attributes:
        refuses_to_lock: Whether locking fails from now on.
        refuses_to_unlock: Whether unlocking does.
        calls: How often memory was locked, or should have been.
        locked: The sizes of what is locked, by address.
    """

    def __init__(self) -> None:
        self.refuses_to_lock = self.refuses_to_unlock = False
        self.calls = 0
        self.locked: dict[int, int] = {}
        self._pipes: dict[int, tuple[int, int]] = {}

    def register(self, address: int, size: int) -> None:
        self.calls += 1
        if self.refuses_to_lock:
            raise RuntimeError("status 2 (there is no more memory to lock)")
        for start, length in self.locked.items():
            assert start + length <= address or address + size <= start, "pages are locked twice"
        ends = _pipe(size)
        span = _Span(address, size)
        assert _libc.vmsplice(ends[1], ctypes.byref(span), ctypes.c_ulong(1), 0) == size
        self.locked[address], self._pipes[address] = size, ends

    def unregister(self, address: int) -> None:
        if self.refuses_to_unlock:
            raise RuntimeError("status 4 (it cannot be unlocked)")
        self.locked.pop(address, None)
        for end in self._pipes.pop(address, ()):
            os.close(end)

    def copy_of(self, buffer: Any) -> tuple[bytes, bool]:
        """Return what the device copies from a buffer, and whether it had locked that."""
        view = memoryview(buffer)
        if view.readonly or not view.nbytes:
            return bytes(view), False  # it lies where nothing is locked
        at, length = ctypes.addressof(ctypes.c_char.from_buffer(buffer)), view.nbytes
        for start, size in self.locked.items():
            if start <= at < start + size:
                assert at + length <= start + size
                return self._pages(start, size)[at - start : at - start + length], True
        return bytes(view), False

    def _pages(self, start: int, size: int) -> bytes:
        reading, writing = _pipe(size)
        try:
            assert _libc.tee(self._pipes[start][0], writing, size, 0) == size
            found = bytearray()
            while len(found) < size:
                found += os.read(reading, size - len(found))
            return bytes(found)
        finally:
            os.close(reading)
            os.close(writing)
