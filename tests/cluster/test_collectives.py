# SPDX-License-Identifier: Apache-2.0
"""Collectives as nodes of compiled graphs, over real Gloo between real actors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import rcg
from rcg import collective
from rcg.collective import ReduceOp
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import TensorMismatch
from tests.cluster.stage import GUARD_S

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("ray_session")


class Worker:
    """Makes tensors whose numbers say which rank made them."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def make(self, n):
        """[n] numbers: the rank plus one; anything else is a bad input."""
        if n == "raise":
            raise LookupError(f"no tensor at {self.rank}")
        if n == "text":
            return "no tensor"
        return torch.full((n,), float(self.rank + 1))

    def number(self, _):
        return torch.tensor(float(self.rank + 1))

    def odd(self, n):
        """As ``make``, but wrong at rank 1."""
        return self.make(n) if self.rank != 1 else self.make("raise")

    def longer(self, n):
        return self.make(n + (self.rank == 1))

    def lying_otherwise(self, how):
        """A tensor whose memory does not have its numbers one after another, as they are."""
        numbers = torch.arange(24.0).view(1, 4, 2, 3) + self.rank
        return {
            "transposed": lambda: numbers.view(6, 4).t(),
            "at rank 1": lambda: numbers.view(6, 4).t() if self.rank else torch.zeros(4, 6),
            "a step": lambda: numbers.view(24)[::2],
            "expanded": lambda: numbers[0, 0, :, :1].expand(2, 3),
            "channels last": lambda: numbers.to(memory_format=torch.channels_last).squeeze(0),
            "conjugated": lambda: (numbers.view(24) * 1j).conj(),
            "negated": lambda: (numbers.view(24) * 1j).conj().imag,
        }[how]()

    @rcg.method(num_returns=2)
    def two(self, n):
        return torch.full((n,), float(self.rank)), torch.full((2, n), self.rank, dtype=torch.int64)

    def scale(self, tensor, by):
        return tensor * by

    def listed(self, tensor):
        return None if tensor is None else tensor.tolist()

    def total(self, *tensors):
        return float(sum(each.sum() for each in tensors))


Actor = rcg.remote(num_cpus=0)(Worker)


@pytest.fixture(scope="module")
def workers(ray_session: None) -> Iterator[list[Any]]:
    made = [Actor.remote(rank) for rank in range(4)]
    yield made
    for each in made:
        rcg.kill(each)


def get(ref: Any) -> Any:
    return rcg.get(ref, timeout=GUARD_S)


def bind(workers: list[Any], kind: str, method: str = "make", **options: Any) -> Any:
    with InputNode() as inp:
        values = [getattr(each, method).bind(inp) for each in workers]
        results = getattr(collective, kind).bind(values, **options)
        return MultiOutputNode(
            [each.listed.bind(found) for each, found in zip(workers, results, strict=True)]
        )


