# SPDX-License-Identifier: Apache-2.0
"""Collectives of tensors on a device that is not the CPU: their results stay on it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tests.harness.fake_device", exc_type=ImportError)

import torch

from rcg.errors import TensorMismatch
from rcg.runtime.actor import exchanges
from rcg.serialization import Failure
from tests.harness.fake_device import COPIES
from tests.unit.test_collective_steps import KINDS, assert_equal, error_of, expected, values_of
from tests.unit.test_collective_steps import ranks as ranks
from tests.unit.test_device_tensors import Both, Link

ON_DEVICE = {"allreduce": 3, "reduce": 3, "broadcast": 1}
"""The copies of the ranks together: of inputs that are combined, and of what the root keeps."""


def run(group: Any, *values: Any) -> tuple[list[Any], dict[str, int]]:
    """What the ranks get, and the copies that it took."""
    COPIES.clear()
    found = group.run(*values)
    return found, dict(COPIES)


def on_host(found: list[Any]) -> list[Any]:
    assert all(each is None or each.device.type == "fake" for each in found)
    return [None if each is None else each.cpu() for each in found]


@pytest.mark.parametrize("is_last_use", [False, True])
@pytest.mark.parametrize("shape", [(6, 2), (6 << 16,)], ids=["small", "large"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_stays_on_the_device_and_overwrites_no_input(ranks, kind, shape, is_last_use):
    root = 1 if kind in ("broadcast", "reduce", "gather") else None
    group = ranks(kind, 3, root=root, is_last_use=is_last_use, communicator=Link)
    values = values_of(3, shape)
    given = [value.to("fake") for value in values]
    found, copies = run(group, *given)
    assert copies == ({"on device": ON_DEVICE[kind]} if kind in ON_DEVICE else {})
    assert_equal(on_host(found), expected(kind, values))
    assert_equal(on_host(given), values)


def test_tensors_of_two_devices_are_combined_each_on_its_own(ranks):
    def tensors(number: int) -> list[torch.Tensor]:
        return [
            torch.full((2, 3), float(number), device="fake"),
            torch.full((4,), float(number)),
            torch.full((5,), 10.0 * number),
            torch.full((0,), 1.0, device="fake"),
            torch.tensor(7.0 * number, device="fake"),
        ]

    group = ranks("allreduce", 2, count=5, communicator=Both)
    for found in group.run(tensors(1), tensors(2)):
        assert [each.device.type for each in found] == ["fake", "cpu", "cpu", "fake", "fake"]
        assert [each.tolist() for each in found] == [[[3.0] * 3] * 2, [3.0] * 4, [30.0] * 5, [], 21]
    group = ranks("broadcast", 2, root=0, count=5, communicator=Both)
    for found in group.run(tensors(1), [torch.ones(1)] * 5):
        assert [each.device.type for each in found] == ["fake", "cpu", "cpu", "fake", "fake"]
        assert found[4].item() == 7


def test_ranks_whose_tensors_are_on_different_devices_raise(ranks):
    group = ranks("allreduce", 2, communicator=Both)
    for failure in group.run(torch.ones(2), torch.ones(2, device="fake")):
        error = error_of(failure)
        assert isinstance(error, TensorMismatch)
        assert "on devices of the same type" in str(error)
        assert "a0, rank 0, has float32 [2]; a1, rank 1, has float32 [2] on fake" in str(error)
    assert group.run(torch.ones(1), torch.ones(1))[0].item() == 2


def test_a_tensor_on_a_device_that_is_not_served_is_refused_before_anybody_enters(ranks):
    group = ranks("allreduce", 2, communicator=Link)
    for failure in group.run(torch.ones(2), torch.ones(2, device="fake")):
        assert "takes tensors on fake, but a0 has one on cpu" in str(error_of(failure))


def test_a_rank_without_memory_on_the_device_fails_a_broadcast_alone(ranks, monkeypatch):
    group = ranks("broadcast", 3, root=1, communicator=Link)
    room = exchanges.room_for

    def room_for(node: Any, size_bytes: int, device: str) -> Any:
        if node is group.nodes[2] and device == "fake":
            raise RuntimeError("not enough memory on the device")
        return room(node, size_bytes, device)

    monkeypatch.setattr(exchanges, "room_for", room_for)
    *found, failed = group.run(*[torch.full((9,), float(rank), device="fake") for rank in range(3)])
    assert [each.cpu().tolist() for each in found] == [[1.0] * 9] * 2
    assert type(failed) is Failure
    assert "not enough memory on the device" in str(error_of(failed))
