# SPDX-License-Identifier: Apache-2.0
"""Where tensors arrive: the device in the hint of a value, applied while it is unpickled."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, Final

__all__ = ["delivered", "loads_to", "moved_to"]

_target: Final[ContextVar[str | None]] = ContextVar("rcg_device", default=None)


def loads_to(device: str) -> Callable[..., Any]:
    """Return a function like ``pickle.loads`` whose tensors are moved to a device.

    Args:
        device: ``default`` leaves them where they are; ``cpu`` or ``cuda``.
    """
    if device == "default":
        return pickle.loads

    def loads(data: Any, buffers: Iterable[Any] = ()) -> Any:
        token = _target.set(device)
        try:
            return pickle.loads(data, buffers=buffers)
        finally:
            _target.reset(token)

    return loads


def delivered(tensor: Any) -> Any:
    """Return a tensor that was unpickled, on the device where it belongs; see ``moved_to``."""
    target = _target.get()
    return tensor if target is None else moved_to(tensor, target)


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
            "No CUDA GPUs are available: the hint of this value says device='cuda', and torch "
            "finds no GPU in this process. Give the actor one (num_gpus=1), or leave the hint out"
        )
    moved = tensor.detach().to(target)
    return moved.requires_grad_() if tensor.requires_grad else moved
