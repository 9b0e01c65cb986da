# SPDX-License-Identifier: Apache-2.0
"""The verdict on traces whose answer is known by hand: what limits, what it gives, what to do."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest

from rcg.compiler.simulate import Costs, simulate
from rcg.ir.channels import LOCAL, TENSOR
from rcg.ir.costs import CALL, MOVE, Cost
from rcg.ir.ops import Call, Collective, Read
from rcg.ir.plan import Plan
from rcg.trace.analysis.advice import Advice, Advisor, best_cuts
from rcg.trace.analysis.latency import latency_of
from rcg.trace.analysis.spread import LEAST, half_width, spread_of
from rcg.trace.analysis.summary import ops_table
from rcg.trace.analysis.verdict import Form
from rcg.trace.analysis.what_if import from_simulation
from rcg.trace.measured import compared, summarize
from rcg.trace.model import NO_PEER, SPAN_BASE
from rcg.views.data.figures import topology_figures_of
from tests.unit.records_by_hand import one_by_one
from tests.unit.test_costs import chain, compiled
from tests.unit.test_trace_what_if import COSTS, pipeline
from tests.unit.trace_by_hand import by_hand
from tests.unit.traces import ALLREDUCE, changed, event, events, measure, trace
from tests.unit.views_plans import scatter_gather
from tests.unit.views_traces import simulated as simulated_plan


def summary_of_graph(graph, end=None):
    end = max(int(lane.events["end_ns"].max()) for lane in graph.lanes) if end is None else end
    (found,) = summarize(trace(graph, end=end)).graphs
    return found


def verdict(graph):
    return summary_of_graph(graph).verdict


# --- the sentence --------------------------------------------------------------------------------


def test_by_hand_the_slowest_stage_limits_and_twice_as_fast_gives_what_it_gives():
    """a1 takes 22 of each 22 us; with a method of 10 instead of 20, a0 and a1 take 12: 22 / 12."""
    found = verdict(pipeline())
    assert found.text == "a1 (Stage).fwd"
    assert found.share == pytest.approx(20 / 22)
    assert found.gain == pytest.approx(22 / 12)
    assert found.spread == 0 and found.error_percent == 0
    assert str(found) == (
        "a1 (Stage).fwd limits this: 91 % of the critical path; twice as fast there gives 1.83x"
    )


def test_the_reads_of_a_fan_in_count_as_one():
    """Of each 63 us a5 reads 5 times 8, and calls for 20; with reads of 4 it takes 43."""
    plan = scatter_gather(5)
    reads = {channel.id for channel in plan.channels if "a5" in channel.readers}

    def cost(op):
        if isinstance(op, Call):
            return 20_000
        return 8_000 if isinstance(op, Read) and op.channel in reads else 1_000

    (graph,) = simulated_plan(plan, 24, op_cost=cost).graphs
    summary = summary_of_graph(graph)
    found = summary.verdict
    assert found.text == "Reducer#6 read of 5 channels"
    assert found.share == pytest.approx(40 / 63)
    assert found.gain == pytest.approx(63 / 43)
    assert summary.limiting_ops == {("a5", op) for op in range(5)}
    assert ops_table(summary, summary.ops).html().count("<tr class=rcg-marked>") == 5


def test_the_ranks_of_a_collective_count_as_one():
    """Of each 83 us the allreduce takes 60; with 30 it is 53. Only a0 is on the path."""

    def cost(op):
        if isinstance(op, Collective):
            return 60_000
        return 20_000 if isinstance(op, Call) else 1_000

    (graph,) = simulated_plan(Plan.from_text(ALLREDUCE), 24, op_cost=cost).graphs
    summary = summary_of_graph(graph)
    found = summary.verdict
    assert found.text == "allreduce g0"
    assert found.share == pytest.approx(60 / 83)
    assert found.gain == pytest.approx(83 / 53)
    # The topology says the same of its box.
    shares = topology_figures_of(graph, summary).on_path.values()
    assert max(shares) == pytest.approx(found.share)


def one_after_the_other(first, second):
    """A trace of two halves, each of 64 executions."""
    shift = max(int(lane.events["end_ns"].max()) for lane in first.lanes)
    lanes = []
    for lane, then in zip(first.lanes, second.lanes, strict=True):
        later = then.events.copy()
        later["start_ns"] += shift
        later["end_ns"] += shift
        later["execution"] += 64
        lanes.append(replace(lane, events=np.concatenate((lane.events, later))))
    return replace(first, lanes=tuple(lanes))


def test_the_spread_is_that_of_parts_of_the_trace():
    """a1 takes 20 us in one half of the trace and 30 in the other: 22/12 and 32/17."""
    graph = one_after_the_other(pipeline(), pipeline({("a1", 1): 30_000}))
    found = measure(graph).replays.what_if({"a1.fwd": 0.5})
    assert min(found.batch_speedups) == pytest.approx(22 / 12, rel=0.01)
    assert max(found.batch_speedups) == pytest.approx(32 / 17, rel=0.01)
    assert found.spread >= half_width(found.batch_speedups) > 0
    assert "\N{PLUS-MINUS SIGN}0.0" in found.answer and not found.is_noise


def test_stages_that_take_the_same_are_balanced_and_none_is_marked():
    graph = pipeline({("a0", 1): 20_000})
    summary = summary_of_graph(graph)
    found = summary.verdict
    assert found.form is Form.BALANCED and found.gain == pytest.approx(1.0)
    assert (found.elsewhere.text, found.elsewhere.actors) == ("Stage.fwd", 2)
    assert found.elsewhere.gain == pytest.approx(22 / 12)
    assert str(found) == (
        "balanced: a0 (Stage) and a1 (Stage) are equally busy, within 0 % (noise 0 %); Stage.fwd "
        "twice as fast on all 2 gives 1.83x"
    )
    assert summary.limiting_ops == frozenset() and not topology_figures_of(graph, summary).on_path


def test_a_stage_that_is_slower_than_its_noise_is_not_balanced():
    """a1 takes 22 us; halving its method gives 22 / 21 beside an a0 of 21 us, and 22 / 20."""
    found = verdict(pipeline({("a0", 1): 19_000}))
    assert found.form is Form.BALANCED and found.alike.within == pytest.approx(1 / 22)
    assert verdict(pipeline({("a0", 1): 18_000})).form is Form.LIMITS


def test_a_gain_is_never_more_than_the_share_allows():
    """A share ``s`` that takes half the time leaves ``1 - s / 2``."""
    for changes in ({}, {("a1", 0): 9_000}, {("a0", 1): 15_000}, {("driver", 1): 15_000}):
        found = verdict(pipeline(changes))
        assert 1 <= found.gain <= 1 / (1 - found.share / 2)


def test_one_stall_that_takes_more_than_anything_else_dominates():
    """Eleven executions of 46 ns, 30 of them in a1; once a0 takes 490 more."""
    found = summary_of_graph(one_by_one([10] * 5 + [500] + [10] * 6)).verdict
    assert found.form is Form.STALLED and not found.advice
    assert str(found) == (
        "one stall dominated: a0 (Stage).fwd took 500 ns in execution 5, usually 10 ns; 49 % of "
        "the critical path"
    )
    # A shorter one is only said: 60 of 566 are fewer than the 330 of a1.
    summary = summary_of_graph(one_by_one([10] * 5 + [70] + [10] * 6))
    assert summary.verdict.form is Form.LIMITS and summary.verdict.share == 330 / 566
    assert "once, in execution 5: a0 (Stage).fwd 70 ns, usually 10 ns" in str(summary)


def test_the_users_code_may_limit():
    """One in flight is fetched and 60 us of the user's code run, then the next."""
    found = verdict(pipeline(window=1, thinking=60_000))
    assert found.text == "driver: your code between its ops"
    # 60 + 37 for each execution; then 30 + 37.
    assert found.gain == pytest.approx(97 / 67)