EXPECTED = {
    "allreduce": [[6.0] * 6] * 3,
    "allgather": [[1.0] * 6 + [2.0] * 6 + [3.0] * 6] * 3,
    "reducescatter": [[6.0] * 2] * 3,
    "broadcast": [[1.0] * 6] * 3,
    "reduce": [[6.0] * 6, None, None],
    "gather": [[1.0] * 6 + [2.0] * 6 + [3.0] * 6, None, None],
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_every_collective_compiled_and_uncompiled(workers, kind):
    dag = bind(workers[:3], kind)
    with rcg.compile(dag) as graph:
        (group,) = graph.plan.groups
        assert group.members == ("a0", "a1", "a2")
        for _ in range(3):
            assert get(graph.execute(6)) == EXPECTED[kind]
        refs = [graph.execute(6) for _ in range(8)]
        assert get(refs) == [EXPECTED[kind]] * 8
    assert get(dag.execute(6)) == EXPECTED[kind]


@pytest.mark.parametrize("kind", ["broadcast", "reduce", "gather"])
def test_a_root_that_is_not_the_first(workers, kind):
    wanted = {
        "broadcast": [[3.0] * 2] * 3,
        "reduce": [None, None, [6.0] * 2],
        "gather": [None, None, [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]],
    }[kind]
    dag = bind(workers[:3], kind, root=2)
    with rcg.compile(dag) as graph:
        assert get(graph.execute(2)) == wanted
    assert get(dag.execute(2)) == wanted


@pytest.mark.parametrize(
    ("op", "value"),
    [("SUM", 3.0), ("PRODUCT", 2.0), ("MAX", 2.0), ("MIN", 1.0), ("AVG", 1.5)],
)
def test_every_reduction_is_the_same_bit_for_bit_in_both_modes(workers, op, value):
    dag = bind(workers[:2], "allreduce", op=ReduceOp[op])
    with rcg.compile(dag) as graph:
        assert get(graph.execute(3)) == [[value] * 3] * 2
    assert get(dag.execute(3)) == [[value] * 3] * 2


LYING = ["transposed", "at rank 1", "a step", "expanded", "channels last", "conjugated", "negated"]


@pytest.mark.parametrize("how", LYING)
@pytest.mark.parametrize("kind", ["allreduce", "reducescatter", "reduce", "allgather"])
def test_tensors_that_lie_otherwise_in_memory_are_combined_in_both_modes(workers, kind, how):
    dag = bind(workers[:2], kind, method="lying_otherwise")
    tensors = [Worker(rank).lying_otherwise(how) for rank in range(2)]
    wanted: list[Any] = [sum(tensors).tolist()] * 2
    if kind == "reduce":
        wanted[1] = None
    elif kind == "reducescatter":
        wanted = [each.tolist() for each in sum(tensors).chunk(2)]
    elif kind == "allgather":
        wanted = [torch.cat(tensors).tolist()] * 2
    with rcg.compile(dag) as graph:
        assert get(graph.execute(how)) == wanted
    assert get(dag.execute(how)) == wanted


def test_several_tensors_of_each_actor(workers):
    with InputNode() as inp:
        values = [list(each.two.bind(inp)) for each in workers[:3]]
        results = collective.allreduce.bind([list(each) for each in zip(*values, strict=True)])
        dag = MultiOutputNode(
            [
                each.total.bind(one, two)
                for each, (one, two) in zip(workers[:3], results, strict=True)
            ]
        )
    with rcg.compile(dag) as graph:
        assert get(graph.execute(4)) == [3.0 * 4 + 3 * 8] * 3
    assert get(dag.execute(4)) == [3.0 * 4 + 3 * 8] * 3


def test_collectives_over_overlapping_actors_in_a_chain(workers):
    """Two groups and an edge, as in tensor and pipeline parallelism together."""
    a, b, c, d = workers
    with InputNode() as inp:
        first = collective.allreduce.bind([a.make.bind(inp), b.make.bind(inp)])
        scaled = [each.scale.bind(value, 10) for each, value in zip((a, b), first, strict=True)]
        moved = c.scale.bind(scaled[1].with_tensor_transport(transport="gloo"), 2)
        second = collective.allreduce.bind([scaled[0], moved, d.make.bind(inp)])
        third = collective.allgather.bind([second[1], second[2]])
        dag = MultiOutputNode(
            [a.total.bind(second[0]), c.total.bind(third[0]), d.total.bind(third[1])]
        )
    with rcg.compile(dag) as graph:
        assert {group.members for group in graph.plan.groups} >= {
            ("a0", "a1"),
            ("a0", "a2", "a3"),
            ("a2", "a3"),
        }
        for n in (1, 5):
            assert get(graph.execute(n)) == [n * (30 + 60 + 4), 2 * n * 94, 2 * n * 94]


def test_numbers_are_gathered_into_a_vector(workers):
    with InputNode() as inp:
        values = [each.number.bind(inp) for each in workers[:3]]
        dag = workers[0].listed.bind(collective.allgather.bind(values)[0])
    with rcg.compile(dag) as graph:
        assert get(graph.execute(0)) == [1.0, 2.0, 3.0]
    assert get(dag.execute(0)) == [1.0, 2.0, 3.0]


def test_only_some_results_are_used(workers):
    with InputNode() as inp:
        results = collective.allreduce.bind([each.make.bind(inp) for each in workers[:3]])
        dag = workers[1].total.bind(results[1])
    with rcg.compile(dag) as graph:
        assert [get(graph.execute(n)) for n in (1, 2, 3)] == [6.0, 12.0, 18.0]


def test_a_broadcast_to_actors_that_have_nothing(workers):
    a, b, c, _ = workers
    with InputNode() as inp:
        results = collective.broadcast.bind([a.make.bind(inp), b, c])
        dag = MultiOutputNode(
            [each.listed.bind(value) for each, value in zip((a, b, c), results, strict=True)]
        )
    with rcg.compile(dag) as graph:
        assert get(graph.execute(2)) == [[1.0, 1.0]] * 3
    assert get(dag.execute(2)) == [[1.0, 1.0]] * 3


# --- failed inputs


@pytest.mark.parametrize("kind", EXPECTED)
def test_one_failed_rank_fails_the_execution_at_all_and_hangs_nobody(workers, kind):
    with rcg.compile(bind(workers[:3], kind, "odd")) as graph:
        refs = [graph.execute(6) for _ in range(3)]
        for execution in refs:
            for ref in execution:
                with pytest.raises(LookupError, match="no tensor at 1"):
                    get(ref)
    with rcg.compile(bind(workers[:3], kind)) as graph:
        refs = [graph.execute(n) for n in (6, "raise", "text", 6)]
        assert get(refs[0]) == EXPECTED[kind]
        for ref in refs[1]:
            with pytest.raises(LookupError, match="no tensor at 0"):
                get(ref)
        for ref in refs[2]:
            with pytest.raises(TensorMismatch, match="Expected a torch tensor"):
                get(ref)
        assert get(refs[3]) == EXPECTED[kind]


@pytest.mark.parametrize("kind", sorted(set(EXPECTED) - {"broadcast"}))
def test_shapes_that_differ_fail_at_every_rank_and_the_graph_goes_on(workers, kind):
    with rcg.compile(bind(workers[:3], kind, "longer")) as graph:
        for ref in graph.execute(6):
            with pytest.raises(
                TensorMismatch, match=r"a1 \(Worker\), rank 1, has float32 \[7\]|divisible"
            ):
                get(ref)
        assert graph.statistics().completed == 1


def test_a_first_dimension_that_does_not_divide(workers):
    with rcg.compile(bind(workers[:3], "reducescatter")) as graph:
        for ref in graph.execute(4):
            with pytest.raises(ValueError, match="divisible by the world size 3"):
                get(ref)
        assert get(graph.execute(6)) == EXPECTED["reducescatter"]


LARGE = 1 << 17


class Keeper:
    """Returns large tensors that it can still see in some way, or that nobody can."""

    def __init__(self) -> None:
        self.kept: Any = None
        self.address = 0

    def make(self, how):
        tensor = torch.full((LARGE,), 3.0)
        self.kept = {
            "nothing": lambda: None,
            "itself": lambda: tensor,
            "view": lambda: tensor[1:],
            "numpy": tensor.numpy,
            "autograd": lambda: torch.ones(LARGE, requires_grad=True) * tensor,
        }[how]()
        self.address = tensor.data_ptr()
        return tensor

    def seen(self, total, other_use=None):
        """The smallest and largest number of the result and of what was kept; the same memory?"""
        kept = self.kept
        if kept is not None and getattr(kept, "requires_grad", False):
            (kept,) = torch.autograd.grad(kept.sum(), kept.grad_fn.next_functions[0][0].variable)
        ends = [] if kept is None else [float(kept.min()), float(kept.max())]
        if other_use is not None:
            ends += [float(other_use.min()), float(other_use.max())]
        return [float(total.min()), float(total.max())], ends, total.data_ptr() == self.address


@pytest.fixture(scope="module")
def keepers(ray_session: None) -> Iterator[list[Any]]:
    made = [rcg.remote(num_cpus=0)(Keeper).remote() for _ in range(2)]
    yield made
    for each in made:
        rcg.kill(each)


@pytest.mark.full
@pytest.mark.parametrize("how", ["nothing", "itself", "view", "numpy", "autograd"])
def test_a_collective_writes_to_no_memory_that_its_actor_can_still_see(keepers, how):
    with InputNode() as inp:
        results = collective.allreduce.bind([each.make.bind(inp) for each in keepers])
        seen = [each.seen.bind(found) for each, found in zip(keepers, results, strict=True)]
        cdag = rcg.compile(MultiOutputNode(seen))
    with cdag:
        for _ in range(2):
            for total, kept, is_in_place in get(cdag.execute(how)):
                assert total == [6.0, 6.0]
                assert kept == ([] if how == "nothing" else [3.0, 3.0])
                assert is_in_place == (how == "nothing")


def test_a_collective_writes_to_no_memory_that_another_node_still_uses(keepers):
    with InputNode() as inp:
        tensors = [each.make.bind(inp) for each in keepers]
        results = collective.allreduce.bind(tensors)
        seen = [
            each.seen.bind(found, tensor)
            for each, found, tensor in zip(keepers, results, tensors, strict=True)
        ]
        cdag = rcg.compile(MultiOutputNode(seen))
    with cdag:
        for total, kept, is_in_place in get(cdag.execute("nothing")):
            assert (total, kept, is_in_place) == ([6.0, 6.0], [3.0, 3.0], False)
