# SPDX-License-Identifier: Apache-2.0
"""The events of a graph as one table of columns, which all analyses read.

```
lane  row  op  execution   bounds                                 moves
   0    0   1          0   start, end of part 1, of part 2, end    True     the driver's first
   0    1   3          0   ...                                     False
   1    0   0          0   ...                                     True     a0's first
```

Each event has three parts, one kind of time each; ``shape`` says which:

```
Read        | waiting for the frame | communication | serialization |
Write       | serialization | waiting for room | communication |
collective  | waiting for the other ranks | serialization | communication |
Call        | waiting for another graph's method | compute |          and every other op
```

A gate's Pass is like a Read: it waits for a frame from another node, and publishes it.

A Read waits at least until its writer begins to send, whatever its recorder saw: a loop that was
off the processor when the frame came has not seen itself wait. A Write of tensors waits until its
readers have taken the frame, and the recorder of a reader sees only the wait for that::

    Write        | encodes | waits for the slowest reader | sends            |
    Read          | waits for the frame |. . . . . . . . .| receives  | decodes |
    slow Read                                    | waits  | receives    | decodes |

An op of a driver may have several events in an execution, because inputs are encoded before there
is room for them and results are decoded when they are fetched. One of them moves the frame:

```
Write   | encodes |   other ops, until there is room     | moves |
Read    | waits without getting a frame |  | waits | moves |       | decodes |
```

The parts of an event add up to its duration. Times that contradict each other are cut to fit:
waiting and coding together last at most as long as the event.

User spans are not in the table. This room must know neither executions nor how anything is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import IntEnum
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from rcg.ir.ids import DRIVER
from rcg.ir.index import Place, Rendezvous, crossings_of, reads_of, rendezvous_of, writes_of
from rcg.ir.ops import Collective, Op, Pass
from rcg.ir.programs import Program
from rcg.trace.analysis.intervals import MIN_INT64, Ints, Times
from rcg.trace.model import EVENT, NO_PEER, SPAN_BASE, Events, GraphTrace, LaneTrace, OpenOp

Mask = npt.NDArray[np.bool_]

NONE: Final = -1
"""The row of an event that is not in the trace."""


class TimeKind(IntEnum):
    """What a process spent a part of its time on.

    COMPUTE: the user's methods. COMMUNICATION: moving bytes. SERIALIZATION: turning values into
    bytes and back. WAITING: waiting for another process. IDLE: nothing to do.
    """

    COMPUTE = 0
    COMMUNICATION = 1
    SERIALIZATION = 2
    WAITING = 3
    IDLE = 4


READ: Final = 0
WRITE: Final = 1
OTHER: Final = 2
COLLECTIVE: Final = 3

KINDS: Final = np.array(
    [
        (TimeKind.WAITING, TimeKind.COMMUNICATION, TimeKind.SERIALIZATION),
        (TimeKind.SERIALIZATION, TimeKind.WAITING, TimeKind.COMMUNICATION),
        (TimeKind.WAITING, TimeKind.COMPUTE, TimeKind.COMPUTE),
        (TimeKind.WAITING, TimeKind.SERIALIZATION, TimeKind.COMMUNICATION),
    ],
    np.uint8,
)
"""The kinds of the three parts of an event, by its shape."""

_WAITS: Final = np.array([0, 1, 0, 0])
"""Which part of an event is its wait, by its shape."""


def shape_of(op: Op) -> int:
    """Return the shape of an op's events: READ, WRITE, OTHER or COLLECTIVE."""
    if isinstance(op, Collective):
        return COLLECTIVE
    if op.values_in or isinstance(op, Pass):
        return READ
    return WRITE if op.values_out else OTHER


def shapes_of(program: Program) -> Ints:
    """Return the shape of each op of a program, and one more OTHER for ops that it does not have.

    The last one is for ``shapes[np.minimum(op, len(ops))]``.
    """
    return np.array([*map(shape_of, program.ops), OTHER])


