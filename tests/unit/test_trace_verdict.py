# SPDX-License-Identifier: Apache-2.0
"""The verdict on traces whose answer is known by hand: what limits, what it gives, what to do."""

from __future__ import annotations

import ast
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest

from rcg.compiler.simulate import Costs, simulate
from rcg.ir.channels import LOCAL, TENSOR
from rcg.ir.costs import CALL, MOVE, Cost
from rcg.ir.ops import Call, Collective, Read, Write
from rcg.ir.plan import Plan
from rcg.trace.analysis.advice import Advice, Advisor, best_cuts
from rcg.trace.analysis.latency import latency_of
from rcg.trace.analysis.spread import LEAST, half_width, spread_of
from rcg.trace.analysis.summary import headline
from rcg.trace.analysis.what_if import from_simulation
from rcg.trace.measured import compared, measured_of, summarize
from rcg.trace.model import NO_PEER, SPAN_BASE
from rcg.views.data.figures import topology_figures_of
from tests.unit.approved import check_approved
from tests.unit.test_costs import chain, compiled
from tests.unit.test_measured_by_hand import figure
from tests.unit.test_trace_placement import recorded
from tests.unit.test_trace_what_if import COSTS, pipeline
from tests.unit.trace_by_hand import by_hand, one_by_one
from tests.unit.traces import ALLREDUCE, changed, event, events, measure, one_after_the_other, trace
from tests.unit.views_plans import scatter_gather
from tests.unit.views_traces import pipeline as stages_of
from tests.unit.views_traces import simulated as simulated_plan


def measured_of_graph(graph, end=None):
    end = max(int(lane.events["end_ns"].max()) for lane in graph.lanes) if end is None else end
    (found,) = measured_of(trace(graph, end=end))
    return found


def summary_of_graph(graph, end=None):
    return measured_of_graph(graph, end).summary


def verdict(graph):
    return summary_of_graph(graph).verdict


# --- graphs whose verdict is known by hand -------------------------------------------------------

MS = 1_000_000


def fan_in():
    """Of each 63 us a5 reads 5 times 8, and calls for 20."""
    plan = scatter_gather(5)
    reads = {channel.id for channel in plan.channels if "a5" in channel.readers}

    def cost(op):
        if isinstance(op, Call):
            return 20_000
        return 8_000 if isinstance(op, Read) and op.channel in reads else 1_000

    return simulated_plan(plan, 24, op_cost=cost).graphs[0]


def allreduce():
    """Of each 83 us the allreduce takes 60."""

    def cost(op):
        if isinstance(op, Collective):
            return 60_000
        return 20_000 if isinstance(op, Call) else 1_000

    return simulated_plan(Plan.from_text(ALLREDUCE), 24, op_cost=cost).graphs[0]


def starved():
    """Twelve stages of 12 us, two executions in flight."""
    plan = stages_of(12)
    costs = {
        (program.process, at): 10_000 if isinstance(op, Call) else 1_000
        for program in plan.programs
        for at, op in enumerate(program.ops)
        if isinstance(op, Call | Read | Write)
    }
    return from_simulation(simulate(plan, Costs(costs, {}), 40, window=2), limit=10)


def awaited():
    """``await`` records no wait: the driver takes each result as soon as it is there."""
    graph = pipeline(window=1)
    is_read = np.array([isinstance(op, Read) for op in graph.plan.program("driver").ops])
    rows = graph.driver.events.copy()
    of_read = is_read[rows["op"]]
    rows["start_ns"][of_read] += rows["waited_ns"][of_read]
    rows["waited_ns"][of_read] = 0
    rows["peer"][of_read] = NO_PEER
    return changed(graph, "driver", events=rows)


