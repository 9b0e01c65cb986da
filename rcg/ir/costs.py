# SPDX-License-Identifier: Apache-2.0
"""What the calls and transfers of a plan cost, and what the compiler predicts from that.

Costs are declared, or come from a profile. They belong to nodes of the graph, so they hold whatever
the order of ops. A plan without them counts in calls: each takes as long as any other.

>>> print(Cost("call", 3, 4_200_000))
cost call #3 4200000 ns
>>> print(Cost("move", 3, 900_000))
cost move #3 900000 ns
>>> print(Predicted("a0", 9_000_000, 12_000_000))
predicted a0 busy 9000000 of 12000000 ns

This room must know neither how costs are found nor how they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from rcg.ir.fields import CostKind, Nanoseconds, NodeNumber, ProcessId
from rcg.ir.record import Record

CALL: Final = "call"
"""The time of a method, or of a rank's part in a collective."""

MOVE: Final = "move"
"""The time that the tensors of a value travel over a communicator."""

COST_KINDS: Final = (CALL, MOVE)


@dataclass(frozen=True, slots=True)
class Cost(Record):
    """The time that a call or a transfer takes.

    Attributes:
        kind: What takes it, one of ``COST_KINDS``.
        node: The node of the graph: the call, the rank of a collective, or the value that travels.
        cost_ns: How long, without waiting.
    """

    keyword: ClassVar[str] = "cost"
    form: ClassVar[str] = "{kind} #{node} {cost_ns} ns"

    kind: CostKind
    node: NodeNumber
    cost_ns: Nanoseconds


@dataclass(frozen=True, slots=True)
class Predicted(Record):
    """How busy a process is between two completions, if executions follow each other.

    Attributes:
        process: The process, or the lane.
        busy_ns: How long it is in ops, without waiting, in each execution.
        period_ns: The time from one completion to the next.
    """

    keyword: ClassVar[str] = "predicted"
    form: ClassVar[str] = "{process} busy {busy_ns} of {period_ns} ns"

    process: ProcessId
    busy_ns: Nanoseconds
    period_ns: Nanoseconds


class Transfer(NamedTuple):
    """What identifies a transfer: the method or the word of the collective that made the value.

    ``actor`` and ``reader`` are the ids in Ray of the actors that made and got it.
    """

    actor: str
    method: str
    reader: str


@dataclass(frozen=True)
class CallCosts:
    """The costs of the calls and transfers of some actors, in ns, whatever the graph.

    Calls are identified by the actor's id in Ray, and the method or the word of a collective.
    """

    calls: Mapping[tuple[str, str], float]
    transfers: Mapping[Transfer, float]
