# SPDX-License-Identifier: Apache-2.0
"""The figures of a trace, and how they read: rates, where the time went, what to make faster.

Each figure is defined where it is computed: ``executions.py``, ``shares.py``, ``critical.py``,
``ops.py``, ``stalls.py``. Here they are put together, per graph, as data that prints and travels as
JSON. Of a graph that hangs, what has not ended counts with its time up to the end of the trace.

This room must know nothing of how a trace was recorded.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

import numpy as np

from rcg.ir.ids import DRIVER
from rcg.trace.critical import Paths, SteadyPath
from rcg.trace.executions import UNSEEN, Executions, executions_of
from rcg.trace.intervals import Times
from rcg.trace.ops import OpTimes, ops_of
from rcg.trace.parts import Kind, events_of
from rcg.trace.report import describe, describe_graph
from rcg.trace.shares import Shares, shares_of
from rcg.trace.stalls import Stall, stall_of
from rcg.trace.trace import GraphTrace, Lane, Trace

__all__ = ["GraphSummary", "SlowExecution", "Summary", "summarize"]

_SLOWEST = 5
# An op that took so much of an execution's latency longer than usual is worth a word.
_NOTABLE = 0.01


@dataclass(frozen=True, slots=True)
class SlowExecution:
    """An execution that took long, and the op on its critical path that took longest over its use.

    Attributes:
        execution: Its index.
        latency_ns: From submission to completion.
        text: The op that exceeded its median most; None where all were about as fast as usual, and
            the execution waited for its turn or for the user.
        of_execution: The execution that this op ran for; another one if that was in the way.
        took_ns: What the op took, without waiting.
        usual_ns: The op's median.
        is_over: Whether it completed; the latency of one that did not is its time so far.
    """

    execution: int
    latency_ns: int
    text: str | None = None
    of_execution: int | None = None
    took_ns: int | None = None
    usual_ns: float | None = None
    is_over: bool = True


@dataclass(frozen=True)
class GraphSummary:
    """The figures of one graph. Times are in ns, moments from the beginning of the trace.

    What is not known is None.

    Attributes:
        graph_id: Hex id.
        window_ns: How long the trace is.
        executions: How many executions the trace holds anything of.
        complete: How many of them it holds whole, from submission to fetch.
        throughput: Executions per second, from completion to completion.
        latency_p50_ns: Median from submission to completion.
        latency_p99_ns: All but the slowest hundredth took no longer.
        shares: Where the time of each process went, from the first submission to the last result;
            what was before and after that is left out.
        critical: What the time from the first submission to the last completion hung on; of a
            graph that hangs, to the end of the trace.
        slowest: The executions with the longest latency, longest first.
        ops: What each op took.
        lost: Events that the trace should hold and does not.
        clock_error_ns: How far off the times of a process may be against those of another.
        stall: What the graph hung on at the end of the trace; None if it went on as usual.
    """

    graph_id: str
    window_ns: int
    executions: int
    complete: int
    throughput: float | None
    latency_p50_ns: float | None
    latency_p99_ns: float | None
    shares: Shares
    critical: SteadyPath | None
    slowest: tuple[SlowExecution, ...]
    ops: tuple[OpTimes, ...]
    lost: int
    clock_error_ns: int
    stall: Stall | None = None

    def __str__(self) -> str:
        return "\n".join(describe_graph(self))


@dataclass(frozen=True)
class Summary:
    """The figures of a trace; prints as text.

    Attributes:
        graphs: One per graph.
        duration_ns: How long the trace is.
        events: How many events it holds.
        lost: How many it should hold and does not.
    """

    graphs: tuple[GraphSummary, ...]
    duration_ns: int
    events: int
    lost: int

    def __str__(self) -> str:
        return describe(self)

    def to_json(self) -> str:
        """Return all figures as JSON: every record an object, every kind its lower-case name."""
        return json.dumps(asdict(self, dict_factory=_as_data))


def _as_data(items: list[tuple[str, object]]) -> dict[str, object]:
    return {name: value.name.lower() if isinstance(value, Kind) else value for name, value in items}


def summarize(trace: Trace) -> Summary:
    """Return the figures of a trace, graph by graph.

    Args:
        trace: Any trace, also one that began or ended in the middle, lost events or is empty.
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
    window = executions.busy_window(start_ns, end_ns)
    return GraphSummary(
        graph_id=graph.graph_id,
        window_ns=end_ns - start_ns,
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
    )


def _so_far(graph: GraphTrace, end_ns: int) -> GraphTrace:
    """Return a graph that hangs with what ran on at the end as events that the end ended."""
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
    found = [] if hung is None else _under_way(executions, *hung)
    for at in np.argsort(-latency, kind="stable")[:_SLOWEST].tolist():
        execution, took = int(index[at]), int(latency[at])
        most = SlowExecution(execution, took)
        longest = took * _NOTABLE
        for number, row in paths.events_of(execution):
            lane = graph.lanes[number]
            event = lane.events[row]
            op = usual.get((lane.process, int(event["op"])))
            own = _own_ns(lane, event)
            if op is not None and own - op.median_ns > longest:
                longest = own - op.median_ns
                most = SlowExecution(
                    execution, took, op.text, int(event["execution"]), own, op.median_ns
                )
        found.append(most)
    return tuple(found[:_SLOWEST])


def _under_way(executions: Executions, stall: Stall, end_ns: int) -> list[SlowExecution]:
    """Return the executions that were not over at the end, which all waited for one op."""
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


def _own_ns(lane: Lane, event: np.void) -> int:
    """Return what an op took in the execution of one of its events, without waiting."""
    events = lane.events
    if lane.process == DRIVER:
        same = (events["op"] == event["op"]) & (events["execution"] == event["execution"])
        events = events[same]
        return int((events["end_ns"] - events["start_ns"] - events["waited_ns"]).sum())
    return int(event["end_ns"] - event["start_ns"] - event["waited_ns"])
