# SPDX-License-Identifier: Apache-2.0
"""What the methods and transfers of recorded graphs took, by actor: costs for another compilation.

Another graph has other nodes and channels, so costs are found by what stays: the actor, by its id
in Ray, and the method; of a transfer the actor and the method that made the value, and the actor
that got it. All times are means in ns, without waiting.

This room must know neither how costs are used nor where recordings come from.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from rcg.ir.channels import TENSOR
from rcg.ir.costs import CallCosts, Transfer
from rcg.ir.ops import Call, Collective, Copy, Op, Read
from rcg.ir.plan import Plan
from rcg.trace.analysis.costs import costs_of
from rcg.trace.analysis.executions import executions_of
from rcg.trace.model import GraphTrace


def call_costs_of(graphs: Iterable[GraphTrace]) -> CallCosts:
    """Return the measured costs of all graphs together.

    Args:
        graphs: The records of the graphs.
    """
    calls: dict[tuple[str, str], list[float]] = {}
    transfers: dict[Transfer, list[float]] = {}
    for graph in graphs:
        measured = costs_of(graph, executions_of(graph)).costs
        plan = graph.plan
        actor_of = _Actors(plan)
        for program in plan.programs:
            actor = actor_of.key(program.process)
            for at, op in enumerate(program.ops):
                cost = measured.get((program.process, at))
                if cost is None:
                    continue
                if isinstance(op, Call):
                    calls.setdefault((actor, op.method), []).append(cost.own_ns)
                elif isinstance(op, Collective):
                    calls.setdefault((actor, op.word), []).append(cost.own_ns)
                elif isinstance(op, Read) and op.channel in actor_of.tensors:
                    key = Transfer(*actor_of.maker(op.channel), actor)
                    transfers.setdefault(key, []).append(cost.own_ns)
    return CallCosts(
        {key: fmean(each) for key, each in calls.items()},
        {key: fmean(each) for key, each in transfers.items()},
    )


class _Actors:
    """The actors of a plan by their ids in Ray, and what makes the value of each tensor channel."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._keys = {actor.id: actor.key or actor.id for actor in plan.actors}
        self.tensors = {each.id for each in plan.channels if each.kind == TENSOR}
        self._sent: dict[str, tuple[str, int]] = {}
        self._maker: dict[tuple[str, int], Op] = {}
        for program in plan.programs:
            for op in program.ops:
                self._maker.update({(program.process, slot): op for slot in op.made()})
                for channel in op.values_out:
                    self._sent[channel] = program.process, op.used()[0]

    def key(self, process: str) -> str:
        """Return the id in Ray of the actor of a program; of the driver, its own name."""
        host = self._plan.host_of(process)
        return self._keys.get(host, host)

    def maker(self, channel: str) -> tuple[str, str]:
        """Return the actor and the method that made a channel's value."""
        process, slot = self._sent[channel]
        op = self._maker[process, slot]
        while isinstance(op, Read | Copy):
            process, slot = self._sent[op.channel] if isinstance(op, Read) else (process, op.slot)
            op = self._maker[process, slot]
        return self.key(process), op.method if isinstance(op, Call) else op.word
