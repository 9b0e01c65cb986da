# SPDX-License-Identifier: Apache-2.0
"""A sample of the bytes of tensors, which shows whether they were written to since.

Torch counts the writes to a tensor, but fused optimizers, ``p.data``, NumPy and other libraries
write uncounted. So bytes are compared; all of them would cost as much as to send them. Up to 8 MiB
every byte is in the sample. Of more it has one line of 64 bytes in each block of lines, of at most
4 KiB. Which line it is, is drawn for each block and each sample. So a write of 8 KiB side by side
is always noticed, one of a single number in at least one case of 64, and writes to ``n`` lines that
lie apart are missed with a chance of at most ``(63 / 64) ** n``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rcg.rdt.slices import Region

_LINE_BYTES: Final = 64
_SAMPLE_BYTES: Final = 4 << 20  # read in half a millisecond
_MOST_LINES: Final = 64  # of a block

Lines = NDArray[np.uint64]


class _Part:
    """The sample of one tensor, of uint8 [n] on the CPU, in blocks of so many lines."""

    def __init__(self, tensor: Any, block: int, random: np.random.Generator) -> None:
        self._tensor = tensor
        self._block = block
        lines, self._rest = self._memory()
        starts = np.arange(0, len(lines), block)
        if block > 1:
            self._chosen = starts + random.integers(0, np.minimum(block, len(lines) - starts))
        self._lines = self._take(lines, 0, len(starts))

    def _memory(self) -> tuple[Lines, bytes]:
        """Return the lines of the tensor, of [m, 8], and a copy of what follows the last one."""
        memory = np.from_dlpack(self._tensor)
        whole = len(memory) // _LINE_BYTES * _LINE_BYTES
        return memory[:whole].view(np.uint64).reshape(-1, 8), memory[whole:].tobytes()

    def _take(self, lines: Lines, first: int, stop: int) -> Lines:
        if self._block == 1:
            return lines[first:stop].copy()
        return np.take(lines, self._chosen[first:stop], axis=0)

    def is_changed(self, start: int, stop: int) -> bool:
        """Whether bytes of the sample, in a range of the tensor, are others now."""
        size = self._block * _LINE_BYTES
        first, last = start // size, -(-stop // size)
        lines, rest = self._memory()
        before = self._lines[first:last]
        return rest != self._rest or not np.array_equal(self._take(lines, first, last), before)


class Sample:
    """A sample of the bytes of some of an object's tensors.

    Args:
        payloads: The tensors of the object: of uint8 [n].
        numbers: Which of them are in it. They lie on the CPU.
    """

    def __init__(self, payloads: Sequence[Any], numbers: Collection[int]) -> None:
        self._sizes = {each: payloads[each].numel() for each in numbers}
        block = max(1, min(_MOST_LINES, sum(self._sizes.values()) // _SAMPLE_BYTES))
        random = np.random.default_rng()
        self._parts = {each: _Part(payloads[each], block, random) for each in numbers}

    def find_changed(self, regions: Sequence[Region] | None = None) -> int | None:
        """Return the number of a tensor that was written to since; None if there is none.

        Args:
            regions: Where to look, and between these of one tensor; None for everywhere.
        """
        spans = {each: (0, size) for each, size in self._sizes.items()}
        if regions is not None:
            found: dict[int, tuple[int, int]] = {}
            for each in regions:
                start, end = found.get(each.tensor, (each.start, each.end))
                found[each.tensor] = min(start, each.start), max(end, each.end)
            spans = {each: span for each, span in found.items() if each in self._parts}
        changed = (each for each, span in spans.items() if self._parts[each].is_changed(*span))
        return next(changed, None)
