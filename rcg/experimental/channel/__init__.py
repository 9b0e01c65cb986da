# SPDX-License-Identifier: Apache-2.0
"""The old import path of channels: ``communicator`` is rcg's, other names are Ray's.

Where this Ray has no such module, every other name is an ``AttributeError`` that says so.
"""

from __future__ import annotations

from typing import Any

from rcg import cluster

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module 'rcg.experimental.channel' has no attribute {name!r}")
    return cluster.attribute(name, of="ray.experimental.channel")


def __dir__() -> list[str]:
    return sorted({*cluster.attribute_names(of="ray.experimental.channel"), "communicator"})
