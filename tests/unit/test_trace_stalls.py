# SPDX-License-Identifier: Apache-2.0
"""Graphs that hang: what has not ended counts with its time so far, and is said first."""

from __future__ import annotations

import json

import pytest

from rcg.trace.measured import Measured, summarize
from rcg.trace.model import GraphTrace, OpenOp
from rcg.trace.trace import Trace
from rcg.views.data.figures import card_of, topology_figures_of
from rcg.views.html.page import page_of
from tests.unit.trace_by_hand import A0_ROWS, A1_ROWS, DRIVER_ROWS, END, ROWS, by_hand
from tests.unit.traces import event, graph_trace, measure, trace

SECOND = 1_000_000_000
SUBMITTED = event(1, 2, 65, 66, bytes=100)
PASSED_ON = [
    event(0, 2, 43, 70, waited=25, bytes=100, peer=0),
    event(1, 2, 70, 80),
    event(3, 2, 80, 83),
]


def hanging(**changes: OpenOp) -> GraphTrace:
    """Two executions as by hand; the third is in a1's method since 90, for two seconds."""
    rows = {
        "driver": [*DRIVER_ROWS, SUBMITTED],
        "a0": [*A0_ROWS, *PASSED_ON],
        "a1": [*A1_ROWS, event(0, 2, 63, 90, waited=20, peer=1)],
    }
    opens = {
        "driver": OpenOp(3, 2, 66, 66, 2),
        "a0": OpenOp(0, 3, 83, 83, 0),
        "a1": OpenOp(1, 2, 90),
    }
    return graph_trace(rows, opens=opens | changes)


def recorded(**changes: OpenOp) -> Trace:
    return trace(hanging(**changes), start=5, end=2 * SECOND)


def found(graph: GraphTrace, end: int = 2 * SECOND):
    return measure(graph, 5, end).stall


def test_a_call_that_did_not_return_is_what_the_graph_hangs_on() -> None:
    stall = found(hanging())
    assert stall is not None
    assert (stall.process, stall.op, stall.text) == ("a1", 1, "a1 (Stage).fwd")
    assert (stall.execution, stall.usual_ns) == (2, 12)
    # From the beginning of the trace, which began at 5.
    assert (stall.since_ns, stall.lasted_ns) == (85, 2 * SECOND - 90)
    # The driver waits for its result. a0 waits for an input that was not submitted: it is idle.
    assert stall.waiting == ("driver",)


def test_a_call_that_waits_for_a_method_of_another_graph_is_what_the_graph_hangs_on() -> None:
    stall = found(hanging(a1=OpenOp(1, 2, 90, 90)))
    assert stall is not None
    assert (stall.process, stall.op, stall.waiting) == ("a1", 1, ("driver",))


def test_who_waits_is_found_along_the_waits() -> None:
    """a1 hangs; a0 cannot write to it, and the driver has no room."""
    stall = found(hanging(a0=OpenOp(3, 5, 95, 95, 2), driver=OpenOp(1, 12, 99, 99, 1)))
    assert stall is not None
    assert (stall.process, stall.waiting) == ("a1", ("driver", "a0 (Stage)"))


@pytest.mark.parametrize(
    ("graph", "end"),
    [
        (by_hand(), END),
        (graph_trace({}), END),
        # In the middle of a call, as most traces end.
        (hanging(), 90 + 50),
        # Five times as long as any, but no longer than an execution takes.
        (graph_trace(ROWS, opens={"a1": OpenOp(3, 2, 90), "driver": OpenOp(3, 2, 90, 90, 2)}), 120),
        # All results are fetched: an actor has lost its processor after its last write, or before
        # it began to wait for an input.
        (graph_trace(ROWS, opens={"a1": OpenOp(3, 1, 63)}), 2 * SECOND),
        (graph_trace(ROWS, opens={"a1": OpenOp(0, 2, 63)}), 2 * SECOND),
        # All wait for the driver, which is in the user's code.
        (hanging(a1=OpenOp(0, 3, 90, 90, 1)), 2 * SECOND),
    ],
)
def test_what_goes_on_hangs_on_nothing(graph: GraphTrace, end: int) -> None:
    assert found(graph, end) is None
    assert "not ended" not in str(summarize(trace(graph, end=end)))


