# SPDX-License-Identifier: Apache-2.0
"""Communicators that users bring, on real actors: Ray's signature, and classes with a name."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rcg
from rcg.collective import ReduceOp, allgather, allreduce, reduce
from rcg.comm.gloo import GlooCommunicator
from rcg.dag import InputNode, MultiOutputNode
from rcg.experimental.channel.accelerator_context import (
    AcceleratorContext,
    is_accelerator_context_registered,
    register_accelerator_context,
)
from rcg.experimental.channel.communicator import Communicator
from tests.cluster.stage import GUARD_S

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.usefixtures("ray_session"), pytest.mark.full]


class Worker:
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def make(self, n):
        if n == "raise":
            raise LookupError("no tensor")
        return torch.full((n,), float(self.rank + 1))

    def total(self, tensor):
        return None if tensor is None else float(tensor.sum())

    def logged(self):
        """What communicators did here since the last call."""
        found = list(LOG)
        LOG.clear()
        return found


LOG: list[str] = []
Actor = rcg.remote(num_cpus=0)(Worker)


class OwnGloo(Communicator):
    """As users write communicators for Ray: handles, ranks, and a process group of their own."""

    def __init__(self, actors: list[Any], path: str) -> None:
        self._actors = actors
        self._path = path
        self._rank: int | None = None

    def initialize(self, rank: int) -> None:
        import torch.distributed as dist

        LOG.append("initialize")
        self._rank = rank
        store = dist.FileStore(self._path, len(self._actors))
        self._group = dist.ProcessGroupGloo(store, rank, len(self._actors))

    def get_actor_handles(self) -> list[Any]:
        return self._actors

    def get_rank(self, actor: Any) -> int:
        return [each._actor_id for each in self._actors].index(actor._actor_id)

    def get_self_rank(self) -> int | None:
        return self._rank

    def send(self, value: Any, peer_rank: int) -> None:
        LOG.append("send")
        self._group.send([value], peer_rank, 0).wait()

    def recv(self, shape: Any, dtype: Any, peer_rank: int, allocator: Any = None) -> Any:
        LOG.append("recv")
        tensor = allocator(shape, dtype) if allocator else torch.empty(shape, dtype=dtype)
        self._group.recv([tensor], peer_rank, 0).wait()
        return tensor

    @property
    def recv_stream(self) -> Any:
        return None

    @property
    def send_stream(self) -> Any:
        return None

    def allgather(self, send_buf: Any, recv_buf: Any) -> None:
        LOG.append("allgather")
        self._group.allgather([list(recv_buf.chunk(len(self._actors)))], [send_buf]).wait()

    def allreduce(self, send_buf: Any, recv_buf: Any, op: Any = ReduceOp.SUM) -> None:
        LOG.append("allreduce")
        assert op.name == "SUM"
        recv_buf.copy_(send_buf)
        self._group.allreduce([recv_buf]).wait()

    def reducescatter(self, send_buf: Any, recv_buf: Any, op: Any = ReduceOp.SUM) -> None:
        total = send_buf.clone()
        self._group.allreduce([total]).wait()
        recv_buf.copy_(total.chunk(len(self._actors))[self._rank])

    def destroy(self) -> None:
        LOG.append("destroy")
        self._group = None

    def get_transport_name(self) -> str:
        return "mine"

    @classmethod
    def generate_communicator_id(cls) -> str:
        return uuid.uuid4().hex


class CountingGloo(GlooCommunicator):
    """A class of rcg's own kind, registered by name."""

    def send(self, tensors: Any, peer: int, tag: int = 0) -> None:
        LOG.append("counted send")
        super().send(tensors, peer, tag)


@pytest.fixture(scope="module")
def actors(ray_session: None) -> Iterator[list[Any]]:
    made = [Actor.remote(rank) for rank in range(3)]
    yield made
    for each in made:
        rcg.kill(each)


@pytest.fixture
def workers(actors: list[Any]) -> list[Any]:
    rcg.get([each.logged.remote() for each in actors])
    return actors


def get(ref: Any) -> Any:
    return rcg.get(ref, timeout=GUARD_S)


def own(workers: list[Any], tmp_path: Path) -> OwnGloo:
    return OwnGloo([rcg.unwrap(each) for each in workers], str(tmp_path / uuid.uuid4().hex))


