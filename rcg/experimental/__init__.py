# SPDX-License-Identifier: Apache-2.0
"""The old import paths: ``channel``, ``collective``, ``util`` and those of RDT are rcg's.

Any other name is ``ray.experimental``'s. Where this Ray has no such module, every other name is an
``AttributeError`` that says so.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from rcg import cluster

if TYPE_CHECKING:
    from rcg.experimental import channel, collective, util
    from rcg.rdt.methods import wait_tensor_freed
    from rcg.rdt.transports import (
        CommunicatorMetadata,
        FetchRequest,
        TensorTransportManager,
        TensorTransportMetadata,
        register_tensor_transport,
    )

_PLACES: Final = {
    "CommunicatorMetadata": "rcg.rdt.transports",
    "FetchRequest": "rcg.rdt.transports",
    "TensorTransportManager": "rcg.rdt.transports",
    "TensorTransportMetadata": "rcg.rdt.transports",
    "register_tensor_transport": "rcg.rdt.transports",
    "wait_tensor_freed": "rcg.rdt.methods",
}

__all__ = [
    "CommunicatorMetadata",
    "FetchRequest",
    "TensorTransportManager",
    "TensorTransportMetadata",
    "channel",
    "collective",
    "register_tensor_transport",
    "util",
    "wait_tensor_freed",
]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module 'rcg.experimental' has no attribute {name!r}")
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    if name in __all__:
        return importlib.import_module(f"rcg.experimental.{name}")
    return cluster.attribute(name, of="ray.experimental")


def __dir__() -> list[str]:
    return sorted({*__all__, *cluster.attribute_names(of="ray.experimental")})
