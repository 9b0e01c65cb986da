# SPDX-License-Identifier: Apache-2.0
"""Ray's path of the registration of a class of communicators; other names are Ray's."""

from __future__ import annotations

from dataclasses import dataclass

from rcg import cluster
from rcg.comm.registry import accelerator, find_communicator, register_accelerator
from rcg.experimental import names_behind

__all__ = [
    "AcceleratorContext",
    "is_accelerator_context_registered",
    "register_accelerator_context",
]


@dataclass(frozen=True)
class AcceleratorContext:
    """A type of devices, and the class of the communicators between them.

    Attributes:
        module_name: torch's name of the type of devices: ``cuda``, ``npu``, ``cpu``.
        communicator_cls: A class with the methods of Ray's ``Communicator``.
    """

    module_name: str
    communicator_cls: type

    @staticmethod
    def get() -> AcceleratorContext:
        """Return the registered context, else rcg's for what this process has."""
        found = accelerator()
        if found is not None:
            return AcceleratorContext(found.device, found.cls)
        backend, device = ("nccl", "cuda") if cluster.gpu_ids() else ("gloo", "cpu")
        return AcceleratorContext(device, find_communicator(backend).cls)

    @staticmethod
    def set(accelerator_context: AcceleratorContext) -> None:
        """Register a context; see ``register_accelerator_context``."""
        register_accelerator(accelerator_context.module_name, accelerator_context.communicator_cls)


def register_accelerator_context(torch_module_name: str, communicator_cls: type) -> None:
    """Have ``transport="accelerator"`` and ``"nccl"`` use a class, in graphs compiled from now on.

    Each rank makes an object of it as Ray does: ``communicator_cls(world_size, communicator_id,
    rank, actor_handles, stream, use_communication_streams)``. ``"auto"`` and collectives for which
    no transport is chosen still use rcg's own.

    Args:
        torch_module_name: torch's name of the type of devices: ``cuda``, ``npu``, ``cpu``.
        communicator_cls: A class with the methods of Ray's ``Communicator``.

    Raises:
        TypeError: It lacks one of them.
    """
    register_accelerator(torch_module_name, communicator_cls)


def is_accelerator_context_registered() -> bool:
    """Return whether a class is registered."""
    return accelerator() is not None


__getattr__, __dir__ = names_behind(__name__, __all__)
