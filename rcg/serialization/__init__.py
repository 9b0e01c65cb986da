# SPDX-License-Identifier: Apache-2.0
"""The encoder: any value becomes (kind, pickle bytes, buffers), and back.

``codec`` pickles, with the help of ``tensors`` and ``foreign``; ``lone`` saves the pickler for a
value that is one array or tensor. ``encoded`` is what comes out; ``payloads`` takes the tensors out
of that, for transports. ``pinned`` locks memory from which tensors are moved to a device.
"""

from __future__ import annotations

from rcg.serialization.codec import Codec, loads_to, loads_with
from rcg.serialization.encoded import (
    KIND_BYTES,
    KIND_FAILURE,
    KIND_PARTS,
    KIND_PICKLE,
    KIND_TUPLE,
    Encoded,
    Failure,
    encode_failure,
    join_parts,
    size_of,
    tuple_of_parts,
)
from rcg.serialization.foreign import array_types, register_array_type
from rcg.serialization.lone import loads

__all__ = [
    "KIND_BYTES",
    "KIND_FAILURE",
    "KIND_PARTS",
    "KIND_PICKLE",
    "KIND_TUPLE",
    "Codec",
    "Encoded",
    "Failure",
    "array_types",
    "encode_failure",
    "join_parts",
    "loads",
    "loads_to",
    "loads_with",
    "register_array_type",
    "size_of",
    "tuple_of_parts",
]
