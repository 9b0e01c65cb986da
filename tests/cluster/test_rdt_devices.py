# SPDX-License-Identifier: Apache-2.0
"""Tensors of a device, by reference: they arrive on that device, and are not copied on the way.

The device is that of ``tests.harness.fake_device``, with a communicator that is registered for it,
and with those for NCCL and CUDA IPC (``tests.harness.fake_cuda``).
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import rcg
from rcg.comm import registry
from rcg.experimental.collective import create_collective_group, destroy_collective_group

torch = pytest.importorskip("torch")
fake_device = pytest.importorskip("tests.harness.fake_device", exc_type=ImportError)
checks = pytest.importorskip("tests.gpu.checks", exc_type=ImportError)
pytestmark = [pytest.mark.usefixtures("ray_session"), pytest.mark.full]

LARGE = 3_000_000  # numbers: several pieces


@pytest.fixture(autouse=True)
def names() -> Iterator[None]:
    """Restore the names of communicators after each test."""
    before = dict(registry._registered)
    yield
    registry._registered.clear()
    registry._registered.update(before)


@rcg.remote(num_cpus=0)
class Worker:
    """Makes tensors on the device, and reports on those that it gets."""

    def make(self, n: int, size: int = 10) -> Any:
        return torch.full((size,), float(n), device="fake")

    def mixed(self) -> Any:
        return [torch.ones(3), torch.ones(3, device="fake")]

    def on_host(self) -> Any:
        return torch.ones(3)

    def within(self) -> Any:
        return {"n": 1, "model": SimpleNamespace(weight=["no", None, torch.ones(3)])}

    def look(self, *tensors: Any) -> Any:
        found = [(each.device.type, fake_device.host_view(each).sum().item()) for each in tensors]
        return found, fake_device.copies_since()

    def into(self, refs: list[Any]) -> Any:
        """Receive into tensors of its own; returns what is in them."""
        small = torch.zeros(10, device="fake")
        large = torch.zeros(LARGE, device="fake")
        fake_device.copies_since()
        got = [rcg.get(ref, out=out) for ref, out in zip(refs, (small, large), strict=True)]
        assert got[0] is small and got[1] is large
        return self.look(small, large)

    def copies(self) -> Any:
        return fake_device.copies_since()


@pytest.fixture
def pair() -> Iterator[Any]:
    communicator = fake_device.FakeCommunicator
    rcg.register_communicator("fakelink", communicator.devices, communicator)
    made = [Worker.remote() for _ in range(2)]
    group = create_collective_group(made, backend="fakelink")
    yield made
    destroy_collective_group(group)
    for each in made:
        rcg.kill(each)


def call(method: Any, *args: Any) -> Any:
    return method.options(tensor_transport="fakelink").remote(*args)


def get(ref: Any) -> Any:
    return rcg.get(ref, timeout=60)


def test_a_tensor_stays_on_its_device_and_is_not_copied(pair):
    a, b = pair
    refs = [call(a.make, 1), call(a.make, 2, LARGE)]
    rcg.wait(refs, num_returns=2)
    get([a.copies.remote(), b.copies.remote()])
    found, copies = get(b.look.remote(*refs))
    assert found == [("fake", 10), ("fake", 2 * LARGE)]
    assert (copies, get(a.copies.remote())) == ({}, {})


def test_tensors_of_the_users_on_a_device_receive_those_of_others(pair):
    a, b = pair
    refs = [call(a.make, 3), call(a.make, 4, LARGE)]
    found, copies = get(b.into.remote(refs))
    assert found == [("fake", 30), ("fake", 4 * LARGE)]
    assert copies == {}


def test_the_driver_gets_them_through_the_object_store(pair):
    a, _ = pair
    copied = rcg.get(call(a.make, 5), _tensor_transport="object_store")
    assert copied.device.type == "fake" and fake_device.host_view(copied).sum() == 50
    for size in (10, LARGE):
        ref = a.make.options(tensor_transport="object_store").remote(5, size)
        rcg.experimental.set_target_device_for_ref(ref, "cpu")
        found = rcg.get(ref)
        assert found.device.type == "cpu" and found.sum() == 5 * size
    with pytest.raises(ValueError, match="does not support fetching onto target device cpu"):
        rcg.experimental.set_target_device_for_ref(call(a.make, 5), "cpu")


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("mixed", r"Worker.mixed has tensors on cpu \(value\[0\]\), fake \(value\[1\]\)"),
        (
            "on_host",
            r"on device cpu. .*Worker.on_host has tensors there \(value\): move them to fake",
        ),
        ("within", r"tensors there \(value\['model'\].weight\[2\]\)"),
    ],
)
def test_tensors_elsewhere_are_refused_where_they_are_made(pair, method, text):
    with pytest.raises(rcg.errors.TensorMismatch, match=text):
        get(pair[1].look.remote(call(getattr(pair[0], method))))


@pytest.mark.parametrize("name", ["nccl", "cuda_ipc"])
def test_what_make_gpu_checks_works_on_the_fake_device(name):
    machine = checks.machine_of("fake")
    assert checks.references(machine, name) == "14 tensors"


def test_without_a_group_tensors_are_copied_on_the_device():
    machine = checks.machine_of("fake")
    ways = ["cuda_ipc", "shm"]
    assert checks.direct(machine, "auto", ways) == "4 KB to 64 MiB, there and back"


def test_what_cannot_be_copied_on_the_device_comes_through_the_host():
    with checks.actors(checks.machine_of("fake"), "cuda_ipc", 2) as (a, b):
        get(b.forbid_mapping.remote())
        for n in range(3):
            made = a.make.options(tensor_transport="auto").remote(n, LARGE)
            assert get(b.totals.remote(made)) == [("fake", n * LARGE)]
        assert get(b.ways.remote()) == ["shm"]
