# SPDX-License-Identifier: Apache-2.0
"""How things of rcg show themselves in a notebook: as text and, if it has any, as a picture.

Plans and traces are shown, too, and they stand below the views; and a program that only runs must
not load what draws. So what is shown asks for its pictures by name, when it is shown and not
before: the one place that looks upward.
"""

from __future__ import annotations

import importlib
import re
from typing import Any, ClassVar, Final

__all__ = ["Displayed", "last_number", "shown_text", "visible", "whole_numbers"]

# A number as it is shown: with thousands apart, or a point.
_NUMBER: Final = re.compile(r"\d+(?:[.,]\d+)*")


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


def whole_numbers(text: str, first: int, last: int) -> tuple[int, int]:
    """Return where to cut a text so that no number is: a part of one is another number.

    Args:
        text: What is cut.
        first: How many of its first characters are kept.
        last: From which on they are kept as well.

    >>> first, last = whole_numbers("execution 561", 3, 12)
    >>> "execution 561"[:first], "execution 561"[last:]
    ('exe', '')
    """
    for found in _NUMBER.finditer(text):
        if found.start() < first < found.end():
            first = found.start()
        if found.start() < last < found.end():
            last = found.end()
    return first, max(first, last)


def last_number(text: str) -> str:
    """Return the number that a text ends with, or "".

    >>> last_number("fwd 561"), last_number("1.94 ms")
    ('561', '')
    """
    found = re.search(rf"(?:{_NUMBER.pattern})$", text)
    return found[0] if found else ""


def shown_text(text: str) -> str:
    r"""Return text of several lines with the escape of what cannot be shown; lines stay.

    >>> shown_text("a\nb\ud800")
    'a\nb\\ud800'
    """
    return "\n".join(map(visible, text.split("\n")))


class Displayed:
    """What a notebook shows as text and as static HTML, which needs no script.

    A class names the function that shows it, and the room of the views that this is in, and gives
    its arguments.
    """

    __slots__ = ()

    _shown_by: ClassVar[str]
    _shown_in: ClassVar[str] = "rcg.views.html.mimebundle"

    def _shown(self) -> tuple[Any, ...]:
        return (self,)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        show = getattr(importlib.import_module(self._shown_in), self._shown_by)
        bundle: dict[str, str] = show(*self._shown())
        return bundle
