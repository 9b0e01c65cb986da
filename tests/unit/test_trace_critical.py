# SPDX-License-Identifier: Apache-2.0
"""The critical path of an execution, and of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given

from rcg.trace.analysis.critical import LOST, PathStall
from rcg.trace.analysis.events import TimeKind
from rcg.trace.model import NO_PEER, GraphTrace
from tests.unit.simulated_traces import Simulated, simulated
from tests.unit.trace_by_hand import A0_ROWS, A1_ROWS, DRIVER_APART, DRIVER_ROWS, ROWS, by_hand
from tests.unit.traces import PIPELINE, changed, event, graph_trace, measure

COMPUTE, COMMUNICATION, SERIALIZATION, WAITING, IDLE = TimeKind


def brief(steps):
    return [
        (step.process, step.op, step.execution, step.kind, step.start_ns, step.end_ns)
        for step in steps
    ]


def assert_whole(steps, start, end):
    assert steps[0].start_ns == start and steps[-1].end_ns == end
    assert all(a.end_ns == b.start_ns for a, b in pairwise(steps))


FIRST = [
    ("driver", 1, 0, COMMUNICATION, 10, 12),
    ("a0", 0, 0, WAITING, 12, 13),  # waking up
    ("a0", 0, 0, COMMUNICATION, 13, 14),
    ("a0", 0, 0, SERIALIZATION, 14, 15),
    ("a0", 1, 0, COMPUTE, 15, 25),
    ("a0", 3, 0, SERIALIZATION, 25, 26),
    ("a0", 3, 0, COMMUNICATION, 26, 28),
    ("a1", 0, 0, WAITING, 28, 29),
    ("a1", 0, 0, COMMUNICATION, 29, 30),
    ("a1", 0, 0, SERIALIZATION, 30, 31),
    ("a1", 1, 0, COMPUTE, 31, 43),
    ("a1", 3, 0, SERIALIZATION, 43, 44),
    ("a1", 3, 0, COMMUNICATION, 44, 46),
]
SECOND = [
    # Execution 1 is submitted at 12 and finds both actors taken by execution 0.
    *FIRST[1:],
    ("a1", 0, 1, COMMUNICATION, 46, 47),
    ("a1", 0, 1, SERIALIZATION, 47, 48),
    ("a1", 1, 1, COMPUTE, 48, 60),
    ("a1", 3, 1, SERIALIZATION, 60, 61),
    ("a1", 3, 1, COMMUNICATION, 61, 63),
]


def test_a_path_goes_from_process_to_process_along_what_was_waited_for():
    steps = measure(by_hand()).paths.of(0)
    assert brief(steps) == FIRST
    assert [step.text for step in steps[:5]] == [
        "driver write c0",
        "a0 (Stage) read c0",
        "a0 (Stage) read c0",
        "a0 (Stage) read c0",
        "a0 (Stage).fwd",
    ]
    assert sum(step.duration_ns for step in steps) == 36


def test_what_did_not_wait_hangs_on_the_event_before_it_also_of_another_execution():
    steps = measure(by_hand()).paths.of(1)
    assert brief(steps) == SECOND
    assert sum(step.duration_ns for step in steps) == 51


def test_there_is_no_path_of_what_the_trace_does_not_hold():
    assert measure(by_hand()).paths.of(7) == ()
    assert measure(by_hand(driver=())).paths.of(0) == ()
    assert measure(graph_trace({})).paths.of(0) == ()
    assert measure(graph_trace({})).paths.steady() is None


def test_the_steady_path_goes_to_the_first_submission_and_names_the_bottleneck():
    path = measure(by_hand()).paths.steady()
    assert (path.start_ns, path.end_ns, path.is_whole) == (10, 63, True)
    assert sum(share.total_ns for share in path.shares) == 53
    most = path.shares[0]
    assert (most.process, most.op, most.kind, most.total_ns) == ("a1", 1, COMPUTE, 24)
    assert path.bottleneck.text == "a1 (Stage).fwd"
    assert path.bottleneck.share == 24 / 53
    assert {(s.process, s.op, s.kind): s.total_ns for s in path.shares if s.process == "a0"} == {
        ("a0", 0, WAITING): 1,
        ("a0", 0, COMMUNICATION): 1,
        ("a0", 0, SERIALIZATION): 1,
        ("a0", 1, COMPUTE): 10,
        ("a0", 3, SERIALIZATION): 1,
        ("a0", 3, COMMUNICATION): 2,
    }


def one_by_one(took: Sequence[int]) -> GraphTrace:
    """Executions one after another: a0 takes so long in each, a1 30 ns."""
    rows: dict[str, list[Any]] = {"driver": [], "a0": [], "a1": []}
    at, idle = 0, 0
    for n, call in enumerate(took):
        done = at + 2 + call
        rows["driver"].append(event(1, n, at, at + 1))
        rows["a0"] += [
            event(0, n, idle, at + 2, waited=at + 1 - idle, peer=0),
            event(1, n, at + 2, done),
            event(3, n, done, done + 1),
        ]
        rows["a1"] += [
            event(0, n, idle, done + 2, waited=done + 1 - idle, peer=1),
            event(1, n, done + 2, done + 32),
            event(3, n, done + 32, done + 33),
        ]
        rows["driver"].append(event(3, n, at + 1, done + 34, waited=done + 32 - at, peer=2))
        idle, at = done + 33, done + 34
    return graph_trace(rows)


def test_what_an_op_took_beyond_its_usual_time_once_is_a_stall():
    """From the first to the last completion: 11 executions of 46 ns, and 490 more in one."""
    path = measure(one_by_one([10] * 5 + [500] + [10] * 6)).paths.steady()
    total = 11 * 46 + 490
    assert path.end_ns - path.start_ns == total
    assert path.bottleneck.text == "a1 (Stage).fwd"
    assert path.bottleneck.share == 11 * 30 / total
    assert path.stalls == (
        PathStall("a0", 1, 5, COMPUTE, 500, 10.0, 490 / total, "a0 (Stage).fwd"),
    )
    assert str(path.stalls[0]) == "once, in execution 5: a0 (Stage).fwd 500 ns, usually 10 ns"
    assert measure(one_by_one([10] * 12)).paths.steady().stalls == ()
    own = {each.text: each.total_ns for each in path.shares}
    assert own["a0 (Stage).fwd"] == 11 * 10  # without the stall


def test_a_call_that_waited_for_another_graph_keeps_the_path_in_its_lane():
    rows = [A1_ROWS[0], event(1, 0, 31, 43, waited=5), *A1_ROWS[2:]]
    steps = brief(measure(by_hand(a1=rows)).paths.of(0))
    at = steps.index(("a1", 1, 0, WAITING, 31, 36))
    assert steps[at + 1] == ("a1", 1, 0, COMPUTE, 36, 43)
    assert steps[:at] == FIRST[:10]


def test_a_path_ends_with_a_note_where_events_were_lost():
    # The write that a1 waited for is missing.
    steps = measure(by_hand(a0=A0_ROWS[:2])).paths.of(0)
    assert_whole(steps, 10, 46)
    assert (steps[0].op, steps[0].kind, steps[0].end_ns) == (None, IDLE, 29)
    assert steps[0].text == LOST
    path = measure(by_hand(a0=A0_ROWS[:2])).paths.steady()
    assert not path.is_whole
    assert sum(share.total_ns for share in path.shares) == 53
    assert path.bottleneck.text == "a1 (Stage).fwd"


def test_a_gap_in_an_actor_that_lost_events_ends_the_path():
    graph = changed(by_hand(a1=[*A1_ROWS[:2], *A1_ROWS[4:]]), "a1", lost=2)
    steps = measure(graph).paths.of(1)
    assert_whole(steps, 12, 63)
    assert brief(steps)[0] == ("a1", None, 1, IDLE, 12, 48)


@pytest.mark.parametrize("process", ["driver", "a0", "a1"])
@pytest.mark.parametrize("offset", [-40, -17, -9, -2, 1, 5, 9, 33])
def test_paths_add_up_also_when_clocks_disagree(process, offset):
    """Reads end before the writes that they wait for, and events hang on what is later."""
    moved = [(row[0] + offset, row[1] + offset, *row[2:]) for row in ROWS[process]]
    graph = by_hand(**{process: moved})
    paths, executions = measure(graph).paths, measure(graph).executions
    for at, execution in enumerate(executions.index.tolist()):
        steps = paths.of(execution)
        if executions.latency_ns[at]:
            assert_whole(steps, executions.submitted_ns[at], executions.completed_ns[at])
            assert all(step.duration_ns > 0 for step in steps)
    steady = paths.steady()
    total = executions.last_completion_ns - executions.first_submission_ns
    assert sum(share.total_ns for share in steady.shares) == total


# A value with two readers, in a channel of one slot: a0 waits until both have read it.
FORKED = PIPELINE.replace("a0 -> a1 ring node=1 slots=10", "a0 -> driver a1 ring node=1 slots=1")
FORKED = FORKED.replace("Read c2 -> s1", "Read c1 -> s2\n  Read c2 -> s1")


@pytest.mark.parametrize(
    ("peer", "before"),
    [
        (NO_PEER, ("driver", 3, 0, COMMUNICATION, 13, 19)),  # the slowest
        (0, ("driver", 3, 0, COMMUNICATION, 13, 19)),
        (2, ("a1", 0, 0, COMMUNICATION, 12, 15)),
    ],
)
def test_of_several_readers_the_slowest_made_room_or_whom_the_event_names(peer, before):
    rows = {
        "driver": [
            event(1, 0, 0, 1),
            event(1, 1, 1, 2),
            event(3, 0, 2, 19, waited=11),
            event(4, 0, 19, 21),
        ],
        "a0": [
            event(0, 0, 0, 2, waited=1),
            event(1, 0, 2, 10),
            event(3, 0, 10, 12),
            event(0, 1, 12, 13),
            event(1, 1, 13, 14),
            event(3, 1, 14, 22, waited=6, peer=peer),
        ],
        "a1": [
            event(0, 0, 0, 15, waited=12),
            event(1, 0, 15, 16),
            event(3, 0, 16, 18),
            event(0, 1, 18, 23, waited=4),
            event(1, 1, 23, 24),
            event(3, 1, 24, 25),
        ],
    }
    # The driver reads execution 1 of c1 before a1 is done with it.
    rows["driver"].append(event(3, 1, 21, 23, waited=1))
    steps = brief(measure(graph_trace(rows, plan=FORKED)).paths.of(1))
    at = next(number for number, step in enumerate(steps) if step[:3] == ("a0", 3, 1))
    assert steps[at - 1] == before


def test_a_write_may_end_after_the_reader_it_woke_goes_on():
    """The frame is there before the writer's event is closed; the path is cut at the wake-up."""
    rows = [*DRIVER_ROWS]
    rows[0] = event(1, 0, 10, 14, bytes=100)
    rows[1] = event(1, 1, 14, 15, bytes=100)
    steps = measure(by_hand(driver=rows)).paths.of(0)
    assert brief(steps)[:2] == [
        ("driver", 1, 0, COMMUNICATION, 10, 13),
        ("a0", 0, 0, COMMUNICATION, 13, 14),
    ]


