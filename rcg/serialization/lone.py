# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays in pickles, and values that are exactly one array or one tensor.

The bytes of an array are out of band, its dtype and shape in the pickle. Arrays of every size
arrive read-only, so that they may share memory.

A value that is one array or tensor is encoded without a pickler. Its bytes are out of band, so the
pickle depends on dtype and shape alone: the writer keeps those that it has made, and the reader
keeps what such a pickle calls. What travels is what the pickler would write. For 16 numbers, where
the work is not the copying, this saves most of the time.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from rcg.serialization.encoded import KIND_PICKLE, PROTOCOL, Encoded
from rcg.serialization.tensors import bytes_of_whole, is_whole, rebuild_tensor, tensor_type

_NUMBERS: Final = frozenset("biufc")


def is_plain_array(array: Any) -> bool:
    """Return whether its bytes, the letter of its dtype and its shape are all of an array."""
    dtype = array.dtype
    return (
        dtype.kind in _NUMBERS
        and dtype.isbuiltin != 2  # registered by another package
        and dtype.isnative  # `isbuiltin` is 0 for a dtype that was unpickled, too
        and dtype.fields is None  # an integer may have some: np.dtype(("u4", [("r", "u1"), ...]))
        and dtype.metadata is None
        and array.flags.c_contiguous
        and array.size > 0
    )


def reduce_array(array: Any) -> Any:
    """Reduce an array as NumPy does, with its bytes out of band.

    But also for layouts and dtypes that NumPy would copy into the pickle, and in half the time for
    the plain numbers that nearly all large arrays are made of.
    """
    dtype = array.dtype
    if is_plain_array(array):
        return rebuild_numbers, (pickle.PickleBuffer(array), dtype.char, array.shape)
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


def rebuild_numbers(buffer: Any, char: str, shape: tuple[int, ...]) -> Any:
    """Return the array over its bytes; called by pickles."""
    array = np.frombuffer(buffer, char)
    return array if len(shape) == 1 else array.reshape(shape)


def _rebuild_array(buffer: Any, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any) -> Any:
    if 0 in shape or dtype.itemsize == 0:
        array = np.empty(shape, dtype, order)
        array.flags.writeable = False
        return array
    return np.frombuffer(buffer, np.uint8).view(dtype).reshape(shape, order=order)


def reduce_buffer(buffer: Any) -> Any:
    """Return it as a ``pickle.PickleBuffer``, the type that the sender used."""
    return _same, (pickle.PickleBuffer(buffer),)


def _same(buffer: Any) -> Any:
    return buffer


_MOST: Final = 256  # pickles that are kept; a program has few shapes, or too many to keep

_calls: Final[dict[bytes, tuple[Callable[..., Any], tuple[Any, ...]]]] = {}  # of a known pickle


def lone_array(array: Any) -> Encoded | None:
    """Return an array of numbers as it travels; None if that takes a pickler."""
    if not is_plain_array(array):
        return None
    args = array.dtype.char, array.shape
    pickled = _pickle(rebuild_numbers, not array.flags.writeable, args)
    return KIND_PICKLE, pickled, [pickle.PickleBuffer(array)], 0


def lone_tensor(tensor: Any, dtypes: dict[Any, str]) -> Encoded | None:
    """Return a tensor in host memory as it travels; None if that takes a pickler.

    ``dtypes`` are the names of torch's dtypes.
    """
    if not tensor.is_cpu or tensor.requires_grad or tensor.__dict__ or not is_whole(tensor):
        return None
    name, shape = dtypes[tensor.dtype], tuple(tensor.shape)
    pickled = _pickle(rebuild_tensor, False, (name, shape, False))
    return KIND_PICKLE, pickled, [bytes_of_whole(tensor, name, shape)], 1


def loads(data: Any, buffers: Sequence[Any] | None = None) -> Any:
    """Return the value of a pickle and its buffers, as ``pickle.loads`` does."""
    if buffers is None:
        return pickle.loads(data)
    if len(buffers) != 1 or type(data) is not bytes:
        return pickle.loads(data, buffers=buffers)
    known = _calls.get(data)
    if known is not None:
        return known[0](buffers[0], *known[1])
    value = pickle.loads(data, buffers=buffers)
    if len(_calls) < _MOST:
        _note(data, value)
    return value


def _note(data: bytes, value: Any) -> None:
    """Keep what a pickle calls, if it is that of a lone array or tensor."""
    args: tuple[Any, ...]
    if type(value) is np.ndarray and is_plain_array(value):
        args = value.dtype.char, value.shape
        if data == _pickle(rebuild_numbers, False, args):
            _calls[data] = rebuild_numbers, args
        elif data == _pickle(rebuild_numbers, True, args):
            _calls[data] = _rebuild_read_only, args
    elif type(value) is tensor_type():
        args = str(value.dtype).removeprefix("torch."), tuple(value.shape), False
        if data == _pickle(rebuild_tensor, False, args):
            _calls[data] = rebuild_tensor, args


def _rebuild_read_only(buffer: Any, char: str, shape: tuple[int, ...]) -> Any:
    array = rebuild_numbers(buffer, char, shape)
    array.flags.writeable = False
    return array


class _Call:
    """Pickles as the call of a function with a buffer and other arguments."""

    def __init__(self, function: Callable[..., Any], buffer: Any, args: tuple[Any, ...]) -> None:
        self._reduced = function, (pickle.PickleBuffer(buffer), *args)

    def __reduce__(self) -> Any:
        return self._reduced


@functools.lru_cache(_MOST)
def _pickle(function: Callable[..., Any], is_read_only: bool, args: tuple[Any, ...]) -> bytes:
    """Return the pickle of a call with a buffer that is out of band."""
    call = _Call(function, b"" if is_read_only else bytearray(), args)
    out_of_band: list[pickle.PickleBuffer] = []
    return pickle.dumps(call, PROTOCOL, buffer_callback=out_of_band.append)
