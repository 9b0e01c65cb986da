# SPDX-License-Identifier: Apache-2.0
"""A trace as a file of the Trace Event Format, for ui.perfetto.dev, chrome://tracing and others.

```
process  an actor or the driver, with a pid that is made here (real pids of nodes may collide);
         and one of tensors by reference, with a thread for each process that gets some
 thread  one graph in it: op | op | op ...     and more threads if ops overlap in time
  op     one complete event (ph X); args: execution, bytes, waited_us, coded_us, peer; and group
         and rank of an op that exchanges tensors over a communicator
   wait  inside an op: the time that it waited for its peer
   take  inside a Read or a collective that waited: the rest, where an arrow ends. It comes from the
         Write of the value, or from the last rank of the collective to arrive
   span  inside a Call: a span of the user
 counter number of unread frames in a channel, in the process of its first reader
```

The other rules follow from Perfetto's parser:

* It stores whole nanoseconds, so times are in microseconds with three decimals.
* It drops negative times, so an event that began before the trace is cut at its beginning.
* It drops an event that partly overlaps another one of its thread.
* An arrow (ph s and f) belongs to the event that began last on its thread, and points from the one
  that began first. A Read that waited began before its Write, so its arrow ends at its ``take``.
* Rows of the same time are in the order in which they nest.

Rows are sorted as arrays and turned into text in pieces, so the whole text is never in memory.
"""

from __future__ import annotations

import contextlib
import gzip
import os
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from rcg.ir.channels import STATUS, TENSOR, ChannelSpec
from rcg.ir.index import groups_of, rank_of, reads_of, writes_of
from rcg.progress import progress
from rcg.trace.analysis.events import NONE, EventTable
from rcg.trace.analysis.intervals import Ints
from rcg.trace.analysis.rendezvous import Exchange, exchanges_of, last_of
from rcg.trace.analysis.transfers import depth
from rcg.trace.export.tracks import LaneTracks, TrackNumbers, beginning, dumps
from rcg.trace.model import (
    EVENT,
    KERNEL,
    SPAN,
    SPAN_BASE,
    UNKNOWN,
    Events,
    GraphTrace,
    LaneTrace,
    OpenOp,
    Recording,
    actor_labels,
)
from rcg.version import __version__

Rows = npt.NDArray[np.void]

PIECE_ROWS: Final = 1 << 15
"""Number of rows that are turned into text at a time."""

_COMPRESSION: Final = 1
"""Level of gzip. A higher one takes several times as long and saves little."""

_ROW: Final = np.dtype(
    [("time", "<i8"), ("event", "<u4"), ("what", "u1"), ("prefix", "<u4"), ("number", "<i8")]
)
"""A line of the file: its time from the beginning of the trace, the number of its event, its
format, the number of the text at its beginning, and one more number that depends on the format."""

_LAST: Final = (1 << 32) - 1
"""An event number that sorts a row after the rows of all events of the same time."""

# The formats of rows. Rows of one event and one time are in this order.
_BARE, _FULL, _MORE, _OUT, _WAIT, _TAKE, _IN, _TAIL, _COUNT = range(9)

_TIME: Final = "%d.%03d"
_SPANNED: Final = f'%s{_TIME},"dur":{_TIME}'
_PARTS: Final = f'"execution":%d,"bytes":%d,"waited_us":{_TIME},"coded_us":{_TIME}'
_FORMATS: Final = {
    _BARE: f'{_SPANNED},"args":{{"execution":%d}}}}',
    _FULL: f'{_SPANNED},"args":{{{_PARTS}}}}}',
    _MORE: f'{_SPANNED},"args":{{{_PARTS},%s}}}}',
    _OUT: f'%s{_TIME},"id":%d}}',
    _WAIT: f"{_SPANNED}}}",
    _TAKE: f"{_SPANNED}}}",
    _IN: f'%s{_TIME},"id":%d,"bp":"e"}}',
    _TAIL: f"%s{_TIME},%s}}",
    _COUNT: f'%s{_TIME},"args":{{"frames":%d}}}}',
}


