# SPDX-License-Identifier: Apache-2.0
"""What profiles record beside graphs: transfers of tensors by reference.

The room of such tensors stands above this one, and says here where its transfers are found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # its room is large, and every actor of rcg imports this one
    from rcg.trace.model import TensorTransfer

Source = Callable[[int, int], "tuple[TensorTransfer, ...]"]
"""Returns the transfers that began between two points in time, in nanoseconds."""

_sources: Final[list[Source]] = []


def record_from(source: Source) -> None:
    """Have profiles of this process contain the transfers that a function returns."""
    if source not in _sources:
        _sources.append(source)


def transfers_between(start_ns: int, end_ns: int) -> tuple[TensorTransfer, ...]:
    """Return the transfers that began between two points in time, the earliest first."""
    found = [each for source in _sources for each in source(start_ns, end_ns)]
    return tuple(sorted(found, key=lambda each: each.start_ns))
