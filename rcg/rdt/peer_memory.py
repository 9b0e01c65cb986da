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
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rcg.error_text import without_frames
from rcg.rdt.places import Spans
from rcg.threads import run_together

Addresses = NDArray[np.int64]

_MOST_PARTS: Final = 1024  # of one call: IOV_MAX
_PIECE_BYTES: Final = 16 << 20  # of what a thread copies at once
_LARGE_BYTES: Final = 32 << 20  # that several threads copy
_MOST_THREADS: Final = 4  # fill the memory's bandwidth


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


def read(pid: int, spans: Spans) -> None:
    """Copy memory of another process, and where it goes in this one.

    Raises:
        OSError: It may not be read, or something is not there any more; some has been copied.
    """
    _share(functools.partial(_read, pid), spans)


def copy(spans: Spans) -> None:
    """Copy memory of this process."""
    _share(_copy, spans)


def _share(call: Callable[[Addresses, Addresses, Addresses], None], spans: Spans) -> None:
    """Have several threads copy what is large."""
    there, (here, sizes) = spans.there[:, 0], spans.here.T[:2]
    total = int(sizes.sum())
    threads = min(len(os.sched_getaffinity(0)), _MOST_THREADS)
    if total < _LARGE_BYTES or threads == 1:
        call(there, here, sizes)
        return
    counts = -(-sizes // _PIECE_BYTES)
    runs = np.repeat(np.arange(len(sizes)), counts)
    starts = (np.arange(len(runs)) - (np.cumsum(counts) - counts)[runs]) * _PIECE_BYTES
    pieces = np.minimum(sizes[runs] - starts, _PIECE_BYTES)
    shares = np.cumsum(pieces) * threads // (total + 1)  # which thread copies a piece
    problems: list[Exception] = []

    def copy_share(number: int) -> None:
        ours = shares == number
        try:
            call((there[runs] + starts)[ours], (here[runs] + starts)[ours], pieces[ours])
        except Exception as error:  # noqa: BLE001 - raised below
            problems.append(without_frames(error))

    run_together([functools.partial(copy_share, each) for each in range(threads)], "rcg-copy")
    if problems:
        raise problems.pop()


def _copy(there: Addresses, here: Addresses, sizes: Addresses) -> None:
    for source, target, size in zip(there.tolist(), here.tolist(), sizes.tolist(), strict=True):
        ctypes.memmove(target, source, size)


def _read(pid: int, there: Addresses, here: Addresses, sizes: Addresses) -> None:
    theirs, ours = (  # ``struct iovec``, one in each row
        np.stack([each, sizes], axis=1)[sizes > 0] for each in (there, here)
    )
    at = 0
    while at < len(ours):
        count = min(len(ours) - at, _MOST_PARTS)
        places = ours[at:].ctypes.data, count, theirs[at:].ctypes.data, count
        copied = _call()(pid, *places, 0)
        if copied <= 0:
            problem = ctypes.get_errno() if copied else errno.EFAULT
            raise OSError(problem, os.strerror(problem))
        ends = np.cumsum(ours[at : at + count, 1])
        done = int(np.searchsorted(ends, copied, "right"))
        rest = copied - (int(ends[done - 1]) if done else 0)
        at += done
        if rest:  # at most 2 GiB at once, or what lay before something that is not there
            for each in (ours, theirs):
                each[at] += rest, -rest


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
    byte, copy = np.array([7], np.uint8), np.zeros(1, np.uint8)
    there, here = (np.array([[each.ctypes.data, each.nbytes, 0]]) for each in (byte, copy))
    try:
        read(os.getpid(), Spans(there, here))
    except (AttributeError, OSError):  # another C library, or a ban
        return False
    return bool(copy[0] == byte[0])
