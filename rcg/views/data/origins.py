# SPDX-License-Identifier: Apache-2.0
"""Where the values in slots come from: which slot was filled first, and by which channel it came.

Channels between lanes of one process, and copies, are passed over: to people, a value that a lane
receives and hands to a method comes by the channel of the lane.

This room must know neither nodes of a topology nor how anything is drawn.
"""

from __future__ import annotations

from typing import NamedTuple

from rcg.ir.channels import LOCAL
from rcg.ir.ops import Copy, Op
from rcg.ir.plan import Plan


class Origin(NamedTuple):
    """The place where a value was made.

    Attributes:
        process: The program that made it.
        slot: Its slot there.
        channel: The channel by which it came; None if it did not leave its process.
    """

    process: str
    slot: int
    channel: str | None


class Origins:
    """Finds the origins of values in a plan.

    Args:
        plan: The plan, from any pass of the compiler.
    """

    def __init__(self, plan: Plan) -> None:
        self._local = {channel.id for channel in plan.channels if channel.kind == LOCAL}
        self._maker: dict[tuple[str, int], Op] = {}
        self._sent: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._found: dict[tuple[str, int], tuple[Origin, ...]] = {}
        for program in plan.programs:
            for op in program.ops:
                for slot in op.made():
                    self._maker[program.process, slot] = op
                for channel in op.values_out:
                    self._sent[channel] = (program.process, op.used())

    def of(self, process: str, slot: int) -> tuple[Origin, ...]:
        """Return the origins of the value in a slot: several if it is a container of values."""
        key = (process, slot)
        if key not in self._found:
            self._found[key] = self._find(process, slot, self._maker[key])
        return self._found[key]

    def _find(self, process: str, slot: int, maker: Op) -> tuple[Origin, ...]:
        if isinstance(maker, Copy):
            return self.of(process, maker.slot)
        if maker.is_holding:
            return tuple([each for used in maker.used() for each in self.of(process, used)])
        if not maker.values_in:
            return (Origin(process, slot, None),)
        (channel,) = maker.values_in
        writer, slots = self._sent[channel]
        found = self.of(writer, slots[maker.made().index(slot)])
        if channel in self._local:
            return found
        return tuple([each._replace(channel=channel) for each in found])
