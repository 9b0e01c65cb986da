# SPDX-License-Identifier: Apache-2.0
"""Values taken apart for a transport: the bytes of their tensors, and the skeleton that is left.

The pickle of a value has a place for each buffer. The buffers of tensors on the devices that a
communicator serves are the *payloads*: they travel over it, and the reader puts its own memory in
their places. Everything else is the *skeleton*: the pickle, the buffers of arrays, and those of
tensors on other devices, whose bytes are in host memory by then. So everything that pickles through
shared memory pickles here.

The *table* tells the reader how large the payloads are, on what they arrive, and where they
belong::

    >>> table = Table(places=(0, 2), sizes=(400, 64), devices=("cuda", "cpu"))
    >>> Table.read(table.to_bytes())
    (Table(places=(0, 2), sizes=(400, 64), devices=('cuda', 'cpu')), 56)

A value that is exactly one tensor travels without a skeleton (``LoneTable``).
"""

from __future__ import annotations

import pickle
import sys
from array import array
from collections.abc import Callable, Collection, Container, Sequence
from typing import Any, Final, NamedTuple

from rcg.errors import TensorMismatch
from rcg.serialization.encoded import PROTOCOL, Encoded, written_to
from rcg.serialization.tensors import (
    Described,
    DeviceBytes,
    device_of,
    is_dense,
    lacking,
    tensor_type,
)

_WORD: Final = 8


class Table(NamedTuple):
    """Where the payloads of a value belong."""

    places: tuple[int, ...]  # the index of each among the buffers of the pickle, ascending
    sizes: tuple[int, ...]  # the bytes of each
    devices: tuple[str, ...]  # the type of the device that each is on

    def to_bytes(self) -> bytes:
        """Return the table as bytes that ``read`` reads.

        They are words: how many payloads there are, the places, the sizes, and how many bytes of
        text follow: the devices, or nothing if all of them are the CPU.
        """
        is_only_cpu = self.devices.count("cpu") == len(self.devices)
        devices = b"" if is_only_cpu else " ".join(self.devices).encode()
        words = [len(self.places), *self.places, *self.sizes, len(devices)]
        return array("Q", words).tobytes() + devices

    @classmethod
    def read(cls, data: bytes | memoryview) -> tuple[Table, int]:
        """Return the table at the beginning of some bytes, and where it ends."""
        count = int.from_bytes(data[:_WORD], sys.byteorder)
        text = (2 + 2 * count) * _WORD
        *numbers, length = array("Q", bytes(data[_WORD:text])).tolist()
        end = text + length
        devices = tuple(bytes(data[text:end]).decode().split()) or ("cpu",) * count
        return cls(tuple(numbers[:count]), tuple(numbers[count:]), devices), end


class LoneTable(NamedTuple):
    """What a value is that is exactly one tensor."""

    dtype: str  # its name in torch: ``bfloat16``
    shape: tuple[int, ...]
    requires_grad: bool
    size: int  # in bytes
    device: str  # the type of the device that it is on

    def to_bytes(self) -> bytes:
        """Return the table as bytes that ``read`` reads."""
        return pickle.dumps(tuple(self), PROTOCOL)

    @classmethod
    def read(cls, data: bytes | memoryview) -> LoneTable:
        """Return the table that these bytes are."""
        return cls(*pickle.loads(data))

    @classmethod
    def of(cls, tensor: Any) -> LoneTable:
        """Return the table of a dense tensor."""
        size, dtype = tensor.numel() * tensor.element_size(), str(tensor.dtype)
        shape = tuple(tensor.shape)
        device = device_of(tensor)
        return cls(dtype.removeprefix("torch."), shape, tensor.requires_grad, size, device)

    def put_back(self, payload: Any) -> Any:
        """Return the tensor over its bytes: a tensor of uint8, or None if it has none."""
        torch = sys.modules["torch"]
        dtype = getattr(torch, self.dtype)
        if payload is None:
            payload = torch.empty(0, dtype=torch.uint8, device=self.device)
        tensor = payload.view(dtype)
        if len(self.shape) != 1:
            tensor = tensor.view(self.shape)
        return tensor.requires_grad_() if self.requires_grad else tensor


def bytes_of(tensor: Any) -> Any:
    """Return the bytes of a dense tensor: a tensor of uint8 [size]."""
    plain = tensor.detach() if tensor.requires_grad else tensor
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    if plain.stride() != (1,):
        # A dimension of one element or none may have any stride, which `view` refuses below.
        plain = plain.contiguous().as_strided((plain.numel(),), (1,))
    return plain.view(sys.modules["torch"].uint8)


