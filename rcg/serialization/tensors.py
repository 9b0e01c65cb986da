# SPDX-License-Identifier: Apache-2.0
"""Torch tensors in pickles: all that ``pickle`` keeps, with the bytes out of band.

A tensor keeps its strides, attributes and ``requires_grad``. Tensors of one value that share a
storage arrive sharing one. ``pickle`` writes a whole storage; here only the bytes travel that the
value's tensors span, from the first element to the last. So a row of a large batch travels alone,
and its ``storage_offset`` counts from the beginning of these bytes.

The bytes of a tensor stay where they are if the encoder gets a ``DeviceBytes``. If not, those
on another device than the CPU are copied to host memory, once per storage, and back on arrival.

The storage of a tensor may be freed under it, or made smaller, as FSDP does with parameters that it
does not need at the moment. Reading such a tensor would read other memory, or end the process. So
each tensor is compared with its storage (``lacking``) before its bytes are read.

Tensors arrive writable, because torch has no other kind. The channel gives each reader its own
memory for them.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Container
from contextvars import ContextVar
from typing import Any, Final

import numpy as np

from rcg.serialization.encoded import PROTOCOL
from rcg.streams import keep_for_methods

Described = tuple[str, tuple[int, ...]]
"""The dtype and the shape of a tensor: ``("float32", (3, 4))``."""

# Dtypes of torch's that NumPy has, too.
_NUMPYS: Final = frozenset(
    ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool",
     "complex64", "complex128")
)  # fmt: skip
_ALIGNMENT: Final = 64  # of the part of a storage that travels, within the storage


class _Every:
    def __contains__(self, device: object) -> bool:
        return True


EVERY_DEVICE: Final[Container[str]] = _Every()
"""The types of all devices."""

target_device: Final[ContextVar[str | None]] = ContextVar("rcg_device", default=None)
"""The type of the device to which tensors go that are unpickled; None: where each belongs."""


class TensorBytes(np.ndarray[Any, Any]):
    """The bytes of a tensor; the type is how its buffer is recognised later."""


class DeviceBytes(TensorBytes):
    """Stands for bytes that stay where they are: only a transport takes them.

    The bytes of a device cannot be a buffer. Those of the CPU could, but torch never resizes the
    storage of a tensor that NumPy has seen, so a buffer would change the user's tensor.
    """

    payload: Any  # a tensor of uint8 [n] over the bytes


class _StorageSlice:
    """The part of a torch storage that the tensors of one value span; it goes out of band.

    It is pickled in place of the storage. The part is known after the last tensor, so the buffer is
    cut then, and its offset goes out of band as well. See ``Storages`` for the arguments.
    """

    __slots__ = (
        "_base", "_buffers", "_device", "_index", "_raw", "_staying", "first", "last", "storage"
    )  # fmt: skip

    def __init__(
        self, storage: Any, device: str, buffers: list[pickle.PickleBuffer], staying: Container[str]
    ) -> None:
        self.storage = storage
        self.first = self.last = 0  # in bytes
        if device == "cpu" and device not in staying:
            self._raw = _all_of(storage).numpy().view(TensorBytes)
        else:
            self._raw = _all_of(storage)
        self._device = device
        self._staying = staying
        self._base = bytearray(8)
        self._buffers = buffers
        self._index = -1

    def __reduce__(self) -> Any:
        self._index = len(self._buffers)  # where the pickler is about to put it
        uncut = pickle.PickleBuffer(bytearray())  # writable, as what it is replaced by
        where = () if self._device == "cpu" else (self._device,)
        return _rebuild_slice, (uncut, pickle.PickleBuffer(self._base), *where)

    def take(self, first: int, last: int) -> None:
        """Take these bytes along, too."""
        self.first = min(self.first, first) if self.last else first
        self.last = max(self.last, last)

    def take_all(self) -> None:
        """Take the whole storage."""
        self.first, self.last = 0, self.storage.nbytes()

    def cut(self, buffers: list[pickle.PickleBuffer]) -> None:
        """Put the part of the storage that travels in its place."""
        first = self.first // _ALIGNMENT * _ALIGNMENT
        self._base[:] = first.to_bytes(8, "little")
        part = self._raw[first : self.last]
        if not isinstance(part, TensorBytes):
            part = _bytes_of(part, self._device, self._staying)
        buffers[self._index] = pickle.PickleBuffer(part)


def _reduce_mesh(mesh: Any) -> Any:
    """Reduce a mesh of devices, as a ``DTensor`` has one, to bytes in the pickle.

    Its ranks are a tensor, in host memory wherever the value's tensors are. They tell where these
    belong, and are no part of what a transport moves.
    """
    return pickle.loads, (pickle.dumps(mesh, PROTOCOL),)


class Storages:
    """Writes tensors for one pickler: all that ``pickle`` keeps, with the bytes out of band.

    A storage travels once for all tensors of a value. It is written as the first tensor if that
    covers the storage, otherwise as a ``_StorageSlice``. ``buffers`` are the pickler's.

    Attributes:
        described: Where the dtype and the shape of each tensor are listed, if that is wanted.
        staying: The types of devices whose tensors stay there; see ``DeviceBytes``.
    """

    __slots__ = ("_buffers", "_dtypes", "_uint8", "described", "known", "staying")

    def __init__(self, buffers: list[pickle.PickleBuffer], dtypes: dict[Any, str]) -> None:
        self._buffers = buffers
        self._dtypes = dtypes
        # The replacement of each storage of the current value, by its address.
        self.known: dict[int, Any] = {}
        self.described: list[Described] | None = None
        self.staying: Container[str] = ()

    def reducers(self) -> dict[type, Callable[[Any], Any]]:
        """Return the reducers of torch's types; stored here, a cycle would keep the buffers."""
        if not self._dtypes:
            return {}
        torch = sys.modules["torch"]
        self._uint8 = torch.uint8
        found = {
            torch.Tensor: self._reduce_tensor,
            torch.UntypedStorage: self._reduce_storage,
            torch.storage.TypedStorage: self._reduce_typed_storage,
        }
        meshes = sys.modules.get("torch.distributed.device_mesh")  # gone in builds without it
        if meshes is not None:
            found[meshes.DeviceMesh] = _reduce_mesh
        return found

    def finish(self, buffers: list[pickle.PickleBuffer]) -> None:
        """Cut the storages of the pickled value to the parts that travel, and forget the value."""
        for anchor in self.known.values():
            if type(anchor) is _StorageSlice:
                anchor.cut(buffers)
        self.known.clear()

    def _reduce_tensor(self, tensor: Any) -> Any:
        needs_grad, is_cpu, state = tensor.requires_grad, tensor.is_cpu, tensor.__dict__
        if self.described is not None and (tensor.is_conj() or tensor.is_neg()):
            tensor = tensor.resolve_conj().resolve_neg()  # torch's pickle has no form to compare
        if not is_dense(tensor) or (needs_grad and tensor._backward_hooks):
            _check_memory(tensor)
            return tensor.__reduce_ex__(PROTOCOL)
        storage = tensor.untyped_storage()
        address, shape, dtype = storage._cdata, tuple(tensor.shape), tensor.dtype
        if self.described is not None:
            self.described.append((self._dtypes[dtype], shape))
        made: Any
        if address not in self.known and _covers(tensor, storage, shape):
            self.known[address] = tensor
            plain = tensor.detach() if needs_grad else tensor
            name = self._dtypes[dtype]
            if is_cpu and "cpu" not in self.staying:
                raw = bytes_of_whole(plain, name, shape)
                made = rebuild_tensor, (raw, name, shape, needs_grad)
            else:
                plain = (plain if len(shape) == 1 else plain.reshape(-1)).view(self._uint8)
                device = device_of(plain)
                where = () if is_cpu else (device,)
                raw = pickle.PickleBuffer(_bytes_of(plain, device, self.staying))
                made = rebuild_tensor, (raw, name, shape, needs_grad, *where)
        else:
            _check_memory(tensor)
            made = _rebuild_view, self._view_of(tensor, storage, address)
        return (*made, state, None, None, _set_attributes) if state else made

    def _view_of(self, tensor: Any, storage: Any, address: int) -> tuple[Any, ...]:
        """Return what ``_rebuild_view`` takes."""
        anchor = self._anchor_of(storage, address, device_of(tensor))
        itemsize, offset = tensor.dtype.itemsize, tensor.storage_offset()
        shape, stride = tuple(tensor.shape), tensor.stride()
        if type(anchor) is _StorageSlice and 0 not in shape:
            last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
            anchor.take(offset * itemsize, (last + 1) * itemsize)
        return anchor, self._dtypes[tensor.dtype], offset, shape, stride, tensor.requires_grad

    def _anchor_of(self, storage: Any, address: int, device: str) -> Any:
        """Return the replacement of a storage in this value: a tensor that covers it, or a part."""
        anchor = self.known.get(address)
        if anchor is None:
            anchor = self.known[address] = _StorageSlice(
                storage, device, self._buffers, self.staying
            )
        return anchor

    def _reduce_storage(self, storage: Any) -> Any:
        device = str(storage.device.type)
        if device == "meta":
            return storage.__reduce_ex__(PROTOCOL)
        anchor = self._anchor_of(storage, storage._cdata, device)
        if type(anchor) is _StorageSlice:
            anchor.take_all()
        return _storage_of, (anchor,)

    def _reduce_typed_storage(self, storage: Any) -> Any:
        return _typed_storage_of, (storage._untyped_storage, self._dtypes[storage.dtype])


