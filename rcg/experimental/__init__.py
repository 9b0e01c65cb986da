# SPDX-License-Identifier: Apache-2.0
"""The old import path: ``channel.communicator`` is rcg's, other names are ``ray.experimental``'s.

Where this Ray has no such module, every name is an ``AttributeError`` that says so.
"""

from __future__ import annotations

import importlib
from typing import Any

from rcg import cluster

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module 'rcg.experimental' has no attribute {name!r}")
    if name == "channel":
        return importlib.import_module("rcg.experimental.channel")
    return cluster.attribute(name, of="ray.experimental")


def __dir__() -> list[str]:
    return sorted({*cluster.attribute_names(of="ray.experimental"), "channel"})
