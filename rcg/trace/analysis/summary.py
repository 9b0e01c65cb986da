# SPDX-License-Identifier: Apache-2.0
"""The figures of a trace as data, with their text and JSON forms.

This file computes nothing: every figure comes from ``rcg.trace.measured``.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from functools import cached_property
from itertools import chain
from math import log
from typing import Final

from rcg.ir.costs import Predicted
from rcg.table import Cell, Table
from rcg.text import (
    IN_LINE,
    brief,
    bytes_text,
    count_text,
    graph_title,
    plural,
    rate_text,
    share_text,
    speed_text,
    time_text,
    wrapped,
)
from rcg.trace.analysis.alike import (
    APART,
    SAME_SHARE,
    SAME_TIME,
    Odd,
    alike_rows,
    name_of_rows,
    odd_ones,
    odd_text,
)
from rcg.trace.analysis.critical import SteadyPath
from rcg.trace.analysis.events import TimeKind
from rcg.trace.analysis.executions import ran_text
from rcg.trace.analysis.highest import high_word
from rcg.trace.analysis.latency import Latency
from rcg.trace.analysis.ops import OpTimes, Stall
from rcg.trace.analysis.shares import LaneShares, Shares
from rcg.trace.analysis.transfers import Wire
from rcg.trace.analysis.verdict import Form, Verdict

_MAX_GRAPHS = 6
_MAX_OPS = 24
_MAX_STEPS = 8
_MAX_WIRES = 12
_MAX_PEERS = 3
# Moving a smaller frame takes mostly fixed time, so a rate would say nothing about the bytes.
_SIZE_WITH_RATE = 65_536
_LINE = 100  # characters
_TRY = "  try: "
_MANY_LANES: Final = 17  # of a driver and 16 stages: no more have a row each
_OF_SEVERAL: Final = ("    a row of several actors has the figures of the one in their middle",)
_SHOWN: Final = 0.0005  # a smaller share is shown as 0 %
_BUSY: Final = TimeKind.COMPUTE, TimeKind.COMMUNICATION, TimeKind.SERIALIZATION
_BARS = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"


@dataclass(frozen=True, slots=True)
class SlowExecution:
    """A slow execution, and the op on its critical path that exceeded its usual time most.

    Attributes:
        execution: Its index.
        latency_ns: Time from submission to completion; time so far if it did not complete.
        text: Displayed name of the op that exceeded its median most. None if no op was much slower
            than usual; then the execution waited for its turn or for the user.
        of_execution: The execution for which the op ran. It may be another one that had to finish
            first.
        took_ns: Time of the op, without waiting.
        usual_ns: Median time of the op.
        is_over: Whether the execution completed.
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
    """The figures of one graph. Points in time count in ns from the beginning of the trace.

    A figure that is not known is None.

    Attributes:
        graph_id: Hex id.
        duration_ns: Length of the trace.
        executions: Number of executions with at least one event in the trace.
        complete: Number of executions that the trace contains from submission to fetch.
        throughput: Executions per second, from completion to completion.
        latency_p50_ns: Median time from submission to completion.
        latency_p99_ns: 99th percentile of the same; of fewer than 100 the largest.
        latencies: How many executions these two are of.
        shares: Where the time of each process went, from the first submission to the last result.
        critical: The critical path from the first submission to the last completion; of a graph
            that hangs, to the end of the trace.
        slowest: The executions with the longest latency, longest first.
        ops: The times of each op.
        lost: Number of events that are missing in the trace.
        clock_error_ns: Largest error between the times of two processes.
        stall: The op on which the graph hung at the end of the trace; None if it did not hang.
        predicted: What the compiler predicted from the costs of the plan; empty without costs.
        wires: What crossed between nodes of the cluster, by channel; empty on one node.
        methods: The same as ``ops``, with all calls of a method by an actor as one.
        throughput_spread: How far ``throughput`` may be off (``spread.py``); None of too few
            executions, or of a graph that hangs.
        latency_spread_ns: How far ``latency_p50_ns`` may be off; None likewise.
        latency: The parts of the latency; None without any, and of a graph that hangs.
        verdict: What limits the graph, and what would help; None if the trace is too short to
            tell, and of a graph that hangs.
        name: What people call the graph, or "".
        state: What was wrong with it at the end, in a few words, or "".
    """

    graph_id: str
    duration_ns: int
    executions: int
    complete: int
    throughput: float | None
    latency_p50_ns: float | None
    latency_p99_ns: float | None
    latencies: int
    shares: Shares
    critical: SteadyPath | None
    slowest: tuple[SlowExecution, ...]
    ops: tuple[OpTimes, ...]
    lost: int
    clock_error_ns: int
    stall: Stall | None = None
    predicted: tuple[Predicted, ...] = ()
    wires: tuple[Wire, ...] = ()
    methods: tuple[OpTimes, ...] = ()
    throughput_spread: float | None = None
    latency_spread_ns: float | None = None
    latency: Latency | None = None
    verdict: Verdict | None = None
    name: str = ""
    state: str = ""

    @property
    def limiting_ops(self) -> frozenset[tuple[str, int]]:
        """The ops that limit it, by process and index in the program; none if nothing is known to.

        Of a graph that hangs these are the ops of the largest share of the path.
        """
        if self.critical is None or self.critical.bottleneck is None:
            return frozenset()
        is_said = self.stall is not None or (
            self.verdict is not None and self.verdict.form is Form.LIMITS
        )
        return self.critical.bottleneck.ops if is_said else frozenset()

    @cached_property
    def odd(self) -> dict[str, Odd]:
        """Which actors stand out among those of their class, by the usual time of their calls.

        A call that took long once changes no median, and makes no actor odd.
        """
        took: dict[str, float] = {}
        for each in self.ops:
            if each.kind == "call":
                took[each.process] = took.get(each.process, 0.0) + each.median_ns
        lanes = [lane for lane in self.shares.lanes if lane.process in took]
        return odd_ones([lane.label for lane in lanes], [took[lane.process] for lane in lanes])

    @property
    def ran(self) -> str:
        """How many executions ran, as text."""
        return ran_text(self.executions, self.complete, is_over=self.stall is None)

    @property
    def has_latency(self) -> bool:
        """Whether an execution has ended: of a hang, latencies count those so far as well."""
        return self.stall is None or self.complete > 0

    @property
    def title(self) -> str:
        """Its name and the beginning of its id, for people."""
        return graph_title(self.name, self.graph_id)

    @property
    def period_ns(self) -> float | None:
        """The mean time from completion to completion."""
        return None if not self.throughput else 1e9 / self.throughput

    def __str__(self) -> str:
        head = [*headline(self), ""] if headline(self) else []
        return "\n".join([*head, *_graph(self)])


