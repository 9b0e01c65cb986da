# SPDX-License-Identifier: Apache-2.0
"""What users say about memory that NIXL reads; reached as ``rcg.experimental``."""

from __future__ import annotations

from typing import Any

from rcg.rdt.process import here


def register_nixl_memory(tensor: Any) -> None:
    """Register a tensor's memory with NIXL now, before it is first passed by reference.

    All of its storage is registered, so any view of it can be passed without registering again. It
    stays registered until the storage is freed, also without this call.

    Args:
        tensor: The tensor; on a CPU or a CUDA device.

    Raises:
        TypeError: It is no dense tensor of torch.
        Unavailable: NIXL is not installed, or refuses the memory.
    """
    here().nixl.register([_checked(tensor)])


def deregister_nixl_memory(tensor: Any) -> None:
    """End the registration of a tensor's memory, unless references to it are alive.

    Args:
        tensor: The tensor, or any other with the same storage.

    Raises:
        TypeError: It is no dense tensor of torch.
    """
    here().nixl.deregister(_checked(tensor))


def register_nixl_memory_pool(size: int, device: Any) -> None:
    """Register a pool of memory into which tensors are copied when they are passed over NIXL.

    Copying costs less than registering where tensors are made anew each time. A copy is freed when
    no reference to its object is alive. Tensors whose memory is registered already are not copied,
    nor are those on another device than a pool on a GPU.

    Args:
        size: Its bytes.
        device: ``torch.device("cpu")``, ``torch.device("cuda")``, or their names.

    Raises:
        ValueError: There is one, the size is not positive, or the device is another one.
        TypeError: The size is no number.
        Unavailable: NIXL is not installed, or refuses the memory.
    """
    import torch

    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"the size of a pool is a number of bytes, got {size!r}")
    if size <= 0:
        raise ValueError(f"the size of a pool is a number of bytes above 0, got {size}")
    where = torch.device(device)
    if where.type not in ("cpu", "cuda"):
        raise ValueError(f"a pool is on a CPU or a CUDA device, got {where}")
    here().nixl.add_pool(size, where)


def set_nixl_cuda_stream(stream: Any) -> None:
    """Set which stream is waited for before tensors on a GPU can be read by others.

    Args:
        stream: A ``torch.cuda.Stream``, on which the tensors of this process are made; None waits
            for all streams of their device.
    """
    if stream is not None and not hasattr(stream, "synchronize"):
        raise TypeError(f"set_nixl_cuda_stream takes a torch.cuda.Stream or None, got {stream!r}")
    here().nixl.set_stream(stream)


def _checked(tensor: Any) -> Any:
    if not hasattr(type(tensor), "untyped_storage"):
        raise TypeError(f"NIXL registers tensors of torch, got {type(tensor).__name__}")
    try:
        has_memory = not tensor.is_meta and tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        has_memory = False
    if not has_memory:
        raise TypeError("NIXL registers dense tensors, and this one has no memory of its own")
    return tensor
