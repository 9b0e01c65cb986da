# SPDX-License-Identifier: Apache-2.0
r"""Which actors should share a node, so that fewer values cross between nodes.

```
n0     a0 (Encoder)   a3 (Head)         a0 sends to a1 and a2 to a3, so both values cross; if a1
             \     /                    and a3 change places, none does, and each node still has
n1     a2 (Encoder)   a1 (Head)         one Encoder and one Head
```

A value that crosses is on the wire (``transfers.py``), and the process that writes it sends it
before it goes on: an actor records that time in the op that follows the Write. Both are as
measured; of a value that does not cross now they are those of measured values of its size.
The assignment is improved by exchanges as of Kernighan and Lin ("An efficient heuristic procedure
for partitioning graphs", Bell System Technical Journal 49, 1970): each actor changes once, also
where that makes it worse, and the best of these assignments is kept.

Only values in rings count: what a communicator would take on one node is not measured. Actors that
share one, and a node, stay together.

This room must know neither simulations nor how advice is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

import numpy as np

from rcg.ir.channels import RING, ChannelSpec
from rcg.ir.ids import DRIVER
from rcg.ir.index import Place, reads_of, writes_of
from rcg.ir.ops import Read
from rcg.trace.analysis.costs import Cost
from rcg.trace.analysis.events import EventTable
from rcg.trace.analysis.transfers import wires_of

_MOST_ACTORS: Final = 32
_LEAST_NS: Final = 1.0  # on the wire, that a change saves


@dataclass(frozen=True, slots=True)
class Placement:
    """Another assignment of actors to nodes.

    Attributes:
        moved: The new node of each actor that moves.
        beside: The actors that each of these then shares a node with, and exchanges a value with
            that crosses now.
        bytes: How many bytes less cross in an execution.
        wire_ns: How much less time values are on the wire in one, in all.
        costs: What the ops then cost, by process and index in its program.
    """

    moved: Mapping[str, str]
    beside: Mapping[str, tuple[str, ...]]
    bytes: float
    wire_ns: float
    costs: Mapping[Place, Cost]


class Placements:
    """Finds where actors should be, of at most 32 actors.

    Args:
        table: The events of the measured graph.
        costs: The measured costs of its ops.
    """

    def __init__(self, table: EventTable, costs: Mapping[Place, Cost]) -> None:
        graph = table.graph
        self._table, self._plan, self._costs = table, graph.plan, costs
        self._written_at, self._read_at = writes_of(graph.plan), reads_of(graph.plan)
        self._host = {each.process: self._plan.host_of(each.process) for each in graph.lanes}
        self._channels = [each for each in self._plan.channels if each.kind == RING]
        self._wires = {(each.channel, each.node): each for each in wires_of(table)}
        self._bytes = {each.id: self._size(each) for each in self._channels}
        known = sorted((each.bytes / each.frames, each.median_ns) for each in self._wires.values())
        self._sizes, self._times = [size for size, _ in known], [time for _, time in known]
        self._error_ns = sum(each.error_ns for each in self._wires.values())
        self._of = {
            actor.id: [
                each
                for each in self._channels
                if actor.id in {self._host[end] for end in (each.writer, *each.readers)}
            ]
            for actor in self._plan.actors
        }

    def _size(self, channel: ChannelSpec) -> float:
        """Return the mean bytes of a channel's frames."""
        sizes = self._table.bytes[self._table.rows(*self._written_at[channel.id])]
        return float(sizes[sizes > 0].mean()) if (sizes > 0).any() else 0.0

    def _crossings(self, channel: ChannelSpec, nodes: Mapping[str, str]) -> set[str]:
        """Return the nodes that a channel crosses to."""
        return {nodes[self._host[each]] for each in channel.readers} - {
            nodes[self._host[channel.writer]]
        }

    def _wire_ns(self, channel: str, node: str) -> float:
        """Return how long a channel's values are, or would be, on the wire to a node."""
        if (known := self._wires.get((channel, node))) is not None:
            return known.median_ns
        size, largest = self._bytes[channel], self._sizes[-1]
        longer = max(1.0, size / largest) if largest else 1.0
        return float(np.interp(size, self._sizes, self._times)) * longer

    def _cost_ns(self, channel: ChannelSpec, nodes: Mapping[str, str]) -> float:
        return sum(self._wire_ns(channel.id, to) for to in self._crossings(channel, nodes))

    def best(self, *, is_exchange: bool) -> Placement | None:
        """Return the assignment with the least time on the wire that is found; None for none.

        Args:
            is_exchange: Whether only actors of one class change places, so that each node has as
                many of each class as now. Otherwise, one after the other moves to another node.
        """
        actors = [each.id for each in self._plan.actors]
        if not self._wires or len(actors) > _MOST_ACTORS:
            return None
        now = {each: self._plan.node_of(each) for each in (DRIVER, *actors)}
        best, saved_ns = now, 0.0
        while True:
            at, at_ns, free = best, saved_ns, set(actors)
            then, then_ns = best, saved_ns
            while found := max(self._changes(at, free, is_exchange), key=_gain, default=None):
                gain_ns, change = found
                at, at_ns, free = at | change, at_ns + gain_ns, free - set(change)
                if at_ns > then_ns + _LEAST_NS:
                    then, then_ns = at, at_ns
            if then_ns <= saved_ns:
                break
            best, saved_ns = then, then_ns
        return self._placed(now, best) if saved_ns > self._error_ns else None

    def _changes(
        self, nodes: Mapping[str, str], free: set[str], is_exchange: bool
    ) -> Iterator[tuple[float, dict[str, str]]]:
        """Yield what may change, and how much less time is on the wire then."""
        label = {each.id: each.label for each in self._plan.actors}
        order = [each for each in label if each in free]
        for one, other in combinations(order, 2) if is_exchange else ():
            if label[one] == label[other] and nodes[one] != nodes[other]:
                yield from self._change(nodes, {one: nodes[other], other: nodes[one]})
        for one in () if is_exchange else order:
            for node in self._plan.nodes:
                if node.id != nodes[one]:
                    yield from self._change(nodes, {one: node.id})

    def _change(
        self, nodes: Mapping[str, str], change: dict[str, str]
    ) -> Iterator[tuple[float, dict[str, str]]]:
        then = {**nodes, **change}
        for group in self._plan.groups:
            members = {self._host[each] for each in group.members}
            for one, other in combinations(sorted(members), 2):
                if nodes[one] == nodes[other] and then[one] != then[other]:
                    return
        touched = {each.id: each for actor in change for each in self._of[actor]}.values()
        yield (
            sum(self._cost_ns(each, nodes) - self._cost_ns(each, then) for each in touched),
            change,
        )

    def _placed(self, now: Mapping[str, str], then: Mapping[str, str]) -> Placement:
        moved = {each: to for each, to in then.items() if to != now[each]}
        count, wire_ns = 0.0, 0.0
        beside: dict[str, list[str]] = {each: [] for each in moved}
        for channel in self._channels:
            was, is_now = self._crossings(channel, now), self._crossings(channel, then)
            count += (len(was) - len(is_now)) * self._bytes[channel.id]
            wire_ns += self._cost_ns(channel, now) - self._cost_ns(channel, then)
            writer = self._host[channel.writer]
            for reader in (self._host[each] for each in channel.readers):
                if now[writer] != now[reader] and then[writer] == then[reader]:
                    for one, other in ((writer, reader), (reader, writer)):
                        if one in moved and other not in beside[one]:
                            beside[one].append(other)
        shared = {each: tuple(others) for each, others in beside.items()}
        return Placement(moved, shared, count, wire_ns, self._costs_if(now, then))

    def _costs_if(self, now: Mapping[str, str], then: Mapping[str, str]) -> dict[Place, Cost]:
        """Return what the ops cost in another assignment: reads that wait, and what follows."""
        costs = dict(self._costs)
        reads = [
            (costs[place], self._far_ns(channel, reader, now), self._far_ns(channel, reader, then))
            for channel, reader, place in self._reads()
        ]
        near_ns = min((cost.waking_ns for cost, was_ns, _ in reads if not was_ns), default=0.0)
        least_ns = min((cost.moving_ns for cost, _, _ in reads), default=0.0)
        for (_, _, place), (cost, was_ns, is_ns) in zip(self._reads(), reads, strict=True):
            if was_ns != is_ns:
                waking_ns = max(cost.waking_ns - was_ns, near_ns) + is_ns
                costs[place] = replace(cost, waking_ns=waking_ns)
        sent: dict[Place, list[float]] = {}  # the bytes that each op sends, now and then
        for channel in self._channels:
            if (follows := self._follows(channel)) is not None:
                sums = sent.setdefault(follows, [0.0, 0.0])
                for at, nodes in enumerate((now, then)):
                    sums[at] += self._bytes[channel.id] * len(self._crossings(channel, nodes))
        took_ns = {
            place: max(costs[place].moving_ns - least_ns, 0.0)
            for place, (was, _) in sent.items()
            if was
        }
        rate = sum(took_ns.values()) / max(sum(was for was, _ in sent.values()), 1)
        for place, (was, will_be) in sent.items():
            more_ns = (took_ns[place] / was if was else rate) * (will_be - was)
            costs[place] = replace(costs[place], moving_ns=costs[place].moving_ns + more_ns)
        return costs

    def _reads(self) -> Iterator[tuple[ChannelSpec, str, Place]]:
        """Yield the measured Reads of actors."""
        for channel in self._channels:
            for reader in channel.readers:
                place = self._read_at[channel.id, reader]
                if reader != DRIVER and place in self._costs:
                    yield channel, reader, place

    def _far_ns(self, channel: ChannelSpec, reader: str, nodes: Mapping[str, str]) -> float:
        """Return how long values are on the wire to a reader; 0 on one node."""
        to = nodes[self._host[reader]]
        return self._wire_ns(channel.id, to) if to in self._crossings(channel, nodes) else 0.0

    def _follows(self, channel: ChannelSpec) -> Place | None:
        """Return the Read of an actor that follows its Write of a channel, if one does."""
        if channel.writer == DRIVER:
            return None
        ops = self._plan.program(channel.writer).ops
        _, at = self._written_at[channel.id]
        for step in range(1, len(ops)):
            place = channel.writer, (at + step) % len(ops)
            if place in self._costs:
                return place if isinstance(ops[place[1]], Read) else None
        return None


def _gain(change: tuple[float, dict[str, str]]) -> int:
    return round(change[0])  # so that of equal ones it is the first
