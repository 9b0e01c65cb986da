# SPDX-License-Identifier: Apache-2.0
"""Selects the figures of a trace that pictures show. It computes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from rcg.ir.index import Place
from rcg.ir.ops import Call
from rcg.text import brief, plural, rate_text, share_text, stated, time_text, visible
from rcg.trace.analysis.advice import Advice
from rcg.trace.analysis.alike import Odd, members_text, odd_text
from rcg.trace.analysis.events import TimeKind
from rcg.trace.analysis.highest import high_word
from rcg.trace.analysis.intervals import Times
from rcg.trace.analysis.latency import Latency
from rcg.trace.analysis.ops import OpTimes
from rcg.trace.analysis.shares import LaneShares
from rcg.trace.analysis.summary import GraphSummary, lane_rows, stall_text
from rcg.trace.analysis.verdict import Form
from rcg.trace.measured import Measured
from rcg.views.data.lettering import DOT

EXPOSED: Final = "communication not hidden"
BUBBLE: Final = "pipeline bubble"
DEVICE: Final = "GPU busy"
QUEUED: Final = "mean queued / in service"

_NOTABLE: Final = 0.01  # of the time that a process waits
_MAX_PEER: Final = 24
_LEAST_SPREAD: Final = 0.005  # of a throughput, that is shown

HINTS: Final = {
    QUEUED: "mean times of an execution: in service, a process works for it; queued, its values "
    "lie in a channel until a process has time for them; on the wire between nodes is in service",
    EXPOSED: "share of the time in which an actor, or its lanes, moved bytes and none of its "
    "methods ran; mean of the actors, from the first submission to the last result",
    BUBBLE: "share of the time in which none of an actor's methods ran; mean of the actors, from "
    "the first submission to the last result",
    DEVICE: "share of the time in which a GPU ran kernels or copies for an actor; mean of the "
    "actors with recorded kernels, from the first submission to the last result",
}
"""What key figures are, by their names."""


@dataclass(frozen=True, slots=True)
class CardRow:
    """Where the time of one process went: ``ns`` by kind, in the order of ``TimeKind``.

    The note is at the right end; ``waits`` says what it waits most for, and for which share;
    ``is_odd``, whether it stands out among others of its class.
    """

    label: str
    ns: tuple[float, ...]
    note: str = ""
    hover: str = ""
    waits: str = ""
    is_odd: bool = False


@dataclass(frozen=True, slots=True)
class ProfileCard:
    """The content of a profile's card.

    Attributes:
        title: The title, with the state of the graph if that is worth a word.
        about: The line below the title.
        shares: One row per process.
        keys: Names and values of the key figures.
        note_title: The title of the notes of the rows.
        answer: What limits the graph, in a sentence above all; "" if that is not known.
        advice: What would help.
        latency: How the latencies are distributed.
    """

    title: str
    about: str
    shares: Sequence[CardRow]
    keys: Sequence[tuple[str, str]]
    note_title: str = ""
    answer: str = ""
    advice: Sequence[Advice] = ()
    latency: Latency | None = None


@dataclass(frozen=True, slots=True)
class TopologyFigures:
    """The measured figures in the picture of a topology, by the ops of its boxes.

    Attributes:
        ops: The times of each op.
        runs_ns: The own time of each run of a call or a collective.
        channel_bytes: Size of one frame, by the id of the channel.
        open_ns: Time so far of calls that did not end. It is shown instead of that of their runs.
        on_path: Share of the critical path of all executions that is spent in calls and
            collectives, without stalls, from 0 to 1. Empty if no actor limits the graph: which of
            them have more is then noise.
        odd: The actors whose calls take longer, or shorter, than those of others of their class.
    """

    ops: Mapping[Place, OpTimes] = field(default_factory=dict)
    runs_ns: Mapping[Place, Times] = field(default_factory=dict)
    channel_bytes: Mapping[str, float] = field(default_factory=dict)
    open_ns: Mapping[Place, float] = field(default_factory=dict)
    on_path: Mapping[Place, float] = field(default_factory=dict)
    odd: Mapping[str, Odd] = field(default_factory=dict)

    def runs_of(self, ops: Iterable[Place]) -> dict[str, Times]:
        """Return the own times of all runs of some ops, by their actor."""
        found: dict[str, list[Times]] = {}
        for op in ops:
            if op in self.runs_ns:
                found.setdefault(op[0].partition(".")[0], []).append(self.runs_ns[op])
        return {actor: np.concatenate(runs) for actor, runs in found.items()}


def card_of(graph: GraphSummary) -> ProfileCard:
    """Return the profile's card of a graph."""
    odd = graph.odd
    facts = [*filter(None, [odd_text(odd)]), _ran(graph)]
    if graph.clock_error_ns:
        facts.append(f"clocks aligned to \N{PLUS-MINUS SIGN}{time_text(graph.clock_error_ns)}")
    if graph.lost:
        facts.append(f"{plural(graph.lost, 'event')} lost")
    verdict = graph.verdict
    answer = "" if verdict is None else str(verdict)
    return ProfileCard(
        title=stated("Profile", graph.state),
        about=f" {DOT} ".join(facts),
        shares=_rows(graph, odd),
        keys=_keys(graph),
        note_title="busy per execution" if graph.executions else "",
        answer=stall_text(graph) if graph.stall else answer,
        advice=() if verdict is None else verdict.advice,
        latency=graph.latency,
    )


