# SPDX-License-Identifier: Apache-2.0
"""Values as they travel: the kinds of frames, encoded values, and several of them in one frame."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Sequence
from typing import Any, Final

PROTOCOL: Final = 5
# Types of immutable values whose unpickling runs no code and cannot fail, so that several of them
# may share one pickle.
_PLAIN: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
# A pickle of several values may be so long; longer values would be copied once more than alone.
_MAX_TUPLE_BYTES: Final = 4096

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
    """Stands for the value of a method that failed.

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


def encode_failure(failure: Failure) -> Encoded:
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


def written_to(are_tensors: Sequence[bool]) -> int | bytes:
    """Return which buffers will be written to, as an ``Encoded`` has it.

    >>> written_to([False, True, True])
    6
    """
    if len(are_tensors) > 64:
        return bytes(are_tensors)
    return sum([1 << place for place, is_tensor in enumerate(are_tensors) if is_tensor])


def join_parts(parts: Sequence[Encoded]) -> Encoded:
    """Return several encoded values as one, which a channel sends in one frame.

    >>> kind, heads, buffers, writable = join_parts([(KIND_BYTES, b"x", None, 0)] * 2)
    >>> list(array("I", heads)), buffers
    ([2, 0, 2, 0], [b'x', b'x'])
    """
    if not any(own for _, _, own, _ in parts):
        heads = array("I", [number for part in parts for number in (part[0], 0)])
        return KIND_PARTS, heads.tobytes(), [data for _, data, _, _ in parts], 0
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