def tensor_type() -> Any:
    """Return ``torch.Tensor``; (), which is the type of nothing, until torch is imported.

    Another thread may be importing it: then the module is there, and has no such name yet.
    """
    return getattr(sys.modules.get("torch"), "Tensor", ())


def is_whole(tensor: Any) -> bool:
    """Return whether a tensor is dense, contiguous and all of its storage."""
    return is_dense(tensor) and _covers(tensor, tensor.untyped_storage(), tensor.shape)


def bytes_of_whole(tensor: Any, dtype: str, shape: tuple[int, ...]) -> pickle.PickleBuffer:
    """Return the bytes of a tensor in host memory that is whole and requires no gradient."""
    if dtype not in _NUMPYS:
        flat = tensor if len(shape) == 1 else tensor.reshape(-1)
        tensor = flat.view(sys.modules["torch"].uint8)
    return pickle.PickleBuffer(tensor.numpy().view(TensorBytes))


def is_dense(tensor: Any) -> bool:
    """Return whether a tensor is numbers in memory, as they are."""
    return not (
        tensor.layout is not sys.modules["torch"].strided
        or not _has_bytes(tensor)
        or tensor.is_quantized
        or tensor.is_nested
        or tensor.is_conj()
        or tensor.is_neg()
    )


def _covers(tensor: Any, storage: Any, shape: tuple[int, ...]) -> bool:
    """Return whether a dense tensor is its storage, in order."""
    return (
        tensor.nbytes == storage.nbytes()
        and tensor.is_contiguous()
        and (not (1 in shape or 0 in shape) or tensor.stride() == _usual_stride(shape))
    )


