# SPDX-License-Identifier: Apache-2.0
"""The encoder: any value becomes (kind, pickle bytes, buffers), and back.

``codec`` pickles, with the help of ``arrays`` and ``tensors``; ``encoded`` is what comes out.
"""

from __future__ import annotations

from rcg.serialization.codec import Codec, loads
from rcg.serialization.encoded import (
    KIND_BYTES,
    KIND_FAILURE,
    KIND_PARTS,
    KIND_PICKLE,
    KIND_TUPLE,
    Encoded,
    Failure,
    encoded_failure,
    join_parts,
    size_of,
    tuple_of_parts,
)

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
