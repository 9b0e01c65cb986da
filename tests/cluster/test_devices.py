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
from rcg.collective import allgather, allreduce, broadcast
from rcg.comm import registry
from rcg.dag import InputNode, MultiOutputNode
from tests.cluster.stage import GUARD_S

torch = pytest.importorskip("torch")
fake_device = pytest.importorskip("tests.harness.fake_device", exc_type=ImportError)
pytestmark = pytest.mark.usefixtures("ray_session")

LINK = {"transport": "fakelink"}
TO_HOST, TO_DEVICE, ON_DEVICE = {"to host": 1}, {"to device": 1}, {"on device": 1}


class Worker:
    """Makes tensors on the device and looks at them, which copies nothing."""

    def __init__(self) -> None:
        self.kept: Any = None

    def make(self, n):
        if n == "raise":
            raise LookupError("no tensor today")
        self.kept = torch.full((n,), 2.0, device="fake")
        return self.kept

    def make_on_host(self, n):
        return torch.full((n,), 2.0)

    def nested(self, n):
        base = torch.arange(float(4 * n), device="fake").reshape(4, n)
        return {
            "rows": [base[1], base[2, ::2]],
            "whole": torch.ones(n, dtype=torch.bfloat16, device="fake"),
            "plain": torch.ones(n),
            "n": n,
        }

    def look(self, value):
        """The types of the devices, and the sum of the numbers."""
        tensors = tensors_of(value)
        types = [each.device.type for each in tensors]
        return types, sum(float(host_view(each).double().sum()) for each in tensors)

    def shares(self, value):
        first, second = (each.untyped_storage()._cdata for each in value["rows"])
        return first == second, value["n"], *self.look(value)

    def copies(self):
        """What was copied in this process since the last call."""
        return fake_device.copies_since()

    def kept_sum(self):
        """Whether what it made is as it was made."""
        return float(host_view(self.kept).sum())


def tensors_of(value: Any) -> list[Any]:
    match value:
        case dict():
            return [each for part in value.values() for each in tensors_of(part)]
        case list() | tuple():
            return [each for part in value for each in tensors_of(part)]
    return [value] if isinstance(value, torch.Tensor) else []


def host_view(tensor: Any) -> Any:
    return fake_device.host_view(tensor) if fake_device.is_on_device(tensor) else tensor


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


def edge(
    workers: list[Any],
    method: str = "make",
    reader: str = "look",
    options: dict[str, Any] | None = None,
    **hints: Any,
) -> Any:
    a, b = workers[:2]
    with InputNode() as inp:
        value = getattr(a, method).bind(inp).with_tensor_transport(**{**LINK, **hints})
        dag = getattr(b, reader).bind(value)
    return rcg.compile(dag, **(options or {}))


@pytest.mark.full
@pytest.mark.parametrize("hints", [{}, {"_static_shape": True}, {"_direct_return": True}], ids=str)
def test_an_edge_touches_no_host_memory_at_either_end(workers, hints):
    with edge(workers, **hints) as graph:
        assert [each.backend for each in graph.plan.groups] == ["fakelink"]
        for n in (5, 5) if "_static_shape" in hints else (1, 1000, 300_000):
            found, copies = counted(workers, graph, n)
            assert found == (["fake"], 2.0 * n)
            assert copies[:2] == [{}, {}]


@pytest.mark.full
def test_a_fan_out_touches_no_host_memory_at_any_end(workers):
    a, b, c = workers
    with InputNode() as inp:
        value = a.make.bind(inp).with_tensor_transport(**LINK)
        dag = MultiOutputNode([b.look.bind(value), c.look.bind(value)])
    with rcg.compile(dag) as graph:
        for n in (4, 90_000):
            found, copies = counted(workers, graph, n)
            assert found == [(["fake"], 2.0 * n)] * 2
            assert copies == [{}, {}, {}]