def lacking(tensor: Any) -> str:
    """Return how the storage of a tensor lacks its numbers, or "" if it does not.

    A tensor without a storage, or with several (sparse, nested), is pickled by its parts.
    """
    torch = sys.modules["torch"]
    if tensor.layout is not torch.strided or tensor.is_nested or not torch._C._has_storage(tensor):
        return ""
    if tensor.is_contiguous():
        size = tensor.nbytes
    else:
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        size = (1 + sum((count - 1) * step for count, step in steps)) * tensor.element_size()
    needed = tensor.storage_offset() * tensor.element_size() + size
    has = tensor.untyped_storage().nbytes()
    if not tensor.numel():
        return ""
    if needed > has:
        why = (
            f"needs {needed} bytes of its storage, which has {has}: it was freed, or made smaller "
            "(untyped_storage().resize_, as FSDP does)"
        )
    elif type(tensor) is torch.Tensor and not tensor.is_meta and _stands_for_numbers(tensor):
        why = "has a storage that is not in memory"  # a subclass may keep its numbers elsewhere
    else:
        return ""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"a tensor of {dtype} {list(tensor.shape)} {why}"


def _check_memory(tensor: Any) -> None:
    why = lacking(tensor)
    if why:
        raise ValueError(why)


def _has_bytes(tensor: Any) -> bool:
    """Return whether a dense tensor has numbers, in memory that torch knows."""
    return (
        device_of(tensor) != "meta"
        and sys.modules["torch"]._C._has_storage(tensor)
        and not _stands_for_numbers(tensor)
    )


