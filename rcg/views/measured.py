# SPDX-License-Identifier: Apache-2.0
"""From the figures of a trace to what pictures and tables show of them; computes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from rcg.ir.ops import Call
from rcg.trace.ops import OpTimes
from rcg.trace.parts import Kind
from rcg.trace.report import stalled
from rcg.trace.shares import LaneShares
from rcg.trace.summary import GraphSummary
from rcg.trace.trace import GraphTrace
from rcg.units import bytes_text
from rcg.views.canvas import DOT
from rcg.views.html import Cell, table
from rcg.views.summary import Figures, Shares
from rcg.views.svg import Measured
from rcg.views.text import brief, visible
from rcg.views.topology import nodes_of_calls
from rcg.views.units import count_text, share_text, time_text

__all__ = ["figures_of", "measured_of", "ops_table"]

_UNKNOWN = "-"


def figures_of(graph: GraphSummary) -> Figures:
    """Return what the profile's card shows of a graph's figures."""
    return Figures(
        about=f" {DOT} ".join(
            [
                # It is long, and the figures beside it say how many executions there are.
                stalled(graph)
                or f"{_plural(graph.executions, 'execution')} in {time_text(graph.window_ns)}",
                *(
                    [f"clocks aligned to \N{PLUS-MINUS SIGN}{time_text(graph.clock_error_ns)}"]
                    if graph.clock_error_ns
                    else []
                ),
                *([f"{_plural(graph.lost, 'event')} lost"] if graph.lost else []),
            ]
        ),
        shares=[_shares(lane, graph.executions) for lane in graph.shares.lanes],
        keys=_keys(graph),
        note_title="busy per execution",
    )


def _keys(graph: GraphSummary) -> list[tuple[str, str]]:
    keys = []
    if graph.stall is not None:
        keys.append(
            ("not ended", f"{time_text(graph.stall.lasted_ns)} {visible(graph.stall.text)}")
        )
        keys.append(("waiting for it", _plural(len(graph.stall.waiting), "process")))
    keys.append(("throughput", _rate(graph.throughput)))
    if graph.latency_p50_ns is not None and graph.latency_p99_ns is not None:
        latency = f"{time_text(graph.latency_p50_ns)} / {time_text(graph.latency_p99_ns)}"
        keys.append(("p50 / p99 latency", latency))
    if graph.shares.hidden is not None:
        keys.append(("communication hidden", share_text(graph.shares.hidden)))
    if graph.shares.bubble is not None:
        keys.append(("pipeline bubble", share_text(graph.shares.bubble)))
    path = graph.critical
    if path is not None and path.bottleneck is not None:
        share = share_text(path.bottleneck_share)
        keys.append(("bottleneck", f"{share} {visible(path.bottleneck.text)}"))
    whole = count_text(graph.complete)
    if graph.complete != graph.executions:
        whole += f" of {count_text(graph.executions)}"
    keys.append(("whole executions", whole))
    keys.append(("events lost", count_text(graph.lost)))
    keys.append(("clock error, at most", time_text(graph.clock_error_ns)))
    return keys


def _shares(lane: LaneShares, executions: int) -> Shares:
    times = [lane.of(kind) for kind in Kind]
    return Shares(
        label=lane.label,
        ns=(times[0], times[1], times[2], times[3], times[4]),
        note=time_text(lane.busy_ns / executions) if executions else "",
        hover="\n".join(
            f"waits {time_text(waited)} for {brief(name)}"
            for name, waited in lane.waiting_for.items()
        ),
    )


def measured_of(graph: GraphTrace, summary: GraphSummary) -> Measured:
    """Return what is written into a graph's topology: medians of calls, means of values."""
    numbers = nodes_of_calls(graph.plan)
    calls: dict[int, float] = {}
    values: dict[str, float] = {}
    for each in summary.ops:
        op = graph.plan.program(each.process).ops[each.op]
        if isinstance(op, Call):
            calls[numbers[op.node]] = each.median_ns
        for channel in op.channels_out if each.bytes else ():
            values[channel] = each.bytes / each.count
    open_ns = {numbers[node]: lasted for node, lasted in _open_calls(graph, summary)}
    return Measured(calls, values, "median time of a call, mean size of a value", open_ns)


def _open_calls(graph: GraphTrace, summary: GraphSummary) -> Iterator[tuple[int, float]]:
    """Which calls ran on at the end of the trace of a graph that hangs, and for how long."""
    stall = summary.stall
    if stall is None:
        return
    hung = graph.lane(stall.process).open
    end_ns = stall.lasted_ns + (0 if hung is None else hung.since_ns)
    for lane in graph.lanes:
        if lane.open is not None and not lane.open.waiting_since_ns:
            match graph.op(lane, lane.open.op):
                case Call(node=node):
                    yield node, float(max(end_ns - lane.open.since_ns, 0))
                case _:
                    pass


def ops_table(summary: GraphSummary) -> str:
    """Return a table of what each op took, as HTML, in the order of the programs."""
    head = ("process", "op", "count", "median", "p99", "total", "waited", "moved", "speed")
    labels = {lane.process: lane.label for lane in summary.shares.lanes}
    rows = [_op_row(labels.get(each.process, each.process), each) for each in summary.ops]
    most = summary.critical.bottleneck if summary.critical is not None else None
    marked = [
        most is not None and (each.process, each.op) == (most.process, most.op)
        for each in summary.ops
    ]
    return table(head, rows, marked)


def _op_row(label: str, each: OpTimes) -> list[Cell]:
    number = "rcg-number"
    return [
        Cell(label, "rcg-strong"),
        Cell(each.text, "rcg-code"),
        Cell(count_text(each.count), number),
        Cell(time_text(each.median_ns), number),
        Cell(time_text(each.p99_ns), number),
        Cell(time_text(each.total_ns), number),
        Cell(time_text(each.waited_ns), number),
        Cell(bytes_text(each.bytes) if each.bytes else _UNKNOWN, number),
        Cell(f"{each.gb_per_s:.3g} GB/s" if each.gb_per_s is not None else _UNKNOWN, number),
    ]


def _rate(per_s: float | None) -> str:
    if per_s is None:
        return _UNKNOWN
    return f"{count_text(round(per_s) if per_s >= 100 else per_s)} /s"


def _plural(count: int, word: str) -> str:
    ending = "" if count == 1 else "es" if word.endswith("s") else "s"
    return f"{count_text(count)} {word}{ending}"
