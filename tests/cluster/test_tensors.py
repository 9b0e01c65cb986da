# SPDX-License-Identifier: Apache-2.0
"""Tensors between real actors over real Gloo: edges, fan-outs, promises, failures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import rcg
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import TensorMismatch
from rcg.serialization import foreign
from tests.cluster.faults import NOTHING, settled
from tests.cluster.stage import GUARD_S

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("ray_session")

GLOO = {"transport": "gloo"}


class Worker:
    """Makes tensors, looks at them and keeps some."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def full(self, n, value=2.0):
        return torch.full((n,), float(value))

    def make(self, spec):
        """A tensor, or whatever the input says."""
        match spec:
            case "list":
                return [torch.ones(3)]
            case "other shape":
                return torch.ones(2, 2)
        return torch.full((4,), float(spec))

    def total(self, *tensors):
        return float(sum(each.sum() for each in tensors))

    def same(self, value):
        return value

    def keep(self, value):
        """Keep it, and change what was kept before."""
        for each in self.kept:
            each.fill_(-1)
        self.kept.append(value)
        return value

    def has_default_group(self):
        """What a graph must not touch."""
        import torch.distributed as dist

        return dist.is_initialized()

    def settle(self):
        """What the process holds of graphs when its loops have ended."""
        return settled()


Actor = rcg.remote(num_cpus=0)(Worker)


@pytest.fixture(scope="module")
def workers(ray_session: None) -> Iterator[list[Any]]:
    made = [Actor.remote() for _ in range(4)]
    yield made
    for each in made:
        rcg.kill(each)


def compile_edge(
    workers: list[Any], method: str = "make", reader: str = "same", **hints: Any
) -> Any:
    a, b = workers[:2]
    with InputNode() as inp:
        value = getattr(a, method).bind(inp).with_tensor_transport(**{**GLOO, **hints})
        dag = getattr(b, reader).bind(value)
    return rcg.compile(dag)


def get(ref: Any) -> Any:
    return rcg.get(ref, timeout=GUARD_S)


# --- edges


def test_a_tensor_goes_over_gloo_and_many_executions_may_be_in_flight(workers):
    with compile_edge(workers, "full", "total") as graph:
        (group,) = graph.plan.groups
        assert (group.backend, group.members) == ("gloo", ("a0", "a1"))
        assert [each.kind for each in graph.plan.channels] == ["ring", "tensor", "ring"]
        sizes = [1, 0, 1000, 10, 100_000, 3_000_000] * 3
        refs = [graph.execute(n) for n in sizes]
        assert get(refs) == [2.0 * n for n in sizes]


def test_an_input_with_a_communicator_falls_back_and_says_so(workers):
    a = workers[0]
    with InputNode() as inp:
        inp.with_tensor_transport(**GLOO)
        dag = a.total.bind(inp)
    with pytest.warns(UserWarning, match=r"shared memory.*test_tensors\.py"):
        graph = rcg.compile(dag)
    with graph:
        assert get(graph.execute(torch.ones(5))) == 5.0


@pytest.mark.full
def test_arrays_of_jax_travel_as_tensors(workers, monkeypatch):
    jax = pytest.importorskip("jax")
    monkeypatch.setattr(foreign, "_registered", {})  # graphs of later tests have none

    array = jax.numpy.arange(10_000.0)
    rcg.register_array_type(type(array), jax.dlpack.from_dlpack)
    a, b = workers[:2]
    with InputNode() as inp:
        value = a.same.bind(inp).with_tensor_transport(**GLOO)
        dag = b.same.bind(value)
    with rcg.compile(dag) as graph:
        found = get(graph.execute({"w": array}))
        assert type(found["w"]) is type(array)
        assert float(found["w"].sum()) == float(array.sum())


def test_received_tensors_are_the_actors_own(workers):
    """What it returns is copied, so what it changes later changes no result."""
    with compile_edge(workers, "full", "keep") as graph:
        refs = [graph.execute(5000) for _ in range(3)]
        rcg.wait(refs, num_returns=3, timeout=GUARD_S)
        results = [get(ref) for ref in refs]
        assert [each.sum().item() for each in results] == [10_000.0] * 3


# --- promises and failures


