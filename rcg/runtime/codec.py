# SPDX-License-Identifier: Apache-2.0
"""The codec of a process that is part of a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rcg import cluster
from rcg.channels.shm import BUFFER_TYPES
from rcg.serialization import Codec
from rcg.serialization import array_types as registered_types


def make_codec(array_types: Mapping[type, Any] | None = None) -> Codec:
    """Return a codec that knows Ray's pickler, its opaque types, and the arrays of this process.

    Args:
        array_types: Types of arrays that travel as tensors; by default those registered here.
    """
    return Codec(
        cluster.by_value_pickler(),
        cluster.opaque_types(),
        cluster.modules_pickled_by_value,
        BUFFER_TYPES,
        registered_types() if array_types is None else array_types,
    )
