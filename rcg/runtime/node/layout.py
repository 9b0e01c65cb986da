# SPDX-License-Identifier: Apache-2.0
"""Which number each process and each channel of a plan has in the shared memory of a node.

A channel has a ring on each node where it has an end. It is written and read by the ends that are
there, and by those that carry its frames to other nodes. The rings of ``c0 a0 -> a1 a2 a3``:

| node | its writer | its readers |
|---|---|---|
| ``n0``, with a0 and a1 | a0 | a1, and a0, which sends the frames on |
| ``n1``, with a2 and a3 | the gate, n1 | a2, a3 |
"""

from __future__ import annotations

from dataclasses import dataclass

from rcg.ir.plan import Plan
from rcg.ir.programs import FIRST_NODE


@dataclass(frozen=True, slots=True)
class Layout:
    """The numbers of a node's processes and channels: plain data that its host sends to members.

    Attributes:
        node: The node.
        host: The process that makes the node's memory; its member number is 0.
        members: Member number of each process on the node.
        rings: Ring number of each channel that has an end on the node.
        writers: The member that writes the ring of each of these channels.
        readers: The members that read it, the writer last if it sends the channel on.
        memory_sources: Whose blocks may arrive at each process: bit i for member i.
        passes: The number under which each channel that crosses travels between nodes, the same on
            all of them; also of channels without an end on this node.
    """

    node: str
    host: str
    members: dict[str, int]
    rings: dict[str, int]
    writers: dict[str, int]
    readers: dict[str, tuple[int, ...]]
    memory_sources: dict[str, int]
    passes: dict[str, int]

    @classmethod
    def of(cls, plan: Plan, node: str = FIRST_NODE) -> Layout:
        """Return the layout of a plan on a node: the same in every process that computes it.

        Raises:
            KeyError: The plan has no such node.
        """
        host = plan.host_of_node(node)
        others = [process for process in plan.processes_of(node) if process != host]
        members = {process: number for number, process in enumerate([host, *others])}
        crossings = plan.crossings()
        writers: dict[str, int] = {}
        readers: dict[str, tuple[int, ...]] = {}
        for channel in plan.channels:
            near = [members[reader] for reader in channel.readers if reader in members]
            if channel.writer in members:
                writer = members[channel.writer]
                near += [writer] if channel.id in crossings else []
            elif near:
                writer = members[node]  # the gate has the id of its node
            else:
                continue
            writers[channel.id], readers[channel.id] = writer, tuple(near)
        return cls(
            node,
            host,
            members,
            {channel: number for number, channel in enumerate(writers)},
            writers,
            readers,
            {
                process: sum(1 << members[name] for name in {process, *names})
                for process, names in plan.memory_sources.items()
                if process in members
            },
            {each.id: at for at, each in enumerate(plan.channels) if each.id in crossings},
        )

    def channel(self, ring: int) -> str | None:
        """Return the channel with this number; None if there is none."""
        return next((name for name, number in self.rings.items() if number == ring), None)

    def readers_of(self, channel: str) -> list[str]:
        """Return the processes that read the ring of a channel, in its order."""
        names = list(self.members)
        return [names[reader] for reader in self.readers[channel]]

    def writer_of(self, channel: str) -> str:
        """Return the process that writes the ring of a channel."""
        return list(self.members)[self.writers[channel]]


def takers_of(layout: Layout, plan: Plan, channel: str) -> list[tuple[str, ...]]:
    """Return for whom each reader of a channel's ring on a node takes its frames.

    A reader does so for itself, a writer that reads its own ring for the gates of other nodes.
    """
    writer = layout.writer_of(channel)
    gates = plan.crossings().get(channel, ())
    return [gates if reader == writer else (reader,) for reader in layout.readers_of(channel)]
