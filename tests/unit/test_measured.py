# SPDX-License-Identifier: Apache-2.0
"""The figures of random traces: those of a slow oracle, and what must be true of any."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rcg.compiler.simulate import simulate
from rcg.profiling import Profile
from rcg.trace.analysis.events import TimeKind
from rcg.trace.analysis.executions import UNSEEN
from rcg.trace.analysis.what_if import from_simulation
from rcg.trace.measured import Measured
from rcg.trace.model import Clock
from rcg.trace.trace import Trace
from rcg_widgets.subject import recorded as recorded_subject
from tests.harness.invariants import check_measured
from tests.unit.oracle import Oracle
from tests.unit.simulated_traces import Simulated, recorded, shaken, simulated
from tests.unit.trace_by_hand import A1_ROWS, DRIVER_ROWS, ROWS, by_hand
from tests.unit.traces import ALLREDUCE, changed, event, graph_trace, measure, one_execution
from tests.unit.views_traces import pipeline
from tests.unit.views_traces import simulated as simulated_plan


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(simulated(most=16), st.integers(0, 1 << 32))
def test_figures_of_random_traces_are_those_of_the_oracle(made: Simulated, seed: int) -> None:
    graph = shaken(made, random.Random(seed))
    found, oracle = measure(graph, 0, made.end), Oracle(graph)
    index = oracle.executions()
    assert found.executions.index.tolist() == index
    assert found.executions.submitted_ns.tolist() == [oracle.submitted(n) for n in index]
    assert found.executions.completed_ns.tolist() == [oracle.completed(n) for n in index]

    shares = oracle.shares(*found.window)
    for lane in found.shares.lanes:
        assert {kind: lane.of(kind) for kind in TimeKind if lane.of(kind)} == shares[lane.process]

    ops = oracle.ops()
    for each in found.ops:
        own = each.count, each.median_ns, each.total_ns, each.waited_ns, each.bytes
        assert ops.pop((each.process, each.op)) == own
    assert not ops

    path = found.path
    if path is None:
        return
    last = max(index, key=lambda n: (oracle.completed(n), -n))
    came = max(oracle.came(last), key=lambda event: event.end)
    spent: Counter[tuple[str, int | None, TimeKind]] = Counter()
    for part in path.shares:
        spent[part.process, part.op, part.kind] += part.total_ns
    for stall in path.stalls:
        took = round(stall.share * (path.end_ns - path.start_ns))
        spent[stall.process, stall.op, stall.kind] += took
    assert spent == oracle.path(came, oracle.completed(last), path.start_ns)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(recorded())
def test_figures_of_any_recording_agree_with_each_other(trace: Trace) -> None:
    for graph in trace.graphs:
        check_measured(Measured.of(trace, graph))


@pytest.mark.parametrize("process", ["driver", "a0", "a1"])
@pytest.mark.parametrize("offset", [-40, -17, -9, -2, 1, 5, 9, 33])
def test_figures_agree_with_each_other_also_when_clocks_do_not(process: str, offset: int) -> None:
    """Reads end before the Writes that they wait for, and events hang on what is later."""
    moved = [(row[0] + offset, row[1] + offset, *row[2:]) for row in ROWS[process]]
    graph = changed(by_hand(**{process: moved}), process, clock=Clock(0, abs(offset)))
    for window in ((0, 80), (13, 60), (0, 10), (70, 70), (-5, 200)):
        check_measured(measure(graph, *window))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(simulated(has_tensors=True))
def test_figures_of_a_longer_run_agree_with_each_other(made: Simulated) -> None:
    """Long enough for a verdict."""
    run = simulate(made.graph.plan, made.costs, 40, window=made.window)
    graph = from_simulation(run, limit=made.window)
    check_measured(measure(graph, 0, round(run.duration)))


@settings(max_examples=25)
@given(simulated(has_tensors=True))
def test_no_event_of_a_rendezvous_depends_on_itself(made: Simulated) -> None:
    before = measure(made.graph).dependencies.before
    seen = np.arange(len(before))
    for _ in seen:
        seen = np.where(seen < 0, seen, before[seen])
    assert (seen < 0).all()


def test_a_read_waits_until_its_write_sends() -> None:
    """Also where its loop did not see that it waited: it was off the processor, or idle."""
    start, end, _, *rest = A1_ROWS[0]
    found = measure(by_hand(a1=[(start, end, 0, *rest), *A1_ROWS[1:]]))
    check_measured(found)
    (write,) = found.table.find("a0", 3, np.array([0]))
    (read,) = found.table.find("a1", 0, np.array([0]))
    sends = 26  # it encodes from 25 on
    assert found.table.bounds[write, 1] == found.table.waits_until(read) == sends
    assert found.table.peer[read] == found.table.number("a0")


def test_a_rank_waits_until_the_last_one_arrives() -> None:
    """The path goes to the last one: a1 arrives at 40, a0 saw itself wait until 35."""
    rows = {
        "driver": [event(1, 0, 0, 2), event(3, 0, 2, 70, waited=60)],
        "a0": [
            event(0, 0, 0, 5, waited=2),
            event(1, 0, 5, 15),
            event(2, 0, 15, 60, waited=20),
            event(3, 0, 60, 64),
        ],
        "a1": [event(0, 0, 0, 5, waited=2), event(1, 0, 5, 40), event(2, 0, 40, 60, waited=1)],
    }
    found = measure(graph_trace(rows, plan=ALLREDUCE), 0, 70)
    check_measured(found)
    (first,) = found.table.find("a0", 2, np.array([0]))
    assert found.table.waits_until(first) == 40
    assert found.table.peer[first] == found.table.number("a1")
    steps = [(step.text, step.kind, step.duration_ns) for step in found.paths.of(0)]
    assert ("a1 (Worker).grad", TimeKind.COMPUTE, 35) in steps
    assert not any(kind is TimeKind.WAITING for _, kind, took in steps if took > 1)


def test_a_read_that_ends_before_its_write_began_is_refused() -> None:
    start, _, _, *rest = A1_ROWS[0]
    check_measured(measure(by_hand()))
    with pytest.raises(AssertionError, match="a1 took c1 of execution 0 6 ns before its Write"):
        check_measured(measure(by_hand(a1=[(start, 20, 15, *rest), *A1_ROWS[1:]])))


def test_what_was_measured_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for the same graph of the same trace gets the same figures."""
    run = simulated_plan(pipeline(2), 12)
    first = Measured.of(run, run.graphs[0])
    assert Measured.of(run, run.graphs[0]) is first
    assert Measured.of(replace(run, info={"cores": 4}), run.graphs[0]) is not first
    assert first.summary is Measured.of(run, run.graphs[0]).summary
    run = replace(run, info={"cores": 4})
    subject, record = recorded_subject(run)  # of a widget
    assert Measured.of(subject.trace, record) is Profile(run).measured()


def test_a_profile_counts_from_the_beginning_of_the_trace() -> None:
    profile = Profile(one_execution())
    assert profile.executions().submitted_ns.tolist() == [10]
    assert profile.critical_path(7)[0].start_ns == 10
    assert profile.critical_path(8) == ()
    (graph,) = profile.summary.graphs
    assert (graph.critical.start_ns, graph.critical.end_ns) == (10, 170)
    # What was not seen stays unseen wherever zero is.
    part = measure(by_hand(driver=DRIVER_ROWS[:3], a1=A1_ROWS[:5])).executions.since(10)
    assert part.submitted_ns.tolist() == [0, 2] and part.completed_ns.tolist() == [36, UNSEEN]