@pytest.mark.parametrize("executions", [1, LEAST - 1])
def test_of_too_few_executions_nothing_is_said(executions):
    graph = pipeline(executions=executions, window=1)
    summary = summary_of_graph(graph)
    assert summary.throughput_spread is None
    complete = "1 execution is" if executions == 1 else f"{executions} executions are"
    assert str(summary.verdict) == (
        f"not enough to say: {complete} complete; run {LEAST - executions} more"
    )
    found = measure(graph).replays.what_if({"a1.fwd": 0.5})
    assert found.spread is None and "too few executions" in found.answer
    assert verdict(pipeline(executions=LEAST, window=1)).form is Form.LIMITS


def test_a_replay_that_is_not_like_the_trace_predicts_nothing():
    """One actor takes 32 us, then the other: 32 each, where mean times give about 17."""
    slow, fast = 30_000, 500
    found = verdict(
        one_after_the_other(
            pipeline({("a0", 1): slow, ("a1", 1): fast}),
            pipeline({("a0", 1): fast, ("a1", 1): slow}),
        )
    )
    assert abs(found.error_percent) > 25 and found.gain is None and not found.advice
    assert "no prediction, a replay of this trace is" in str(found)


# --- advice --------------------------------------------------------------------------------------


def test_more_in_flight_is_advised_where_that_gives_more():
    """One in flight takes 37 us, two are as fast as a1, which takes 22; one more is for delays."""
    (advice,) = verdict(replace(pipeline(window=1), limit=1)).advice
    assert advice.gain == pytest.approx(37 / 22)
    assert advice.text == (
        "graph = dag.experimental_compile(max_inflight_executions=3); "
        "graph.map(batches, in_flight=3)  # 3 in flight instead of 1: 1.68x"
    )
    (advice,) = verdict(replace(pipeline(window=1), limit=10)).advice
    assert advice.text == "graph.map(batches, in_flight=3)  # 3 in flight instead of 1: 1.68x"