@given(simulated())
def test_of_simulated_timelines_paths_add_up_to_the_latency(made: Simulated):
    paths, executions = measure(made.graph).paths, measure(made.graph).executions
    assert executions.is_complete.all()
    for at, execution in enumerate(executions.index.tolist()):
        steps = paths.of(execution)
        assert steps == measure(made.graph).paths.of(execution)
        assert_whole(steps, executions.submitted_ns[at], executions.completed_ns[at])
        assert all(step.text != LOST and step.duration_ns > 0 for step in steps)
        # Whatever is waited for on the path is waking up: a few ns, as drawn. The first step may
        # be cut by the submission, and who begins to wait when the value is there waits for less.
        for step in steps:
            waking = made.costs.waking.get((step.process, step.op), 0)
            if step.kind == WAITING:
                assert step.duration_ns <= waking
    steady = paths.steady()
    total = executions.last_completion_ns - executions.first_submission_ns
    shares = sum(share.share for share in (*steady.shares, *steady.stalls))
    assert shares == pytest.approx(1) and steady.end_ns - steady.start_ns == total
    assert steady.is_whole


# --- a driver's op in several events


def test_the_steady_path_ends_with_the_last_completion_that_was_noted():
    """The driver has execution 1 before the trace holds a1's Write of it."""
    path = measure(by_hand(a1=A1_ROWS[:5])).paths.steady()
    assert (path.start_ns, path.end_ns, path.is_whole) == (10, 46, True)
    assert path.bottleneck.text == "a1 (Stage).fwd"
    assert sum(share.total_ns for share in path.shares) == 36
    assert all(share.text != LOST for share in path.shares)


def test_without_any_write_of_a_result_the_steady_path_is_that_of_the_driver():
    path = measure(by_hand(a1=())).paths.steady()
    assert (path.end_ns, path.is_whole, path.bottleneck) == (65, False, None)


def test_a_path_begins_with_what_was_encoded_before_there_was_room():
    graph = by_hand(driver=DRIVER_APART)
    first, second = measure(graph).paths.of(0), measure(graph).paths.of(1)
    assert brief(first) == [("driver", 1, 0, SERIALIZATION, 7, 10), *FIRST]
    assert_whole(second, 8, 63)
    assert brief(second)[0] == ("driver", 1, 1, SERIALIZATION, 8, 12)
    assert brief(second)[1:] == SECOND


def test_a_wait_for_what_never_came_is_no_loss():
    rows = [
        event(1, 0, 0, 2, bytes=8),
        event(3, 5, 2, 8, waited=5, peer=2),  # of another thread, in vain
        event(1, 1, 9, 10, bytes=8),
    ]
    path = measure(by_hand(driver=rows)).paths.steady()
    assert path.is_whole
