# SPDX-License-Identifier: Apache-2.0
"""The timeline of a graph: a bar for each part of what a process did, and how values travelled.

```
event   Read c1, execution 7     waited 30 µs    moved 4 µs      decoded 2 µs
bars    "read c1"                waiting         communication   serialization     three
```

So a bar has one kind of time. Spans have a row for each depth, streams of devices one each. A queue
is the number of frames that were written and not yet read: in every execution a channel is written
once, and read once by each reader, in order. So its depth follows from the last written and the
last read execution, even if events between were lost.

A schedule is made from the bars of this cut, and so is everything else that is drawn over time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from rcg.ir.channels import STATUS, TENSOR
from rcg.ir.index import crossings_of
from rcg.ir.ops import Op, Pass
from rcg.text import brief, plural, time_text, visible
from rcg.trace.analysis.events import TimeKind
from rcg.trace.analysis.intervals import without
from rcg.trace.analysis.parts import Parts
from rcg.trace.analysis.shares import calls_of
from rcg.trace.measured import Measured
from rcg.trace.model import SPAN_BASE, Events, LaneTrace
from rcg.views.data.colours import (
    DEVICE_COMMUNICATION,
    DEVICE_COMPUTE,
    HIDDEN,
    KIND_LOOKS,
    SPAN,
    Look,
)
from rcg.views.data.edge_styles import style_of
from rcg.views.data.excerpts import Excerpt, excerpt_of
from rcg.views.data.lettering import DOT
from rcg.views.data.node_lanes import addresses_of, lanes_under, node_heads, order_of
from rcg.views.scene import (
    COLLECTIVE,
    EXCHANGE,
    NO_OP,
    NOBODY,
    QUEUE,
    SPANS,
    VALUE,
    WIRE,
    Bars,
    Column,
    Group,
    Ints,
    Links,
    Name,
    Row,
    Scene,
    Steps,
)
from rcg.views.scenes.causes import causes_of
from rcg.views.scenes.names import OpNames, names_of
from rcg.views.scenes.path import path_within, paths_of

_MAX_NAMES: Final = 1 << 16
_MAX_TITLED: Final = 4  # spans that the legend names
_MAX_DEPTH: Final = 8  # of spans inside spans
_MOVES: Final = re.compile("nccl|Memcpy", re.IGNORECASE)  # how names of such kernels begin
_HEIGHT: Final = 20.0
_THIN: Final = 14.0
_QUEUE: Final = 10.0


def timeline_scene(measured: Measured, *, part: Excerpt | None = None) -> Scene:
    """Return the timeline of a graph.

    Args:
        measured: What the graph did. Calls that had not returned are cut off at its end.
        part: The part that is shown, with the path until its last execution; None shows all, with
            the path of each execution.

    Raises:
        ValueError: The recording ends before it starts.
    """
    graph = measured.graph
    scene = cut_of(measured, None if part is None else (part.start_ns, part.end_ns))
    firsts = {row.process: number for number, row in reversed([*enumerate(scene.rows)])}
    lanes = np.array([firsts[lane.process] for lane in graph.lanes])
    found = paths_of(measured) if part is None else path_within(measured, part)
    lost = sum(lane.lost for lane in graph.lanes)
    words = [_executions(scene) if part is None else part_words(scene, part)]
    words += [] if part else [f"{time_text(scene.end - scene.begin)} in all"]
    words += clock_words(scene.rows)
    words += [f"{plural(lost, 'event')} {'was' if lost == 1 else 'were'} lost"] if lost else []
    start_ns, first = measured.start_ns, excerpt_of(measured) if part is None else None
    shown = None if first is None else (first.start_ns - start_ns, first.end_ns - start_ns)
    return replace(
        scene,
        about=f" {DOT} ".join([*words, *filter(None, [scene.about])]),
        paths=found.moved(lanes),
        causes=causes_of(measured, scene.bars) if part is None else scene.causes,
        is_part=part is not None,
        window=shown,
    )


def clock_words(rows: Sequence[Row]) -> list[str]:
    """Return how wrong the clocks of other nodes may be, as text; nothing on one node."""
    error_ns = max((row.error_ns for row in rows if row.node), default=0)
    return [f"clocks of nodes to within {time_text(error_ns)}"] if error_ns else []


def part_words(scene: Scene, part: Excerpt) -> str:
    """Return which executions the scene of a part of a trace shows, whole and in parts."""
    ran = _ran(scene)
    others = [_to(each) for each in (ran[ran < part.first], ran[ran > part.last]) if len(each)]
    return f"{part.words}, and parts of {' and '.join(others)}" if others else part.words


def _executions(scene: Scene) -> str:
    ran = _ran(scene)
    if not len(ran):
        return "nothing ran"
    return f"execution{'s' if ran.min() < ran.max() else ''} {_to(ran)}"


def _to(executions: Column) -> str:
    first, last = f"{executions.min():,}", f"{executions.max():,}"
    return first if first == last else f"{first} to {last}"


def _ran(scene: Scene) -> Column:
    """Return the executions of bars, as often as they have some."""
    # At the end of a trace, actors wait to read the input of an execution that was not submitted.
    # So executions with nothing but reads do not count, unless there are no others.
    is_more = ~scene.where("read") & (scene.bars.kind != SPAN)
    return np.asarray(scene.bars.execution[is_more if is_more.any() else slice(None)])


def _looks_of(spans: Sequence[str]) -> tuple[Look, ...]:
    """Return the looks of kinds of time; that of spans has their names, if they are a few."""
    texts = list(dict.fromkeys(spans))
    if not 0 < len(texts) <= _MAX_TITLED:
        return KIND_LOOKS
    title = f"{KIND_LOOKS[SPAN].title}: {', '.join(map(brief, texts))}"
    return (*KIND_LOOKS[:SPAN], replace(KIND_LOOKS[SPAN], title=title), *KIND_LOOKS[SPAN + 1 :])


def cut_of(
    measured: Measured, window: tuple[int, int] | None = None, names: OpNames | None = None
) -> Scene:
    """Return the bars of a graph, whole ones, that are in a window; see ``timeline_scene``.

    What it is about is what it leaves out.

    The names of its ops save time, if they are known.
    """
    graph, start_ns, end_ns = measured.graph, measured.start_ns, measured.end_ns
    if end_ns < start_ns:
        raise ValueError(f"the recording ends {start_ns - end_ns} ns before it starts")
    found = _Cut(measured, window or (start_ns, end_ns), names or names_of(graph.plan))
    for at in order_of(graph.plan):
        found.add_ops(graph.lanes[at])
        found.add_spans(graph.lanes[at])
        found.add_kernels(graph.lanes[at])
    return _with_hidden(found.scene(), measured)


@dataclass(frozen=True, eq=False)
class _Ends:
    """The ends of the transfers of one process at one channel: bars, times, executions."""

    bar: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    at: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    execution: Ints = field(default_factory=lambda: np.empty(0, np.int64))


class _Cut:
    """Collects the bars, lane by lane, and the ends of transfers in them."""

    def __init__(self, measured: Measured, window: tuple[int, int], names: OpNames) -> None:
        graph = measured.graph
        self._measured, self._table = measured, measured.table
        self._graph, self._plan = graph, graph.plan
        self._start_ns, self._end_ns = measured.start_ns, measured.end_ns
        self._window = window
        self._names = names
        self._numbers: dict[Name, int] = {}
        self._rows: list[Row] = []
        self._deeper = 0  # spans that have no row
        self._bars: list[Bars] = []
        self._count = 0
        self._written: dict[str, _Ends] = {}
        self._taken: dict[tuple[str, str], _Ends] = {}
        self._passed: dict[tuple[str, str], _Ends] = {}
        # When the writes of each channel began. A frame that was taken before that has a time from
        # an inaccurate clock.
        self._begun: dict[str, Ints] = {}
        # The bar in which each event moves its bytes, by process: by row of the event.
        self._moving: dict[str, dict[int, int]] = {}
        self._over_groups = {each.id for each in graph.plan.channels if each.kind == TENSOR}
        self._nodes = graph.plan.nodes_by_process()
        self._node_names = node_heads(graph.plan, addresses_of(graph))
        self._under = lanes_under(graph.plan)

    def add_ops(self, lane: LaneTrace) -> None:
        """Add a row with the parts of the ops of a lane."""
        row = self._add_row(lane)
        table, ops = self._table, self._graph.program(lane).ops
        parts = self._measured.parts[table.number(lane.process)]
        parts = parts.clipped(self._start_ns, self._end_ns)
        begin, end = self._window
        parts = parts.where((parts.end_ns > begin) & (parts.start_ns < end))
        if not len(parts):
            return
        op, peer = table.op[parts.row], table.peer[parts.row]
        names = self._names.names[lane.process]
        numbers = [self._number(name) for name in names]
        if (op == len(ops)).any():
            numbers.append(self._number(Name("unknown op", "unknown")))
        is_waiting = (parts.kind == TimeKind.WAITING) & (peer < len(self._graph.lanes))
        self._find_ends(lane.process, ops, op, parts)
        if any(name.group for name in names):
            is_moving = np.array([bool(name.group) for name in names] + [False])[op]
            is_moving &= (parts.kind == TimeKind.COMMUNICATION) & table.moves[parts.row]
            at = np.flatnonzero(is_moving)
            bars = (at + self._count).tolist()
            self._moving[lane.process] = dict(zip(parts.row[at].tolist(), bars, strict=True))
        self._add(
            row=np.full(len(parts), row),
            start=parts.start_ns - self._start_ns,
            duration=parts.duration_ns,
            kind=parts.kind,
            name=np.array(numbers)[op],
            execution=table.execution[parts.row],
            bytes=table.bytes[parts.row],
            op=np.where(op < len(ops), np.minimum(op, NO_OP), NO_OP),
            peer=np.where(is_waiting, peer, NOBODY),
            event=parts.row,
        )

    def _add_row(self, lane: LaneTrace, part: str = "") -> int:
        under, short = self._under.get(lane.process, ("", ""))
        node, error_ns = self._node_names.get(lane.process, ""), lane.clock.error_ns
        details = [
            lane.process if lane.process != lane.label else "",
            f"pid {lane.pid}" if lane.pid else "",
            f"node {visible(lane.node)}" if lane.node else "",
            f"clock to within {time_text(error_ns)}" if node and error_ns else "",
        ]
        height = _HEIGHT if not part and not under else _QUEUE if part == QUEUE else _THIN
        detail = f" {DOT} ".join(filter(None, details))
        label = visible(lane.label)
        self._rows.append(
            Row(lane.process, label, part, detail, node, under, short, height, error_ns)
        )
        return len(self._rows) - 1

    def _find_ends(self, process: str, ops: tuple[Op, ...], op: Ints, parts: Parts) -> None:
        table = self._table
        # Sorted by event; events of a driver's threads may interleave.
        order = np.argsort(parts.row, kind="stable")
        row, is_waiting = parts.row[order], parts.kind[order] == TimeKind.WAITING
        is_last = np.append(row[1:] != row[:-1], True)
        # A read takes its frame when it stops waiting.
        is_after_wait = np.append(True, is_waiting[:-1] | (row[1:] != row[:-1]))
        takes = np.where(is_waiting, is_last, is_after_wait) & table.moves[row]
        is_last &= table.moves[row]
        op = op[order]
        by_op = np.argsort(op, kind="stable")
        bounds = np.searchsorted(op[by_op], np.arange(len(ops) + 1))
        for position, each in enumerate(ops):
            of = by_op[bounds[position] : bounds[position + 1]]
            ends, gets = order[of[is_last[of]]], order[of[takes[of]]]
            for channel in self._over_rings(each.values_out):
                found, kept = self._ends(ends, parts, table.end_ns)
                self._written[channel] = found
                self._begun[channel] = table.start_ns[kept] - self._start_ns
            for channel in self._over_rings(each.values_in):
                self._taken[channel, process], _ = self._ends(gets, parts, table.bounds[:, 1])
            if isinstance(each, Pass):
                self._passed[each.channel, process], _ = self._ends(ends, parts, table.end_ns)

    def _over_rings(self, channels: tuple[str, ...]) -> list[str]:
        return [channel for channel in channels if channel not in self._over_groups]

    def _ends(self, at: Ints, parts: Parts, times: Ints) -> tuple[_Ends, Ints]:
        """Return the ends at those parts whose times are in the window, and their events."""
        moment = times[parts.row[at]]
        at = at[(moment >= self._window[0]) & (moment <= self._window[1])]
        row = parts.row[at]
        ends = _Ends(at + self._count, times[row] - self._start_ns, self._table.execution[row])
        return ends, row

    def add_spans(self, lane: LaneTrace) -> None:
        """Add a row of spans for each depth: those inside others are below them."""
        events = self._in_window(lane.events[lane.events["op"] >= SPAN_BASE])
        order = np.lexsort((-events["end_ns"], events["start_ns"]))
        depth = _depths(events[order])
        self._deeper += int((depth >= _MAX_DEPTH).sum())
        for each in range(min(int(depth.max(initial=-1)) + 1, _MAX_DEPTH)):
            at = np.flatnonzero(depth == each)
            self._add_named(self._add_row(lane, SPANS), lane, events[order[at]], is_span=True)

    def add_kernels(self, lane: LaneTrace) -> None:
        """Add a row for each stream of the devices of a lane."""
        kernels = self._in_window(lane.kernels)
        for number, stream in enumerate(lane.streams):
            found = kernels[kernels["peer"] == number]
            if len(found):
                self._add_named(self._add_row(lane, visible(stream)), lane, found, is_span=False)

    def _in_window(self, events: Events) -> Events:
        begin, end = self._window
        return events[(events["end_ns"] > begin) & (events["start_ns"] < end)]

    def _add_named(self, row: int, lane: LaneTrace, events: Events, *, is_span: bool) -> None:
        """Add events whose names are among those of spans."""
        used, which = np.unique(events["op"], return_inverse=True)
        texts = [lane.span_name(int(op)) for op in used]
        role = "span" if is_span else "kernel"
        names = [self._number(Name(visible(text), role)) for text in texts]
        moved = [DEVICE_COMMUNICATION if _MOVES.match(x) else DEVICE_COMPUTE for x in texts]
        kinds = [SPAN] * len(texts) if is_span else moved
        start = np.maximum(events["start_ns"], self._start_ns)
        end = np.minimum(events["end_ns"], self._end_ns)
        self._add(
            row=np.full(len(events), row),
            start=start - self._start_ns,
            duration=end - start,
            kind=np.array(kinds)[which],
            name=np.array(names)[which],
            execution=events["execution"],
            bytes=events["bytes"],
        )

    def _add(self, **columns: Column) -> None:
        bars = Bars.of(**columns)
        self._bars.append(bars)
        self._count += len(bars)

    def _number(self, name: Name) -> int:
        if len(self._numbers) >= _MAX_NAMES - 1 and name not in self._numbers:
            name = Name("...", name.role)
        return self._numbers.setdefault(name, len(self._numbers))

    def _links(self) -> list[tuple[int, Column, Column]]:
        """Return the links: their kind, their bars and their times, which are never in disorder."""
        found = []

        def add(kind: int, written: _Ends, taken: _Ends, begun: Ints | None = None) -> None:
            _, at, to = np.intersect1d(written.execution, taken.execution, return_indices=True)
            if begun is not None:
                fits = begun[at] <= taken.at[to]
                at, to = at[fits], to[fits]
            # The writer records the end of its Write after the frame has become readable.
            left = np.minimum(written.at[at], taken.at[to])
            bars = np.column_stack([written.bar[at], taken.bar[to]])
            found.append((kind, bars, np.column_stack([left, taken.at[to]])))

        for each in crossings_of(self._plan).values():
            written = self._written.get(each.channel)
            passed = self._passed.get((each.channel, each.node))
            if written is not None and passed is not None:
                add(WIRE, written, passed, self._begun[each.channel])
        for (channel, process), taken in self._taken.items():
            passed = self._passed.get((channel, self._nodes[process]))
            if passed is not None:
                add(VALUE, passed, taken)
            elif (written := self._written.get(channel)) is not None:
                add(VALUE, written, taken, self._begun[channel])
        for exchange in self._measured.exchanges:
            bars = np.empty(exchange.rows.shape, np.int64)
            for at, (process, _) in enumerate(exchange.ends):
                known = self._moving.get(process, {})
                bars[:, at] = [known.get(row, -1) for row in exchange.rows[:, at].tolist()]
            is_shown = (bars >= 0).all(axis=1)
            times = np.column_stack([exchange.begin_ns, exchange.end_ns])[is_shown]
            times = np.clip(times, self._start_ns, self._end_ns) - self._start_ns
            kind = COLLECTIVE if exchange.rendezvous.is_collective else EXCHANGE
            found.append((kind, bars[is_shown], times))
        return found

    def scene(self) -> Scene:
        """Return all that was added."""
        steps, deeper = self._add_queues(), self._deeper
        # The rows of a process follow each other: its ops, which were added first, and at last its
        # queue.
        first = {row.process: at for at, row in reversed([*enumerate(self._rows)])}
        order = sorted(range(len(self._rows)), key=lambda at: first[self._rows[at].process])
        place = np.argsort(order)
        of_lane = np.full(NOBODY + 1, NOBODY)
        for number, lane in enumerate(self._graph.lanes):
            of_lane[number] = place[first[lane.process]]
        bars, moved = Bars.joined(
            [each.with_columns(row=place[each.row], peer=of_lane[each.peer]) for each in self._bars]
        )
        begin, end = (each - self._start_ns for each in self._window)
        carriers = [channel for channel in self._plan.channels if channel.kind != STATUS]
        groups = {
            group.id: Group(style_of(group.backend).title, tuple(group.members))
            for group in self._plan.groups
        }
        return Scene(
            "timeline",
            f"{plural(deeper, 'span')} deeper than {_MAX_DEPTH} not shown" if deeper else "",
            begin,
            end,
            tuple([self._rows[at] for at in order]),
            tuple(self._numbers),
            _looks_of([each.text for each in self._numbers if each.role == "span"]),
            "idle",
            bars,
            Links.of(self._links()).moved(moved),
            tuple([replace(each, row=int(place[each.row])) for each in steps]),
            queued="values on their way: written and not read yet",
            groups=groups,
            slots={channel.id: channel.slots for channel in carriers if channel.kind != TENSOR},
            repeats=self._names.repeats,
        )

    def _add_queues(self) -> list[Steps]:
        """Return the queue of each process that reads a used channel, each in a row of its own."""
        changes: dict[str, list[tuple[Ints, Ints]]] = {}
        slots: dict[str, int] = {}
        before: dict[str, int] = {}
        for channel in self._plan.channels:
            put = self._written.get(channel.id, _Ends())
            for reader in channel.readers if channel.kind != STATUS else ():
                took = self._taken.get((channel.id, reader), _Ends())
                if reader in self._under or not (len(put.at) or len(took.at)):
                    continue
                last = took.execution.max(initial=-1) + 1
                first_put = int(put.execution.min(initial=last))
                first_taken = int(took.execution.min(initial=first_put))
                slots[reader] = slots.get(reader, 0) + channel.slots
                before[reader] = before.get(reader, 0) + max(0, first_put - first_taken)
                found = changes.setdefault(reader, [])
                found.append((put.at, np.ones(len(put.at), np.int64)))
                found.append((took.at, -np.ones(len(took.at), np.int64)))
        return [
            self._queue(lane, changes[lane.process], before[lane.process], slots[lane.process])
            for lane in self._graph.lanes
            if lane.process in changes
        ]

    def _queue(
        self, lane: LaneTrace, changes: list[tuple[Ints, Ints]], before: int, slots: int
    ) -> Steps:
        at, change = (np.concatenate(each) for each in zip(*changes, strict=True))
        order = np.lexsort((-change, at))  # at equal times, a write comes before a read
        depth = before + np.concatenate(([0], np.cumsum(change[order])))
        at = np.concatenate(([self._window[0] - self._start_ns], at[order]))
        return Steps(self._add_row(lane, QUEUE), at, np.clip(depth, 0, slots), slots)


def _depths(events: Events) -> Ints:
    """Return how many events each one lies in, or overlaps with; they are sorted by start."""
    starts, ends = events["start_ns"], events["end_ns"]
    if (starts[1:] >= ends[:-1]).all():
        return np.zeros(len(events), np.int64)
    until: list[int] = []  # when the last event of each depth ends
    found = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        free = next((at for at, each in enumerate(until) if each <= start), len(until))
        until[free : free + 1] = [end]
        found.append(free)
    return np.array(found, np.int64)


def _with_hidden(scene: Scene, measured: Measured) -> Scene:
    """Cut the communication of lanes where methods of their actors begin and end to run.

    Also methods that are in no bar of the scene, because it begins or ends before they do.
    """
    bars, table = scene.bars, measured.table
    is_moving = bars.kind == TimeKind.COMMUNICATION
    pieces: list[tuple[Any, ...]] = [(np.empty(0, np.int64),) * 4]  # bar, start, end, kind
    for number, row in enumerate(scene.rows):
        if not row.under or row.part:
            continue
        own = np.flatnonzero((bars.row == number) & is_moving)
        parts = measured.parts[table.number(row.under)]
        run = calls_of(table, row.under, parts.clipped(measured.start_ns, measured.end_ns))
        run = run.where(run.kind == TimeKind.COMPUTE)
        if len(own) and len(run):
            bounds, since = (bars.start[own], bars.end[own]), measured.start_ns
            exposed = without(*bounds, run.start_ns - since, run.end_ns - since)
            covered = without(*bounds, *exposed[1:])
            for each, (of, *times) in ((TimeKind.COMMUNICATION, exposed), (HIDDEN, covered)):
                pieces.append((own[of], *times, np.full(len(of), each)))
    columns = [np.concatenate(each) for each in zip(*pieces, strict=True)]
    cut, start, end, kind = columns
    if not (kind == HIDDEN).any():
        return scene
    rest = np.setdiff1d(np.arange(len(bars)), cut)
    made = bars.take(cut).with_columns(start=start, duration=end - start, kind=kind, look=kind)
    found, place = Bars.joined([bars.take(rest), made])
    origin = np.concatenate([rest, cut])[np.argsort(place)]
    order = np.argsort(origin, kind="stable")
    first = order[np.searchsorted(origin[order], np.arange(len(bars)))]
    last = order[np.searchsorted(origin[order], np.arange(len(bars)), side="right") - 1]
    # A frame leaves at the end of its write, and arrives when its read begins to take it.
    links = scene.links
    leaves = np.zeros(len(links.ends), bool)
    leaves[links.first[:-1][links.kind != COLLECTIVE]] = True
    ends = np.where(leaves, last[links.ends], first[links.ends])
    return replace(scene, bars=found, links=replace(links, ends=ends))