def test_the_first_call_of_all_hangs_if_somebody_waits_for_it() -> None:
    rows = {"driver": [DRIVER_ROWS[0]], "a0": [A0_ROWS[0]]}
    driver = OpenOp(3, 0, 12, 12, 2)
    waiting = {"a1": OpenOp(0, 0, 1, 1, 1)}
    stall = found(graph_trace(rows, opens={"a0": OpenOp(1, 0, 15), "driver": driver} | waiting))
    assert stall is not None
    assert (stall.text, stall.usual_ns) == ("a0 (Stage).fwd", None)
    assert stall.waiting == ("driver", "a1 (Stage)")
    assert found(graph_trace(rows, opens={"a0": OpenOp(1, 0, 15)})) is None


def test_of_what_hung_before_the_recording_nobody_is_told_to_execute_or_to_record_longer() -> None:
    opens = {"a1": OpenOp(1, 2, 85), "driver": OpenOp(3, 2, 86, 86, 2)}
    for rows in ({}, {"driver": [DRIVER_ROWS[0]]}):
        summary = summarize(trace(graph_trace(rows, opens=opens), end=2 * SECOND))
        assert summary.graphs[0].stall is not None and "hint: n" not in str(summary)
        assert "execute()" not in card_of(summary.graphs[0]).about


def test_what_has_not_ended_counts_with_its_time_so_far() -> None:
    (graph,) = summarize(recorded()).graphs
    end = 2 * SECOND
    assert graph.stall is not None
    # Two completions, at 46 and 63, and none since.
    assert graph.throughput == 1e9 / (end - 46)
    assert graph.latency_p50_ns == 51
    assert graph.latency_p99_ns == pytest.approx(51 + 0.98 * (end - 65 - 51))
    assert graph.critical is not None and graph.critical.bottleneck is not None
    assert graph.critical.bottleneck.text == "a1 (Stage).fwd"
    assert graph.critical.bottleneck.share > 0.999
    assert graph.critical.end_ns == end - 5
    (call,) = [op for op in graph.ops if op.text == "a1 (Stage).fwd"]
    assert (call.count, call.total_ns) == (3, 24 + end - 90)
    slow = graph.slowest[0]
    assert (slow.execution, slow.latency_ns, slow.is_over) == (2, end - 65, False)
    assert (slow.text, slow.took_ns, slow.usual_ns) == ("a1 (Stage).fwd", end - 90, 12)
    assert graph.shares.lanes[2].compute_ns == 24 + end - 90
    assert graph.shares.lanes[2].idle_ns == 2
    assert graph.shares.bubble is not None and 0.49 < graph.shares.bubble < 0.51
    json.loads(summarize(recorded()).to_json())


SENTENCE = (
    "a1 (Stage).fwd has not ended for 2 s, usually 12 ns (execution 2, since 85 ns): "
    "1 process waits for it"
)


def test_the_first_words_say_who_hangs_since_when_and_how_many_wait() -> None:
    summary = summarize(recorded())
    assert str(summary).startswith(SENTENCE + "\n")
    assert str(summary).count("has not ended for") == 1
    assert "execution 2  2 s so far" in str(summary)
    assert "to make it faster" not in str(summary)
    assert card_of(summary.graphs[0]).answer == SENTENCE


def test_the_picture_shows_the_time_so_far_in_the_call() -> None:
    record = recorded()
    measured = topology_figures_of(Measured.of(record, record.graphs[0]))
    assert list(measured.open_ns.values()) == [2 * SECOND - 90]
    assert ">not ended: 2 s" in page_of(record, "")
