# SPDX-License-Identifier: Apache-2.0
"""What the analyses of a trace should find, worked out slowly: event by event, and ns by ns.

It follows the definitions in the docstrings of ``rcg.trace.analysis`` with loops over plain
objects, and shares no code with it. It is for traces of rings, also between nodes, in which each
op has one event in an execution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from rcg.ir.ids import DRIVER
from rcg.ir.ops import Collective, Op, Pass
from rcg.trace.analysis.events import TimeKind
from rcg.trace.model import NO_PEER, GraphTrace

COMPUTE, COMMUNICATION, SERIALIZATION, WAITING, IDLE = TimeKind


@dataclass(frozen=True)
class Event:
    """An event with its op. ``at`` is its place in the lane."""

    process: str
    at: int
    op: int
    what: Op
    execution: int
    start: int
    end: int
    waited: int
    coded: int
    bytes: int
    peer: int

    @property
    def is_read(self) -> bool:
        return bool(self.what.values_in) or isinstance(self.what, Pass)

    @property
    def parts(self) -> list[tuple[TimeKind, int, int]]:
        """Its three parts, one after the other."""
        rest = self.end - self.start - self.waited - self.coded
        if isinstance(self.what, Collective):
            kinds = [(WAITING, self.waited), (SERIALIZATION, self.coded), (COMMUNICATION, rest)]
        elif self.is_read:
            kinds = [(WAITING, self.waited), (COMMUNICATION, rest), (SERIALIZATION, self.coded)]
        elif self.what.values_out:
            kinds = [(SERIALIZATION, self.coded), (WAITING, self.waited), (COMMUNICATION, rest)]
        else:
            kinds = [(WAITING, self.waited), (COMPUTE, rest + self.coded)]
        found, at = [], self.start
        for kind, took in kinds:
            found.append((kind, at, at + took))
            at += took
        return found

    @property
    def wait(self) -> tuple[int, int]:
        return next((start, end) for kind, start, end in self.parts if kind is WAITING)


class Oracle:
    """The figures of a graph."""

    def __init__(self, graph: GraphTrace) -> None:
        self.graph = graph
        self.events: dict[str, list[Event]] = {}
        for lane in graph.lanes:
            ops = graph.program(lane).ops
            self.events[lane.process] = [
                Event(
                    lane.process, at, int(row["op"]), ops[row["op"]], int(row["execution"]),
                    int(row["start_ns"]), int(row["end_ns"]), int(row["waited_ns"]),
                    int(row["coded_ns"]), int(row["bytes"]), int(row["peer"]),
                )
                for at, row in enumerate(lane.events)
            ]  # fmt: skip
        self.channels = graph.plan.channels_by_id()
        for process, events in self.events.items():
            self.events[process] = [self.late(event) for event in events]

    def late(self, event: Event) -> Event:
        """A Read with a wait at least until its writer on this node began to send."""
        for channel in event.what.values_in:
            write, node = self.write(channel, event.execution), self.graph.plan.node_of
            if write is None or node(write.process) != node(event.process):
                continue
            sends = min(write.start + write.coded + write.waited, write.end)
            waited = min(sends - event.start, event.end - event.start - event.coded)
            if waited > event.waited:
                number = [lane.process for lane in self.graph.lanes].index(write.process)
                peer = number if event.peer == NO_PEER else event.peer
                event = replace(event, waited=waited, peer=peer)
        return event

    def all(self) -> Iterator[Event]:
        for events in self.events.values():
            yield from events

    def write(self, channel: str, execution: int) -> Event | None:
        events = self.events[self.channels[channel].writer]
        found = [e for e in events if channel in e.what.values_out and e.execution == execution]
        return found[-1] if found else None

    def read(self, channel: str, process: str, execution: int) -> Event | None:
        events = self.events[process]
        found = [e for e in events if channel in e.what.values_in and e.execution == execution]
        return found[-1] if found else None

    def passed(self, channel: str, process: str, execution: int) -> Event | None:
        """The Pass by which a channel came to the node of a process."""
        gate = self.graph.plan.node_of(process)
        for event in self.events.get(gate, ()):
            if event.what == Pass(channel) and event.execution == execution:
                return event
        return None

    # --- executions ------------------------------------------------------------------------------

    def submitted(self, execution: int) -> int:
        ops = self.graph.plan.program(DRIVER).ops
        channels = [channel for op in ops for channel in op.values_out]
        return min(self.write(channel, execution).start for channel in channels)

    def came(self, execution: int) -> list[Event]:
        """The events that brought the results of an execution to the driver's node."""
        ops = self.graph.plan.program(DRIVER).ops
        channels = [channel for op in ops for channel in op.values_in]
        return [
            self.passed(each, DRIVER, execution) or self.write(each, execution) for each in channels
        ]

    def completed(self, execution: int) -> int:
        ops = self.graph.plan.program(DRIVER).ops
        channels = [channel for op in ops for channel in op.values_in]
        taken = [self.read(each, DRIVER, execution) for each in channels]
        ends = [
            min(came.end, read.start + read.waited)
            for came, read in zip(self.came(execution), taken, strict=True)
        ]
        return max(*ends, self.submitted(execution))

    def executions(self) -> list[int]:
        return sorted({event.execution for event in self.all()})

    # --- shares ----------------------------------------------------------------------------------

    def shares(self, start: int, end: int) -> dict[str, Counter[TimeKind]]:
        """How many ns each process spent on each kind of time, one ns after the other."""
        in_flight = [False] * (end - start)
        for n in self.executions():
            for now in range(max(self.submitted(n), start), min(self.completed(n), end)):
                in_flight[now - start] = True
        found: dict[str, Counter[TimeKind]] = {}
        for process, events in self.events.items():
            # What each ns is of: waiting first, then work over it; of several the first to begin.
            of: list[tuple[TimeKind, Event] | None] = [None] * (end - start)
            for is_work in (False, True):
                for event in sorted(events, key=lambda event: event.start):
                    for kind, begin, until in event.parts:
                        for now in range(max(begin, start), min(until, end)):
                            held = of[now - start]
                            is_free = held is None or (is_work and held[0] is WAITING)
                            if (kind is not WAITING) is is_work and is_free:
                                of[now - start] = kind, event
            counts = found[process] = Counter()
            for held, flies in zip(of, in_flight, strict=True):
                is_idle = held is None or (held[0] is WAITING and held[1].is_read and not flies)
                counts[IDLE if is_idle else held[0]] += 1
        return found

    # --- ops -------------------------------------------------------------------------------------

    def ops(self) -> dict[tuple[str, int], tuple[int, float, int, int, int]]:
        """Of each op the count, and its median, total, waits and bytes."""
        runs: dict[tuple[str, int], list[Event]] = {}
        for event in self.all():
            runs.setdefault((event.process, event.op), []).append(event)
        return {
            place: (
                len(events),
                median(e.end - e.start - e.waited for e in events),
                sum(e.end - e.start - e.waited for e in events),
                sum(e.waited for e in events),
                sum(e.bytes for e in events),
            )
            for place, events in runs.items()
        }

    # --- the critical path -----------------------------------------------------------------------

    def cause(self, event: Event) -> Event | None:
        """The event that ended the wait of another, if that explains it."""
        if isinstance(event.what, Pass):
            found = self.write(event.what.channel, event.execution)
            return found if found is not None and found.start < event.wait[1] else None
        if not event.waited:
            return None
        found = None
        for channel in event.what.values_in:
            found = self.passed(channel, event.process, event.execution)
            found = found or self.write(channel, event.execution)
        for channel in event.what.values_out:
            spec = self.channels[channel]
            if event.execution >= spec.slots:
                reads = [
                    read
                    for each in spec.readers
                    if (read := self.read(channel, each, event.execution - spec.slots))
                ]
                named = [
                    read
                    for read in reads
                    if event.peer != NO_PEER
                    and self.graph.lanes[event.peer].process == read.process
                ]
                found = (named or sorted(reads, key=lambda read: -read.end))[0]
        begun, until = event.wait
        if found is None or found.end <= begun or found.start > until:
            return None
        if isinstance(found.what, Pass) and found.start == until:
            return None
        return found

    def before(self, event: Event) -> Event | None:
        """The event of its lane that ended last before it began."""
        others = [
            each
            for each in self.events[event.process]
            if each.end <= event.start
            and (each.end, each.start, each.at) < (event.end, event.start, event.at)
        ]
        return max(others, key=lambda each: (each.end, each.start, each.at), default=None)

    def path(self, event: Event, now: int, stop: int) -> Counter[tuple[str, int | None, TimeKind]]:
        """How many ns of each op, by kind, are on the path from an event back to a time."""
        spent: Counter[tuple[str, int | None, TimeKind]] = Counter()

        def spend(what: int | None, kind: TimeKind, begin: int, until: int) -> None:
            took = min(until, now) - max(begin, stop)
            if took > 0:
                spent[event.process, what, kind] += took

        while True:
            now = min(now, event.end)
            cause = self.cause(event)
            entered = min(now, event.wait[1] if cause else event.start)
            for kind, begin, until in event.parts:
                is_wire = isinstance(event.what, Pass) and kind is WAITING
                spend(event.op, COMMUNICATION if is_wire else kind, max(begin, entered), until)
            now = entered
            if entered <= stop:
                return spent
            following = cause or self.before(event)
            left = stop if following is None else max(min(now, following.end), stop)
            if cause:
                waking = COMMUNICATION if isinstance(event.what, Pass) else WAITING
                spend(event.op, waking, left, now)
            else:
                spend(None, IDLE, left, now)
            if following is None:
                return spent
            event, now = following, left
