# SPDX-License-Identifier: Apache-2.0
"""How long it takes at most, but for few: the 99th percentile; of fewer than 100 the largest.

The 99th percentile of fewer is no figure of its own: it is between the two largest.

>>> highest(np.arange(50)), high_word(50)
(49.0, 'max')
>>> highest(np.arange(101)), high_word(101), high_word(50, 101)
(99.0, 'p99', 'p99 / max')

This room knows only numbers.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

ENOUGH: Final = 100
"""Of so many values there is a 99th percentile."""


def highest(values: npt.NDArray[Any]) -> float:
    """Return the 99th percentile of values, or the largest of fewer than ``ENOUGH``."""
    return float(np.percentile(values, 99) if len(values) >= ENOUGH else values.max())


def high_word(*counts: int) -> str:
    """Return what ``highest`` of so many values is called; of several, each with its own."""
    words = {"p99" if count >= ENOUGH else "max" for count in counts}
    return " / ".join(sorted(words, reverse=True)) or "max"