@pytest.mark.full
def test_tensors_in_a_value_stay_on_the_device_and_those_of_the_cpu_go_with_its_data(workers):
    with edge(workers, "nested", "shares") as graph:
        for n in (10, 20_000):
            found, copies = counted(workers, graph, n)
            base = torch.arange(4.0 * n, dtype=torch.float64).reshape(4, n)
            total = float(base[1].sum() + base[2, ::2].sum() + 2 * n)
            assert found == (True, n, ["fake", "fake", "fake", "cpu"], total)
            assert copies[:2] == [{}, {}]


def test_tensors_of_the_cpu_alone_need_no_copy_to_the_device(workers):
    with edge(workers, "make_on_host") as graph:
        for n in (3, 5000):
            assert counted(workers, graph, n) == ((["cpu"], 2.0 * n), [{}, {}, {}])


@pytest.mark.parametrize("hints", [{}, {"_direct_return": True}], ids=str)
def test_a_hint_moves_what_arrived_at_the_reader(workers, hints):
    with edge(workers, device="cpu", **hints) as graph:
        found, copies = counted(workers, graph, 1000)
        assert found == (["cpu"], 2000.0)
        assert copies[:2] == [{}, TO_HOST]


def test_a_hint_moves_what_left_the_cpu(workers):
    with edge(workers, "make_on_host", transport="gloo", device="fake") as graph:
        found, copies = counted(workers, graph, 1000)
        assert found == (["fake"], 2000.0)
        assert copies[:2] == [{}, TO_DEVICE]


@pytest.mark.parametrize("transport", ["shm", "gloo"])
@pytest.mark.parametrize("device", ["default", "cpu"])
def test_a_transport_that_does_not_serve_the_device_goes_through_host_memory(
    workers, transport, device
):
    with edge(workers, transport=transport, device=device) as graph:
        for n in (3, 100_000):
            found, copies = counted(workers, graph, n)
            there = "fake" if device == "default" else device
            assert found == ([there], 2.0 * n)
            assert copies[:2] == [TO_HOST, TO_DEVICE if device == "default" else {}]


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
            assert found == [(["fake"], 3 * 6.0 * n)] * 3
            assert copies == [ON_DEVICE] * 3  # the input of the allreduce, which the actor keeps
            assert get([each.kept_sum.remote() for each in workers]) == [2.0 * n] * 3


def test_a_broadcast_is_copied_on_the_device_of_its_root_alone(workers):
    with InputNode() as inp:
        made = [each.make.bind(inp) for each in workers]
        same = broadcast.bind(made, root=1, transport="fakelink")
        dag = MultiOutputNode([w.look.bind(v) for w, v in zip(workers, same, strict=True)])
    with rcg.compile(dag) as graph:
        found, copies = counted(workers, graph, 7)
        assert (found, copies) == ([(["fake"], 14.0)] * 3, [{}, ON_DEVICE, {}])


def test_a_failed_execution_leaves_the_graph_usable(workers):
    with edge(workers) as graph:
        for _ in range(2):
            refs = [graph.execute(n) for n in (3, "raise", 4)]
            assert get(refs[0]) == (["fake"], 6.0)
            with pytest.raises(LookupError, match="no tensor today"):
                get(refs[1])
            assert get(refs[2]) == (["fake"], 8.0)
        assert counted(workers, graph, 5) == ((["fake"], 10.0), [{}, {}, {}])


def test_transfers_beside_calls_touch_no_host_memory_either(workers):
    with edge(workers, options={"_overlap_gpu_communication": True}) as graph:
        refs = [graph.execute(n) for n in (3, 30_000, 4)]
        assert get(refs) == [(["fake"], 2.0 * n) for n in (3, 30_000, 4)]
        found, copies = counted(workers, graph, 5)
        # The actor keeps what it made, and may change it while it is sent: a copy is sent.
        assert (found, copies) == ((["fake"], 10.0), [ON_DEVICE, {}, {}])
