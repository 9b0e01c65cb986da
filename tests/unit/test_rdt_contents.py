# SPDX-License-Identifier: Apache-2.0
"""Values taken apart for an envelope, and the bytes of their tensors in a message."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from rcg.errors import UnpicklableError
from rcg.rdt import answers
from rcg.rdt.custom import take_apart_objects
from rcg.rdt.envelope import Parts, Whole, take_apart
from rcg.rdt.parts import find_lost, tensors_in
from rcg.rdt.store import Versions
from rcg.rdt.transports import Transport
from rcg.rdt.values import check_targets
from rcg.runtime.codec import make_codec
from rcg.wire import sockets
from rcg.wire.messages import TensorsHere
from rcg.wire.payloads import open_buffers, room_for, send_buffers
from tests.harness.rdt_managers import FileTransport

torch = pytest.importorskip("torch")


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    made = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield made
    for each in made:
        each.close()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).view(2, 3),
        torch.tensor(3.5),
        torch.arange(4, dtype=torch.int16),
        torch.ones(3, 5, dtype=torch.bfloat16, requires_grad=True),
    ],
)
def test_a_plain_tensor_needs_no_pickle(tensor):
    contents, payloads = take_apart(tensor, make_codec())
    versions = Versions([tensor])
    assert type(contents) is Whole
    assert payloads[0].data_ptr() == tensor.data_ptr()
    assert versions.find_written() is None
    tensor.detach().add_(0)
    assert versions.find_written() is tensor
    arrived = pickle.loads(pickle.dumps(contents))
    found = arrived.put_back([each.clone() for each in payloads])
    assert found.dtype == tensor.dtype and found.shape == tensor.shape
    assert found.requires_grad == tensor.requires_grad
    assert bool((found == tensor).all())


def test_other_values_keep_their_structure():
    base = torch.arange(10.0)
    value = {"views": [base[:5], base[5:].flip(0)], "t": base.view(2, 5).t(), "text": "x"}
    contents, payloads = take_apart(value, make_codec())
    versions = Versions(tensors_in(value))
    assert type(contents) is Parts
    assert versions.find_written() is None
    base[3] = 3
    assert versions.find_written() is not None
    assert sum(contents.sizes) == sum(each.numel() for each in payloads)
    found = pickle.loads(pickle.dumps(contents)).put_back([each.clone() for each in payloads])
    assert found["text"] == "x"
    assert found["views"][1].tolist() == [9, 8, 7, 6, 5]
    found["t"][0, 0] = -1
    assert found["views"][0][0] == -1


def test_the_bytes_of_a_tensor_follow_its_storage_which_stays_resizable():
    whole, part = torch.arange(100.0), torch.arange(100.0)
    value = {"whole": whole, "part": part[10:20], "transposed": torch.ones(20, 30).t()}
    _, payloads = take_apart(value, make_codec())
    for tensor in (whole, part):
        tensor.share_memory_()  # elsewhere
    assert payloads[0].view(torch.float32).tolist() == whole.tolist()
    assert part[10:20].tolist() == payloads[1].view(torch.float32).tolist()[-10:]
    assert find_lost(value, payloads) == ""
    assert value["transposed"].untyped_storage().resizable()
    value["transposed"].untyped_storage().resize_(20 * 30 * 4 - 1)
    assert find_lost(value, payloads) == (
        "value['transposed'] has lost its memory: a tensor of float32 [30, 20] needs 2400 bytes of "
        "its storage, which has 2399: it was freed, or made smaller (untyped_storage().resize_, as "
        "FSDP does)"
    )
    value["transposed"].untyped_storage().resize_(2400)
    assert find_lost(value, payloads) == ""


def freed(tensor):
    tensor.untyped_storage().resize_(0)
    return tensor


def test_a_transport_of_the_users_gets_no_tensor_without_memory():
    transport = Transport("files", frozenset({"cpu"}), needs_group=False, manager=FileTransport)
    value = {"there": torch.ones(4), "gone": freed(torch.ones(4))}
    with pytest.raises(UnpicklableError, match=r"The value of make .*: value\['gone'\] has lost"):
        take_apart_objects(value, transport, "key", "The value of make")


@pytest.mark.parametrize(
    ("targets", "text"),
    [
        ([torch.ones(4, device="meta")], "out has no memory .*: it is on meta"),
        ([freed(torch.ones(4))], "out has lost its memory: a tensor of float32"),
        ([torch.ones(2, 2).to_sparse()], "out must be a dense tensor, found torch.sparse_coo"),
        ([torch.ones(4, dtype=torch.complex64).conj()], "out must be resolved first"),
        ([torch.ones(8)[::2]], "out must be contiguous"),
        ([torch.ones(4), torch.ones(4, device="meta")], r"out\[1\] has no memory"),
        (2 * [torch.ones(4)], r"out\[0\] and out\[1\] share memory"),
        ([*torch.arange(6.0).unfold(0, 4, 2)][::-1], r"out\[1\] and out\[0\] share memory"),
        (list(torch.arange(8.0).split(4)), ""),
    ],
)
def test_what_would_be_lost_in_a_target_is_refused(targets, text):
    values = [torch.arange(4.0).to(targets[0].dtype) for _ in targets]
    contents, _ = take_apart(values if len(values) > 1 else values[0], make_codec())
    if text:
        with pytest.raises(ValueError, match=text):
            check_targets(contents, targets, "out")
    else:
        found = check_targets(contents, targets, "out")
        assert [each.data_ptr() for each in found] == [each.data_ptr() for each in targets]


@pytest.mark.parametrize("size", [8, 1 << 20])
def test_bytes_that_were_lost_while_they_were_copied_are_not_sent(ends, size):
    def check():
        raise BufferError("lost")

    with pytest.raises(BufferError):
        send_buffers(ends[0], TensorsHere(number=7), [memoryview(bytes(size))], check)
    ends[0].close()
    with sockets.receive(ends[1], 1) as received:
        assert received.message is None


@pytest.mark.parametrize("sizes", [[], [0], [3, 0, 100], [1 << 20, 5, 1 << 16]])
def test_bytes_arrive_as_they_were_whatever_their_size(ends, sizes):
    parts = [bytes([at + 1]) * size for at, size in enumerate(sizes)]
    send_buffers(ends[0], TensorsHere(number=7), [memoryview(each) for each in parts])
    with sockets.receive(ends[1], 1) as received:
        assert received.message == TensorsHere(number=7)
        room = room_for(sizes)
        open_buffers(received, room)
    assert [bytes(each) for each in room.parts] == parts
    assert not any(each.readonly for each in room.parts)


@pytest.mark.parametrize("size", [100, 1 << 20])
def test_bytes_of_another_size_are_refused(ends, size):
    send_buffers(ends[0], TensorsHere(number=0), [memoryview(bytes(size))])
    with sockets.receive(ends[1], 1) as received, pytest.raises(ValueError, match="size"):
        open_buffers(received, room_for([size + 100_000]))


class Attributes(dict):
    """Its items are its attributes, too, and it has no others."""

    __getattr__ = dict.__getitem__


def test_a_value_whose_attributes_are_its_own_affair():
    value = Attributes(a=torch.ones(4), inner=[Attributes(b=torch.ones(2))])
    _, payloads = take_apart(value, make_codec())
    versions = Versions(tensors_in(value))
    assert len(payloads) == 2 and versions.find_written() is None
    value["inner"][0]["b"][0] = 3
    assert versions.find_written() is value["inner"][0]["b"]


def test_a_way_that_failed_is_not_tried_again(monkeypatch):
    monkeypatch.setattr(answers, "answer_to", lambda *_: None)
    asked: list[int] = []
    connection: Any = SimpleNamespace(
        failed=set(), end_reading=asked.append, next=nullcontext, holder=None
    )

    def fail() -> None:
        raise OSError("no such memory")

    assert answers.try_to_read(connection, 1, "memory", lambda: None)
    assert not connection.failed
    assert not answers.try_to_read(connection, 2, "mapping", fail)
    assert connection.failed == {"mapping"} and asked == [1, 2]
