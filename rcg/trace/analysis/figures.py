# SPDX-License-Identifier: Apache-2.0
"""The figures of a trace, put together, and those of two traces, compared.

Each figure is defined in the file that computes it: ``executions.py``, ``shares.py``,
``critical.py``, ``ops.py``. This file combines them to one summary per graph. If a graph hangs, ops
and executions that have not ended count with their time up to the end of the trace.

A ratio is the second trace's value divided by the first's. A throughput is better if its ratio is
above 1, a time if it is below.

This room must not know how traces are recorded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rcg.display import Charted, Displayed
from rcg.ir.ids import DRIVER
from rcg.table import Table
from rcg.text import (
    plural,
    rate_text,
    ratio_text,
    share_text,
    spread_text,
    time_text,
    visible,
)
from rcg.trace.analysis.critical import Paths
from rcg.trace.analysis.executions import UNSEEN, Executions, executions_of
from rcg.trace.analysis.intervals import Times
from rcg.trace.analysis.latency import latency_of
from rcg.trace.analysis.ops import OpTimes, Stall, has_alike, ops_of, stall_of
from rcg.trace.analysis.parts import TimeKind, events_of
from rcg.trace.analysis.rendezvous import with_waits
from rcg.trace.analysis.shares import shares_of
from rcg.trace.analysis.spread import is_noise, spread_of
from rcg.trace.analysis.summary import GraphSummary, SlowExecution, Summary
from rcg.trace.analysis.transfers import wires_of
from rcg.trace.analysis.verdict import verdict_of
from rcg.trace.model import GraphTrace, LaneTrace, Recording

_SLOWEST = 5
# An op that exceeds its usual time by this share of the execution's latency is mentioned.
_NOTABLE = 0.01
_LITTLE: Final = 0.03  # of a time that is said to have changed
_SHORT: Final = 0.01  # of the longest op: what changed by less is not said
_MAX_ROWS: Final = 24  # of a table in a comparison


def summarize(trace: Recording, paths: Mapping[GraphTrace, Paths] | None = None) -> Summary:
    """Return the figures of a trace, graph by graph.

    Args:
        trace: The trace. It may have begun or ended in the middle of executions, have lost events
            or be empty.
        paths: The paths of some of its graphs, which save time.
    """
    found = trace.info.get("cores")
    cores = found if isinstance(found, int) else 0
    return Summary(
        graphs=tuple(
            _of_graph(graph, trace.start_ns, trace.end_ns, cores, (paths or {}).get(graph))
            for graph in trace.graphs
        ),
        duration_ns=trace.duration_ns,
        events=trace.num_events,
        lost=trace.lost,
    )


def _of_graph(
    graph: GraphTrace, start_ns: int, end_ns: int, cores: int, known: Paths | None
) -> GraphSummary:
    executions = executions_of(graph)
    stall = stall_of(graph, executions, start_ns, end_ns)
    seen = graph if stall is None else _so_far(graph, end_ns)
    paths = known if known is not None and stall is None else Paths(seen, executions)
    ops = ops_of(seen, start_ns, end_ns)
    if stall is None:
        throughput, latencies = executions.throughput, executions.latency_ns
        path = paths.steady()
    else:
        throughput = executions.throughput_until(end_ns)
        latencies = executions.latencies_until(end_ns)
        path = paths.until(stall.process, end_ns)
    window = executions.busy_stretch(start_ns, end_ns)
    return GraphSummary(
        graph_id=graph.graph_id,
        duration_ns=end_ns - start_ns,
        executions=len(executions),
        complete=int(executions.is_complete.sum()),
        throughput=throughput,
        latency_p50_ns=_percentile(latencies, 50),
        latency_p99_ns=_percentile(latencies, 99),
        shares=shares_of(graph, *window, is_hung=stall is not None),
        critical=None if path is None else path.since(start_ns),
        slowest=_slowest(seen, executions, paths, ops, None if stall is None else (stall, end_ns)),
        ops=ops,
        lost=sum(lane.lost for lane in graph.lanes),
        clock_error_ns=max((lane.clock.error_ns for lane in graph.lanes), default=0),
        stall=stall,
        predicted=graph.plan.predicted,
        wires=wires_of(graph),
        methods=ops_of(seen, start_ns, end_ns, by_method=True, known=ops)
        if has_alike(graph)
        else ops,
        throughput_spread=executions.throughput_spread if stall is None else None,
        latency_spread_ns=spread_of(latencies) if stall is None else None,
        latency=latency_of(graph, executions) if stall is None else None,
        verdict=verdict_of(graph, path, paths, cores) if stall is None else None,
        name=graph.name,
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
        event = events[same]
    return int((event["end_ns"] - event["start_ns"] - event["waited_ns"]).sum())


# --- two traces ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """One figure in both traces.

    Attributes:
        text: The name of the figure.
        before: Its value in the first trace; None if it has none.
        after: Its value in the second trace; None if it has none.
        spreads: How far each of the two may be off (``spread.py``); None of too few executions.
    """

    text: str
    before: float | None
    after: float | None
    spreads: tuple[float | None, float | None] = (None, None)

    @property
    def ratio(self) -> float | None:
        """``after`` divided by ``before``; None if one is unknown or ``before`` is 0."""
        if self.before is None or self.after is None or not self.before:
            return None
        return self.after / self.before

    @property
    def spread(self) -> float | None:
        """How far ``ratio`` may be off; None if one of the spreads is unknown."""
        before, after = self.spreads
        if not self.before or not self.after or before is None or after is None:
            return None
        return self.after / self.before * math.hypot(before / self.before, after / self.after)

    @property
    def is_noise(self) -> bool | None:
        """Whether the two, or their ratio and 1, differ by no more than their spreads, if known."""
        found = is_noise(self.before or 0.0, self.after or 0.0, *self.spreads)
        ratio, spread = self.ratio, self.spread
        if found is False and ratio is not None and spread is not None:
            return abs(ratio - 1) <= spread
        return found

    def row(self, text: Callable[[float | None], str]) -> tuple[str, ...]:
        """Return its row in a table, with values as this text."""
        gain = spread_text(self.ratio, self.spread)
        return (
            self.text,
            text(self.before),
            text(self.after),
            gain,
            "noise" if self.is_noise else "",
        )


@dataclass(frozen=True, repr=False)
class GraphComparison(Charted, Displayed):
    """One graph in both traces.

    Attributes:
        titles: What it is called in the two traces.
        is_same_plan: Whether both ran the same plan. Otherwise they were matched by position.
        throughput: Executions per second.
        latency: Median latency in ns.
        ops: Median time of each op without waiting, in ns; of all calls of a method by an actor. Of
            different plans, those that both have.
        shares: Share of the window, from 0 to 1, per process and kind: ``a0 (Stage) compute``.
    """

    titles: tuple[str, str]
    is_same_plan: bool
    throughput: Change
    latency: Change
    ops: tuple[Change, ...]
    shares: tuple[Change, ...]

    @property
    def title(self) -> str:
        """What it is called: once, if it is the same in both traces."""
        return " -> ".join(dict.fromkeys(self.titles))

    @property
    def answer(self) -> str:
        """The answer in one line: ``1.90x ±0.05: 118 /s to 224 /s; a2 (Shard).work 0.50x``."""
        rate = self.throughput
        rates = f"{rate_text(rate.before)} to {rate_text(rate.after)}"
        ratio = f"{spread_text(rate.ratio, rate.spread)}: {rates}"
        if rate.is_noise is None:
            return f"{ratio}, from too few executions to tell it from noise"
        if rate.is_noise:
            late = self.latency
            if late.is_noise is not False:
                return f"no change beyond the noise, {ratio}"
            times = f"{time_text(late.before)} to {time_text(late.after)}"
            return f"latency {spread_text(late.ratio, late.spread)}: {times}; throughput as before"
        most = max(self.ops, key=_gained_ns, default=None)
        if most is None or _gained_ns(most) <= _SHORT * max(map(_size, self.ops)):
            return ratio
        return f"{ratio}; most changed: {most.text} {spread_text(most.ratio, most.spread)}"

    def __repr__(self) -> str:
        return f"<GraphComparison {visible(self.title)}: {_gain(self)}>"

    def __str__(self) -> str:
        same = "the same plan" if self.is_same_plan else "another plan, matched by its place"
        head = ("", "before", "after", "ratio", "")
        rows = [self.throughput.row(rate_text), self.latency.row(time_text)]
        lines = [visible(self.answer), "", f"{visible(self.title)}: {same}"]
        lines.append(Table(head, rows, "nfffw").text("  "))
        ops = _largest(self.ops, _size)
        table = Table(head, [op.row(time_text) for op in ops], "nfffw")
        lines += ["", "  What each op took, median without waiting", table.text("    ")]
        lines += _left_out(len(self.ops) - len(ops), "op", "comparison.ops")
        seen = [share for share in self.shares if _size(share) >= 0.0005]
        shares = _largest(seen, lambda each: abs((each.after or 0.0) - (each.before or 0.0)))
        table = Table(head[:3], [share.row(share_text)[:3] for share in shares], "nff")
        lines += ["", "  Where the time went", table.text("    ")]
        lines += _left_out(len(seen) - len(shares), "share", "comparison.shares")
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class Comparison(Charted, Displayed):
    """Two traces side by side. ``str()`` is a report.

    Attributes:
        graphs: The graphs that are in both.
        only_before: Titles of the graphs that are only in the first.
        only_after: Titles of the graphs that are only in the second.
    """

    graphs: tuple[GraphComparison, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]

    @property
    def active(self) -> tuple[GraphComparison, ...]:
        """The graphs that did something in one of the traces; all if none did."""
        return tuple(graph for graph in self.graphs if graph.ops) or self.graphs

    def __repr__(self) -> str:
        return f"<Comparison: {', '.join(map(_gain, self.active[:3])) or 'no graph in both'}>"

    def __str__(self) -> str:
        blocks = [str(graph) for graph in self.active]
        blocks += [f"{visible(title)} is only in the first" for title in self.only_before]
        blocks += [f"{visible(title)} is only in the second" for title in self.only_after]
        return "\n\n".join(blocks) or "Neither trace holds a graph."


def compare(before: Recording, after: Recording) -> Comparison:
    """Compare two traces, graph by graph.

    Graphs with equal plans are matched, in the order of the traces. The remaining graphs are
    matched by position.
    """
    left, right = summarize(before).graphs, summarize(after).graphs
    pairs: list[tuple[int, int]] = []
    free = list(range(len(right)))
    for at, graph in enumerate(before.graphs):
        same = next((other for other in free if after.graphs[other].plan == graph.plan), None)
        if same is not None:
            pairs.append((at, same))
            free.remove(same)
    matched = {at for at, _ in pairs}
    rest = [at for at in range(len(left)) if at not in matched]
    pairs += zip(rest, free, strict=False)
    pairs.sort()
    return Comparison(
        graphs=tuple(
            _graph(left[a], right[b], before.graphs[a].plan == after.graphs[b].plan)
            for a, b in pairs
        ),
        only_before=tuple(left[at].title for at in rest[len(free) :]),
        only_after=tuple(right[at].title for at in free[len(rest) :]),
    )


def _graph(before: GraphSummary, after: GraphSummary, is_same_plan: bool) -> GraphComparison:
    return GraphComparison(
        titles=(before.title, after.title),
        is_same_plan=is_same_plan,
        throughput=Change(
            "executions",
            before.throughput,
            after.throughput,
            (before.throughput_spread, after.throughput_spread),
        ),
        latency=Change(
            "latency (median)",
            before.latency_p50_ns,
            after.latency_p50_ns,
            (before.latency_spread_ns, after.latency_spread_ns),
        ),
        ops=tuple(
            # Of another plan, what has the name of another channel is no change.
            change
            for change in _ops(before, after)
            if is_same_plan or change.ratio is not None
        ),
        shares=tuple(_shares(before, after)),
    )


def _ops(before: GraphSummary, after: GraphSummary) -> Iterator[Change]:
    sides = [{op.text: op for op in each.methods} for each in (before, after)]
    for text in dict.fromkeys((*sides[0], *sides[1])):
        was, now = (side.get(text) for side in sides)
        yield Change(
            text,
            None if was is None else was.median_ns,
            None if now is None else now.median_ns,
            (None if was is None else was.spread_ns, None if now is None else now.spread_ns),
        )


def _shares(before: GraphSummary, after: GraphSummary) -> Iterator[Change]:
    sides = [{lane.label: lane for lane in each.shares.lanes} for each in (before, after)]
    for label in dict.fromkeys((*sides[0], *sides[1])):
        for kind in TimeKind:
            was, now = (
                lanes[label].of(kind) / (lanes[label].duration_ns or 1) if label in lanes else None
                for lanes in sides
            )
            yield Change(f"{label} {kind.name.lower()}", was, now)


def _largest(changes: Sequence[Change], size: Callable[[Change], float]) -> list[Change]:
    """Return the largest changes, in their original order."""
    largest = sorted(range(len(changes)), key=lambda at: -size(changes[at]))[:_MAX_ROWS]
    return [changes[at] for at in sorted(largest)]


def _size(change: Change) -> float:
    return max(change.before or 0.0, change.after or 0.0)


def _gained_ns(change: Change) -> float:
    """Return by how much a time changed; 0 if that is noise, little, or it is in one trace only."""
    if change.ratio is None or change.is_noise is not False or abs(change.ratio - 1) < _LITTLE:
        return 0.0
    return abs((change.after or 0.0) - (change.before or 0.0))


def _left_out(count: int, word: str, where: str) -> list[str]:
    return [f"    {plural(count, f'more {word}')}: {where}"] if count else []


def _gain(graph: GraphComparison) -> str:
    return f"{ratio_text(graph.throughput.ratio)} the throughput"
