# SPDX-License-Identifier: Apache-2.0
"""Ray's paths: ``channel``, ``collective``, ``compiled_dag_ref``, ``rdt`` and ``util`` are rcg's.

Any other name is ``ray.experimental``'s. Where this Ray has no such module, every other name is an
``AttributeError`` that says so.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from rcg import cluster

if TYPE_CHECKING:
    from rcg.experimental import channel, collective, compiled_dag_ref, rdt, util
    from rcg.rdt.methods import wait_tensor_freed
    from rcg.rdt.nixl_memory import (
        deregister_nixl_memory,
        register_nixl_memory,
        register_nixl_memory_pool,
        set_nixl_cuda_stream,
    )
    from rcg.rdt.refs import set_target_device_for_ref, set_target_for_ref
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
    "deregister_nixl_memory": "rcg.rdt.nixl_memory",
    "register_nixl_memory": "rcg.rdt.nixl_memory",
    "register_nixl_memory_pool": "rcg.rdt.nixl_memory",
    "register_tensor_transport": "rcg.rdt.transports",
    "set_nixl_cuda_stream": "rcg.rdt.nixl_memory",
    "set_target_device_for_ref": "rcg.rdt.refs",
    "set_target_for_ref": "rcg.rdt.refs",
    "wait_tensor_freed": "rcg.rdt.methods",
}

__all__ = [
    "CommunicatorMetadata",
    "FetchRequest",
    "TensorTransportManager",
    "TensorTransportMetadata",
    "channel",
    "collective",
    "compiled_dag_ref",
    "deregister_nixl_memory",
    "rdt",
    "register_nixl_memory",
    "register_nixl_memory_pool",
    "register_tensor_transport",
    "set_nixl_cuda_stream",
    "set_target_device_for_ref",
    "set_target_for_ref",
    "util",
    "wait_tensor_freed",
]


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


_rays_attribute, __dir__ = names_behind(__name__, __all__)


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    if name in __all__:
        return importlib.import_module(f"rcg.experimental.{name}")
    return _rays_attribute(name)