def test_time_until_a_result_that_is_awaited_is_not_the_drivers_own():
    """``await`` records no wait: the driver takes each result as soon as it is there."""
    graph = pipeline(window=1)
    reads = [isinstance(op, Read) for op in graph.plan.program("driver").ops]
    events = graph.driver.events.copy()
    is_read = np.array(reads)[events["op"]]
    events["start_ns"][is_read] += events["waited_ns"][is_read]
    events["waited_ns"][is_read] = 0
    events["peer"][is_read] = NO_PEER
    found = summary_of_graph(changed(graph, "driver", events=events))
    assert found.critical.is_user_code  # the path does not know
    assert found.verdict is None


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


def test_what_is_advised_is_what_really_happens():
    for window in (1, 10):
        before = pipeline(window=window)
        after = pipeline(window=3)
        (advice,) = verdict(before).advice
        (found,) = compared(trace(before, end=1 << 30), trace(after, end=1 << 30)).graphs
        then = found.throughput.ratio if window == 1 else 1 / found.latency.ratio
        assert advice.gain == pytest.approx(then, rel=0.01)


def test_three_in_flight_need_no_advice():
    assert verdict(pipeline(window=3)).advice == ()


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

MS = 1_000_000


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


@pytest.mark.parametrize(
    ("move_ms", "cores", "gain"),
    [
        (2, 0, 1.5),  # a1 takes 6 ms, and 4 while tensors move beside its method
        (2, 8, 1.5),
        (2, 1, None),  # 12 ms of work for one processor, either way
        (0.1, 0, None),
    ],
)
def test_overlap_is_advised_where_it_is_predicted_to_pay(move_ms, cores, gain):
    record = replace(trace(two_stages(overlap=False, move_ms=move_ms), end=1 << 40))
    record = replace(record, info={"cores": cores})
    (found,) = summarize(record).graphs
    gains = [each.gain for each in found.verdict.advice if "overlap=True" in each.text]
    assert gains == ([] if gain is None else [pytest.approx(gain, rel=0.01)])


