# SPDX-License-Identifier: Apache-2.0
"""How things of rcg show themselves in a notebook: the one hook between them and the views.

Plans, traces and compiled graphs stand below the views, and a process that only executes must not
load what draws. So a thing asks this hook when it is shown. What answers is decided in one place,
the face of the package (``rcg/__init__.py``); this room must not know it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

__all__ = [
    "Displayed",
    "Mimebundle",
    "Views",
    "draw_with",
    "last_number",
    "shown_text",
    "views",
    "visible",
    "whole_numbers",
]

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


Mimebundle = dict[str, str]
"""What a notebook shows of a thing: text and, if there is a picture, HTML without a script."""


class Views(Protocol):
    """What the views do for the rooms below them."""

    def mimebundle(self, thing: object) -> Mimebundle:
        """Return what is shown of a thing whose type the views know."""
        ...

    def plan(self, plan: Any, *, text: str, title: str, actor_ids: Mapping[str, str]) -> Mimebundle:
        """Return what is shown of a plan that runs.

        Args:
            plan: The plan.
            text: What is shown where there are no pictures.
            title: What stands above its picture.
            actor_ids: Ray's ids of the actors, by their ids in the plan.
        """
        ...

    def reports(self, reports: Iterable[Any], text: str) -> Mimebundle:
        """Return what is shown of reports: a table of each beside their text."""
        ...

    def visualize(
        self,
        plan: Any,
        actor_ids: Mapping[str, str],
        *,
        filename: str | os.PathLike[str],
        format: str | None,
        view: bool,
        channel_details: bool,
        legend: bool,
        title: str,
        dark: bool | None,
    ) -> str:
        """Write a picture of a plan to a file; see ``CompiledDAG.visualize``."""
        ...


_load: Callable[[], Views] | None = None


def draw_with(load: Callable[[], Views]) -> None:
    """Say what loads the views; called once, by the face of the package.

    Args:
        load: Returns the views; called whenever something is drawn.
    """
    global _load
    _load = load


def views() -> Views:
    """Return the views, which are loaded now if they were not.

    Raises:
        LookupError: The face has not said what loads them.
    """
    if _load is None:
        raise LookupError("nothing draws: `import rcg` says what does")
    return _load()


class Displayed:
    """What a notebook shows as text and as static HTML, which needs no script."""

    __slots__ = ()

    def _mimebundle(self, views: Views) -> Mimebundle:
        return views.mimebundle(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Mimebundle:
        return self._mimebundle(views())
