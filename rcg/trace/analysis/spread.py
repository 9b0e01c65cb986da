# SPDX-License-Identifier: Apache-2.0
"""How far a measured figure may be from the one that a longer recording would give.

Executions follow each other closely, so their figures depend on each other: the deviation of single
ones says too little. The method of batch means takes consecutive batches instead, which hardly
depend on each other, and Student's distribution for the mean of their figures (Law, Kelton,
"Simulation Modeling and Analysis", 9.5.3). A spread is half the width of that 95 % interval.

>>> batch_edges(17).tolist()
[0, 3, 6, 10, 13, 17]
>>> round(half_width([10, 12, 10, 12, 11]), 2)
1.24

A ratio is noise if 1 is within its spread, both as they are shown (``rcg.text.spread_text``). A
ratio of two measured figures is noise if its inverse is, too (``comparison.Change``).

>>> is_noise(0.62, 0.33), is_noise(0.62, 0.38), is_noise(0.987, 0.0113), is_noise(1.2, None)
(False, True, True, None)

This room must know neither traces nor plans.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rcg.text import hundredths
from rcg.trace.analysis.intervals import Ints

BATCHES: Final = 5
LEAST: Final = 2 * BATCHES
"""Of how many executions at least a spread is known: two in each batch."""

_STUDENT: Final = 2.776  # of 95 % with BATCHES - 1 degrees of freedom


def batch_edges(count: int) -> Ints:
    """Return where each batch of so many values begins, and where the last one ends."""
    return np.arange(BATCHES + 1) * count // BATCHES


def half_width(figures: Sequence[float]) -> float:
    """Return the spread of the mean of a figure, given that of each batch."""
    return _STUDENT * float(np.std(figures, ddof=1)) / math.sqrt(len(figures))


def spread_of(values: npt.NDArray[Any]) -> float | None:
    """Return the spread of the median of values, in the order of time; None of fewer than LEAST."""
    if len(values) < LEAST:
        return None
    batches = np.split(values, batch_edges(len(values))[1:-1])
    return half_width([float(np.median(each)) for each in batches])


def is_noise(ratio: float | None, spread: float | None) -> bool | None:
    """Return whether 1 is within the spread of a ratio; None if one of them is unknown."""
    if ratio is None or spread is None:
        return None
    return abs(hundredths(ratio) - 100) <= hundredths(spread)
