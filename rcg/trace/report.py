# SPDX-License-Identifier: Apache-2.0
"""A summary as text, for someone who sees one for the first time.

This room must compute nothing: every figure comes from the summary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rcg.trace.parts import Kind
from rcg.trace.text import columns, name_text, rate_text, share_text, time_text
from rcg.units import bytes_text

if TYPE_CHECKING:
    from rcg.trace.summary import GraphSummary, SlowExecution, Summary

__all__ = ["describe", "describe_graph"]

_MOST_GRAPHS = 6
_MOST_OPS = 24
_MOST_STEPS = 8
_MOST_PEERS = 3
# Of smaller frames the time to move them is that of everything around it.
_SIZE_WITH_RATE = 65_536

_KINDS = {
    Kind.COMPUTE: "compute",
    Kind.COMMUNICATION: "communication",
    Kind.SERIALIZATION: "serialization",
    Kind.WAITING: "waiting",
    Kind.IDLE: "idle",
}


def describe(summary: Summary) -> str:
    """Return a whole summary as text."""
    count = len(summary.graphs)
    head = (
        f"Trace of {count} graph{'' if count == 1 else 's'} over {time_text(summary.duration_ns)}, "
        f"{summary.events:,} events"
    )
    lines = [head]
    if not summary.graphs:
        lines += ["", "hint: no graph was there to record: compile one, then record"]
    for graph in summary.graphs[:_MOST_GRAPHS]:
        lines += ["", *describe_graph(graph)]
    if count > _MOST_GRAPHS:
        more = count - _MOST_GRAPHS
        lines += [
            "",
            f"{more} more graph{'' if more == 1 else 's'}: print(summary.graphs[{_MOST_GRAPHS}]) "
            "shows the next",
        ]
    return "\n".join(lines)


def describe_graph(graph: GraphSummary) -> list[str]:
    """Return the lines about one graph."""
    name = name_text(graph.graph_id[:8])
    lines = [f"Graph {name}: {_count(graph)} in {time_text(graph.window_ns)}"]
    if graph.throughput is not None:
        lines.append(f"  throughput  {rate_text(graph.throughput)}")
    if graph.latency_p50_ns is not None:
        lines.append(
            f"  latency     {time_text(graph.latency_p50_ns)} median, "
            f"{time_text(graph.latency_p99_ns)} p99 (99 of 100 took no longer), "
            "from submission to result"
        )
    lines += [*_shares(graph), *_critical(graph), *_ops(graph), *_slowest(graph), *_hints(graph)]
    return lines


def _count(graph: GraphSummary) -> str:
    if graph.executions == graph.complete:
        return f"{graph.executions:,} execution{'' if graph.executions == 1 else 's'}"
    return f"{graph.executions:,} executions, {graph.complete:,} of them whole,"


def _shares(graph: GraphSummary) -> list[str]:
    rows = [("", *(name for name in _KINDS.values()), "", "waits most for")]
    for lane in graph.shares.lanes:
        window = lane.window_ns or 1
        parts = (share_text(lane.of(kind) / window) for kind in Kind)
        peers = ", ".join(
            f"{name_text(name)} {share_text(waited / window)}"
            for name, waited in list(lane.waiting_for.items())[:_MOST_PEERS]
        )
        rows.append((lane.label, *parts, "", peers))
    width = max(len(row[-1]) for row in rows)
    rows = [(*row[:-1], row[-1].ljust(width)) for row in rows]
    lines = ["", "  Where the time of each process went", *columns(rows, indent="    ")]
    lines += [
        "    compute: in your methods; communication: moving bytes; serialization: values to bytes",
        "    and back; waiting: for another process; idle: nothing to do, in the driver your code",
    ]
    if graph.shares.hidden is not None:
        lines.append(
            f"    {share_text(graph.shares.hidden)} of communication was hidden: meanwhile an "
            "actor computed"
        )
    if graph.shares.bubble is not None:
        lines.append(
            f"    {share_text(graph.shares.bubble)} of the actors' time from the first submission "
            "to the last result they waited (the bubble)"
        )
    return lines


def _critical(graph: GraphSummary) -> list[str]:
    path = graph.critical
    if path is None or not path.shares:
        return []
    rows = [
        (share.text, _KINDS[share.kind], share_text(share.share))
        for share in path.shares[:_MOST_STEPS]
    ]
    left = path.shares[_MOST_STEPS:]
    if left:
        rows.append((f"{len(left)} more", "", share_text(sum(share.share for share in left))))
    lines = ["", "  What the results waited for (the critical path of all executions)"]
    lines += columns(rows, left=2, indent="    ")
    if path.bottleneck is not None:
        lines.append(
            f"    bottleneck: {name_text(path.bottleneck.text)}, "
            f"{share_text(path.bottleneck_share)} of the path; to make it faster helps most"
        )
    return lines


def _ops(graph: GraphSummary) -> list[str]:
    if not graph.ops:
        return []
    most = sorted(graph.ops, key=lambda op: -op.total_ns)[:_MOST_OPS]
    rows = [("", "count", "median", "p99", "total", "size", "GB/s")]
    for op in graph.ops:
        if op in most:
            is_large = op.bytes >= _SIZE_WITH_RATE * op.count and op.gb_per_s is not None
            rows.append(
                (
                    op.text,
                    f"{op.count:,}",
                    time_text(op.median_ns),
                    time_text(op.p99_ns),
                    time_text(op.total_ns),
                    bytes_text(op.bytes) if op.bytes else "",
                    f"{op.gb_per_s:.2f}" if is_large else "",
                )
            )
    lines = ["", "  What each op took, without waiting", *columns(rows, indent="    ")]
    if len(graph.ops) > len(most):
        lines.append(f"    and {len(graph.ops) - len(most)} more that took less")
    return lines


def _slowest(graph: GraphSummary) -> list[str]:
    if len(graph.slowest) < 2:
        return []
    rows = [
        (f"execution {slow.execution}", time_text(slow.latency_ns), _why(slow))
        for slow in graph.slowest
    ]
    width = max(len(row[-1]) for row in rows)
    rows = [(*row[:-1], row[-1].ljust(width)) for row in rows]
    return ["", "  The slowest executions", *columns(rows, indent="    ")]


def _why(slow: SlowExecution) -> str:
    if slow.text is None:
        return "no op took longer than usual: it waited for its turn"
    of = "" if slow.of_execution == slow.execution else f" in execution {slow.of_execution}"
    took = f"took {time_text(slow.took_ns)}, usually {time_text(slow.usual_ns)}"
    return f"{name_text(slow.text)}{of} {took}"


def _hints(graph: GraphSummary) -> list[str]:
    lines = []
    if not graph.executions:
        lines.append("hint: nothing ran while this was recorded: call execute() meanwhile")
    elif graph.latency_p50_ns is None:
        lines.append(
            "hint: no execution is in the trace from its submission to its completion: record "
            "for longer"
        )
    if graph.lost:
        lines.append(
            f"hint: {graph.lost:,} event{' was' if graph.lost == 1 else 's were'} lost, so some "
            "figures are of fewer executions: record for a shorter time"
        )
    if graph.critical is not None and not graph.critical.is_whole:
        lines.append("hint: the critical path is not whole: events that it led to are missing")
    if graph.clock_error_ns:
        lines.append(
            f"clocks: times of different processes may be off by {time_text(graph.clock_error_ns)}"
        )
    return ["", *(f"  {line}" for line in lines)] if lines else []