def two_stages(*, overlap, call_ms=4, move_ms=2, handing_ms=0):
    """The plan and a run of two actors; the second receives tensors and calls a method.

    What the two take from their lanes takes ``handing_ms``.
    """
    costs = [Cost(CALL, node, call_ms * MS) for node in (1, 2)]
    costs.append(Cost(MOVE, 1, round(move_ms * MS)))
    plan = compiled(chain(0, 1), costs, overlap=overlap).plan
    moved = {each.id for each in plan.channels if each.kind == TENSOR}
    local = {each.id for each in plan.channels if each.kind == LOCAL}
    costs = {
        (each.process, at): float(
            handing_ms * MS
            if isinstance(op, Read) and op.channel in local and each.process in ("a0", "a1")
            else call_ms * MS
            if isinstance(op, Call)
            else move_ms * MS
            if isinstance(op, Read) and op.channel in moved
            else 0.0
        )
        for each in plan.programs
        for at, op in enumerate(each.ops)
    }
    run = simulate(plan, Costs(costs, {}), 40, window=5)
    graph = from_simulation(run, graph_id="5f1c" * 8, limit=5)
    driver = replace(graph.driver, events=graph.driver.events[graph.driver.events["op"] != 0])
    plan = replace(plan, costs=(), predicted=())
    return replace(graph, plan=plan, lanes=(driver, *graph.lanes[1:]))


def with_layers(graph, layers, *, names=("layer",)):
    """Put spans into the calls of each actor, one after the other, of these shares of the call."""
    lanes = [graph.driver]
    for lane in graph.lanes[1:]:
        rows = []
        for row in lane.events.tolist():
            rows.append(row)
            start, end, *_, execution, _, op, _ = row
            if op == 1:
                at = start
                for share in layers[lane.process]:
                    until = at + round((end - start) * share)
                    rows.append(event(SPAN_BASE, execution, at, until))
                    at = until
        lanes.append(replace(lane, events=events(rows), spans=names))
    return replace(graph, lanes=tuple(lanes))


def off_processor(thread, process):
    """a1's method and the other threads of its process are so much of its time on a processor."""
    slower = {place: cost * 1_000 for place, cost in COSTS.items()}  # in ms instead of us
    busy = 64 * 22 * MS
    used = round(busy * thread), round(busy * process)
    return changed(pipeline(slower, window=3), "a1", processor_ns=used)


