# SPDX-License-Identifier: Apache-2.0
"""Random DAGs with tensor hints and collectives, on real actors over real Gloo.

They give what plain Python gives, several executions at a time. A number of a case is a tensor
without dimensions here. And a plan that ``simulate`` refuses hangs when it runs all the same.
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st

import rcg
from rcg import collective
from rcg.collective import ReduceOp
from rcg.compiler.simulate import Simulation, simulate
from rcg.dag import InputNode, MultiOutputNode, compile
from rcg.errors import ChannelClosed, DeadlockError
from rcg.ir.nodes import CollectiveCall, InputValue, MethodCall, Part
from rcg.ir.plan import Plan
from tests.cluster.stage import GUARD_S
from tests.unit.random_graphs import Case, arguments_of, call_method, cases, evaluate, swaps
from tests.unit.test_rendezvous import planned

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("ray_session")

ACTORS = 5
# Not reducescatter: a part of a tensor without dimensions is none.
COLLECTIVES = ("allreduce", "broadcast", "reduce", "allgather", "gather")
# A plan that runs at all runs in milliseconds.
HANG_S = 1.0
EXAMPLES = int(os.environ.get("RCG_TEST_EXAMPLES", settings.default.max_examples))


def plain(value: Any) -> Any:
    """Numbers for tensors, anywhere in a value."""
    match value:
        case torch.Tensor():
            found = value.tolist()
            return tuple(found) if isinstance(found, list) else found
        case list() | tuple():
            return type(value)(plain(each) for each in value)
        case dict():
            return {key: plain(each) for key, each in value.items()}
    return value


class Worker:
    """Runs the calls of any case."""

    def run(self, _node, _returns, *args, **kwargs):
        named = {name: plain(each) for name, each in kwargs.items()}
        result = call_method(_node, _returns, [plain(each) for each in args], named)
        if _returns == 1:
            return torch.tensor(result)
        return [torch.tensor(each) for each in result]


@pytest.fixture(scope="module")
def workers(ray_session):
    actor_class = rcg.remote(num_cpus=0)(Worker)
    made = [actor_class.remote() for _ in range(ACTORS)]
    rcg.get([each.run.remote(0, 1) for each in made])
    yield made
    for each in made:
        rcg.kill(each)


def bind(case: Case, workers: list[Any]) -> Any:
    """Write the DAG of a case as a user would; returns its root."""
    graph, nodes = case.graph, []
    actors = {spec.id: worker for spec, worker in zip(graph.actors, workers, strict=False)}
    ranks: dict[int, list[CollectiveCall]] = {}
    results: dict[int, list[Any]] = {}
    for node in graph.nodes:
        if isinstance(node, CollectiveCall):
            ranks.setdefault(node.collective, []).append(node)

    def bound(number: int) -> list[Any]:
        """The results of a collective, one for each rank."""
        members = sorted(ranks[number], key=lambda each: each.rank)
        first = members[0]
        lists = [
            [nodes[each.args[at]] if each.args else actors[each.actor] for each in members]
            for at in range(first.num_returns)
        ]
        options: dict[str, Any] = {"transport": "gloo"}
        if first.reduction is not None:
            options["op"] = ReduceOp(first.reduction)
        if first.root is not None:
            options["root"] = first.root
        given = lists if first.num_returns > 1 else lists[0]
        return list(getattr(collective, first.kind).bind(given, **options))

    with InputNode() as inp:
        for node in graph.nodes:
            match node:
                case InputValue(key=key):
                    made = inp if key is None else inp[key]
                case MethodCall():
                    args, kwargs = arguments_of(case, node, nodes)
                    method = actors[node.actor].run
                    if node.num_returns > 1:
                        method = method.options(num_returns=node.num_returns)
                    made = method.bind(node.id, node.num_returns, *args, **kwargs)
                case CollectiveCall(collective=number, rank=rank):
                    if number not in results:
                        results[number] = bound(number)
                    made = results[number][rank]
                case Part(call=call, index=index):
                    made = nodes[call][index]
            hint = node.hint
            is_value = getattr(node, "num_returns", 1) == 1 and not isinstance(node, InputValue)
            if hint is not None and is_value:
                made.with_tensor_transport(
                    transport=hint.transport,
                    device=hint.device,
                    _static_shape=hint.is_static_shape,
                )
            nodes.append(made)
        if graph.is_multi:
            return MultiOutputNode([nodes[output] for output in graph.outputs])
        return nodes[graph.outputs[0]]


def compiled(dag: Any, *, overlap: bool = False) -> Any:
    """Compile; that the driver reads through shared memory is said elsewhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dag.experimental_compile(overlap=overlap)