def test_an_edge_and_collectives_over_one_communicator_of_the_users(workers, tmp_path):
    mine = own(workers, tmp_path)
    a, b, c = workers
    with InputNode() as inp:
        edge = a.make.bind(inp).with_tensor_transport(transport=mine)
        sums = allreduce.bind([each.make.bind(inp) for each in workers], transport=mine)
        whole = allgather.bind(sums, transport=mine)
        one = reduce.bind(whole, root=1, transport=mine)
        dag = MultiOutputNode(
            [b.total.bind(edge), c.total.bind(edge)]
            + [each.total.bind(found) for each, found in zip(workers, one, strict=True)]
        )
    with rcg.compile(dag) as graph:
        (group,) = graph.plan.groups
        assert group.communicator is not None
        for n in (2, 1000):
            assert get(graph.execute(n)) == [1.0 * n, 1.0 * n, None, 3 * 3 * 6.0 * n, None]
        for ref in graph.execute("raise"):
            with pytest.raises(LookupError, match="no tensor"):
                get(ref)
        assert get(graph.execute(1))[0] == 1.0
    logs = [rcg.get(each.logged.remote()) for each in workers]
    for log in logs:
        assert log.count("initialize") == 1  # once, however many nodes use it
        assert log.count("destroy") == 1
        assert {"allreduce", "allgather"} <= set(log)
    assert "send" in logs[0]
    assert "recv" in logs[1]


def test_a_registered_class_is_used_by_its_name(workers):
    rcg.register_communicator("counting", ["cpu"], CountingGloo)
    a, b, _ = workers
    with InputNode() as inp:
        dag = b.total.bind(a.make.bind(inp).with_tensor_transport(transport="counting"))
    with rcg.compile(dag) as graph:
        assert graph.plan.groups[0].backend == "counting"
        assert [get(graph.execute(n)) for n in (1, 2, 3)] == [1.0, 2.0, 3.0]
    assert rcg.get(a.logged.remote()).count("counted send") == 3


class MadeByRank(OwnGloo):
    """As a class is registered for a device: Ray's arguments, and an id that all ranks get."""

    def __init__(self, size: int, id: str, rank: int, handles: list[Any], *streams: Any) -> None:
        assert streams == (None, False)
        super().__init__(handles, str(Path(tempfile.gettempdir(), id)))


def test_a_class_registered_for_a_device_is_the_accelerator(workers, monkeypatch):
    monkeypatch.setattr("rcg.comm.registry._accelerators", [])
    assert not is_accelerator_context_registered()
    a, b, _ = workers
    with InputNode() as inp:
        edge = a.make.bind(inp).with_tensor_transport(transport="nccl")
        made = [each.make.bind(inp) for each in workers]
        sums = allreduce.bind(made, transport="accelerator")
        dag = MultiOutputNode(
            [b.total.bind(edge), *(w.total.bind(v) for w, v in zip(workers, sums, strict=True))]
        )
    register_accelerator_context("cpu", MadeByRank)  # before compile, as in Ray
    assert AcceleratorContext.get() == AcceleratorContext("cpu", MadeByRank)
    with rcg.compile(dag) as graph:
        assert {group.backend for group in graph.plan.groups} == {"accelerator"}
        assert [get(graph.execute(n)) for n in (1, 4)] == [[1.0, 6.0, 6.0, 6.0], [4.0, *[24.0] * 3]]
    assert {"initialize", "recv", "allreduce", "destroy"} <= set(rcg.get(b.logged.remote()))


@pytest.mark.parametrize("path", ["ray", "rcg"])
def test_the_cpu_communicator_reduces_and_leaves_edges_to_shared_memory(workers, path):
    module = pytest.importorskip(f"{path}.experimental.channel.cpu_communicator")
    mine = module.CPUCommunicator(3, workers)
    a, b, _ = workers
    with InputNode() as inp:
        edge = a.make.bind(inp).with_tensor_transport(transport=mine)
        sums = allreduce.bind([each.make.bind(inp) for each in workers], transport=mine)
        dag = MultiOutputNode(
            [b.total.bind(edge), *(w.total.bind(v) for w, v in zip(workers, sums, strict=True))]
        )
    with rcg.compile(dag) as graph:
        assert [get(graph.execute(n)) for n in (1, 4)] == [[1.0, 6.0, 6.0, 6.0], [4.0, *[24.0] * 3]]


@pytest.mark.parametrize("moment", ["initialize", "get_world_size"])
def test_one_that_cannot_start_is_an_error_of_compile_and_leaves_nothing(workers, tmp_path, moment):
    class Broken(OwnGloo):
        pass

    def refuse(*_: Any) -> Any:
        raise RuntimeError("the cable is not in")

    setattr(Broken, moment, refuse if moment == "initialize" else lambda _: 7)
    a, b, _ = workers
    mine = Broken([rcg.unwrap(a), rcg.unwrap(b)], str(tmp_path / "store"))
    with InputNode() as inp:
        dag = b.total.bind(a.make.bind(inp).with_tensor_transport(transport=mine))
    with pytest.raises(Exception, match=r"the cable is not in|has 7 ranks"):
        rcg.compile(dag)
    assert rcg.get([each.total.remote(torch.ones(2)) for each in workers]) == [2.0] * 3
