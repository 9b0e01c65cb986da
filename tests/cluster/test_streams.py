# SPDX-License-Identifier: Apache-2.0
"""Lanes, methods and communicators on a device with streams: none uses memory too early.

The device is the fake one, with the streams of ``tests.harness.fake_streams``: it computes at once,
and says what a device would do in the wrong order. Tensors move by rcg's communicators for CUDA
over fakes of their libraries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import rcg
from rcg.collective import allgather, allreduce, broadcast, reducescatter
from rcg.comm import registry
from rcg.dag import InputNode, MultiOutputNode
from tests.cluster.stage import GUARD_S

torch = pytest.importorskip("torch")
fake_cuda = pytest.importorskip("tests.harness.fake_cuda", exc_type=ImportError)
pytestmark = pytest.mark.usefixtures("ray_session")

KINDS = {"nccl_fake": fake_cuda.NcclOnFake, "ipc_fake": fake_cuda.IpcOnFake}
EXECUTIONS = 12


class Worker:
    """Computes with tensors of the device, all of it on the current stream of the thread."""

    def make(self, n):
        return torch.full((1000,), float(n), device="fake")

    def add(self, *tensors):
        total = torch.zeros(1000, device="fake")
        for each in tensors:
            total += each
        return total

    def twice(self, tensor):
        return tensor * 2

    def total(self, *tensors):
        return [float(each.cpu().sum()) for each in tensors]

    def races(self):
        """The races found in this process, and how many streams it has."""
        from tests.harness import fake_streams

        return fake_streams.races(), len(fake_streams._streams)


Actor = rcg.remote(num_cpus=0)(Worker)


@pytest.fixture(scope="module")
def actors(ray_session: None) -> Iterator[list[Any]]:
    made = [Actor.remote() for _ in range(3)]
    yield made
    for each in made:
        rcg.kill(each)


@pytest.fixture
def workers(actors: list[Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(registry, "_registered", {})
    for name, cls in KINDS.items():
        rcg.register_communicator(name, ["fake"], cls)
    return actors


def run(dag: Any, workers: list[Any], overlap: bool) -> list[Any]:
    """The results of several executions in flight, in which no memory was used too early."""
    with rcg.compile(dag, overlap=overlap) as graph:
        refs = [graph.execute(n) for n in range(EXECUTIONS)]
        found = [rcg.get(ref, timeout=GUARD_S) for ref in refs]
    reports = rcg.get([each.races.remote() for each in workers], timeout=GUARD_S)
    assert [races for races, _ in reports] == [[]] * len(workers)
    assert all(streams > 1 for _, streams in reports)
    return found


both = pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.full
@both
@every_kind
def test_edges(workers, kind, overlap):
    """Three tensors of two senders; what is received is computed with and sent on."""
    a, b, c = workers
    with InputNode() as inp:
        first = a.make.bind(inp).with_tensor_transport(kind)
        second = c.make.bind(inp).with_tensor_transport(kind, _direct_return=True)
        third = a.twice.bind(first).with_tensor_transport(kind, _static_shape=True)
        added = b.add.bind(first, second, third).with_tensor_transport(kind)
        dag = c.total.bind(added, second)
    found = run(dag, workers, overlap)
    assert found == [[4000.0 * n, 1000.0 * n] for n in range(EXECUTIONS)]


@pytest.mark.full
@both
@every_kind
def test_a_fan_out(workers, kind, overlap):
    a, b, c = workers
    with InputNode() as inp:
        value = a.make.bind(inp).with_tensor_transport(kind)
        again = b.twice.bind(value)
        dag = MultiOutputNode([b.total.bind(again), c.total.bind(value)])
    found = run(dag, workers, overlap)
    assert found == [[[2000.0 * n], [1000.0 * n]] for n in range(EXECUTIONS)]


@pytest.mark.full
@both
@every_kind
def test_collectives(workers, kind, overlap):
    with InputNode() as inp:
        made = [each.make.bind(inp) for each in workers]
        reduced = allreduce.bind(made, transport=kind)
        everything = allgather.bind(reduced, transport=kind)
        parts = reducescatter.bind(everything, transport=kind)
        again = broadcast.bind(
            [each.twice.bind(part) for each, part in zip(workers, parts, strict=True)],
            transport=kind,
        )
        dag = MultiOutputNode(
            [each.total.bind(part) for each, part in zip(workers, again, strict=True)]
        )
    found = run(dag, workers, overlap)
    assert found == [[[1000.0 * 3 * n * 3 * 2]] * 3 for n in range(EXECUTIONS)]