def is_plain_tensor(value: object, devices: Container[str]) -> bool:
    """Return whether a value is a tensor that its numbers alone make up: no strides, no attributes.

    Such a value arrives the same with a ``LoneTable`` as with a pickle, and sooner. It may be on
    these types of devices.
    """
    if type(value) is not tensor_type():
        return False
    tensor: Any = value
    return (
        ("cpu" if tensor.is_cpu else tensor.device.type) in devices
        and is_dense(tensor)
        and tensor.is_contiguous()
        and not (1 in tensor.shape or 0 in tensor.shape)
        and not tensor.__dict__
        and not (tensor.requires_grad and (tensor._backward_hooks or not tensor.is_leaf))
        and not lacking(tensor)
    )


def check_direct(value: object, devices: Collection[str]) -> None:
    """Raise ``TensorMismatch`` unless a value is one dense tensor, as ``_direct_return`` says."""
    torch: Any = sys.modules.get("torch")
    if torch is None or type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise TensorMismatch(
            "Task annotated with _direct_return=True must return a torch.Tensor, instead found "
            f"value of type {type(value).__name__}. Return the tensor alone, or leave "
            "`_direct_return` out",
            expected="torch.Tensor",
            found=type(value).__name__,
        )
    tensor: Any = value
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        raise TensorMismatch(
            "Task annotated with _direct_return=True must return a dense torch.Tensor: leave "
            "`_direct_return` out for this one",
            expected="a dense torch.Tensor",
            found=str(tensor.layout),
        )
    if device_of(tensor) not in devices:
        raise TensorMismatch(
            "Task annotated with _direct_return=True must return a torch.Tensor on "
            f"{', '.join(sorted(devices))}, instead found one on {tensor.device}: move it there, "
            "or choose another transport",
            expected=", ".join(sorted(devices)),
            found=str(tensor.device),
        )
    why = lacking(tensor)
    if why:
        raise TensorMismatch(
            f"Task annotated with _direct_return=True must return a torch.Tensor with all of its "
            f"memory: {why}"
        )


class Skeleton(NamedTuple):
    """A value without the bytes of its tensors."""

    data: bytes | memoryview  # the pickle
    buffers: list[Any]  # those of the pickle that are not payloads, in order
    writable: int | bytes = 0  # which of them are those of tensors; see ``encoded``


def take_out(encoded: Encoded, devices: Container[str]) -> tuple[Skeleton, Table, list[Any]]:
    """Take the tensors on these devices out of a value that was encoded with ``staying=devices``.

    Returns:
        The skeleton, the table, and the payloads: tensors of uint8 [n] over the storages of the
        value's tensors, which they see moved or freed as these do. Tensors without elements have no
        payload.
    """
    torch = sys.modules["torch"]
    _, data, buffers, writable = encoded
    rest: list[Any] = []
    left: list[bool] = []  # which of the rest are those of tensors
    places: list[int] = []
    payloads: list[Any] = []
    found: list[str] = []
    takes_cpu = "cpu" in devices
    for place, buffer in enumerate(buffers or ()):
        is_tensor = writable[place] if isinstance(writable, bytes) else writable >> place & 1
        raw = memoryview(buffer)
        source: Any = raw.obj
        if is_tensor and type(source) is DeviceBytes:
            places.append(place)
            payloads.append(source.payload)
            found.append(device_of(source.payload))
        elif is_tensor and takes_cpu and raw.nbytes:
            places.append(place)
            payloads.append(torch.frombuffer(buffer, dtype=torch.uint8))
            found.append("cpu")
        else:
            rest.append(buffer)
            left.append(bool(is_tensor))
    sizes = tuple([payload.numel() for payload in payloads])
    table = Table(tuple(places), sizes, tuple(found))
    return Skeleton(data, rest, written_to(left) if rest else 0), table, payloads


def put_back(
    skeleton: Skeleton, table: Table, payloads: Sequence[Any], loads: Callable[..., Any]
) -> Any:
    """Return the value: its skeleton with these buffers in place of its tensors' bytes."""
    if not payloads and not skeleton.buffers:
        return loads(skeleton.data)
    rest, own = iter(skeleton.buffers), iter(payloads)
    places = set(table.places)
    count = len(skeleton.buffers) + len(payloads)
    merged = [next(own) if place in places else next(rest) for place in range(count)]
    return loads(skeleton.data, buffers=merged)


def described_text(described: Sequence[Described]) -> str:
    """Return dtypes and shapes for an error: ``[([3, 4], float32)]``."""
    return "[" + ", ".join(f"({list(shape)}, {dtype})" for dtype, shape in described) + "]"
