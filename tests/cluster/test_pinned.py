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
fake_device = pytest.importorskip("tests.fake_device", exc_type=ImportError)
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
        del self.locked[address]

    def used(self, tensor, *, writes):
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu" and not writes:
            at, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
            inside = [at >= start and end <= start + size for start, size in self.locked.items()]
            self.copies.append(any(inside))

    def total(self, value):
        assert value.device.type == "fake"
        value += 1  # it is this actor's alone
        return float(fake_device.host_view(value).double().sum()) - value.numel()

    def broken(self, value):
        raise LookupError("not today")

    def make(self, n):
        return torch.full((LARGE,), float(n))

    def told(self):
        """What was copied since the last call, and what is locked now, was ever, and is torch's."""
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


def test_each_reader_copies_once_from_memory_that_stays_locked(readers):
    with InputNode() as inp:
        dag = fan_out(readers, inp)
    with rcg.compile(dag) as graph:
        for n in range(12):
            assert get(graph.execute(torch.full((LARGE,), float(n)))) == [float(n * LARGE)] * 3
            for copies, locked, registered, direct in get([each.told.remote() for each in readers]):
                assert copies == [True] and direct == {"to device": 1}
                assert 1 <= locked == registered <= 4
    for _, locked, *_ in get([each.told.remote() for each in readers]):
        assert locked == 0


def test_memory_that_was_given_back_meanwhile_is_locked_anew(readers):
    with InputNode() as inp:
        dag = fan_out(readers, inp)
    with rcg.compile(dag) as graph:
        get(graph.execute(torch.ones(LARGE)))
        before = [registered for _, _, registered, _ in get([r.told.remote() for r in readers])]
        for n in range(3):
            graph._engine.session.node.trim()
            assert get(graph.execute(torch.full((LARGE,), float(n)))) == [float(n * LARGE)] * 3
            after = get([each.told.remote() for each in readers])
            assert [each[2] for each in after] == [count + 1 for count in before]
            assert all(copies == [True] for copies, *_ in after)
            before = [each[2] for each in after]


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
    assert [each[1] for each in get([r.told.remote() for r in readers])] == [0, 0, 0]


def test_arrays_beside_tensors_stay_where_they_are():
    """What does not go to the device is nobody's to write to."""
    import numpy as np

    classes = rcg.remote(num_cpus=0)(Looker)
    lookers = [classes.remote() for _ in range(2)]
    with InputNode() as inp:
        value = inp.with_tensor_transport(device="fake")
        dag = MultiOutputNode([each.look.bind(value) for each in lookers])
    with rcg.compile(dag) as graph:
        given = {"array": np.ones(LARGE), "tensor": torch.ones(LARGE)}
        assert get(graph.execute(given)) == [(False, "fake")] * 2
    for each in lookers:
        rcg.kill(each)


class Looker:
    def __init__(self) -> None:
        from rcg.serialization import pinned

        pinned.REGISTRARS.pop("fake", None)

    def look(self, value):
        return value["array"].flags.writeable, value["tensor"].device.type
