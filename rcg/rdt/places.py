# SPDX-License-Identifier: Apache-2.0
"""Where bytes lie, for copies that go by address: no address without its length, on either side.

What copies by address (``peer_memory``, NIXL, a socket that receives into a tensor) takes ``Spans``
or ``raw_view`` and nothing else. Both are made when the copy is, from tensors as they are then: a
storage may be freed, moved or made smaller at any time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcg.rdt.parts import device_number
from rcg.serialization.tensors import lacking

Places = NDArray[np.int64]
"""The address, the bytes and the number of the device of pieces of memory: of [n, 3]."""


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Pieces of memory, and where each is copied.

    Attributes:
        there: Where they lie, perhaps in another process.
        here: Where they go.

    Raises:
        ValueError: A piece has another size than the place where it goes.
    """

    there: Places
    here: Places

    def __post_init__(self) -> None:
        if not np.array_equal(self.there[:, 1], self.here[:, 1]):
            raise ValueError(
                f"{int(self.there[:, 1].sum())} bytes are no copy into {int(self.here[:, 1].sum())}"
            )


def check_memory(payload: Any) -> None:
    """Raise ValueError if the storage of a tensor of uint8 [n] has not all of its bytes now."""
    size = payload.numel()
    if size and payload.storage_offset() + size > payload.untyped_storage().nbytes():
        raise ValueError(lacking(payload))


def places_of(tensors: Sequence[Any]) -> Places:
    """Return where tensors of uint8 [n] lie now.

    Raises:
        ValueError: One has lost its memory.
    """
    for each in tensors:
        check_memory(each)
    rows = [(each.data_ptr(), each.numel(), device_number(each)) for each in tensors]
    return np.array(rows, np.int64).reshape(-1, 3)


def within(places: Places, which: NDArray[np.int64], starts: Any, sizes: Any) -> Places:
    """Return parts of pieces of memory.

    Args:
        places: The pieces.
        which: In which of them each part lies, of [n].
        starts: Where in it, of [n].
        sizes: Its bytes, of [n].

    Raises:
        ValueError: A part is not inside of its piece.
    """
    if np.any((which < 0) | (which >= len(places))):
        raise ValueError("a slice is of a tensor that there is not")
    found = places[which]
    if np.any((starts < 0) | (sizes < 0) | (starts + sizes > found[:, 1])):
        raise ValueError("a slice is not inside of its tensor: that has become smaller")
    found[:, 0] += starts
    found[:, 1] = sizes
    return found


def raw_view(payload: Any) -> memoryview:
    """Return the memory of a tensor of uint8 [n] on a CPU, to be written to at once.

    It is made by address, because the arrays of older versions of torch and NumPy are read-only.

    Raises:
        ValueError: It has lost its memory.
    """
    check_memory(payload)
    place = (ctypes.c_ubyte * payload.numel()).from_address(payload.data_ptr())
    return memoryview(place).cast("B")
