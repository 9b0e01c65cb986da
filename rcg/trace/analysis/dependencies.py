# SPDX-License-Identifier: Apache-2.0
"""Dependencies between events: the event on which each one depends, and following them backwards.

* A Read that waited depends on the Write of the same channel and execution.
* Where the value comes from another node, a Read that waited depends on the Pass of its gate, and
  that on the Write. What lies between these two is the time on the wire, which is communication,
  also where the gate waits. (``is_wired=False``: such a Read depends on the Write.)
* A Write that waited for room depends on the Read that made room: that of the slowest reader, as
  many executions earlier as the channel has slots.
* Over a tensor channel, no end begins to move bytes before all have arrived. If a reader arrived
  after the frame was there, a Write that waited depends on the last Read to arrive, and that Read
  on the event before it. Other Reads that waited depend on the Write.
* A collective that waited depends on that of the last rank to arrive.
* A driver's Read may have several events in an execution. Each of them depends on the Write if the
  Write ended its wait. Other events depend on the one that moved the frame (``transfers.movers``).
* Every other event depends on the event before it in its lane.

An event depends on at most one other event. So the dependencies of all events are computed at once,
and only following them needs a loop over events.

This room must know neither executions nor how paths are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rcg.ir.channels import TENSOR
from rcg.ir.ids import DRIVER
from rcg.trace.analysis.intervals import MAX_INT64, MIN_INT64, Ints, Times
from rcg.trace.analysis.parts import KINDS, READ, WRITE, TimeKind, bounds_of
from rcg.trace.analysis.rendezvous import NONE, Rendezvous, last_of, rendezvous_of, with_waits
from rcg.trace.analysis.transfers import Crossing, crossings_of, movers
from rcg.trace.model import SPAN_BASE, GraphTrace, LaneTrace


@dataclass(frozen=True, eq=False)
class Walk:
    """The steps of a path as columns, last step first. Some may be empty.

    Attributes:
        event: The event of each step.
        kind: Its ``TimeKind``.
        start: When it begins.
        end: When it ends.
        is_between: Whether it lies before the event and outside all events.
        is_unknown: Whether its events are not in the trace.
    """

    event: Ints
    kind: Ints
    start: Times
    end: Times
    is_between: npt.NDArray[np.bool_]
    is_unknown: npt.NDArray[np.bool_]


class Dependencies:
    """All events of a graph's ops, by lane and end, and the event on which each depends.

    Attributes:
        lane: The lane of each event.
        row: Its index in ``lane.events``.
        op: Its op.
        execution: Its execution.
        bounds: The bounds of its parts [n, 4].
        shape: READ, WRITE, OTHER or COLLECTIVE.
        before: The event on which it depends, or -1.
        entered: When it stopped depending on that event: the end of its wait, or its start.
        follows: Whether it waited for that event; otherwise the event precedes it in its lane.
        ready: When what it waited for was there: the end of that event, or when the last process of
            a rendezvous arrived.
        is_pass: Whether it is the Pass of a gate.
    """

    def __init__(self, graph: GraphTrace, *, is_wired: bool = False) -> None:
        self._graph = graph
        self._crossings = crossings_of(graph.plan) if is_wired else ()
        rows, shapes, bounds, events = [], [], [], []
        for lane in graph.lanes:
            row = np.flatnonzero(lane.events["op"] < SPAN_BASE)
            start, end = (lane.events[name][row] for name in ("start_ns", "end_ns"))
            if not (end[1:] > end[:-1]).all():  # as those of an actor without coroutines are
                row = row[np.lexsort((row, start, end))]
            rows.append(row)
            events.append(with_waits(graph, lane)[row])
            shape, bound = bounds_of(graph.program(lane), events[-1])
            shapes.append(shape)
            bounds.append(bound)
        counts = [len(row) for row in rows]
        self._offsets = np.concatenate(([0], np.cumsum(counts))).tolist()
        self.lane = np.repeat(np.arange(len(counts)), counts)
        self.row = np.concatenate(rows)
        self.op = np.concatenate([each["op"] for each in events]).astype(np.int64)
        self.execution = np.concatenate([each["execution"] for each in events])
        self.bounds = np.concatenate(bounds)
        self.shape = np.concatenate(shapes)
        self._waited = np.concatenate(
            [_waits_ns(*each) for each in zip(shapes, bounds, strict=True)]
        )
        self._peer = np.concatenate([each["peer"] for each in events])
        self._writes, self._reads = self._ends()
        self._passes = {(each.channel, each.node): self._table_of(each) for each in self._crossings}
        self.is_pass = np.zeros(len(self.op), bool)
        for table in self._passes.values():
            self.is_pass[table.event] = True
        self._nodes = graph.plan.nodes_by_process()
        self._link()

    def writes_of(self, channel: str, execution: npt.ArrayLike) -> Ints:
        """Return the Write of a channel in each of these executions, or -1."""
        return self._writes[channel].at(np.atleast_1d(execution))

    def reads_of(self, channel: str, process: str, execution: npt.ArrayLike) -> Ints:
        """Return the Read of a channel by a process in each of these executions, or -1."""
        return self._reads[channel, process].at(np.atleast_1d(execution))

    def passes_of(self, channel: str, process: str, execution: npt.ArrayLike) -> Ints:
        """Return the Pass by which each of these executions came to a process, or -1."""
        table = self._passes.get((channel, self._nodes[process]))
        wanted = np.atleast_1d(execution)
        return np.full(len(wanted), NONE) if table is None else table.at(wanted)

    def time_of(self, event: Ints, kind: TimeKind) -> Times:
        """Return how long each of these events spent on a kind of time."""
        length = np.diff(self.bounds[event], axis=1)
        found: Times = np.where(KINDS[self.shape[event]] == kind, length, 0).sum(axis=1)
        return found

    def _table_of(self, crossing: Crossing) -> _Table:
        event = self._rows_of(crossing.node, crossing.op)
        return _Table(self.execution[event], event, event)

    def _ends(self) -> tuple[dict[str, _Table], dict[tuple[str, str], _Table]]:
        """Index the Writes of each channel, and its Reads by each process, by execution."""
        writes: dict[str, _Table] = {}
        reads: dict[tuple[str, str], _Table] = {}
        for number, lane in enumerate(self._graph.lanes):
            first, last = self._offsets[number : number + 2]
            order = np.argsort(self.op[first:last], kind="stable") + first
            ops = self._graph.program(lane).ops
            bounds = np.searchsorted(self.op[order], np.arange(len(ops) + 1))
            for at, op in enumerate(ops):
                for channel in (*op.values_in, *op.values_out):
                    is_read = bool(op.values_in)
                    event = order[bounds[at] : bounds[at + 1]]
                    moves = event
                    if lane.process == DRIVER:
                        rows = lane.events[self.row[event]]
                        moves = event[movers(rows, READ if is_read else WRITE)]
                    table = _Table(self.execution[moves], moves, event)
                    if is_read:
                        reads[channel, lane.process] = table
                    else:
                        writes[channel] = table
        return writes, reads

    def _link(self) -> None:
        start = self.bounds[:, 0]
        self.before = np.full(len(start), NONE)
        self.entered = start.copy()
        self.follows = np.zeros(len(start), bool)
        self._is_lost = np.zeros(len(start), bool)
        arrived = np.full(len(start), NONE)
        for number, lane in enumerate(self._graph.lanes):
            self._link_lane(number, lane)
        for channel in self._graph.plan.channels:
            if channel.kind != TENSOR and channel.id in self._writes:
                for reader in channel.readers:
                    if (channel.id, reader) in self._reads:
                        self._link_reads(channel.id, reader)
                self._link_writes(channel.id, channel.readers, channel.slots)
        for (channel_id, _), table in self._passes.items():
            self._link_passes(channel_id, table)
        for rendezvous in rendezvous_of(self._graph.plan):
            self._link_rendezvous(rendezvous, arrived)
        self.ready = np.where(arrived == NONE, self.bounds[self.before, 3], arrived)

    def _link_lane(self, number: int, lane: LaneTrace) -> None:
        """Make each event depend on the event of its lane that ended last before it began."""
        first, last = self._offsets[number : number + 2]
        start, end = self.bounds[first:last, 0], self.bounds[first:last, 3]
        own = np.arange(last - first)
        before = np.minimum(np.searchsorted(end, start, side="right"), own) - 1
        if lane.lost and lane.process != DRIVER:
            # The events of an actor have no gaps, so a gap means lost events.
            is_lost = (before >= 0) & (end[before] < start)
            self._is_lost[first:last] = is_lost
            before = np.where(is_lost, NONE, before)
        self.before[first:last] = np.where(before >= 0, before + first, NONE)

    def _link_reads(self, channel: str, reader: str) -> None:
        table = self._reads[channel, reader]
        event = table.event[self._waited[table.event] > 0]
        on = self._writes[channel].at(self.execution[event])
        passed = self.passes_of(channel, reader, self.execution[event])
        on = np.where(passed == NONE, on, passed)
        # A wait without a frame did not end with a Write, so no Write is missing.
        came = (on != NONE) | (table.at(self.execution[event]) != NONE)
        self._depend(event[came], on[came], self.bounds[event[came], 1])

    def _link_passes(self, channel: str, table: _Table) -> None:
        """Make each Pass depend on the Write of its frame, if that began before.

        A gate may record no wait: its events begin when a frame arrives.
        """
        if channel not in self._writes:
            return
        event = table.event
        on = self._writes[channel].at(self.execution[event])
        until = self.bounds[event, 1]
        is_known = (on != NONE) & (self.bounds[on, 0] < until)
        event, on = event[is_known], on[is_known]
        self.before[event], self.entered[event] = on, until[is_known]
        self.follows[event], self._is_lost[event] = True, False

    def _link_writes(self, channel: str, readers: Sequence[str], slots: int) -> None:
        event = self._writes[channel].event
        # The channel is empty for the first frames.
        event = event[(self._waited[event] > 0) & (self.execution[event] >= slots)]
        wanted = self.execution[event] - slots
        of_readers = [(channel, reader) for reader in readers]
        found = np.array(
            [self._reads[each].at(wanted) for each in of_readers if each in self._reads]
        )
        if not found.size:
            return
        ends = np.where(found >= 0, self.bounds[found, 3], MIN_INT64)
        slowest = np.argmax(ends, axis=0)
        at = np.arange(len(event))
        # If the event names the peer that it waited for, that peer counts.
        is_peer = (self.lane[found] == self._peer[event]) & (found >= 0)
        slowest = np.where(is_peer.any(axis=0), np.argmax(is_peer, axis=0), slowest)
        self._depend(event, found[slowest, at], self.bounds[event, 2])

    def _link_rendezvous(self, rendezvous: Rendezvous, arrived: Times) -> None:
        """Make the events of a rendezvous that waited depend on the last to arrive.

        Args:
            rendezvous: The rendezvous.
            arrived: When the last process arrived, by event. It is filled in.
        """
        events = [self._rows_of(process, op) for process, op in rendezvous.ends]
        executions = np.unique(np.concatenate([self.execution[each] for each in events]))
        table = np.full((len(events), len(executions)), NONE)
        for at, each in enumerate(events):
            table[at, np.searchsorted(executions, self.execution[each])] = each
        # A missing event has not arrived last, as far as the trace shows.
        start = np.where(table == NONE, MIN_INT64, self.bounds[table, 0])
        waited = np.where(table == NONE, MAX_INT64, self._waited[table])
        places = np.arange(len(executions))
        if rendezvous.is_collective:
            last = table[last_of(waited, start), places]
            on = np.broadcast_to(last, table.shape)
        else:
            # The writer, or the last reader if it came after the frame.
            came = np.argmax(start[1:], axis=0) + 1
            is_late = start[came, places] > np.where(
                table[0] == NONE, MAX_INT64, self.bounds[table[0], 1]
            )
            last = np.where(is_late, table[came, places], table[0])
            on = np.broadcast_to(table[0], table.shape).copy()
            on[0] = last
        for each, of in zip(table, on, strict=True):
            # An event never depends on itself, nor does the last to arrive depend on any other.
            is_linked = (each != last) & (each != of)
            # An event may name a peer whose event is missing.
            is_lost = np.zeros(len(each), bool)
            for other, (process, _) in zip(table, rendezvous.ends, strict=True):
                is_lost |= (self._peer[each] == self._number_of(process)) & (other == NONE)
            of = np.where(is_lost, NONE, of)
            is_linked = (is_linked | is_lost) & (each != NONE) & (self._waited[each] > 0)
            event = each[is_linked]
            self._depend(event, of[is_linked], self._waits_until(event))
            arrived[event] = start.max(axis=0)[is_linked]

    def _number_of(self, process: str) -> int:
        return next(at for at, lane in enumerate(self._graph.lanes) if lane.process == process)

    def _rows_of(self, process: str, op: int) -> Ints:
        number = self._number_of(process)
        first, last = self._offsets[number : number + 2]
        rows: Ints = np.flatnonzero(self.op[first:last] == op) + first
        return rows

    def _waits_until(self, event: Ints) -> Times:
        until: Times = self.bounds[event, np.where(self.shape[event] == WRITE, 2, 1)]
        return until

    def _depend(self, event: Ints, on: Ints, until: Times) -> None:
        """Make events whose wait ended at ``until`` depend on others, if these explain the wait."""
        is_missing = on < 0
        self.before[event[is_missing]] = NONE
        self._is_lost[event[is_missing]] = True
        begun = np.where(self.shape[event] == WRITE, self.bounds[event, 1], self.bounds[event, 0])
        explains = ~is_missing & (self.bounds[on, 3] > begun) & (self.bounds[on, 0] < until)
        chosen = event[explains]
        self.before[chosen] = on[explains]
        self.entered[chosen] = until[explains]
        self.follows[chosen] = True
        self._is_lost[chosen] = False
        lost = event[is_missing]
        self.entered[lost] = until[is_missing]

    def walk(self, event: int, end_ns: int, stop_ns: int) -> Walk:
        """Follow the dependencies from an event back to ``stop_ns``."""
        chain = np.array(self._chain(event, stop_ns))
        bounds, entered = self.bounds[chain], self.entered[chain]
        # Time on the path decreases: the path goes through an event from where it was left to where
        # it was entered, and leaves the next event no later than that one ended.
        left = np.minimum(bounds[:, 3], np.concatenate(([end_ns], entered[:-1])))
        left = np.maximum(np.minimum.accumulate(left), stop_ns)
        came = np.minimum(np.maximum(entered, stop_ns), left)
        following = np.concatenate((left[1:], [stop_ns]))
        count = len(chain)
        start, end = np.empty((count, 4), np.int64), np.empty((count, 4), np.int64)
        for part in range(3):  # last part first
            start[:, part] = np.maximum(bounds[:, 2 - part], came)
            end[:, part] = np.maximum(np.minimum(bounds[:, 3 - part], left), start[:, part])
        start[:, 3], end[:, 3] = following, came
        kind = np.empty((count, 4), np.int64)
        kind[:, :3] = KINDS[self.shape[chain]][:, ::-1]
        kind[:, 3] = np.where(self.follows[chain], TimeKind.WAITING, TimeKind.IDLE)
        is_wire = self.is_pass[chain][:, None] & (kind == TimeKind.WAITING)
        kind = np.where(is_wire, TimeKind.COMMUNICATION, kind)
        is_between = np.zeros((count, 4), bool)
        is_between[:, 3] = ~self.follows[chain]
        is_unknown = np.zeros((count, 4), bool)
        is_unknown[-1, 3] = True
        kind[-1, 3], is_between[-1, 3] = TimeKind.IDLE, True
        return Walk(
            event=np.repeat(chain, 4),
            kind=kind.ravel(),
            start=start.ravel(),
            end=end.ravel(),
            is_between=is_between.ravel(),
            is_unknown=is_unknown.ravel(),
        )

    def _chain(self, event: int, stop_ns: int) -> list[int]:
        before, entered = self.before.item, self.entered.item
        chain = []
        # Clocks that disagree could make events depend on each other in a circle.
        for _ in range(len(self.before)):
            chain.append(event)
            if entered(event) <= stop_ns:
                break
            event = before(event)
            if event < 0:
                break
        return chain


class _Table:
    """Finds the event that moved the frame of an execution; the last one if there are several."""

    def __init__(self, execution: Ints, moves: Ints, event: Ints) -> None:
        order = np.argsort(execution, kind="stable")
        self._execution = execution[order].astype(np.int64)  # as those that are looked for
        self._moves = moves[order]
        self.event = event

    def at(self, execution: Ints) -> Ints:
        """Return the event of each of these executions, or -1."""
        if not len(self._moves):
            return np.full(len(execution), NONE)
        at = np.searchsorted(self._execution, execution, side="right") - 1
        found: Ints = np.where(self._execution[at] == execution, self._moves[at], NONE)
        return found


def _waits_ns(shape: Ints, bounds: Times) -> Times:
    """Return the time that each event waited. The shape determines which part that is."""
    first = np.where(shape == WRITE, 1, 0)
    at = np.arange(len(shape))
    waited: Times = bounds[at, first + 1] - bounds[at, first]
    return waited
