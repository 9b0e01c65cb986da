# SPDX-License-Identifier: Apache-2.0
"""Summaries and comparisons: what they hold and how they read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rcg.text import hundredths
from rcg.trace.analysis.comparison import Change, GraphComparison
from rcg.trace.measured import compared, measured_of, summarize
from tests.unit.approved import check_approved
from tests.unit.test_trace_what_if import pipeline as replayed
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


@pytest.mark.parametrize(
    ("name", "after", "end"),
    [
        # Every 14 ns instead of 17; a1's method 6 instead of 12, 12 of 55 ns instead of 24.
        ("faster", by_hand(a1=FASTER), 70),
        ("nothing", graph_trace({}), END),  # what only one trace has has no ratio
    ],
)
def test_a_comparison_is_as_approved(name, after, end):
    found = compared(trace(by_hand(), end=80), trace(after, end=end))
    check_approved(f"comparisons/{name}", str(found))


def change(before, after, spread, latency=4.0):
    """A comparison of so many executions per second, with a latency of 4 ms before."""
    rate = Change("executions", before, after, (spread, spread))
    late = Change("latency", 4e6, latency * 1e6, (1e5, 1e5))
    ops = (Change("a", 1.0, 1.0),)
    return GraphComparison(("a", "a"), True, rate, late, ops, (), (12, 20)).answer


def test_what_is_not_proven_is_not_called_unchanged():
    answers = [
        # A spread of 1 % on both sides, 1.4 % of the ratio, shows that they are alike.
        change(100.0, 100.0, 1),
        change(100.0, 100.0, 1, latency=2.0),
        # 120 of 100 with spreads of 40 each: 1.2 +- 0.62; 12 * (0.62 / 0.2)^2 * 1.5 executions.
        change(100.0, 120.0, 40),
        change(100.0, 120.0, None),
        change(100.0, 120.0, 40, latency=2.0),
        change(100.0, 220.0, 10),
    ]
    check_approved("comparisons/answers", "\n".join(answers))


def test_a_figure_that_may_be_anything_is_noise():
    """Of 1 ±4.6 and 17 ±2 the difference is beyond both, and the ratio is 17 ±78."""
    assert Change("execution", 1.0, 17.0, (4.6, 2.0)).is_noise
    assert Change("execution", 17.0, 1.0, (2.0, 0.1)).is_noise is False
    assert Change("execution", 1.0, 17.0, (0.5, None)).is_noise is None


FIGURES = st.floats(1e-3, 1e3)
OFF = st.floats(0, 3) | st.just(float("inf"))


@given(FIGURES, FIGURES, OFF, OFF)
@example(62.0, 100.0, 16.0, 30.0)
@example(1.0, 50.0, 0.9798, 0.0)  # one of the two is noise as it is rounded
def test_a_comparison_is_noise_if_the_other_way_round_is_and_shows_it(before, after, one, other):
    spreads = one * before, other * after
    found = Change("work", before, after, spreads)
    back = Change("work", after, before, spreads[::-1])
    assert found.is_noise == back.is_noise
    for each in (found, back):
        is_within = abs(hundredths(each.ratio) - 100) <= hundredths(each.spread)
        assert is_within == each.is_noise, (each.ratio, each.spread)


def test_a_ratio_is_noise_exactly_if_1_is_within_the_spread_that_is_shown():
    """The ratio of 100 ±50 and 62 ±12 is 0.62 ±0.33, and the other way round 1.61 ±0.86."""
    found = Change("executions", 100.0, 62.0, (50.0, 12.0))
    assert found.row(str)[3:] == ("0.62x \N{PLUS-MINUS SIGN}0.38", "noise")
    for after in range(50, 150):
        found = Change("executions", 100.0, float(after), (6.0, 0.05 * after))
        shown, off = (
            float(each.strip("x\N{PLUS-MINUS SIGN}")) for each in found.row(str)[3].split()
        )
        assert found.is_noise == (round(shown - off, 2) <= 1 <= round(shown + off, 2)), after


def test_the_first_executions_are_no_part_of_the_spread_of_the_latency():
    """Ten are in flight: until the first completes the graph fills, then all take the same."""
    executions = measured_of(trace(replayed(window=10), end=1 << 30))[0].executions
    assert executions.latency_ns[0] < executions.latency_ns[20] / 5
    assert executions.latency_spread_ns == 0
    first = executions.completed_ns[0]
    late = replace(executions, completed_ns=executions.completed_ns + (1 << 40))
    assert (late.submitted_ns < first + (1 << 40)).all() and late.latency_spread_ns is None


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
