# SPDX-License-Identifier: Apache-2.0
"""Messages as bytes, and bytes as messages: the types of a message's fields say what is checked.

A message is a frozen dataclass that ``message`` has registered. It travels as JSON: an object with
the name of the class as ``type``, and one key per field. ``encode`` and ``decode`` check every
field by its type, so code that receives a message can rely on it. A message may come from any
process of the same user: a wrong message raises a ValueError.

A field is a text (``str``), a truth (``bool``), a whole number within a range
(``Annotated[int, range(...)]``), or a tuple of one of these (``tuple[str, ...]``).

A message that is sent so often that JSON would be most of its cost has a *tag*, and travels packed:
a byte that is the tag, its numbers, the lengths of its texts, the texts. Packing and unpacking the
question for a tensor and its answer takes 2 us instead of 14, and with cold caches thrice that.
"""

from __future__ import annotations

import json
import re
import struct
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
    overload,
)

__all__ = ["Message", "decode", "encode", "message", "pack", "unpack"]


class Message:
    """The base class of all messages."""

    __slots__ = ()


_M = TypeVar("_M", bound=Message)
_Check = Callable[[object], Any]


class _Kind(NamedTuple):
    """One class of messages for the codec: its name in JSON, and its fields' checks."""

    cls: type[Message]
    name: str
    checks: dict[str, _Check]


class _Layout(NamedTuple):
    """How a message is packed.

    Attributes:
        kind: Its class.
        tag: Its tag.
        head: The tag, the numbers and the lengths of the texts.
        numbers: The fields that are numbers.
        texts: The fields that are texts.
    """

    kind: _Kind
    tag: int
    head: struct.Struct
    numbers: tuple[str, ...]
    texts: tuple[str, ...]


_TAGS: Final = range(1, 32)  # no JSON begins with these
_BODY: Final = b"\0"  # after JSON, which has none

_by_name: Final[dict[str, _Kind]] = {}
_by_class: Final[dict[type[Message], _Kind]] = {}
_packed: Final[dict[type[Message], _Layout]] = {}
_by_tag: Final[dict[int, _Layout]] = {}


@overload
def message(cls: type[_M]) -> type[_M]: ...
@overload
def message(*, tag: int) -> Callable[[type[_M]], type[_M]]: ...
@dataclass_transform(frozen_default=True, kw_only_default=True)
def message(cls: Any = None, *, tag: int = 0) -> Any:
    """Make a class a frozen dataclass that ``encode`` and ``decode`` know.

    Used as ``@message``, or as ``@message(tag=1)`` for one that is packed: its fields are numbers
    from 0 up, and texts.

    Raises:
        TypeError: A field has a type that the codec does not know, or that cannot be packed.
    """
    if cls is None:
        return lambda cls: _registered(cls, tag)
    return _registered(cls, tag)


def _registered(cls: type[_M], tag: int) -> type[_M]:
    made: Any = dataclass(frozen=True, slots=True, kw_only=True)(cls)
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()
    hints = get_type_hints(made, include_extras=True)
    kind = _Kind(made, name, {field.name: _check_of(hints[field.name]) for field in fields(made)})
    layout = _layout_of(kind, tag, hints) if tag else None
    if _by_name.setdefault(name, kind) is not kind:
        raise TypeError(f"there are two messages of the name {name!r}")
    if layout is not None:
        if _by_tag.setdefault(tag, layout) is not layout:
            raise TypeError(f"there are two messages of the tag {tag}")
        _packed[made] = layout
    _by_class[made] = kind
    return cast("type[_M]", made)


def _layout_of(kind: _Kind, tag: int, hints: dict[str, Any]) -> _Layout:
    texts = tuple(name for name in kind.checks if hints[name] is str)
    numbers = tuple(name for name in kind.checks if get_origin(hints[name]) is Annotated)
    if len(texts) + len(numbers) < len(kind.checks) or tag not in _TAGS:
        raise TypeError(f"a message {kind.name!r} cannot be packed with the tag {tag}")
    head = struct.Struct("<B" + len(numbers) * "Q" + len(texts) * "H")
    return _Layout(kind, tag, head, numbers, texts)


