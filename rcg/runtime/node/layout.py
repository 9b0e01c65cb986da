# SPDX-License-Identifier: Apache-2.0
"""Which number each process and each channel of a plan has in the shared memory of a node."""

from __future__ import annotations

from dataclasses import dataclass

from rcg.ir.ids import DRIVER
from rcg.ir.plan import Plan

__all__ = ["Layout"]


@dataclass(frozen=True, slots=True)
class Layout:
    """The numbers of a node's processes and channels: plain data that its host sends to members.

    Attributes:
        members: Member number of each process.
        rings: Ring number of each channel.
        memory_sources: Whose blocks may arrive at each process: bit i for member i.
    """

    members: dict[str, int]
    rings: dict[str, int]
    memory_sources: dict[str, int]

    @classmethod
    def of(cls, plan: Plan) -> Layout:
        """Return the layout of a plan: the same plan gives the same numbers in every process."""
        processes = [program.process for program in plan.programs]
        ordered = [DRIVER, *(p for p in processes if p != DRIVER)]
        members = {process: i for i, process in enumerate(ordered)}
        return cls(
            members,
            {channel.id: i for i, channel in enumerate(plan.channels)},
            {
                process: sum(1 << members[name] for name in {process, *names})
                for process, names in plan.memory_sources.items()
            },
        )

    def channel(self, ring: int) -> str | None:
        """Return the channel with this number; None if there is none."""
        return next((name for name, number in self.rings.items() if number == ring), None)
