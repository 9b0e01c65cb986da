# SPDX-License-Identifier: Apache-2.0
"""Reads what ``rcg.views.data.packing`` writes, as ``common.js`` does."""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

_ALIGNMENT = 8
Column = npt.NDArray[Any]


def unpack(payload: bytes) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return the arguments of ``pack``, and the list of columns in the head."""
    stored = zlib.decompress(payload)
    at = 4 + int.from_bytes(stored[:4], "little")
    head = json.loads(stored[4:at])
    columns: dict[str, Column] = {}
    for each in head["columns"]:
        name, length = each["name"], each["length"]
        if "planes" in each:
            size = each["planes"] * length
            planes = np.frombuffer(stored, np.uint8, size, at).reshape(each["planes"], length)
            values = np.zeros((8, length), np.uint8)
            values[: len(planes)] = planes
            values = np.ascontiguousarray(values.T).view("<u8").ravel()
            values = (values >> 1).astype(np.int64) ^ -(values & 1).astype(np.int64)
            if "until" in each:
                start = np.rint(columns[each["until"]] * each["scale"]).astype(np.int64)
                values = np.diff(start, append=start[-1:]) - values
            else:
                values = values.cumsum()
            columns[name] = values / each["scale"]
        else:
            columns[name] = np.frombuffer(stored, f"<{each['type']}", length, at)
            size = columns[name].nbytes
        at += size + -size % _ALIGNMENT
    return head, columns