def pack(message: Message, body: bytes | bytearray = b"") -> bytes:
    """Return a message and the bytes that go with it as they travel.

    Raises:
        ValueError: A field has a value that its type does not allow.
    """
    layout = _packed.get(type(message))
    if layout is None:
        return encode(message) + _BODY + body
    checks = layout.kind.checks
    try:
        numbers = [checks[name](getattr(message, name)) for name in layout.numbers]
        texts = [checks[name](getattr(message, name)).encode() for name in layout.texts]
        head = layout.head.pack(layout.tag, *numbers, *map(len, texts))
    except (ValueError, struct.error) as problem:
        raise ValueError(f"a field of a message {layout.kind.name!r} {problem}") from None
    return b"".join((head, *texts, body))


def unpack(data: bytes) -> tuple[Message, bytes]:
    """Return a message that has arrived, and the bytes that came with it.

    Raises:
        ValueError: It is not a message; see ``decode``.
    """
    layout = _by_tag.get(data[0]) if data else None
    if layout is None:
        text, _, body = data.partition(_BODY)
        return decode(text), body
    kind, _, head, numbers, texts = layout
    found: dict[str, Any] = {}
    try:
        _, *rest = head.unpack_from(data)
        end = head.size
        for name, number in zip(numbers, rest, strict=False):  # the lengths of texts follow
            found[name] = kind.checks[name](number)
        for name, size in zip(texts, rest[len(numbers) :], strict=True):
            start, end = end, end + size
            found[name] = _printable(str(data[start:end], "utf-8"))
    except (ValueError, struct.error):
        raise ValueError("this is not a message of rcg") from None
    if end > len(data):
        raise ValueError("this is not a message of rcg")
    return kind.cls(**found), data[end:]


def encode(message: Message) -> bytes:
    """Return the JSON of a message.

    Raises:
        ValueError: A field has a value that its type does not allow.
    """
    kind = _by_class[type(message)]
    found = {name: getattr(message, name) for name in kind.checks}
    return json.dumps({"type": kind.name, **_checked(kind, found)}).encode()


def decode(data: bytes) -> Message:
    """Return the message in a JSON text.

    Raises:
        ValueError: It is not a message: wrong JSON, an unknown type, or a field that is missing,
            surplus, of a wrong type or out of range.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError("this is not a message of rcg")
    name = found.pop("type", None)
    kind = _by_name.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError("the type of a message is unknown")
    if found.keys() != kind.checks.keys():
        expected = ", ".join(kind.checks) or "none"
        raise ValueError(f"the fields of a message {kind.name!r} must be: {expected}")
    return kind.cls(**_checked(kind, found))


def _checked(kind: _Kind, found: dict[str, Any]) -> dict[str, Any]:
    """Return the fields as a message holds them."""
    name = ""
    try:
        checked = {}
        for name, check in kind.checks.items():
            checked[name] = check(found[name])
        return checked
    except ValueError as problem:
        raise ValueError(f"{name!r} of a message {kind.name!r} {problem}") from None


def _check_of(hint: Any) -> _Check:
    """Return the check of a field of this type."""
    arguments = get_args(hint)
    if hint is str:
        return _text
    if hint is bool:
        return _truth
    if get_origin(hint) is Annotated and arguments[0] is int and isinstance(arguments[1], range):
        return _number_within(arguments[1])
    if get_origin(hint) is tuple and arguments[1:] == (...,):
        return _items_that(_check_of(arguments[0]))
    raise TypeError(f"a message cannot have a field of the type {hint}")


def _text(found: object) -> str:
    """Return a text; what cannot be encoded or printed is replaced."""
    if not isinstance(found, str):
        raise ValueError("must be a text")
    return _printable(found.encode("utf-8", "replace").decode())


def _printable(text: str) -> str:
    return text.replace("\0", "\\0")


def _truth(found: object) -> bool:
    if not isinstance(found, bool):
        raise ValueError("must be true or false")
    return found


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
