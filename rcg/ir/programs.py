# SPDX-License-Identifier: Apache-2.0
"""The data of a plan: a program per process, and everything that the programs name.

``check`` and ``formats`` work on this data; ``rcg.ir.plan.Plan`` puts them together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rcg.ir.channels import ActorSpec, ChannelSpec, ClusterNode, Gate, Group, Lane
from rcg.ir.costs import Cost, Predicted
from rcg.ir.ids import DRIVER
from rcg.ir.ops import Free, Op

FIRST_NODE: Final = "n0"
"""The driver's node, which is the only one of a plan that names none."""

MAX_PROCESSES: Final = 64
"""The most processes of a plan on a node, lanes and gate included: a block of shared memory has a
claim of each in one word of 64 bits."""

MAX_LINKS: Final = 64
"""The most other nodes to which a process sends: the native core has a bit for each."""


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
        nodes: The nodes of the cluster that the processes are on; empty if they are all on one.
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
    nodes: tuple[ClusterNode, ...] = ()

    def processes(self) -> list[str]:
        """Return the processes with a program, the driver first."""
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

    # Nodes

    def nodes_by_process(self) -> dict[str, str]:
        """Return the node of each process that has a program."""
        if not self.nodes:
            return dict.fromkeys([program.process for program in self.programs], FIRST_NODE)
        found = {process: node.id for node in self.nodes for process in node.processes}
        found |= {lane.id: found[lane.actor] for lane in self.lanes}
        return found | {gate.id: gate.id for gate in self.gates}

    def node_of(self, process: str) -> str:
        """Return the node that a process is on; raises KeyError if the plan has no such process."""
        return self.nodes_by_process()[process]

    def processes_of(self, node: str) -> tuple[str, ...]:
        """Return the processes on a node, lanes and gate included, in the order of the programs."""
        nodes = self.nodes_by_process()
        return tuple([each.process for each in self.programs if nodes[each.process] == node])

    def host_of_node(self, node: str) -> str:
        """Return the process that makes a node's shared memory; raises KeyError if unknown."""
        hosts = {each.id: each.processes[0] for each in self.nodes} or {FIRST_NODE: DRIVER}
        return hosts[node]

    def crossings(self) -> dict[str, tuple[str, ...]]:
        """Return, for each channel that crosses, the other nodes with readers, in order."""
        if not self.nodes:
            return {}
        nodes = self.nodes_by_process()
        found: dict[str, tuple[str, ...]] = {}
        for channel in self.channels:
            far = {nodes[reader] for reader in channel.readers} - {nodes[channel.writer]}
            if far:
                found[channel.id] = tuple([node.id for node in self.nodes if node.id in far])
        return found
