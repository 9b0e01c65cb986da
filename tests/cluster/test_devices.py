# SPDX-License-Identifier: Apache-2.0
"""A device of another maker, between real actors: it joins by registration, and copies are counted.

The device and its communicator are those of ``tests.harness.fake_device``. Each actor counts
the copies that torch makes in its process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import rcg
from rcg.collective import allgather, allreduce
from rcg.comm import registry
from rcg.dag import InputNode, MultiOutputNode
from tests.cluster.stage import GUARD_S

torch = pytest.importorskip("torch")
fake_device = pytest.importorskip("tests.harness.fake_device", exc_type=ImportError)
pytestmark = pytest.mark.usefixtures("ray_session")

TO_HOST, TO_DEVICE, ON_DEVICE = {"to host": 1}, {"to device": 1}, {"on device": 1}


class Worker:
    """Makes tensors on the device and looks at them, which copies nothing."""

    def __init__(self) -> None:
        self.kept: Any = None

    def make(self, n):
        self.kept = torch.full((n,), 2.0, device="fake")
        return self.kept

    def look(self, tensor):
        """The type of the device, and the sum of the numbers."""
        return tensor.device.type, float(fake_device.host_view(tensor).double().sum())

    def copies(self):
        """What was copied in this process since the last call."""
        return fake_device.copies_since()

    def kept_sum(self):
        """Whether what it made is as it was made."""
        return float(fake_device.host_view(self.kept).sum())


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
    rcg.register_communicator("fakelink", ["fake"], fake_device.FakeCommunicator)
    return actors


def get(ref: Any) -> Any:
    return rcg.get(ref, timeout=GUARD_S)


def counted(workers: list[Any], graph: Any, *args: Any) -> tuple[Any, list[dict[str, int]]]:
    """The result of an execution, and the copies in each actor."""
    get([each.copies.remote() for each in workers])
    found = get(graph.execute(*args))
    return found, get([each.copies.remote() for each in workers])


def edge(workers: list[Any], options: dict[str, Any] | None = None, **hints: Any) -> Any:
    a, b = workers[:2]
    with InputNode() as inp:
        dag = b.look.bind(a.make.bind(inp).with_tensor_transport(transport="fakelink", **hints))
    return rcg.compile(dag, **(options or {}))


@pytest.mark.full
@pytest.mark.parametrize("hints", [{}, {"_static_shape": True}, {"_direct_return": True}], ids=str)
def test_an_edge_touches_no_host_memory_at_either_end(workers, hints):
    with edge(workers, **hints) as graph:
        assert [each.backend for each in graph.plan.groups] == ["fakelink"]
        for n in (5, 5) if "_static_shape" in hints else (1, 1000, 300_000):
            found, copies = counted(workers, graph, n)
            assert found == ("fake", 2.0 * n)
            assert copies[:2] == [{}, {}]


def test_the_driver_gets_tensors_of_a_device_through_host_memory(workers):
    a = workers[0]
    with InputNode() as inp:
        dag = a.make.bind(inp)
    with rcg.compile(dag) as graph:
        fake_device.copies_since()
        found, copies = counted(workers, graph, 9)
        assert (copies[0], fake_device.copies_since()) == (TO_HOST, TO_DEVICE)
        assert (found.device.type, found.cpu().tolist()) == ("fake", [2.0] * 9)


def test_collectives_stay_on_the_device_and_leave_what_an_actor_keeps(workers):
    with InputNode() as inp:
        made = [each.make.bind(inp) for each in workers]
        sums = allreduce.bind(made, transport="fakelink")
        rows = allgather.bind(sums, transport="fakelink")
        dag = MultiOutputNode([w.look.bind(v) for w, v in zip(workers, rows, strict=True)])
    with rcg.compile(dag) as graph:
        for n in (4, 200_000):
            found, copies = counted(workers, graph, n)
            assert found == [("fake", 3 * 6.0 * n)] * 3
            assert copies == [ON_DEVICE] * 3  # the input of the allreduce, which the actor keeps
            assert get([each.kept_sum.remote() for each in workers]) == [2.0 * n] * 3


def test_transfers_beside_calls_touch_no_host_memory_either(workers):
    with edge(workers, options={"_overlap_gpu_communication": True}) as graph:
        refs = [graph.execute(n) for n in (3, 30_000, 4)]
        assert get(refs) == [("fake", 2.0 * n) for n in (3, 30_000, 4)]
        found, copies = counted(workers, graph, 5)
        # The actor keeps what it made, and may change it while it is sent: a copy is sent.
        assert (found, copies) == (("fake", 10.0), [ON_DEVICE, {}, {}])