class EventTable:
    """All events of the ops of a graph, lane by lane, those of each lane by their end.

    Args:
        graph: The graph.
        end_ns: When the ops that had not ended end, usually the end of the trace; None leaves them
            out.

    Attributes:
        graph: The graph.
        lane: The number of each event's lane in ``graph.lanes``.
        row: Its index in ``lane.events``; of an op that had not ended, their number.
        op: Its op; the length of the program if that does not have it.
        execution: Its execution.
        shape: READ, WRITE, OTHER or COLLECTIVE.
        bounds: Where its parts begin and end [n, 4]. Part ``i`` has the kind ``KINDS[shape, i]``
            and lasts from bound ``i`` to bound ``i + 1``.
        bytes: The bytes that it moved.
        peer: The number of the lane for which it waited, or ``NO_PEER``.
        is_open: Whether its op had not ended.
        moves: Whether it moved the frame of its execution: one event does, of all of an op.
        codes: Whether it only encoded or decoded, as an event of the driver may.
        polls: Whether it ended without a frame, as a Read of the driver may.
        first: The index of the first event of each lane, and the number of all events.
    """

    def __init__(self, graph: GraphTrace, end_ns: int | None = None) -> None:
        self.graph = graph
        self._numbers = {lane.process: number for number, lane in enumerate(graph.lanes)}
        sizes = [len(graph.program(lane).ops) for lane in graph.lanes]
        self._place = np.concatenate(([0], np.cumsum(np.array(sizes, np.int64) + 1)))
        pieces = [self._columns(lane, end_ns) for lane in graph.lanes]
        counts = [len(rows) for rows, _, _ in pieces]
        self.first: list[int] = np.concatenate(([0], np.cumsum(counts))).astype(int).tolist()
        self.lane: Ints = np.repeat(np.arange(len(counts)), counts)
        self.row: Ints = np.concatenate([rows for rows, _, _ in pieces])
        self.is_open: Mask = np.concatenate([is_open for _, _, is_open in pieces])
        self._has_open = bool(self.is_open.any())
        events: Events = np.concatenate([each for _, each, _ in pieces])
        self.op: Ints = np.minimum(events["op"].astype(np.int64), np.array(sizes)[self.lane])
        self.execution: Ints = events["execution"].astype(np.int64)
        self.bytes: Ints = events["bytes"].astype(np.int64)
        self.peer: Ints = events["peer"].astype(np.int64)
        shapes = np.concatenate([shapes_of(graph.program(lane)) for lane in graph.lanes])
        self.shape: Ints = shapes[self._place[self.lane] + self.op]
        self._index()
        self.codes: Mask = np.zeros(len(events), bool)
        self.polls: Mask = np.zeros(len(events), bool)
        self.moves: Mask = ~self.is_open
        self._find_movers(events)
        self._found: dict[Place, tuple[Ints, Ints]] = {}
        self.bounds: Times = _bounds(self.shape, self.is_open, events, self._late(events))

    def __len__(self) -> int:
        return len(self.op)

    @staticmethod
    def _columns(lane: LaneTrace, end_ns: int | None) -> tuple[Ints, Events, Mask]:
        """Return the rows of a lane's events, the events, and which had not ended."""
        row = np.flatnonzero(lane.events["op"] < SPAN_BASE)
        events = lane.events if len(row) == len(lane.events) else lane.events[row]
        start, end = events["start_ns"], events["end_ns"]
        if not (end[1:] > end[:-1]).all():  # as those of an actor without coroutines are
            order = np.lexsort((row, start, end))
            row, events = row[order], events[order]
        is_open = np.zeros(len(row) + 1, bool)
        if lane.open is None or end_ns is None:
            return row, events, is_open[:-1]
        is_open[-1] = True
        last = _open_event(lane.open, end_ns)
        return np.append(row, len(lane.events)), np.concatenate((events, last)), is_open

    def _index(self) -> None:
        """Sort the rows of each op, by execution and then time."""
        place = self._place[self.lane] + self.op
        count = int(self._place[-1])
        small = place.astype(np.uint16) if count <= 1 << 16 else place  # sorts ten times as fast
        order: Ints = np.argsort(small, kind="stable")
        self._begin: Ints = np.searchsorted(place[order], np.arange(count + 1))
        execution = self.execution[order]
        is_later = np.diff(execution) >= 0
        is_later[self._begin[(self._begin > 0) & (self._begin < len(order))] - 1] = True
        if not is_later.all():
            order = order[np.lexsort((execution, place[order]))]
        self._order = order

    def _find_movers(self, events: Events) -> None:
        """Find the events of the driver's Reads and Writes that moved no frame, or only code."""
        for lane in self.graph.lanes:
            if lane.process != DRIVER:
                continue
            for at, op in enumerate(self.graph.program(lane).ops):
                if op.values_in or op.values_out:
                    rows = self.rows(lane.process, at)
                    of_op = events[rows]
                    self.codes[rows] = _is_coding(of_op)
                    if op.values_in:
                        self.polls[rows] = _is_waiting(of_op)
                    self.moves[rows] = False
                    self.moves[rows[_movers(of_op, READ if op.values_in else WRITE)]] = True

    def _late(self, events: Events) -> Times:
        """Return how long events waited, at least until what they waited for was there.

        That is when the writer of a Read begins to send, and when the last rank of a collective
        arrives. What comes from another node is waited for by a gate, and clocks of nodes may
        disagree.
        """
        graph, waited = self.graph, events["waited_ns"].astype(np.int64)
        writes, crossings = writes_of(graph.plan), crossings_of(graph.plan)
        for (channel, reader), read in reads_of(graph.plan).items():
            if channel not in writes or (channel, graph.plan.node_of(reader)) in crossings:
                continue
            rows = self.moved(*read)
            rows = rows[~self.codes[rows]]
            sent = self.find(*writes[channel], self.execution[rows])
            rows, sent = rows[sent != NONE], sent[sent != NONE]
            write = events[sent]
            sending = write["start_ns"] + np.maximum(write["coded_ns"], 0)
            sending = np.minimum(sending + np.maximum(write["waited_ns"], 0), write["end_ns"])
            self._wait_until(sending, rows, np.full(len(rows), writes[channel][0]), events, waited)
        for each in rendezvous_of(graph.plan):
            if each.is_collective:
                self._wait_for_last(each, events, waited)
        return waited

    def _wait_for_last(self, collective: Rendezvous, events: Events, waited: Times) -> None:
        nodes = self.graph.plan.nodes_by_process()
        ends = np.array([process for process, _ in collective.ends])
        node = np.array([nodes[process] for process in ends])
        ranks = [self.rows(*place) for place in collective.ends]
        executions = np.unique(np.concatenate([self.execution[each] for each in ranks]))
        table = np.array([self.find(*place, executions) for place in collective.ends])
        start = np.where(table == NONE, MIN_INT64, events["start_ns"][table])
        last = np.argmax(start, axis=0)
        for rank, rows in enumerate(table):
            is_known = (rows != NONE) & (last != rank) & (node[last] == node[rank])
            arrived = start[last, np.arange(len(executions))]
            peers = ends[last]
            self._wait_until(arrived[is_known], rows[is_known], peers[is_known], events, waited)

    def _wait_until(
        self, time: Times, rows: Ints, peers: npt.NDArray[np.str_], events: Events, waited: Times
    ) -> None:
        """Have events wait until a time, within their length; and for a peer, if they name none."""
        of = events[rows]
        length = np.maximum(of["end_ns"] - of["start_ns"], 0)
        most = np.maximum(length - np.clip(of["coded_ns"], 0, length), 0)
        until = np.minimum(time - of["start_ns"], most)
        is_longer = until > waited[rows]
        waited[rows[is_longer]] = until[is_longer]
        unnamed = is_longer & (self.peer[rows] == NO_PEER)
        self.peer[rows[unnamed]] = [self._numbers[each] for each in peers[unnamed].tolist()]

    # --- rows ------------------------------------------------------------------------------------

    def number(self, process: str) -> int:
        """Return the number of a process's lane."""
        return self._numbers[process]

    def of_lane(self, number: int) -> slice:
        """Return the rows of a lane."""
        return slice(self.first[number], self.first[number + 1])

    def rows(self, process: str, op: int) -> Ints:
        """Return the rows of an op that ended, by execution and then time."""
        place = self._place[self._numbers[process]] + op
        rows: Ints = self._order[self._begin[place] : self._begin[place + 1]]
        return rows[~self.is_open[rows]] if self._has_open else rows

    def moved(self, process: str, op: int) -> Ints:
        """Return the rows of an op that moved the frames of their executions, by execution."""
        rows = self.rows(process, op)
        return rows[self.moves[rows]] if process == DRIVER else rows

    def find(self, process: str, op: int, execution: npt.ArrayLike) -> Ints:
        """Return the row of an op that moved the frame of each execution, or ``NONE``."""
        if (process, op) not in self._found:
            moved = self.moved(process, op)
            self._found[process, op] = self.execution[moved], moved
        known, rows = self._found[process, op]
        wanted = np.atleast_1d(np.asarray(execution, np.int64))
        if not len(rows):
            return np.full(len(wanted), NONE)
        at = np.searchsorted(known, wanted, side="right") - 1
        result: Ints = np.where(known[at] == wanted, rows[at], NONE)
        return result

    def executions(self) -> Ints:
        """Return the executions with at least one event that ended, ascending."""
        found = [np.empty(0, np.int64)]
        for number in range(len(self.graph.lanes)):
            of = self.of_lane(number)
            each = self.execution[of][~self.is_open[of]]
            # Few are left of the many that follow their like.
            found += [each[:1], each[1:][each[1:] != each[:-1]]]
        index: Ints = np.unique(np.concatenate(found))
        return index

    def ops(self) -> Iterator[tuple[int, int, Ints]]:
        """Yield the lane, the op and the rows of each op of a program that ended at least once."""
        for number, lane in enumerate(self.graph.lanes):
            for op in range(len(self.graph.program(lane).ops)):
                rows = self.rows(lane.process, op)
                if len(rows):
                    yield number, op, rows

    # --- times -----------------------------------------------------------------------------------

    @property
    def start_ns(self) -> Times:
        """When each event began."""
        return self.bounds[:, 0]

    @property
    def end_ns(self) -> Times:
        """When each event ended."""
        return self.bounds[:, 3]

    @cached_property
    def waited_ns(self) -> Times:
        """How long each event waited."""
        at, part = np.arange(len(self)), _WAITS[self.shape]
        waited: Times = self.bounds[at, part + 1] - self.bounds[at, part]
        return waited

    @cached_property
    def own_ns(self) -> Times:
        """How long each event took without waiting."""
        own: Times = self.bounds[:, 3] - self.bounds[:, 0] - self.waited_ns
        return own

    def own_in_execution(self, row: int) -> int:
        """Return how long the op of an event took in its execution, without waiting."""
        if self.graph.lanes[int(self.lane[row])].process != DRIVER:
            return int(self.own_ns[row])
        rows = self.rows(DRIVER, int(self.op[row]))
        return int(self.own_ns[rows[self.execution[rows] == self.execution[row]]].sum())

    def waits_until(self, rows: Ints) -> Times:
        """Return when events stopped waiting."""
        until: Times = self.bounds[rows, _WAITS[self.shape[rows]] + 1]
        return until

    def waits_from(self, rows: Ints) -> Times:
        """Return when events began to wait, or would have."""
        begun: Times = self.bounds[rows, _WAITS[self.shape[rows]]]
        return begun

    def taken_ns(self, rows: Ints) -> Times:
        """Return when Reads got their frames: they wait first, then move and decode them."""
        return self.waits_until(rows)

    def time_of(self, rows: Ints, kind: TimeKind) -> Times:
        """Return how long events spent on a kind of time."""
        length = np.diff(self.bounds[rows], axis=1)
        found: Times = np.where(KINDS[self.shape[rows]] == kind, length, 0).sum(axis=1)
        return found

    def sums(self, rows: Ints, figures: Sequence[Ints]) -> tuple[Ints, list[Ints]]:
        """Return the sums of figures over the events of an op in one execution each.

        Args:
            rows: Rows of an op, by execution.
            figures: For each figure, its value at these rows.

        Returns:
            The first row of each execution, and the sums of each figure.
        """
        is_first = np.ones(len(rows), bool)
        is_first[1:] = np.diff(self.execution[rows]) != 0
        if is_first.all():
            return rows, list(figures)
        first = np.flatnonzero(is_first)
        return rows[first], [np.add.reduceat(each, first) for each in figures]


