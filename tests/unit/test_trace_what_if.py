# SPDX-License-Identifier: Apache-2.0
"""Replaying measured ops, with and without factors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given

from rcg.compiler.simulate import Costs, simulate
from rcg.errors import TraceError
from rcg.ir.plan import Plan
from rcg.trace.analysis.what_if import Replays, from_simulation
from tests.unit.simulated_traces import Simulated, simulated
from tests.unit.trace_by_hand import by_hand
from tests.unit.traces import PIPELINE, event, graph_trace, measure
from tests.unit.views_traces import pipeline as stages_of
from tests.unit.views_traces import simulated as simulated_plan

# Driver: Input 0, Write 1, Read 3; actors: Read 0, Call 1, Write 3.
COSTS = {
    ("driver", 1): 2_000,
    ("driver", 3): 1_000,
    ("a0", 0): 1_000,
    ("a0", 1): 10_000,
    ("a0", 3): 1_000,
    ("a1", 0): 1_000,
    ("a1", 1): 20_000,
    ("a1", 3): 1_000,
}


def pipeline(changes=None, *, window=4, executions=64, thinking=0, waking=0, draining=False):
    """The trace of a pipeline that takes ``COSTS``; a1 is the bottleneck with 22 us."""
    each = COSTS | (changes or {})
    costs = Costs(each | {("driver", 0): thinking}, dict.fromkeys(each, waking))
    plan = Plan.from_text(PIPELINE.replace("slots=10", f"slots={max(window, 10)}"))
    simulation = simulate(plan, costs, executions, window=window, is_driver_draining=draining)
    return without_input(from_simulation(simulation, limit=window))


def without_input(graph):
    """The user's time is no event of a real trace."""
    driver = graph.driver.events
    return graph_trace(
        {
            "driver": [tuple(row) for row in driver if row["op"] != 0],
            "a0": [tuple(row) for row in graph.lanes[1].events],
            "a1": [tuple(row) for row in graph.lanes[2].events],
        },
        plan=str(graph.plan),
        limit=graph.limit,
    )


@given(simulated(is_driver_draining=False))
def test_the_unchanged_replay_of_a_simulated_timeline_is_that_timeline(made: Simulated):
    count = made.simulation.executions
    seen = measure(made.graph)
    found = Replays(seen.table, seen.costs, seen.executions, lambda: seen.shares, count).what_if()
    assert found.window == made.window
    assert found.measured_throughput == found.baseline_throughput == found.throughput
    assert found.error_percent is None or found.error_percent == 0
    assert found.measured_latency_ns == found.baseline_latency_ns == found.latency_ns
    for lane in seen.shares.lanes:  # as the other figures say, and it changes nothing
        before, after = found.busy.get(lane.label, (lane.busy, lane.busy))
        assert before == lane.busy and after == pytest.approx(before)
    again = {(s.process, s.op, s.execution): (s.start, s.end) for s in found.simulation.timeline}
    for span in made.simulation.timeline:
        assert again[span.process, span.op, span.execution] == (span.start, span.end)


@pytest.mark.parametrize(
    ("period_us", "options"),
    [
        (22, {}),  # a1 takes 1 + 20 + 1 us for each execution and never waits
        (12, {"scale": {"a1.fwd": 0.5}}),  # as a0 does
        (12, {"scale": {"Stage.fwd": 0.5}}),  # a1 takes 12, a0 7
        (37, {"in_flight": 1}),  # 2 + 1+10+1 + 1+20+1 + 1
        (52, {"scale": {"a0 (Stage).fwd": 5}}),  # a0 is the bottleneck: 1 + 50 + 1
        (22, {"scale": {"Stage.fwd": 0.5, "a1.fwd": 2}}),  # factors multiply: a1 is as it was
        (24, {"communication": 2}),
        (22, {"serialization": 9}),
    ],
)
def test_by_hand_the_bottleneck_sets_the_rate(period_us, options):
    found = measure(pipeline()).replays.what_if(**options)
    assert found.throughput == pytest.approx(1e6 / period_us, rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({("a1", 1): 10_000}, {"scale": {"a1.fwd": 0.5}}),
        ({("a0", 1): 70_000}, {"scale": {"a0.fwd": 7}}),
        ({("a0", 1): 5_000, ("a1", 1): 10_000}, {"scale": {"Stage.fwd": 0.5}}),
    ],
)
@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("thinking", [0, 30_000])
def test_what_is_predicted_is_what_the_changed_pipeline_does(changes, options, window, thinking):
    predicted = measure(pipeline(window=window, thinking=thinking)).replays.what_if(**options)
    really = measure(pipeline(changes, window=window, thinking=thinking)).replays.what_if()
    assert predicted.throughput == pytest.approx(really.measured_throughput, rel=1e-9)
    assert predicted.latency_ns == pytest.approx(really.measured_latency_ns, rel=1e-9)


