# SPDX-License-Identifier: Apache-2.0
"""Figures as text: times, rates and sizes with a unit that fits, and aligned columns.

>>> time_text(12_345), time_text(950), time_text(None)
('12.3 us', '950 ns', '-')
>>> rate_text(12_345.6), share_text(0.123)
('12,346 /s', '12.3 %')

This room must know nothing of what the figures mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rcg.display import visible, whole_numbers

__all__ = ["columns", "name_text", "rate_text", "ratio_text", "share_text", "time_text"]

_LONGEST_NAME: Final = 40


def name_text(name: str) -> str:
    r"""Return a user's name on one line, both its ends if it is long.

    >>> name_text("a\nb")
    'a\\nb'
    >>> name_text("PrefillWorkerWithSpeculativeDecoding#12.forward")
    'PrefillWorkerWithSp...oding#12.forward'
    """
    name = visible(name)
    if len(name) <= _LONGEST_NAME:
        return name
    half = (_LONGEST_NAME - 3) // 2
    first, last = whole_numbers(name, half + 1, len(name) - half)
    return f"{name[:first]}...{name[last:]}"


def time_text(ns: float | None) -> str:
    """Return a time with three digits and its unit."""
    if ns is None:
        return "-"
    return _scaled(ns, (("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)), whole="ns")


def rate_text(per_s: float | None) -> str:
    """Return a rate per second."""
    if per_s is None:
        return "-"
    return f"{per_s:,.0f} /s" if per_s >= 100 else f"{per_s:.3g} /s"


def share_text(share: float | None) -> str:
    """Return a share of 1 in percent."""
    return "-" if share is None else f"{share:.1%}".replace("%", " %")


def ratio_text(ratio: float | None) -> str:
    """Return a ratio: ``1.50x``."""
    return "-" if ratio is None else f"{ratio:.2f}x"


def columns(rows: Sequence[Sequence[str]], *, left: int = 1, indent: str = "  ") -> list[str]:
    """Return rows as lines with aligned columns; whatever cannot be shown is escaped.

    Args:
        rows: Of equal length, at least one.
        left: How many columns are aligned to the left, and shortened as they hold names; the
            others are to the right.
        indent: Before each line.
    """
    rows = [(*map(name_text, row[:left]), *map(visible, row[left:])) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines


def _scaled(value: float, units: Sequence[tuple[str, float]], *, whole: str) -> str:
    name, factor = next(
        (unit for unit in reversed(units) if abs(value) >= unit[1] * 0.9995), units[0]
    )
    scaled = value / factor
    if name == whole:
        return f"{scaled:.0f} {name}"
    digits = 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0
    return f"{scaled:,.{digits}f} {name}"
