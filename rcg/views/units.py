# SPDX-License-Identifier: Apache-2.0
"""Numbers for people: three digits and a unit; and where the ticks of a time axis go."""

from __future__ import annotations

from math import floor, log10
from typing import Final

__all__ = ["count_text", "share_text", "ticks_of", "time_text"]

_TIMES: Final = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "\N{MICRO SIGN}s"), (1, "ns"))


def time_text(time_ns: float) -> str:
    r"""Return a time in the unit that suits it.

    >>> [time_text(each) for each in (0, 412_300, 1_940_000, 12.4e9)]
    ['0 s', '412 µs', '1.94 ms', '12.4 s']
    """
    if not time_ns:
        return "0 s"
    scale, unit = _unit_of(abs(time_ns) * 1.0005)
    return f"{_digits(time_ns / scale)} {unit}"


def count_text(count: float) -> str:
    """Return a count with its thousands apart, or a rate with three digits.

    >>> count_text(1234567), count_text(12.3456), count_text(515.2)
    ('1,234,567', '12.3', '515')
    """
    if count == int(count) or abs(count) >= 1000:
        return f"{round(count):,}"
    return _digits(count)


def share_text(share: float) -> str:
    """Return a share as per cent.

    >>> share_text(0.724), share_text(0.004), share_text(0.0)
    ('72 %', '0.4 %', '0 %')
    """
    per_cent = share * 100
    digits = 1 if 0.05 <= abs(per_cent) < 0.95 else 0
    return f"{per_cent:.{digits}f} %"


def ticks_of(duration_ns: float, most: int, first_ns: float = 0) -> list[tuple[int, str]]:
    """Return the ticks of an axis: how far from its start, and their labels, all in one unit.

    Args:
        duration_ns: How long the axis is.
        most: How many ticks there may be, about.
        first_ns: The moment at which it starts; the labels are of moments.

    >>> ticks_of(5_600_000, 7)[:3]
    [(0, '0 ms'), (1000000, '1 ms'), (2000000, '2 ms')]
    >>> [label for _, label in ticks_of(2_000, 5)]
    ['0 µs', '0.5 µs', '1 µs', '1.5 µs', '2 µs']
    >>> ticks_of(3_000_000, 3, 869_400_000)
    [(600000, '870 ms'), (1600000, '871 ms'), (2600000, '872 ms')]
    """
    wanted = max(duration_ns, 1) / max(most, 1)
    power = 10.0 ** floor(log10(wanted))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= wanted * 0.999)
    step = max(1, round(step))
    begun = int(first_ns)
    end = begun + int(duration_ns)
    scale, unit = _unit_of(max(abs(begun), abs(end)))
    return [
        (at - begun, f"{_exact(at, scale)} {unit}")
        for at in range(-(-begun // step) * step, end + 1, step)
    ]


def _unit_of(time_ns: float) -> tuple[int, str]:
    return next((each for each in _TIMES if time_ns >= each[0]), _TIMES[-1])


def _exact(time_ns: int, scale: int) -> str:
    """All digits of a moment, whatever is before its point: ticks may be close together."""
    sign = "-" if time_ns < 0 else ""
    whole, rest = divmod(abs(time_ns), scale)
    places = len(f"{scale}") - 1
    after = f"{rest:0{places}}".rstrip("0") if rest else ""
    return f"{sign}{whole}{'.' if after else ''}{after}"


def _digits(value: float) -> str:
    """Three digits, or all those before the point."""
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:.3g}"
