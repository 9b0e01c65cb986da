# SPDX-License-Identifier: Apache-2.0
"""Graphs over three nodes, wherever Ray puts their actors and their driver, and whenever."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

import rcg
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import ActorDiedError
from tests.cluster.faults import NOTHING, Mortal
from tests.cluster.nodes import on_node
from tests.cluster.stage import GUARD_S, in_thread, until

pytestmark = pytest.mark.full

MEGABYTE = 1_000_000


class Spot(Mortal):
    """An actor that knows where it is, and compiles graphs itself."""

    def spot(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    def run_chain(self, actors: Any, values: list[Any]) -> tuple[list[Any], list[str]]:
        """Compile a chain of actors; returns the results and the nodes of the graph."""
        return run_chain(actors, values)


Actor = rcg.remote(num_cpus=0)(Spot)
Make = Callable[..., Any]


def chain_of(actors: Any) -> Any:
    with InputNode() as inp:
        value = inp
        for actor in actors:
            value = actor.echo.bind(value)
    return value.experimental_compile()


def run_chain(actors: Any, values: list[Any]) -> tuple[list[Any], list[str]]:
    with chain_of(actors) as graph:
        found = [rcg.get(graph.execute(value), timeout=GUARD_S) for value in values]
        return found, nodes_of(graph)


def nodes_of(graph: Any) -> list[str]:
    """The Ray ids of the nodes in a graph's plan, the driver's first."""
    return [node.key for node in graph.plan.nodes]


def use_until_it_fails(graph: Any) -> None:
    while True:
        rcg.get(graph.execute(3), timeout=GUARD_S)


@pytest.fixture
def make(cluster: Any) -> Iterator[Make]:
    """Makes actors: of a node's number, or with options."""
    made: list[Any] = []

    def one(number: int | None = None, **options: Any) -> Any:
        cls = Actor if number is None else on_node(Actor, number)
        made.append((cls.options(**options) if options else cls).remote())
        return made[-1]

    yield one
    for each in made:
        rcg.kill(each)


def spots(*actors: Any) -> list[str]:
    found: list[str] = rcg.get([each.spot.remote() for each in actors], timeout=GUARD_S)
    return found


def test_a_chain_over_three_nodes_and_back(make: Make):
    actors = [make(number) for number in (1, 2, 0, 2, 1)]
    with chain_of(actors) as graph:
        assert nodes_of(graph) == spots(actors[2], actors[0], actors[1])
        refs = [graph.execute(i) for i in range(12)]
        assert rcg.get(refs, timeout=GUARD_S) == list(range(12))
        with graph.profile() as profile:
            for value in (b"x", None, bytes(MEGABYTE)):
                assert rcg.get(graph.execute(value), timeout=GUARD_S) == value
        report = graph.report()
        assert Counter(each.node for each in report.processes) == {"n0": 3, "n1": 3, "n2": 3}
        (trace,) = profile.trace.graphs
        assert all(len(lane.events) >= 3 for lane in trace.lanes)


def test_a_value_crosses_to_each_node_once(make: Make):
    actors = [make(number) for number in (0, 1, 1, 2, 2)]
    with InputNode() as inp:
        dag = MultiOutputNode([each.add.bind(inp, 1) for each in actors])
    with dag.experimental_compile() as graph:
        array = np.ones(MEGABYTE, np.uint8)
        for found in rcg.get(graph.execute(array), timeout=GUARD_S):
            assert found.shape == array.shape and (found == 2).all()
        sent = {
            each.node: each.sent_bytes for each in graph.report().sockets if each.sender == "driver"
        }
        assert set(sent) == {"n1", "n2"}
        assert all(MEGABYTE <= each < 1.1 * MEGABYTE for each in sent.values())


def test_actors_of_a_placement_group(make: Make):
    group = placement_group([{"CPU": 1}] * 3, strategy="STRICT_SPREAD")
    try:
        ray.get(group.ready(), timeout=GUARD_S)
        actors = [
            make(
                num_cpus=1,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_bundle_index=index
                ),
            )
            for index in range(3)
        ]
        assert len(set(spots(*actors))) == 3
        found, nodes = run_chain(actors, [1, b"two", "three"])
        assert found == [1, b"two", "three"]
        assert set(nodes) == set(spots(*actors))
    finally:
        remove_placement_group(group)


def test_actors_with_an_affinity_for_a_node(make: Make):
    wanted = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    actors = [
        make(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=each, soft=False))
        for each in wanted
    ]
    assert spots(*actors) == wanted
    found, nodes = run_chain(actors, [1, 2])
    assert found == [1, 2]
    assert set(nodes) == set(wanted)


@pytest.mark.parametrize("number", [0, 1])
def test_a_driver_in_an_actor_of_any_node(make: Make, number: int):
    driver = make(number)
    actors = [make(each) for each in (0, 2, 1)]
    running = driver.run_chain.remote(actors, [1, bytes(MEGABYTE), 3])
    found, nodes = rcg.get(running, timeout=GUARD_S)
    assert found == [1, bytes(MEGABYTE), 3]
    assert nodes[0] == spots(driver)[0]
    assert set(nodes) == set(spots(*actors))


def test_a_driver_in_a_task_of_another_node(make: Make):
    actors = [make(each) for each in (0, 1)]
    task = ray.remote(run_chain).options(num_cpus=0, resources={"node2": 0.001})
    found, nodes = ray.get(task.remote(actors, [1, 2]), timeout=GUARD_S)
    assert found == [1, 2]
    assert len(nodes) == 3 and nodes[1:] == spots(*actors)


def test_an_actor_whose_node_comes_later(cluster: Any, make: Make):
    """As where an autoscaler starts the node that a waiting actor needs."""
    near, late = make(0), make(resources={"late": 0.001})
    compiled = in_thread(lambda: chain_of([near, late]))
    # Starting it takes seconds, in which the graph is waited for.
    node = cluster.add_node(num_cpus=1, resources={"late": 1})
    try:
        with compiled() as graph:
            assert nodes_of(graph) == spots(near, late)
            assert rcg.get(graph.execute(5), timeout=GUARD_S) == 5
    finally:
        cluster.remove_node(node)


def test_a_raylet_that_is_killed_under_a_graph(cluster: Any, make: Make):
    node = cluster.add_node(num_cpus=1, resources={"doomed": 1})
    near, far, doomed = make(0), make(1), make(resources={"doomed": 0.001})
    graph = chain_of([near, doomed, far])
    assert rcg.get(graph.execute(1), timeout=GUARD_S) == 1
    gone = spots(doomed)[0]
    ref = graph.execute(2)
    cluster.remove_node(node, allow_graceful=False)
    begun = time.monotonic()
    with pytest.raises(ActorDiedError, match=r"a1 \(Spot\)"):
        use_until_it_fails(graph)
    print(f"noticed after {time.monotonic() - begun:.2f} s")
    with contextlib.suppress(ActorDiedError):
        assert rcg.get(ref, timeout=GUARD_S) == 2  # it was through
    assert graph.report().state == "broken"
    graph.teardown(timeout=GUARD_S)
    found, nodes = run_chain([near, far, near], [1, bytes(MEGABYTE)])
    assert found == [1, bytes(MEGABYTE)]
    assert gone not in nodes


def test_graphs_leave_nothing_on_any_node(make: Make):
    actors = [make(number) for number in (0, 1, 2)]
    for _ in range(5):
        run_chain(actors, [bytes(MEGABYTE)])
    for each in actors:
        until(lambda each=each: rcg.get(each.settle.remote()) == NOTHING)
