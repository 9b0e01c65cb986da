# SPDX-License-Identifier: Apache-2.0
"""The one encoder: any value to (kind, pickle bytes, buffers), and back.

Two picklers share the work. C pickle is fast and right for nearly everything; it is *wrong*, and
silently so, for classes and functions of ``__main__`` (it writes their name, and the reader's
``__main__`` is another program) and for handles whose pickle needs the cluster's own bookkeeping.
So the fast pickle is thrown away, and the value pickled by value, when the bytes mention
``__main__``, when an opaque type (an ObjectRef, an actor handle) is met, or when C pickle refuses.

Arrays and tensors go out of band: their bytes are handed to the channel as buffers, their pickle
holds only dtype and shape. NumPy arrays arrive read-only, of whatever size, so that they may share
memory; torch tensors arrive writable, because torch has no other kind, and the channel gives each
reader its own memory for them.

This room knows nothing of Ray, of channels or of graphs: the cluster's pickler and its opaque types
are handed in.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from rcg import _native
from rcg.errors import UnpicklableError

__all__ = ["Codec", "Encoded", "loads", "size_of"]

loads: Final = pickle.loads

PROTOCOL: Final = 5
_ATOMS: Final = frozenset({type(None), bool, int, float, complex, str, bytearray, range})
_BY_NAME_ELSEWHERE: Final = b"__main__"
_DEEPEST_SEARCH: Final = 20
_NUMBERS: Final = frozenset("biufc")


# A value ready for a channel: (kind, data, buffers, writable). A plain tuple, for speed.
#   kind      _native.KIND_PICKLE, or KIND_BYTES: `data` is the value itself
#   data      the pickle
#   buffers   its out-of-band buffers in order, or None
#   writable  bit i is set when the object over buffer i will be written to (a tensor); with more
#             than 64 buffers, byte i
Encoded = tuple[int, bytes, "list[pickle.PickleBuffer] | None", "int | bytes"]


def size_of(encoded: Encoded) -> int:
    """Return the bytes of the pickle and of all buffers."""
    _, data, buffers, _ = encoded
    return len(data) + sum(memoryview(buffer).nbytes for buffer in buffers or ())


class _Opaque(Exception):
    """An object was met that only the cluster's pickler can write."""


class _TensorBytes(np.ndarray[Any, Any]):
    """The bytes of a tensor; the type is how its buffer is recognised later."""


def _refuse(_: object) -> Any:
    raise _Opaque


def _reduce_array(array: Any) -> Any:
    """Bytes out of band, dtype and shape in the pickle.

    As NumPy does it, but also for layouts and dtypes that NumPy would copy into the pickle, and in
    half the time for the plain numbers that nearly all large arrays are made of.
    """
    dtype = array.dtype
    flags = array.flags
    if dtype.kind in _NUMBERS and dtype.isbuiltin == 1 and flags.c_contiguous and array.size:
        return _rebuild_numbers, (pickle.PickleBuffer(array), dtype.char, array.shape)
    if dtype.hasobject:
        return array.__reduce_ex__(PROTOCOL)
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        array = array.copy(order="C")
    # The buffer protocol has no words for dates; strings, records and byte orders need care.
    if dtype.isbuiltin != 1:
        order: Any = "C" if array.flags.c_contiguous else "F"
        raw: Any = np.empty(0, np.uint8)
        if array.nbytes:
            raw = array.reshape((-1,), order=order).view(np.uint8)
        return _rebuild_array, (pickle.PickleBuffer(raw), dtype, array.shape, order)
    return array.__reduce_ex__(PROTOCOL)


def _rebuild_numbers(buffer: Any, char: str, shape: tuple[int, ...]) -> Any:
    array = np.frombuffer(buffer, char)
    return array if len(shape) == 1 else array.reshape(shape)


def _rebuild_array(buffer: Any, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any) -> Any:
    if 0 in shape or dtype.itemsize == 0:
        array = np.empty(shape, dtype, order)
        array.flags.writeable = False
        return array
    return np.frombuffer(buffer, np.uint8).view(dtype).reshape(shape, order=order)


def _reduce_tensor(tensor: Any) -> Any:
    torch = sys.modules["torch"]
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_quantized:
        return tensor.__reduce_ex__(PROTOCOL)
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    raw = plain.reshape(-1).view(torch.uint8).numpy().view(_TensorBytes)
    dtype = str(plain.dtype).removeprefix("torch.")
    shape, wants_grad = tuple(plain.shape), tensor.requires_grad
    return _rebuild_tensor, (pickle.PickleBuffer(raw), dtype, shape, wants_grad)


def _rebuild_tensor(buffer: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool) -> Any:
    import torch

    if 0 in shape:
        raw = torch.empty(0, dtype=torch.uint8)
    else:
        raw = torch.frombuffer(buffer, dtype=torch.uint8)
    tensor = raw.view(getattr(torch, dtype)).reshape(shape)
    return tensor.requires_grad_() if requires_grad else tensor


class _Sink:
    """What a pickler writes to: a list of pieces."""

    __slots__ = ("write",)

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self.write = write


class _Fast:
    """A C pickler that is used again and again, which halves the cost of a small value."""

    __slots__ = ("buffers", "clear", "dump", "pieces")

    def __init__(self, kind: type[pickle.Pickler]) -> None:
        self.pieces: list[bytes] = []
        self.buffers: list[pickle.PickleBuffer] = []
        sink: Any = _Sink(self.pieces.append)
        pickler = kind(sink, PROTOCOL, buffer_callback=self.buffers.append)
        self.dump = pickler.dump
        self.clear = pickler.clear_memo


