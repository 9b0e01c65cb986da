# SPDX-License-Identifier: Apache-2.0
"""The old path of ``ReduceOp`` and ``Device``; other names are Ray's."""

from __future__ import annotations

from enum import Enum

from rcg.collective import ReduceOp
from rcg.experimental import names_behind

__all__ = ["Device", "ReduceOp"]


class Device(Enum):
    """Where tensors arrive; see ``with_tensor_transport``, which also takes the values."""

    DEFAULT = "default"
    CPU = "cpu"
    GPU = "gpu"
    CUDA = "cuda"

    def __str__(self) -> str:
        return self.value


__getattr__, __dir__ = names_behind(__name__, __all__)
