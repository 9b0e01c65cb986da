# SPDX-License-Identifier: Apache-2.0
"""Graphs over machines that share nothing give what they give on one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rcg
from rcg import collective
from rcg.dag import InputNode, MultiOutputNode
from rcg.trace.model import Clock, LaneTrace
from tests.cluster.stage import GUARD_S, Refusal, compile_echo
from tests.netns.machines import Cluster, actor_on
from tests.netns.world import CLOCK_STEP_S

SIZE = 64 << 20


def test_the_machines_share_nothing(cluster: Cluster, workers: list[Any]):
    assert rcg.get([each.spot.remote() for each in workers]) == [
        "machine0",
        "machine0",
        "machine1",
        "machine1",
    ]
    cluster.hands.run(1, "touch", "/dev/shm/rcg-netns")
    assert "rcg-netns" not in cluster.hands.run(0, "ls", "/dev/shm")
    cluster.hands.run(1, "rm", "/dev/shm/rcg-netns")


def test_an_echo_from_another_machine(workers: list[Any]):
    with compile_echo(workers[2]) as graph:
        for value in (b"x", None, "é" * 1000, {"a": [1, 2.5]}, bytes(3_000_000)):
            assert rcg.get(graph.execute(value)) == value
        assert [rcg.get(graph.execute(i)) for i in range(500)] == list(range(500))


def test_a_chain_to_and_fro(workers: list[Any]):
    with InputNode() as inp:
        value = inp
        for at in (0, 2, 1, 3, 0):
            value = workers[at].double.bind(value)
    with value.experimental_compile() as graph:
        refs = [graph.execute(i) for i in range(8)]
        assert rcg.get(refs) == [32 * i for i in range(8)]


def test_scattered_and_gathered(workers: list[Any]):
    with InputNode() as inp:
        dag = MultiOutputNode([each.add.bind(inp, at) for at, each in enumerate(workers)])
    with dag.experimental_compile() as graph:
        for i in range(50):
            assert rcg.get(graph.execute(i)) == [i, i + 1, i + 2, i + 3]


def test_large_arrays_whose_results_are_held(workers: list[Any]):
    with compile_echo(workers[2]) as graph:
        held = [
            rcg.get(graph.execute(np.full(SIZE, number, np.uint8)), timeout=60)
            for number in range(4)
        ]
        for number, array in enumerate(held):
            assert array.nbytes == SIZE
            assert (array == number).all()


def test_exceptions_cross(workers: list[Any]):
    with InputNode() as inp:
        dag = workers[0].echo.bind(workers[2].fail_when.bind(inp, 3))
    with dag.experimental_compile() as graph:
        assert rcg.get(graph.execute(1)) == 1
        with pytest.raises(Refusal, match="no 3"):
            rcg.get(graph.execute(3))
        assert rcg.get(graph.execute(4)) == 4


def test_several_graphs_at_once(workers: list[Any]):
    graphs = [compile_echo(workers[at]) for at in (2, 3, 2)]
    for i in range(30):
        refs = [graph.execute((i, at)) for at, graph in enumerate(graphs)]
        assert rcg.get(refs) == [(i, at) for at in range(3)]
    for graph in graphs:
        graph.teardown()


def test_asyncio(workers: list[Any]):
    async def go() -> list[int]:
        with compile_echo(workers[2]) as graph:
            futures = [await graph.execute_async(i) for i in range(40)]
            return [await each for each in futures]

    assert asyncio.run(go()) == list(range(40))


@pytest.mark.parametrize("at", [1, 3])
def test_a_handle_used_by_an_actor(workers: list[Any], at: int):
    with compile_echo(workers[2]) as graph:
        assert rcg.get(workers[at].use.remote(graph, "from afar"), timeout=60) == "from afar"
        assert rcg.get(graph.execute("here")) == "here"


def test_a_report_tells_of_both_machines(workers: list[Any]):
    with compile_echo(workers[2]) as graph:
        rcg.get(graph.execute(1))
        found = graph.report()
        assert found.state == "running"
        assert {each.state for each in found.processes} <= {"idle", "waiting"}
        assert all(each.pid for each in found.processes)


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


def test_tensors_of_shared_memory_and_of_gloo(workers: list[Any]):
    for transport in ("shm", "gloo"):
        with InputNode() as inp:
            made = workers[2].full.bind(inp).with_tensor_transport(transport=transport)
            back = workers[3].tripled.bind(made).with_tensor_transport(transport=transport)
            dag = workers[0].sum.bind(back, made)
        with dag.experimental_compile() as graph:
            for size in (1, 1000, 1_000_000):
                assert rcg.get(graph.execute(size), timeout=GUARD_S) == 4.0 * size


def test_tensors_are_reduced_across_machines(workers: list[Any]):
    some = [workers[at] for at in (0, 2, 3)]
    with InputNode() as inp:
        made = [each.full.bind(inp) for each in some]
        reduced = collective.allreduce.bind(made)
        dag = MultiOutputNode([a.sum.bind(r) for a, r in zip(some, reduced, strict=True)])
    with dag.experimental_compile() as graph:
        for size in (1, 1000, 300_000):
            assert rcg.get(graph.execute(size), timeout=GUARD_S) == [3.0 * size] * 3


def test_three_machines(machines3: Cluster, workers: list[Any]):
    third = actor_on(2)
    with InputNode() as inp:
        dag = workers[0].add.bind(workers[2].double.bind(inp), third.double.bind(inp))
    with dag.experimental_compile() as graph:
        for i in range(50):
            assert rcg.get(graph.execute(i)) == 4 * i
    rcg.kill(third)
