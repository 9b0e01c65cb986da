# SPDX-License-Identifier: Apache-2.0
"""The old path of ``rcg.collective``; any other name is ``ray.experimental.collective``'s."""

from __future__ import annotations

from rcg.collective import allgather, allreduce, broadcast, gather, reduce, reducescatter
from rcg.experimental.behind import names_behind

__all__ = ["allgather", "allreduce", "broadcast", "gather", "reduce", "reducescatter"]

__getattr__, __dir__ = names_behind(__name__, __all__)
