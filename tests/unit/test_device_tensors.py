# SPDX-License-Identifier: Apache-2.0
"""Tensors on a device that is not the CPU: in frames, over channels, through shared memory."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

pytest.importorskip("torch")
pytest.importorskip("tests.harness.fake_device", exc_type=ImportError)

import torch

from rcg.channels import tensor as tensor_channel
from rcg.channels.tensor import copy_of
from rcg.errors import TensorMismatch
from rcg.runtime.actor.ownership import is_held_only_by, may_overwrite
from rcg.serialization import loads_to
from rcg.serialization.payloads import LoneTable, Table, take_out
from rcg.testing import LocalCommunicator
from tests.harness.fake_device import COPIES, Direct
from tests.unit.test_tensor_channel import GUARD_S, Edge


class Link(Direct, LocalCommunicator):
    """Serves the fake device only."""

    devices: ClassVar[frozenset[str]] = frozenset({"fake"})


class Both(Direct, LocalCommunicator):
    """Serves the fake device and the CPU, but not in one call."""

    devices: ClassVar[frozenset[str]] = frozenset({"fake", "cpu"})


class Host(Direct, LocalCommunicator):
    """Serves the CPU only."""

    devices: ClassVar[frozenset[str]] = frozenset({"cpu"})


@pytest.fixture
def edge() -> Iterator[Callable[..., Edge]]:
    opened: list[Edge] = []

    def make(communicator: type[LocalCommunicator] = Link, **kwargs: Any) -> Edge:
        opened.append(Edge(communicator=communicator, **kwargs))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def sent(channel: Edge, value: Any) -> tuple[Any, dict[str, int]]:
    """What arrives, and the copies that it took at both ends."""
    COPIES.clear()
    found = channel.send(value)
    copies = dict(COPIES)
    return found, copies


def on_fake(*shape: int, **kwargs: Any) -> torch.Tensor:
    """A tensor of the fake device with the numbers from 0."""
    count = torch.Size(shape).numel()
    return torch.arange(float(count), **kwargs).reshape(shape).to("fake").detach()


def types_of(*tensors: torch.Tensor) -> list[str]:
    return [each.device.type for each in tensors]


# --- the device itself


@pytest.mark.parametrize(
    ("copy", "counted"),
    [
        (lambda tensor: tensor.cpu(), {"to host": 1}),
        (lambda tensor: tensor[1:, ::2].cpu(), {"to host": 1}),
        (lambda tensor: tensor.tolist(), {"to host": 1}),
        (lambda tensor: tensor[1, 1].item(), {"to host": 1}),
        (lambda tensor: tensor.untyped_storage().cpu(), {"to host": 1}),
        (lambda tensor: torch.ones(3).to("fake"), {"to device": 1}),
        (lambda tensor: tensor.copy_(torch.ones(3, 4)), {"to device": 1}),
        (lambda tensor: tensor.clone(), {"on device": 1}),
        (lambda tensor: tensor.t().contiguous(), {"on device": 1}),
        (lambda tensor: tensor.view(-1)[1:].reshape(11).detach(), {}),
        (lambda tensor: (tensor + 1).sum(), {}),
        (lambda tensor: torch.zeros(5, device="fake").fill_(1), {}),
    ],
)
def test_the_device_counts_every_copy_that_torch_makes(copy, counted):
    tensor = on_fake(3, 4)
    COPIES.clear()
    copy(tensor)
    assert dict(COPIES) == counted


def test_the_device_hands_its_memory_to_nobody_uncounted():
    with pytest.raises(TypeError):
        on_fake(3).numpy()
    with pytest.raises(TypeError):
        memoryview(on_fake(3))


# --- tables


@pytest.mark.parametrize(
    "devices", [(), ("cpu",), ("fake",), ("cpu", "cpu"), ("fake", "cpu", "npu")], ids=str
)
def test_a_table_says_on_which_device_each_payload_is(devices):
    table = Table(tuple(range(len(devices))), (8,) * len(devices), devices)
    data = table.to_bytes()
    assert Table.read(data + b"and more") == (table, len(data))


def test_a_table_of_the_cpu_alone_has_no_text():
    assert len(Table((0, 1), (8, 8), ("cpu", "cpu")).to_bytes()) == 6 * 8


@pytest.mark.parametrize("device", ["cpu", "fake"])
def test_the_table_of_a_lone_tensor_says_its_device(device):
    table = LoneTable.of(torch.ones(3, device=device))
    assert table.device == device
    assert LoneTable.read(table.to_bytes()) == table
    empty = LoneTable.of(torch.ones(0, 3, device=device))
    assert types_of(empty.put_back(None)) == [device]


# --- what stays on the device


@pytest.mark.parametrize("readers", [1, 3])
@pytest.mark.parametrize("is_direct", [False, True])
@pytest.mark.parametrize("shape", [(4,), (), (5, 7), (300, 200)], ids=str)
def test_a_lone_tensor_goes_from_device_to_device(edge, readers, is_direct, shape):
    channel = edge(readers=readers, is_direct_return=is_direct)
    value = on_fake(*shape)
    found, copies = sent(channel, value)
    assert copies == {}
    for each in found if readers > 1 else [found]:
        assert types_of(each) == ["fake"]
        assert torch.equal(each.cpu(), value.cpu())


@pytest.mark.parametrize("is_direct", [False, True])
def test_a_lone_tensor_keeps_dtype_gradient_and_emptiness(edge, is_direct):
    channel = edge(is_direct_return=is_direct)
    for value in (
        torch.ones(3, dtype=torch.bfloat16, device="fake"),
        torch.ones(4, device="fake", requires_grad=True),
        torch.ones(0, 3, device="fake"),
    ):
        found, copies = sent(channel, value)
        assert copies == {}
        assert (found.dtype, found.shape) == (value.dtype, value.shape)
        assert found.requires_grad == value.requires_grad
        assert types_of(found) == ["fake"]


def test_a_direct_return_that_is_not_contiguous_is_copied_on_the_device(edge):
    value = on_fake(3, 4).t()
    found, copies = sent(edge(is_direct_return=True), value)
    assert copies == {"on device": 1}
    assert torch.equal(found.cpu(), value.cpu())


def test_a_lazily_conjugated_one_is_resolved_on_the_device(edge):
    value = torch.tensor([1 + 2j, 3 - 1j]).to("fake").conj()
    for channel in (edge(is_direct_return=True), edge()):
        found, copies = sent(channel, value)
        assert set(copies) <= {"on device"}
        assert found.cpu().tolist() == [1 - 2j, 3 + 1j]


def test_parameters_and_attributes_arrive_too(edge):
    marked = on_fake(3)
    marked.mark = "kept"
    found, copies = sent(edge(), [torch.nn.Parameter(on_fake(4)), marked])
    assert copies == {}
    assert type(found[0]) is torch.nn.Parameter and found[0].requires_grad
    assert found[1].mark == "kept"
    assert types_of(*found) == ["fake", "fake"]


@pytest.mark.parametrize("hints", [{}, {"is_static_shape": True}], ids=["", "static"])
def test_a_tensor_like_the_last_but_on_another_device_arrives_where_it_was(edge, hints):
    channel = edge(Both, **hints)
    for device in ("cpu", "fake", "fake", "cpu"):
        for value in (torch.ones(3, device=device), [torch.ones(3, device=device)]):
            if hints and type(value) is list:
                continue
            found, copies = sent(channel, value)
            assert copies == {}
            assert types_of(*(found if type(found) is list else [found])) == [device]


@pytest.mark.parametrize("readers", [1, 2])
def test_tensors_of_a_value_go_from_device_to_device_and_those_of_the_cpu_with_its_data(
    edge, readers
):
    value = {
        "one": on_fake(5, 6),
        "two": [on_fake(7), "text", torch.arange(2000.0)],
        "half": torch.ones(3, dtype=torch.bfloat16, device="fake"),
        "none": torch.ones(0, device="fake"),
        "grad": torch.ones(2, device="fake", requires_grad=True),
    }
    channel = edge(readers=readers)
    found, copies = sent(channel, value)
    assert copies == {}
    if readers == 1:
        assert channel.sent() == [30 * 4, 7 * 4, 3 * 2, 2 * 4]
    for each in found if readers > 1 else [found]:
        assert torch.equal(each["one"].cpu(), value["one"].cpu())
        moved, text, plain = each["two"]
        assert (text, moved.cpu().tolist()) == ("text", list(range(7)))
        assert torch.equal(plain, torch.arange(2000.0))
        plain[0] = 1  # it is writable, as any tensor
        devices = [tensor.device.type for tensor in (each["one"], moved, plain, each["half"])]
        assert devices == ["fake", "fake", "cpu", "fake"]
        assert types_of(each["none"], each["grad"]) == ["fake", "fake"]
        assert each["half"].dtype == torch.bfloat16
        assert each["grad"].requires_grad and not each["one"].requires_grad


def test_one_that_serves_both_takes_those_of_each_in_calls_of_their_own(edge):
    channel = edge(Both)
    value = [on_fake(3), torch.ones(4), torch.ones(5), on_fake(6)]
    found, copies = sent(channel, value)
    assert copies == {}
    assert channel.sent() == [12, 16, 20, 24]
    assert types_of(*found) == ["fake", "cpu", "cpu", "fake"]
    assert [each.cpu().tolist() for each in found] == [each.cpu().tolist() for each in value]


@pytest.mark.parametrize("kind", [Link, Host], ids=["direct", "through host memory"])
def test_tensors_of_one_storage_arrive_sharing_one(edge, kind):
    base = on_fake(8, 6)
    value = [base[1:3, ::2], base[2:5], base[4], on_fake(3), base[0, :0]]
    found, copies = sent(edge(kind), value)
    through_host = {"to host": 2, "to device": 2}  # once for each storage
    assert copies == (through_host if kind is Host else {})
    for each, wanted in zip(found, value, strict=True):
        assert torch.equal(each.cpu(), wanted.cpu())
        assert (types_of(each), each.stride()) == (["fake"], wanted.stride())
    first, second, third, other, empty = (each.untyped_storage()._cdata for each in found)
    assert first == second == third == empty != other
    assert found[0].untyped_storage().nbytes() < 8 * 6 * 4  # only what the views span


# --- where it arrives


@pytest.mark.parametrize("is_direct", [False, True])
def test_a_hint_moves_what_arrives(edge, is_direct):
    found, copies = sent(edge(device="cpu", is_direct_return=is_direct), on_fake(4))
    assert (types_of(found), copies) == (["cpu"], {"to host": 1})
    channel = edge(Host, device="fake", is_direct_return=is_direct)
    found, copies = sent(channel, torch.ones(4, requires_grad=True))
    assert (types_of(found), copies) == (["fake"], {"to device": 1})
    assert found.requires_grad


def test_a_hint_moves_each_storage_of_a_value_once(edge):
    base = on_fake(4, 4)
    value = [base[1:], base[2:], on_fake(3), torch.ones(2)]
    found, copies = sent(edge(device="cpu"), value)
    assert (types_of(*found), copies) == (["cpu"] * 4, {"to host": 2})
    assert found[0].untyped_storage()._cdata == found[1].untyped_storage()._cdata
    found, copies = sent(edge(device="fake"), value)
    assert (types_of(*found), copies) == (["fake"] * 4, {"to device": 1})


@pytest.mark.parametrize(
    ("device", "copies"),
    [
        ("default", {"to host": 1, "to device": 1}),
        ("fake", {"to host": 1, "to device": 1}),
        ("cpu", {"to host": 1}),
    ],
)
@pytest.mark.parametrize("is_alone", [True, False])
def test_a_device_that_is_not_served_is_left_through_host_memory(edge, device, copies, is_alone):
    channel = edge(Host, device=device)
    value = on_fake(4)
    found, counted = sent(channel, value if is_alone else [value, 3])
    assert counted == copies
    assert channel.sent() == [16]  # its copy in host memory is a payload
    tensor = found if is_alone else found[0]
    assert types_of(tensor) == ["fake" if device == "default" else device]
    assert tensor.cpu().tolist() == [0, 1, 2, 3]


def test_a_direct_return_on_a_device_that_is_not_served_is_refused(edge):
    channel = edge(Host, is_direct_return=True)
    with pytest.raises(TensorMismatch, match="on cpu, instead found one on fake"):
        channel.writer.write(on_fake(3))
    channel = edge(is_direct_return=True)
    with pytest.raises(TensorMismatch, match="on fake, instead found one on cpu"):
        channel.writer.write(torch.ones(3))


def test_what_shared_memory_carries_leaves_the_device_once_and_returns_once(edge):
    codec = edge().nodes[0]
    base = on_fake(6, 6)
    value = [base, base[1:], on_fake(9)[3:5], base.untyped_storage()]
    COPIES.clear()
    _, data, buffers, writable = codec.encode(value)
    assert (dict(COPIES), writable) == ({"to host": 2}, 3)
    COPIES.clear()
    found = pickle.loads(data, buffers=buffers)
    assert dict(COPIES) == {"to device": 2}
    assert types_of(*found[:3]) == ["fake"] * 3
    assert found[3]._cdata == found[0].untyped_storage()._cdata
    assert found[2].cpu().tolist() == [3, 4]
    COPIES.clear()
    found = loads_to("cpu")(data, buffers=buffers)
    assert (types_of(*found[:3]), dict(COPIES)) == (["cpu"] * 3, {})


def test_only_what_a_value_spans_leaves_the_device(edge):
    encoded = edge().nodes[0].encode(on_fake(1000)[500:510])
    (size, _) = (memoryview(each).nbytes for each in encoded[2])
    assert 40 <= size < 40 + 64
    _, table, payloads = take_out(
        edge().nodes[0].encode(on_fake(1000)[500:510], None, {"fake"}), {"fake"}
    )
    assert table.sizes == (payloads[0].numel(),) and 40 <= table.sizes[0] < 40 + 64


def test_a_copy_is_made_on_the_device(edge):
    base = on_fake(3, 4)
    value = {"a": base, "row": base[1], "plain": torch.ones(3)}
    COPIES.clear()
    found = copy_of(value, edge().nodes[0])
    assert dict(COPIES) == {"on device": 1}
    assert types_of(*found.values()) == ["fake", "fake", "cpu"]
    base.fill_(0)
    assert found["row"].cpu().tolist() == [4, 5, 6, 7]
    found["a"].fill_(1)
    assert found["row"].cpu().tolist() == [1] * 4


# --- memory


@pytest.mark.parametrize("readers", [1, 3])
@pytest.mark.parametrize("kind", [Link, Both])
def test_a_reader_without_memory_on_the_device_takes_the_tensors_and_fails_alone(
    edge, monkeypatch, kind, readers
):
    monkeypatch.setattr(tensor_channel, "PIECE_BYTES", 1024)
    channel = edge(kind, readers=readers)
    poor = channel.nodes[1]
    room = tensor_channel.room_for

    def room_for(endpoint: Any, size_bytes: int, device: str) -> Any:
        if endpoint is poor and device == "fake":
            raise RuntimeError("not enough memory on the device")
        return room(endpoint, size_bytes, device)

    monkeypatch.setattr(tensor_channel, "room_for", room_for)
    value = [torch.ones(700), on_fake(5000), torch.ones(900), on_fake(3)]
    reading = channel.reading()
    channel.writer.write(value)
    with pytest.raises(RuntimeError, match="not enough memory on the device"):
        reading[0].result(GUARD_S)
    assert [each.result(GUARD_S)[1].numel() for each in reading[1:]] == [5000] * (readers - 1)
    assert channel.readers[0].seq == 1
    monkeypatch.undo()
    found, copies = sent(channel, value)
    assert copies == {}
    for each in found if readers > 1 else [found]:
        assert torch.equal(each[1].cpu(), value[1].cpu())


@pytest.mark.parametrize("device", ["meta", "fake"])
def test_a_tensor_of_a_device_is_never_overwritten(device):
    slots = [torch.ones(4, device=device)]
    assert not may_overwrite(slots, 0)
    assert may_overwrite([torch.ones(4)], 0)


def test_one_whose_memory_torch_counts_may_still_be_passed_on_without_a_copy():
    assert is_held_only_by([torch.ones(4, device="meta")], 0)
