# SPDX-License-Identifier: Apache-2.0
"""Values and the objects of one type in them, taken out and put back as they are, not as bytes."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

from rcg import cluster

__all__ = ["size_of", "taken_out", "with_objects"]


def taken_out(value: Any, kind: type) -> tuple[bytes, list[Any]]:
    """Return the pickle of a value without the objects of a type, and these, each once."""
    objects: list[Any] = []
    file = io.BytesIO()
    _Pickler(file, kind, objects).dump(value)
    return file.getvalue(), objects


def with_objects(data: bytes, objects: Sequence[Any]) -> Any:
    """Return the value with these objects in the places of those that were taken out."""
    return _Unpickler(io.BytesIO(data), objects).load()


def size_of(thing: Any) -> int:
    """Return the bytes of an array or a tensor; 0 if it does not say."""
    found = getattr(thing, "nbytes", 0)
    return found if isinstance(found, int) else 0


class _Pickler(cluster.by_value_pickler()):  # type: ignore[misc]
    def __init__(self, file: Any, kind: type, objects: list[Any]) -> None:
        super().__init__(file, 5)
        self._kind = kind
        self._objects = objects
        self._places: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, self._kind):
            return None
        place = self._places.setdefault(id(obj), len(self._objects))
        if place == len(self._objects):
            self._objects.append(obj)
        return place


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, objects: Sequence[Any]) -> None:
        super().__init__(file)
        self._objects = objects

    def persistent_load(self, place: Any) -> Any:
        return self._objects[place]
