# SPDX-License-Identifier: Apache-2.0
"""Torch tensors in pickles: all that ``pickle`` keeps, with the bytes out of band.

A tensor keeps its strides, attributes and ``requires_grad``. Tensors of one value that share a
storage arrive sharing one. ``pickle`` writes a whole storage; here only the bytes travel that the
value's tensors span, from the first element to the last. So a row of a large batch travels alone,
and its ``storage_offset`` counts from the beginning of these bytes.

Tensors arrive writable, because torch has no other kind. The channel gives each reader its own
memory for them.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from rcg.serialization.devices import delivered
from rcg.serialization.encoded import PROTOCOL

__all__ = ["Described", "Storages", "TensorBytes"]

Described = tuple[str, tuple[int, ...]]
"""The dtype and the shape of a tensor: ``("float32", (3, 4))``."""

# Dtypes of torch's that NumPy has, too.
_NUMPYS: Final = frozenset(
    ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool",
     "complex64", "complex128")
)  # fmt: skip
_ALIGNMENT: Final = 64  # of the part of a storage that travels, within the storage


class TensorBytes(np.ndarray[Any, Any]):
    """The bytes of a tensor; the type is how its buffer is recognised later."""


class _StorageSlice:
    """The part of a torch storage that the tensors of one value span; it goes out of band.

    It is pickled in place of the storage. The part is known after the last tensor, so the buffer is
    cut then, and its offset goes out of band as well.
    """

    __slots__ = ("_base", "_buffers", "_index", "_raw", "first", "last", "storage")

    def __init__(self, storage: Any, buffers: list[pickle.PickleBuffer]) -> None:
        torch = sys.modules["torch"]
        self.storage = storage
        self.first = self.last = 0  # in bytes
        self._raw = torch.empty(0, dtype=torch.uint8).set_(storage).numpy().view(TensorBytes)
        self._base = bytearray(8)
        self._buffers = buffers
        self._index = -1

    def __reduce__(self) -> Any:
        self._index = len(self._buffers)  # where the pickler is about to put it
        return _rebuild_slice, (pickle.PickleBuffer(self._raw), pickle.PickleBuffer(self._base))

    def take(self, first: int, last: int) -> None:
        """Take these bytes along, too."""
        self.first = min(self.first, first) if self.last else first
        self.last = max(self.last, last)

    def take_all(self) -> None:
        """Take the whole storage."""
        self.first, self.last = 0, self._raw.size

    def cut(self, buffers: list[pickle.PickleBuffer]) -> None:
        """Replace the whole storage by the part that travels."""
        first = self.first // _ALIGNMENT * _ALIGNMENT
        self._base[:] = first.to_bytes(8, "little")
        buffers[self._index] = pickle.PickleBuffer(self._raw[first : self.last])


class Storages:
    """Writes tensors for one pickler: all that ``pickle`` keeps, with the bytes out of band.

    A storage travels once for all tensors of a value. It is written as the first tensor if that
    covers the storage, otherwise as a ``_StorageSlice``.

    Args:
        buffers: Where the pickler puts them.

    Attributes:
        described: Where the dtype and the shape of each tensor are listed, if that is wanted.
    """

    __slots__ = ("_buffers", "_dtypes", "_strided", "_uint8", "described", "known")

    def __init__(self, buffers: list[pickle.PickleBuffer], dtypes: dict[Any, str]) -> None:
        self._buffers = buffers
        self._dtypes = dtypes
        # The replacement of each storage of the current value, by its address.
        self.known: dict[int, Any] = {}
        self.described: list[Described] | None = None

    def reducers(self) -> dict[type, Callable[[Any], Any]]:
        """Return the reducers of torch's types; stored here, a cycle would keep the buffers."""
        if not self._dtypes:
            return {}
        torch = sys.modules["torch"]
        self._strided, self._uint8 = torch.strided, torch.uint8
        return {
            torch.Tensor: self._reduce_tensor,
            torch.UntypedStorage: self._reduce_storage,
            torch.storage.TypedStorage: self._reduce_typed_storage,
        }

    def finish(self, buffers: list[pickle.PickleBuffer]) -> None:
        """Cut the storages of the pickled value to the parts that travel, and forget the value."""
        for anchor in self.known.values():
            if type(anchor) is _StorageSlice:
                anchor.cut(buffers)
        self.known.clear()

    def _reduce_tensor(self, tensor: Any) -> Any:
        needs_grad = tensor.requires_grad
        if (
            not tensor.is_cpu
            or tensor.layout is not self._strided
            or tensor.is_quantized
            or tensor.is_nested
            or tensor.is_conj()
            or tensor.is_neg()
            or (needs_grad and tensor._backward_hooks)
        ):
            return tensor.__reduce_ex__(PROTOCOL)
        storage = tensor.untyped_storage()
        address, shape, dtype = storage._cdata, tuple(tensor.shape), tensor.dtype
        if self.described is not None:
            self.described.append((self._dtypes[dtype], shape))
        made: Any
        if (
            address not in self.known
            and tensor.nbytes == storage.nbytes()
            and tensor.is_contiguous()
            and (not (1 in shape or 0 in shape) or tensor.stride() == _usual_stride(shape))
        ):
            self.known[address] = tensor
            plain = tensor.detach() if needs_grad else tensor
            name = self._dtypes[dtype]
            if name not in _NUMPYS:
                plain = plain.reshape(-1).view(self._uint8)
            raw = pickle.PickleBuffer(plain.numpy().view(TensorBytes))
            made = _rebuild_tensor, (raw, name, shape, needs_grad)
        else:
            made = _rebuild_view, self._view_of(tensor, storage, address)
        state = tensor.__dict__
        return (*made, state, None, None, _set_attributes) if state else made

    def _view_of(self, tensor: Any, storage: Any, address: int) -> tuple[Any, ...]:
        """Return what ``_rebuild_view`` takes."""
        anchor = self._anchor_of(storage, address)
        itemsize, offset = tensor.dtype.itemsize, tensor.storage_offset()
        shape, stride = tuple(tensor.shape), tensor.stride()
        if type(anchor) is _StorageSlice and 0 not in shape:
            last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
            anchor.take(offset * itemsize, (last + 1) * itemsize)
        return anchor, self._dtypes[tensor.dtype], offset, shape, stride, tensor.requires_grad

    def _anchor_of(self, storage: Any, address: int) -> Any:
        """Return the replacement of a storage in this value: a tensor that covers it, or a part."""
        anchor = self.known.get(address)
        if anchor is None:
            anchor = self.known[address] = _StorageSlice(storage, self._buffers)
        return anchor

    def _reduce_storage(self, storage: Any) -> Any:
        if storage.device.type != "cpu":
            return storage.__reduce_ex__(PROTOCOL)
        anchor = self._anchor_of(storage, storage._cdata)
        if type(anchor) is _StorageSlice:
            anchor.take_all()
        return _storage_of, (anchor,)

    def _reduce_typed_storage(self, storage: Any) -> Any:
        return _typed_storage_of, (storage._untyped_storage, self._dtypes[storage.dtype])


