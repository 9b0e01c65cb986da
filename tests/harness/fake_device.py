# SPDX-License-Identifier: Apache-2.0
"""A device of no maker: ``fake``, whose tensors lie in main memory, and which counts copies.

To torch it is a device like any other (``PrivateUse1``, the device type that torch leaves to
others): its tensors are not on the CPU, have storages, views and gradients, and torch copies them
through this module. ``COPIES`` counts those copies by their direction. What is computed on the
device is computed by the kernels of the CPU, and is no copy.

A tensor is made by relabelling one of the CPU: DLPack hands its memory over with the device type of
an extension.

``FakeCommunicator`` moves tensors of this device between processes. It stands for direct transport,
so it counts nothing, and it refuses tensors of all other devices.

Importing this module gives the process the device. torch allows one such device per process.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from rcg.comm import Communicator, ReduceOp
from rcg.comm.gloo import GlooCommunicator

DEVICE = "fake"
COPIES: Counter[str] = Counter()
"""How often torch copied tensors with elements: ``to host``, ``to device``, ``on device``."""

_DIRECTIONS = {
    (DEVICE, "cpu"): "to host",
    ("cpu", DEVICE): "to device",
    (DEVICE, DEVICE): "on device",
}
# The kernels of the CPU that only make another view, and so serve every device.
_VIEWS = (
    "as_strided",
    "view",
    "_reshape_alias",
    "set_.source_Storage",
    "set_.source_Storage_storage_offset",
)
_DLPACK_CPU, _DLPACK_EXTENSION = 1, 12  # kDLCPU, kDLExtDev
_DEVICE_TYPE_AT = 8  # where the device type lies in a DLTensor, in bytes: behind the data pointer
_CPU_KERNELS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _nothing(*_: Any, **__: Any) -> None:
    """Where the device has no streams, the order of what is queued does not matter."""


on_use: Callable[..., None] = _nothing
"""Called with each tensor that is read or written, and whether it is written."""
on_wait: Callable[[], None] = _nothing
"""Called where the process waits for what its current stream does."""


def copies_since() -> dict[str, int]:
    """Return what was counted, and begin at zero."""
    found = dict(COPIES)
    COPIES.clear()
    return found


def _relabelled(tensor: torch.Tensor, device_type: int) -> torch.Tensor:
    """Return the memory of a tensor of uint8 as a tensor of a device of DLPack's."""
    capsule = torch._C._to_dlpack(tensor)
    at = _pointer_of(capsule, b"dltensor") + _DEVICE_TYPE_AT
    ctypes.c_int32.from_address(at).value = device_type
    return torch._C._from_dlpack(capsule)


