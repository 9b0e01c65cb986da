# SPDX-License-Identifier: Apache-2.0
"""The encoder: any value becomes (kind, pickle bytes, buffers), and back.

Two picklers share the work. C pickle is fast and right for nearly everything; it is *wrong*, and
silently so, for classes and functions of ``__main__`` (it writes their name, and the reader's
``__main__`` is another program) and for handles whose pickle needs the cluster's own bookkeeping.
So the fast pickle is discarded, and the value pickled by value, if the bytes mention ``__main__``,
if the value contains an opaque type (an ObjectRef, an actor handle), or if C pickle fails.

Arrays and tensors go out of band: the channel gets their bytes as buffers, and the pickle has only
dtype and shape. NumPy arrays of every size arrive read-only, so that they may share memory. Torch
tensors arrive writable, because torch has no other kind, and the channel gives each reader its own
memory for them.

A tensor keeps everything that ``pickle`` keeps: strides, attributes, ``requires_grad``. Tensors of
one value that share a storage arrive sharing one. ``pickle`` writes a whole storage; here only the
bytes travel that the value's tensors span, from the first element to the last. So a row of a large
batch travels alone, and its ``storage_offset`` counts from the beginning of these bytes.

This room knows nothing of Ray, channels or graphs: the cluster's pickler and its opaque types are
passed in.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from rcg.error_text import describe_error, is_ctrl_c_possible, shielded, shortened, type_name
from rcg.errors import UnpicklableError

__all__ = [
    "KIND_BYTES",
    "KIND_FAILURE",
    "KIND_PARTS",
    "KIND_PICKLE",
    "KIND_TUPLE",
    "Codec",
    "Encoded",
    "Failure",
    "encoded_failure",
    "join_parts",
    "loads",
    "size_of",
    "tuple_of_parts",
]

loads: Final = pickle.loads

PROTOCOL: Final = 5
_ATOMS: Final = frozenset({type(None), bool, int, float, complex, str, bytearray, range})
# Types of immutable values whose unpickling runs no code and cannot fail, so that several of them
# may share one pickle.
_PLAIN: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
# A pickle of several values may be so long; longer values would be copied once more than alone.
_MAX_TUPLE_BYTES: Final = 4096
_BY_NAME_ELSEWHERE: Final = b"__main__"
_MAX_SEARCH_DEPTH: Final = 20
_MAX_KEY_CHARS: Final = 80
_NUMBERS: Final = frozenset("biufc")
# Dtypes of torch's that NumPy has, too.
_NUMPYS: Final = frozenset(
    ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool",
     "complex64", "complex128")
)  # fmt: skip
_ALIGNMENT: Final = 64  # of the part of a storage that travels, within the storage


# The kinds of frames. The native core reads these numbers, too.
KIND_PICKLE: Final = 1
KIND_BYTES: Final = 2  # the value itself, without a pickle
KIND_FAILURE: Final = 3
KIND_PARTS: Final = 4  # several values, each encoded on its own
KIND_TUPLE: Final = 5  # several plain values in one pickle

# A value ready for a channel: (kind, data, buffers, writable). A plain tuple, for speed.
#   kind      KIND_PICKLE, or KIND_BYTES: `data` is the value itself
#   data      the pickle; KIND_PARTS: the kind and the number of buffers of each part, as uint32
#   buffers   its out-of-band buffers in order, or None; KIND_PARTS: for each part its data and then
#             its buffers
#   writable  bit i is set when the object over buffer i will be written to (a tensor); with more
#             than 64 buffers, byte i
Encoded = tuple[int, bytes, "list[Any] | None", "int | bytes"]


class Failure:
    """It travels in place of a value whose method failed.

    Args:
        data: The pickled error; only the driver unpickles it.
    """

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


def size_of(encoded: Encoded) -> int:
    """Return the bytes of the pickle and of all buffers."""
    _, data, buffers, _ = encoded
    return len(data) + sum(memoryview(buffer).nbytes for buffer in buffers or ())


def encoded_failure(failure: Failure) -> Encoded:
    """Return a failure as it travels in place of a value."""
    return KIND_FAILURE, failure.data, None, 0


def tuple_of_parts(values: Sequence[object]) -> Encoded | None:
    """Return several values in one pickle, or None if they must be encoded one by one.

    One pickle is many times faster. It is right for small values of plain types only: others share
    objects, run code when they are unpickled, or fail, and a value may not affect another.
    """
    if not _PLAIN.issuperset(map(type, values)):
        return None
    data = pickle.dumps(tuple(values), PROTOCOL)
    return None if len(data) > _MAX_TUPLE_BYTES else (KIND_TUPLE, data, None, 0)


def join_parts(parts: Sequence[Encoded]) -> Encoded:
    """Return several encoded values as one, which a channel sends in one frame.

    >>> kind, heads, buffers, writable = join_parts([(KIND_BYTES, b"x", None, 0)] * 2)
    >>> list(array("I", heads)), buffers
    ([2, 0, 2, 0], [b'x', b'x'])
    """
    heads = array("I")
    buffers: list[Any] = []
    writable = 0
    for kind, data, own, flags in parts:
        heads.extend((kind, len(own or ())))
        buffers.append(data)
        if own:
            if isinstance(flags, bytes):
                flags = sum(1 << i for i, is_written in enumerate(flags) if is_written)
            writable |= flags << len(buffers)
            buffers += own
    if len(buffers) <= 64:
        return KIND_PARTS, heads.tobytes(), buffers, writable
    flags = bytes([writable >> i & 1 for i in range(len(buffers))])
    return KIND_PARTS, heads.tobytes(), buffers, flags


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


def _reduce_buffer(buffer: Any) -> Any:
    """Return it as a ``pickle.PickleBuffer``, the type that the sender used."""
    return _same, (pickle.PickleBuffer(buffer),)


def _same(buffer: Any) -> Any:
    return buffer


class _Part:
    """The part of a torch storage that the tensors of one value span; it goes out of band.

    It is pickled in place of the storage. The part is known after the last tensor, so the buffer is
    cut then, and its offset goes out of band as well.
    """

    __slots__ = ("_base", "_buffers", "_index", "_raw", "first", "last", "storage")

    def __init__(self, storage: Any, buffers: list[pickle.PickleBuffer]) -> None:
        torch = sys.modules["torch"]
        self.storage = storage
        self.first = self.last = 0  # in bytes
        self._raw = torch.empty(0, dtype=torch.uint8).set_(storage).numpy().view(_TensorBytes)
        self._base = bytearray(8)
        self._buffers = buffers
        self._index = -1

    def __reduce__(self) -> Any:
        self._index = len(self._buffers)  # where the pickler is about to put it
        return _rebuild_part, (pickle.PickleBuffer(self._raw), pickle.PickleBuffer(self._base))

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


class _Storages:
    """Writes tensors for one pickler: all that ``pickle`` keeps, with the bytes out of band.

    A storage travels once for all tensors of a value. It is written as the first tensor if that
    covers the storage, otherwise as a ``_Part``.

    Args:
        buffers: Where the pickler puts them.
    """

    __slots__ = ("_buffers", "_dtypes", "_strided", "_uint8", "known")

    def __init__(self, buffers: list[pickle.PickleBuffer], dtypes: dict[Any, str]) -> None:
        self._buffers = buffers
        self._dtypes = dtypes
        # The replacement of each storage of the current value, by its address.
        self.known: dict[int, Any] = {}

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
            if type(anchor) is _Part:
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
            raw = pickle.PickleBuffer(plain.numpy().view(_TensorBytes))
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
        if type(anchor) is _Part and 0 not in shape:
            last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
            anchor.take(offset * itemsize, (last + 1) * itemsize)
        return anchor, self._dtypes[tensor.dtype], offset, shape, stride, tensor.requires_grad

    def _anchor_of(self, storage: Any, address: int) -> Any:
        """Return the replacement of a storage in this value: a tensor that covers it, or a part."""
        anchor = self.known.get(address)
        if anchor is None:
            anchor = self.known[address] = _Part(storage, self._buffers)
        return anchor

    def _reduce_storage(self, storage: Any) -> Any:
        if storage.device.type != "cpu":
            return storage.__reduce_ex__(PROTOCOL)
        anchor = self._anchor_of(storage, storage._cdata)
        if type(anchor) is _Part:
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
        tensor = torch.frombuffer(buffer, dtype=kind)
        if len(shape) != 1:
            tensor = tensor.view(shape)
    return tensor.requires_grad_() if requires_grad else tensor


def _rebuild_part(buffer: Any, base: Any) -> tuple[Any, int]:
    import torch

    size = memoryview(buffer).nbytes
    raw = torch.frombuffer(buffer, dtype=torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
    return raw.untyped_storage(), int.from_bytes(base, "little")


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
    tensor = _no_numbers(kind).set_(storage, start, shape, stride)
    return tensor.requires_grad_() if requires_grad else tensor


def _no_numbers(kind: Any) -> Any:
    """Return a tensor without elements, and without the warning that torch has for some dtypes."""
    import torch

    return torch.empty(0, dtype=torch.uint8).view(kind)


def _storage_of(anchor: Any) -> Any:
    return anchor[0] if type(anchor) is tuple else anchor.untyped_storage()


def _typed_storage_of(storage: Any, dtype: str) -> Any:
    import torch

    return torch.storage.TypedStorage(
        wrap_storage=storage, dtype=getattr(torch, dtype), _internal=True
    )


def _set_attributes(tensor: Any, state: dict[str, Any]) -> None:
    vars(tensor).update(state)


class _Sink:
    """The file of a pickler: a list of pieces."""

    __slots__ = ("write",)

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self.write = write


class _Fast:
    """A C pickler that is used again and again, which halves the cost of a small value."""

    __slots__ = ("buffers", "clear", "dump", "pieces", "storages")

    def __init__(self, table: dict[type, Callable[[Any], Any]], dtypes: dict[Any, str]) -> None:
        self.pieces: list[bytes] = []
        self.buffers: list[pickle.PickleBuffer] = []
        self.storages = _Storages(self.buffers, dtypes)
        sink: Any = _Sink(self.pieces.append)
        pickler = pickle.Pickler(sink, PROTOCOL, buffer_callback=self.buffers.append)
        pickler.dispatch_table = {**table, **self.storages.reducers()}
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
        buffer_types: Types of buffers that arrive in values and are passed on as they are.
    """

    def __init__(
        self,
        by_value_pickler: type[Any],
        opaque_types: Iterable[type] = (),
        registered_by_value: Callable[[], Iterable[str]] = tuple,
        buffer_types: Iterable[type] = (),
    ) -> None:
        reducers: dict[type, Callable[[Any], Any]] = {
            np.ndarray: _reduce_array,
            **dict.fromkeys(buffer_types, _reduce_buffer),
        }
        self._reducers = reducers
        self._registered_by_value = registered_by_value
        self._table = dict(copyreg.dispatch_table)
        self._table.update(reducers)
        self._table.update(dict.fromkeys(opaque_types, _refuse))
        self._copyreg_seen = len(copyreg.dispatch_table)
        self._dtypes: dict[Any, str] = {}  # torch's, once it is imported

        class ByValuePickler(by_value_pickler):
            def __init__(
                self, file: Any, buffers: list[pickle.PickleBuffer], dtypes: dict[Any, str]
            ) -> None:
                super().__init__(file, PROTOCOL, buffer_callback=buffers.append)
                self.storages = _Storages(buffers, dtypes)
                self.tensor_reducers = self.storages.reducers()

            def reducer_override(self, obj: Any) -> Any:
                kind = type(obj)
                reduce = self.tensor_reducers.get(kind) or reducers.get(kind)
                return reduce(obj) if reduce is not None else super().reducer_override(obj)

        self._by_value = ByValuePickler
        # Picklers at rest. Taken out while in use: other threads, and values whose own pickling
        # encodes, find none and make another. A new list when their tables are no longer right.
        self._spare: list[_Fast] = []

    def encode(self, value: object) -> Encoded:
        """Return the value as bytes and buffers; the buffers still point into the value.

        Raises:
            UnpicklableError: Some part of the value cannot be pickled; the text says which.
        """
        if type(value) is bytes:
            return KIND_BYTES, value, None, 0
        if type(value) in _ATOMS:
            return KIND_PICKLE, pickle.dumps(value, PROTOCOL), None, 0
        if not self._dtypes or len(copyreg.dispatch_table) != self._copyreg_seen:
            self._catch_up()
        buffers: list[pickle.PickleBuffer] = []
        spare = self._spare
        try:
            fast = spare.pop() if spare else _Fast(self._table, self._dtypes)
        except IndexError:  # another thread was quicker
            fast = _Fast(self._table, self._dtypes)
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
                if fast.storages.known:
                    fast.storages.finish(buffers)
            spare.append(fast)
            if _BY_NAME_ELSEWHERE in data:
                raise _Opaque
        except BaseException as error:
            # Whatever made C pickle refuse, the second pickler decides.
            if self._came_from_outside(error, value):
                raise
            data = self._encode_by_value(value, buffers := [])
        if not buffers:
            return KIND_PICKLE, data, None, 0
        return KIND_PICKLE, data, buffers, self._writable(buffers)

    def encode_parts(self, values: Sequence[object]) -> Encoded:
        """Return several values as one frame has them; see ``encode``."""
        return tuple_of_parts(values) or join_parts(list(map(self.encode, values)))

    def _encode_by_value(self, value: object, buffers: list[pickle.PickleBuffer]) -> bytes:
        file = io.BytesIO()
        try:
            pickler = self._by_value(file, buffers, self._dtypes)
            pickler.dump(value)
            pickler.storages.finish(buffers)
        except BaseException as error:
            if self._came_from_outside(error, value):
                raise
            where, part = shielded(
                self._find_unpicklable, value, "value", otherwise=("value", value)
            )
            raise UnpicklableError(
                f"{where} cannot be sent to another process: {type_name(type(part))} does not "
                f"pickle ({describe_error(error)})",
                where=where,
            ) from error
        return file.getvalue()

    def _came_from_outside(self, error: BaseException, value: object) -> bool:
        """Return whether an exception during pickling did not come from the value.

        That is so for Ctrl-C, and for an exception that ends a program if pickling the value again
        does not raise it: then a signal handler raised it.
        """
        if issubclass(type(error), Exception):
            return False
        if issubclass(type(error), KeyboardInterrupt) and is_ctrl_c_possible():
            return True
        return not self._raises(value)

    def _raises(self, value: object) -> bool:
        """Return whether pickling a value raises, with nothing but Ctrl-C let through."""

        def pickle_it() -> bool:
            self._by_value(io.BytesIO(), [], self._dtypes).dump(value)
            return False

        return shielded(pickle_it, otherwise=True)

    def _find_unpicklable(self, value: object, path: str, depth: int = 0) -> tuple[str, object]:
        """The innermost part that does not pickle on its own, and the way to it."""
        children: Iterable[tuple[str, object]]
        if isinstance(value, dict):
            children = [(f"{path}[{_key_text(key)}]", child) for key, child in value.items()]
        elif isinstance(value, (list, tuple)):
            children = [(f"{path}[{i}]", child) for i, child in enumerate(value)]
        elif isinstance(value, (set, frozenset)):
            children = [(f"{path}{{...}}", child) for child in value]
        elif hasattr(value, "__dict__") and not isinstance(value, type):
            children = [(f"{path}.{name}", child) for name, child in vars(value).items()]
        else:
            children = ()
        if depth < _MAX_SEARCH_DEPTH:
            for where, child in children:
                if self._raises(child):
                    return self._find_unpicklable(child, where, depth + 1)
        return path, value

    def _writable(self, buffers: list[pickle.PickleBuffer]) -> int | bytes:
        if not self._dtypes:
            return 0
        tensors = [isinstance(memoryview(buffer).obj, _TensorBytes) for buffer in buffers]
        if len(buffers) > 64:
            return bytes(tensors)
        return sum(1 << i for i, is_tensor in enumerate(tensors) if is_tensor)

    def _catch_up(self) -> None:
        """Update the pickler for modules and types that appeared since the last value."""
        torch: Any = sys.modules.get("torch")
        if torch is not None and not self._dtypes and hasattr(torch, "storage"):
            found = [kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)]
            self._dtypes = {kind: str(kind).removeprefix("torch.") for kind in found}
            self._spare = []
        if len(copyreg.dispatch_table) != self._copyreg_seen:
            self._copyreg_seen = len(copyreg.dispatch_table)
            for kind, reduce in copyreg.dispatch_table.items():
                self._table.setdefault(kind, reduce)
            self._spare = []


def _key_text(key: object) -> str:
    """Return a key as part of the path to a value."""
    text = shielded(repr, key, otherwise=None)
    return "..." if text is None else shortened("".join((text,)), _MAX_KEY_CHARS)