def _usual_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor.

    >>> _usual_stride((2, 1, 3))
    (3, 3, 1)
    """
    strides = [1]
    for size in shape[:0:-1]:
        strides.append(strides[-1] * max(size, 1))
    return tuple(reversed(strides)) if shape else ()


def _rebuild_tensor(buffer: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool) -> Any:
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
    return delivered(tensor.requires_grad_() if requires_grad else tensor)


def _rebuild_slice(buffer: Any, base: Any) -> tuple[Any, int]:
    import torch

    if isinstance(buffer, torch.Tensor):
        raw = buffer
    elif memoryview(buffer).nbytes:
        raw = torch.frombuffer(buffer, dtype=torch.uint8)
    else:
        raw = torch.empty(0, dtype=torch.uint8)
    return delivered(raw).untyped_storage(), int.from_bytes(base, "little")


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
    storage, base = anchor if type(anchor) is tuple else (anchor.untyped_storage(), 0)
    start = max(0, offset - base // kind.itemsize)  # one without elements may lie before it
    # The storage was delivered already, once for all tensors that share it.
    tensor = _no_numbers(kind, storage.device).set_(storage, start, shape, stride)
    return tensor.requires_grad_() if requires_grad else tensor


def _no_numbers(kind: Any, device: Any = None) -> Any:
    """Return a tensor without elements, and without the warning that torch has for some dtypes."""
    import torch

    return torch.empty(0, dtype=torch.uint8, device=device).view(kind)


def _storage_of(anchor: Any) -> Any:
    return anchor[0] if type(anchor) is tuple else anchor.untyped_storage()


def _typed_storage_of(storage: Any, dtype: str) -> Any:
    import torch

    return torch.storage.TypedStorage(
        wrap_storage=storage, dtype=getattr(torch, dtype), _internal=True
    )


def _set_attributes(tensor: Any, state: dict[str, Any]) -> None:
    vars(tensor).update(state)
