# SPDX-License-Identifier: Apache-2.0
"""Sums of the figures of all events of one op in one execution.

An op of a driver may have several events in an execution: inputs are encoded before there is room
for them, and results are decoded when the user gets them, perhaps after timeouts.

This room must know neither ops nor the meaning of the figures.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def by_execution(op: Ints, execution: Ints, figures: Sequence[Ints]) -> tuple[Ints, list[Ints]]:
    """Return sums of figures over all events of one op in one execution.

    Returns:
        The op of each sum, ascending, and the sums of each figure.
    """
    order = np.lexsort((execution, op))
    op, execution = op[order], execution[order]
    is_first = np.ones(len(op), bool)
    is_first[1:] = (np.diff(op) != 0) | (np.diff(execution) != 0)
    first = np.flatnonzero(is_first)
    if len(first) == len(op):
        return op, [each[order] for each in figures]
    return op[first], [np.add.reduceat(each[order], first) for each in figures]
