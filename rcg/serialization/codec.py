# SPDX-License-Identifier: Apache-2.0
"""The encoder: any value becomes (kind, pickle bytes, buffers), and back.

C pickle is fast and right for nearly everything. It is silently *wrong* for classes and functions
of ``__main__`` (it writes their name, and the reader's ``__main__`` is another program) and for
handles whose pickle needs the cluster's own bookkeeping. So its pickle is discarded, and the value
pickled by value, if the bytes mention ``__main__``, if the value contains an opaque type (an
ObjectRef, an actor handle), or if C pickle fails.

Arrays and tensors go out of band: the channel gets their bytes as buffers, and the pickle has only
dtype and shape. This room knows nothing of Ray, channels or graphs: the cluster's pickler and its
opaque types are passed in.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from rcg.error_text import describe_error, is_ctrl_c_possible, shielded, shortened, type_name
from rcg.errors import UnpicklableError
from rcg.serialization.encoded import (
    KIND_BYTES,
    KIND_PICKLE,
    PROTOCOL,
    Encoded,
    join_parts,
    tuple_of_parts,
    written_to,
)
from rcg.serialization.foreign import FromDlpack, import_torch, reducer_of
from rcg.serialization.lone import loads, lone_array, lone_tensor, reduce_array, reduce_buffer
from rcg.serialization.pinned import Pins
from rcg.serialization.tensors import Described, Storages, TensorBytes, target_device

_ATOMS: Final = frozenset({type(None), bool, int, float, complex, str, bytearray, range})
_BY_NAME_ELSEWHERE: Final = b"__main__"
_MAX_SEARCH_DEPTH: Final = 20
_MAX_KEY_CHARS: Final = 80


class _Opaque(Exception):
    """An object was met that only the cluster's pickler can write."""


def _refuse(_: object) -> Any:
    raise _Opaque


