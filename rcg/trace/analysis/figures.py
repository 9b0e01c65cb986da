# SPDX-License-Identifier: Apache-2.0
"""The figures of a trace, put together: rates, where the time went, what to make faster.

Each figure is defined in the file that computes it: ``executions.py``, ``shares.py``,
``critical.py``, ``ops.py``, ``stalls.py``. This file combines them to one summary per graph. If a
graph hangs, ops and executions that have not ended count with their time up to the end of the
trace.

This room must not know how traces are recorded.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rcg.ir.ids import DRIVER
from rcg.trace.analysis.critical import Paths
from rcg.trace.analysis.executions import UNSEEN, Executions, executions_of
from rcg.trace.analysis.intervals import Times
from rcg.trace.analysis.ops import OpTimes, ops_of
from rcg.trace.analysis.parts import events_of
from rcg.trace.analysis.rendezvous import with_waits
from rcg.trace.analysis.shares import shares_of
from rcg.trace.analysis.stalls import Stall, stall_of
from rcg.trace.analysis.summary import GraphSummary, SlowExecution, Summary
from rcg.trace.analysis.wire import wires_of
from rcg.trace.model import GraphTrace, LaneTrace, Recording

_SLOWEST = 5
# An op that exceeds its usual time by this share of the execution's latency is mentioned.
_NOTABLE = 0.01


def summarize(trace: Recording) -> Summary:
    """Return the figures of a trace, graph by graph.

    Args:
        trace: Any trace. It may have begun or ended in the middle of executions, have lost events
            or be empty.
    """
    return Summary(
        graphs=tuple(_of_graph(graph, trace.start_ns, trace.end_ns) for graph in trace.graphs),
        duration_ns=trace.duration_ns,
        events=trace.num_events,
        lost=trace.lost,
    )


def _of_graph(graph: GraphTrace, start_ns: int, end_ns: int) -> GraphSummary:
    executions = executions_of(graph)
    stall = stall_of(graph, executions, start_ns, end_ns)
    seen = graph if stall is None else _so_far(graph, end_ns)
    paths = Paths(seen, executions)
    ops = ops_of(seen, start_ns, end_ns)
    if stall is None:
        throughput, path = executions.throughput, paths.steady()
        latencies = executions.latency_ns
    else:
        throughput, path = executions.throughput_until(end_ns), paths.until(stall.process, end_ns)
        latencies = executions.latencies_until(end_ns)
    window = executions.busy_stretch(start_ns, end_ns)
    return GraphSummary(
        graph_id=graph.graph_id,
        duration_ns=end_ns - start_ns,
        executions=len(executions),
        complete=int(executions.is_complete.sum()),
        throughput=throughput,
        latency_p50_ns=_percentile(latencies, 50),
        latency_p99_ns=_percentile(latencies, 99),
        shares=shares_of(graph, *window, executions, is_hung=stall is not None),
        critical=None if path is None else path.since(start_ns),
        slowest=_slowest(seen, executions, paths, ops, None if stall is None else (stall, end_ns)),
        ops=ops,
        lost=sum(lane.lost for lane in graph.lanes),
        clock_error_ns=max((lane.clock.error_ns for lane in graph.lanes), default=0),
        stall=stall,
        predicted=graph.plan.predicted,
        wires=wires_of(graph),
    )


def _so_far(graph: GraphTrace, end_ns: int) -> GraphTrace:
    """Return a graph that hangs, with the running ops as events that ended with the trace."""
    return replace(
        graph,
        lanes=tuple(
            replace(lane, events=events_of(lane, end_ns), open=None)
            if lane.open is not None and not lane.open.waiting_since_ns
            else lane
            for lane in graph.lanes
        ),
    )


def _percentile(times: Times, percent: float) -> float | None:
    return float(np.percentile(times, percent)) if len(times) else None


def _slowest(
    graph: GraphTrace,
    executions: Executions,
    paths: Paths,
    ops: tuple[OpTimes, ...],
    hung: tuple[Stall, int] | None,
) -> tuple[SlowExecution, ...]:
    usual = {(each.process, each.op): each for each in ops}
    index, latency = executions.index[executions.is_timed], executions.latency_ns
    found = [] if hung is None else _in_flight(executions, *hung)
    events = [with_waits(graph, lane) for lane in graph.lanes]
    for at in np.argsort(-latency, kind="stable")[:_SLOWEST].tolist():
        execution, took = int(index[at]), int(latency[at])
        most = SlowExecution(execution, took)
        longest = took * _NOTABLE
        for number, row in paths.events_of(execution):
            lane = graph.lanes[number]
            event = events[number][row]
            op = usual.get((lane.process, int(event["op"])))
            own = _own_ns(lane, event)
            if op is not None and own - op.median_ns > longest:
                longest = own - op.median_ns
                most = SlowExecution(
                    execution, took, op.text, int(event["execution"]), own, op.median_ns
                )
        found.append(most)
    return tuple(found[:_SLOWEST])


def _in_flight(executions: Executions, stall: Stall, end_ns: int) -> list[SlowExecution]:
    """Return the executions that were in flight at the end: all waited for the stalled op."""
    is_open = (executions.submitted_ns != UNSEEN) & (executions.completed_ns == UNSEEN)
    index, so_far = executions.index[is_open], end_ns - executions.submitted_ns[is_open]
    return [
        SlowExecution(
            int(index[at]),
            int(so_far[at]),
            stall.text,
            stall.execution,
            stall.lasted_ns,
            stall.usual_ns,
            is_over=False,
        )
        for at in np.argsort(-so_far, kind="stable")[:_SLOWEST].tolist()
    ]


def _own_ns(lane: LaneTrace, event: np.void) -> int:
    """Return the time of an op in the execution of one of its events, without waiting."""
    events = lane.events
    if lane.process == DRIVER:
        same = (events["op"] == event["op"]) & (events["execution"] == event["execution"])
        events = events[same]
        return int((events["end_ns"] - events["start_ns"] - events["waited_ns"]).sum())
    return int(event["end_ns"] - event["start_ns"] - event["waited_ns"])
