# SPDX-License-Identifier: Apache-2.0
"""Memory that other processes of this node can map: that of ``rcg.empty`` where no graph runs.

It lies in a memfd. When it is first sent, the owner freezes it: it replaces its own mapping by a
private one of the same file, and seals the file (``fcntl(2)``). From then on a page that the owner
writes to is copied first, and so is one that a reader writes to: each has its own. So readers have
the bytes of the moment at which they got them for as long as they keep them, nothing is copied that
nobody writes to, and nobody has to say that he does not need them any more. Once the owner has
written to it, which the kernel tells (``/proc/self/pagemap``), it is sent as any other memory.
Before a process is forked, all of its blocks are frozen, so parent and child have their own, too.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import mmap
import os
import resource
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

LEAST_BYTES: Final = 1 << 20
"""Of a block: less is sooner copied."""

MOST_BLOCKS: Final = 16
"""Descriptors that go with one answer."""

# F_SEAL_WRITE would have the kernel look at each page, and wait: 20 to 300 ms for 100 MB.
_F_SEAL_FUTURE_WRITE: Final = 0x10  # not in Python before 3.13
_SEALS: Final = _F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = 0x4000  # pages that nobody writes to take no memory of their own
_LEAST_MAPPED: Final = 256 << 10  # of a tensor in a block
_SHARE: Final = 4  # of the descriptors that a process may have, blocks take at most this part


class Place(NamedTuple):
    """Where bytes lie in a block: its descriptor, and where they begin."""

    fd: int
    start: int


class _Block:
    """A block of this process."""

    def __init__(self, address: int, size: int, fd: int) -> None:
        self.address = address
        self.size = size
        self.fd = fd
        self._is_frozen: bool | None = None  # once it was tried
        self._lock = threading.Lock()

    def freeze(self) -> bool:
        """Freeze it; returns whether the file has what this process sees there."""
        with self._lock:
            if self._is_frozen is None:
                self._is_frozen = False
                try:
                    _map(self.fd, self.size, self.address)
                    fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
                except OSError:  # an old kernel
                    return False
                self._is_frozen = True
            return self._is_frozen and not _is_written(self.address, self.size)


# By their addresses; an item that is missing is ordinary memory.
_blocks: Final[dict[int, _Block]] = {}


def lend(size: int) -> Any:
    """Return memory of so many bytes, with the buffer protocol; None for few, or if there is none.

    It ends with the object that is returned.
    """
    if size < LEAST_BYTES or not _has_room(size):
        return None
    try:
        fd = os.memfd_create("rcg-empty", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:
        return None
    try:
        os.ftruncate(fd, size)
        address = _map(fd, size, 0, mmap.MAP_SHARED)
    except OSError:
        os.close(fd)
        return None
    _blocks[address] = _Block(address, size, fd)
    return _owned(address, size, fd)


def _has_room(size: int) -> bool:
    """Whether there is a descriptor to spare, and the kernel would give so much ordinary memory."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 0 <= limit <= _SHARE * len(_blocks) or _is_strict():
        return False
    try:
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


@functools.cache
def _is_strict() -> bool:
    """Whether the kernel gives no more memory than it has: writing to a block might fail then."""
    try:
        with open("/proc/sys/vm/overcommit_memory") as setting:
            return setting.read().strip() == "2"
    except OSError:
        return False


def freeze(payloads: Sequence[Any], must_stay: Callable[[int, int], bool]) -> list[Place | None]:
    """Freeze the blocks of tensors that can be mapped, and return where they lie; None for others.

    Args:
        payloads: Their bytes: of uint8 [n], on a CPU.
        must_stay: Whether something else needs memory where it is, given its address and bytes.
    """
    if not _blocks:
        return [None] * len(payloads)
    blocks = [
        _blocks.get(each.untyped_storage().data_ptr()) if each.numel() >= _LEAST_MAPPED else None
        for each in payloads
    ]
    some = list(dict.fromkeys(each for each in blocks if each is not None))[:MOST_BLOCKS]
    frozen = {each for each in some if not must_stay(each.address, each.size) and each.freeze()}
    return [
        Place(block.fd, each.data_ptr() - block.address) if block in frozen else None
        for block, each in zip(blocks, payloads, strict=True)
    ]


def open_block(fd: int, start: int, size: int) -> Any:
    """Return a part of a frozen block of another process, of uint8 [size]; writes stay here.

    Args:
        fd: The block's descriptor, which the caller closes.
        start: Where the part begins.
        size: Its bytes.

    Raises:
        OSError: It cannot be mapped.
        ValueError: It is no such block, because its owner could write to it, or has no such part.
    """
    import torch

    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
        raise ValueError("what is to be mapped is not frozen")
    if start < 0 or size < 1 or start + size > os.fstat(fd).st_size:
        raise ValueError("what is to be mapped is not in the block")
    before = start % mmap.PAGESIZE
    mapped = before + size
    memory = _owned(_map(fd, mapped, 0, at=start - before), mapped, -1)
    return torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=before)


def _is_written(address: int, size: int) -> bool:
    """Whether this process has pages of its own in a private mapping; see proc_pid_pagemap(5)."""
    first, end = address // mmap.PAGESIZE, -(-(address + size) // mmap.PAGESIZE)
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
            found = os.pread(pagemap.fileno(), 8 * (end - first), 8 * first)
    except OSError:
        return True
    pages = np.frombuffer(found, np.uint64)
    is_there, is_of_file = pages >> np.uint64(62), pages >> np.uint64(61) & np.uint64(1)
    return len(pages) < end - first or bool(np.any((is_there != 0) & (is_of_file == 0)))


def _owned(address: int, size: int, fd: int) -> Any:
    """Return an object that has memory, which ends with it."""
    made = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(made, _end, address, size, fd, os.getpid()).atexit = False
    return made


def _end(address: int, size: int, fd: int, pid: int) -> None:
    if fd >= 0 and pid == os.getpid():
        _blocks.pop(address, None)  # before its place is that of something else
        os.close(fd)
    _library().munmap(address, size)


def _map(fd: int, size: int, address: int, kind: int = mmap.MAP_PRIVATE, at: int = 0) -> int:
    """Map a part of a file, at an address if that is given; returns where it is."""
    kind |= (_MAP_FIXED if address else 0) | (_MAP_NORESERVE if kind == mmap.MAP_PRIVATE else 0)
    access = mmap.PROT_READ | mmap.PROT_WRITE
    found = _library().mmap(address, size, access, kind, fd, at)
    if found == ctypes.c_void_p(-1).value:
        problem = ctypes.get_errno()
        raise OSError(problem, os.strerror(problem))
    return int(found)


def _freeze_all() -> None:
    for each in list(_blocks.values()):
        each.freeze()


os.register_at_fork(before=_freeze_all)


@functools.cache
def _library() -> Any:
    found = ctypes.CDLL(None, use_errno=True)
    found.mmap.restype = ctypes.c_void_p
    found.mmap.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t),
        *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
    )
    found.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return found
