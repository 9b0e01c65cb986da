# SPDX-License-Identifier: Apache-2.0
"""The data of a plan: a program per process, and everything that the programs name.

The checker, the text form and the JSON work on this data; ``rcg.ir.plan.Plan`` puts them together.
"""

from __future__ import annotations

from dataclasses import dataclass

from rcg.ir.channels import ActorSpec, ChannelSpec, Gate, Group, Lane
from rcg.ir.costs import Cost, Predicted
from rcg.ir.ids import DRIVER
from rcg.ir.ops import Free, Op

__all__ = ["PlanData", "Program"]


@dataclass(frozen=True, slots=True)
class Program:
    """What one process does in every execution, in order."""

    process: str
    ops: tuple[Op, ...]

    def __str__(self) -> str:
        return "\n".join([f"program {self.process}", *(f"  {op}" for op in self.ops)])

    def last_used(self, position: int) -> frozenset[int]:
        """Return the slots that an op uses and that nothing but a Free uses after it."""
        later = [op for op in self.ops[position + 1 :] if type(op) is not Free]
        return frozenset(self.ops[position].used()).difference(*(op.used() for op in later))

    def most_live(self) -> int:
        """Return how many slots hold a value at once, at most."""
        live = most = 0
        for op in self.ops:
            live += len(op.made())
            most = max(most, live)
            live -= len(op.freed())
        return most


@dataclass(frozen=True, slots=True)
class PlanData:
    """The fields of a plan.

    Attributes:
        programs: The driver's first, then one for each of ``actors``, ``lanes`` and ``gates``. The
            compiler puts lanes after their actor.
        channels: All channels.
        actors: The actors, ``a0`` first.
        is_multi: Whether an execution returns a list.
        num_positional: How many positional arguments an execution takes.
        keywords: Which keyword arguments an execution takes.
        lanes: Second programs of actors.
        gates: The lanes of host processes that pass on what comes from other nodes.
        groups: The communicator groups.
        costs: What calls and transfers cost, as far as that is known.
        predicted: How busy each process will be; empty where no cost is known.
    """

    programs: tuple[Program, ...]
    channels: tuple[ChannelSpec, ...]
    actors: tuple[ActorSpec, ...]
    is_multi: bool
    num_positional: int
    keywords: tuple[str, ...]
    lanes: tuple[Lane, ...] = ()
    gates: tuple[Gate, ...] = ()
    groups: tuple[Group, ...] = ()
    costs: tuple[Cost, ...] = ()
    predicted: tuple[Predicted, ...] = ()

    def processes(self) -> list[str]:
        """Return who has a program, the driver first."""
        return [
            DRIVER,
            *[actor.id for actor in self.actors],
            *[lane.id for lane in self.lanes],
            *[gate.id for gate in self.gates],
        ]

    def host_of(self, process: str) -> str:
        """Return the process of the system that runs a program: a lane's actor, a gate's host."""
        for lane in self.lanes:
            if lane.id == process:
                return lane.actor
        for gate in self.gates:
            if gate.id == process:
                return gate.host
        return process
