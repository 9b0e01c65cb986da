# SPDX-License-Identifier: Apache-2.0
"""Every figure of small records whose answers are known by hand, approved as texts.

A record that changes another one is approved as the difference that it makes.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import unified_diff

import numpy as np
import pytest

from rcg.errors import TraceError
from rcg.trace.analysis.critical import Step
from rcg.trace.analysis.events import TimeKind
from rcg.trace.analysis.executions import UNSEEN
from rcg.trace.measured import Measured, summarize
from rcg.trace.trace import Trace
from rcg.views.data.figures import card_of
from tests.unit.approved import check_approved
from tests.unit.trace_by_hand import RECORDS
from tests.unit.traces import measure


@pytest.mark.parametrize("name", RECORDS)
def test_figures_are_as_approved(name: str) -> None:
    record = RECORDS[name]
    text = text_of(measure(record.graph, record.start, record.end))
    if record.of:
        base = RECORDS[record.of]
        was = text_of(measure(base.graph, base.start, base.end))
        lines = [*unified_diff(was.splitlines(), text.splitlines(), lineterm="", n=0)][2:]
        text = "\n".join(line for line in lines if not line.startswith("@@"))
    check_approved(f"measured/{name}", text)


def text_of(measured: Measured) -> str:
    """All figures of a record, as lines that are understood one by one."""
    sections = (executions, parts, shares, ops, paths, exchanges, costs, hang, summary)
    return "\n".join(line for section in sections for line in section(measured))


def executions(measured: Measured) -> Iterator[str]:
    found = measured.executions
    for at, index in enumerate(found.index.tolist()):
        columns = ("submitted_ns", "completed_ns", "fetched_ns", "encoded_ns")
        times = (int(getattr(found, name)[at]) for name in columns)
        words = zip(("submitted", "completed", "fetched", "encoded"), times, strict=True)
        said = (f"{word} {'unseen' if time == UNSEEN else time}" for word, time in words)
        yield f"execution {index}: {', '.join(said)}"
    yield f"latencies: {found.latency_ns.tolist()}, median {found.latency_at(50)}"
    yield f"throughput: {figure(found.throughput)}; {int(found.is_complete.sum())} are complete"
    flight = found.in_flight(measured.start_ns, measured.end_ns)
    yield f"in flight: {flight.total_ns} of {measured.window[0]} to {measured.window[1]}"
    if measured.latency is not None:
        yield f"mean: {measured.latency.queued_ns} queued, {measured.latency.service_ns} in service"


def parts(measured: Measured) -> Iterator[str]:
    table = measured.table
    for lane, own in zip(measured.graph.lanes, measured.parts, strict=True):
        for row, kind, start, end in zip(own.row, own.kind, own.start_ns, own.end_ns, strict=True):
            op = f"op {table.op[row]} of {table.execution[row]}"
            yield f"{lane.process} {op}: {TimeKind(kind).name.lower()} {start} to {end}"


def shares(measured: Measured) -> Iterator[str]:
    for lane in measured.shares.lanes:
        kinds = [kind for kind in TimeKind if lane.of(kind)]
        spent = ", ".join(f"{lane.of(kind)} {kind.name.lower()}" for kind in kinds)
        waits = "".join(f", {ns} for {peer}" for peer, ns in lane.waiting_for.items())
        rates = " ".join(figure(each) for each in (lane.hidden, lane.bubble, lane.exposed))
        yield f"time of {lane.process}: {spent}{waits}; hidden, bubble, exposed {rates}"
    found = measured.shares
    rates = " ".join(figure(each) for each in (found.hidden, found.bubble, found.exposed))
    yield f"of all: hidden, bubble, exposed {rates}"


def ops(measured: Measured) -> Iterator[str]:
    for op in measured.ops:
        times = f"median {op.median_ns}, p99 {figure(op.p99_ns)}, total {op.total_ns}"
        moved = f"{op.bytes} B" + (f" at {figure(op.gb_per_s)} GB/s" if op.gb_per_s else "")
        by = f" by {op.group}" if op.group else ""
        yield f"{op.text}: {op.kind}{by}, {op.count} times, {times}, waited {op.waited_ns}, {moved}"
    for slow in measured.summary.slowest:
        took = f"{slow.text} took {slow.took_ns} in {slow.of_execution}, usually {slow.usual_ns}"
        so_far = "" if slow.is_over else " so far"
        yield f"slow: {slow.execution} took {slow.latency_ns}{so_far}; {took if slow.text else '-'}"


def paths(measured: Measured) -> Iterator[str]:
    def step_text(step: Step) -> str:
        kind = step.kind.name.lower()
        return f"{step.start_ns} to {step.end_ns} {kind} of {step.execution}: {step.text}"

    for execution in measured.executions.index.tolist():
        for step in measured.paths.of(execution):
            yield f"path of {execution}: {step_text(step)}"
    path = measured.path
    if path is None:
        yield "path: none"
        return
    most = path.bottleneck and f"{path.bottleneck.text} {figure(path.bottleneck.share)}"
    yield f"path: {path.start_ns} to {path.end_ns}, whole {path.is_whole}, most {most}"
    for share in path.shares:
        yield f"path: {share.total_ns} {share.kind.name.lower()} of {share.text}"
    yield from (f"path: {stall}, {figure(stall.share)}" for stall in path.stalls)


def exchanges(measured: Measured) -> Iterator[str]:
    for each in measured.exchanges:
        ends = ", ".join(f"{process} {op}" for process, op in each.ends)
        times = list(zip(each.begin_ns.tolist(), each.end_ns.tolist(), strict=True))
        yield f"exchange of {ends}: {times}, {each.bytes.tolist()} B"
    for wire in measured.wires:
        took = f"median {wire.median_ns}, p99 {figure(wire.p99_ns)}, {wire.error_ns} off"
        way = f"{wire.channel} {wire.writer} to {wire.node} {wire.address}"
        yield f"wire {way}: {wire.frames} frames, {wire.bytes} B, {took}"


def costs(measured: Measured) -> Iterator[str]:
    try:
        found = measured.costs
    except TraceError as error:
        yield f"costs: {error}"
        return
    for (process, op), cost in found.costs.items():
        names = ("compute", "moving", "coding", "waiting", "waking")
        times = ((name, getattr(cost, f"{name}_ns")) for name in names)
        said = ", ".join(f"{name} {figure(time)}" for name, time in times if time)
        yield f"cost of {process} {op}: {said or 'nothing'}"
    threads = "several" if found.is_driver_parallel else "one"
    user = f"{figure(found.user_ns)} of the user"
    yield f"driver: {threads} at a time, {found.window} in flight, {user}"


def hang(measured: Measured) -> Iterator[str]:
    stall = measured.stall
    if stall is not None:
        waits = f"{stall.waiting} wait since {stall.since_ns}, for {stall.lasted_ns}"
        yield f"hangs: {stall.text} of {stall.execution}, usually {stall.usual_ns}; {waits}"
    yield f"verdict: {measured.verdict}"


def summary(measured: Measured) -> Iterator[str]:
    trace = Trace((measured.graph,), measured.start_ns, measured.end_ns)
    yield from str(summarize(trace)).splitlines()
    yield from (f"card, {key}: {value}" for key, value in card_of(measured.summary).keys)


def figure(value: float | None) -> str:
    return "-" if value is None else f"{np.float64(value):.6g}"