@dataclass(frozen=True)
class Summary:
    """The figures of a trace. ``str()`` is a report.

    Attributes:
        graphs: One per graph.
        duration_ns: Length of the trace.
        events: Number of events.
        lost: Number of events that are missing.
    """

    graphs: tuple[GraphSummary, ...]
    duration_ns: int
    events: int
    lost: int

    def __str__(self) -> str:
        count = len(self.graphs)
        head = (
            f"Trace of {plural(count, 'graph')} over {time_text(self.duration_ns)}, "
            f"{self.events:,} events"
        )
        first = [headline(each, of=count > 1) for each in self.graphs]
        first = [each for each in first if each][:_MAX_GRAPHS]
        lines = [*chain(*first), *([""] if first else []), head]
        if not self.graphs:
            lines += ["", "hint: there was no graph to record: compile one before recording"]
        for graph in self.graphs[:_MAX_GRAPHS]:
            lines += ["", *_graph(graph)]
        if count > _MAX_GRAPHS:
            more = plural(count - _MAX_GRAPHS, "more graph")
            lines += ["", f"{more}: print(summary.graphs[{_MAX_GRAPHS}]) shows the next"]
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return all figures as JSON: each record is an object, each kind a name in lower case."""
        return json.dumps(asdict(self, dict_factory=_as_data))


def _as_data(items: list[tuple[str, object]]) -> dict[str, object]:
    return {name: value.name.lower() if isinstance(value, Enum) else value for name, value in items}


def headline(graph: GraphSummary, *, of: bool = False) -> list[str]:
    """Return what a graph's summary begins with: that it hangs, or the verdict and the advice.

    Returns:
        Lines of at most 100 characters, unless names or lines of Python are long; none if nothing
        can be said.
    """
    if graph.stall is not None:
        return [stall_text(graph, of=of)]
    if graph.verdict is None:
        return []
    name = f"{brief(graph.title, IN_LINE)}: " if of else ""
    lines = wrapped(f"{name}{graph.verdict}", _LINE, later="  ")
    for advice in graph.verdict.advice:
        first, *rest = advice.lines(_LINE - len(_TRY))
        lines += [f"{_TRY}{first}", *(f"{' ' * len(_TRY)}{line}" for line in rest)]
    return lines


def stall_text(graph: GraphSummary, *, of: bool = False) -> str:
    """Return a sentence about a graph's stall; ``of``: whether it names the graph."""
    stall = graph.stall
    if stall is None:
        return ""
    count = len(stall.waiting)
    waiting = f"{count} process{' waits' if count == 1 else 'es wait'} for it"
    waiting = waiting if count else "no process waits for it yet"
    usual = "" if stall.usual_ns is None else f", usually {time_text(stall.usual_ns)}"
    where = f" in {brief(graph.title, IN_LINE)}" if of else ""
    return (
        f"{brief(stall.text, IN_LINE)}{where} has not ended for {time_text(stall.lasted_ns)}"
        f"{usual} (execution {stall.execution}, since {time_text(stall.since_ns)}): {waiting}"
    )


