# SPDX-License-Identifier: Apache-2.0
"""DAGs written with ``ray.dag`` and handed to ``rcg.compile``."""

from __future__ import annotations

import pytest
import ray

import rcg
from rcg.dag.lower import lower
from rcg.errors import GraphError, UnsupportedNodeError
from rcg.interop import is_ray_node, records_of_ray_dag

ray_dag = pytest.importorskip("ray.dag", reason="this Ray has no compiled graphs")
InputNode, MultiOutputNode = ray_dag.InputNode, ray_dag.MultiOutputNode

pytestmark = pytest.mark.usefixtures("ray_session")


@ray.remote(num_cpus=0)
class Stage:
    def add(self, x, y=1):
        return x + y

    def take(self, *args, **kwargs):
        return args, kwargs

    @ray.method(num_returns=2)
    def split(self, x):
        return x, -x


@ray.remote
def function(x):
    return x


@pytest.fixture(scope="module")
def a(ray_session):
    return Stage.remote()


@pytest.fixture(scope="module")
def b(ray_session):
    return Stage.remote()


def graph_of(node):
    return lower(records_of_ray_dag(node))


def calls_of(node):
    """Actor, method and constants of each call, in the order in which they run."""
    graph, bindings = graph_of(node)
    return [
        (call.actor, call.method, [bindings.constants[arg.const] for arg in call.args[1:]])
        for call in graph.nodes
        if hasattr(call, "method")
    ]


def test_telling_rays_nodes_apart(a):
    with InputNode() as inp:
        assert is_ray_node(inp)
        assert is_ray_node(a.add.bind(inp))
    with rcg.dag.InputNode() as own:
        assert not is_ray_node(own)
    assert not is_ray_node(a)
    assert not is_ray_node("node")


def test_a_chain(a, b):
    with InputNode() as inp:
        dag = b.add.bind(a.add.bind(inp), 10)
    with rcg.compile(dag) as graph:
        assert rcg.get(graph.execute(1)) == 12


def test_inputs_outputs_and_parts(a, b):
    with InputNode() as inp:
        left, right = a.split.bind(inp[0])
        added = b.add.bind(right, inp.amount)
        dag = MultiOutputNode([added, left, added])
    with rcg.compile(dag) as graph:
        assert rcg.get(graph.execute(3, amount=1)) == [-2, 3, -2]


def test_nested_nodes_and_keywords(a):
    with InputNode() as inp:
        first = a.add.bind(inp)
        dag = a.take.bind([inp, {"k": first}], scale=2, nested={"f": first})
    with rcg.compile(dag) as graph:
        assert rcg.get(graph.execute(1)) == (([1, {"k": 2}],), {"scale": 2, "nested": {"f": 2}})


def test_calls_keep_their_bind_order(a, b):
    with InputNode() as inp:
        first = a.add.bind(inp, 1)
        second = b.add.bind(inp, 2)
        third = a.add.bind(inp, 3)
        fourth = b.add.bind(first, 4)
        # The outputs name them in another order.
        dag = MultiOutputNode([fourth, third, second, first])
    calls = calls_of(dag)
    by_method = {actor: [c[2][0] for c in calls if c[0] == actor] for actor in ("a0", "a1")}
    assert sorted(by_method.values()) == [[1, 3], [2, 4]]
    assert calls == calls_of(dag)


def test_the_place_is_the_line_that_handed_it_over(a):
    dag = a.add.bind(1)
    with pytest.raises(GraphError, match=r"No InputNode found.*test_interop\.py"):
        rcg.compile(dag)


def test_an_unused_part_of_the_input(a):
    with InputNode() as inp:
        dag = a.add.bind(inp[0])
        _ = inp[1]
    with pytest.raises(GraphError, match="1 is unused"):
        rcg.compile(dag)


def test_nodes_that_rcg_does_not_run(a):
    with InputNode() as inp:
        with pytest.raises(NotImplementedError, match="only support actor method nodes") as told:
            rcg.compile(function.bind(inp))
        assert isinstance(told.value, UnsupportedNodeError)
        with pytest.raises(ValueError, match="already created"):
            rcg.compile(Stage.bind())
        with pytest.raises(ValueError, match="already created"):
            rcg.compile(Stage.bind().add.bind(inp))
        with pytest.raises(UnsupportedNodeError, match="with_tensor_transport"):
            rcg.compile(a.add.bind(inp).with_tensor_transport())


def test_a_cycle(a, b):
    with InputNode() as inp:
        first = a.add.bind(inp)
        second = b.add.bind(first)
    first._bound_args = (second,)  # Ray's nodes can be bent into one, rcg's cannot
    with pytest.raises(GraphError, match="cycle"):
        rcg.compile(second)


def test_options_are_the_same(a):
    with InputNode() as inp:
        dag = a.add.bind(inp)
    with pytest.raises(TypeError, match="wrong_option"):
        rcg.compile(dag, wrong_option=1)


def test_compiling_again(a):
    with InputNode() as inp:
        dag = a.add.bind(inp)
    for _ in range(2):
        with rcg.compile(dag) as graph:
            assert rcg.get(graph.execute(1)) == 2
