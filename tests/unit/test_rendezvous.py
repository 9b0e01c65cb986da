# SPDX-License-Identifier: Apache-2.0
"""Tensor channels and collectives in the compiler: channels, groups, order, what is refused."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rcg.compiler import compile_graph
from rcg.compiler.place import place
from rcg.compiler.schedule import schedule
from rcg.compiler.simulate import simulate
from rcg.errors import DeadlockError
from rcg.ir.graph import Graph
from rcg.ir.nodes import InputValue
from rcg.ir.plan import Plan
from tests.unit.random_graphs import Case, StuckError, cases, evaluate, interpret, swaps

HERE = "node-1"


def placed(graph: Graph, channel_slots: int = 4) -> Plan:
    return place(graph, {actor.id: HERE for actor in graph.actors}, HERE, channel_slots)


def planned(graph: Graph, channel_slots: int = 4) -> Plan:
    nodes = {actor.id: HERE for actor in graph.actors}
    return compile_graph(graph, nodes, HERE, channel_slots).plan


def inputs_of(case: Case, executions: int) -> list[dict[Any, Any]]:
    keys = [node.key for node in case.graph.nodes if isinstance(node, InputValue)]
    return [{key: at * 100 + n for n, key in enumerate(keys)} for at in range(executions)]


@given(cases(max_actors=5, has_tensors=True), st.integers(1, 3), st.integers(1, 4))
def test_every_graph_runs_and_computes_what_it_says(case: Case, slots: int, executions: int):
    placed(case.graph, slots).check()
    plan = planned(case.graph, slots)
    plan.check()
    simulate(plan, executions=executions)
    inputs = inputs_of(case, executions)
    outputs, _ = interpret(plan, case.constants, inputs)
    assert outputs == [evaluate(case, each) for each in inputs]


@given(cases(max_actors=5, has_tensors=True))
def test_scheduling_is_idempotent(case: Case):
    plan = schedule(placed(case.graph))
    assert schedule(plan) == plan


def is_refused(plan: Plan, executions: int) -> bool:
    try:
        simulate(plan, executions=executions)
    except DeadlockError as error:
        refusal = error
    else:
        return False
    assert "=>" in (refusal.programs or "")
    assert " waits for " in refusal.message
    return True


def is_stuck(case: Case, plan: Plan, executions: int) -> bool:
    try:
        interpret(plan, case.constants, inputs_of(case, executions))
    except StuckError:
        return True
    return False


@given(cases(max_calls=8, max_actors=3, has_tensors=True), st.data())
def test_a_plan_with_two_rendezvous_swapped_is_refused_exactly_when_it_hangs(
    case: Case, data: st.DataObject
):
    found = swaps(planned(case.graph))
    if found:
        plan = data.draw(st.sampled_from(found))
        expected = is_stuck(case, plan, 3)
        assert is_refused(plan, 1) == expected, "one execution decides"
        assert is_refused(plan, 4) == expected
