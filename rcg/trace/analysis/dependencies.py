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
  Write ended its wait. Other events depend on the one that moved the frame (``events.py``).
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
from rcg.ir.index import Crossing, Rendezvous, crossings_of, reads_of, rendezvous_of, writes_of
from rcg.trace.analysis.events import KINDS, NONE, EventTable, Mask, TimeKind
from rcg.trace.analysis.intervals import MAX_INT64, MIN_INT64, Ints, Times
from rcg.trace.analysis.rendezvous import last_of
from rcg.trace.model import LaneTrace


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
    """The event on which each event of a table depends.

    Args:
        table: The events, without ops that had not ended.
        is_wired: Whether what comes from another node depends on the Pass of a gate.

    Attributes:
        before: The row on which each depends, or ``NONE``.
        entered: When it stopped depending on that event: the end of its wait, or its start.
        follows: Whether it waited for that event; otherwise the event precedes it in its lane.
        ready: When what it waited for was there: the end of that event, or when the last process of
            a rendezvous arrived.
        is_pass: Whether it is the Pass of a gate.
    """

    def __init__(self, table: EventTable, *, is_wired: bool = True) -> None:
        self.table = table
        plan = table.graph.plan
        self._writes, self._reads = writes_of(plan), reads_of(plan)
        self._crossings = crossings_of(plan) if is_wired else {}
        self._nodes = plan.nodes_by_process()
        count = len(table)
        self.is_pass = np.zeros(count, bool)
        for crossing in self._crossings.values():
            self.is_pass[table.rows(*crossing.place)] = True
        self.before = np.full(count, NONE)
        self.entered = table.start_ns.copy()
        self.follows = np.zeros(count, bool)
        self._is_lost = np.zeros(count, bool)
        arrived = np.full(count, NONE)
        for number, lane in enumerate(table.graph.lanes):
            self._link_lane(number, lane)
        for channel in plan.channels:
            if channel.kind != TENSOR and channel.id in self._writes:
                for reader in channel.readers:
                    if (channel.id, reader) in self._reads:
                        self._link_reads(channel.id, reader)
                self._link_writes(channel.id, channel.readers, channel.slots)
        for crossing in self._crossings.values():
            self._link_passes(crossing)
        for rendezvous in rendezvous_of(plan):
            self._link_rendezvous(rendezvous, arrived)
        self.ready = np.where(arrived == NONE, table.end_ns[self.before], arrived)

    def passed(self, channel: str, process: str, execution: npt.ArrayLike) -> Ints:
        """Return the Pass by which each of these executions came to a process, or ``NONE``."""
        crossing = self._crossings.get((channel, self._nodes[process]))
        if crossing is None:
            return np.full(np.size(execution), NONE)
        return self.table.find(*crossing.place, execution)

    def completion(self, execution: int) -> int:
        """Return the row of the event that completed an execution, as in ``executions_of``."""
        found = []
        for op in self.table.graph.plan.program(DRIVER).ops:
            for channel in op.values_in:
                row = int(self.passed(channel, DRIVER, execution)[0])
                for place in (self._writes.get(channel), self._reads[channel, DRIVER]):
                    if row == NONE and place is not None:
                        row = int(self.table.find(*place, execution)[0])
                if row != NONE:
                    found.append(row)
        return max(found, key=lambda row: int(self.table.end_ns[row]), default=NONE)

    def is_written(self, execution: Ints) -> Mask:
        """Return which executions have all Writes that complete them in the trace."""
        written = np.ones(len(execution), bool)
        for op in self.table.graph.plan.program(DRIVER).ops:
            for channel in op.values_in:
                place = self._writes.get(channel)
                if place is not None:
                    written &= self.table.find(*place, execution) != NONE
        return written

    def _link_lane(self, number: int, lane: LaneTrace) -> None:
        """Make each event depend on the event of its lane that ended last before it began."""
        first, last = self.table.first[number : number + 2]
        start, end = self.table.start_ns[first:last], self.table.end_ns[first:last]
        own = np.arange(last - first)
        before = np.minimum(np.searchsorted(end, start, side="right"), own) - 1
        if lane.lost and lane.process != DRIVER:
            # The events of an actor have no gaps, so a gap means lost events.
            is_lost = (before >= 0) & (end[before] < start)
            self._is_lost[first:last] = is_lost
            before = np.where(is_lost, NONE, before)
        self.before[first:last] = np.where(before >= 0, before + first, NONE)

    def _link_reads(self, channel: str, reader: str) -> None:
        table, place = self.table, self._reads[channel, reader]
        event = table.rows(*place)
        event = event[table.waited_ns[event] > 0]
        execution = table.execution[event]
        on = table.find(*self._writes[channel], execution)
        passed = self.passed(channel, reader, execution)
        on = np.where(passed == NONE, on, passed)
        # A wait without a frame did not end with a Write, so no Write is missing.
        came = (on != NONE) | (table.find(*place, execution) != NONE)
        self._depend(event[came], on[came])

    def _link_passes(self, crossing: Crossing) -> None:
        """Make each Pass depend on the Write of its frame, if that began before.

        A gate may record no wait: its events begin when a frame arrives.
        """
        if crossing.channel not in self._writes:
            return
        table = self.table
        event = table.rows(*crossing.place)
        on = table.find(*self._writes[crossing.channel], table.execution[event])
        until = table.waits_until(event)
        is_known = (on != NONE) & (table.start_ns[on] < until)
        event, on = event[is_known], on[is_known]
        self.before[event], self.entered[event] = on, until[is_known]
        self.follows[event], self._is_lost[event] = True, False

    def _link_writes(self, channel: str, readers: Sequence[str], slots: int) -> None:
        table = self.table
        event = table.rows(*self._writes[channel])
        # The channel is empty for the first frames.
        event = event[(table.waited_ns[event] > 0) & (table.execution[event] >= slots)]
        wanted = table.execution[event] - slots
        of_readers = [self._reads[each] for r in readers if (each := (channel, r)) in self._reads]
        found = np.array([table.find(*place, wanted) for place in of_readers])
        if not found.size:
            return
        ends = np.where(found >= 0, table.end_ns[found], MIN_INT64)
        slowest = np.argmax(ends, axis=0)
        at = np.arange(len(event))
        # If the event names the peer that it waited for, that peer counts.
        is_peer = (table.lane[found] == table.peer[event]) & (found >= 0)
        slowest = np.where(is_peer.any(axis=0), np.argmax(is_peer, axis=0), slowest)
        self._depend(event, found[slowest, at])

    def _link_rendezvous(self, rendezvous: Rendezvous, arrived: Times) -> None:
        """Make the events of a rendezvous that waited depend on the last to arrive.

        Args:
            rendezvous: The rendezvous.
            arrived: When the last process arrived, by event. It is filled in.
        """
        events = self.table
        rows = [events.rows(*place) for place in rendezvous.ends]
        executions = np.unique(np.concatenate([events.execution[each] for each in rows]))
        table = np.array([events.find(*place, executions) for place in rendezvous.ends])
        # A missing event has not arrived last, as far as the trace shows.
        start = np.where(table == NONE, MIN_INT64, events.start_ns[table])
        waited = np.where(table == NONE, MAX_INT64, events.waited_ns[table])
        places = np.arange(len(executions))
        if rendezvous.is_collective:
            last = table[last_of(waited, start), places]
            on = np.broadcast_to(last, table.shape)
        else:
            # The writer, or the last reader if it came after the frame.
            came = np.argmax(start[1:], axis=0) + 1
            is_late = start[came, places] > np.where(
                table[0] == NONE, MAX_INT64, events.bounds[table[0], 1]
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
                is_lost |= (events.peer[each] == events.number(process)) & (other == NONE)
            of = np.where(is_lost, NONE, of)
            is_linked = (is_linked | is_lost) & (each != NONE) & (events.waited_ns[each] > 0)
            event = each[is_linked]
            self._depend(event, of[is_linked])
            arrived[event] = start.max(axis=0)[is_linked]

    def _depend(self, event: Ints, on: Ints) -> None:
        """Make events that waited depend on others, if these explain the wait."""
        table, until = self.table, self.table.waits_until(event)
        is_missing = on < 0
        self.before[event[is_missing]] = NONE
        self._is_lost[event[is_missing]] = True
        begun = table.waits_from(event)
        explains = ~is_missing & (table.end_ns[on] > begun) & (table.start_ns[on] <= until)
        explains &= ~self.is_pass[on] | (table.start_ns[on] < until)  # one that took no time
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
        bounds, entered = self.table.bounds[chain], self.entered[chain]
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
        kind[:, :3] = KINDS[self.table.shape[chain]][:, ::-1]
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
        before, entered = self.before.data, self.entered.data
        chain = []
        # Clocks that disagree could make events depend on each other in a circle.
        for _ in range(len(self.before)):
            chain.append(event)
            if entered[event] <= stop_ns:
                break
            event = before[event]
            if event < 0:
                break
        return chain
