# SPDX-License-Identifier: Apache-2.0
"""How data is sent to the browser: one string of bytes with a JSON head and typed arrays.

```
deflate( length of head (u4) | head, JSON, spaces to a multiple of 8 | array | array | ... )
```

Each array begins at a multiple of 8. The head lists them under ``columns``: name, NumPy's type code
and length. ``common.js`` reads the same format. It is compressed, because a Jupyter server drops
messages of a kernel that sends more than a megabyte per second.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["pack", "unpack"]

_ALIGNMENT = 8
_LEVEL = 1  # takes a third of the time of the default, for a tenth more bytes


def pack(head: Mapping[str, Any], columns: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return a head and its columns as one string of bytes.

    Args:
        head: JSON data.
        columns: One-dimensional arrays of numbers. Their lengths may differ.
    """
    listed = [
        {"name": name, "type": column.dtype.str[1:], "length": len(column)}
        for name, column in columns.items()
    ]
    text = json.dumps({**head, "columns": listed}, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 4) % _ALIGNMENT)
    parts = [len(text).to_bytes(4, "little"), text]
    for column in columns.values():
        stored = np.ascontiguousarray(column, column.dtype.newbyteorder("<")).tobytes()
        parts += [stored, b"\0" * (-len(stored) % _ALIGNMENT)]
    return zlib.compress(b"".join(parts), _LEVEL)


def unpack(payload: bytes) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return the arguments of ``pack``, and the list of columns in the head."""
    stored = zlib.decompress(payload)
    at = 4 + int.from_bytes(stored[:4], "little")
    head = json.loads(stored[4:at])
    columns = {}
    for each in head["columns"]:
        column = np.frombuffer(stored, f"<{each['type']}", each["length"], at)
        columns[each["name"]] = column
        at += column.nbytes + -column.nbytes % _ALIGNMENT
    return head, columns