def _rows(graph: GraphSummary, odd: Mapping[str, Odd]) -> list[CardRow]:
    """Return where the time of each process went, those of many that are alike as one."""
    rows = []
    for lane, names in lane_rows(graph):
        row = _shares(lane, graph.executions)
        if (stands_out := odd.get(row.label)) is not None:
            row = replace(row, note=f"{row.note} {DOT} {stands_out}", is_odd=True)
        if len(names) > 1:
            row = replace(row, hover="\n".join(filter(None, [members_text(names), row.hover])))
        rows.append(row)
    return rows


def _ran(graph: GraphSummary) -> str:
    if not graph.executions and graph.stall is None:
        return f"nothing ran in {time_text(graph.duration_ns)}: call execute() during the recording"
    return f"{graph.ran} in {time_text(graph.duration_ns)}"


def _keys(graph: GraphSummary) -> list[tuple[str, str]]:
    keys = []
    keys += [("throughput", _rate(graph))] if graph.throughput is not None else []
    if graph.has_latency and graph.latency_p50_ns is not None:
        latency = f"{time_text(graph.latency_p50_ns)} / {time_text(graph.latency_p99_ns or 0)}"
        keys.append((f"median / {high_word(graph.latencies)} latency", latency))
    if graph.latency is not None:
        parts = f"{time_text(graph.latency.queued_ns)} / {time_text(graph.latency.service_ns)}"
        keys.append((QUEUED, parts))
    if graph.shares.exposed is not None:
        keys.append((EXPOSED, share_text(graph.shares.exposed, 0)))
    if graph.shares.bubble is not None:
        keys.append((BUBBLE, share_text(graph.shares.bubble, 0)))
    if graph.shares.device is not None:
        share, count = share_text(graph.shares.device, 0), graph.shares.devices
        keys.append((DEVICE, f"{share} of {plural(count, 'actor')}"))
    path = graph.critical
    if path is not None and path.bottleneck and not (graph.verdict or graph.stall):
        share = share_text(path.bottleneck.share, 0)
        keys.append(("bottleneck", f"{share} {visible(path.bottleneck.text)}"))
    for stall in () if path is None else path.stalls[:1]:
        text = f"{time_text(stall.took_ns)} {visible(stall.text)}"
        keys.append((f"once, in execution {stall.execution}", text))
    return keys


def _rate(graph: GraphSummary) -> str:
    rate, spread = graph.throughput, graph.throughput_spread
    if not rate or not spread or spread < _LEAST_SPREAD * rate:
        return rate_text(rate)
    return f"{rate_text(rate)} \N{PLUS-MINUS SIGN}{share_text(spread / rate, 0)}"


def _shares(lane: LaneShares, executions: int) -> CardRow:
    waits = ""
    for name, waited in list(lane.waiting_for.items())[:1]:
        share = waited / (lane.duration_ns or 1)
        waits = f"{brief(name, _MAX_PEER)} {share_text(share, 0)}" if share >= _NOTABLE else ""
    unused = {"no method": lane.bubble, EXPOSED: lane.exposed}
    unused["GPU busy"] = lane.device
    facts = [
        f"{what} {share_text(share, 0)} of the time"
        for what, share in unused.items()
        if share is not None
    ]
    facts += [f"waits {time_text(ns)} for {brief(name)}" for name, ns in lane.waiting_for.items()]
    return CardRow(
        label=lane.label,
        ns=tuple(map(lane.of, TimeKind)),
        note=time_text(lane.busy_ns / executions) if executions else "",
        hover="\n".join(facts),
        waits=waits,
    )


def topology_figures_of(measured: Measured) -> TopologyFigures:
    """Return the figures of a graph's topology; its bottleneck has the share of the verdict."""
    plan, summary = measured.graph.plan, measured.summary
    ops = {(each.process, each.op): each for each in summary.ops}
    sizes: dict[str, float] = {}
    for (process, at), each in ops.items():
        for channel in plan.program(process).ops[at].values_out if each.bytes else ():
            sizes[channel] = each.bytes / each.count
    form = None if summary.verdict is None else summary.verdict.form
    is_even = form in (Form.BALANCED, Form.STARVED)
    path = () if summary.critical is None or is_even else summary.critical.shares
    runs = measured.runs_ns
    on_path: dict[Place, float] = {}
    for part in path:
        place = part.process, -1 if part.op is None else part.op
        if place in runs:
            on_path[place] = on_path.get(place, 0.0) + part.share
    labels = {lane.label: lane.process for lane in summary.shares.lanes}
    odd = {labels[label]: each for label, each in summary.odd.items()}
    return TopologyFigures(ops, runs, sizes, dict(_open_calls(measured)), on_path, odd)


def _open_calls(measured: Measured) -> Iterator[tuple[Place, float]]:
    """Yield the running calls at the end of the trace of a graph that hangs, with their times."""
    graph, stall = measured.graph, measured.summary.stall
    if stall is None:
        return
    hung = graph.lane(stall.process).open
    end_ns = stall.lasted_ns + (0 if hung is None else hung.since_ns)
    for lane in graph.lanes:
        running = lane.open
        if running is None or running.waiting_since_ns:
            continue
        if isinstance(graph.op(lane, running.op), Call):
            yield (lane.process, running.op), float(max(end_ns - running.since_ns, 0))