class Codec:
    """Encodes values; one per process and graph. Decoding is ``loads`` alone and needs no codec.

    Any thread may encode.

    Args:
        by_value_pickler: A pickler class like cloudpickle's (``reducer_override``), which writes
            classes and functions of ``__main__`` by value and knows how to keep opaque objects
            alive.
        opaque_types: Exact types that only this pickler may write.
        registered_by_value: Says which whole modules the user asked to be pickled by value.
    """

    def __init__(
        self,
        by_value_pickler: type[Any],
        opaque_types: Iterable[type] = (),
        registered_by_value: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        reducers: dict[type, Callable[[Any], Any]] = {np.ndarray: _reduce_array}
        self._reducers = reducers
        self._registered_by_value = registered_by_value
        self._table = dict(copyreg.dispatch_table)
        self._table.update(reducers)
        self._table.update(dict.fromkeys(opaque_types, _refuse))
        self._copyreg_seen = len(copyreg.dispatch_table)
        self._knows_torch = False

        class FastPickler(pickle.Pickler):
            dispatch_table = self._table

        class ByValuePickler(by_value_pickler):
            def reducer_override(self, obj: Any) -> Any:
                reduce = reducers.get(type(obj))
                return reduce(obj) if reduce is not None else super().reducer_override(obj)

        self._fast = FastPickler
        self._by_value = ByValuePickler
        # Picklers at rest. Taken out while in use: other threads, and values whose own pickling
        # encodes, find none and make another.
        self._spare: list[_Fast] = []

    def encode(self, value: object) -> Encoded:
        """Return the value as bytes and buffers; the buffers still point into the value.

        Raises:
            UnpicklableError: Some part of the value cannot be pickled; the text says which.
        """
        if type(value) is bytes:
            return _native.KIND_BYTES, value, None, 0
        if type(value) in _ATOMS:
            return _native.KIND_PICKLE, pickle.dumps(value, PROTOCOL), None, 0
        if not self._knows_torch or len(copyreg.dispatch_table) != self._copyreg_seen:
            self._catch_up()
        buffers: list[pickle.PickleBuffer] = []
        try:
            fast = self._spare.pop() if self._spare else _Fast(self._fast)
        except IndexError:  # another thread was quicker
            fast = _Fast(self._fast)
        try:
            if self._registered_by_value():
                raise _Opaque
            fast.dump(value)
            pieces = fast.pieces
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            fast.clear()
            if fast.buffers:
                buffers = fast.buffers.copy()
                fast.buffers.clear()
            self._spare.append(fast)
            if _BY_NAME_ELSEWHERE in data:
                raise _Opaque
        except Exception:  # noqa: BLE001 - whatever made C pickle refuse, the second pickler decides
            data = self._encode_by_value(value, buffers := [])
        if not buffers:
            return _native.KIND_PICKLE, data, None, 0
        return _native.KIND_PICKLE, data, buffers, self._writable(buffers)

    def _encode_by_value(self, value: object, buffers: list[pickle.PickleBuffer]) -> bytes:
        file = io.BytesIO()
        try:
            self._by_value(file, PROTOCOL, buffer_callback=buffers.append).dump(value)
        except Exception as error:
            try:
                where, part = self._find_unpicklable(value, "value")
            except Exception:  # noqa: BLE001 - looking runs users' code, too
                where, part = "value", value
            kind = f"{type(part).__module__}.{type(part).__qualname__}"
            raise UnpicklableError(
                f"{where} cannot be sent to another process: {kind} does not pickle ({error})",
                where=where,
            ) from error
        return file.getvalue()

    def _find_unpicklable(self, value: object, path: str, depth: int = 0) -> tuple[str, object]:
        """The innermost part that does not pickle on its own, and the way to it."""
        children: Iterable[tuple[str, object]]
        if isinstance(value, dict):
            children = [(f"{path}[{key!r}]", child) for key, child in value.items()]
        elif isinstance(value, (list, tuple)):
            children = [(f"{path}[{i}]", child) for i, child in enumerate(value)]
        elif isinstance(value, (set, frozenset)):
            children = [(f"{path}{{...}}", child) for child in value]
        elif hasattr(value, "__dict__") and not isinstance(value, type):
            children = [(f"{path}.{name}", child) for name, child in vars(value).items()]
        else:
            children = ()
        if depth < _DEEPEST_SEARCH:
            for where, child in children:
                try:
                    file = io.BytesIO()
                    self._by_value(file, PROTOCOL, buffer_callback=lambda _: False).dump(child)
                except Exception:  # noqa: BLE001 - looking for the part that raises
                    return self._find_unpicklable(child, where, depth + 1)
        return path, value

    def _writable(self, buffers: list[pickle.PickleBuffer]) -> int | bytes:
        if not self._knows_torch:
            return 0
        tensors = [isinstance(memoryview(buffer).obj, _TensorBytes) for buffer in buffers]
        if len(buffers) > 64:
            return bytes(tensors)
        return sum(1 << i for i, is_tensor in enumerate(tensors) if is_tensor)

    def _catch_up(self) -> None:
        """Follow what was imported or registered since the last value."""
        if not self._knows_torch:
            tensor = getattr(sys.modules.get("torch"), "Tensor", None)
            if tensor is not None:
                self._knows_torch = True
                self._reducers[tensor] = self._table[tensor] = _reduce_tensor
        if len(copyreg.dispatch_table) != self._copyreg_seen:
            self._copyreg_seen = len(copyreg.dispatch_table)
            for kind, reduce in copyreg.dispatch_table.items():
                self._table.setdefault(kind, reduce)