def test_a_number_in_flight_that_changes_the_latency_only_says_so_first():
    """a1 takes 22 us: as fast with 3 as with 10 in flight, of which 7 only wait."""
    found = measure(pipeline(window=10)).replays.what_if(in_flight=3)
    assert found.is_noise and found.answer.startswith("latency 0.3")
    assert "; throughput alike, 1.00x" in found.answer
    same = measure(pipeline(window=3)).replays.what_if(in_flight=3)
    assert same.answer.startswith("no change beyond the noise, 1.00x")


@pytest.mark.parametrize("stages", [4, 40])
def test_the_number_in_flight_of_now_changes_nothing(stages):
    """A replay has whole windows: of 40 stages those in flight complete in bursts."""
    replays = measure(simulated_plan(stages_of(stages), 60).graphs[0]).replays
    window = replays.measured.window
    found = replays.what_if(in_flight=window)
    assert found.speedup == pytest.approx(1.0, abs=1e-6)
    for times in (2, 3):
        more = replays.what_if(in_flight=times * window)
        assert more.speedup <= times + 1e-6 and more.error_percent == found.error_percent
        assert replays.rate_at(times * window) == pytest.approx(more.throughput, rel=1e-6)


@pytest.mark.parametrize("executions", [27, 60, 63, 88, 89, 200])
def test_the_rate_of_what_completes_in_bursts_is_that_of_whole_ones(executions):
    """Of 40 stages, 10 in flight follow each other, and then nothing for a while."""
    graph = simulated_plan(stages_of(40), executions).graphs[0]
    found = measure(graph).executions
    assert found.window == 10
    period = np.diff(found.completed_ns[9::10]).mean() / 10
    assert found.throughput == pytest.approx(1e9 / period, rel=1e-6)
    if executions >= 60:
        assert found.throughput_spread == pytest.approx(0, abs=found.throughput / 1e6)


def test_coding_is_scaled_apart_from_moving():
    # By hand: a1 takes 2 + 12 + 3, of which coding is 1 + 1.
    before = measure(by_hand()).replays.what_if(in_flight=10)
    after = measure(by_hand()).replays.what_if(in_flight=10, serialization=11)
    periods = [1e9 / measure(each.graph).executions.throughput for each in (before, after)]
    assert periods == pytest.approx([17, 37])
    assert after.throughput / before.throughput == pytest.approx(17 / 37)


def test_a_driver_of_several_threads_fetches_while_it_submits():
    graph = pipeline({("driver", 3): 40_000}, draining=True, window=4)
    found = measure(graph).replays.what_if()
    assert measure(graph).costs.is_driver_parallel
    assert found.baseline_throughput == pytest.approx(1e9 / 40_000, rel=0.01)
    assert found.baseline_throughput == pytest.approx(found.measured_throughput, rel=0.01)


def test_what_is_waited_for_without_an_event_is_not_the_users_time():
    """An ``await``: the driver has no event while the result is under way, then takes it."""
    rows = {
        "driver": [
            row
            for k in range(40)
            for row in (event(1, k, k * 100, k * 100 + 2), event(3, k, k * 100 + 60, k * 100 + 61))
        ],
        "a0": [event(1, k, k * 100 + 2, k * 100 + 30) for k in range(40)],
        "a1": [
            row
            for k in range(40)
            for row in (
                event(1, k, k * 100 + 30, k * 100 + 49),
                event(3, k, k * 100 + 49, k * 100 + 50),
            )
        ],
    }
    graph = graph_trace(rows)
    measured = measure(graph).costs
    # From 50, when the result is there, to 60, and from 61 to the next submission.
    assert measured.user_ns == 10 + 39
    assert measured.window == 1
    assert measure(graph).replays.what_if().baseline_throughput == pytest.approx(
        1e9 / 100, rel=1e-3
    )


