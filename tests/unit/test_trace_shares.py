# SPDX-License-Identifier: Apache-2.0
"""Executions, and where the time of each process went."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given

from rcg.ir.ops import Read, Write
from rcg.profiling import Profile
from rcg.trace.analysis.events import TimeKind
from rcg.trace.analysis.executions import UNSEEN
from rcg.trace.model import GraphTrace, OpenOp
from tests.unit.simulated_traces import Simulated, simulated
from tests.unit.trace_by_hand import A0_ROWS, A1_ROWS, DRIVER_APART, DRIVER_ROWS, END, ROWS, by_hand
from tests.unit.traces import (
    changed,
    event,
    graph_trace,
    measure,
    one_execution,
    shares_in,
    trace,
)


def test_executions_go_from_the_drivers_write_to_the_last_write_for_the_driver():
    found = measure(by_hand()).executions
    assert found.index.tolist() == [0, 1]
    assert found.submitted_ns.tolist() == [10, 12]
    assert found.completed_ns.tolist() == [46, 63]
    assert found.fetched_ns.tolist() == [48, 65]
    assert found.is_complete.tolist() == [True, True]
    assert found.latency_ns.tolist() == [36, 51]
    assert found.latency_at(50) == 43.5
    # One completion after another, 17 ns apart.
    assert found.throughput == 1e9 / 17
    flight = found.in_flight(0, END)
    assert (flight.total_ns, flight.until([11])) == (53, 1)


def test_what_a_trace_that_began_in_the_middle_does_not_hold_is_unseen():
    # Recorded from 13 to 60: without the first writes and the last read.
    found = measure(by_hand(driver=DRIVER_ROWS[2:3], a0=A0_ROWS[1:], a1=A1_ROWS[:5])).executions
    assert found.submitted_ns.tolist() == [UNSEEN, UNSEEN]
    assert found.completed_ns.tolist() == [46, UNSEEN]
    assert not found.is_complete.any()
    assert (found.latency_at(99), found.throughput) == (None, None)
    assert found.in_flight(13, 60).total_ns == 47


def test_of_lost_events_in_the_middle_only_these_executions_suffer():
    found = measure(by_hand(driver=[DRIVER_ROWS[0], *DRIVER_ROWS[2:]])).executions
    assert found.submitted_ns.tolist() == [10, UNSEEN]
    assert found.latency_ns.tolist() == [36]
    # Both ended, so there is a rate; the second counts as in flight from the first's start.
    assert found.throughput == 1e9 / 17
    assert found.in_flight(0, END).total_ns == 53


def test_of_a_lost_completion_the_next_one_ends_the_flight():
    found = measure(by_hand(driver=DRIVER_ROWS[:2], a1=A1_ROWS[3:])).executions
    assert found.completed_ns.tolist() == [UNSEEN, 63]
    assert found.in_flight(0, END).total_ns == 53
    # That of the last one: to the end.
    found = measure(by_hand(driver=DRIVER_ROWS[:3], a1=A1_ROWS[:5])).executions
    assert found.in_flight(0, END).total_ns == 70


def test_a_completion_is_not_before_its_submission_whatever_the_clocks():
    found = measure(by_hand(a1=[event(3, 0, 1, 2), event(3, 1, 3, 4)])).executions
    assert found.latency_ns.tolist() == [0, 0]


def test_shares_are_those_worked_out_by_hand():
    """In flight is 10 to 63.

    ```
             compute   moving    coding  waiting                         idle
    driver   -         2+2+1+1   -       27 (R0) + 15 (R1 to 63)         10 + 6 + 1 + 15
    a0       10+10     1+2+1+2   4       3 (R0 from 10) + 20 (R2 to 63)  10 + 17
    a1       12+12     1+2+1+2   4       19 (R0 from 10)                 10 + 17
    ```
    """
    shares = shares_in(by_hand(), 0, END)
    assert [[lane.of(kind) for kind in TimeKind] for lane in shares.lanes] == [
        [0, 6, 0, 42, 32],
        [20, 6, 4, 23, 27],
        [24, 6, 4, 19, 27],
    ]
    assert [lane.duration_ns for lane in shares.lanes] == [END] * 3
    assert [dict(lane.waiting_for) for lane in shares.lanes] == [
        {"a1 (Stage)": 42},
        {"driver": 23},
        {"a0 (Stage)": 19},
    ]
    assert shares.hidden == 0.0  # that a1 computes during a0's last 2 ns hides nothing of a0's
    # Methods of 20 and 24, and moving of 6 and 6 beside none of them, of the 53 ns from 10 to 63.
    assert [each.bubble for each in shares.lanes] == [None, 1 - 20 / 53, 1 - 24 / 53]
    assert [each.exposed for each in shares.lanes] == [None, 6 / 53, 6 / 53]
    assert shares.bubble == pytest.approx(1 - 44 / 106)
    assert shares.exposed == 6 / 53
    words = (
        "    means of the actors, from the first submission to the last result:\n"
        "    bubble: 58.5 %, the actor ran none of its methods;\n"
        "    communication not hidden: 11.3 %, it moved bytes meanwhile\n"
        "    the largest bubble: a0 (Stage) 62.3 %, of which it moved bytes 11.3 %\n"
    )
    assert words in str(Profile(trace(by_hand(), end=END)))


@pytest.mark.parametrize("window", [(0, 80), (13, 60), (0, 10), (70, 70), (-5, 200), (30, 20)])
def test_shares_add_up_to_any_window(window):
    start, end = window
    for lane in shares_in(by_hand(), start, end).lanes:
        assert lane.duration_ns == max(end - start, 0)
        assert min(lane.of(kind) for kind in TimeKind) >= 0
        assert sum(lane.waiting_for.values()) == lane.waiting_ns


def test_who_is_waited_for_without_a_peer_is_what_the_plan_says():
    rows = {
        "driver": [event(1, 0, 0, 9, waited=4)],
        "a0": [
            event(0, 0, 0, 10, waited=5),
            event(1, 0, 10, 20, waited=3),
            event(3, 0, 20, 30, waited=2),
            event(9, 0, 30, 40, waited=1),
        ],
        "a1": [event(0, 0, 0, 8, waited=8, peer=77)],
    }
    driver, a0, a1 = shares_in(graph_trace(rows), 0, 40).lanes
    assert driver.waiting_for == {"a0 (Stage)": 4}
    assert a0.waiting_for == {"driver": 5, "another graph": 3, "a1 (Stage)": 2, "unknown": 1}
    assert a1.waiting_for == {"a0 (Stage)": 8}


def test_only_a_read_can_wait_for_nothing():
    """After 63 nothing is in flight; calls and writes wait all the same."""
    rows = [*A0_ROWS, event(1, 1, 64, 70, waited=5), event(3, 1, 70, 80, waited=7)]
    lane = shares_in(graph_trace({**ROWS, "a0": rows}), 0, END).lanes[1]
    assert lane.waiting_for == {"another graph": 5, "a1 (Stage)": 7, "driver": 3}


def test_the_bubble_ends_with_the_last_completion():
    rows = [*A0_ROWS, event(1, 2, 63, 75)]
    found = shares_in(graph_trace({**ROWS, "a0": rows}), 0, END)
    assert found.bubble == pytest.approx(1 - 44 / 106)


WITH_LANES = """
plan positional=1 keywords=[] returns=one
actor a0 'First' ''
actor a1 'Second' ''
lane a0.comm of a0
lane a1.comm of a1
group g0 gloo a0.comm a1.comm
channel c0 driver -> a0 ring node=0 slots=10
channel c1 a0.comm -> a1.comm tensor @g0 node=1 slots=10
channel c2 a1 -> driver ring node=2 slots=10
channel c3 a0 -> a0.comm local node=1 slots=1
channel c4 a1.comm -> a1 local node=1 slots=1
program driver
  Input * -> s0
  Write s0 -> c0
  Read c2 -> s1
  Output s1
