# SPDX-License-Identifier: Apache-2.0
"""Long results as short tables: the head, the tail, and how many rows lie between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

__all__ = ["cut"]

_ENDS: Final = 5
"""How many rows are shown at either end."""

_Row = TypeVar("_Row")


def cut(rows: Sequence[_Row], gap: Callable[[int], _Row], most: int = 2 * _ENDS) -> list[_Row]:
    """Return all rows, or those at both ends and between them what says how many are not there."""
    if len(rows) <= most + 1:
        return list(rows)
    half = most // 2
    return [*rows[:half], gap(len(rows) - 2 * half), *rows[len(rows) - half :]]
