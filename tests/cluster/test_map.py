# SPDX-License-Identifier: Apache-2.0
"""``graph.map`` on real actors: results in order, exceptions, deaths, other processes."""

from __future__ import annotations

import asyncio
import itertools

import pytest

import rcg
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import ActorDiedError, ChannelClosed
from tests.cluster.stage import GUARD_S, Refusal, Stage, compile_gated, compile_one

pytestmark = pytest.mark.usefixtures("ray_session")


@pytest.fixture
def chain(stages):
    """Two actors in a row, which multiply by 4, and give the value between as well."""
    first, second = stages(2)
    with InputNode() as inp:
        middle = first.double.bind(inp.x)
        dag = MultiOutputNode([middle, second.add.bind(middle, inp.y)])
    with dag.experimental_compile(max_inflight_executions=3) as graph:
        yield graph


def test_every_input_gives_its_results_in_order(chain):
    found = list(chain.map(x=range(40), y=itertools.count(), in_flight=3))
    assert found == [[2 * i, 3 * i] for i in range(40)]

    async def main():
        return [result async for result in chain.map(x=range(40), y=itertools.count())]

    assert asyncio.run(main()) == found
    assert chain.statistics().in_flight == chain.statistics().buffered == 0


def test_executions_are_in_flight_at_once_and_end_when_the_iterator_does(stages, gate):
    (actor,) = stages(1)
    with compile_gated(actor, gate, max_inflight_executions=3) as graph:
        results = graph.map(itertools.count(1), in_flight=3)
        assert next(results) == 1
        results.close()
        results = graph.map(itertools.count(), in_flight=3)  # 0 stops at the gate
        waiting = graph.map([7], in_flight=3)
        with pytest.raises(TimeoutError):
            asyncio.run(asyncio.wait_for(anext(results), 0.2))
        gate.wait_for()
        assert graph.statistics().in_flight == 3
        results.close()
        gate.open()
        assert list(waiting) == [7]


def test_an_exception_of_a_method_is_raised_in_its_place(stages):
    (actor,) = stages(1)
    with compile_one(actor, "fail_when", 2) as graph:
        results = graph.map(range(5), in_flight=4)
        assert [next(results), next(results)] == [0, 1]
        with pytest.raises(Refusal, match="no 2"):
            next(results)
        assert list(results) == [3, 4]


def test_a_dead_actor_is_raised_after_the_results_that_came(ray_session):
    with compile_one(Stage.remote(), "die_when", 2) as graph:
        results = graph.map(itertools.count(), in_flight=4)
        assert [next(results), next(results)] == [0, 1]
        with pytest.raises(ActorDiedError):
            next(results)
        assert list(results) == []


def test_a_teardown_is_raised_once(stages):
    (actor,) = stages(1)
    graph = compile_one(actor)
    results = graph.map(itertools.count(), in_flight=2)
    assert next(results) == 0
    graph.teardown()
    with pytest.raises(ChannelClosed):
        next(results)
    assert list(results) == []


@rcg.remote(num_cpus=0)
class Elsewhere:
    """Another process, which maps a graph."""

    def map(self, graph, inputs, in_flight):
        return list(graph.map(inputs, in_flight=in_flight))

    def map_async(self, graph, inputs, in_flight):
        async def main():
            return [result async for result in graph.map(inputs, in_flight=in_flight)]

        return asyncio.run(main())


def test_a_handle_maps_as_the_graph_does(stages):
    (actor,) = stages(1)
    other = Elsewhere.remote()
    with compile_one(actor, "double", max_inflight_executions=3) as graph:
        for method in (other.map, other.map_async):
            assert rcg.get(method.remote(graph, range(20), 3), timeout=GUARD_S) == [
                2 * i for i in range(20)
            ]
        with pytest.raises(ValueError, match="compile it with max_inflight_executions=4"):
            rcg.get(other.map.remote(graph, [1], 4), timeout=GUARD_S)
