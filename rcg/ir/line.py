# SPDX-License-Identifier: Apache-2.0
"""One line of a plan's text, read from left to right.

This room must know neither what lines there are nor what is in them.

>>> line = Line("Read c3 -> s1")
>>> line.take("word"), line.take("channel")
('Read', 'c3')
>>> line.expect("->")
>>> line.slot()
1
>>> line.end()
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Final, NoReturn, cast

from rcg.ir.ids import IDS, PLAIN_NAME

_PATTERNS: Final[Mapping[str, re.Pattern[str]]] = {
    **IDS,
    "word": re.compile(r"[a-zA-Z]+"),
    "number": re.compile(r"-?\d+", re.ASCII),
    "slot": re.compile(r"s(\d+)", re.ASCII),
    "name": PLAIN_NAME,
    "quoted": re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""),
    "names": re.compile(r"""\[(?:[^\]'"]|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")*\]"""),
}


def name_text(name: str) -> str:
    """Return a user's name as it is where it is a plain one, quoted where it is not."""
    return name if PLAIN_NAME.fullmatch(name) else repr(name)


class Line:
    """A line and how far it has been read. Every method raises ValueError where it cannot go on."""

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        self._at = 0

    def skip(self, literal: str) -> bool:
        """Pass over blanks and then the literal, if it is there; return whether it was."""
        start = self._at
        while self.text.startswith(" ", start):
            start += 1
        if not self.text.startswith(literal, start):
            return False
        self._at = start + len(literal)
        return True

    def is_before(self, literal: str) -> bool:
        """Return whether the literal comes next, after blanks."""
        start = self._at
        is_there = self.skip(literal)
        self._at = start
        return is_there

    def expect(self, literal: str) -> None:
        """Pass over blanks and then the literal."""
        if not self.skip(literal):
            self._refuse(repr(literal))

    def try_take(self, sort: str) -> str | None:
        """Take a token of a sort, if one comes next."""
        self.skip("")
        match = _PATTERNS[sort].match(self.text, self._at)
        if match is None:
            return None
        self._at = match.end()
        return match[match.lastindex or 0]

    def take(self, sort: str) -> str:
        """Take a token of a sort: ``word``, ``quoted``, or a key of ``IDS``."""
        found = self.try_take(sort)
        if found is None:
            self._refuse(f"a {sort}")
        return found

    def number(self) -> int:
        """Take a whole number."""
        return int(self.take("number"))

    def slot(self) -> int:
        """Take a slot, ``s3``."""
        return int(self.take("slot"))

    def string(self) -> str:
        """Take a quoted string."""
        return cast("str", ast.literal_eval(self.take("quoted")))

    def strings(self) -> tuple[str, ...]:
        """Take a list of quoted strings in brackets."""
        found = ast.literal_eval(self.take("names"))
        if not all(isinstance(each, str) for each in found):
            raise ValueError("a list of quoted strings was expected")
        return tuple(found)

    def name(self) -> str:
        """Take a plain or a quoted name."""
        return self.try_take("name") or self.string()

    def try_keyword(self) -> str | None:
        """Take a name and the ``=`` after it, if both come next."""
        start = self._at
        name = self.try_take("name")
        if name is None and self.try_take("quoted") is not None:
            self._at = start
            name = self.string()
        if name is None or not self.skip("="):
            self._at = start
            return None
        return name

    def tokens(self, sort: str) -> tuple[str, ...]:
        """Take any number of tokens of a sort, with blanks between."""
        found = []
        while (token := self.try_take(sort)) is not None:
            found.append(token)
        return tuple(found)

    def end(self) -> None:
        """Pass over blanks to the end of the line."""
        self.skip("")
        if self._at != len(self.text):
            self._refuse("the end of the line")

    def _refuse(self, wanted: str) -> NoReturn:
        raise ValueError(f"expected {wanted} at column {self._at + 1} of {self.text!r}")
