# SPDX-License-Identifier: Apache-2.0
"""Times, amounts, numbers and names as text, in the same form everywhere.

>>> time_text(12_345), time_text(950), time_text(None)
('12.3 µs', '950 ns', '-')
>>> bytes_text(3_250_586), rate_text(12_345.6), share_text(0.1234), ratio_text(1.5)
('3.25 MB', '12,300 /s', '12.3 %', '1.50x')

Numbers have three digits and a suitable unit; an unknown number is "-". The widgets have the same
functions in ``common.js``, and ``tests/harness/figures.json`` has cases for both. Names come from
users: characters that cannot be shown are escaped, and long names are cut in the middle, but never
in a number. This file imports nothing of rcg.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from math import floor, isfinite, log10
from textwrap import wrap
from typing import Final, TypeVar

UNKNOWN: Final = "-"
"""Stands for a figure that is not known."""

IN_LINE: Final = 40
"""How long a name may be in a sentence or in a table."""

ACTOR: Final = re.compile(r"a(\d+)(\.\w+)?")
"""The id of an actor or of a lane of it."""

_TIMES: Final = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "\N{MICRO SIGN}s"), (1, "ns"))
_AMOUNTS: Final = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (1_000, "kB"), (1, "B"))
_ELLIPSIS: Final = "\N{HORIZONTAL ELLIPSIS}"
_IN_HOVER: Final = 60

# A number as it is shown: with thousands apart, or a point.
NUMBER: Final = re.compile(r"\d+(?:[.,]\d+)*")

# The space between a figure and its unit, or its spread.
_WITH_FIGURE: Final = re.compile(
    r"(?<=\d) (?=(?:[n\N{MICRO SIGN}m]?s|%)(?!\w)|/s)|(?<=\dx) (?=\N{PLUS-MINUS SIGN})"
)

_INEXACT: Final = 10**15  # from here on a double has no exact digits behind its point

_MOST_RANGES: Final = 3
_ENDS: Final = 5  # rows that are shown at either end of a table that is cut

_Row = TypeVar("_Row")

# --- figures ------------------------------------------------------------------------------------


def time_text(time_ns: float | None) -> str:
    """Return a time in the unit that suits it.

    >>> [time_text(each) for each in (0, 412_300, 1_940_000, 12.4e9)]
    ['0 s', '412 µs', '1.94 ms', '12.4 s']
    """
    if time_ns is None:
        return UNKNOWN
    return _figure(time_ns, _TIMES) if time_ns else "0 s"


def bytes_text(count: float) -> str:
    """Return an amount of memory; also a mean has no parts of a byte.

    >>> [bytes_text(each) for each in (0, 19.5, 999, 1536, 3_250_586, 23 << 30)]
    ['0 B', '20 B', '999 B', '1.54 kB', '3.25 MB', '24.7 GB']
    """
    return _figure(floor(count + 0.5) if abs(count) < _AMOUNTS[-2][0] else count, _AMOUNTS)


def count_text(count: float) -> str:
    """Return a count with its thousands apart, or three digits of what is not whole.

    >>> count_text(1234567), count_text(12.3456), count_text(515.2)
    ('1,234,567', '12.3', '515')
    """
    if not isfinite(count):
        return UNKNOWN
    return f"{int(count):,}" if count == int(count) else _digits(count)


def plural(count: int, word: str) -> str:
    """Return how many there are of something.

    >>> plural(1, "process"), plural(0, "process"), plural(1234, "event"), plural(2, "batch")
    ('1 process', '0 processes', '1,234 events', '2 batches')
    """
    ending = "" if count == 1 else "es" if word.endswith(("s", "ch")) else "s"
    return f"{count_text(count)} {word}{ending}"


def rate_text(per_s: float | None) -> str:
    """Return a rate per second.

    >>> rate_text(1234.5), rate_text(12.345)
    ('1,230 /s', '12.3 /s')
    """
    return UNKNOWN if per_s is None else f"{_digits(per_s)} /s"


def speed_text(gb_per_s: float | None) -> str:
    """Return how fast bytes were moved.

    >>> speed_text(8.0612), speed_text(0.000562), speed_text(None)
    ('8.06 GB/s', '562 kB/s', '-')
    """
    return UNKNOWN if gb_per_s is None else f"{bytes_text(gb_per_s * 1e9)}/s"


def share_text(share: float | None, places: int = 1) -> str:
    """Return a share of 1 as per cent.

    Args:
        share: The share.
        places: How many digits may be behind the point; without any, a share of less than one per
            cent has one all the same.

    >>> [share_text(0.724), share_text(0.724, 0), share_text(0.004, 0), share_text(1)]
    ['72.4 %', '72 %', '0.4 %', '100 %']
    """
    if share is None:
        return UNKNOWN
    per_cent = float(share) * 100
    if not places and 0.05 <= abs(per_cent) < 0.95:
        places = 1
    return f"{_rounded(per_cent, places)} %"


def ratio_text(ratio: float | None) -> str:
    """Return a ratio.

    >>> ratio_text(0.333), ratio_text(1.9), ratio_text(12.345)
    ('0.33x', '1.90x', '12.3x')
    """
    if ratio is None:
        return UNKNOWN
    return f"{ratio:.2f}x" if abs(ratio) < 9.995 else f"{_digits(ratio)}x"


def hundredths(value: float) -> int | float:
    """Return a ratio, or its spread, in hundredths, rounded as it is shown.

    >>> hundredths(0.987), hundredths(1.005), hundredths(float("inf"))
    (99, 100, inf)
    """
    return round(100 * float(f"{value:.2f}")) if isfinite(value) else value


def spread_text(ratio: float | None, spread: float | None) -> str:
    """Return a ratio with how far it may be off.

    >>> spread_text(1.9, 0.049), spread_text(1.9, 0.0004), spread_text(1.9, None)
    ('1.90x ±0.05', '1.90x', '1.90x')
    >>> spread_text(1.26, 19.46)
    '1.26x ±19.5'
    """
    off = f" ±{ratio_text(spread).rstrip('x')}" if spread and hundredths(spread) else ""
    return f"{ratio_text(ratio)}{off}"


def ticks_of(duration_ns: float, most: int, first_ns: float = 0) -> list[tuple[int, str]]:
    """Return the ticks of an axis: how far from its start, and their labels, all in one unit.

    There are at least two, unless it is shorter than a nanosecond.

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
    begun = int(first_ns)
    end = begun + int(duration_ns)
    latest = max(abs(begun), abs(end))
    scale, unit = next((each for each in _TIMES if latest >= each[0]), _TIMES[-1])
    wanted = max(duration_ns, 1) / max(most, 1)
    while True:
        power = 10.0 ** floor(log10(wanted))
        step = next(power * each for each in (1, 2, 5, 10) if power * each >= wanted * 0.999)
        step = max(1, round(step))
        moments = range(-(-begun // step) * step, end + 1, step)
        if len(moments) > 1 or step == 1:
            return [(at - begun, f"{_exact(at, scale)} {unit}") for at in moments]
        wanted /= 2  # one tick says nothing about how long a part of the axis is


def _figure(value: float, units: Sequence[tuple[int, str]]) -> str:
    """Return three digits in the largest unit of which there is one."""
    # What is rounded to 1,000 of a unit is one of the next.
    scale, unit = next((each for each in units if abs(value) >= each[0] * 0.9995), units[-1])
    return f"{_digits(value / scale)} {unit}"


def _exact(time_ns: int, scale: int) -> str:
    """All digits of a moment, whatever is before its point: ticks may be close together."""
    sign = "-" if time_ns < 0 else ""
    whole, rest = divmod(abs(time_ns), scale)
    places = len(f"{scale}") - 1
    after = f"{rest:0{places}}".rstrip("0") if rest else ""
    return f"{sign}{whole}{'.' if after else ''}{after}"


def _digits(value: float) -> str:
    """Three digits, and thousands apart."""
    return _rounded(value, 2 - Decimal(float(value)).adjusted())


def _rounded(value: float, places: int) -> str:
    """Return a number with so many digits behind its point; halves go up, as in JavaScript.

    Args:
        value: The number; NumPy's count as well.
        places: How many digits; a number that has no exact ones before its point has three in all.
    """
    number = Decimal(float(value))  # which takes no number of NumPy's but float64
    if not number.is_finite():
        return UNKNOWN
    if abs(number) >= _INEXACT:
        places = 2 - number.adjusted()
    found = number.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
    return f"{found.normalize():,f}" if found else "0"


# --- names --------------------------------------------------------------------------------------


def short_label(label: str) -> str:
    """Return the name of an actor with the start of its id; other names are unchanged.

    >>> short_label("Actor(Encoder, 76ef0f6218d3672ed17af3cc01000000)"), short_label("process 7")
    ('Encoder 76ef0f62', 'process 7')
    """
    found = re.fullmatch(r"Actor\((.+), ([0-9a-f]{8})[0-9a-f]+\)", label)
    return label if found is None else f"{found[1]} {found[2]}"


def visible(text: str) -> str:
    r"""Return the text on one line, with the escape of every character that cannot be shown.

    >>> print(visible("a\nb\x00 ü"))
    a\nb\x00 ü
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable()
        else character.encode("unicode_escape", "surrogatepass").decode("ascii")
        for character in text
    )


def run_text(processes: Sequence[str]) -> str:
    """Return the ids of actors, or of their lanes, as text.

    >>> run_text(["a0", "a1", "a2", "a5"]), run_text(["a3.comm", "a4.comm"])
    ('a0 to a2, a5', 'a3.comm to a4.comm')
    """
    found = [match for each in processes if (match := ACTOR.fullmatch(each))]
    numbers = sorted({int(each[1]) for each in found})
    lane = (found[0] and found[0][2]) or ""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    if len(ranges) > _MOST_RANGES:
        return f"{len(numbers)} of a{numbers[0]}{lane} to a{numbers[-1]}{lane}"
    return ", ".join(
        f"a{low}{lane} to a{high}{lane}" if high > low else f"a{low}{lane}" for low, high in ranges
    )


def last_number(text: str) -> str:
    """Return the number that a text ends with, or "".

    >>> last_number("fwd 561"), last_number("1.94 ms")
    ('561', '')
    """
    found = re.search(rf"(?:{NUMBER.pattern})$", text)
    return found[0] if found else ""


def shown_text(text: str) -> str:
    r"""Return text of several lines with the escape of what cannot be shown; lines stay.

    >>> shown_text("a\nb\ud800")
    'a\nb\\ud800'
    """
    return "\n".join(map(visible, text.split("\n")))


def brief(name: str, most: int = _IN_HOVER) -> str:
    r"""Return a name on one line: visible, and both its ends if it is long.

    >>> brief("PrefillWorkerWithSpeculativeDecoding", 16)
    'PrefillW…ecoding'
    >>> print(brief("a\nb"))
    a\nb
    """
    name = visible(name)
    if len(name) <= most:
        return name
    first, last = most // 2, len(name) - (most - 1) // 2
    for found in NUMBER.finditer(name):  # a part of a number is another number
        begin, end = found.span()
        first = begin if begin < first < end else first
        last = end if begin < last < end else last
    return f"{name[:first]}{_ELLIPSIS}{name[max(first, last) :]}"


def wrapped(text: str, most: int, *, later: str = "") -> list[str]:
    """Return a text in lines of so many characters; a figure stays with its unit and its spread.

    Args:
        text: The text.
        most: How many characters a line may have; a longer word has a line of its own.
        later: What all lines but the first begin with.

    >>> wrapped("it gives 1.90x \N{PLUS-MINUS SIGN}0.05 and 12 ms", 18, later="  ")
    ['it gives', '  1.90x \N{PLUS-MINUS SIGN}0.05 and', '  12 ms']
    """
    joined = _WITH_FIGURE.sub("\N{NO-BREAK SPACE}", text)
    lines = wrap(joined, most, subsequent_indent=later, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


# --- tables -------------------------------------------------------------------------------------


def cut(rows: Sequence[_Row], gap: Callable[[int], _Row], most: int = 2 * _ENDS) -> list[_Row]:
    """Return all rows, or those at both ends with a row between them for those left out."""
    if len(rows) <= most + 1:
        return list(rows)
    half = most // 2
    return [*rows[:half], gap(len(rows) - 2 * half), *rows[len(rows) - half :]]


def stated(title: str, state: str) -> str:
    """Return a title with the state of what it is of, if that is worth a word.

    >>> stated("pipeline (87752519)", ""), stated("Schedule", "torn down")
    ('pipeline (87752519)', 'Schedule: torn down')
    """
    return f"{title}: {state}" if state else title


def graph_title(name: str, graph_id: str) -> str:
    """Return what views call a graph: its name, if it has one, and the beginning of its id.

    >>> graph_title("pipeline", "87752519aa"), graph_title("", "87752519aa")
    ('pipeline (87752519)', 'CompiledDAG(87752519)')
    """
    return f"{name or 'CompiledDAG'}{' ' * bool(name)}({graph_id[:8]})"
