# SPDX-License-Identifier: Apache-2.0
"""Collectives on real actors: the graph they become, and their run without compiling."""

from __future__ import annotations

import sys

import pytest
import ray

import rcg
from rcg.collective import ReduceOp, allgather, allreduce, broadcast, gather, reduce, reducescatter
from rcg.dag import InputNode, MultiOutputNode
from rcg.dag.lower import lower
from rcg.errors import CompileError, TensorMismatch
from tests.harness.circles import core_where
from tests.unit.fake_actors import FakeCommunicator

torch = pytest.importorskip("torch", reason="tensors need torch")

pytestmark = pytest.mark.usefixtures("ray_session")


@rcg.remote(num_cpus=0)
class Worker:
    def __init__(self, number):
        self.number = number

    def scaled(self, x):
        return x * (self.number + 1)

    def value(self, x):
        return x

    @rcg.method(num_returns=2)
    def pair(self, x):
        return x + self.number, x * self.number

    def take(self, *args):
        return args

    def fail(self, x):
        raise KeyError("mine")


@pytest.fixture(scope="module")
def workers(ray_session):
    return [Worker.remote(number) for number in range(3)]


def run(dag, *args):
    """The values of a DAG that is not compiled."""
    return ray.get(dag.execute(*args))


def scaled(workers, inp):
    return [worker.scaled.bind(inp) for worker in workers]


X = torch.tensor([[1.0, -2.0], [3.0, 4.0], [0.5, 8.0]])


@pytest.mark.parametrize(
    ("op", "wanted"),
    core_where(
        lambda case: case[0] in (ReduceOp.SUM, ReduceOp.AVG),
        [
            (ReduceOp.SUM, X * 6),
            (ReduceOp.PRODUCT, X * X * X * 6),
            (ReduceOp.MAX, torch.maximum(X, X * 3)),
            (ReduceOp.MIN, torch.minimum(X, X * 3)),
            (ReduceOp.AVG, X * 2),
        ],
    ),
)
def test_the_reductions(workers, op, wanted):
    with InputNode() as inp:
        made = scaled(workers, inp)
        everywhere = allreduce.bind(made, op=op)
        at_one = reduce.bind(made, op=op, root=2)
        spread = reducescatter.bind(made, op=op)
        dag = MultiOutputNode([*everywhere, *at_one, *spread])
    results = run(dag, X)
    assert all(torch.equal(each, wanted) for each in (*results[:3], results[5]))
    assert results[3:5] == [None, None]
    assert [each.tolist() for each in results[6:]] == [wanted[[row]].tolist() for row in range(3)]


def test_averages_of_whole_numbers_go_towards_zero(workers):
    with InputNode() as inp:
        dag = MultiOutputNode(allreduce.bind(scaled(workers[:2], inp), op=ReduceOp.AVG))
    assert [each.tolist() for each in run(dag, torch.tensor([1, -1]))] == [[1, -1], [1, -1]]


def test_several_tensors_chains_and_calls(workers):
    with InputNode() as inp:
        pairs = [worker.pair.bind(inp) for worker in workers]
        fused = allreduce.bind([[left for left, _ in pairs], [right for _, right in pairs]])
        taken = [worker.take.bind(*mine) for worker, mine in zip(workers, fused, strict=True)]
        chained = allreduce.bind([fused[0][0], fused[1][1]], op=ReduceOp.MAX)
        dag = MultiOutputNode([*taken, chained[1]])
    *taken, chained = run(dag, X)
    for left, right in taken:
        assert torch.equal(left, X * 3 + 3)
        assert torch.equal(right, X * 3)
    assert torch.equal(chained, torch.maximum(X * 3 + 3, X * 3))


def test_ranks_of_a_communicator_of_the_users(workers):
    communicator = FakeCommunicator(workers, ranks=[2, 0, 1])
    with InputNode() as inp:
        made = scaled(workers, inp)
        joined = gather.bind(made, root=1, transport=communicator)
        spread = reducescatter.bind(made, transport=communicator)
        dag = MultiOutputNode([*joined, *spread])
    nothing, at_root, nothing_either, *parts = run(dag, X)
    assert (nothing, nothing_either) == (None, None)
    assert torch.equal(at_root, torch.cat([X * 2, X * 3, X]))
    assert all(torch.equal(part, X[[row]] * 6) for part, row in zip(parts, (2, 0, 1), strict=True))


def test_a_group_of_one(workers):
    with InputNode() as inp:
        dag = allreduce.bind(scaled(workers[1:2], inp))[0]
    assert torch.equal(run(dag, X), X * 2)


def test_an_exception_of_a_member_is_the_result_of_all(workers):
    with InputNode() as inp:
        dag = MultiOutputNode(
            allreduce.bind([workers[0].fail.bind(inp), *scaled(workers[1:], inp)])
        )
    for ref in dag.execute(X):
        with pytest.raises(KeyError, match="mine"):
            ray.get(ref)


