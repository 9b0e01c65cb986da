# SPDX-License-Identifier: Apache-2.0
r"""The plan: one straight-line program per process, and the channels between them, as plain data.

The compiler makes a plan from a graph; the runtime, the views and people read it.
It holds ids only: actors (``a0``), constants and templates (``k3``), channels (``c2``);
``Bindings`` is the table from ids to objects and is kept beside it. Slots (``s1``) are registers of
one program: an edge inside one actor is a slot and needs no channel. A plan prints as text, parses
back, and is stored as JSON. This room must know neither Ray, nor torch, nor how plans are made or
run.

>>> plan = Plan.from_text('''
... plan positional=1 keywords=[] returns=one
... actor a0 'Stage' ''
... channel c0 driver -> a0 ring node=0 slots=10
... channel c1 a0 -> driver ring node=1 slots=10
... program driver
...   Input * -> s0
...   Write s0 -> c0
...   Free s0
...   Read c1 -> s1
...   Output s1
... program a0
...   Read c0 -> s0
...   Call a0.fwd(s0, k0, scale=k1) -> s1 #1
...   Free s0
...   Write s1 -> c1
...   Free s1
... ''')
>>> plan.check()
>>> print(plan.programs[1].ops[1])
Call a0.fwd(s0, k0, scale=k1) -> s1 #1
>>> Plan.from_text(str(plan)) == plan == Plan.from_json(plan.to_json())
True
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from rcg.display import Displayed
from rcg.ir import formats
from rcg.ir.channels import LOCAL, ChannelSpec, memory_sources
from rcg.ir.check import check
from rcg.ir.nodes import KEEP, Site
from rcg.ir.ops import Call
from rcg.ir.programs import PlanData, Program


@dataclass(frozen=True, slots=True)
class Plan(PlanData, Displayed):
    """The programs of all processes and what is between them."""

    def program(self, process: str) -> Program:
        """Return the program of a process.

        Raises:
            KeyError: The plan has no such process.
        """
        for program in self.programs:
            if program.process == process:
                return program
        raise KeyError(process)

    def channels_by_id(self) -> dict[str, ChannelSpec]:
        """Return the channels by their ids."""
        return {channel.id: channel for channel in self.channels}

    def label(self, process: str) -> str:
        """Return a process's name for people: ``a0 (Stage)``, ``n1 gate in a0 (Stage)``."""
        host = self.host_of(process)
        if any(gate.id == process for gate in self.gates):
            return f"{process} gate in {self.label(host)}"
        for actor in self.actors:
            if actor.id == host:
                return f"{process} ({actor.label})"
        return process

    def readers_of(self, node: int) -> list[str]:
        """Return the actors that read the value of a node of the graph; without gates."""
        gates = {gate.id for gate in self.gates}
        readers = [each.readers for each in self.channels if node in each.nodes]
        found = {self.host_of(each) for several in readers for each in several if each not in gates}
        return [actor.id for actor in self.actors if actor.id in found]

    def held_nodes(self) -> set[int]:
        """Return the nodes of the graph whose tensors stay with their actors."""
        ops = (op for program in self.programs for op in program.ops)
        return {op.node for op in ops if isinstance(op, Call) and op.method == KEEP}

    @property
    def memory_sources(self) -> dict[str, tuple[str, ...]]:
        """For each process the processes whose shared memory may arrive there; computed anew."""
        processes = [program.process for program in self.programs]
        return memory_sources(processes, self.channels, self.nodes_by_process())

    @property
    def window(self) -> int:
        """How many executions fit into the channels between processes; the shortest decides."""
        return min(channel.slots for channel in self.channels if channel.kind != LOCAL)

    @property
    def held_values(self) -> dict[str, int]:
        """The most values that each lane holds: in its local channels, and in its own slots.

        They are held beside those that methods use, however many executions are in flight.
        """
        return {
            lane.id: self.program(lane.id).most_live()
            + sum(
                channel.slots
                for channel in self.channels
                if channel.kind == LOCAL and lane.id in (channel.writer, *channel.readers)
            )
            for lane in self.lanes
        }

    def check(self) -> None:
        """Check the plan against its specification; run between compiler passes.

        Raises:
            InternalError: The plan breaks a rule that the runtime relies on.
        """
        check(self)

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self) -> str:
        """Return the plan as text that ``from_text`` reads back: a line for each record and op."""
        return formats.to_text(self)

    @classmethod
    def from_text(cls, stored: str) -> Plan:
        """Read a plan from its text; raises ValueError with the number of the line if it cannot."""
        return cls._of(formats.from_text(stored))

    def to_json(self) -> str:
        """Return the plan as JSON: every record an object, every op with its name as ``op``."""
        return formats.to_json(self)

    @classmethod
    def from_json(cls, stored: str) -> Plan:
        """Read a plan from its JSON; ``check`` says whether the plan makes sense.

        Raises:
            ValueError: It is not JSON, or not a plan of a known version.
        """
        return cls._of(formats.from_json(stored))

    @classmethod
    def _of(cls, data: PlanData) -> Plan:
        return cls(**{each.name: getattr(data, each.name) for each in fields(data)})


@dataclass(slots=True)
class Bindings:
    """What a plan names by id, and a plan itself must not have.

    Attributes:
        actors: Ray's handles.
        constants: Constants and templates.
        sites: Where the user bound each node of the graph.
    """

    actors: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, object] = field(default_factory=dict)
    sites: dict[int, Site] = field(default_factory=dict)
