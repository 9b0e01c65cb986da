# SPDX-License-Identifier: Apache-2.0
"""Messages as JSON, and JSON as messages: the types of a message's fields say what is checked.

A message is a frozen dataclass that ``message`` has registered. Its JSON is an object with the name
of the class as ``type``, and one key per field. ``encode`` and ``decode`` check every field by its
type, so code that receives a message can rely on it. A message may come from any process of the
same user: a wrong message raises a ValueError.

A field is a text (``str``), a truth (``bool``), a whole number within a range
(``Annotated[int, range(...)]``), some bytes (``bytes``, in base64), or a tuple of texts, truths,
numbers (``tuple[str, ...]``) or of such tuples.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import (
    Annotated,
    Any,
    Final,
    NamedTuple,
    TypeVar,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)


class Message:
    """The base class of all messages."""

    __slots__ = ()


_M = TypeVar("_M", bound=Message)
_Check = Callable[[object], Any]

# Made once: `json.loads` and `json.dumps` look for more than a message may have.
_read: Final = json.JSONDecoder().raw_decode
_written: Final = json.JSONEncoder().encode


class _Kind(NamedTuple):
    """One class of messages for the codec: its name in JSON, and its fields' checks."""

    cls: type[Message]
    name: str
    checks: dict[str, _Check]


_by_name: Final[dict[str, _Kind]] = {}
_by_class: Final[dict[type[Message], _Kind]] = {}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def message(cls: type[_M]) -> type[_M]:
    """Make a class a frozen dataclass that ``encode`` and ``decode`` know.

    Raises:
        TypeError: A field has a type that the codec does not know.
    """
    made: Any = dataclass(frozen=True, slots=True, kw_only=True)(cls)
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()
    hints = get_type_hints(made, include_extras=True)
    kind = _Kind(made, name, {field.name: _check_of(hints[field.name]) for field in fields(made)})
    if _by_name.setdefault(name, kind) is not kind:
        raise TypeError(f"there are two messages of the name {name!r}")
    _by_class[made] = kind
    return cast("type[_M]", made)


def encode(message: Message) -> bytes:
    """Return the JSON of a message; raises ValueError for a value that its type does not allow."""
    kind = _by_class[type(message)]
    found = _check_fields(kind, {name: getattr(message, name) for name in kind.checks})
    fields = [f', "{name}": {_text_of(value)}' for name, value in found.items()]
    return f'{{"type": "{kind.name}"{"".join(fields)}}}'.encode()


def _text_of(value: Any) -> str:
    if type(value) is int:
        return str(value)
    return _written(base64.b64encode(value).decode() if type(value) is bytes else value)


def decode(data: bytes) -> Message:
    """Return the message in a JSON text.

    Raises:
        ValueError: It is not a message: wrong JSON, an unknown type, or a field that is missing,
            surplus, of a wrong type or out of range.
    """
    try:
        text = data.decode()
        found, end = _read(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or end < len(text):
        raise ValueError("this is not a message of rcg")
    name = found.pop("type", None)
    kind = _by_name.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError("the type of a message is unknown")
    if found.keys() != kind.checks.keys():
        expected = ", ".join(kind.checks) or "none"
        raise ValueError(f"the fields of a message {kind.name!r} must be: {expected}")
    return kind.cls(**_check_fields(kind, found))


def _check_fields(kind: _Kind, found: dict[str, Any]) -> dict[str, Any]:
    """Return the fields as a message holds them."""
    name = ""
    try:
        for name, check in kind.checks.items():
            found[name] = check(found[name])
        return found
    except ValueError as problem:
        raise ValueError(f"{name!r} of a message {kind.name!r} {problem}") from None


def _check_of(hint: Any) -> _Check:
    """Return the check of a field of this type."""
    arguments = get_args(hint)
    if hint is str:
        return _text
    if hint is bool:
        return _truth
    if hint is bytes:
        return _bytes
    if get_origin(hint) is Annotated and arguments[0] is int and isinstance(arguments[1], range):
        return _number_within(arguments[1])
    if get_origin(hint) is tuple and arguments[1:] == (...,):
        return _items_that(_check_of(arguments[0]))
    raise TypeError(f"a message cannot have a field of the type {hint}")


def _text(found: object) -> str:
    """Return a text; what cannot be encoded or printed is replaced."""
    if not isinstance(found, str):
        raise ValueError("must be a text")
    if found.isascii() and "\0" not in found:
        return found
    return found.encode("utf-8", "replace").decode().replace("\0", "\\0")


def _truth(found: object) -> bool:
    if not isinstance(found, bool):
        raise ValueError("must be true or false")
    return found


def _bytes(found: object) -> bytes:
    """Return bytes, or those of a text in base64."""
    if isinstance(found, bytes):
        return found
    if not isinstance(found, str):
        raise ValueError("must be bytes in base64")
    try:
        return base64.b64decode(found, validate=True)
    except ValueError:
        raise ValueError("must be bytes in base64") from None


def _number_within(allowed: range) -> _Check:
    first, last = allowed[0], allowed[-1]

    def check(found: object) -> int:
        if type(found) is not int or not first <= found <= last:
            raise ValueError(f"must be a number from {first} to {last}")
        return found

    return check


def _items_that(check: _Check) -> _Check:
    def check_all(found: object) -> tuple[Any, ...]:
        if not isinstance(found, (list, tuple)):
            raise ValueError("must be a list")
        return tuple(map(check, found))

    return check_all
