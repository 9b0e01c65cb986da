# SPDX-License-Identifier: Apache-2.0
"""The old import paths: ``channel``, ``collective``, ``util`` and ``wait_tensor_freed`` are rcg's.

Any other name is ``ray.experimental``'s. Where this Ray has no such module, every other name is an
``AttributeError`` that says so.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rcg import cluster

if TYPE_CHECKING:
    from rcg.experimental import channel, collective, util
    from rcg.rdt.freed import wait_tensor_freed

__all__ = ["channel", "collective", "util", "wait_tensor_freed"]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module 'rcg.experimental' has no attribute {name!r}")
    if name == "wait_tensor_freed":
        return importlib.import_module("rcg.rdt.freed").wait_tensor_freed
    if name in __all__:
        return importlib.import_module(f"rcg.experimental.{name}")
    return cluster.attribute(name, of="ray.experimental")


def __dir__() -> list[str]:
    return sorted({*__all__, *cluster.attribute_names(of="ray.experimental")})