@pytest.mark.parametrize(
    ("collective", "given", "words"),
    [
        (allreduce, 3, "Expected a torch tensor for each input node of allreduce"),
        (broadcast, "x", "Expected a torch tensor for each input node of broadcast"),
        (reducescatter, torch.ones(4), r"divisible by the world size 3, but the shape is \[4\]"),
        (reducescatter, torch.tensor(4), r"divisible by the world size 3, but the shape is \[\]"),
        (reduce, torch.ones(3, dtype=torch.complex64), "MAX of complex numbers"),
    ],
)
def test_values_that_do_not_fit(workers, collective, given, words):
    op = {"op": ReduceOp.MAX} if collective is reduce else {}
    with InputNode() as inp:
        dag = collective.bind([worker.value.bind(inp) for worker in workers], **op)[0]
    with pytest.raises(TensorMismatch, match=words) as caught:
        run(dag, given)
    assert isinstance(caught.value, ValueError)
    assert "test_collectives_authored.py:" in str(caught.value)


def test_tensors_without_a_dimension(workers):
    with InputNode() as inp:
        made = scaled(workers, inp)
        dag = MultiOutputNode([allgather.bind(made)[0], allreduce.bind(made)[1]])
    joined, combined = run(dag, torch.tensor(2.0))
    assert joined.tolist() == [2.0, 4.0, 6.0]
    assert (combined.item(), combined.shape) == (12.0, ())


@pytest.mark.parametrize(
    ("collective", "other"),
    [(allreduce, torch.ones(2)), (gather, torch.ones(3, 2, dtype=torch.float64))],
)
def test_tensors_that_differ(workers, collective, other):
    with InputNode() as inp:
        made = [workers[0].value.bind(inp[0]), workers[1].value.bind(inp[1])]
        dag = collective.bind(made)[0]
    with pytest.raises(TensorMismatch, match=r"rank 0 \(Worker\) and rank 1 \(Worker\) differ"):
        run(dag, X, other)


def test_tensors_of_several_dtypes(workers):
    with InputNode() as inp:
        lists = [[worker.value.bind(inp[n]) for worker in workers] for n in range(2)]
        dag = MultiOutputNode(allreduce.bind(lists)[0])
    first, second = run(dag, X, torch.tensor([1, 2]))
    assert torch.equal(first, X * 3)
    assert (second.tolist(), second.dtype) == ([3, 6], torch.int64)


def test_handles_of_rcg_and_of_ray_are_one_actor(workers):
    plain = rcg.unwrap(workers[0])
    with InputNode() as inp:
        dag = MultiOutputNode(broadcast.bind([*scaled(workers[1:], inp), plain]))
    graph, bindings = lower(dag._record)
    assert bindings.actors[graph.nodes[graph.outputs[2]].actor] == plain
    with InputNode() as inp, pytest.raises(ValueError, match="Expected unique actor handles"):
        broadcast.bind([*scaled(workers, inp), plain])


# --- compiling


@rcg.remote(num_cpus=0)
class Bare:
    """An actor whose process has no torch."""

    def __init__(self):
        sys.modules["torch"] = None

    def value(self, x):
        return x

    def take(self, *args):
        return args


@pytest.fixture(scope="module")
def bare(ray_session):
    return Bare.remote()


def test_an_actor_without_torch_in_a_collective(workers, bare):
    with InputNode() as inp:
        dag = allreduce.bind([workers[0].scaled.bind(inp), bare.value.bind(inp)])[0]
    with pytest.raises(CompileError, match=r"`pip install 'rcg\[torch\]'`") as caught:
        dag.compile()
    assert caught.value.node == "allreduce of Bare"
    assert caught.value.actor == "a1 (Bare)"
    assert f"test_collectives_authored.py:{dag._record.site.line}" in str(caught.value)


def test_an_actor_without_torch_at_an_edge(workers, bare):
    with InputNode() as inp:
        made = workers[0].value.bind(inp).with_tensor_transport("gloo")
        dag = bare.take.bind(made)
    with pytest.raises(CompileError, match=r"`pip install 'rcg\[torch\]'`") as caught:
        dag.compile()
    assert (caught.value.node, caught.value.actor) == ("Worker.value", "a1 (Bare)")
    assert f"test_collectives_authored.py:{made._record.site.line}" in str(caught.value)


@pytest.mark.parametrize("transport", [None, "auto", "shm"])
def test_an_actor_that_moves_no_tensors_needs_no_torch(workers, bare, transport):
    with InputNode() as inp:
        made = workers[0].value.bind(inp)
        if transport is not None:
            made.with_tensor_transport(transport)
        dag = bare.take.bind(made)
    with dag.compile() as graph:
        assert rcg.get(graph.execute(3)) == (3,)
