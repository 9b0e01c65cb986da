# SPDX-License-Identifier: Apache-2.0
"""Cuts the record of a graph, or a simulation, into slices."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rcg.compiler.simulate import Simulation
from rcg.ir.channels import STATUS, TENSOR
from rcg.ir.index import crossings_of, groups_of
from rcg.ir.ops import Op, Pass
from rcg.text import time_text, visible
from rcg.trace.analysis.events import EventTable, TimeKind
from rcg.trace.analysis.intervals import without
from rcg.trace.analysis.parts import Parts, parts_of
from rcg.trace.analysis.rendezvous import Exchange, exchanges_of
from rcg.trace.analysis.what_if import LATEST_NS, from_simulation
from rcg.trace.model import SPAN_BASE, Events, GraphTrace, LaneTrace
from rcg.views.data.lettering import DOT
from rcg.views.data.node_lanes import addresses_of, lanes_under, node_heads, order_of
from rcg.views.data.slices import (
    DEVICE_COMMUNICATION,
    DEVICE_COMPUTE,
    HIDDEN,
    NO_OP,
    NOBODY,
    OPS,
    SPAN,
    SPANS,
    STREAMS,
    GroupHead,
    Ints,
    LaneHead,
    SliceName,
    Slices,
    TransferEnds,
)

_MAX_NAMES: Final = 1 << 16
_MOVES: Final = re.compile("nccl|Memcpy", re.IGNORECASE)  # how names of such kernels begin
_KEPT: Final = ("lane", "track", "name", "peer", "execution", "bytes", "op")  # by cutting


def slices_of(
    graph: GraphTrace, start_ns: int, end_ns: int, origin_ns: int | None = None
) -> Slices:
    """Return the slices of a graph in a window, whose times are on the driver's monotonic clock.

    ``origin_ns`` is when the trace began; None is ``start_ns``.

    Raises:
        ValueError: The window ends before it starts.
    """
    if end_ns < start_ns:
        raise ValueError(f"the window ends {start_ns - end_ns} ns before it starts")
    found = _Collector(graph, start_ns, end_ns, start_ns if origin_ns is None else origin_ns)
    for number, at in enumerate(order_of(graph.plan)):
        found.add_ops(number, graph.lanes[at])
        found.add_spans(number, graph.lanes[at])
        found.add_kernels(number, graph.lanes[at])
    return _with_hidden(found.slices())


def slices_of_simulation(simulation: Simulation, unit_ns: float) -> Slices:
    """Return the slices of a simulation, as if it had been recorded in units of this many ns."""
    scaled = replace(
        simulation,
        timeline=tuple(
            span._replace(start=span.start * unit_ns, end=span.end * unit_ns)
            for span in simulation.timeline
        ),
    )
    return slices_of(from_simulation(scaled), 0, round(min(scaled.duration, LATEST_NS)))


def _with_hidden(slices: Slices) -> Slices:
    """Cut the communication of lanes where methods of their actors begin and end to run."""
    numbers = {head.process: number for number, head in enumerate(slices.heads)}
    is_moving = slices.kind == TimeKind.COMMUNICATION
    is_running = slices.where("call") & (slices.kind == TimeKind.COMPUTE)
    end = slices.start + slices.duration
    pieces: list[tuple[Ints, ...]] = [(np.empty(0, np.int64),) * 4]  # slice, start, end, kind
    for number, head in enumerate(slices.heads):
        own = np.flatnonzero((slices.lane == number) & is_moving)
        run = np.flatnonzero((slices.lane == numbers.get(head.under, -1)) & is_running)
        if len(own) and len(run):
            bounds = slices.start[own], end[own]
            exposed = without(*bounds, slices.start[run], end[run])
            covered = without(*bounds, *exposed[1:])
            for kind, (of, *times) in ((TimeKind.COMMUNICATION, exposed), (HIDDEN, covered)):
                pieces.append((own[of], *times, np.full(len(of), kind)))
    cut = [np.concatenate(each) for each in zip(*pieces, strict=True)]
    if not (cut[3] == HIDDEN).any():
        return slices
    rest = np.setdiff1d(np.arange(len(slices)), cut[0])
    whole = rest, slices.start[rest], end[rest], slices.kind[rest]
    columns = [np.concatenate(each) for each in zip(cut, whole, strict=True)]
    order = np.lexsort(columns[1::-1])
    row, begin, until, of_kind = (each[order] for each in columns)
    first = np.searchsorted(row, np.arange(len(slices)))
    last = np.searchsorted(row, np.arange(len(slices)), side="right") - 1

    # A frame leaves at the end of its write, and arrives when its read begins to take it.
    def moved(ends: dict[Any, TransferEnds], places: Ints) -> dict[Any, TransferEnds]:
        return {key: replace(each, row=places[each.row]) for key, each in ends.items()}

    transfers = np.column_stack([last[slices.transfers[:, 0]], first[slices.transfers[:, 1]]])
    return replace(
        slices,
        **{name: getattr(slices, name)[row] for name in _KEPT},
        kind=of_kind.astype(np.uint8),
        start=begin,
        duration=until - begin,
        written=moved(slices.written, last),
        taken=moved(slices.taken, first),
        transfers=transfers.astype(np.int32),
        collectives=tuple(first[rows] for rows in slices.collectives),
    )


class _Collector:
    """Collects the columns, lane by lane, and the ends of transfers in them."""

    def __init__(self, graph: GraphTrace, start_ns: int, end_ns: int, origin_ns: int) -> None:
        self._graph, self._table = graph, EventTable(graph, end_ns)
        self._start_ns, self._end_ns, self._origin_ns = start_ns, end_ns, origin_ns
        self._numbers: dict[SliceName, int] = {}
        self._columns: list[dict[str, npt.NDArray[Any]]] = []
        self._count = 0
        self._written: dict[str, TransferEnds] = {}
        self._taken: dict[tuple[str, int], TransferEnds] = {}
        # When the writes of each channel began. A frame that was taken before that has a time from
        # an inaccurate clock.
        self._begun: dict[str, Ints] = {}
        # The slice in which each event moves its bytes, by lane.
        self._moving: dict[str, dict[int, int]] = {}
        self._over_groups = {each.id for each in graph.plan.channels if each.kind == TENSOR}
        self._order = order_of(graph.plan)
        # The number of each lane in the picture, and of nobody.
        self._shown_as = np.append(np.argsort(self._order), NOBODY)
        self._passed: dict[tuple[str, str], TransferEnds] = {}
        self._nodes = graph.plan.nodes_by_process()

    def add_ops(self, number: int, lane: LaneTrace) -> None:
        table, ops = self._table, self._graph.program(lane).ops
        parts = parts_of(table, table.number(lane.process)).clipped(self._start_ns, self._end_ns)
        if not len(parts):
            return
        op, peer = table.op[parts.row], table.peer[parts.row]
        groups = groups_of(self._graph.plan, lane.process)
        names = [
            self._number(replace(name_of_op(each), group=group or ""))
            for each, group in zip(ops, groups, strict=True)
        ]
        if (op == len(ops)).any():
            names.append(self._number(SliceName("unknown op", "unknown")))
        nobody = len(self._graph.lanes)
        is_waiting = (parts.kind == TimeKind.WAITING) & (peer < nobody)
        self._find_ends(number, ops, op, parts)
        if any(groups):
            is_moving = np.array([group is not None for group in groups] + [False])[op]
            is_moving &= (parts.kind == TimeKind.COMMUNICATION) & table.moves[parts.row]
            at = np.flatnonzero(is_moving)
            slices = (at + self._count).tolist()
            self._moving[lane.process] = dict(zip(parts.row[at].tolist(), slices, strict=True))
        self._add(
            number,
            OPS,
            name=np.array(names)[op],
            kind=parts.kind,
            peer=self._shown_as[np.where(is_waiting, peer, nobody)],
            start=parts.start_ns,
            end=parts.end_ns,
            execution=table.execution[parts.row],
            bytes=table.bytes[parts.row],
            op=np.where(op < len(ops), np.minimum(op, NO_OP), NO_OP),
        )

    def _find_ends(self, number: int, ops: tuple[Op, ...], op: Ints, parts: Parts) -> None:
        table = self._table
        # Sorted by event; events of a driver's threads may interleave.
        order = np.argsort(parts.row, kind="stable")
        row, is_waiting = parts.row[order], parts.kind[order] == TimeKind.WAITING
        is_last = np.append(row[1:] != row[:-1], True)
        # A read takes its frame when it stops waiting.
        is_after_wait = np.append(True, is_waiting[:-1] | (row[1:] != row[:-1]))
        takes = np.where(is_waiting, is_last, is_after_wait) & table.moves[row]
        is_last &= table.moves[row]
        ended, taken = table.end_ns, table.taken_ns(np.arange(len(table)))
        op = op[order]
        for position, each in enumerate(ops):
            is_of_op = op == position
            for channel in self._over_rings(each.values_out):
                found, kept = self._ends(order[is_of_op & is_last], parts, ended)
                self._written[channel] = found
                self._begun[channel] = table.start_ns[parts.row[kept]] - self._start_ns
            for channel in self._over_rings(each.values_in):
                found, _ = self._ends(order[is_of_op & takes], parts, taken)
                self._taken[channel, number] = found
            if isinstance(each, Pass):
                found, _ = self._ends(order[is_of_op & is_last], parts, ended)
                self._passed[each.channel, self._process(number)] = found

    def _process(self, number: int) -> str:
        return self._graph.plan.programs[self._order[number]].process

    def _over_rings(self, channels: tuple[str, ...]) -> list[str]:
        return [channel for channel in channels if channel not in self._over_groups]

    def _ends(self, at: Ints, parts: Parts, times: Ints) -> tuple[TransferEnds, Ints]:
        """Return the ends at those parts whose times are in the window, and these parts."""
        moment = times[parts.row[at]]
        at = at[(moment >= self._start_ns) & (moment <= self._end_ns)]
        row = parts.row[at]
        found = TransferEnds(
            at + self._count, times[row] - self._start_ns, self._table.execution[row]
        )
        return found, at

    def add_spans(self, number: int, lane: LaneTrace) -> None:
        self._add_named(number, SPANS, lane, lane.events[lane.events["op"] >= SPAN_BASE])

    def add_kernels(self, number: int, lane: LaneTrace) -> None:
        for stream in range(len(lane.streams)):
            kernels = lane.kernels[lane.kernels["peer"] == stream]
            self._add_named(number, STREAMS + stream, lane, kernels)

    def _add_named(self, number: int, track: int, lane: LaneTrace, events: Events) -> None:
        """Add events whose names are among those of spans."""
        events = events[events["end_ns"] > self._start_ns]
        events = events[events["start_ns"] < self._end_ns]
        if not len(events):
            return
        used, which = np.unique(events["op"], return_inverse=True)
        texts = [lane.span_name(int(op)) for op in used]
        role = "span" if track == SPANS else "kernel"
        names = [self._number(SliceName(visible(text), role)) for text in texts]
        kinds = [
            SPAN
            if track == SPANS
            else DEVICE_COMMUNICATION
            if _MOVES.match(text)
            else DEVICE_COMPUTE
            for text in texts
        ]
        self._add(
            number,
            track,
            name=np.array(names, np.uint16)[which],
            kind=np.array(kinds)[which],
            peer=np.full(len(events), NOBODY),
            start=np.maximum(events["start_ns"], self._start_ns),
            end=np.minimum(events["end_ns"], self._end_ns),
            execution=events["execution"],
            bytes=events["bytes"],
            op=np.full(len(events), NO_OP),
        )

    def _add(self, number: int, track: int, **columns: npt.NDArray[Any]) -> None:
        count = len(columns["start"])
        columns["lane"] = np.full(count, number)
        columns["track"] = np.full(count, track)
        self._columns.append(columns)
        self._count += count

    def _number(self, name: SliceName) -> int:
        if len(self._numbers) >= _MAX_NAMES - 1 and name not in self._numbers:
            name = SliceName("...", name.role)
        return self._numbers.setdefault(name, len(self._numbers))

    def _transfers(self) -> tuple[npt.NDArray[np.int32], Ints, npt.NDArray[np.bool_]]:
        """Return the slices of the two ends of each transfer, its times, and which cross nodes."""
        pairs: list[npt.NDArray[Any]] = [np.empty((0, 2), np.int32)]
        times: list[Ints] = [np.empty((0, 2), np.int64)]

        def add(written: TransferEnds, taken: TransferEnds, begun: Ints | None = None) -> None:
            _, at, to = np.intersect1d(written.execution, taken.execution, return_indices=True)
            if begun is not None:
                fits = begun[at] <= taken.at[to]
                at, to = at[fits], to[fits]
            # The writer records the end of its Write after the frame has become readable.
            left = np.minimum(written.at[at], taken.at[to])
            pairs.append(np.column_stack([written.row[at], taken.row[to]]).astype(np.int32))
            times.append(np.column_stack([left, taken.at[to]]))

        for each in crossings_of(self._graph.plan).values():
            written = self._written.get(each.channel)
            passed = self._passed.get((each.channel, each.node))
            if written is not None and passed is not None:
                add(written, passed, self._begun[each.channel])
        count = sum(map(len, pairs))
        for (channel, number), taken in self._taken.items():
            passed = self._passed.get((channel, self._nodes[self._process(number)]))
            if passed is not None:
                add(passed, taken)
            elif (written := self._written.get(channel)) is not None:
                add(written, taken, self._begun[channel])
        for exchange in exchanges_of(self._table):
            if not exchange.rendezvous.is_collective:
                found, when = self._shown_exchanges(exchange)
                pairs.append(found.astype(np.int32))
                times.append(when)
        ends: npt.NDArray[np.int32] = np.concatenate(pairs).astype(np.int32)
        return ends, np.concatenate(times), np.arange(len(ends)) < count

    def _collectives(self) -> tuple[tuple[Ints, ...], Ints]:
        """Return the slices of the ranks of each collective, and when it began and ended."""
        rows: list[Ints] = []
        times = [np.empty((0, 2), np.int64)]
        for exchange in exchanges_of(self._table):
            if exchange.rendezvous.is_collective:
                found, when = self._shown_exchanges(exchange)
                rows += list(found)
                times.append(when)
        return tuple(rows), np.concatenate(times)

    def _shown_exchanges(self, exchange: Exchange) -> tuple[Ints, Ints]:
        """Return the slices of each exchange of which all ends are shown, and its two times."""
        slices = np.empty(exchange.rows.shape, np.int64)
        for at, (process, _) in enumerate(exchange.ends):
            known = self._moving.get(process, {})
            slices[:, at] = [known.get(row, -1) for row in exchange.rows[:, at].tolist()]
        is_shown = (slices >= 0).all(axis=1)
        times = np.column_stack([exchange.begin_ns, exchange.end_ns])[is_shown]
        return slices[is_shown], np.clip(times, self._start_ns, self._end_ns) - self._start_ns

    def slices(self) -> Slices:
        def column(name: str, dtype: str) -> npt.NDArray[Any]:
            parts = [columns[name].astype(dtype) for columns in self._columns]
            return np.concatenate([np.empty(0, dtype), *parts])

        graph = self._graph
        lanes = [graph.lanes[at] for at in self._order]
        numbers = {lane.process: number for number, lane in enumerate(lanes)}
        heads = node_heads(graph.plan, addresses_of(graph))
        under = lanes_under(graph.plan)
        transfers, transfer_times, is_wire = self._transfers()
        start, end = column("start", "<i8"), column("end", "<i8")
        carriers = [channel for channel in graph.plan.channels if channel.kind != STATUS]
        return Slices(
            graph.graph_id,
            self._start_ns,
            self._end_ns,
            self._origin_ns,
            tuple(
                _head_of(lane, heads.get(lane.process, ""), *under.get(lane.process, ("", "")))
                for lane in lanes
            ),
            tuple(self._numbers),
            column("lane", "<u2"),
            column("track", "u1"),
            column("name", "<u2"),
            column("kind", "u1"),
            column("peer", "<u2"),
            start - self._start_ns,
            end - start,
            column("execution", "<i8"),
            column("bytes", "<i8"),
            column("op", "<u2"),
            self._written,
            self._taken,
            transfers,
            transfer_times,
            {each.id: tuple(numbers[reader] for reader in each.readers) for each in carriers},
            {channel.id: channel.slots for channel in carriers},
            *self._collectives(),
            {
                group.id: GroupHead(group.backend, tuple(numbers[each] for each in group.members))
                for group in graph.plan.groups
            },
            is_wire,
        )


def _head_of(lane: LaneTrace, node: str, under: str, short: str) -> LaneHead:
    error_ns = lane.clock.error_ns
    details = [
        lane.process if lane.process != lane.label else "",
        f"pid {lane.pid}" if lane.pid else "",
        f"node {visible(lane.node)}" if lane.node else "",
        f"clock to within {time_text(error_ns)}" if node and error_ns else "",
    ]
    detail = f" {DOT} ".join(filter(None, details))
    streams = tuple(map(visible, lane.streams))
    return LaneHead(
        lane.process, visible(lane.label), detail, node, error_ns, under, short, streams
    )


def name_of_op(op: Op) -> SliceName:
    """Return the name of the slices of an op."""
    passed = (op.channel,) if isinstance(op, Pass) else ()
    channels = (*op.values_in, *op.values_out, *passed)
    return SliceName(visible(op.title()), op.word, *channels[:1])
