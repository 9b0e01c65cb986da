# SPDX-License-Identifier: Apache-2.0
"""Lanes as processes and threads of the Trace Event Format: their numbers, names and events.

On a track (a thread of the format) events are disjoint or nested. Ops of an actor never overlap.
Ops of the driver overlap if several threads submit and get. Spans lie inside calls and are disjoint
or nested, unless a method's coroutines alternate.

This file must not know the rows that are written for the events.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rcg.text import time_text
from rcg.trace.analysis.events import NONE, EventTable
from rcg.trace.analysis.intervals import Ints
from rcg.trace.model import SPAN_BASE, Events, GraphTrace, LaneTrace, TensorTransfer


@dataclass(slots=True)
class TrackNumbers:
    """The numbers of processes and threads, and the rows that name them. All numbers differ."""

    rows: list[str] = field(default_factory=list)
    _count: int = 0
    _processes: dict[object, int] = field(default_factory=dict)

    def process(self, graph: GraphTrace, lane: LaneTrace) -> int:
        """Return the number of a lane's process: the same in all graphs if the pid is known."""
        key = (lane.node, lane.pid) if lane.pid else (graph.graph_id, lane.process)
        if key not in self._processes:
            self._processes[key] = number = self._next()
            self._add("process", number, number, lane.label)
            if facts := _facts(lane):
                self._row("process_labels", number, number, labels=facts)
        return self._processes[key]

    def thread(self, graph: GraphTrace, lane: LaneTrace, what: int | str) -> str:
        """Return the fields of a new thread, such as ``"pid":1,"tid":2``.

        ``what`` is the track of the process, or the name of a stream of a device.
        """
        process, number = self.process(graph, lane), self._next()
        more = what if isinstance(what, str) else str(what + 1) if what else ""
        name = f"graph {graph.graph_id[:8]}" + (f" ({more})" if more else "")
        self._add("thread", process, number, name)
        return f'"pid":{process},"tid":{number}'

    def references(
        self, transfers: Sequence[TensorTransfer]
    ) -> Iterator[tuple[TensorTransfer, str]]:
        """Yield transfers with the fields of their threads; those of one thread do not overlap."""
        process = 0
        threads: dict[str, list[tuple[int, str]]] = {}  # of each target: its end, and the fields
        for each in transfers:
            if not process:
                process = self._next()
                self._add("process", process, process, "tensors by reference")
            known = threads.setdefault(each.target, [])
            at = next((i for i, (end, _) in enumerate(known) if end <= each.start_ns), len(known))
            if at == len(known):
                number = self._next()
                name = each.target + (f" ({at + 1})" if at else "")
                self._add("thread", process, number, name)
                known.append((0, f'"pid":{process},"tid":{number}'))
            known[at] = each.end_ns, known[at][1]
            yield each, known[at][1]

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _add(self, kind: str, process: int, thread: int, name: str) -> None:
        """Name a process or thread, and keep it at the place of its number."""
        self._row(f"{kind}_name", process, thread, name=name)
        self._row(f"{kind}_sort_index", process, thread, sort_index=thread)

    def _row(self, what: str, process: int, thread: int, **args: Any) -> None:
        row = {"ph": "M", "name": what, "pid": process, "tid": thread, "args": args}
        self.rows.append(dumps(row))


def _facts(lane: LaneTrace) -> str:
    facts = [f"pid {lane.pid}"] if lane.pid else []
    facts += [lane.node] if lane.node else []
    facts += [f"clock within {time_text(lane.clock.error_ns)}"] if lane.clock.error_ns else []
    return ", ".join(facts)


class LaneTracks:
    """The events of one lane, in the order in which they nest. Times count from 0.

    Attributes:
        table: The events of the graph's ops.
        at: The row of each event in the table, or ``NONE`` for a span.
    """

    def __init__(
        self, table: EventTable, number: int, first: int, origin_ns: int, numbers: TrackNumbers
    ) -> None:
        lane = table.graph.lanes[number]
        of = np.arange(len(table))[table.of_lane(number)]
        of = of[~table.is_open[of]]
        at = np.full(len(lane.events), NONE)
        at[table.row[of]] = of
        events = lane.events.copy()
        events["waited_ns"][table.row[of]] = table.waited_ns[of]
        events["peer"][table.row[of]] = table.peer[of]
        for name in ("start_ns", "end_ns"):
            events[name] -= origin_ns
        order, self.track = nest(events)
        self.graph, self.lane, self.first = table.graph, lane, first
        self.table, self.at = table, at[order]
        self.events: Events = events[order]
        self.start = np.maximum(self.events["start_ns"], 0)
        self.end = np.maximum(self.events["end_ns"], 0)
        self.op = self.events["op"].astype(np.int64)
        self.waits_at, self.moves_at = self.start.copy(), self.start.copy()
        is_op = self.at != NONE
        self.waits_at[is_op] = np.maximum(table.waits_from(self.at[is_op]) - origin_ns, 0)
        self.moves_at[is_op] = np.maximum(table.waits_until(self.at[is_op]) - origin_ns, 0)
        self.threads = [
            numbers.thread(table.graph, lane, track)
            for track in range(1 + int(self.track.max(initial=0)))
        ]
        self._place = np.full(len(table), NONE)
        self._place[self.at[is_op]] = np.flatnonzero(is_op)

    def places(self, rows: Ints) -> Ints:
        """Return the indexes of the events with these rows in the table."""
        found: Ints = self._place[rows]
        return found

    def begin(self, phase: str, track: int, category: str, name: str) -> str:
        """Return the beginning of a row on a thread of this lane."""
        return beginning(phase, category, name, self.threads[track])


def beginning(phase: str, category: str, name: str, thread: str) -> str:
    """Return the beginning of a row on a thread of ``TrackNumbers``."""
    return f'{{"ph":"{phase}","cat":"{category}","name":{dumps(name)},{thread},"ts":'


def dumps(value: Any) -> str:
    """Return JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


def nest(events: Events) -> tuple[Ints, Ints]:
    """Return the order in which events nest, and the track of each event in that order.

    On a track no event partly overlaps another, and no op lies inside another event. A span lies
    inside the call or span before it if it fits. There are as many tracks as events overlap,
    usually one.
    """
    is_span = events["op"] >= SPAN_BASE
    end = events["end_ns"]
    order = np.lexsort((np.where(is_span, -end, end), is_span, events["start_ns"]))
    starts, ends = events["start_ns"][order], end[order]
    if not is_span.any() and bool((starts[1:] >= ends[:-1]).all()):
        return order, np.zeros(len(order), np.int64)

    tracks: list[list[int]] = []  # for each track, the ends of its open events, the innermost last
    found = []
    for start, stop, span in zip(
        starts.tolist(), ends.tolist(), is_span[order].tolist(), strict=True
    ):
        free = inside = -1
        for track in range(len(tracks) - 1, -1, -1):
            stack = tracks[track]
            while stack and stack[-1] <= start:
                stack.pop()
            if not stack:
                free = track
            elif span and stop <= stack[-1]:
                inside = track
        chosen = inside if inside >= 0 else free
        if chosen < 0:
            chosen = len(tracks)
            tracks.append([])
        tracks[chosen].append(stop)
        found.append(chosen)
    return order, np.array(found, np.int64)