SLOW, FAST = 30_000, 500
VERDICTS = {
    # a1 takes 22 of each 22 us; with a method of 10 instead of 20, a0 and a1 take 12: 22 / 12.
    "limits": pipeline(),
    # With reads of 4 a5 takes 43 instead of 63; the five are one.
    "fan-in": fan_in(),
    # With 30 it is 53 instead of 83. Only a0 is on the path; the topology says the same of its box.
    "allreduce": allreduce(),
    # Twice as fast on both gives 22 / 12, on one of them nothing.
    "balanced": pipeline({("a0", 1): 20_000}),
    # Halving a1's method gives 22 / 21 beside an a0 of 21 us, and 22 / 20.
    "balanced-nearly": pipeline({("a0", 1): 19_000}),
    "balanced-no-more": pipeline({("a0", 1): 18_000}),
    # Eleven executions of 46 ns, 30 of them in a1; once a0 takes 490 more, or 60, which is less.
    "stalled": one_by_one([10] * 5 + [500] + [10] * 6),
    "stalled-shortly": one_by_one([10] * 5 + [70] + [10] * 6),
    # One in flight is fetched and 60 us of the user's code run: 60 + 37, then 30 + 37.
    "user": pipeline(window=1, thinking=60_000),
    # The path does not know that it is awaited: there is no verdict.
    "user-awaits": awaited(),
    "one-execution": pipeline(executions=1, window=1),
    "too-few": pipeline(executions=LEAST - 1, window=1),
    "enough": pipeline(executions=LEAST, window=1),
    # One actor takes 32 us, then the other: 32 each, where mean times give about 17.
    "not-like-its-replay": one_after_the_other(
        pipeline({("a0", 1): SLOW, ("a1", 1): FAST}), pipeline({("a0", 1): FAST, ("a1", 1): SLOW})
    ),
    # --- more in flight: one takes 37 us, two are as fast as a1, which takes 22; one for delays
    "in-flight": replace(pipeline(window=1), limit=1),
    "in-flight-allowed": replace(pipeline(window=1), limit=10),
    "in-flight-enough": pipeline(window=3),
    # Each of 12 takes 12 of the 73 us between two results: half as long in one gives 1.04x.
    "in-flight-starves": starved(),
    # --- overlap: a1 takes 6 ms, and 4 while tensors move beside its method
    "overlap": two_stages(overlap=False),
    "overlap-little": two_stages(overlap=False, move_ms=0.1),
    # a1 takes a value from its lane and calls: 6 ms. Without lanes it receives: 4 ms and a bit.
    "overlap-costs": two_stages(overlap=True, move_ms=0.2, handing_ms=2.0),
    # Without lanes a1 would take 6 ms instead of 4.1, or 6 instead of 6.2: too little to speak of.
    "overlap-pays": two_stages(overlap=True, move_ms=2.0, handing_ms=0.1),
    "overlap-costs-little": two_stages(overlap=True, move_ms=2.0, handing_ms=2.2),
    # --- layers: a0 has 5 and 5 us, a1 5, 5 and 10; after the third it is 15 and 15, 22 / 17
    "cut": with_layers(pipeline(), {"a0": (0.5, 0.5), "a1": (0.25, 0.25, 0.5)}),
    "cut-no-better": with_layers(pipeline(), {"a0": (1.0,), "a1": (1.0,)}),
    # Spans of 60 % of the call are not its layers, and ops of torch are none.
    "cut-no-layers": with_layers(pipeline(), {"a0": (0.5, 0.5), "a1": (0.2, 0.2, 0.2)}),
    "cut-one-has": with_layers(pipeline(), {"a0": (), "a1": (0.25, 0.25, 0.5)}),
    "cut-of-torch": with_layers(
        pipeline(), {"a0": (0.5, 0.5), "a1": (0.25, 0.25, 0.5)}, names=("aten::linear",)
    ),
    # --- threads: whether they are a1's own workers cannot be told, so there is no gain
    "threads": off_processor(0.5, 1.0),  # half of its time it does not run, and others do
    "threads-sleep": off_processor(0.5, 0.52),  # or it waits for a device
    "threads-beside": off_processor(1.0, 2.0),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_a_verdict_is_as_approved(name):
    graph = VERDICTS[name]
    summary = summary_of_graph(graph)
    found = summary.verdict
    lines = [str(found)]
    if found is not None:
        gain, spread, error = map(figure, (found.gain, found.spread, found.error_percent))
        lines.append(f"{found.form.name.lower()}: {found.text}, {found.share:.6g} of the path")
        lines.append(f"gain {gain}, {spread} off; the replay {error} %; {found.known} executions")
        lines += [f"{each.gain:.6g}: {each.text}" for each in found.advice]
    tinted = topology_figures_of(measured_of_graph(graph)).on_path.values()
    lines.append(f"marked: {sorted(summary.limiting_ops)}; tinted: {[*map(figure, tinted)]}")
    check_approved(f"verdicts/{name}", "\n".join(lines))


@pytest.mark.parametrize("name", VERDICTS)
def test_the_gain_of_the_headline_is_that_of_the_question(name):
    """It is the replay's, and what the share allows is within its spread."""
    graph = VERDICTS[name]
    found = verdict(graph)
    if found is None or found.gain is None:
        return
    assert found.gain <= 1 / (1 - found.share / 2) + found.spread + 0.005
    if found.text.endswith((".fwd", ".f1")):
        asked = measured_of_graph(graph).replays.what_if({found.text: 0.5})
        assert found.gain == asked.speedup


@pytest.mark.parametrize(("cores", "is_advised"), [(0, True), (8, True), (1, False)])
def test_overlap_needs_a_processor(cores, is_advised):
    """12 ms of work for one processor, either way."""
    record = replace(trace(two_stages(overlap=False), end=1 << 40), info={"cores": cores})
    (found,) = summarize(record).graphs
    assert any("overlap=True" in each.text for each in found.verdict.advice) == is_advised


def test_the_spread_is_that_of_parts_of_the_trace():
    """a1 takes 20 us in one half of the trace and 30 in the other: 22/12 and 32/17."""
    graph = one_after_the_other(pipeline(), pipeline({("a1", 1): 30_000}))
    found = measure(graph).replays.what_if({"a1.fwd": 0.5})
    assert min(found.batch_speedups) == pytest.approx(22 / 12, rel=0.01)
    assert max(found.batch_speedups) == pytest.approx(32 / 17, rel=0.01)
    assert found.spread >= half_width(found.batch_speedups) > 0
    assert "\N{PLUS-MINUS SIGN}0.0" in found.answer and not found.is_noise


# --- advice --------------------------------------------------------------------------------------


def test_the_largest_gains_of_throughput_come_first_then_latency(monkeypatch):
    found = [(3.0, True), (1.2, False), (1.1, False), (1.5, False), (9.0, True)]
    monkeypatch.setattr(
        Advisor,
        "advice",
        lambda _: [Advice("", f"{gain}", gain, is_latency) for gain, is_latency in found],
    )
    assert [each.effect for each in verdict(pipeline()).advice] == ["1.5", "1.2", "1.1"]
    found[1:3] = []
    assert [each.effect for each in verdict(pipeline()).advice] == ["1.5", "9.0", "3.0"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: pipeline(window=10),
        lambda: replace(pipeline(window=1), limit=1),
        lambda: two_stages(overlap=False),
        lambda: with_layers(pipeline(), {"a0": (0.5, 0.5), "a1": (0.25, 0.25, 0.5)}),
        lambda: off_processor(0.5, 1.0),
        lambda: recorded(["a1", "a2"]),
    ],
)
def test_advice_can_be_copied_as_it_is_printed(make):
    """The code is one line that does something, and what it gives is a comment at any width."""
    (graph,) = summarize(trace(make(), end=1 << 40)).graphs
    printed = headline(graph)
    starts = [at for at, line in enumerate(printed) if line.startswith("  try: ")]
    assert len(starts) == len(graph.verdict.advice) > 0
    for each, begin, end in zip(
        graph.verdict.advice, starts, [*starts[1:], len(printed)], strict=True
    ):
        code, *rest = [line[len("  try: ") :] for line in printed[begin:end]]
        assert code.partition("  # ")[0] == each.code
        assert all(line.startswith("# ") and len(line) <= 93 for line in rest)
        *_, last = ast.parse("\n".join([code, *rest])).body
        is_shown = isinstance(last, ast.Expr) and ast.unparse(last).startswith("print(")
        assert is_shown or isinstance(last, ast.Assign)


