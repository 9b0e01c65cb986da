# SPDX-License-Identifier: Apache-2.0
"""How the tensors of an object travel in runs, small ones together, and the memory they arrive in.

The kernel gives memory page by page, when it is first written to. For large tensors that costs more
than the bytes do: copying 100 MB from another process (``process_vm_readv``) took 53 ms into new
pages of 4 KiB, and 23 ms into huge ones, which Linux gives to those who ask (``madvise(2)``,
``MADV_HUGEPAGE``). So what is received lies in huge pages where it can (``fresh_memory``).
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import mmap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from rcg.channels.tensor import PIECE_BYTES
from rcg.rdt.places import check_memory

_SMALL_BYTES: Final = 256 << 10  # of these, several travel in one run
_ALIGNMENT: Final = 64
_LARGE_BYTES: Final = 4 << 20  # two huge pages and more: one of them is whole
_MADV_HUGEPAGE: Final = getattr(mmap, "MADV_HUGEPAGE", None)


def send_in_runs(
    payloads: Sequence[Any],
    check: Callable[[], object],
    send: Callable[[int, Callable[[], Any]], None],
) -> None:
    """Send the tensors of an object, small ones together.

    Args:
        payloads: The tensors, of uint8.
        check: Called before memory is read; what it raises is raised.
        send: Sends one tensor: gets the bytes that the other end expects, and what returns it.
    """
    sizes = [each.numel() for each in payloads]
    for run in _runs(sizes):
        size = sizes[run[0]] if len(run) == 1 else sum(_pad(sizes[at]) for at in run)

        def take(run: list[int] = run) -> Any:
            check()
            return payloads[run[0]] if len(run) == 1 else _join([payloads[at] for at in run])

        send(size, take)


def receive_in_runs(
    sizes: Sequence[int], device: str, into: Sequence[Any] | None, recv: Callable[[Any], None]
) -> list[Any]:
    """Receive what ``send_in_runs`` sends; see ``Pair.recv``.

    Args:
        sizes: The bytes of each tensor.
        device: The type of the device of all.
        into: Where they are received; None for fresh memory.
        recv: Receives into one tensor of uint8 [n].
    """
    payloads: list[Any] = []
    for whole, parts in places_for(sizes, device, into):
        recv(whole)
        payloads += parts
    return payloads if into is None else fill(into, payloads)


def places_for(
    sizes: Sequence[int], device: str, into: Sequence[Any] | None
) -> Iterator[tuple[Any, list[Any]]]:
    """Yield where tensors are received: memory for one, or for several small ones, and its parts.

    Args:
        sizes: The bytes of each tensor.
        device: The type of the device of all.
        into: The user's memory, which is used where it lies on that device; None for fresh memory.

    Raises:
        ValueError: The user's memory has another size, or was freed.
    """
    import torch

    for run in _runs(sizes):
        ends = list(itertools.accumulate(_pad(sizes[at]) for at in run))
        size = sizes[run[0]] if len(run) == 1 else ends[-1]
        target = into[run[0]] if into is not None and len(run) == 1 else None
        is_users = target is not None and target.device.type == device
        if is_users:
            _check_fits(target, size)
        whole: Any = target if is_users else fresh_memory(size, device)
        places = zip([0, *ends], run, strict=False)
        yield whole, [whole[start : start + sizes[at]] for start, at in places]
        if is_users:  # so autograd refuses what it saved of that memory
            torch.autograd.graph.increment_version(whole)


def _runs(sizes: Sequence[int]) -> list[list[int]]:
    """Return which tensors travel in one piece: neighbours that are small; in order.

    >>> _runs([100, 200, 1 << 30, 5])
    [[0, 1], [2], [3]]
    """
    runs: list[list[int]] = []
    size = 0  # of the newest run, if more may follow in it
    for at, each in enumerate(sizes):
        if each > _SMALL_BYTES:
            runs.append([at])
            size = 0
        elif size and size + _pad(each) <= PIECE_BYTES:
            runs[-1].append(at)
            size += _pad(each)
        else:
            runs.append([at])
            size = _pad(each)
    return runs


def _pad(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def fill(into: Sequence[Any], payloads: Sequence[Any]) -> list[Any]:
    """Copy the bytes of tensors into others, which may be the same; returns those."""
    for target, payload in zip(into, payloads, strict=True):
        if target.data_ptr() != payload.data_ptr():
            _check_fits(target, payload.numel())
            target.copy_(payload)
    return list(into)


def _check_fits(target: Any, size: int) -> None:
    """Raise ValueError unless so many bytes are all of a tensor of uint8, and it has its memory."""
    check_memory(target)
    if target.numel() != size:
        raise ValueError(f"{size} bytes are received into memory of {target.numel()}")


def _join(payloads: Sequence[Any]) -> Any:
    """Return tensors of uint8 one after another, each at an aligned place."""
    import torch

    padding = torch.zeros(_ALIGNMENT, dtype=torch.uint8, device=payloads[0].device)
    parts: list[Any] = []
    for payload in payloads:
        parts.append(payload.reshape(-1))
        if payload.numel() % _ALIGNMENT:
            parts.append(padding[: -payload.numel() % _ALIGNMENT])
    return torch.cat(parts)


def fresh_memory(size: int, device: str) -> Any:
    """Return a tensor of uint8 [size] with memory of its own.

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
