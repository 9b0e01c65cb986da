# SPDX-License-Identifier: Apache-2.0
"""Costs on real actors: declared, given, and measured by a profile; the prediction beside it."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest

import rcg
from rcg.dag import InputNode
from rcg.ir.costs import CALL, MOVE
from tests.cluster.stage import GUARD_S

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("ray_session")

MS = 1_000_000


@rcg.remote(num_cpus=0)
class Worker:
    """Its methods take ``takes_s``."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.takes_s = takes_s

    @rcg.method(cost_s=0.25)
    def make(self, n):
        time.sleep(self.takes_s)
        return torch.full((1000,), float(n))

    def total(self, x):
        time.sleep(self.takes_s)
        return float(x.sum())

    def pid(self):
        return os.getpid()

    def threads(self):
        return sorted(each.name for each in threading.enumerate())


@pytest.fixture(scope="module")
def workers(ray_session):
    made = [Worker.remote(0.004), Worker.remote(0.012)]
    rcg.get([each.pid.remote() for each in made])
    yield made
    for each in made:
        rcg.kill(each)


def bound(workers: list[Any], **options: Any) -> Any:
    one, two = workers
    with InputNode() as inp:
        value = one.make.bind(inp).with_tensor_transport(transport="gloo")
        total = two.total.options(**options) if options else two.total
        return total.bind(value)


def calls(graph: Any) -> dict[str, float]:
    """The costs of the calls in seconds, by method."""
    methods = {op.node: op.method for each in graph.plan.programs for op in each.ops if op.is_call}
    return {
        methods[cost.node]: cost.cost_ns / 1e9 for cost in graph.plan.costs if cost.kind == CALL
    }


def test_a_class_declares_and_a_call_says_otherwise(workers):
    with bound(workers).experimental_compile() as graph:
        assert calls(graph) == {"make": 0.25}
        assert rcg.get(graph.execute(2), timeout=GUARD_S) == 2000.0
    with bound(workers, cost_s=0.125).experimental_compile() as graph:
        assert calls(graph) == {"make": 0.25, "total": 0.125}
        (period,) = {each.period_ns for each in graph.plan.predicted}
        assert period == pytest.approx(250 * MS, rel=0.1)
    with bound(workers).experimental_compile(costs={"Worker.make": 1, "total": 2}) as graph:
        assert calls(graph) == {"make": 1.0, "total": 2.0}


@pytest.mark.full
def test_a_profile_gives_the_costs_and_the_prediction_is_what_happens(workers):
    for overlap in (False, True):
        with bound(workers).experimental_compile(overlap=overlap) as graph:
            rcg.get(graph.execute(0), timeout=GUARD_S)
            with rcg.profile() as profile:
                for ref in [graph.execute(n) for n in range(30)]:
                    rcg.get(ref, timeout=GUARD_S)
        with bound(workers).experimental_compile(overlap=overlap, costs=profile) as graph:
            found = calls(graph)
            assert 0.004 <= found["make"] < found["total"]
            assert found["total"] >= 0.012
            assert [cost for cost in graph.plan.costs if cost.kind == MOVE]
            with rcg.profile() as again:
                for ref in [graph.execute(n) for n in range(30)]:
                    rcg.get(ref, timeout=GUARD_S)
            (period,) = {each.period_ns for each in graph.plan.predicted}
            assert period >= 12 * MS
            assert "predicted when it was compiled" in str(again)
    off, on, auto = (
        rcg.plan(bound(workers), overlap=each, costs=profile) for each in (False, True, "auto")
    )
    assert auto in (off, on)  # which one, depends on the processors, too


def test_a_plan_is_that_of_compile_and_nothing_is_started_for_it(workers):
    dag = bound(workers)
    costs = {"Worker.make": 0.5, "total": 2}
    rcg.plan(dag)  # a thread that an actor's first answer starts is there now
    before = set().union(*rcg.get([each.threads.remote() for each in workers]))
    plans = {over: rcg.plan(dag, overlap=over, costs=costs) for over in (False, True)}
    assert not rcg.report()
    after = set().union(*rcg.get([each.threads.remote() for each in workers]))
    assert after <= before  # those of graphs that were torn down end meanwhile
    for overlap, planned in plans.items():
        (period,) = {each.period_ns for each in planned.predicted}
        assert period == pytest.approx(2000 * MS, rel=0.1)
        with dag.experimental_compile(overlap=overlap, costs=costs) as graph:
            assert graph.plan == planned
    with pytest.raises(ValueError, match="no such call"):
        rcg.plan(dag, costs={"Worker.nothing": 1})


def test_a_cost_does_not_change_an_ordinary_call(workers):
    one, _ = workers
    assert rcg.get(one.make.remote(1)).sum() == 1000
    assert rcg.get(one.make.options(cost_s=3, num_returns=1).remote(1)).sum() == 1000


@pytest.mark.full
def test_a_profile_of_other_actors_is_refused(workers):
    others = [Worker.remote(), Worker.remote()]
    with bound(others).experimental_compile() as graph, rcg.profile() as profile:
        rcg.get(graph.execute(1), timeout=GUARD_S)
    with pytest.raises(ValueError, match="none of the calls of this DAG"):
        bound(workers).experimental_compile(costs=profile)
    for each in others:
        rcg.kill(each)