def _stands_for_numbers(tensor: Any) -> bool:
    """Return whether a tensor with a storage has no memory, though the storage has a size.

    So it is with the zeros of a tangent, and with what torch traces a function with.
    """
    return bool(tensor.data_ptr() == tensor.storage_offset() * tensor.itemsize and tensor.numel())


def _all_of(storage: Any) -> Any:
    """Return a tensor of uint8 over a storage."""
    torch = sys.modules["torch"]
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _bytes_of(raw: Any, device: str, staying: Container[str]) -> Any:
    """Return a tensor of uint8 [n] as a stand-in if its bytes stay, or as a copy on the host."""
    if not raw.numel():
        return np.empty(0, np.uint8).view(TensorBytes)
    if device not in staying:
        return raw.cpu().numpy().view(TensorBytes)
    stand_in = np.zeros(1, np.uint8).view(DeviceBytes)
    stand_in.payload = raw
    return stand_in


def _usual_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor.

    >>> _usual_stride((2, 1, 3))
    (3, 3, 1)
    """
    strides = [1]
    for size in shape[:0:-1]:
        strides.append(strides[-1] * max(size, 1))
    return tuple(reversed(strides)) if shape else ()


def rebuild_tensor(
    buffer: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool, device: str = "cpu"
) -> Any:
    """Return the tensor over its bytes, on the device where it belongs; called by pickles."""
    import torch

    kind = getattr(torch, dtype)
    if 0 in shape:
        tensor = _no_numbers(kind).view(shape)
    else:
        # A transport delivers bytes as a tensor of uint8, a channel in shared memory as a buffer.
        is_tensor = isinstance(buffer, torch.Tensor)
        tensor = buffer.view(kind) if is_tensor else torch.frombuffer(buffer, dtype=kind)
        if len(shape) != 1:
            tensor = tensor.view(shape)
    return deliver(tensor.requires_grad_() if requires_grad else tensor, device)


def _rebuild_slice(buffer: Any, base: Any, device: str = "cpu") -> tuple[Any, int]:
    """Return the bytes of a part of a storage, and where in the storage they were."""
    import torch

    if isinstance(buffer, torch.Tensor):
        raw = buffer
    elif memoryview(buffer).nbytes:
        raw = torch.frombuffer(buffer, dtype=torch.uint8)
    else:
        raw = torch.empty(0, dtype=torch.uint8, device="cpu")
    return deliver(raw, device), int.from_bytes(base, "little")


def _rebuild_view(
    anchor: Any,
    dtype: str,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
) -> Any:
    import torch

    kind = getattr(torch, dtype)
    # The bytes were delivered already, once for all tensors that share them; several such may have
    # arrived in one storage.
    raw, base = anchor if type(anchor) is tuple else (anchor, 0)
    if raw.storage_offset() * raw.itemsize % kind.itemsize:  # memory of the user's
        raw = raw.clone()
    base -= raw.storage_offset() * raw.itemsize
    start = max(0, offset - base // kind.itemsize)  # one without elements may lie before it
    tensor = _no_numbers(kind, raw.device).set_(raw.untyped_storage(), start, shape, stride)
    return tensor.requires_grad_() if requires_grad else tensor


def _no_numbers(kind: Any, device: Any = "cpu") -> Any:
    """Return a tensor without elements, and without the warning that torch has for some dtypes."""
    import torch

    return torch.empty(0, dtype=torch.uint8, device=device).view(kind)


def _storage_of(anchor: Any) -> Any:
    raw = anchor[0] if type(anchor) is tuple else anchor
    is_whole = raw.untyped_storage().nbytes() == raw.nbytes
    return (raw if is_whole else raw.clone()).untyped_storage()


def _typed_storage_of(storage: Any, dtype: str) -> Any:
    import torch

    return torch.storage.TypedStorage(
        wrap_storage=storage, dtype=getattr(torch, dtype), _internal=True
    )


def _set_attributes(tensor: Any, state: dict[str, Any]) -> None:
    vars(tensor).update(state)


# --- devices, named by their types as torch names them: ``cpu``, ``cuda``, or another maker's


def deliver(tensor: Any, origin: str = "cpu") -> Any:
    """Return a tensor that was unpickled, on the device where it belongs.

    Args:
        tensor: It is where its bytes have arrived: in host memory, or where it belongs.
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
    """Return a tensor on a device, ``default`` for its own; raises RuntimeError without one."""
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
