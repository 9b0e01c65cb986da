# SPDX-License-Identifier: Apache-2.0
"""How a module of an old path passes on the names that rcg does not have to Ray's module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rcg import cluster

__all__ = ["names_behind"]


def names_behind(
    module: str, own: Sequence[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and the ``__dir__`` of a module.

    Args:
        module: Its name; the module behind it has the same name in Ray.
        own: The names that it has itself.
    """
    rays = f"ray{module.removeprefix('rcg')}"

    def getattribute(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return cluster.attribute(name, of=rays)

    def names() -> list[str]:
        return sorted({*own, *cluster.attribute_names(of=rays)})

    return getattribute, names
