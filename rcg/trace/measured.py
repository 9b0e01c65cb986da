# SPDX-License-Identifier: Apache-2.0
"""What a graph did in a trace, measured once: every figure that is shown is taken from here.

```
GraphTrace ── EventTable ── executions, parts, dependencies
                              `── paths, ops, shares, latency, costs ── replays ── verdict, summary
```

Each figure is defined in the file of ``analysis`` that computes it. This file puts them together,
and computes each when it is asked for, and only once. Summaries, comparisons, predictions, views,
widgets, pages and exports take a ``Measured`` and compute none of their own.

If a graph hangs, ops and executions that have not ended count with their time up to the end of the
trace.

This room must not know how traces are recorded, exported or drawn.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np

from rcg.compiler.simulate import Simulation
from rcg.ir.index import Place
from rcg.trace.analysis.comparison import Comparison, compare
from rcg.trace.analysis.costs import MeasuredCosts, costs_of
from rcg.trace.analysis.critical import LongWalk, Paths, SteadyPath
from rcg.trace.analysis.dependencies import Dependencies
from rcg.trace.analysis.events import EventTable, with_open
from rcg.trace.analysis.executions import UNSEEN, Executions, executions_of
from rcg.trace.analysis.highest import highest
from rcg.trace.analysis.intervals import Times
from rcg.trace.analysis.latency import Latency, latency_of
from rcg.trace.analysis.ops import OpTimes, Stall, has_alike, ops_of, runs_of, stall_of
from rcg.trace.analysis.parts import Parts, parts_of
from rcg.trace.analysis.rendezvous import Exchange, exchanges_of
from rcg.trace.analysis.shares import Shares, shares_of
from rcg.trace.analysis.summary import GraphSummary, SlowExecution, Summary
from rcg.trace.analysis.transfers import Wire, wires_of
from rcg.trace.analysis.verdict import Verdict, verdict_of
from rcg.trace.analysis.what_if import Replays, predict
from rcg.trace.model import GraphTrace, Recording

_SLOWEST: Final = 5
# An op that exceeds its usual time by this share of the execution's latency is mentioned.
_NOTABLE: Final = 0.01


class Measured:
    """What one graph did in a trace. Make one with ``of``.

    Points in time are those of the record. A graph that hangs is measured up to ``end_ns``.

    Attributes:
        graph: The record of the graph.
        start_ns: When the trace began.
        end_ns: When it ended.
        cores: How many processors each node of the cluster has; 0 if that is not known.
    """

    def __init__(self, graph: GraphTrace, start_ns: int, end_ns: int, cores: int = 0) -> None:
        self.graph = graph
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.cores = cores

    @classmethod
    def of(cls, trace: Recording, graph: GraphTrace) -> Measured:
        """Return what a graph did in a trace. A record keeps what was measured of it."""
        cores = trace.info.get("cores")
        key = trace.start_ns, trace.end_ns, cores if isinstance(cores, int) else 0
        known: dict[tuple[int, int, int], Measured] = vars(graph).setdefault("_measured", {})
        return known.setdefault(key, cls(graph, *key))

    # --- events ----------------------------------------------------------------------------------

    @cached_property
    def table(self) -> EventTable:
        """All events of its ops, and those that had not ended, up to the end of the trace."""
        return EventTable(self.graph, self.end_ns)

    @cached_property
    def parts(self) -> tuple[Parts, ...]:
        """What each process did when, by lane."""
        return tuple(parts_of(self.table, number) for number in range(len(self.graph.lanes)))

    @cached_property
    def executions(self) -> Executions:
        """When each execution was submitted, completed and fetched."""
        return executions_of(self.table)

    @cached_property
    def window(self) -> tuple[int, int]:
        """The trace without the time before and after all executions: its start and end."""
        return self.executions.busy_stretch(self.start_ns, self.end_ns)

    @cached_property
    def stall(self) -> Stall | None:
        """The op on which the graph hung at the end of the trace; None if it did not hang."""
        return stall_of(self.table, self.executions, self.start_ns, self.end_ns)

    @cached_property
    def ended(self) -> EventTable:
        """The events of ops that ended; of a graph that hangs, also those that were running."""
        if self.stall is not None:
            return EventTable(_so_far(self.graph, self.end_ns))
        return self.table if not self.table.is_open.any() else EventTable(self.graph)

    @cached_property
    def dependencies(self) -> Dependencies:
        """What each event of ``ended`` depends on."""
        return Dependencies(self.ended)

    @cached_property
    def exchanges(self) -> tuple[Exchange, ...]:
        """When tensors were exchanged over communicators."""
        return tuple(exchanges_of(self.table))

    # --- figures ---------------------------------------------------------------------------------

    @cached_property
    def paths(self) -> Paths:
        """The critical path of each execution."""
        return Paths(self.dependencies, self.executions)

    @cached_property
    def walk(self) -> LongWalk | None:
        """The steps of the critical path of all executions; if the graph hangs, to the end."""
        if self.stall is None:
            return self.paths.through_all()
        return self.paths.until(self.stall.process, self.end_ns)

    @cached_property
    def path(self) -> SteadyPath | None:
        """What the critical path of all executions is made of."""
        return None if self.walk is None else self.paths.steady(self.walk)

    @cached_property
    def ops(self) -> tuple[OpTimes, ...]:
        """The times of each op."""
        return ops_of(self.ended, self.start_ns, self.end_ns)

    @cached_property
    def runs_ns(self) -> dict[Place, Times]:
        """The own time of each run of each call and collective, whose medians ``ops`` has."""
        return runs_of(self.ended, self.start_ns, self.end_ns)

    @cached_property
    def methods(self) -> tuple[OpTimes, ...]:
        """The same as ``ops``, with all calls of a method by an actor as one."""
        if not has_alike(self.graph):
            return self.ops
        return ops_of(self.ended, self.start_ns, self.end_ns, by_method=True)

    @cached_property
    def shares(self) -> Shares:
        """Where the time of each process went, from the first submission to the last result."""
        return shares_of(
            self.table, self.parts, self.executions, *self.window, is_hung=self.stall is not None
        )

    @cached_property
    def latency(self) -> Latency | None:
        """The parts of the latency; None without any."""
        return latency_of(self.table, self.parts, self.executions)

    @cached_property
    def wires(self) -> tuple[Wire, ...]:
        """What crossed between nodes of the cluster, by channel."""
        return wires_of(self.table)

    @cached_property
    def costs(self) -> MeasuredCosts:
        """What each op takes in an execution, on average."""
        # Replays leave gates out, so what comes from another node is there when it was written.
        is_direct = not self.graph.plan.gates and self.stall is None
        ended = self.ended if self.stall is None else EventTable(self.graph)
        depends = self.dependencies if is_direct else Dependencies(ended, is_wired=False)
        return costs_of(depends, self.executions)

    @cached_property
    def replays(self) -> Replays:
        """Replays of what was measured; raises TraceError if nothing was."""
        return Replays(self.table, self.costs, self.executions, lambda: self.shares)

    @cached_property
    def verdict(self) -> Verdict | None:
        """What limits the graph; None of a graph that hangs, or in which nothing completed."""
        if self.stall is not None:
            return None
        return verdict_of(
            self.path,
            self.executions,
            self.table,
            lambda: self.replays,
            self.cores,
            busiest=lambda: self.shares.busiest,
        )

    def predict(self, executions: int) -> Simulation:
        """Return an unchanged replay; raises TraceError if nothing was measured."""
        return predict(self.graph.plan, self.replays.measured, executions)

    @cached_property
    def summary(self) -> GraphSummary:
        """All figures of the graph. Points in time count from the beginning of the trace."""
        graph, executions, stall = self.graph, self.executions, self.stall
        hangs = stall is not None
        latencies = executions.latencies_until(self.end_ns) if hangs else executions.latency_ns
        return GraphSummary(
            graph_id=graph.graph_id,
            duration_ns=self.end_ns - self.start_ns,
            executions=len(executions),
            complete=int(executions.is_complete.sum()),
            throughput=executions.throughput_until(self.end_ns) if hangs else executions.throughput,
            latency_p50_ns=float(np.median(latencies)) if len(latencies) else None,
            latency_p99_ns=highest(latencies) if len(latencies) else None,
            latencies=len(latencies),
            shares=self.shares,
            critical=None if self.path is None else self.path.since(self.start_ns),
            slowest=self._slowest(),
            ops=self.ops,
            lost=sum(lane.lost for lane in graph.lanes),
            clock_error_ns=max((lane.clock.error_ns for lane in graph.lanes), default=0),
            stall=stall,
            predicted=graph.plan.predicted,
            wires=self.wires,
            methods=self.methods,
            throughput_spread=None if hangs else executions.throughput_spread,
            latency_spread_ns=None if hangs else executions.latency_spread_ns,
            latency=None if hangs else self.latency,
            verdict=self.verdict,
            name=graph.name,
            state=graph.state,
        )

    def _slowest(self) -> tuple[SlowExecution, ...]:
        """Return the executions with the longest latency, and what was slow on their paths."""
        executions, table = self.executions, self.ended
        usual = {(each.process, each.op): each for each in self.ops}
        index, latency = executions.index[executions.is_timed], executions.latency_ns
        found = [] if self.stall is None else _in_flight(executions, self.stall, self.end_ns)
        for at in np.argsort(-latency, kind="stable")[:_SLOWEST].tolist():
            execution, took = int(index[at]), int(latency[at])
            most = SlowExecution(execution, took)
            longest = took * _NOTABLE
            for row in self.paths.rows_of(execution):
                process = self.graph.lanes[int(table.lane[row])].process
                op = usual.get((process, int(table.op[row])))
                own = table.own_in_execution(row)
                if op is not None and own - op.median_ns > longest:
                    longest, of = own - op.median_ns, int(table.execution[row])
                    most = SlowExecution(execution, took, op.text, of, own, op.median_ns)
            found.append(most)
        return tuple(found[:_SLOWEST])


def measured_of(trace: Recording) -> tuple[Measured, ...]:
    """Return what each graph of a trace did."""
    return tuple(Measured.of(trace, graph) for graph in trace.graphs)


def summarize(trace: Recording) -> Summary:
    """Return the figures of a trace, graph by graph.

    The trace may have begun or ended in the middle of executions, have lost events or be empty.
    """
    return Summary(
        graphs=tuple(each.summary for each in measured_of(trace)),
        duration_ns=trace.duration_ns,
        events=trace.num_events,
        lost=trace.lost,
    )


def compared(before: Recording, after: Recording) -> Comparison:
    """Compare two traces, graph by graph; see ``compare``."""
    sides = (
        [(each.graph.plan, each.summary) for each in measured_of(trace)]
        for trace in (before, after)
    )
    return compare(*sides)


def _so_far(graph: GraphTrace, end_ns: int) -> GraphTrace:
    """Return a graph that hangs, with the running ops as events that ended with the trace."""
    return replace(
        graph,
        lanes=tuple(
            with_open(lane, end_ns)
            if lane.open is not None and not lane.open.waiting_since_ns
            else lane
            for lane in graph.lanes
        ),
    )


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
