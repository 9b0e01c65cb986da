# SPDX-License-Identifier: Apache-2.0
"""How things of rcg show themselves in a notebook: as text and, if it has any, as a picture.

Plans and traces are shown, too, and they stand below the views; and a program that only runs must
not load what draws. So what is shown asks for its pictures by name, when it is shown and not
before: the one place that looks upward.
"""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

__all__ = ["Displayed", "shown_text", "visible"]


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
    _shown_in: ClassVar[str] = "rcg.views.bundle"

    def _shown(self) -> tuple[Any, ...]:
        return (self,)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        show = getattr(importlib.import_module(self._shown_in), self._shown_by)
        bundle: dict[str, str] = show(*self._shown())
        return bundle