def test_what_is_advised_is_what_really_happens():
    for window in (1, 10):
        before = pipeline(window=window)
        after = pipeline(window=3)
        (advice,) = verdict(before).advice
        (found,) = compared(trace(before, end=1 << 30), trace(after, end=1 << 30)).graphs
        then = found.throughput.ratio if window == 1 else 1 / found.latency.ratio
        assert advice.gain == pytest.approx(then, rel=0.01)


# --- latency -------------------------------------------------------------------------------------


def test_executions_that_took_longer_than_clocks_count_have_no_latency():
    graph = by_hand()
    found = measure(graph)
    executions = found.executions
    long = replace(executions, submitted_ns=executions.submitted_ns - (1 << 62))
    assert latency_of(found.table, found.parts, long) is None


# --- what is alike is one ------------------------------------------------------------------------


def test_the_spread_of_a_median_is_zero_of_equal_values_and_unknown_of_few():
    assert spread_of(np.full(LEAST, 7)) == 0
    assert spread_of(np.arange(LEAST - 1)) is None
    assert spread_of(np.arange(100)) > 10


# --- overlap, layers, and Python's lock ----------------------------------------------------------


@pytest.mark.parametrize("times", [(1, 1, 1), (5, 5, 5, 10), (9, 1, 1, 1), (0.1, 0.3, 0.1, 0.2)])
@pytest.mark.parametrize("parts", [2, 3])
def test_no_other_cuts_are_better(times, parts):
    def slowest(cuts):
        return max(sum(times[a:b]) for a, b in pairwise([0, *cuts, len(times)]))

    found = best_cuts(times, parts)
    assert len(found) == parts - 1 and sorted(set(found)) == found
    every = combinations(range(1, len(times)), parts - 1)
    assert slowest(found) == pytest.approx(min(map(slowest, every)))


def test_advice_that_fails_says_why_and_leaves_the_figures(monkeypatch):
    def failing(self):
        raise ValueError("no such channel\nand more")

    monkeypatch.setattr(Advisor, "advice", failing)
    summary = summary_of_graph(pipeline())
    assert summary.throughput
    assert str(summary.verdict).endswith(
        "of the critical path; no advice: ValueError: no such channel"
    )