def with_open(lane: LaneTrace, end_ns: int) -> LaneTrace:
    """Return a lane with the op that had not ended as an event, the last."""
    if lane.open is None:
        return lane
    return replace(
        lane, events=np.concatenate((lane.events, _open_event(lane.open, end_ns))), open=None
    )


def _open_event(now: OpenOp, end_ns: int) -> Events:
    """Return an op that had not ended as an event; its wait lasts to the end."""
    end = max(end_ns, now.since_ns)
    waited = max(end - max(now.waiting_since_ns, now.since_ns), 0) if now.waiting_since_ns else 0
    row = (now.since_ns, end, waited, 0, now.execution, 0, now.op, now.peer)
    return np.array([row], EVENT)


def _bounds(shape: Ints, is_open: Mask, events: Events, waited: Times) -> Times:
    start = events["start_ns"].astype(np.int64)
    length = np.maximum(events["end_ns"] - start, 0)
    waited = np.clip(waited, 0, length)
    coded = np.clip(events["coded_ns"], 0, length - waited)
    if is_open.any():
        # A Write that waits has encoded before. Others do nothing before they wait: a Read
        # interrupts its wait now and then, and a collective waits for one rank after the other.
        waits = is_open & (waited > 0)
        coded = np.where(waits & (shape == WRITE), length - waited, coded)
        waited = np.where(waits & (shape != WRITE), length, waited)
    bounds = np.empty((len(events), 4), np.int64)
    bounds[:, 0] = start
    bounds[:, 1] = start + np.where(shape == WRITE, coded, waited)
    bounds[:, 2] = start + np.where(shape == READ, length - coded, waited + coded)
    bounds[:, 3] = start + length
    np.copyto(bounds[:, 2], bounds[:, 3], where=shape == OTHER)
    return bounds


