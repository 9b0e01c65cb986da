# SPDX-License-Identifier: Apache-2.0
"""Values and the objects of one type in them, taken out and put back as they are, not as bytes."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

from rcg import cluster

__all__ = ["size_of", "taken_out", "with_objects"]


def taken_out(value: Any, kind: type | tuple[()]) -> tuple[bytes, list[Any], list[Any]]:
    """Take the objects of a type out of a value.

    Returns:
        The pickle of the value without them; the objects, each once; and Ray's references and
        handles in the value. Only Ray's own serializer may pickle those: any other keeps them for
        as long as the process lives.
    """
    objects: list[Any] = []
    references: list[Any] = []
    file = io.BytesIO()
    _Pickler(file, kind, objects, references).dump(value)
    return file.getvalue(), objects, references


def with_objects(data: bytes, objects: Sequence[Any], references: Sequence[Any]) -> Any:
    """Return the value with these in the places of what was taken out."""
    return _Unpickler(io.BytesIO(data), (objects, references)).load()


def size_of(thing: Any) -> int:
    """Return the bytes of an array or a tensor; 0 if it does not say."""
    found = getattr(thing, "nbytes", 0)
    return found if isinstance(found, int) else 0


class _Pickler(cluster.by_value_pickler()):  # type: ignore[misc]
    def __init__(
        self, file: Any, kind: type | tuple[()], objects: list[Any], references: list[Any]
    ) -> None:
        super().__init__(file, 5)
        self._kind = kind
        self._opaque = cluster.opaque_types()
        self._lists = objects, references
        self._places: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> tuple[int, int] | None:
        if isinstance(obj, self._kind):
            which = 0
        elif type(obj) in self._opaque:
            which = 1
        else:
            return None
        chosen = self._lists[which]
        place = self._places.setdefault(id(obj), len(chosen))
        if place == len(chosen):
            chosen.append(obj)
        return which, place


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, lists: tuple[Sequence[Any], Sequence[Any]]) -> None:
        super().__init__(file)
        self._lists = lists

    def persistent_load(self, found: Any) -> Any:
        which, place = found
        return self._lists[which][place]
