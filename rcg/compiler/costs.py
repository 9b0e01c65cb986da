# SPDX-License-Identifier: Apache-2.0
"""How long the passes assume that each op of a plan takes.

If a plan has no costs, an op costs what its class says: a call 1, handing a value over a twentieth
of that. If it has some, times are nanoseconds. A call of unknown cost takes as long as the known
ones on average, a transfer of unknown cost a twentieth of that, and handing a value over in shared
memory some microseconds, whatever its size.

This room must know neither where costs come from nor what is decided by them.
"""

from __future__ import annotations

from statistics import fmean
from typing import Final

from rcg.ir.channels import TENSOR
from rcg.ir.costs import CALL, MOVE
from rcg.ir.ops import Call, Collective, Op, Read, Write
from rcg.ir.programs import PlanData

UNIT_NS: Final = 1_000_000
"""The length of a call of which nothing is known, where nanoseconds are wanted."""

_HANDOVER_NS: Final = 10_000
"""Waking another process and passing a small value on: 4 to 40 microseconds were measured."""


class OpCosts:
    """The assumed times of a plan's ops; ``are_times`` says whether they are nanoseconds."""

    def __init__(self, plan: PlanData) -> None:
        self.are_times = bool(plan.costs)
        self._calls = {cost.node: cost.cost_ns for cost in plan.costs if cost.kind == CALL}
        self._moves = {cost.node: cost.cost_ns for cost in plan.costs if cost.kind == MOVE}
        self._call_ns = fmean(self._calls.values()) if self._calls else float(UNIT_NS)
        self._nodes = {
            channel.id: channel.nodes[0] for channel in plan.channels if channel.kind == TENSOR
        }

    def of(self, op: Op) -> float:
        """Return the assumed time of an op."""
        if not self.are_times:
            return op.cost
        match op:
            case Call(node=node):
                return self._calls.get(node, self._call_ns)
            case Collective(node=node):
                return self._calls.get(node, op.cost * self._call_ns)
            case Read(channel=channel) | Write(channel=channel) if channel in self._nodes:
                return self._moves.get(self._nodes[channel], op.cost * self._call_ns)
            case _:
                return _HANDOVER_NS if op.is_rendezvous else 0.0
