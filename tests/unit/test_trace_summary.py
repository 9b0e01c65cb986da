# SPDX-License-Identifier: Apache-2.0
"""Summaries and comparisons: what they hold and how they read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rcg.trace.analysis.comparison import Change, GraphComparison
from rcg.trace.measured import compared, summarize
from tests.unit.trace_by_hand import A1_ROWS, END, by_hand
from tests.unit.traces import PIPELINE, event, graph_trace, trace
from tests.unit.views_traces import pipeline
from tests.unit.views_traces import simulated as simulated_plan


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
