# SPDX-License-Identifier: Apache-2.0
"""A sample of the bytes of tensors, which shows whether they were written to since.

Torch counts the writes to a tensor, but fused optimizers, ``p.data``, NumPy and other libraries
write uncounted. So bytes are compared; all of them would cost as much as to send them. Up to 8 MiB
every byte is in the sample. Of more it has one line of 64 bytes in each block of lines, of at most
4 KiB. Which line it is, is drawn for each block and each sample. So a write that changes each of 8
KiB side by side is always noticed, one of a single number in at least one case of 64, and writes to
``n`` lines that lie apart are missed with a chance of at most ``(63 / 64) ** n``.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rcg.rdt.slices import FIELDS

_LINE_BYTES: Final = 64
_SAMPLE_BYTES: Final = 4 << 20  # read in half a millisecond
_MOST_LINES: Final = 64  # of a block


class _All:
    """All bytes of a tensor, of uint8 [n] on the CPU."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        self._bytes = ctypes.string_at(tensor.data_ptr(), tensor.numel())

    def is_changed(self, start: int, stop: int) -> bool:
        """Whether bytes in a range of the tensor are others now."""
        now = ctypes.string_at(self._tensor.data_ptr() + start, stop - start)
        return now != self._bytes[start:stop]


class _Some:
    """One line of each block of a tensor, of uint8 [n] on the CPU, and what follows the last."""

    def __init__(self, tensor: Any, block: int, drawn: NDArray[np.int64]) -> None:
        self._block = block * _LINE_BYTES
        count = tensor.numel() // _LINE_BYTES
        self._whole = tensor[: count * _LINE_BYTES]
        self._rest = _All(tensor[count * _LINE_BYTES :])
        starts = np.arange(0, count, block)
        self._chosen = np.minimum(starts + drawn[: len(starts)], count - 1)
        self._lines = self._take(0, len(starts))

    def _take(self, first: int, stop: int) -> Any:
        lines = np.from_dlpack(self._whole).reshape(-1, _LINE_BYTES)
        return np.take(lines, self._chosen[first:stop], axis=0)

    def is_changed(self, start: int, stop: int) -> bool:
        """Whether bytes of the sample, in a range of the tensor, are others now."""
        first, last = start // self._block, -(-stop // self._block)
        if not np.array_equal(self._take(first, last), self._lines[first:last]):
            return True
        whole = self._whole.numel()
        return stop > whole and self._rest.is_changed(max(start - whole, 0), stop - whole)


class Sample:
    """A sample of the bytes of some of an object's tensors.

    Args:
        payloads: The tensors of the object: of uint8 [n].
        numbers: Which of them are in it. They lie on the CPU.
    """

    def __init__(self, payloads: Sequence[Any], numbers: Collection[int]) -> None:
        self._sizes = {each: payloads[each].numel() for each in numbers}
        block = min(_MOST_LINES, sum(self._sizes.values()) // _SAMPLE_BYTES)
        self._parts: dict[int, _All | _Some] = {}
        if block > 1:
            counts = [size // (block * _LINE_BYTES) + 1 for size in self._sizes.values()]
            ends = list(itertools.accumulate(counts))
            drawn = np.random.default_rng().integers(0, block, sum(counts))
            for each, count, end in zip(numbers, counts, ends, strict=True):
                self._parts[each] = _Some(payloads[each], block, drawn[end - count : end])
        else:
            self._parts.update((each, _All(payloads[each])) for each in numbers)

    def find_changed(self, table: bytes | None = None) -> int | None:
        """Return the number of a tensor that was written to since; None if there is none.

        Args:
            table: Where to look, as ``rcg.rdt.slices.rows_of``: there, and between these slices of
                a tensor. None for everywhere.
        """
        spans = {each: (0, size) for each, size in self._sizes.items()}
        if table is not None:
            found = _spans_of(table)
            spans = {each: span for each, span in found.items() if each in self._parts}
        for each, (start, stop) in spans.items():
            stop = min(stop, self._sizes[each])
            if self._parts[each].is_changed(min(max(start, 0), stop), stop):
                return each
        return None


def _spans_of(table: bytes) -> dict[int, tuple[int, int]]:
    """Return from where to where the slices of each tensor reach, by its number."""
    rows = np.frombuffer(table, "<i8").reshape(-1, FIELDS)
    tensors, starts, outer, outer_step, inner, inner_step, run = rows.T
    numbers, places = np.unique(tensors, return_inverse=True)
    first, last = np.full(len(numbers), np.iinfo(np.int64).max), np.zeros(len(numbers), np.int64)
    np.minimum.at(first, places, starts)
    np.maximum.at(last, places, starts + (outer - 1) * outer_step + (inner - 1) * inner_step + run)
    spans = zip(first.tolist(), last.tolist(), strict=True)
    return dict(zip(numbers.tolist(), spans, strict=True))
