# SPDX-License-Identifier: Apache-2.0
"""Tensors on a device that is not the CPU: in frames, over channels, through shared memory."""

from __future__ import annotations

import functools
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from tests.harness.places import closing
from tests.unit.test_serialization import same_tensor, sharing, views_of
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
    yield from closing(functools.partial(Edge, communicator=Link))


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


@st.composite
def values(draw: st.DrawFn) -> Any:
    """A tensor, or several of both devices in a list: some are views of one storage."""
    tensors = []
    for _ in range(draw(st.integers(1, 3))):
        dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.complex64]))
        raw = torch.arange(draw(st.sampled_from([0, 1, 12, 3000]))) % 50
        base = raw.to(dtype).to(draw(st.sampled_from(["cpu", "fake"])))
        for _ in range(draw(st.integers(1, 3))):
            tensor = draw(views_of(base))
            has_grad = (tensor.is_floating_point() or tensor.is_complex()) and draw(st.booleans())
            match draw(st.sampled_from(["plain", "parameter", "tagged"])):
                case "parameter" if has_grad:
                    tensor = torch.nn.Parameter(tensor)
                case "tagged":
                    tensor.mark = "kept"
            tensors.append(tensor.requires_grad_(has_grad))
    return draw(st.sampled_from([tensors[0], [*tensors, "text"]]))


def copies_of(tensors: list[torch.Tensor], kind: Any, hint: str, readers: int) -> dict[str, int]:
    """How often each storage has to leave a device, and to come to one."""
    needed: Counter[str] = Counter()
    filled = [each for each in tensors if each.numel()]
    for device in {each.untyped_storage()._cdata: each.device.type for each in filled}.values():
        arrives = device if hint == "default" else hint
        is_served = device in kind.devices
        if device == "fake" and not is_served:
            needed["to host"] += 1
        if device == "fake" and is_served and arrives == "cpu":
            needed["to host"] += readers
        if arrives == "fake" and not (device == "fake" and is_served):
            needed["to device"] += readers
    return dict(needed)


@given(
    kind=st.sampled_from([Link, Both, Host]),
    hint=st.sampled_from(["default", "cpu", "fake"]),
    readers=st.integers(1, 2),
    is_direct=st.booleans(),
    sent_values=st.lists(values(), min_size=1, max_size=3),
)
def test_whatever_is_sent_arrives_where_it_was_or_is_asked_for(
    kind, hint, readers, is_direct, sent_values
):
    """Each value as it was, and no storage is copied between the devices in vain."""
    channel = Edge(communicator=kind, readers=readers, device=hint, is_direct_return=is_direct)
    try:
        for value in sent_values:
            if is_direct and (type(value) is list or value.device.type not in kind.devices):
                continue  # it is refused
            found, copies = sent(channel, value)
            copies.pop("on device", None)
            given_tensors = tensors_of(value)
            assert copies == copies_of(given_tensors, kind, hint, readers)
            for each in found if readers > 1 else [found]:
                arrived = tensors_of(each)
                for tensor, other in zip(arrived, given_tensors, strict=True):
                    assert tensor.device.type == (other.device.type if hint == "default" else hint)
                    if not is_direct:  # of a direct return, only the numbers travel
                        assert type(tensor) is type(other) and vars(tensor) == vars(other)
                    assert tensor.requires_grad == other.requires_grad
                    plain = [each.detach().as_subclass(torch.Tensor) for each in (tensor, other)]
                    assert same_tensor(plain[0].cpu(), plain[1].cpu())
                if type(value) is list:
                    assert sharing(arrived) == sharing(given_tensors)
    finally:
        channel.close()


def tensors_of(value: Any) -> list[torch.Tensor]:
    return value[:-1] if type(value) is list else [value]


# --- where it arrives


def test_a_direct_return_on_a_device_that_is_not_served_is_refused(edge):
    channel = edge(communicator=Host, is_direct_return=True)
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
    channel = edge(communicator=kind, readers=readers)
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
