# SPDX-License-Identifier: Apache-2.0
"""Untrusted JSON: parsed within limits, and read with checks.

``parse`` accepts only strict JSON: no NaN, no key twice, no number beyond 64 bits, and a limited
number of values. Each of the other functions returns one value of the required type. Every error is
a ValueError whose text names the place and the value found there.

>>> head = parse('{"pid": 7, "name": "a"}')
>>> integer(head, "pid", 0, 99), text(head, "name")
(7, 'a')
>>> integer(head, "name", 0, 99)
Traceback (most recent call last):
    ...
ValueError: `name` must be a whole number from 0 to 99, found 'a'
"""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

from rcg.text import visible

_MAX_VALUES: Final = 2_000_000
"""A value takes up to 72 bytes, so this is the memory that a text of a few megabytes may take."""

_MAX_TEXT_CHARS: Final = 100_000
_MAX_ITEMS: Final = 1_000_000
_MAX_QUOTED_CHARS: Final = 40
_MAX_INTEGER: Final = 1 << 63

Record = dict[str, Any]


def parse(stored: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: It is no JSON, is nested too deep, has a key twice, or holds more values or
            larger numbers than anything here has.
    """
    comma, opened = (",", ("[", "{")) if isinstance(stored, str) else (b",", (b"[", b"{"))
    count = stored.count(comma) + sum(map(stored.count, opened))  # type: ignore[arg-type]
    if count > _MAX_VALUES:
        raise ValueError(f"the JSON holds {count:,} values, at most {_MAX_VALUES:,} are read")
    try:
        return json.loads(
            stored,
            parse_constant=_no_number,
            parse_int=_whole,
            parse_float=_float,
            object_pairs_hook=_without_doubles,
        )
    except RecursionError:
        raise ValueError("the JSON is nested too deep") from None


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"the JSON holds {word}, which is not a number")


def _whole(digits: str) -> int:
    # Longer ones are not converted, which takes time that grows with the square of their length.
    if len(digits) > 20 or not -_MAX_INTEGER <= int(digits) < 2 * _MAX_INTEGER:
        raise ValueError(f"the JSON holds a number of {len(digits)} digits")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError("the JSON holds a number that is too large")
    return value


def _without_doubles(pairs: list[tuple[str, Any]]) -> Record:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("the JSON holds a key twice")
    return made


def found(value: object) -> str:
    """Return a wrong value as text, short enough for a message."""
    match value:
        case None | bool() | int() | float():
            return repr(value)
        case str():
            is_long = len(value) > _MAX_QUOTED_CHARS
            return f"'{visible(value[:_MAX_QUOTED_CHARS])}{'...' if is_long else ''}'"
        case list():
            return f"a list of {len(value):,}"
        case dict():
            return f"an object of {len(value):,}"
        case _:
            return type(value).__name__


def record(value: object, where: str) -> Record:
    """Return an object."""
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be an object, found {found(value)}")
    return value


def _of(held: Record, key: str) -> Any:
    if key not in held:
        raise ValueError(f"`{key}` is missing")
    return held[key]


def integer(held: Record, key: str, least: int, most: int) -> int:
    """Return a whole number of an object, within bounds."""
    return whole(_of(held, key), f"`{key}`", least, most)


def whole(value: object, where: str, least: int, most: int) -> int:
    """Return a whole number, within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(
            f"{where} must be a whole number from {least} to {most}, found {found(value)}"
        )
    return value


def text(held: Record, key: str, most: int = _MAX_TEXT_CHARS) -> str:
    """Return a string of an object, of at most so many characters."""
    return _text(_of(held, key), f"`{key}`", most)


def _text(value: object, where: str, most: int = _MAX_TEXT_CHARS) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where} must be a text, found {found(value)}")
    if len(value) > most:
        raise ValueError(f"{where} is a text of {len(value):,} characters, more than {most:,}")
    return value


def items(held: Record, key: str, most: int = _MAX_ITEMS) -> list[Any]:
    """Return a list of an object."""
    value = _of(held, key)
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"`{key}` must be a list of at most {most:,}, found {found(value)}")
    return value


def texts(held: Record, key: str, most: int = _MAX_ITEMS) -> tuple[str, ...]:
    """Return a list of strings of an object."""
    return tuple(_text(each, f"each of `{key}`") for each in items(held, key, most))