program a0
  Read c0 -> s0
  Call a0.f(s0) -> s1 #1
  Write s1 -> c3
program a0.comm
  Read c3 -> s1
  Write s1 -> c1
program a1
  Read c4 -> s0
  Call a1.g(s0) -> s1 #2
  Write s1 -> c2
program a1.comm
  Read c1 -> s0
  Write s0 -> c4
"""

LANES_ROWS = {
    "driver": [event(1, 0, 4, 8)],
    "a0": [event(0, 0, 7, 9), event(1, 0, 10, 30), event(2, 0, 30, 31), event(1, 1, 40, 60)],
    "a0.comm": [event(0, 0, 0, 32, waited=31), event(1, 0, 35, 55, peer=4)],
    "a1": [event(1, 0, 50, 70), event(2, 0, 70, 71)],
    "a1.comm": [event(0, 0, 33, 55, waited=2, peer=2), event(1, 0, 56, 58)],
}


def test_communication_is_hidden_behind_methods_of_the_same_actor():
    """What other actors compute hides none of it.

    ```
    ns       0    5    10        20        30        40        50        60        70
    driver       | W |                                                                 4 to 8
    a0              |R||f . . . . . . . . .|W        |f . . . . . . . . .|          2 + 1
    a0.comm  |R waits . . . . . . . . . . . |R  |W c1 . . . . . . .|                1 + 20
    a1                                                         |g . . . . . . . . . |
    a1.comm                                   |R|R c1 receives . . .| W             20 + 2
    ```
    """
    shares = shares_in(graph_trace(LANES_ROWS, plan=WITH_LANES), 0, 80)
    assert [lane.communication_ns for lane in shares.lanes] == [4, 3, 21, 1, 22]
    # Of what a0.comm sends, from 40 on; of what a1.comm receives, from 50 on, and its Write.
    assert [lane.hidden for lane in shares.lanes] == [None, None, 15 / 21, None, 7 / 22]
    assert shares.hidden == (15 + 7) / 51
    # From 4 to 71 methods run for 40 and 20; of the bytes that each actor moves, with its lane, in
    # 24 and 23, 15 and 7 are hidden.
    assert [lane.bubble for lane in shares.lanes] == [
        None,
        pytest.approx(27 / 67),
        None,
        pytest.approx(47 / 67),
        None,
    ]
    assert [lane.exposed for lane in shares.lanes] == [None, 9 / 67, None, 16 / 67, None]
    assert shares.exposed == pytest.approx(25 / 134)


def test_lost_driver_events_make_no_idle_time_of_waiting():
    shares = shares_in(changed(by_hand(driver=()), "driver", lost=4), 0, END)
    # In flight from the start of the window to the last completion, 63.
    assert shares.lanes[1].waiting_ns == 13 + 20


@given(simulated())
def test_of_simulated_timelines_shares_are_what_the_simulation_knows(made: Simulated):
    end = made.end + 5
    each: dict[str, float] = defaultdict(float)
    computed: dict[str, float] = defaultdict(float)
    for span in made.simulation.timeline:
        each[span.process] += span.end - span.start
        if not isinstance(made.graph.plan.program(span.process).ops[span.op], Read | Write):
            computed[span.process] += span.end - span.start
    for lane in shares_in(made.graph, 0, end).lanes:
        assert lane.duration_ns == end
        assert min(lane.of(kind) for kind in TimeKind) >= 0
        assert sum(lane.waiting_for.values()) == lane.waiting_ns
        if lane.process != "driver":  # whose ops may overlap
            assert lane.busy_ns == each[lane.process]
            assert lane.compute_ns == computed[lane.process]


# --- a driver's op in several events


def test_what_was_encoded_before_there_was_room_counts_and_queueing_does_not():
    found = measure(by_hand(driver=DRIVER_APART)).executions
    assert found.encoded_ns.tolist() == [3, 4]
    assert found.submitted_ns.tolist() == [10 - 3, 12 - 4]
    assert found.completed_ns.tolist() == [46, 63]
    assert found.fetched_ns.tolist() == [71, 79]
    # As if both had been encoded where they were written.
    whole = [
        event(1, 0, 7, 12, coded=3, bytes=100),
        event(1, 1, 8, 14, coded=4, bytes=100),
        *DRIVER_ROWS[2:],
    ]
    assert (
        found.latency_ns.tolist() == measure(by_hand(driver=whole)).executions.latency_ns.tolist()
    )


def test_a_wait_in_vain_fetches_nothing():
    rows = [*DRIVER_ROWS[:3], event(3, 1, 48, 60, waited=12, peer=2)]
    found = measure(by_hand(driver=rows)).executions
    assert found.fetched_ns.tolist() == [48, UNSEEN]
    assert found.completed_ns.tolist() == [46, 63]


def test_a_completion_is_no_later_than_when_the_driver_had_it():
    """a1 noted the end of its Write late, or its clock is ahead: the driver had it at 47."""
    rows = [*A1_ROWS[:2], event(3, 0, 43, 55, coded=1, bytes=100), *A1_ROWS[3:]]
    assert measure(by_hand(a1=rows)).executions.completed_ns.tolist() == [47, 63]
    # A wait in vain before, or decoding later on, says nothing of that.
    found = measure(by_hand(a1=rows, driver=DRIVER_APART)).executions
    assert found.completed_ns.tolist() == [47, 63]
    rows = [*DRIVER_ROWS[:2], event(3, 0, 14, 19, waited=5, peer=2), *DRIVER_APART[-2:]]
    assert measure(by_hand(driver=rows)).executions.completed_ns.tolist() == [46, 63]


def test_an_open_read_that_waited_again_and_again_waited_all_the_time():
    """a0 was in its third Read since 43 and looked up at 79; nothing was in flight from 63 on."""
    graph = changed(by_hand(), "a0", open=OpenOp(0, 2, 43, 79, 0))
    assert shares_in(graph, 0, END).lanes == shares_in(by_hand(), 0, END).lanes


# --- where they begin


def test_what_was_not_seen_stays_unseen_wherever_zero_is():
    found = measure(by_hand(driver=DRIVER_ROWS[:3], a1=A1_ROWS[:5])).executions.since(10)
    assert found.submitted_ns.tolist() == [0, 2]
    assert found.completed_ns.tolist() == [36, UNSEEN]
    assert found.latency_ns.tolist() == [36]


def window(graph: GraphTrace, start: int = 0, end: int = END) -> tuple[int, int]:
    return measure(graph).executions.busy_stretch(start, end)


def test_shares_are_those_of_the_time_with_executions():
    assert window(by_hand()) == (10, 65)
    # Cut by the trace.
    assert window(by_hand(), 20, 50) == (20, 50)
    # Nothing ran; nothing came back; nothing was submitted.
    assert window(graph_trace({})) == (0, END)
    assert window(graph_trace({"driver": DRIVER_ROWS[:2]})) == (10, END)
    assert window(by_hand(driver=())) == (0, END)
    # The last one is under way.
    assert window(by_hand(driver=[*DRIVER_ROWS, event(1, 2, 66, 67)])) == (10, END)
    # It began while the first one was under way.
    assert window(by_hand(driver=DRIVER_ROWS[1:])) == (0, 65)
    # The results were not fetched.
    assert window(by_hand(driver=DRIVER_ROWS[:2])) == (10, 63)


def test_a_profile_counts_from_the_beginning_of_the_trace():
    profile = Profile(one_execution())
    assert profile.executions().submitted_ns.tolist() == [10]
    assert profile.critical_path(7)[0].start_ns == 10
    (graph,) = profile.summary.graphs
    assert (graph.critical.start_ns, graph.critical.end_ns) == (10, 170)
    assert {lane.duration_ns for lane in graph.shares.lanes} == {190}