def _graph(graph: GraphSummary) -> list[str]:
    title = brief(graph.title, IN_LINE)
    lines = [f"{title}: {graph.ran} in {time_text(graph.duration_ns)}"]
    if graph.odd:
        lines.append(f"  actors      {odd_text(graph.odd)}")
    if graph.throughput is not None:
        lines.append(f"  throughput  {rate_text(graph.throughput)}")
    if graph.latency_p50_ns is not None and graph.has_latency:
        high = time_text(graph.latency_p99_ns)
        is_p99 = high_word(graph.latencies) == "p99"
        lines.append(
            f"  latency     {time_text(graph.latency_p50_ns)} median, "
            f"{f'{high} p99 (99 of 100 took no longer)' if is_p99 else f'at most {high}'}, "
            "from submission to result"
        )
    lines += _latency(graph.latency)
    lines += [*_shares(graph), *_prediction(graph), *_critical(graph)]
    lines += [*_wires(graph), *_ops(graph), *_slowest(graph), *_hints(graph)]
    return lines


def _latency(latency: Latency | None) -> list[str]:
    """Return the parts of the latency, and its distribution."""
    if latency is None:
        return []
    queued, service = time_text(latency.queued_ns), time_text(latency.service_ns)
    lines = [f"              mean: {queued} queued for a process and {service} in service"]
    if latency.counts:
        most = max(latency.counts)
        bars = "".join(_BARS[-(-each * (len(_BARS) - 1) // most)] for each in latency.counts)
        first, last = time_text(latency.first_ns), time_text(latency.last_ns)
        more = " and more" if latency.has_longer else ""
        lines.append(f"              {first} {bars} {last}{more}")
    return lines


def lane_rows(graph: GraphSummary) -> list[tuple[LaneShares, list[str]]]:
    """Return where the time of processes went, a row for each, and the names of those it is of.

    Of many, those that do as much are one row, which has the figures of the one in their middle.
    How long they wait and for whom says something of the others, so it does not count.
    """
    lanes = graph.shares.lanes
    figures = [
        [
            *(lane.of(kind) / (lane.duration_ns or 1) for kind in _BUSY),
            APART * (lane.label in graph.odd),
        ]
        for lane in lanes
    ]
    rows = []
    for group in alike_rows([lane.label for lane in lanes], figures, SAME_SHARE, _MANY_LANES):
        names = [lanes[at].label for at in group]
        lane = lanes[sorted(group, key=lambda at: lanes[at].busy_ns)[len(group) // 2]]
        if len(group) > 1:
            peers = {next(iter(lanes[at].waiting_for), "") for at in group}
            waiting_for = lane.waiting_for if len(peers) == 1 else {}
            lane = replace(lane, label=name_of_rows(names), waiting_for=waiting_for)
        rows.append((lane, names))
    return rows


def _shares(graph: GraphSummary) -> list[str]:
    rows = []
    lanes = lane_rows(graph)
    for lane, _ in lanes:
        length = lane.duration_ns or 1
        parts = (share_text(lane.of(kind) / length) for kind in TimeKind)
        peers = ", ".join(
            f"{brief(name, IN_LINE)} {share_text(waited / length)}"
            for name, waited in list(lane.waiting_for.items())[:_MAX_PEERS]
            if waited >= _SHOWN * length
        )
        rows.append((lane.label, *parts, f"  {peers}" if peers else ""))
    names = ("", *(kind.name.lower() for kind in TimeKind), "  waits most for")
    table = Table(names, rows, "n" + "f" * len(TimeKind) + "w")
    spans = graph.shares.lanes[0].duration_ns if graph.shares.lanes else graph.duration_ns
    until = "the end" if graph.stall is not None else "the last result"
    from_to = f", in {time_text(spans)} from the first submission to {until}"
    head = f"  Where the time of each process went{from_to if spans < graph.duration_ns else ''}"
    lines = ["", head, table.text("    ")]
    lines += _OF_SEVERAL if len(lanes) < len(graph.shares.lanes) else ()
    lines += [
        "    compute: in your methods; communication: moving bytes; serialization: values to bytes",
        "    and back; waiting: for another process; idle: nothing to do, in the driver your code",
    ]
    shares = graph.shares
    if shares.bubble is not None and shares.exposed is not None:
        lines += [
            f"    means of the actors, from the first submission to {until}:",
            f"    bubble: {share_text(shares.bubble)}, the actor ran none of its methods;",
            f"    communication not hidden: {share_text(shares.exposed)}, it moved bytes meanwhile",
        ]
        lines += _largest_bubble(shares.lanes)
    if shares.device is not None:
        lines.append(
            f"    GPU busy: {share_text(shares.device)} of the time, mean of "
            f"{plural(shares.devices, 'actor')} with kernels"
        )
    if shares.hidden is not None:
        lines.append(
            f"    {share_text(shares.hidden)} of all communication was hidden behind a method of "
            "the same actor"
        )
    return lines


def _largest_bubble(lanes: Sequence[LaneShares]) -> list[str]:
    """Return the line about the actor with the largest bubble, of several."""
    actors = [each for each in lanes if each.bubble is not None]
    if len(actors) < 2:
        return []
    largest = max(actors, key=lambda each: each.bubble or 0.0)
    return [
        f"    the largest bubble: {brief(largest.label, IN_LINE)} {share_text(largest.bubble)}, "
        f"of which it moved bytes {share_text(largest.exposed)}"
    ]


def _prediction(graph: GraphSummary) -> list[str]:
    """What the compiler predicted from the costs of the plan, beside what happened."""
    if not graph.predicted or not graph.period_ns:
        return []
    period_ns = graph.predicted[0].period_ns
    busy = {lane.process: lane.busy_ns / (lane.duration_ns or 1) for lane in graph.shares.lanes}
    labels = {lane.process: lane.label for lane in graph.shares.lanes}
    rows = [
        (labels[each.process], share_text(each.busy_ns / (period_ns or 1)), share_text(share))
        for each in graph.predicted
        if (share := busy.get(each.process)) is not None
    ]
    return [
        "",
        f"  One execution each {time_text(period_ns)} was predicted when it was compiled, measured "
        f"is one each {time_text(graph.period_ns)}",
        Table(("", "busy, predicted", "measured"), rows, "nff").text("    "),
    ]


def _critical(graph: GraphSummary) -> list[str]:
    path = graph.critical
    if path is None or not path.shares:
        return []
    lines = ["", "  What the results waited for (the critical path of all executions)"]
    table = replace(path_table(graph, path, _MAX_STEPS), head=("", "", ""), marked=())
    return [*lines, table.text("    "), *(f"    {stall}" for stall in path.stalls)]


def path_table(graph: GraphSummary, path: SteadyPath, most: int) -> Table:
    """Return what a critical path is made of, and its stalls; the bottleneck is marked.

    Args:
        graph: The summary that it is of.
        path: The path, which is not empty.
        most: How many parts have a row of their own, the largest ones.
    """
    shares = _path_shares(graph, path)
    count = sum(share >= _SHOWN for _, share in shares[:most])
    shown, left = shares[:count], shares[count:]
    rows: list[tuple[str | Cell, ...]] = [
        (Cell(text, "code"), kind, share_text(share)) for (text, kind), share in shown
    ]
    if left:
        rows.append((f"{len(left)} more", "", share_text(sum(share for _, share in left))))
    for stall in path.stalls:
        name = f"beyond its usual time, execution {stall.execution}"
        rows.append((name, stall.kind.name.lower(), share_text(stall.share)))
    limits = {each.text for each in path.shares if (each.process, each.op) in graph.limiting_ops}
    marked = [at for at, ((text, _), _) in enumerate(shown) if text in limits]
    return Table(("what", "kind of time", "share"), rows, "nwf", marked)


def _path_shares(graph: GraphSummary, path: SteadyPath) -> list[tuple[tuple[str, str], float]]:
    """Return the shares of a path by name and kind, the largest first.

    The calls of a method are one, and so are those of many actors that take as much. What the
    verdict names, and what stands out, has a row of its own.
    """
    found: defaultdict[tuple[str, TimeKind], float] = defaultdict(float)
    for each in path.shares:
        found[each.text, each.kind] += each.share
    verdict = graph.verdict
    named = {path.bottleneck.text} if path.bottleneck and not (verdict and verdict.alike) else set()
    places = list(found)
    figures = [
        (found[text, kind], APART * kind, APART * (text in named or _is_odd(graph, text)))
        for text, kind in places
    ]
    rows = []
    for group in alike_rows([text for text, _ in places], figures, SAME_SHARE):
        name = name_of_rows([places[at][0] for at in group])
        kind = places[group[0]][1].name.lower()
        rows.append(((name, kind), sum(found[places[at]] for at in group)))
    return sorted(rows, key=lambda row: -row[1])


def _is_odd(graph: GraphSummary, text: str) -> bool:
    """Return whether an op is one of an actor that stands out, by its name."""
    return text.startswith(tuple(f"{label}{end}" for label in graph.odd for end in ". "))


def _wires(graph: GraphSummary) -> list[str]:
    """What crossed between nodes, and how long it was on the wire."""
    if not graph.wires:
        return []
    rows = []
    for wire in sorted(graph.wires, key=lambda each: -each.median_ns * each.frames)[:_MAX_WIRES]:
        place = f" ({brief(wire.address, IN_LINE)})" if wire.address else ""
        rows.append(
            (
                f"{wire.channel}: {wire.writer} -> {wire.node}{place}",
                f"{wire.frames:,}",
                bytes_text(wire.bytes / wire.frames),
                time_text(wire.median_ns),
                time_text(wire.p99_ns),
                f"\N{PLUS-MINUS SIGN}{time_text(wire.error_ns)}" if wire.error_ns else "one",
            )
        )
    high = high_word(*(wire.frames for wire in graph.wires))
    head = ("", "values", "mean size", "on the wire, median", high, "clocks")
    table = Table(head, rows, "nfffff")
    lines = ["", "  Communication between nodes", table.text("    ")]
    left = len(graph.wires) - _MAX_WIRES
    if left > 0:
        lines.append(f"    and {left} more that took less")
    return [
        *lines,
        "    on the wire: from the end of the write to when the value is published on the other",
        "    node; clocks: how far the clocks of both ends may be apart",
    ]


def _ops(graph: GraphSummary) -> list[str]:
    if not graph.methods:
        return []
    ops = sorted(_alike_ops(graph), key=_cost_ns)
    lines = ["", "  What each op took, without waiting"]
    lines.append(ops_table(graph, ops[:_MAX_OPS]).text("    "))
    if len(ops) > _MAX_OPS:
        lines.append(f"    and {len(ops) - _MAX_OPS} more that took less")
    return [*lines, *_OF_SEVERAL] if len(ops) < len(graph.methods) else lines


def _alike_ops(graph: GraphSummary) -> list[OpTimes]:
    """Return the times of ops, those of many actors that take as long as one: the middle one."""
    ops = graph.methods
    figures = [
        (
            log(max(each.median_ns, 1.0)),
            APART * ((each.process, each.op) in graph.limiting_ops),
            APART * _is_odd(graph, each.text),
        )
        for each in ops
    ]
    found = []
    for group in alike_rows([each.text for each in ops], figures, SAME_TIME):
        middle = ops[sorted(group, key=lambda at: ops[at].median_ns)[len(group) // 2]]
        if len(group) > 1:
            middle = replace(middle, text=name_of_rows([ops[at].text for at in group]))
        found.append(middle)
    return found


def ops_table(graph: GraphSummary, ops: Sequence[OpTimes]) -> Table:
    """Return the times of ops, those that took longest first; the bottleneck is marked."""
    ops = sorted(ops, key=_cost_ns)
    high = high_word(*(each.count for each in ops))
    head = ("op", "count", "median", high, "total", "waited", "mean size", "moved at")
    rows = [
        (
            Cell(each.text, "code"),
            count_text(each.count),
            time_text(each.median_ns),
            time_text(each.p99_ns),
            time_text(each.total_ns),
            time_text(each.waited_ns),
            bytes_text(each.bytes / each.count) if each.bytes else "",
            speed_text(each.gb_per_s)
            if each.bytes >= _SIZE_WITH_RATE * each.count and each.gb_per_s is not None
            else "",
        )
        for each in ops
    ]
    marked = [at for at, each in enumerate(ops) if (each.process, each.op) in graph.limiting_ops]
    return Table(head, rows, "nfffffff", marked)


def _cost_ns(op: OpTimes) -> float:
    """What ops are sorted by."""
    return -op.total_ns


def _slowest(graph: GraphSummary) -> list[str]:
    if len(graph.slowest) < 2:
        return []
    rows = [
        (
            f"execution {slow.execution}",
            f"{time_text(slow.latency_ns)}{'' if slow.is_over else ' so far'}",
            _why(slow),
        )
        for slow in graph.slowest
    ]
    return ["", "  The slowest executions", Table(("", "", ""), rows, "nfw").text("    ")]


def _why(slow: SlowExecution) -> str:
    if slow.text is None:
        return "no op took longer than usual: it waited for its turn"
    of = "" if slow.of_execution == slow.execution else f" in execution {slow.of_execution}"
    did = "took" if slow.is_over else "has taken"
    took = f"{did} {time_text(slow.took_ns)}"
    took += "" if slow.usual_ns is None else f", usually {time_text(slow.usual_ns)}"
    return f"{brief(slow.text, IN_LINE)}{of} {took}"


def _hints(graph: GraphSummary) -> list[str]:
    lines = []
    if not graph.executions and graph.stall is None:
        lines.append("hint: nothing ran during the recording: call execute() while it lasts")
    elif graph.latency_p50_ns is None and graph.stall is None:
        lines.append(
            "hint: no execution is in the trace from its submission to its completion: record "
            "for longer"
        )
    if graph.lost:
        lines.append(
            f"hint: {graph.lost:,} event{' was' if graph.lost == 1 else 's were'} lost, so some "
            "figures are based on fewer executions: record for a shorter time"
        )
    if graph.critical is not None and not graph.critical.is_whole:
        lines.append("hint: the critical path is incomplete: some of its events are missing")
    if graph.clock_error_ns:
        lines.append(
            f"clocks: times of different processes may be off by {time_text(graph.clock_error_ns)}"
        )
    return ["", *(f"  {line}" for line in lines)] if lines else []
