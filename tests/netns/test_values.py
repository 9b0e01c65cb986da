# SPDX-License-Identifier: Apache-2.0
"""Graphs over machines that share nothing give what they give on one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import rcg
from rcg import collective
from rcg.dag import InputNode, MultiOutputNode
from rcg.trace.model import Clock, LaneTrace
from tests.cluster.stage import GUARD_S, compile_echo
from tests.netns.machines import Cluster, actor_on
from tests.netns.world import CLOCK_STEP_S


def test_the_machines_share_nothing(cluster: Cluster, workers: list[Any]):
    spots = rcg.get([each.spot.remote() for each in workers])
    assert spots == ["machine0"] * 2 + ["machine1"] * 2
    cluster.hands.run(1, "touch", "/dev/shm/rcg-netns")
    assert "rcg-netns" not in cluster.hands.run(0, "ls", "/dev/shm")
    cluster.hands.run(1, "rm", "/dev/shm/rcg-netns")


@pytest.mark.parametrize("at", [1, 3])
def test_a_handle_used_by_an_actor(workers: list[Any], at: int):
    with compile_echo(workers[2]) as graph:
        assert rcg.get(workers[at].use.remote(graph, "from afar"), timeout=60) == "from afar"
        assert rcg.get(graph.execute("here")) == "here"


def test_a_profile_has_lanes_of_both_machines(workers: list[Any]):
    with InputNode() as inp:
        dag = workers[0].double.bind(workers[2].double.bind(inp))
    with dag.experimental_compile() as graph:
        rcg.get(graph.execute(1))
        with graph.profile() as profile:
            for i in range(20):
                assert rcg.get(graph.execute(i)) == 4 * i
    (found,) = profile.trace.graphs
    driver, near, far, gate = map(found.lane, ("driver", "a1", "a0", "n1"))
    assert driver.clock == near.clock == Clock()
    # Machine 1 was started with its clock ahead, and says how well it could be compared.
    assert gate.clock == far.clock
    assert far.clock.offset_ns == pytest.approx(-CLOCK_STEP_S * 1e9, abs=10e9)
    assert 0 < far.clock.error_ns < 1e9
    # In each execution a value is here, then there, then here.
    for execution in range(1, 21):
        begun = moment(driver, execution, "start_ns", min)
        arrived = moment(gate, execution, "start_ns", min)
        read = moment(far, execution, "end_ns", min)
        read_back = moment(near, execution, "end_ns", min)
        got = moment(driver, execution, "end_ns", max)
        error = far.clock.error_ns
        assert begun - error <= arrived <= read <= read_back + error
        assert read_back <= got


def moment(lane: LaneTrace, execution: int, field: str, which: Callable[[Any], Any]) -> int:
    """The first or the last start or end of what a process did for an execution."""
    found = lane.events[lane.events["execution"] == execution]
    assert len(found), f"{lane.process} recorded nothing of execution {execution}"
    return int(which(found[field]))


def test_tensors_are_reduced_across_machines(workers: list[Any]):
    some = [workers[at] for at in (0, 2, 3)]
    with InputNode() as inp:
        made = [each.full.bind(inp) for each in some]
        reduced = collective.allreduce.bind(made)
        dag = MultiOutputNode([a.sum.bind(r) for a, r in zip(some, reduced, strict=True)])
    with dag.experimental_compile() as graph:
        for size in (1, 1000, 300_000):
            assert rcg.get(graph.execute(size), timeout=GUARD_S) == [3.0 * size] * 3


def test_three_machines(cluster: Cluster, workers: list[Any]):
    cluster.grow(3)
    third = actor_on(2)
    with InputNode() as inp:
        dag = workers[0].add.bind(workers[2].double.bind(inp), third.double.bind(inp))
    with dag.experimental_compile() as graph:
        for i in range(50):
            assert rcg.get(graph.execute(i)) == 4 * i
    rcg.kill(third)
