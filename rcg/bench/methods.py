# SPDX-License-Identifier: Apache-2.0
"""The methods of actors that the rows call, the same for all contestants.

This file imports nothing of rcg at the top, because ``visitor`` loads it into a process that may
have another version of rcg.
"""

from __future__ import annotations

import time
from typing import Any

__all__ = ["RowMethods"]

__rcg_user__ = True  # see rcg.frames


class RowMethods:
    """Methods that take almost no time, so that the time of calling them is measured."""

    def echo(self, value: Any) -> Any:
        """Return the argument."""
        return value

    def work_10us(self, value: Any) -> Any:
        """Return the argument after 10 us of work."""
        return self._work(value, 10_000)

    def work_50us(self, value: Any) -> Any:
        """Return the argument after 50 us of work."""
        return self._work(value, 50_000)

    def work_200us(self, value: Any) -> Any:
        """Return the argument after 200 us of work."""
        return self._work(value, 200_000)

    @staticmethod
    def _work(value: Any, work_ns: int) -> Any:
        end = time.perf_counter_ns() + work_ns
        while time.perf_counter_ns() < end:
            pass
        return value

    def fresh(self, array: Any) -> Any:
        """Return a new array with the same contents."""
        return array.copy()

    def filled(self, array: Any) -> Any:
        """Return a new array with the same contents, in shared memory if the graph lends it."""
        import numpy as np

        import rcg  # whichever this process finds

        out = getattr(rcg, "empty", np.empty)(array.shape, array.dtype)  # older ones have none
        np.copyto(out, array)
        return out

    def tensor(self, size_bytes: int) -> Any:
        """Return a float32 tensor of a size, the same one each time."""
        import torch

        held: dict[int, Any] = self.__dict__.setdefault("held", {})
        if size_bytes not in held:
            held.clear()
            held[size_bytes] = torch.ones(size_bytes // 4)
        return held[size_bytes]

    def size(self, tensor: Any) -> int:
        """Return the bytes of a tensor."""
        return int(tensor.numel()) * int(tensor.element_size())

    def count(self, *values: Any) -> int:
        """Return the number of arguments."""
        return len(values)
