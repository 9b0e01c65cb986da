# SPDX-License-Identifier: Apache-2.0
"""DAGs written with ``ray.dag`` and handed to ``rcg.compile``."""

from __future__ import annotations

import pytest
import ray

import rcg
from rcg.dag.hints import TorchTensorType
from rcg.dag.lower import lower
from rcg.errors import GraphError, UnsupportedNodeError
from rcg.interop import is_ray_node, records_of_ray_dag
from rcg.ir.nodes import CollectiveCall
from tests.unit.fake_actors import FakeCommunicator

ray_dag = pytest.importorskip("ray.dag", reason="this Ray has no compiled graphs")
rays = pytest.importorskip("ray.experimental.collective", reason="this Ray has no collectives")
rays_types = pytest.importorskip("ray.experimental.util.types")
RaysCommunicator = pytest.importorskip("ray.experimental.channel.communicator").Communicator
RaysTensorType = pytest.importorskip("ray.experimental.channel.torch_tensor_type").TorchTensorType
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
        with pytest.raises(NotImplementedError, match="only support actor method nodes") as caught:
            rcg.compile(function.bind(inp))
        assert isinstance(caught.value, UnsupportedNodeError)
        with pytest.raises(ValueError, match="already created"):
            rcg.compile(Stage.bind())
        with pytest.raises(ValueError, match="already created"):
            rcg.compile(Stage.bind().add.bind(inp))


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


# --- hints and collectives


class Communicator(FakeCommunicator, RaysCommunicator):
    """Ray takes only what derives from its own class."""

    recv_stream = send_stream = None


# Ray's class is abstract; the methods are those of the fake.
Communicator.__abstractmethods__ = frozenset()


def test_hints_are_taken_over(a, b):
    with InputNode() as inp:
        inp.with_tensor_transport(device="cuda")
        left, right = a.split.bind(inp)
        left.with_tensor_transport(_static_shape=True)
        right.with_tensor_transport("shm", _direct_return=True)
        dag = b.take.bind(left, right, a.add.bind(inp)).with_tensor_transport("shm", "gpu")
    graph, _ = graph_of(dag)
    hints = {graph.name(node.id): node.hint for node in graph.nodes}
    assert {
        name: hint and (hint.transport, hint.device, hint.is_static_shape, hint.is_direct_return)
        for name, hint in hints.items()
    } == {
        "InputNode": ("auto", "cuda", False, False),
        "Stage.split": None,
        "Stage.split[0]": ("auto", "default", True, False),
        "Stage.split[1]": ("shm", "default", False, True),
        "Stage.add": None,
        "Stage.take": ("shm", "cuda", False, False),
    }


@pytest.mark.parametrize("kind", [TorchTensorType, RaysTensorType])
def test_type_hints_of_both_on_a_node_of_rcgs(a, kind):
    with rcg.dag.InputNode() as inp:
        node = rcg.wrap_actor(a).add.bind(inp)
    node.with_type_hint(kind(_static_shape=True, _direct_return=True))
    hint = node._record.cell.hint
    assert (hint.device, hint.is_static_shape, hint.is_direct_return) == ("default", True, True)
    # For Ray's older form, "auto" means through the host's memory.
    assert hint.transport == ("auto" if kind is TorchTensorType else "shm")


def test_communicators_are_taken_over(a, b):
    communicator = Communicator([b, a])
    with InputNode() as inp:
        node = a.add.bind(inp).with_tensor_transport(communicator)
        dag = b.add.bind(node)
    graph, bindings = graph_of(dag)
    (spec,) = graph.communicators
    assert (spec.backend, spec.members) == ("Communicator", ("a1", "a0"))
    assert bindings.constants[spec.const] is communicator
    assert graph.nodes[1].hint.communicator == spec.const


def collectives_of(node):
    graph, bindings = graph_of(node)
    return [
        (node.kind, node.reduction, bindings.actors[node.actor], node.rank, node.args)
        for node in graph.nodes
        if isinstance(node, CollectiveCall)
    ]


@pytest.mark.parametrize("used", [(0, 1), (1, 0), (0,), (1,)])
def test_collectives_are_taken_over(a, b, used):
    with InputNode() as inp:
        made = [b.add.bind(inp), a.add.bind(inp)]
        results = rays.allreduce.bind(made, rays_types.ReduceOp.MAX)
        dag = MultiOutputNode([results[position] for position in used])
    assert collectives_of(dag) == [
        ("allreduce", "max", b, 0, (1,)),
        ("allreduce", "max", a, 1, (2,)),
    ]
    graph, bindings = graph_of(dag)
    assert [bindings.actors[graph.actor_of(node)] for node in graph.outputs] == [
        (b, a)[position] for position in used
    ]


@pytest.mark.parametrize(
    ("kind", "reduction"), [("allgather", None), ("reducescatter", "sum"), ("allreduce", "sum")]
)
def test_every_kind_and_calls_behind_it(a, b, kind, reduction):
    with InputNode() as inp:
        results = getattr(rays, kind).bind([a.add.bind(inp), b.add.bind(inp)])
        dag = b.take.bind(*results)
    found = collectives_of(dag)
    assert [each[:2] for each in found] == [(kind, reduction)] * 2


def test_several_tensors_are_taken_over(a, b):
    with InputNode() as inp:
        lists = [[a.add.bind(inp, n), b.add.bind(inp, n)] for n in range(2)]
        results = rays.allreduce.bind(lists)
        results[1][0].with_tensor_transport("shm")
        dag = MultiOutputNode([results[1][0], results[0][1]])
    graph, bindings = graph_of(dag)
    parts = [graph.nodes[node] for node in graph.outputs]
    assert [(bindings.actors[graph.actor_of(part.id)], part.index) for part in parts] == [
        (b, 0),
        (a, 1),
    ]
    assert [part.hint and part.hint.transport for part in parts] == ["shm", None]


def test_collectives_and_calls_keep_their_bind_order(a, b):
    with InputNode() as inp:
        first = rays.allreduce.bind([a.add.bind(inp, 1), b.add.bind(inp, 2)])
        after = a.add.bind(inp, 3)
        second = rays.allgather.bind([b.add.bind(inp, 4), after])
        dag = MultiOutputNode([*second, *first, b.add.bind(inp, 5)])
    graph, bindings = graph_of(dag)
    order = [
        node.kind if isinstance(node, CollectiveCall) else bindings.constants[node.args[1].const]
        for node in graph.nodes[1:]
    ]
    assert order.index("allreduce") < order.index(3) < order.index("allgather") < order.index(5)


def test_communicators_of_collectives_are_taken_over(a, b):
    with InputNode() as inp:
        made = [a.add.bind(inp), b.add.bind(inp)]
        dag = rays.allreduce.bind(made, transport=Communicator([b, a]))[0]
    graph, bindings = graph_of(dag)
    (spec,) = graph.communicators
    assert [bindings.actors[actor] for actor in spec.members] == [b, a]
    assert [node[2] for node in collectives_of(dag)] == [b, a]