@pytest.mark.parametrize(
    ("hint", "spec", "text"),
    [
        ("_direct_return", "list", "_direct_return=True must return a torch.Tensor"),
        ("_static_shape", "other shape", r"Expected torch\.Tensors with shapes"),
    ],
)
def test_a_promise_that_is_broken_is_said_in_the_words_of_ray(workers, hint, spec, text):
    with compile_edge(workers, "make", "total", **{hint: True}) as graph:
        refs = [graph.execute(each) for each in (2, spec, 3)]
        assert get(refs[0]) == 8.0
        with pytest.raises(TensorMismatch, match=text):
            get(refs[1])
        assert get(refs[2]) == 12.0


def test_a_receiver_without_memory_fails_the_execution_and_goes_on(workers):
    def starve(_: Any, is_poor: bool) -> None:
        from rcg.channels import tensor

        def poor(endpoint: Any, size_bytes: int, device: str) -> Any:
            raise MemoryError("no room for a tensor")

        if is_poor:
            tensor.kept_room_for, tensor.room_for = tensor.room_for, poor
        else:
            tensor.room_for = tensor.kept_room_for

    b = workers[1]
    with compile_edge(workers, "full", "total") as graph:
        for n in (3, 30_000_000):
            get_now = get
            rcg.get(rcg.unwrap(b).__ray_call__.remote(starve, True))
            with pytest.raises(MemoryError, match="no room for a tensor"):
                get_now(graph.execute(n))
            rcg.get(rcg.unwrap(b).__ray_call__.remote(starve, False))
            assert get(graph.execute(n)) == 2.0 * n


# --- lifecycle


def test_groups_are_gone_after_teardown_and_the_default_group_is_the_users(workers):
    a, *others = workers
    for _ in range(2):
        with InputNode() as inp:
            value = a.full.bind(inp).with_tensor_transport(**GLOO)
            dag = MultiOutputNode([each.total.bind(value) for each in others])
        with rcg.compile(dag) as graph:
            assert get(graph.execute(10)) == [20.0] * 3
            assert not any(rcg.get([each.has_default_group.remote() for each in workers]))
        assert rcg.get([each.settle.remote() for each in workers]) == [NOTHING] * 4


class Compiler(Worker):
    """Compiles a graph that it is part of."""

    def run(self, me, other):
        with InputNode() as inp:
            value = me.full.bind(inp).with_tensor_transport(**GLOO)
            dag = other.total.bind(value)
        with rcg.compile(dag) as graph:
            return [get(graph.execute(n)) for n in (1, 2, 3)]


@pytest.mark.full
def test_an_actor_may_compile_a_graph_whose_group_it_is_in(workers):
    compiler = rcg.remote(num_cpus=0)(Compiler).remote()
    assert get(compiler.run.remote(compiler, workers[0])) == [2.0, 4.0, 6.0]
    rcg.kill(compiler)


class Keeper:
    """Returns what it keeps, and changes it in a later call."""

    def __init__(self) -> None:
        self.weights = torch.zeros(5000)

    def zero(self, _):
        return torch.zeros(3)

    def give(self, _):
        return {"w": self.weights, "n": self.weights.numpy()[:2000]}

    def step(self, _):
        self.weights += 1
        return self.weights.sum().item()

    def work(self, x):
        return x

    def use(self, value, _):
        return value["w"][0].item(), float(value["n"][0])


@pytest.mark.full
def test_what_is_sent_late_is_what_the_method_returned(ray_session):
    """The reader is busy for long, so the next call of the maker comes before the transfer."""
    keeper, reader, third = (rcg.remote(num_cpus=0)(Keeper).remote() for _ in range(3))
    with InputNode() as inp:
        one, other = keeper.zero.bind(inp), third.zero.bind(inp)
        for _ in range(10):  # so that the reader is in a call when the value is made
            one, other = rcg.collective.allreduce.bind([one, other])
        value = keeper.give.bind(one).with_tensor_transport(**GLOO)
        stepped = keeper.step.bind(one)
        late = inp
        for _ in range(6):
            late = reader.work.bind(late)
        dag = MultiOutputNode([reader.use.bind(value, late), stepped])
    with rcg.compile(dag) as graph:
        assert "Copy" in str(graph.plan.program("a0"))
        for n in range(4):
            assert get(graph.execute(n)) == [(float(n), float(n)), 5000.0 * (n + 1)]
    for each in (keeper, reader, third):
        rcg.kill(each)