def to_chrome(trace: Recording, path: str | os.PathLike[str]) -> None:
    """Write a trace as Chrome trace JSON, which ui.perfetto.dev opens.

    The file is compressed if its name ends in ``.gz``; Perfetto reads that as well.

    Raises:
        OSError: The file cannot be written.
    """
    sheet = _Sheet(trace)
    with _open(path) as file:
        file.write(sheet.head().encode())
        for piece in sheet.pieces():
            file.write(piece.encode())
        file.write(b"\n]}\n")


@contextlib.contextmanager
def _open(path: str | os.PathLike[str]) -> Iterator[BinaryIO | gzip.GzipFile]:
    with open(path, "wb") as file:
        if not os.fspath(path).endswith(".gz"):
            yield file
            return
        # Without name and time inside, the same trace gives the same file.
        with gzip.GzipFile("", "wb", _COMPRESSION, file, mtime=0) as packed:
            yield packed


# --- rows ---------------------------------------------------------------------------------------


class _Sheet:
    """All lines of a file as rows of numbers."""

    def __init__(self, trace: Recording) -> None:
        self._trace = trace
        self._prefixes: list[str] = []
        self._tails: list[str] = []
        self._numbers = TrackNumbers()
        self._arrows = self._arrows_left_out = 0
        rows: list[Rows] = [np.empty(0, _ROW)]
        events: list[Events] = [np.empty(0, EVENT)]
        count = 0
        for graph in trace.graphs:
            lanes: dict[str, LaneTracks] = {}
            table = EventTable(graph)
            for number, lane in enumerate(graph.lanes):
                tracks = LaneTracks(table, number, count, trace.start_ns, self._numbers)
                lanes[lane.process] = tracks
                events.append(tracks.events)
                count += len(tracks.events)
                rows += [self._ops(tracks), self._waits(tracks)]
                if lane.open is not None:
                    rows.append(self._open_op(tracks, lane.open))
                if lane.streams:
                    kernels = lane.kernels.copy()
                    for name in ("start_ns", "end_ns"):
                        kernels[name] = np.maximum(kernels[name] - trace.start_ns, 0)
                    rows.append(self._kernels(graph, lane, kernels, count))
                    events.append(kernels)
                    count += len(kernels)
            for channel in graph.plan.channels:
                if channel.kind != STATUS:
                    rows += self._arrows_of(channel, lanes)
                if channel.kind not in (STATUS, TENSOR):  # a tensor channel holds one frame
                    rows.append(self._depth_of(channel, lanes))
            for exchange in exchanges_of(table):
                if exchange.rendezvous.is_collective:
                    rows += self._arrows_between(exchange, lanes)
        rows.append(self._references())
        self._events = np.concatenate(events)
        joined = np.concatenate(rows)
        self._rows = joined[np.lexsort((joined["what"], joined["event"], joined["time"]))]

    def _references(self) -> Rows:
        """Return the transfers of tensors by reference, each with its wait inside."""
        found: list[tuple[int, str, str]] = []
        since = self._trace.start_ns

        def begin(thread: str, name: str) -> str:
            return beginning("X", "tensors", name, thread)

        for each, thread in self._numbers.references(self._trace.transfers):
            start, end = (max(at - since, 0) for at in (each.start_ns, each.end_ns))
            waited = min(each.waited_ns, end - start)
            args = {
                "object": each.object,
                "peer": each.source,
                "transport": each.transport,
                "bytes": each.bytes,
                "waited_us": each.waited_ns / 1e3,
                **({"error": each.error} if each.error else {}),
            }
            tail = f'"dur":{(end - start) / 1e3:.3f},"args":{dumps(args)}'
            found.append((start, begin(thread, f"get from {each.source}"), tail))
            if waited:
                wait = f'"dur":{waited / 1e3:.3f}'
                found.append((start, begin(thread, f"wait for {each.source}"), wait))
        return self._rows_with_tails(found)

    def _rows_with_tails(self, found: list[tuple[int, str, str]]) -> Rows:
        """Return rows, each given by its time, its beginning and its end."""
        first, tails = len(self._prefixes), len(self._tails)
        self._prefixes += [prefix for _, prefix, _ in found]
        self._tails += [tail for _, _, tail in found]
        numbers = np.arange(len(found))
        times = np.array([time for time, _, _ in found], np.int64)
        return _rows(times, _LAST, _TAIL, first + numbers, tails + numbers)

    def _ops(self, tracks: LaneTracks) -> Rows:
        labels = actor_labels(tracks.graph.plan)
        ops = tracks.graph.program(tracks.lane).ops

        def begin(key: int) -> str:
            track, op = divmod(key, 1 << 32)
            if op >= SPAN_BASE:
                return tracks.begin("X", track, SPAN, tracks.lane.span_name(op))
            if op >= len(ops):
                return tracks.begin("X", track, UNKNOWN, UNKNOWN)
            return tracks.begin("X", track, ops[op].word, ops[op].title(labels))

        events = tracks.events
        prefix = self._add_prefixes(tracks.track << 32 | tracks.op, begin)
        has_parts = (events["waited_ns"] | events["coded_ns"] | events["bytes"]) != 0
        # What comes last in the arguments depends on the op and the peer. All ops without a group
        # are the same.
        peers = len(tracks.graph.lanes)
        groups = _group_args(tracks)
        at = np.minimum(tracks.op, len(ops))
        at = np.where(np.array([*map(bool, groups), False])[at], at, len(ops))
        peer = np.minimum(events["peer"].astype(np.int64), peers)
        what = np.where((peer < peers) | (at < len(ops)), _MORE, np.where(has_parts, _FULL, _BARE))

        def tail(key: int) -> str:
            op, peer = divmod(key, peers + 1)
            args: dict[str, Any] = {}
            if peer < peers:
                args["peer"] = tracks.graph.lanes[peer].label
            if op < len(ops):
                args |= groups[op]
            return dumps(args)[1:-1]

        keys, which = np.unique(at * (peers + 1) + peer, return_inverse=True)
        number = len(self._tails) + which
        self._tails += [tail(key) for key in keys.tolist()]
        return _rows(tracks.start, tracks.first + np.arange(len(events)), what, prefix, number)

    def _kernels(self, graph: GraphTrace, lane: LaneTrace, kernels: Events, first: int) -> Rows:
        """Return what the devices of a lane did, a thread per stream; times count from 0."""
        threads = [self._numbers.thread(graph, lane, name) for name in lane.streams]

        def begin(key: int) -> str:
            stream, op = divmod(key, 1 << 32)
            return beginning("X", KERNEL, lane.span_name(op), threads[stream])

        keys = kernels["peer"].astype(np.int64) << 32 | kernels["op"].astype(np.int64)
        prefix = self._add_prefixes(keys, begin)
        return _rows(kernels["start_ns"], first + np.arange(len(kernels)), _BARE, prefix, 0)

    def _waits(self, tracks: LaneTracks) -> Rows:
        """Return the waits inside ops."""

        def begin(key: int) -> str:
            track, peer = divmod(key, 1 << 32)
            return tracks.begin("X", track, "wait", _wait_name(tracks.graph, peer))

        found = np.flatnonzero(tracks.moves_at > tracks.waits_at)
        keys = tracks.track[found] << 32 | tracks.events["peer"][found].astype(np.int64)
        prefix = self._add_prefixes(keys, begin)
        durations = (tracks.moves_at - tracks.waits_at)[found]
        return _rows(tracks.waits_at[found], tracks.first + found, _WAIT, prefix, durations)

    def _open_op(self, tracks: LaneTracks, doing: OpenOp) -> Rows:
        """Return the op that was open at the end, and its wait if it waits."""
        graph, end = tracks.graph, self._trace.duration_ns
        since, waiting = (
            min(max(time - self._trace.start_ns, 0), end)
            for time in (doing.since_ns, doing.waiting_since_ns)
        )
        # On a track without other events at that time: the driver may be in several ops.
        busy = set(tracks.track[tracks.end > since].tolist())
        track = next(n for n in range(len(tracks.threads) + 1) if n not in busy)
        if track == len(tracks.threads):
            tracks.threads.append(self._numbers.thread(graph, tracks.lane, track))
        op = graph.op(tracks.lane, doing.op)
        name = f"{op.title(actor_labels(graph.plan))} (not finished)"
        args: dict[str, Any] = {"execution": doing.execution, "finished": False}
        if doing.peer < len(graph.lanes):
            args["peer"] = graph.lanes[doing.peer].label
        args |= _group_args(tracks)[doing.op]
        found = [(since, tracks.begin("X", track, op.word, name))]
        if doing.waiting_since_ns:
            text = f"{_wait_name(graph, doing.peer)} (not finished)"
            begun = since if op.channels_in else max(since, waiting)  # see ``parts``
            found.append((begun, tracks.begin("X", track, "wait", text)))
        tail = f'"args":{dumps(args)}'
        return self._rows_with_tails(
            [(begun, prefix, f'"dur":{(end - begun) / 1e3:.3f},{tail}') for begun, prefix in found]
        )

    def _arrows_of(self, channel: ChannelSpec, lanes: dict[str, LaneTracks]) -> list[Rows]:
        """Return an arrow from each Write to each of its Reads, and the ``take`` where it ends."""
        sender = lanes[channel.writer]
        table, plan = sender.table, sender.graph.plan
        writes = table.moved(*writes_of(plan)[channel.id])
        rows = []
        for process in channel.readers:
            reader, read = lanes[process], reads_of(plan)[channel.id, process]
            took = table.find(*read, table.execution[writes])
            sent, took = writes[took != NONE], took[took != NONE]
            here, there = (sender, sender.places(sent)), (reader, reader.places(took))
            rows += self._arrow(here, there, "value", channel.id)
        return rows

    def _arrows_between(self, exchange: Exchange, lanes: dict[str, LaneTracks]) -> list[Rows]:
        """Return an arrow from the last rank of a collective to each rank that waited for it."""
        rendezvous = exchange.rendezvous
        rows: list[Rows] = []
        if not len(exchange.execution):
            return rows
        of = exchange.rows.T
        ranks = [lanes[process] for process, _ in exchange.ends]
        table = ranks[0].table
        last = last_of(table.waited_ns[of], table.start_ns[of])
        name = f"{rendezvous.name} @{rendezvous.group}"
        for at, sender in enumerate(ranks):
            for to, reader in enumerate(ranks):
                out, into = sender.places(of[at]), reader.places(of[to])
                is_from = (last == at) & (reader is not sender)
                is_from &= reader.moves_at[into] > reader.start[into]
                rows += self._arrow(
                    (sender, out[is_from]), (reader, into[is_from]), "collective", name
                )
        return rows

    def _arrow(
        self, here: tuple[LaneTracks, Ints], there: tuple[LaneTracks, Ints], sort: str, name: str
    ) -> list[Rows]:
        """Return arrows between events of two lanes, and the ``take`` of each that waited."""
        (sender, out), (reader, into) = here, there
        leaves, taken = sender.start[out], reader.moves_at[into]
        # With inaccurate clocks, a frame may seem to be taken before it was sent.
        arrives = np.where(taken == leaves, leaves + 1, taken)
        fits = (taken >= leaves) & ((arrives == taken) | (arrives < reader.end[into]))
        self._arrows_left_out += int(np.count_nonzero(~fits))
        out, into = out[fits], into[fits]
        number = self._arrows + np.arange(len(out)) + 1
        self._arrows += len(out)
        prefix = self._prefixes_named(sender, out, "s", sort, name)
        rows = [_rows(leaves[fits], sender.first + out, _OUT, prefix, number)]
        prefix = self._prefixes_named(reader, into, "f", sort, name)
        rows.append(_rows(arrives[fits], reader.first + into, _IN, prefix, number))
        into = into[reader.moves_at[into] > reader.start[into]]
        begun = reader.moves_at[into]
        prefix = self._prefixes_named(reader, into, "X", "take", f"take {name}")
        rows.append(_rows(begun, reader.first + into, _TAKE, prefix, reader.end[into] - begun))
        return rows

    def _depth_of(self, channel: ChannelSpec, lanes: dict[str, LaneTracks]) -> Rows:
        sender = lanes[channel.writer]
        readers = [lanes[process] for process in channel.readers]
        if not readers or any(tracks.lane.lost for tracks in (sender, *readers)):
            return np.empty(0, _ROW)  # the count would be wrong after a lost event
        table, plan = sender.table, sender.graph.plan
        reads = [table.moved(*reads_of(plan)[channel.id, each]) for each in channel.readers]
        writes = table.moved(*writes_of(plan)[channel.id])
        since = self._trace.start_ns
        times, frames = depth(table, writes, reads, since)
        times -= since
        process = self._numbers.process(readers[0].graph, readers[0].lane)
        name = dumps(f"unread in {channel.id}")
        self._prefixes.append(f'{{"ph":"C","name":{name},"pid":{process},"ts":')
        return _rows(times, _LAST, _COUNT, len(self._prefixes) - 1, frames)

    def _prefixes_named(
        self, tracks: LaneTracks, places: Ints, phase: str, category: str, name: str
    ) -> Ints:
        """Return the numbers of prefixes for rows of some events that have the same name."""
        return self._add_prefixes(
            tracks.track[places], lambda track: tracks.begin(phase, track, category, name)
        )

    def _add_prefixes(self, keys: Ints, text: Callable[[int], str]) -> Ints:
        """Make a prefix for each different key, and return the number of the prefix of each key."""
        different, which = np.unique(keys, return_inverse=True)
        first = len(self._prefixes)
        self._prefixes += [text(key) for key in different.tolist()]
        return first + which

    # --- text ---------------------------------------------------------------------------------

    def head(self) -> str:
        """Return the beginning of the file, up to the first row with a time."""
        trace = self._trace
        about = {
            "rcg": __version__,
            "start_ns": trace.start_ns,
            "duration_ns": trace.duration_ns,
            "lost_events": trace.lost,
            "arrows_left_out": self._arrows_left_out,
            **trace.info,
        }
        names = ",\n".join(self._numbers.rows)
        return f'{{"displayTimeUnit":"ns","otherData":{dumps(about)},"traceEvents":[\n{names}'

    def pieces(self) -> Iterator[str]:
        """Yield the text of all rows, some thousands at a time."""
        for begin in progress(range(0, len(self._rows), PIECE_ROWS), "writing the trace"):
            rows = self._rows[begin : begin + PIECE_ROWS]
            lines = np.empty(len(rows), object)
            for what in np.unique(rows["what"]).tolist():
                chosen = np.flatnonzero(rows["what"] == what)
                lines[chosen] = self._lines(what, rows[chosen])
            yield ",\n" + ",\n".join(lines)

    def _lines(self, what: int, rows: Rows) -> list[str]:
        columns: list[Any] = [[self._prefixes[n] for n in rows["prefix"].tolist()]]
        columns += _us(rows["time"])
        if what in (_BARE, _FULL, _MORE):
            events = self._events[rows["event"]]
            ends, starts = (np.maximum(events[name], 0) for name in ("end_ns", "start_ns"))
            columns += _us(ends - starts)
            columns.append(events["execution"].tolist())
            if what != _BARE:
                columns.append(events["bytes"].tolist())
                columns += [*_us(events["waited_ns"]), *_us(events["coded_ns"])]
        elif what in (_WAIT, _TAKE):
            columns += _us(rows["number"])
        if what in (_MORE, _TAIL):
            columns.append([self._tails[number] for number in rows["number"].tolist()])
        elif what in (_OUT, _IN, _COUNT):
            columns.append(rows["number"].tolist())
        form = _FORMATS[what]
        return [form % values for values in zip(*columns, strict=True)]


def _group_args(tracks: LaneTracks) -> list[dict[str, Any]]:
    """Return the group of each op that exchanges tensors, and the rank of the process in it."""
    plan, process = tracks.graph.plan, tracks.lane.process
    groups = groups_of(plan, process)
    args = {each: {"group": each, "rank": rank_of(plan, process, each)} for each in groups if each}
    return [args[each] if each else {} for each in groups]


def _rows(time: Ints, event: Any, what: Any, prefix: Any, number: Any) -> Rows:
    """Return rows. Each argument but the times may be one value for all rows."""
    rows = np.empty(len(time), _ROW)
    for name, given in zip(_ROW.names or (), (time, event, what, prefix, number), strict=True):
        rows[name] = given
    return rows


def _us(times_ns: Ints) -> tuple[list[int], list[int]]:
    """Return whole microseconds and the remaining nanoseconds, because floats are not exact."""
    whole, rest = np.divmod(times_ns, 1000)
    return whole.tolist(), rest.tolist()


def _wait_name(graph: GraphTrace, peer: int) -> str:
    return f"wait for {graph.lanes[peer].label}" if peer < len(graph.lanes) else "wait"
