# SPDX-License-Identifier: Apache-2.0
"""The methods that the rows of the bench call, for the actors of every contestant.

It imports nothing at the top, because ``visitor`` loads it from its file into a process that may
have another version of rcg.
"""

from __future__ import annotations

from typing import Any

__all__ = ["RowMethods"]

__rcg_user__ = True  # see rcg.frames


class RowMethods:
    """Methods that cost next to nothing, so that what is measured is the way to them."""

    def echo(self, value: Any) -> Any:
        """Returns what it is given."""
        return value

    def fresh(self, array: Any) -> Any:
        """Returns a new array with the same contents."""
        return array.copy()

    def filled(self, array: Any) -> Any:
        """Returns a new array with the same contents, in memory that needs no copy if it can."""
        import numpy as np

        import rcg  # whichever this process finds

        out = getattr(rcg, "empty", np.empty)(array.shape, array.dtype)  # older ones have none
        np.copyto(out, array)
        return out

    def count(self, *values: Any) -> int:
        """Returns how many values it was given."""
        return len(values)
