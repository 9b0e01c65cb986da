# SPDX-License-Identifier: Apache-2.0
"""Random DAGs on real actors give what plain Python gives, several executions at a time."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st

import rcg
from rcg.dag import InputNode, MultiOutputNode
from rcg.ir.nodes import Argument, ConstArg, InputValue, MethodCall, NestedArg, NodeArg, Part
from tests.cluster.stage import Refusal
from tests.unit.random_graphs import Case, arguments_of, call_method, cases

pytestmark = pytest.mark.usefixtures("ray_session")


class Worker:
    """Runs the calls of any case, and remembers which."""

    def __init__(self) -> None:
        self.called: list[int] = []

    def run(self, _node, _returns, _fails_on, *args, **kwargs):
        self.called.append(_node)
        result = call_method(_node, _returns, list(args), kwargs)
        if (result if _returns == 1 else result[0]) % 3 in _fails_on:
            raise Refusal(_node)
        return result

    def take_called(self):
        called, self.called = self.called, []
        return called


@pytest.fixture(scope="module")
def workers(ray_session):
    actor_class = rcg.remote(num_cpus=0)(Worker)
    return [actor_class.remote() for _ in range(4)]


class Failed:
    """Stands for a failed value: the calls that may have raised the exception."""

    def __init__(self, calls: set[int]) -> None:
        self.calls = calls


def bind(case: Case, workers: list[Any], fails_on: dict[int, list[int]]) -> Any:
    """Write the DAG of a case as a user would; returns its root."""
    graph, nodes = case.graph, []
    actors = {spec.id: worker for spec, worker in zip(graph.actors, workers, strict=False)}

    with InputNode() as inp:
        for node in graph.nodes:
            match node:
                case InputValue(key=key):
                    nodes.append(inp if key is None else inp[key])
                case MethodCall():
                    args, kwargs = arguments_of(case, node, nodes)
                    method = actors[node.actor].run
                    if node.num_returns > 1:
                        method = method.options(num_returns=node.num_returns)
                    nodes.append(
                        method.bind(
                            node.id,
                            node.num_returns,
                            fails_on.get(node.id, []),
                            *args,
                            **kwargs,
                        )
                    )
                case Part(call=call, index=index):
                    nodes.append(nodes[call][index])
        if graph.is_multi:
            return MultiOutputNode([nodes[output] for output in graph.outputs])
        return nodes[graph.outputs[0]]


def evaluate(
    case: Case, inputs: dict[Any, Any], fails_on: dict[int, list[int]]
) -> tuple[list[Any], dict[str, list[int]]]:
    """The outputs of one execution, and the calls that each actor runs, in plain Python."""
    results: list[Any] = []
    called: dict[str, list[int]] = {spec.id: [] for spec in case.graph.actors}

    def value(argument: Argument) -> Any:
        match argument:
            case NodeArg(node=node):
                return results[node]
            case ConstArg(const=const):
                return case.constants[const]
            case NestedArg(template=template, nodes=nodes):
                failed = failures([results[node] for node in nodes])
                return failed or case.constants[template].fill([results[node] for node in nodes])

    for node in case.graph.nodes:
        match node:
            case InputValue(key=key):
                results.append(inputs[key])
            case Part(call=call, index=index):
                whole = results[call]
                results.append(whole if isinstance(whole, Failed) else whole[index])
            case MethodCall():
                args = [value(argument) for argument in node.args]
                kwargs = {name: value(argument) for name, argument in node.kwargs}
                failed = failures([*args, *kwargs.values()])
                if failed is None:
                    called[node.actor].append(node.id)
                    result = call_method(node.id, node.num_returns, args, kwargs)
                    first = result if node.num_returns == 1 else result[0]
                    if first % 3 in fails_on.get(node.id, []):
                        failed = Failed({node.id})
                results.append(result if failed is None else failed)
    return [results[output] for output in case.graph.outputs], called


def failures(values: list[Any]) -> Failed | None:
    calls = [found.calls for found in values if isinstance(found, Failed)]
    return Failed(set().union(*calls)) if calls else None


def check(ref: Any, expected: Any) -> None:
    if isinstance(expected, Failed):
        event("an output failed")
        with pytest.raises(Refusal) as raised:
            rcg.get(ref)
        assert raised.value.args[0].args[0] in expected.calls
    else:
        assert rcg.get(ref) == expected


# RCG_TEST_EXAMPLES=5000 looks further. The core has those of test_random_tensors.py.
@pytest.mark.full
@settings(
    max_examples=int(os.environ.get("RCG_TEST_EXAMPLES", settings.default.max_examples)),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_random_dags_give_what_plain_python_gives(workers, data):
    case = data.draw(cases())
    calls = [node.id for node in case.graph.nodes if isinstance(node, MethodCall)]
    some = st.lists(st.integers(0, 2), min_size=1, max_size=2, unique=True)
    fails_on = data.draw(
        st.one_of(st.just({}), st.dictionaries(st.sampled_from(calls), some, max_size=3))
    )
    keys = [node.key for node in case.graph.nodes if isinstance(node, InputValue)]
    values = st.one_of(st.integers(-9, 9), st.text(max_size=3), st.lists(st.integers(), max_size=2))
    executions = data.draw(
        st.lists(st.fixed_dictionaries(dict.fromkeys(keys, values)), min_size=1, max_size=6)
    )
    order = data.draw(st.permutations(range(len(executions))))
    note(case.graph)

    expected = [evaluate(case, inputs, fails_on) for inputs in executions]
    positional = case.graph.num_positional
    with bind(case, workers, fails_on).experimental_compile() as graph:
        refs = []
        for inputs in executions:
            args = [inputs[None]] if None in inputs else [inputs.get(i) for i in range(positional)]
            named = {key: value for key, value in inputs.items() if isinstance(key, str)}
            found = graph.execute(*args, **named)
            refs.append(found if case.graph.is_multi else [found])
        for index in order:
            for ref, output in zip(refs[index], expected[index][0], strict=True):
                check(ref, output)
        rcg.wait([ref for each in refs for ref in each], num_returns=sum(map(len, refs)))
    # Each actor ran its calls in the order of their binds, execution after execution, and what
    # depends on a failure not at all.
    for spec, worker in zip(case.graph.actors, workers, strict=False):
        planned = [node for _, called in expected for node in called[spec.id]]
        assert rcg.get(worker.take_called.remote()) == planned
