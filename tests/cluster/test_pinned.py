# SPDX-License-Identifier: Apache-2.0
"""Tensors of the CPU on their way to devices of several actors: one copy each, from locked memory.

The device is the fake one. What stands for ``cudaHostRegister`` remembers what is locked, and each
copy to the device looks where it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import rcg
from rcg.comm import registry
from rcg.dag import InputNode, MultiOutputNode
from tests.cluster.stage import GUARD_S

torch = pytest.importorskip("torch")
fake_device = pytest.importorskip("tests.harness.fake_device", exc_type=ImportError)
pytestmark = pytest.mark.usefixtures("ray_session")

LARGE = 1 << 18  # elements: 1 MiB
READERS = 3


class Reader:
    """Locks memory for the fake device, and watches copies to it."""

    def __init__(self) -> None:
        from rcg.serialization import pinned

        self.locked: dict[int, int] = {}
        self.registered = 0
        self.copies: list[bool] = []  # whether each came from locked memory
        pinned.REGISTRARS["fake"] = lambda: self
        fake_device.on_use = self.used

    def register(self, address, size):
        assert address % 4096 == 0 and size % 4096 == 0
        for start, length in self.locked.items():
            assert start + length <= address or address + size <= start
        self.registered += 1
        self.locked[address] = size

    def unregister(self, address):
        self.locked.pop(address, None)

    def move(self, value):
        assert value.device.type == "cpu"
        return self.total(value.to("fake"))

    def used(self, tensor, *, writes):
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu" and not writes:
            at, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
            inside = [at >= start and end <= start + size for start, size in self.locked.items()]
            self.copies.append(any(inside))

    def total(self, value):
        assert value.device.type == "fake"
        value += 1  # it is this actor's alone
        return float(fake_device.host_view(value).double().sum()) - value.numel()

    def total_of_both(self, value):
        assert not value["array"].flags.writeable
        return self.total(value["tensor"]) + float(value["array"].sum())

    def several(self, value):
        return torch.full((LARGE + value.numel() // 2,), 3.0)

    def broken(self, value):
        raise LookupError("not today")

    def make(self, n):
        return torch.full((LARGE,), float(n))

    def counts(self):
        """The new copies, how many locks there are and were, and torch's own copies."""
        copies, self.copies = self.copies, []
        direct = fake_device.copies_since()
        return copies, len(self.locked), self.registered, direct


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    rcg.register_communicator("fakelink", ["fake"], fake_device.FakeCommunicator)


@pytest.fixture
def readers() -> Iterator[list[Any]]:
    made = [rcg.remote(num_cpus=0)(Reader).remote() for _ in range(READERS)]
    yield made
    for each in made:
        rcg.kill(each)


def get(ref: Any) -> Any:
    return rcg.get(ref, timeout=GUARD_S)


def fan_out(readers: list[Any], source: Any, method: str = "total") -> Any:
    value = source.with_tensor_transport(device="fake")
    return MultiOutputNode([getattr(each, method).bind(value) for each in readers])


@pytest.mark.full
def test_each_reader_copies_once_from_memory_that_stays_locked(readers):
    with InputNode() as inp:
        dag = fan_out(readers, inp)
    with rcg.compile(dag) as graph:
        for n in range(12):
            assert get(graph.execute(torch.full((LARGE,), float(n)))) == [float(n * LARGE)] * 3
            for copies, locked, registered, direct in get(
                [each.counts.remote() for each in readers]
            ):
                assert copies == [True] and direct == {"to device": 1}
                assert 1 <= locked == registered <= 4
    for _, locked, *_ in get([each.counts.remote() for each in readers]):
        assert locked == 0


@pytest.mark.full
def test_from_an_actor_and_with_methods_that_fail(readers):
    a, *others = readers
    with InputNode() as inp:
        dag = fan_out(others, a.make.bind(inp))
    with rcg.compile(dag) as graph:
        for n in range(5):
            assert get(graph.execute(n)) == [float(n * LARGE)] * 2
    with InputNode() as inp:
        dag = fan_out(others, a.make.bind(inp), "broken")
    with rcg.compile(dag) as graph:
        for n in range(3):
            with pytest.raises(LookupError, match="not today"):
                get(graph.execute(n))
    assert [each[1] for each in get([r.counts.remote() for r in readers])] == [0, 0, 0]


@pytest.mark.full
def test_what_a_method_moves_itself_does_not_come_from_locked_memory(readers):
    """A method cannot see that memory was given back after it was locked."""
    a = readers[0]
    with InputNode() as inp:
        hinted = inp[0].with_tensor_transport(device="fake")
        dag = MultiOutputNode([a.total.bind(hinted), a.move.bind(inp[1])])
    with rcg.compile(dag) as graph:
        for n in range(5):
            given = torch.full((LARGE,), float(n)), torch.full((LARGE,), float(n + 1))
            assert get(graph.execute(*given)) == [float(n * LARGE), float((n + 1) * LARGE)]
            copies, locked, *_ = get(a.counts.remote())
            assert sorted(copies) == [False, True] and locked
            graph._engine.session.node.trim()


@pytest.mark.full
def test_a_graph_at_its_cap(readers):
    """Members take each other's free memory, and values that find none go another way."""
    a, *others = readers
    with InputNode() as inp:
        large = inp.with_tensor_transport(device="fake")
        made = a.several.bind(inp).with_tensor_transport(device="fake")
        dag = MultiOutputNode([each.total.bind(x) for each in others for x in (large, made)])
    with rcg.compile(dag, memory_cap_bytes=8 << 20) as graph:
        for n in range(30):
            size = LARGE * (1, 4, 6, 2)[n % 4]
            results = get(graph.execute(torch.full((size,), float(n))))
            assert results == [float(n * size), float(3 * (LARGE + size // 2))] * 2
    assert [each[1] for each in get([r.counts.remote() for r in readers])] == [0, 0, 0]


@pytest.mark.full
def test_arrays_beside_tensors_do_not_keep_them_from_locked_memory(readers):
    import numpy as np

    with InputNode() as inp:
        dag = fan_out(readers, inp, "total_of_both")
    with rcg.compile(dag) as graph:
        for n in range(3):
            given = {"array": np.ones(LARGE), "tensor": torch.full((LARGE,), float(n))}
            assert get(graph.execute(given)) == [float((n + 1) * LARGE)] * 3
            found = get([each.counts.remote() for each in readers])
            assert [(copies, locked) for copies, locked, *_ in found] == [([True], 1)] * 3
