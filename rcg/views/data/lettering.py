# SPDX-License-Identifier: Apache-2.0
"""The width of text in pictures, and shortening it.

No font is available where a picture is made, so widths come from a table for DejaVu Sans, which is
wider than most other fonts. So text may be narrower than its box, but not wider.
"""

from __future__ import annotations

import unicodedata
from typing import Final

from rcg.text import last_number, whole_numbers

TITLE, SIZE, SMALL = 15.0, 12.0, 11.5
"""Sizes of fonts."""

DOT: Final = "\N{MIDDLE DOT}"

# Thousandths of the font's size, rounded up.
_WIDTHS: Final = (
    (280, "ijl'"),
    (320, " ,.IJ"),
    (340, "\\/:;|"),
    (375, "-"),
    (415, "rft()[]!"),
    (460, '"'),
    (500, "*_`"),
    (535, "sz?"),
    (560, "cL"),
    (615, "kvxyYaTFP"),
    (640, "eSbdghnopqu0123456789$E{}"),
    (700, "ABCRVKXZ"),
    (790, "GHNUDQO&"),
    (840, "+<=>#^~w"),
    (870, "M"),
    (990, "m%W"),
    (1000, "@"),
)
_WIDTH_OF: Final = {each: width / 1000 for width, group in _WIDTHS for each in group}
_OTHER_WIDTH: Final = 0.85
_WIDE_WIDTH: Final = 1.3  # the widest emoji; CJK is 1 em
_MONOSPACE_WIDTH: Final = 0.61
_BOLD: Final = 1.13
_ELLIPSIS: Final = "\N{HORIZONTAL ELLIPSIS}"


def width_of(text: str, size: float, *, bold: bool = False, monospace: bool = False) -> float:
    """Return the largest width of a line of text, in the unit of the font's size."""
    return size * (_BOLD if bold else 1.0) * sum(_width_of(each, monospace) for each in text)


def _width_of(character: str, monospace: bool) -> float:
    if unicodedata.east_asian_width(character) in "WF":
        return _WIDE_WIDTH
    if monospace:
        # Characters that the font lacks come from another font, which may not be monospaced.
        return _MONOSPACE_WIDTH if character.isascii() else _OTHER_WIDTH
    return _WIDTH_OF.get(character, _OTHER_WIDTH)


def shorten(
    text: str, room: float, size: float, *, bold: bool = False, monospace: bool = False
) -> str:
    """Return the text, or as much of its beginning and end as fits, with an ellipsis between.

    Both are kept, because similar names often differ in their ends. A number is never cut: it is
    left out, or, at the end of the text, shown alone.

    >>> shorten("forward", 1000, 12)
    'forward'
    >>> shorten("PrefillWorkerWithSpeculativeDecoding", 120, 12)
    'PrefillW…Decoding'
    >>> shorten("execution 561", 30, 12), shorten("execution 561", 50, 12)
    ('561', 'ex…561')
    """
    if width_of(text, size, bold=bold, monospace=monospace) <= room:
        return text
    widths = [width_of(each, size, bold=bold, monospace=monospace) for each in text]
    whole = room
    room -= width_of(_ELLIPSIS, size, bold=bold, monospace=monospace)
    first, last = 0, len(text)
    while first < last:
        is_front = first <= len(text) - last
        room -= widths[first if is_front else last - 1]
        if room < 0:
            break
        if is_front:
            first += 1
        else:
            last -= 1
    kept = whole_numbers(text, first, last)
    number = last_number(text)
    if number and kept[1] > len(text) - len(number):
        # The number does not fit together with both ends: keep a shorter beginning, or it alone.
        before = [
            each
            for each in range(len(text) - len(number))
            if whole_numbers(text, each, len(text))[0] == each
        ]
        for first in reversed(before):
            shown = f"{text[:first]}{_ELLIPSIS}{number}"
            if width_of(shown, size, bold=bold, monospace=monospace) <= whole:
                return shown
        if width_of(number, size, bold=bold, monospace=monospace) <= whole:
            return number
    return text[: kept[0]] + _ELLIPSIS + text[kept[1] :]
