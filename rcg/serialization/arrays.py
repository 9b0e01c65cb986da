# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays in pickles: their bytes out of band, dtype and shape in the pickle.

Arrays of every size arrive read-only, so that they may share memory.
"""

from __future__ import annotations

import pickle
from typing import Any, Final

import numpy as np

from rcg.serialization.encoded import PROTOCOL

_NUMBERS: Final = frozenset("biufc")


def is_plain_array(array: Any) -> bool:
    """Return whether its bytes, the letter of its dtype and its shape are all of an array."""
    dtype = array.dtype
    return (
        dtype.kind in _NUMBERS
        and dtype.isbuiltin != 2  # registered by another package
        and dtype.isnative  # `isbuiltin` is 0 for a dtype that was unpickled, too
        and dtype.metadata is None
        and array.flags.c_contiguous
        and array.size > 0
    )


def reduce_array(array: Any) -> Any:
    """Bytes out of band, dtype and shape in the pickle.

    As NumPy does it, but also for layouts and dtypes that NumPy would copy into the pickle, and in
    half the time for the plain numbers that nearly all large arrays are made of.
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
