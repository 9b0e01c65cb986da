# SPDX-License-Identifier: Apache-2.0
"""The methods of actors that the rows call, the same for all contestants.

This file imports nothing at the top, because ``visitor`` loads it into a process that may have
another version of rcg.
"""

from __future__ import annotations

from typing import Any

__all__ = ["RowMethods"]

__rcg_user__ = True  # see rcg.frames


class RowMethods:
    """Methods that take almost no time, so that the time of calling them is measured."""

    def echo(self, value: Any) -> Any:
        """Return the argument."""
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