@pytest.mark.parametrize(
    ("move_ms", "handing_ms", "gain"),
    [
        # a1 takes a value from its lane and calls: 6 ms. Without lanes it receives: 4 ms and a bit.
        (0.2, 2.0, 6 / 4.2),
        (2.0, 0.1, None),  # without lanes, a1 would take 6 ms instead of 4.1
        (2.0, 2.2, None),  # 6 ms instead of 6.2: too little to speak of
    ],
)
def test_overlap_is_advised_against_where_it_costs_more_than_it_hides(move_ms, handing_ms, gain):
    graph = two_stages(overlap=True, move_ms=move_ms, handing_ms=handing_ms)
    (found,) = summarize(trace(graph, end=1 << 40)).graphs
    assert found.verdict is not None
    advised = [each for each in found.verdict.advice if "overlap" in each.text]
    assert all("overlap=False" in each.text for each in advised)
    gains = [each.gain for each in advised]
    assert gains == ([] if gain is None else [pytest.approx(gain, rel=0.02)])


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


def test_a_cut_is_advised_that_evens_the_stages_out():
    """a0 has layers of 5 and 5 us, a1 of 5, 5 and 10: 10 and 20; after the third it is 15 and 15.

    With reads and writes a1 takes 22 of each 22 us, and then 17.
    """
    layers = {"a0": (0.5, 0.5), "a1": (0.25, 0.25, 0.5)}
    (advice,) = [
        each for each in verdict(with_layers(pipeline(), layers)).advice if "cut" in each.text
    ]
    assert advice.text == (
        "parts = layers[:3], layers[3:]  # cut after layer 3 instead of 2: 1.29x"
    )
    assert advice.gain == pytest.approx(22 / 17)


@pytest.mark.parametrize(
    ("a0", "a1", "name"),
    [
        ((1.0,), (1.0,), "layer"),  # they cannot be cut better
        ((0.5, 0.5), (0.2, 0.2, 0.2), "layer"),  # spans of 60 % of the call are not its layers
        ((), (0.25, 0.25, 0.5), "layer"),
        ((0.5, 0.5), (0.25, 0.25, 0.5), "aten::linear"),  # ops of torch are none
    ],
)
def test_without_layers_that_can_be_moved_no_cut_is_advised(a0, a1, name):
    graph = with_layers(pipeline(), {"a0": a0, "a1": a1}, names=(name,))
    assert not any("cut" in each.text for each in verdict(graph).advice)


@pytest.mark.parametrize("times", [(1, 1, 1), (5, 5, 5, 10), (9, 1, 1, 1), (0.1, 0.3, 0.1, 0.2)])
@pytest.mark.parametrize("parts", [2, 3])
def test_no_other_cuts_are_better(times, parts):
    def slowest(cuts):
        return max(sum(times[a:b]) for a, b in pairwise([0, *cuts, len(times)]))

    found = best_cuts(times, parts)
    assert len(found) == parts - 1 and sorted(set(found)) == found
    every = combinations(range(1, len(times)), parts - 1)
    assert slowest(found) == pytest.approx(min(map(slowest, every)))


SLOWER = {place: cost * 1_000 for place, cost in COSTS.items()}  # in ms instead of us
BUSY_NS = 64 * 22 * MS  # of a1


@pytest.mark.parametrize(
    ("thread", "process", "is_advised"),
    [
        (0.5, 1.0, True),  # half of its time it does not run, and others do
        (0.5, 0.52, False),  # it sleeps, or waits for a device
        (1.0, 2.0, False),  # others run beside it
    ],
)
def test_a_method_that_waits_for_other_threads_is_advised_against_them(thread, process, is_advised):
    graph = pipeline(SLOWER, window=3)
    used = round(BUSY_NS * thread), round(BUSY_NS * process)
    advice = [
        each
        for each in verdict(changed(graph, "a1", processor_ns=used)).advice
        if "GIL" in each.text
    ]
    assert bool(advice) is is_advised
    if advice:
        # Whether they are its own workers cannot be told, so there is no gain.
        assert advice[0].gain == 1.0
        assert advice[0].effect == (
            "a1 (Stage).fwd is on no processor 50 % of its time while other threads of its process "
            "are: its own workers, or threads that hold the GIL, which could run in another process"
        )


def test_advice_that_fails_says_why_and_leaves_the_figures(monkeypatch):
    def failing(self):
        raise ValueError("no such channel\nand more")

    monkeypatch.setattr(Advisor, "advice", failing)
    summary = summary_of_graph(pipeline())
    assert summary.throughput
    assert str(summary.verdict).endswith(
        "of the critical path; no advice: ValueError: no such channel"
    )
