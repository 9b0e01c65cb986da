# SPDX-License-Identifier: Apache-2.0
"""The width of text in pictures, and shortening it.

No font is available where a picture is made, so widths come from a table for DejaVu Sans, which is
wider than most other fonts. So text may be narrower than its box, but not wider.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from rcg.text import NUMBER, last_number

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
_ROUNDING: Final = 1e-6
_WORD: Final = re.compile(rf"\ba\d+|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|{NUMBER.pattern}")
_MOST: Final = 0.6  # of what a cut between any two characters keeps


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

    Both are kept, because similar names often differ in their ends. It is cut between words if that
    keeps most of it. A number is never cut: it is left out, or, at the end of the text, shown
    alone.

    >>> shorten("forward", 1000, 12)
    'forward'
    >>> shorten("PrefillWorkerWithSpeculativeDecoding", 120, 12), shorten("forward", 40, 12)
    ('Prefill…Decoding', 'fo…rd')
    >>> shorten("execution 561", 30, 12), shorten("execution 561", 50, 12)
    ('561', 'ex…561')
    """
    if width_of(text, size, bold=bold, monospace=monospace) <= room:
        return text
    scale = size * (_BOLD if bold else 1.0)
    ends = [0.0, *accumulate(scale * _width_of(each, monospace) for each in text)]
    number = last_number(text)
    if ends[-1] - ends[-1 - len(number)] > room:
        number = ""
    spare = room - width_of(_ELLIPSIS, size, bold=bold, monospace=monospace) - _ROUNDING

    def cuts(firsts: Iterable[int], lasts: Sequence[int]) -> list[tuple[int, int]]:
        """Return where the kept beginning ends and the kept end begins: the most that fits."""
        lasts = [at for at in lasts if at <= len(text) - len(number)]
        found = []
        for first in firsts:
            at = bisect_left(lasts, ends[-1] - spare + ends[first], key=ends.__getitem__)
            if ends[first] <= spare and at < len(lasts):
                found.append((first, lasts[at]))
        return found

    inner = {at for each in NUMBER.finditer(text) for at in range(each.start() + 1, each.end())}
    places = [at for at in range(len(text) + 1) if at not in inner]
    found = cuts(places, places)
    if not found:
        return number or _ELLIPSIS

    best = max(found, key=lambda cut: (min(cut[0], len(text) - cut[1]), cut[0] - cut[1]))
    words = list(_WORD.finditer(text))
    between = cuts([each.end() for each in words], [*(each.start() for each in words), len(text)])
    least = _MOST * (best[0] - best[1] + len(text)) - len(text)
    clean = [cut for cut in between if cut[0] - cut[1] >= least]
    # Rather both ends than one, and rather more of the beginning.
    first, last = max(
        clean, key=lambda cut: (cut[1] < len(text), 2 * cut[0] - cut[1]), default=best
    )
    # Of an actor and its class rather the actor alone than the end of the class.
    name = text[: text.rfind(" (")] if text.endswith(")") else ""
    if name and first <= len(name) + 1 < last and ends[len(name)] <= room:
        return name
    return text[:first] + _ELLIPSIS + text[last:]
