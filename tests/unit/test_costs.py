# SPDX-License-Identifier: Apache-2.0
"""Costs: where they come from, what the compiler makes of them, and what it predicts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rcg.compiler import compile_graph
from rcg.compiler.costs import OpCosts
from rcg.compiler.simulate import Simulation, simulate
from rcg.dag.costs import GivenCosts, costs_of_graph
from rcg.errors import InternalError, PlacementError
from rcg.ir.costs import CALL, MOVE, Cost, Predicted
from rcg.ir.graph import Graph
from rcg.ir.ops import Call
from rcg.ir.plan import Plan
from rcg.option_kinds import check_cost_s
from rcg.trace.analysis.costs import call_costs_of
from rcg.trace.analysis.what_if import from_simulation
from tests.unit.graphs_by_hand import HERE, here
from tests.unit.pipelines import Script
from tests.unit.traces import measure

MS = 1_000_000


def compiled(graph: Graph, costs: Any = (), **options: Any) -> Simulation:
    return compile_graph(graph, here(graph), HERE, 8, costs=costs, **options)


def chain(*actors: int) -> Graph:
    script = Script(max(actors) + 1)
    value = 0
    for at, actor in enumerate(actors):
        value = script.bind(actor, f"f{at}", value)
    return script.graph()


def test_costs_are_times_and_what_is_unknown_is_as_long_as_the_rest():
    costs = [Cost(CALL, 1, 2 * MS), Cost(CALL, 2, 4 * MS), Cost(MOVE, 1, MS)]
    plan = compiled(chain(0, 1, 0), costs).plan
    found = OpCosts(plan)
    took = {op.node: found.of(op) for each in plan.programs for op in each.ops if type(op) is Call}
    assert took == {1: 2 * MS, 2: 4 * MS, 3: 3 * MS}
    (send,) = [op for op in plan.program("a0").ops if op.channels_out == ("c1",)]
    (again,) = [op for op in plan.program("a1").ops if op.channels_out == ("c2",)]
    assert (found.of(send), found.of(again)) == (MS, 3 * MS / 20)


def test_the_plan_says_what_each_process_will_do():
    costs = [Cost(CALL, 1, 2 * MS), Cost(CALL, 2, 6 * MS)]
    plan = compiled(chain(0, 1), costs).plan
    busy = {each.process: each.busy_ns for each in plan.predicted}
    (period,) = {each.period_ns for each in plan.predicted}
    assert 2 * MS < busy["a0"] < 3 * MS and 6 * MS < busy["a1"] < 7 * MS
    assert period == pytest.approx(busy["a1"], rel=0.01), "the slower one decides"
    assert f"predicted a1 busy {busy['a1']} of {period} ns" in str(plan)
    assert "cost call #2 6000000 ns" in str(plan)
    assert Plan.from_text(str(plan)) == plan == Plan.from_json(plan.to_json())


@pytest.mark.parametrize(
    "change",
    [
        {"costs": (Cost("sleep", 1, 5),)},
        {"costs": (Cost(CALL, 1, -5),)},
        {"costs": (Cost(CALL, 1, 5), Cost(CALL, 1, 6))},
        {"predicted": (Predicted("a7", 1, 2),)},
    ],
)
def test_wrong_costs_are_refused(change: dict[str, Any]):
    with pytest.raises(InternalError):
        replace(compiled(chain(0, 1)).plan, **change).check()


def test_costs_change_the_order_of_transfers():
    """Two makers, one reader: what is made first travels first."""
    script = Script(3)
    slow, fast = script.bind(0, "slow"), script.bind(1, "fast")
    script.bind(2, "join", slow, fast)
    graph = script.graph()

    def reads(costs: list[Cost]) -> list[str]:
        ops = compiled(graph, costs).plan.program("a2").ops
        return [op.channels_in[0] for op in ops if op.channels_in and op.channels_in[0] != "c0"]

    assert reads([Cost(CALL, 1, 9 * MS), Cost(CALL, 2, MS)]) == ["c2", "c1"]
    assert reads([Cost(CALL, 1, MS), Cost(CALL, 2, 9 * MS)]) == ["c1", "c2"]


@pytest.mark.parametrize(
    ("call_ms", "move_ms", "options", "is_on"),
    [
        (4, 2, {}, True),  # the receiver takes 6 ms without, and 4 with
        (4, 0.2, {}, False),  # 4.2 ms and 4
        (4, 2, {"cores": {HERE: 4}}, True),
        (4, 2, {"cores": {HERE: 1}}, False),  # 12 ms of work on one processor, either way
        (4, 2, {"cores": {HERE: 1}, "gpus": {"a0": ("0",), "a1": ("1",)}}, True),
        (4, None, {}, False),  # nothing is known of the transfer
        (None, None, {}, False),
    ],
)
def test_overlap_auto_is_on_where_it_is_predicted_to_pay(call_ms, move_ms, options, is_on):
    graph = chain(0, 1)
    costs = [Cost(CALL, node, round(call_ms * MS)) for node in (1, 2) if call_ms]
    costs += [Cost(MOVE, 1, round(move_ms * MS))] if move_ms else []
    found = compiled(graph, costs, overlap="auto", **options).plan
    assert bool(found.lanes) is is_on
    assert found == compiled(graph, costs, overlap=is_on, **options).plan


def test_overlap_auto_does_without_lanes_for_which_there_is_no_room():
    graph = chain(*range(40))
    costs = [Cost(kind, node, MS) for node in range(1, 40) for kind in (CALL, MOVE)]
    with pytest.raises(PlacementError, match="compile without overlap"):
        compiled(graph, costs, overlap=True)
    assert not compiled(graph, costs, overlap="auto").plan.lanes


# --- where they come from


def declared(graph: Graph, given: Any = None, **of_classes: float) -> dict[int, int]:
    methods = {actor.id: dict(of_classes) for actor in graph.actors}
    costs = GivenCosts(given)
    costs.check(graph)
    return {cost.node: cost.cost_ns for cost in costs_of_graph(graph, costs, methods)}


def test_the_call_wins_over_the_method_and_compile_over_both():
    graph = chain(0, 1, 0)
    nodes = list(graph.nodes)
    nodes[1] = replace(nodes[1], cost_s=0.5)
    graph = replace(graph, nodes=tuple(nodes))
    assert declared(graph) == {1: 500 * MS}
    assert declared(graph, f0=0.25, f1=0.125) == {1: 500 * MS, 2: 125 * MS}
    assert declared(graph, {"f0": 1, "a1.f1": 2, "Stage.f2": 3}, f0=0.25) == {
        1: 1000 * MS,
        2: 2000 * MS,
        3: 3000 * MS,
    }


def test_a_profile_tells_the_costs_of_another_graph_of_the_same_actors():
    measured = compiled(chain(0, 1, 0)).plan
    nodes = {actor.id: actor.id * 3 for actor in measured.actors}
    measured = replace(
        measured, actors=tuple([replace(each, key=nodes[each.id]) for each in measured.actors])
    )
    tensors = {channel.id for channel in measured.channels if channel.kind == "tensor"}

    def cost(op: Any) -> float:
        if isinstance(op, Call):
            return {1: 2.0, 2: 5.0, 3: 1.0}[op.node] * MS
        return 0.5 * MS if {*op.channels_in, *op.channels_out} & tensors else 1000.0

    trace = from_simulation(simulate(measured, cost, 8))
    found = call_costs_of([(measured, measure(trace).costs.costs)])
    assert found.calls == {
        ("a0a0a0", "f0"): pytest.approx(2 * MS),
        ("a1a1a1", "f1"): pytest.approx(5 * MS),
        ("a0a0a0", "f2"): pytest.approx(MS),
    }
    assert {(each.actor, each.method, each.reader) for each in found.transfers} == {
        ("a0a0a0", "f0", "a1a1a1"),
        ("a1a1a1", "f1", "a0a0a0"),
    }
    assert all(each == pytest.approx(0.5 * MS) for each in found.transfers.values())


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"f0": -1}, ValueError, r"costs\['f0'\] must be a number of seconds from 0 to 1,000,000"),
        ({"f0": "long"}, TypeError, "must be a number of seconds"),
        ({"nobody": 1}, ValueError, "the DAG has no such call: it has Stage.f0, a0.f0, f0"),
        (7, TypeError, "costs must be a profile"),
    ],
)
def test_wrong_costs_of_users_say_what_to_do(given: Any, error: type[Exception], text: str):
    with pytest.raises(error, match=text):
        declared(chain(0), given)


@pytest.mark.parametrize("wrong", [True, "1", None, float("nan"), float("inf"), -0.1])
def test_a_cost_is_a_time(wrong: Any):
    with pytest.raises((TypeError, ValueError)):
        check_cost_s(wrong, "cost_s")