def submit(case: Case, graph: Any, inputs: dict[Any, Any]) -> list[Any]:
    positional = case.graph.num_positional
    args = [inputs[None]] if None in inputs else [inputs.get(i) for i in range(positional)]
    named = {key: value for key, value in inputs.items() if isinstance(key, str)}
    found = graph.execute(*args, **named)
    return found if case.graph.is_multi else [found]


def inputs_of(case: Case, executions: int) -> list[dict[Any, Any]]:
    keys = [node.key for node in case.graph.nodes if isinstance(node, InputValue)]
    return [{key: at * 100 + n for n, key in enumerate(keys)} for at in range(executions)]


def right(case: Case, graph: Any, executions: int) -> None:
    """So many executions at once give what plain Python gives."""
    inputs = inputs_of(case, executions)
    refs = [submit(case, graph, each) for each in inputs]
    for each, execution in zip(inputs, refs, strict=True):
        found = [plain(rcg.get(ref, timeout=GUARD_S)) for ref in execution]
        assert found == evaluate(case, each)


SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@SETTINGS
@given(case=cases(max_actors=ACTORS, has_tensors=True, kinds=COLLECTIVES), count=st.integers(1, 5))
def test_random_dags_with_tensors_give_what_plain_python_gives(workers, case, count):
    note(case.graph)
    with compiled(bind(case, workers)) as graph:
        event(f"{len(graph.plan.groups)} groups")
        right(case, graph, count)


@pytest.mark.full
@settings(SETTINGS, max_examples=max(EXAMPLES // 2, 1))
@given(case=cases(max_actors=ACTORS, has_tensors=True, kinds=COLLECTIVES), count=st.integers(1, 5))
def test_random_dags_give_the_same_where_transfers_overlap(workers, case, count):
    note(case.graph)
    with compiled(bind(case, workers), overlap=True) as graph:
        event(f"{len(graph.plan.lanes)} lanes")
        right(case, graph, count)


def is_refused(plan: Plan) -> bool:
    try:
        simulate(plan, executions=1)
    except DeadlockError:
        return True
    return False


# Few actors and many calls, so that there is something to swap.
SWAPPABLE = cases(max_calls=12, max_actors=3, has_tensors=True, kinds=COLLECTIVES).filter(
    lambda case: swaps(planned(case.graph))
)


@pytest.mark.full
@settings(SETTINGS, max_examples=max(EXAMPLES // 8, 1))
@given(case=SWAPPABLE, data=st.data())
def test_a_plan_that_simulate_refuses_hangs_and_no_other(workers, case, data):
    """Two rendezvous of an actor are swapped behind the compiler's back."""
    found: list[Plan] = []

    def swapped(*args: Any, **options: Any) -> Simulation:
        simulation = compile.compile_graph_unchanged(*args, **options)
        plans = swaps(simulation.plan)
        if plans:
            # Of each kind if there are both, so that neither is rare.
            refused = [plan for plan in plans if is_refused(plan)]
            accepted = [plan for plan in plans if plan not in refused]
            kinds = [each for each in (refused, accepted) if each]
            found.append(data.draw(st.sampled_from(data.draw(st.sampled_from(kinds)))))
            return dataclasses.replace(simulation, plan=found[0])
        return simulation

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compile, "compile_graph_unchanged", compile.compile_graph, raising=False)
        patch.setattr(compile, "compile_graph", swapped)
        graph = compiled(bind(case, workers))
    if not found or not is_refused(found[0]):
        event("accepted" if found else "nothing to swap")
        with graph:
            right(case, graph, 2)
        return
    event("refused")
    note(found[0])
    refs = submit(case, graph, inputs_of(case, 1)[0])
    ready, _ = rcg.wait(refs, num_returns=len(refs), timeout=HANG_S)
    assert len(ready) < len(refs) or not is_done(graph), "simulate refuses what runs"
    graph.teardown()
    for ref in set(refs) - set(ready):
        with pytest.raises(ChannelClosed):
            rcg.get(ref)


def is_done(graph: Any) -> bool:
    """Whether every process is through with the first execution."""
    return all(each.execution > 0 for each in graph.report().processes if each.process != "driver")
