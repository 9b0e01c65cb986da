# SPDX-License-Identifier: Apache-2.0
"""Collectives as nodes of compiled graphs, over real Gloo between real actors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import rcg
from rcg import collective
from rcg.dag import InputNode, MultiOutputNode
from tests.cluster.stage import GUARD_S
from tests.harness.circles import core_has
from tests.harness.peers import noted

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("ray_session")


class Worker:
    """Makes tensors whose numbers say which rank made them."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def make(self, n):
        """[n] numbers: the rank plus one."""
        return torch.full((n,), float(self.rank + 1))

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

    def listed(self, tensor):
        return None if tensor is None else tensor.tolist()


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


LYING = ["transposed", "at rank 1", "a step", "expanded", "channels last", "conjugated", "negated"]


@pytest.mark.parametrize(
    "kind", core_has("reducescatter", ["allreduce", "reducescatter", "reduce", "allgather"])
)
def test_tensors_that_lie_otherwise_in_memory_are_combined_in_both_modes(workers, kind):
    dag = bind(workers[:2], kind, method="lying_otherwise")
    with rcg.compile(dag) as graph:
        for how in LYING:
            tensors = [Worker(rank).lying_otherwise(how) for rank in range(2)]
            wanted: list[Any] = [sum(tensors).tolist()] * 2
            if kind == "reduce":
                wanted[1] = None
            elif kind == "reducescatter":
                wanted = [each.tolist() for each in sum(tensors).chunk(2)]
            elif kind == "allgather":
                wanted = [torch.cat(tensors).tolist()] * 2
            with noted(how):
                assert get(graph.execute(how)) == wanted
                assert get(dag.execute(how)) == wanted


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
