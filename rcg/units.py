# SPDX-License-Identifier: Apache-2.0
"""Amounts of memory for people, everywhere in the same units."""

from __future__ import annotations

from typing import Final

__all__ = ["bytes_text"]

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def bytes_text(count: float) -> str:
    """Return an amount of memory with three digits and its unit.

    >>> [bytes_text(each) for each in (0, 999, 1536, 3_250_586, 23 << 30)]
    ['0 B', '999 B', '1.5 KiB', '3.1 MiB', '23 GiB']
    """
    amount, position = float(count), 0
    while abs(amount) >= 999.5 and position < len(_UNITS) - 1:
        amount /= 1024
        position += 1
    digits = f"{amount:.0f}" if abs(amount) >= 99.95 else f"{amount:.3g}"
    return f"{digits} {_UNITS[position]}"