def _moved(tensor: torch.Tensor, from_device: str, to_device_type: int) -> torch.Tensor:
    """Return a tensor that shares the storage of another, with the same strides."""
    plain = tensor.detach()
    raw = torch.empty(0, dtype=torch.uint8, device=from_device).set_(plain.untyped_storage())
    whole = raw[: raw.numel() // plain.itemsize * plain.itemsize]
    typed = _relabelled(whole, to_device_type).view(plain.dtype)
    return typed.as_strided(plain.shape, plain.stride(), plain.storage_offset())


def host_view(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the CPU over the memory of one on this device."""
    view = _moved(tensor, DEVICE, _DLPACK_CPU)
    view = torch._conj(view) if tensor.is_conj() else view
    return torch._neg_view(view) if tensor.is_neg() else view


def _on_device(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of this device over the memory of one of the CPU."""
    return _moved(tensor, "cpu", _DLPACK_EXTENSION)


def is_on_device(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == DEVICE


def _empty(size: Sequence[int], dtype: Any = None, *_: Any, **__: Any) -> torch.Tensor:
    return _on_device(torch.empty(size, dtype=dtype, device="cpu"))


def _empty_strided(
    size: Sequence[int], stride: Sequence[int], dtype: Any = None, *_: Any, **__: Any
) -> torch.Tensor:
    return _on_device(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def _copy_from(source: torch.Tensor, target: torch.Tensor, *_: Any) -> torch.Tensor:
    on_use(source, writes=False)
    on_use(target, writes=True)
    if source.numel():
        direction = _DIRECTIONS[source.device.type, target.device.type]
        COPIES[direction] += 1
        if direction == "to host":
            on_wait()
    here, there = (host_view(each) if is_on_device(each) else each for each in (source, target))
    there.copy_(here)
    return target


def _one_number(tensor: torch.Tensor) -> Any:
    COPIES["to host"] += 1
    on_use(tensor, writes=False)
    on_wait()
    return host_view(tensor).item()


def _computed(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an op of torch by its kernel for the CPU, over the same memory."""
    originals: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by the id of the view
    out = kwargs.get("out")
    for index, argument in enumerate(op._schema.arguments):
        given = args[index] if index < len(args) else kwargs.get(argument.name)
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        for each in given if isinstance(given, list | tuple) else (given,):
            on_use(each, writes=is_written)

    def down(value: Any) -> Any:
        if value is out and is_on_device(value) and not value.numel():
            return torch.empty(0, dtype=value.dtype)  # torch gives it its size
        if is_on_device(value):
            view = host_view(value)
            originals[id(view)] = view, value
            return view
        return torch.device("cpu") if isinstance(value, torch.device) else value

    def up(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in originals:
            return originals[id(value)][1]
        made = _on_device(value)
        on_use(made, writes=True)
        return made

    # torch passes a number on as such where the op declares a tensor: its overload takes it.
    found = op._overloadpacket(*pytree.tree_map(down, args), **pytree.tree_map(down, kwargs))
    if not is_on_device(out) or out.numel():
        return pytree.tree_map(up, found)
    made = _on_device(found)
    return out.set_(made.untyped_storage(), 0, made.shape, made.stride())


def _view_kernel(op: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: op.redispatch(_CPU_KERNELS, *args, **kwargs)


def _registered() -> tuple[torch.library.Library, torch.library.Library]:
    """Give torch the device; it lasts as long as what is returned."""
    _setup_privateuseone_for_python_backend(DEVICE)
    aten, rest = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
    kernels = {
        "empty.memory_format": _empty,
        "empty_strided": _empty_strided,
        "_copy_from": _copy_from,
        "_local_scalar_dense": _one_number,
    }
    for name in _VIEWS:
        base, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, base), overload or "default")
        kernels[name] = _view_kernel(op)
    for name, kernel in kernels.items():
        aten.impl(name, kernel, "PrivateUse1")
    for key in ("Conjugate", "Negative"):  # a copy resolves them; torch would copy to resolve them
        aten.impl("_copy_from", torch.library.fallthrough_kernel, key)
    rest.fallback(_computed, "PrivateUse1")
    return aten, rest


_LIBRARIES = _registered()


class Direct(Communicator):
    """Has a communicator of the CPU take tensors of the fake device: it gets the same memory.

    A call of tensors on other devices than it serves, or on devices of two types, is refused.
    """

    def send(self, tensors: Sequence[Any], peer: int, tag: int = 0) -> None:
        super().send(self._views(tensors), peer, tag)

    def recv(self, tensors: Sequence[Any], peer: int, tag: int = 0) -> None:
        super().recv(self._views(tensors), peer, tag)

    def broadcast(self, tensors: Sequence[Any], root: int) -> None:
        super().broadcast(self._views(tensors), root)

    def allreduce(self, tensor: Any, op: ReduceOp) -> None:
        super().allreduce(*self._views([tensor]), op)

    def allgather(self, output: Any, tensor: Any) -> None:
        super().allgather(*self._views([output, tensor]))

    def reducescatter(self, output: Any, tensor: Any, op: ReduceOp) -> None:
        super().reducescatter(*self._views([output, tensor]), op)

    def reduce(self, tensor: Any, root: int, op: ReduceOp) -> None:
        super().reduce(*self._views([tensor]), root, op)

    def gather(self, output: Any | None, tensor: Any, root: int) -> None:
        if output is None:
            super().gather(None, *self._views([tensor]), root)
        else:
            super().gather(*self._views([output, tensor]), root)

    def reserve(self, operation: str, tensors: Sequence[Any], op: ReduceOp | None = None) -> None:
        super().reserve(operation, [each for one in tensors for each in self._views([one])], op)

    def _views(self, tensors: Sequence[Any]) -> list[torch.Tensor]:
        found = {each.device.type for each in tensors}
        if len(found) > 1 or not found <= self.devices:
            raise ValueError(f"{type(self).__name__} takes no tensors on {', '.join(found)}")
        return [host_view(each) if is_on_device(each) else each for each in tensors]


class FakeCommunicator(Direct, GlooCommunicator):
    """Moves tensors of the fake device between processes; see ``rcg.comm.Communicator``."""

    devices: ClassVar[frozenset[str]] = frozenset({DEVICE})
