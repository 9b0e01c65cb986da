# SPDX-License-Identifier: Apache-2.0
"""The parts of a value, and the way to each: in lists, tuples, dicts and attributes, of any depth.

At most ``_MOST_PARTS`` are looked at: a warning, or a place in an error, is not worth more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from rcg.error_text import shortened
from rcg.serialization.tensors import lacking

_MOST_PARTS: Final = 2000
_MOST_KEY: Final = 40  # characters

_Way = tuple[Any, ...]  # to a part: the way to what has it, how it is written, and its key


def tensors_in(value: Any) -> list[Any]:
    """Return torch's tensors in a value."""
    return [part for part, _ in _parts_of(value) if hasattr(type(part), "untyped_storage")]


def place_of(value: Any, is_wanted: Callable[[Any], bool]) -> str:
    """Return where the first part of a kind is: ``value['weights'][0]``; "" if there is none."""
    for part, way in _parts_of(value):
        if is_wanted(part):
            return "value" + _path_text(way)
    return ""


def find_lost(value: Any, things: Iterable[Any]) -> str:
    """Return which tensor of a value has not all of its memory, and why; "" if all have.

    Args:
        value: The value.
        things: Its tensors, or their bytes. Objects that are no tensors of torch's are left out.
    """
    found = [why for why in map(_lacking, things) if why]
    if not found:
        return ""

    def is_wanted(part: Any) -> bool:
        why = _lacking(part)
        if why:
            found.insert(0, why)
        return bool(why)

    place = place_of(value, is_wanted)
    return f"{place or 'one of its tensors'} has lost its memory: {found[0]}"


def device_of(thing: Any) -> str:
    """Return the type of the device of a tensor or an array: ``cpu``."""
    device = getattr(thing, "device", "cpu")
    if callable(device):
        device = device()
    for name in ("type", "platform"):
        found = getattr(device, name, None)
        if isinstance(found, str):
            return found
    return str(device).partition(":")[0].lower()


def device_number(tensor: Any) -> int:
    """Return the number of the device of a tensor; 0 on a CPU."""
    return int(max(tensor.get_device(), 0))


def _lacking(part: Any) -> str:
    return lacking(part) if hasattr(type(part), "untyped_storage") else ""


def _parts_of(value: Any) -> Iterator[tuple[Any, _Way]]:
    seen: set[int] = set()
    ahead: deque[tuple[Any, _Way]] = deque([(value, ())])
    for _ in range(_MOST_PARTS):
        if not ahead:
            return
        part, way = ahead.popleft()
        yield part, way
        is_plain = isinstance(part, str | bytes | int | float | type)
        if is_plain or hasattr(type(part), "untyped_storage") or id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, dict):
            ahead.extend((each, (way, "[{!r}]", key)) for key, each in part.items())
        elif isinstance(part, list | tuple):
            ahead.extend((each, (way, "[{}]", at)) for at, each in enumerate(part))
        else:
            attributes = _attributes(part)
            ahead.extend((each, (way, ".{}", name)) for name, each in attributes.items())


def _path_text(way: _Way) -> str:
    steps: list[str] = []
    while way:
        way, form, key = way
        try:
            steps.append(shortened(form.format(key), _MOST_KEY))
        except Exception:  # noqa: BLE001 - the repr of a user's key
            steps.append("[...]")
    return "".join(reversed(steps))


def _attributes(part: Any) -> dict[str, Any]:
    """Return the attributes that an object has in a dict; its own ``__getattr__`` is not asked."""
    try:
        found = object.__getattribute__(part, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}