def test_channels_too_short_for_a_driver_that_fills_its_window_are_drained_meanwhile():
    """The driver reads what a0 makes too, so a0 is stuck until the driver reads."""
    plan = PIPELINE.replace("slots=10", "slots=1").replace("a0 -> a1 ring", "a0 -> driver a1 ring")
    plan = plan.replace("Read c2 -> s1", "Read c1 -> s2\n  Read c2 -> s1")
    costs = Costs({place: cost for place, cost in COSTS.items() if place[0] != "driver"})
    simulation = simulate(Plan.from_text(plan), costs, 64, window=8)
    found = measure(from_simulation(simulation, limit=8)).replays.what_if()
    assert found.notes == ("the replay assumes that the driver fetches while it submits",)
    assert found.baseline_throughput == pytest.approx(found.measured_throughput, rel=0.01)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"scale": {"Stage.bwd": 2}},
            r"no call `Stage.bwd`; it has Stage.fwd, a0 \(Stage\).fwd, a",
        ),
        ({"scale": {"a0.fwd": 0}}, "factor of `a0.fwd` must be a number above 0, found 0"),
        ({"scale": {"a0.fwd": math.nan}}, "above 0, found nan"),
        ({"scale": {"a0.fwd": "2"}}, "above 0, found '2'"),
        ({"communication": -1}, "factor of `communication`"),
        ({"in_flight": 0}, "`in_flight` must be a positive integer, found 0"),
    ],
)
def test_what_cannot_be_asked(options, match):
    with pytest.raises(TraceError, match=match):
        measure(pipeline()).replays.what_if(**options)


def test_a_trace_without_events_cannot_be_replayed():
    with pytest.raises(TraceError, match="holds no events of this graph"):
        measure(graph_trace({})).predict(8)


# --- a driver's op in several events


def taken_apart(graph, *, encodes=0):
    """Let the driver encode before it writes, wait twice for each result and decode it afterwards.

    What its Reads take is then decoding but for 1 us, its Writes encode so much of their time.
    """
    rows = []
    for start, end, waited, _, execution, _, op, peer in graph.driver.events.tolist():
        if op == 1:
            begun = start + waited
            rows.append(event(op, execution, begun, begun + encodes, coded=encodes))
            rows.append(event(op, execution, begun + encodes, end, bytes=8))
        else:
            half, there = waited // 2, start + waited
            if half:
                rows.append(event(op, execution, start, start + half, waited=half, peer=peer))
            rows.append(
                event(
                    op,
                    execution,
                    start + half,
                    there + 1_000,
                    waited=waited - half,
                    bytes=8,
                    peer=peer,
                )
            )
            rows.append(event(op, execution, there + 1_000, end, coded=end - there - 1_000))
    others = {lane.process: [tuple(row) for row in lane.events] for lane in graph.lanes[1:]}
    return graph_trace({"driver": rows, **others}, plan=str(graph.plan), limit=graph.limit)


@pytest.mark.parametrize("thinking", [0, 30_000])
@pytest.mark.parametrize("window", [1, 3])
def test_a_driver_that_decodes_long_is_replayed_as_it_is(window, thinking):
    plain = pipeline(
        {("driver", 1): 5_000, ("driver", 3): 40_000}, window=window, thinking=thinking
    )
    graph = taken_apart(plain, encodes=4_000)
    costs = measure(graph).costs
    assert costs.costs["driver", 1].coding_ns == 4_000
    assert costs.costs["driver", 1].moving_ns == 1_000
    assert costs.costs["driver", 3].moving_ns == 1_000
    assert costs.costs["driver", 3].coding_ns == 39_000
    assert costs.user_ns == measure(plain).costs.user_ns
    found, was = measure(graph).replays.what_if(), measure(plain).replays.what_if()
    assert found.baseline_throughput == was.baseline_throughput
    assert found.baseline_latency_ns == found.measured_latency_ns == was.measured_latency_ns
    assert found.error_percent == 0
