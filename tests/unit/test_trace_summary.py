# SPDX-License-Identifier: Apache-2.0
"""Summaries and comparisons: what they hold and how they read."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from rcg.trace.analysis.comparison import Change, GraphComparison
from rcg.trace.measured import compared, summarize
from rcg.trace.model import Clock
from tests.unit.test_trace_critical import one_by_one
from tests.unit.trace_by_hand import A1_ROWS, END, by_hand
from tests.unit.traces import PIPELINE, changed, event, graph_trace, measure, trace
from tests.unit.views_traces import pipeline
from tests.unit.views_traces import simulated as simulated_plan


def test_a_summary_holds_the_figures_worked_out_by_hand():
    summary = summarize(trace(by_hand(), end=END))
    (graph,) = summary.graphs
    assert (summary.duration_ns, summary.events, summary.lost) == (80, 16, 0)
    assert (graph.executions, graph.complete, graph.duration_ns) == (2, 2, 80)
    assert (graph.throughput, graph.latency_p50_ns) == (1e9 / 17, 43.5)
    assert graph.latency_p99_ns == pytest.approx(36 + 0.99 * 15)
    assert graph.shares.lanes[1].compute_ns == 20
    assert graph.critical.bottleneck.text == "a1 (Stage).fwd"
    assert [slow.execution for slow in graph.slowest] == [1, 0]


def test_ops_are_counted_without_their_waiting():
    rows = {
        "a0": [
            # 40 ns, of which 20 are waiting and 5 coding: 15 for 3000 bytes.
            event(0, 0, 0, 40, waited=20, coded=5, bytes=3_000),
            event(1, 0, 40, 50),
            event(0, 1, 50, 60, bytes=3_000),
            event(1, 1, 60, 90, waited=10),
            event(1, 2, 90, 190),
        ]
    }
    read, call = measure(graph_trace(rows)).ops
    assert (read.text, read.kind, read.count) == ("a0 (Stage) read c0", "read", 2)
    assert (read.median_ns, read.total_ns, read.waited_ns) == (15, 30, 20)
    assert (read.bytes, read.gb_per_s) == (6_000, None)  # it looks at them where they lie
    assert (call.median_ns, call.total_ns, call.waited_ns) == (20, 130, 10)
    assert call.p99_ns == pytest.approx(np.percentile([10, 20, 100], 99))
    assert (call.bytes, call.gb_per_s) == (0, None)


def test_the_slowest_execution_names_the_op_that_took_longer_than_usual():
    graph = one_by_one([10] * 7 + [70] + [10] * 2)
    (found,) = summarize(trace(graph, end=1_000)).graphs
    first, second, *_ = found.slowest
    assert (first.execution, first.latency_ns, first.of_execution) == (7, 105, 7)
    assert (first.text, first.took_ns, first.usual_ns) == ("a0 (Stage).fwd", 70, 10)
    assert second.text is None
    assert "execution 7  105 ns  a0 (Stage).fwd took 70 ns, usually 10 ns" in str(found)
    assert "no op took longer than usual" in str(found)


def test_what_lies_outside_of_the_window_is_cut_off():
    rows = {
        "a0": [
            event(0, 0, 0, 1_010, waited=1_005, bytes=100),  # waited long before the trace began
            event(1, 0, 1_010, 1_040),
            event(3, 0, 1_040, 1_050, coded=2, bytes=400),
            event(0, 1, 1_050, 1_130, waited=70),
            event(1, 1, 1_130, 1_150),
        ],
        "a1": [event(0, 0, 0, 900, waited=890), event(1, 0, 900, 990)],
    }
    graph = graph_trace(rows)
    read, call, write = measure(graph, 1_000, 1_100).ops
    assert (read.count, read.total_ns, read.waited_ns) == (2, 5, 5 + 50)
    assert (call.count, call.total_ns) == (1, 30)
    assert (write.total_ns, write.gb_per_s) == (10, 400 / 8)
    # The rate is that of the whole Write: 400 bytes in 8 ns.
    assert measure(graph, 1_046, 1_100).ops[-1].gb_per_s == 400 / 8
    assert measure(graph, 1_046, 1_100).ops[-1].total_ns == 4
    (whole, *_) = measure(graph).ops
    assert whole.waited_ns == 1_005 + 70
    (found,) = summarize(trace(graph, start=1_000, end=1_100)).graphs
    assert found.ops == (read, call, write)


@pytest.mark.parametrize(
    ("graph", "hint"),
    [
        (graph_trace({}), "hint: nothing ran during the recording: call execute() while it lasts"),
        (by_hand(driver=()), "hint: no execution is in the trace from its submission"),
        (by_hand(a0=()), "hint: the critical path is incomplete"),
        (changed(by_hand(), "driver", lost=1_234), "hint: 1,234 events were lost"),
        (
            changed(by_hand(), "a1", clock=Clock(5, 12_000)),
            "clocks: times of different processes may be off by 12 µs",
        ),
    ],
)
def test_the_summary_says_what_is_missing(graph, hint):
    summary = summarize(trace(graph, end=END))
    assert hint in str(summary)
    json.loads(summary.to_json())


def test_of_many_graphs_the_text_has_the_first_ones():
    record = simulated_plan(pipeline(2), 12)
    few, many = (replace(record, graphs=record.graphs * count) for count in (6, 8))
    assert "more graph" not in str(summarize(few))
    text = str(summarize(many))
    assert text.count("  throughput  ") == 6
    assert text.endswith("2 more graphs: print(summary.graphs[6]) shows the next")
    assert "5 more graphs" in many._repr_mimebundle_()["text/html"]


# --- comparing ----------------------------------------------------------------------------------

FASTER = [
    A1_ROWS[0],
    event(1, 0, 31, 37),
    event(3, 0, 37, 40, coded=1),
    event(0, 1, 40, 44, waited=2, coded=1),
    event(1, 1, 44, 50),
    event(3, 1, 50, 54, coded=1),
]


def test_a_comparison_holds_both_and_the_ratio():
    before, after = trace(by_hand(), end=80), trace(by_hand(a1=FASTER), end=70)
    (graph,) = compared(before, after).graphs
    assert graph.is_same_plan
    assert (graph.throughput.before, graph.throughput.after) == (1e9 / 17, 1e9 / 14)
    assert graph.throughput.ratio == pytest.approx(17 / 14)
    assert (graph.latency.before, graph.latency.after) == (43.5, 36)
    ops = {op.text: op for op in graph.ops}
    assert ops["a1 (Stage).fwd"].ratio == 0.5
    assert ops["a0 (Stage).fwd"].ratio == 1
    shares = {share.text: share for share in graph.shares}
    assert shares["a1 (Stage) compute"].before == 24 / 55
    assert shares["a1 (Stage) compute"].after == 12 / 55
    text = str(compared(before, after))
    assert "CompiledDAG(5f1c5f1c): the same plan" in text
    assert "    a1 (Stage).fwd        12 ns    6 ns  0.50x" in text


def test_a_figure_that_may_be_anything_is_noise():
    """Of 1 ±4.6 and 17 ±2 the difference is beyond both, and the ratio is 17 ±78."""
    assert Change("execution", 1.0, 17.0, (4.6, 2.0)).is_noise
    assert Change("execution", 17.0, 1.0, (2.0, 0.1)).is_noise is False
    assert Change("execution", 1.0, 17.0, (0.5, None)).is_noise is None


def test_graphs_are_matched_by_plan_and_else_by_order():
    other = graph_trace({}, plan=PIPELINE.replace("fwd", "bwd"))
    third = graph_trace({}, plan=PIPELINE.replace("fwd", "step"))
    first = replace(by_hand(), graph_id="first")
    found = compared(
        trace(first, replace(other, graph_id="other"), end=END),
        trace(replace(third, graph_id="third"), replace(first, graph_id="again"), end=END),
    )
    assert [graph.title for graph in found.graphs] == [
        "CompiledDAG(first) -> CompiledDAG(again)",
        "CompiledDAG(other) -> CompiledDAG(third)",
    ]
    assert [graph.is_same_plan for graph in found.graphs] == [True, False]
    found = compared(trace(first, end=END), trace(other, first, end=END))
    assert [graph.title for graph in found.graphs] == ["CompiledDAG(first)"]
    assert found.only_after == ("CompiledDAG(5f1c5f1c)",) and found.only_before == ()
    found = compared(trace(other, first, end=END), trace(end=END))
    assert found.only_before == ("CompiledDAG(5f1c5f1c)", "CompiledDAG(first)")
    assert "CompiledDAG(first) is only in the first" in str(found)
    assert str(compared(trace(end=1), trace(end=1))) == "Neither trace holds a graph."


def test_an_op_that_only_one_trace_has_has_no_ratio():
    before = trace(by_hand(), end=END)
    (graph,) = compared(before, trace(graph_trace({}), end=END)).graphs
    assert {op.ratio for op in graph.ops} == {None}
    assert graph.throughput.ratio is None
    assert "-" in str(graph)


PM = "\N{PLUS-MINUS SIGN}"


@pytest.mark.parametrize(
    ("rates", "spread", "latency", "answer"),
    [
        # A spread of 1 % on both sides, 1.4 % of the ratio, shows that they are alike.
        ((100, 100), 1, 4e6, f"alike, 1.00x {PM}0.01: 100 /s to 100 /s"),
        (
            (100, 100),
            1,
            2e6,
            f"latency 0.50x {PM}0.03: 4 ms to 2 ms; throughput alike, 1.00x {PM}0.01",
        ),
        # 120 of 100 with spreads of 40 each: 1.2 +- 0.62; 12 * (0.62 / 0.2)^2 * 1.5 executions.
        (
            (100, 120),
            40,
            4e6,
            f"not enough to say, 1.20x {PM}0.62: 100 /s to 120 /s; about 180 executions would tell",
        ),
        (
            (100, 120),
            None,
            4e6,
            "not enough to say, 1.20x: 100 /s to 120 /s; run at least 11 executions",
        ),
        (
            (100, 120),
            40,
            2e6,
            f"latency 0.50x {PM}0.03: 4 ms to 2 ms; throughput not known, 1.20x {PM}0.62",
        ),
        ((100, 220), 10, 4e6, f"2.20x {PM}0.24: 100 /s to 220 /s"),
    ],
)
def test_what_is_not_proven_is_not_called_unchanged(rates, spread, latency, answer):
    rate = Change("executions", *map(float, rates), (spread, spread))
    late = Change("latency", 4e6, latency, (1e5, 1e5))
    ops = (Change("a", 1.0, 1.0),)
    found = GraphComparison(("a", "a"), True, rate, late, ops, (), (12, 20))
    assert found.answer == answer
