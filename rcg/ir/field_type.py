# SPDX-License-Identifier: Apache-2.0
"""The type of a field: how one sort of value is written, read, stored and checked.

This room must know neither which types there are nor which records have them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, Final, Generic, NoReturn, TypeVar

import rcg.checked as checked
from rcg.ir.line import Line

_T = TypeVar("_T")

_LARGEST: Final = 1 << 53
_LONGEST: Final = 100_000


class Use(Enum):
    """What an op does with the slots or channels that a field names."""

    IN = "in"
    """It takes a value from them."""

    OUT = "out"
    """It gives a value to them."""


class FieldType(ABC, Generic[_T]):
    """How one sort of value is written, read and checked.

    Attributes:
        what: The sort for messages: ``id of a channel``.
        use: What an op does with the slots or channels in the value; None if it names neither.
        is_subject: Whether the value is part of an op's displayed name: ``read c3``.
    """

    def __init__(self, what: str, use: Use | None = None, *, is_subject: bool = False) -> None:
        self.what = what
        self.use = use
        self.is_subject = is_subject

    @abstractmethod
    def text(self, value: _T) -> str:
        """Return the value in the text form."""

    @abstractmethod
    def parse(self, line: Line) -> _T:
        """Read the value from the text form.

        Raises:
            ValueError: It is not there.
        """

    def data(self, value: _T) -> object:
        """Return the value as JSON has it."""
        return value

    @abstractmethod
    def value(self, data: object) -> _T:
        """Return the value that was stored as JSON, checked.

        Raises:
            ValueError: It is of another type, or out of range.
        """

    def slots(self, value: _T) -> tuple[int, ...]:
        """Return the slots that the value names."""
        return ()

    def channels(self, value: _T) -> tuple[str, ...]:
        """Return the channels that the value names."""
        return ()

    def constants(self, value: _T) -> tuple[str, ...]:
        """Return the constants and templates that the value names."""
        return ()

    def subject(self, value: _T) -> str:
        """Return the value as a part of an op's name for people; it may be empty."""
        return self.text(value)


class ListType(FieldType[tuple[_T, ...]]):
    """Values of one sort between commas. Several fields may share one list (``rcg.ir.record``)."""

    @abstractmethod
    def items(self, value: tuple[_T, ...]) -> list[str]:
        """Return the text of each value."""

    @abstractmethod
    def try_item(self, line: Line) -> _T | None:
        """Read one value; None if what comes next is of another sort."""

    def text(self, value: tuple[_T, ...]) -> str:
        """Return the values between commas."""
        return ", ".join(self.items(value))

    def parse(self, line: Line) -> tuple[_T, ...]:
        """Read one value or more."""
        found = []
        while (item := self.try_item(line)) is not None:
            found.append(item)
            if not line.skip(","):
                break
        return tuple(found)


def refuse(what: str, value: object) -> NoReturn:
    """Raise the ValueError for a value of another sort."""
    raise ValueError(f"not a plan: {checked.found(value)} is no {what}")


def stored_number(what: str, value: object) -> int:
    """Return a value from JSON that must be a whole number."""
    if isinstance(value, bool) or not isinstance(value, int) or not -_LARGEST <= value <= _LARGEST:
        refuse(what, value)
    return value


def stored_text(what: str, value: object) -> str:
    """Return a value from JSON that must be a text."""
    if not isinstance(value, str) or len(value) > _LONGEST:
        refuse(what, value)
    return value


def stored_list(what: str, value: object) -> list[Any]:
    """Return a value from JSON that must be a list."""
    if not isinstance(value, list):
        refuse(f"list of {what}", value)
    return value
