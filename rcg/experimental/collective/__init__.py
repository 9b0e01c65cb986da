# SPDX-License-Identifier: Apache-2.0
"""The old path of ``rcg.collective``, and groups of actors.

Any other name is ``ray.experimental.collective``'s.
"""

from __future__ import annotations

from rcg.collective import allgather, allreduce, broadcast, gather, reduce, reducescatter
from rcg.experimental import names_behind
from rcg.rdt.collective_groups import (
    create_collective_group,
    destroy_all_collective_groups,
    destroy_collective_group,
    get_collective_groups,
)

__all__ = [
    "allgather",
    "allreduce",
    "broadcast",
    "create_collective_group",
    "destroy_all_collective_groups",
    "destroy_collective_group",
    "gather",
    "get_collective_groups",
    "reduce",
    "reducescatter",
]

__getattr__, __dir__ = names_behind(__name__, __all__)
