# SPDX-License-Identifier: Apache-2.0
"""Records of a plan that print as a line and travel as JSON, from what their fields declare.

A record is a frozen dataclass. Its fields are annotated with their types (``rcg.ir.fields``), and
``form`` says how they stand in a line: names of fields in braces, and what is between them. From
these follow the text, its parser, the JSON and its checks:

>>> from rcg.ir.ops import Build
>>> Build.form, list(Build.types)
('{template}({slots}) -> {out}', ['template', 'slots', 'out'])
>>> build = Build("k1", (2, 3), 4)
>>> print(build)
Build k1(s2, s3) -> s4
>>> Build.parse(Line("k1(s2, s3) -> s4")) == build
True
>>> Build.from_data({"template": "k1", "slots": [2, 3], "out": 4}) == build
True

Several fields in one pair of braces share a list: ``{args, kwargs}``. The last that knows an item
takes it. This room must know neither which records there are nor what they mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, ClassVar, Self, get_type_hints

import rcg.checked as checked
from rcg.ir.fields import FieldType, ListType, refuse
from rcg.ir.line import Line

_Fields = tuple[tuple[str, FieldType[Any]], ...]
_Piece = str | _Fields
"""A part of a form: text, or the fields in one pair of braces."""


class Record:
    """What has declared fields and is one line of a plan's text.

    Attributes:
        keyword: The word that its line begins with; without it, the name of the class.
        form: What follows the keyword, with the names of fields in braces.
        types: The type of each field, in the order of the class.
    """

    __slots__ = ()

    keyword: ClassVar[str]
    form: ClassVar[str]
    types: ClassVar[dict[str, FieldType[Any]]]
    _pieces: ClassVar[tuple[_Piece, ...]]

    def __init_subclass__(cls) -> None:
        cls.types = {
            name: declared
            for name, hint in get_type_hints(cls, include_extras=True).items()
            for declared in getattr(hint, "__metadata__", ())
        }
        if cls.types:
            cls.keyword = cls.__dict__.get("keyword", cls.__name__)
            cls._pieces = tuple(
                [
                    text or tuple([(name, cls.types[name]) for name in names.split(", ")])
                    for text, names in re.findall(r"([^{}]+)|\{([^{}]+)\}", cls.form)
                ]
            )

    # Text

    def __str__(self) -> str:
        shown = ""
        for piece in self._pieces:
            if isinstance(piece, str):
                shown += piece
            else:
                texts = [declared.text(getattr(self, name)) for name, declared in piece]
                shown += ", ".join(filter(None, texts))
        return f"{self.keyword} {shown.lstrip()}"  # the first field may be empty

    @classmethod
    def parse(cls, line: Line) -> Self:
        """Read what follows the keyword in a line.

        Raises:
            ValueError: The line is of another form.
        """
        values: dict[str, Any] = {}
        for position, piece in enumerate(cls._pieces):
            if isinstance(piece, str):
                line.expect(piece.strip())
            elif len(piece) == 1:
                ((name, declared),) = piece
                values[name] = declared.parse(line)
            else:
                values |= _parse_list(line, piece, str(cls._pieces[position + 1]).strip())
        make: Callable[..., Self] = cls
        return make(**values)

    # JSON

    def to_data(self) -> dict[str, object]:
        """Return the fields as JSON has them; those that have their default are left out."""
        return {
            each.name: self.types[each.name].data(getattr(self, each.name))
            for each in fields(self)  # type: ignore[arg-type]
            if each.default is MISSING or getattr(self, each.name) != each.default
        }

    @classmethod
    def from_data(cls, data: object) -> Self:
        """Return the record that was stored as JSON, every field checked.

        Raises:
            ValueError: A field is missing, is not one of the record's, or has a wrong value.
        """
        if not isinstance(data, dict):
            refuse(cls.keyword, data)
        for name in data:
            if name not in cls.types:
                raise ValueError(f"not a plan: {cls.keyword} has no {checked.found(name)}")
        values: dict[str, Any] = {}
        for each in fields(cls):  # type: ignore[arg-type]
            if each.name in data:
                values[each.name] = cls.types[each.name].value(data[each.name])
            elif each.default is MISSING:
                raise ValueError(f"not a plan: {cls.keyword} without {each.name!r}")
        make: Callable[..., Self] = cls
        return make(**values)


def _parse_list(line: Line, fields: _Fields, end: str) -> dict[str, tuple[Any, ...]]:
    """Read the list that several fields share, up to the text behind it."""
    found: dict[str, list[Any]] = {name: [] for name, _ in fields}
    while not line.is_before(end):
        if any(found.values()):
            line.expect(",")
        for name, declared in reversed(fields):
            item = declared.try_item(line) if isinstance(declared, ListType) else None
            if item is not None:
                found[name].append(item)
                break
    return {name: tuple(items) for name, items in found.items()}
