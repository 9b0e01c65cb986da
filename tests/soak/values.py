# SPDX-License-Identifier: Apache-2.0
"""Values of every kind and size that a soak sends, and what its methods make of them.

All of it is determined by a ``random.Random``, and the same in every process.
"""

from __future__ import annotations

import math
import random
import zlib
from typing import Any

import numpy as np

__all__ = ["digest", "draw", "fresh", "is_same", "part"]

_KINDS = {"int": 20, "bytes": 20, "str": 10, "array": 35, "nested": 10, "other": 5}
_DTYPES = ("u1", "i8", "f8", "f4")


def draw(rng: random.Random, largest_bytes: int, *, tensors: bool = False) -> Any:
    """Return a value of up to about so many bytes; small ones are as likely as large ones."""
    kind = rng.choices(list(_KINDS), list(_KINDS.values()))[0]
    size = int(2 ** rng.uniform(0, math.log2(largest_bytes)))
    start = rng.randrange(1 << 40)
    match kind:
        case "int":
            return start if rng.random() < 0.9 else start**20
        case "bytes":
            return _numbers(start, size).tobytes()[:size]
        case "str":
            return ("ü" if rng.random() < 0.2 else "s") + f"{start:x}." * (size // 11)
        case "array":
            if tensors and rng.random() < 0.3:
                return _tensor(start, size)
            return _array(rng, start, size)
        case "nested":
            inner = [
                draw(rng, max(2, size // 3), tensors=tensors) for _ in range(rng.randint(0, 3))
            ]
            return rng.choice([inner, tuple(inner), {"in": inner, 7: (start, None)}])
        case _:
            return rng.choice([None, True, 0.5, b"", "", [], np.float64(start), {start: 0.25}])


def _numbers(start: int, size_bytes: int) -> np.ndarray:
    """Enough numbers for so many bytes, no two of them equal."""
    return np.arange(start, start + size_bytes // 8 + 1, dtype=np.int64)


def _array(rng: random.Random, start: int, size: int) -> np.ndarray:
    dtype = np.dtype(rng.choice(_DTYPES))
    if dtype.kind == "f":  # numbers, so that no two differ and are equal, or are equal and differ
        array = np.arange(size // dtype.itemsize, dtype=dtype) + start % 1000
        array = array.astype(dtype)
    else:
        array = _numbers(start, size).view(dtype)[: size // dtype.itemsize]
    if array.size > 64 and rng.random() < 0.3:
        array = array[: array.size // 4 * 4].reshape(4, -1)
        if rng.random() < 0.5:
            array = np.asfortranarray(array)
    return array


def _tensor(start: int, size: int) -> Any:
    import torch

    return torch.arange(start, start + size // 8)


def _is_tensor(value: Any) -> bool:
    # Without importing torch, which takes a process seconds.
    return type(value).__module__ == "torch" and type(value).__name__ == "Tensor"


def is_same(one: Any, two: Any) -> bool:
    """Whether two values are equal in type, shape and every element."""
    if type(one) is not type(two):
        return False
    if isinstance(one, np.ndarray) or _is_tensor(one):
        return one.dtype == two.dtype and one.shape == two.shape and bool((one == two).all())
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(is_same, one, two))
    if isinstance(one, dict):
        return list(one) == list(two) and all(is_same(one[key], two[key]) for key in one)
    return bool(one == two)


def digest(value: Any, seed: int = 0) -> int:
    """Return a number that depends on every byte of the value."""
    if _is_tensor(value):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        seed = zlib.crc32(f"{value.dtype.str}{value.shape}".encode(), seed)
        return zlib.crc32(np.ascontiguousarray(value).reshape(-1).view("u1"), seed)
    if isinstance(value, list | tuple):
        for item in value:
            seed = digest(item, seed)
        return zlib.crc32(f"{type(value).__name__}{len(value)}".encode(), seed)
    if isinstance(value, dict):
        for key, item in value.items():
            seed = digest(item, digest(key, seed))
        return zlib.crc32(b"dict", seed)
    if isinstance(value, bytes):
        return zlib.crc32(value, seed)
    return zlib.crc32(repr(value).encode(), seed)


def fresh(value: Any) -> Any:
    """Return a value that is computed from this one, in memory of its own."""
    if isinstance(value, np.ndarray) or _is_tensor(value):
        return value + 1
    if isinstance(value, list | tuple):
        return type(value)(fresh(item) for item in value)
    if isinstance(value, dict):
        return {key: fresh(item) for key, item in value.items()}
    if isinstance(value, bytes | str):
        return value[::-1]
    if isinstance(value, int) and not isinstance(value, bool):
        return value + 1
    return value


def part(value: Any) -> Any:
    """Return a piece of the value; of an array, a view that shares its memory."""
    if isinstance(value, np.ndarray) and value.ndim:
        return value[1::2] if len(value) % 2 else value[: len(value) // 2]
    if isinstance(value, bytes | str | list | tuple) or _is_tensor(value):
        return value[len(value) // 3 :]
    if isinstance(value, dict):
        return {key: part(item) for key, item in value.items()}
    return value
