# SPDX-License-Identifier: Apache-2.0
"""Ray's paths: ``channel``, ``collective``, ``compiled_dag_ref``, ``rdt`` and ``util`` are rcg's.

The names of ``rdt`` are here, too; it is loaded when one is first used. Any other name is
``ray.experimental``'s. Where this Ray has no such module, every other name is an ``AttributeError``
that says so.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from rcg import cluster

if TYPE_CHECKING:
    from rcg.experimental import (  # noqa: F401
        channel,
        collective,
        compiled_dag_ref,
        rdt,
        util,
    )
    from rcg.experimental.rdt import *  # noqa: F403

_ROOMS: Final = ("channel", "collective", "compiled_dag_ref", "rdt", "util")


def names_behind(
    module: str, own: Sequence[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a module whose other names are Ray's."""
    rays = f"ray{module.removeprefix('rcg')}"

    def getattribute(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return cluster.attribute(name, of=rays)

    def names() -> list[str]:
        return sorted({*own, *cluster.attribute_names(of=rays)})

    return getattribute, names


_rays_attribute, _rays_names = names_behind(__name__, _ROOMS)


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"rcg.experimental.{name}")
    if name == "__all__":
        return [*_ROOMS, *_rdt().__all__]
    if not name.startswith("_") and name in _rdt().__all__:
        return getattr(_rdt(), name)
    return _rays_attribute(name)


def __dir__() -> list[str]:
    return sorted({*_rdt().__all__, *_rays_names()})


def _rdt() -> Any:
    return importlib.import_module("rcg.experimental.rdt")