class _Fast:
    """A C pickler that is used again and again, which halves the cost of a small value."""

    __slots__ = ("buffers", "clear", "dump", "pieces", "storages")

    def __init__(self, table: dict[type, Callable[[Any], Any]], dtypes: dict[Any, str]) -> None:
        self.pieces: list[bytes] = []
        self.buffers: list[pickle.PickleBuffer] = []
        self.storages = Storages(self.buffers, dtypes)
        sink: Any = SimpleNamespace(write=self.pieces.append)
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
        array_types: Types of arrays that travel as tensors; see ``register_array_type``.
    """

    def __init__(
        self,
        by_value_pickler: type[Any],
        opaque_types: Iterable[type] = (),
        registered_by_value: Callable[[], Iterable[str]] = tuple,
        buffer_types: Iterable[type] = (),
        array_types: Mapping[type, FromDlpack] | None = None,
    ) -> None:
        reducers: dict[type, Callable[[Any], Any]] = {
            np.ndarray: reduce_array,
            **dict.fromkeys(buffer_types, reduce_buffer),
            **reducer_of(array_types or {}),
        }
        if array_types:
            import_torch()  # tensors must be known before the first array is met
        self._has_plain_arrays = reducers[np.ndarray] is reduce_array
        self._registered_by_value = registered_by_value
        self._table = dict(copyreg.dispatch_table)
        self._table.update(reducers)
        self._table.update(dict.fromkeys(opaque_types, _refuse))
        self._copyreg_seen = len(copyreg.dispatch_table)
        self._dtypes: dict[Any, str] = {}  # torch's, once it is imported
        self._tensor: type | None = None  # and this

        class ByValuePickler(by_value_pickler):
            def __init__(
                self, file: Any, buffers: list[pickle.PickleBuffer], dtypes: dict[Any, str]
            ) -> None:
                super().__init__(file, PROTOCOL, buffer_callback=buffers.append)
                self.storages = Storages(buffers, dtypes)
                self.tensor_reducers = self.storages.reducers()

            def reducer_override(self, obj: Any) -> Any:
                kind = type(obj)
                reduce = self.tensor_reducers.get(kind) or reducers.get(kind)
                return reduce(obj) if reduce is not None else super().reducer_override(obj)

        class ApartPickler(ByValuePickler):
            apart: list[Any]

            def persistent_id(self, obj: Any) -> int | None:
                if type(obj) not in opaque:
                    return None
                self.apart.append(obj)
                return len(self.apart) - 1

        opaque = frozenset(opaque_types)
        self._by_value = ByValuePickler
        self._by_value_apart = ApartPickler
        # Picklers at rest. Taken out while in use: other threads, and values whose own pickling
        # encodes, find none and make another. A new list when their tables are no longer right.
        self._spare: list[_Fast] = []

    def encode(
        self,
        value: object,
        described: list[Described] | None = None,
        staying: Container[str] = (),
        apart: list[Any] | None = None,
    ) -> Encoded:
        """Return the value as bytes and buffers; the buffers still point into the value.

        Args:
            value: Any value.
            described: Where the dtypes and shapes of its tensors are put, if that is wanted.
            staying: The types of devices whose tensors stay there: the buffers of these are
                ``DeviceBytes``, and only ``payloads.take_out`` makes use of them. Tensors on other
                devices are copied to host memory.
            apart: Where its objects of opaque types are put, which then are not in the pickle:
                ``loads_with`` puts them back. None has the cluster's pickler write them.

        Raises:
            UnpicklableError: Some part of the value cannot be pickled; the text says which.
        """
        if type(value) is bytes:
            return KIND_BYTES, value, None, 0
        kind = type(value)
        if kind in _ATOMS:
            return KIND_PICKLE, pickle.dumps(value, PROTOCOL), None, 0
        if not self._dtypes or len(copyreg.dispatch_table) != self._copyreg_seen:
            self._catch_up()
        lone = None
        if kind is np.ndarray and self._has_plain_arrays:
            lone = lone_array(value)
        elif kind is self._tensor and described is None and not staying:
            lone = lone_tensor(value, self._dtypes)
        if lone is not None:
            return lone
        buffers: list[pickle.PickleBuffer] = []
        spare = self._spare
        try:
            fast = spare.pop() if spare else _Fast(self._table, self._dtypes)
        except IndexError:  # another thread was quicker
            fast = _Fast(self._table, self._dtypes)
        try:
            if self._registered_by_value():
                raise _Opaque
            fast.storages.described, fast.storages.staying = described, staying
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
            if described is not None:
                described.clear()
            data = self._encode_by_value(value, buffers := [], described, staying, apart)
        if not buffers:
            return KIND_PICKLE, data, None, 0
        return KIND_PICKLE, data, buffers, self._writable(buffers)

    def encode_parts(self, values: Sequence[object]) -> Encoded:
        """Return several values as one frame has them; see ``encode``."""
        return tuple_of_parts(values) or join_parts(list(map(self.encode, values)))

    def _encode_by_value(
        self,
        value: object,
        buffers: list[pickle.PickleBuffer],
        described: list[Described] | None = None,
        staying: Container[str] = (),
        apart: list[Any] | None = None,
    ) -> bytes:
        file = io.BytesIO()
        try:
            if apart is None:
                pickler = self._by_value(file, buffers, self._dtypes)
            else:
                pickler = self._by_value_apart(file, buffers, self._dtypes)
                pickler.apart = apart
            pickler.storages.described, pickler.storages.staying = described, staying
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

        Ctrl-C did not; nor did an exception that ends a program if pickling the value again does
        not raise it: then a signal handler raised it.
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
        return written_to([isinstance(memoryview(each).obj, TensorBytes) for each in buffers])

    def _catch_up(self) -> None:
        """Update the pickler for modules and types that appeared since the last value."""
        torch: Any = sys.modules.get("torch")
        if torch is not None and not self._dtypes and hasattr(torch, "UntypedStorage"):
            found = [kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)]
            self._dtypes = {kind: str(kind).removeprefix("torch.") for kind in found}
            self._tensor = torch.Tensor
            self._spare = []
        if len(copyreg.dispatch_table) != self._copyreg_seen:
            self._copyreg_seen = len(copyreg.dispatch_table)
            for kind, reduce in copyreg.dispatch_table.items():
                self._table.setdefault(kind, reduce)
            self._spare = []


def loads_to(device: str, pins: Pins | None = None) -> Callable[..., Any]:
    """Return a function like ``pickle.loads`` whose tensors are moved to a type of devices.

    ``default`` is that of the device that each was on. ``pins`` locks the memory from which they
    are moved.
    """
    if device == "default":
        return loads

    def loads_there(data: Any, buffers: Sequence[Any] = ()) -> Any:
        if pins is not None:
            buffers = pins.lock(buffers)
        token = target_device.set(device)
        try:
            return pickle.loads(data, buffers=buffers)
        finally:
            target_device.reset(token)

    return loads_there


def loads_with(objects: Sequence[Any]) -> Callable[..., Any]:
    """Return a function like ``pickle.loads`` that puts objects back that were put apart."""
    if not objects:
        return loads

    def loads_them(data: Any, buffers: Sequence[Any] = ()) -> Any:
        unpickler = _Placing(io.BytesIO(data), buffers=buffers)
        unpickler.objects = objects
        return unpickler.load()

    return loads_them


class _Placing(pickle.Unpickler):
    objects: Sequence[Any]

    def persistent_load(self, place: Any) -> Any:
        return self.objects[place]


def _key_text(key: object) -> str:
    """Return a key as part of the path to a value."""
    text = shielded(repr, key, otherwise=None)
    return "..." if text is None else shortened("".join((text,)), _MAX_KEY_CHARS)
