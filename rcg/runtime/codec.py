# SPDX-License-Identifier: Apache-2.0
"""The codec of a process that is part of a Ray cluster."""

from __future__ import annotations

from rcg import cluster
from rcg.channels.shm import BUFFER_TYPES
from rcg.serialization import Codec

__all__ = ["make_codec"]


def make_codec() -> Codec:
    """Return a codec that knows Ray's pickler, its opaque types, and the arrays of this process."""
    return Codec(
        cluster.by_value_pickler(),
        cluster.opaque_types(),
        cluster.modules_pickled_by_value,
        BUFFER_TYPES,
    )