# --- the events of a driver's op -----------------------------------------------------------------


def _is_coding(events: Events) -> Mask:
    """Return which events of Reads or Writes only encoded or decoded."""
    took = events["end_ns"] - events["start_ns"]
    found: Mask = (events["bytes"] == 0) & (events["coded_ns"] > 0) & (events["coded_ns"] >= took)
    return found


def _is_waiting(events: Events) -> Mask:
    """Return which events of a driver's Read ended without a frame.

    Such an event has no bytes, but a frame may be empty as well. If other events of the Read have
    bytes, an event without bytes that mostly waited had no frame. Otherwise only an event that
    waited until it ended had none.
    """
    took, waited = events["end_ns"] - events["start_ns"], events["waited_ns"]
    has_bytes = events["bytes"] > 0
    is_most = (waited >= took) | (bool(has_bytes.any()) & (2 * waited >= took))
    found: Mask = ~has_bytes & (events["coded_ns"] == 0) & (waited > 0) & is_most
    return found


def _movers(events: Events, shape: int) -> Ints:
    """Return the indexes of the events of a driver's op that moved its frames, by execution.

    An execution whose frame was not moved in the trace has none. If the trace contains only the
    decoding of a Read, the decoding event is returned.

    Args:
        events: All events of one op, in any order.
        shape: READ or WRITE.
    """
    execution, codes = events["execution"], _is_coding(events)
    rank = np.where(events["bytes"] > 0, 3, 2)
    if shape == READ:
        rank = np.where(_is_waiting(events), 0, np.where(codes, 1, rank))
    else:
        rank = np.where(codes, 0, rank)
    if rank.min(initial=2) >= 2 and (np.diff(execution) > 0).all():
        return np.arange(len(events))
    # Events that only wait or encode come before the one that moves, so the last of equals moved.
    order = np.lexsort((events["start_ns"], rank, execution))
    is_last = np.append(execution[order][1:] != execution[order][:-1], True)[: len(order)]
    found = order[is_last]
    chosen: Ints = found[rank[found] > 0]
    return chosen
