# SPDX-License-Identifier: Apache-2.0
"""Where tensors arrive: the device in the hint of a value, applied while it is unpickled.

A device is named by its type, as torch names it: ``cpu``, ``cuda``, or that of another maker.
"""

from __future__ import annotations

from collections.abc import Container
from contextvars import ContextVar
from typing import Any, Final

from rcg.streams import keep_for_methods


class _Every:
    def __contains__(self, device: object) -> bool:
        return True


EVERY_DEVICE: Final[Container[str]] = _Every()
"""The types of all devices."""

target_device: Final[ContextVar[str | None]] = ContextVar("rcg_device", default=None)
"""The type of the device to which tensors go that are unpickled; None: where each belongs."""


def deliver(tensor: Any, origin: str = "cpu") -> Any:
    """Return a tensor that was unpickled, on the device where it belongs; see ``moved_to``.

    Args:
        tensor: The tensor where its bytes have arrived: in host memory, or where it belongs.
        origin: The type of the device that it was on.
    """
    target = target_device.get()
    if target is None:
        return tensor if origin == "cpu" else moved_to(tensor, origin)
    return moved_to(tensor, target)


def device_of(tensor: Any) -> str:
    """Return the type of the device that a tensor is on."""
    # ``is_cpu`` is several times faster than ``device.type``.
    return "cpu" if tensor.is_cpu else str(tensor.device.type)


def moved_to(tensor: Any, target: str) -> Any:
    """Return a tensor on a device, ``default`` for the one that it is on.

    Raises:
        RuntimeError: The device is not there.
    """
    if target == "default" or target == tensor.device.type:
        return tensor
    import torch

    if target == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(
            "No CUDA GPUs are available: a tensor of this value belongs on a GPU, and torch finds "
            "none in this process. Give the actor one (num_gpus=1), or have the tensor arrive "
            "elsewhere: with_tensor_transport(device='cpu')"
        )
    moved = tensor.detach().to(target)
    keep_for_methods(moved)
    return moved.requires_grad_() if tensor.requires_grad else moved
