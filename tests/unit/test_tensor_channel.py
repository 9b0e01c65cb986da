# SPDX-License-Identifier: Apache-2.0
"""Tensor channels: rings that carry the status, a communicator that carries the tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rcg
from rcg.channels import open_reader, open_writer
from rcg.channels import tensor as tensor_channel
from rcg.channels.base import GraphEnded, TimedOut, TransferFailed
from rcg.comm import Membership
from rcg.errors import CommError, TensorMismatch, UnpicklableError
from rcg.ir.channels import ChannelSpec
from rcg.runtime.node import node as places
from rcg.runtime.node.memory import Segments
from rcg.serialization import Failure
from rcg.testing import LocalCommunicator, LocalStore
from tests.harness.board import until
from tests.harness.places import OneGroup, closing, place_of, plan_without_ops
from tests.harness.rays_style import Distorting, distorting

torch = pytest.importorskip("torch")

GUARD_S = 20


class Edge:
    """A tensor channel: its writer here, each reader on a thread."""

    def __init__(
        self,
        readers: int = 1,
        cap_bytes: int = 1 << 28,
        array_types: Any = None,
        communicator: type[LocalCommunicator] = LocalCommunicator,
        **hints: Any,
    ) -> None:
        self.payloads: list[int] = []
        actors = tuple(f"a{i}" for i in range(1, readers + 1))
        names = ("a0", *actors)
        self.spec = ChannelSpec("c3", "a0", actors, "tensor", (1,), 4, "g0", **hints)
        ring = ChannelSpec("c3", "a0", actors, "ring", (1,), 4)
        self.segments = Segments(plan_without_ops(names, ring), cap_bytes=cap_bytes)
        self.threads = ThreadPoolExecutor(readers + 1)
        store = LocalStore()
        places = [Membership("g0", rank, names, store, GUARD_S) for rank in range(len(names))]
        self.communicators = list(self.threads.map(communicator.open, places))
        sending = self.communicators[0]
        send = sending.send

        def counted(tensors: Any, peer: int, tag: int = 0) -> None:
            self.payloads += [each.numel() for each in tensors]
            send(tensors, peer, tag)

        sending.send = counted
        self.nodes = [
            place_of(self.segments, name, array_types=array_types, groups=OneGroup(names, each))
            for name, each in zip(names, self.communicators, strict=True)
        ]
        self.writer = open_writer(self.spec, 1, self.nodes[0])
        self.readers = [open_reader(self.spec, 2, node) for node in self.nodes[1:]]

    def reading(self) -> list[Future[Any]]:
        return [self.threads.submit(reader.read) for reader in self.readers]

    def send(self, value: Any) -> Any:
        """What each reader gets for a value; that of the only reader alone."""
        reading = self.reading()
        self.writer.write(value)
        found = [each.result(GUARD_S) for each in reading]
        return found if len(found) > 1 else found[0]

    def sent(self) -> list[int]:
        """The sizes of the tensors that the communicator carried."""
        return self.payloads

    def events(self, name: str) -> list[dict[str, int]]:
        node = next(node for node in self.nodes if node.process == name)
        found = node.newest_events(name)
        return [{key: int(row[key]) for key in found.dtype.names} for row in found]

    def close(self) -> None:
        self.nodes[0].end_closed()
        for communicator in self.communicators:
            communicator.abort("the test is over")
        self.threads.shutdown()
        self.segments.close()


@pytest.fixture
def edge() -> Iterator[Callable[..., Edge]]:
    yield from closing(Edge)


def same(one: Any, other: Any) -> bool:
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and one.requires_grad == other.requires_grad
        and torch.equal(one.detach().flatten(), other.detach().flatten())
    )


def bytes_of(tensor: Any) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


DTYPES = [
    name
    for name, kind in vars(torch).items()
    if isinstance(kind, torch.dtype) and name == str(kind).removeprefix("torch.")
    if not name.startswith(("q", "bits", "uint", "int", "float4", "complex32"))
] + ["uint8", "uint16", "int8", "int16", "int32", "int64"]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (5, 7), (40, 50, 3)], ids=str)
@pytest.mark.parametrize("readers", [1, 3])
def test_tensors_of_every_dtype_and_shape_arrive(edge, shape, readers):
    channel = edge(readers)
    for kind in (getattr(torch, dtype) for dtype in DTYPES):
        count = int(np.prod(shape)) * kind.itemsize
        raw = torch.arange(count, dtype=torch.uint8) % 2
        value = (raw.view(kind) if count else torch.empty(0, dtype=kind)).view(shape)
        found = channel.send(value)
        for each in found if readers > 1 else [found]:
            assert (each.dtype, each.shape, each.stride()) == (kind, value.shape, value.stride())
            assert bytes_of(each) == bytes_of(value), kind


@pytest.mark.parametrize("is_direct", [False, True])
def test_a_column_of_one_row_arrives(edge, is_direct):
    """It is contiguous, and yet its stride is not 1."""
    value = torch.arange(12.0).reshape(3, 4)[:1, 2]
    found = edge(is_direct_return=is_direct).send(value)
    assert found.shape == (1,) and found.tolist() == [2.0]


@pytest.mark.parametrize("value", [b"bytes", b"", None, 7, "text", [1, 2], {"a": b"x" * 100_000}])
def test_values_without_tensors_need_no_communicator(edge, value):
    channel = edge()
    channel.communicators[0].abort("nobody needs it")
    assert channel.send(value) == value


def test_a_failure_leaves_nobody_in_the_communicator_and_the_next_value_arrives(edge):
    channel = edge(2)
    failure = Failure(b"why")
    found = channel.send(failure)
    assert [(type(each), each.data) for each in found] == [(Failure, b"why")] * 2
    assert [each.sum().item() for each in channel.send(torch.ones(9))] == [9, 9]


@pytest.mark.parametrize("hints", [{}, {"is_static_shape": True}], ids=["", "static"])
def test_a_value_that_does_not_pickle_writes_nothing(edge, hints):
    channel = edge(**hints)
    with pytest.raises(UnpicklableError, match="lock"):
        channel.writer.write([torch.ones(3), threading.Lock()])
    assert channel.writer.seq == 0
    assert channel.send([torch.ones(3)])[0].sum() == 3


# --- promises


@pytest.mark.parametrize("is_direct", [False, True])
@pytest.mark.parametrize("is_static", [False, True])
def test_a_shape_that_stays_sends_its_table_once(edge, is_direct, is_static):
    channel = edge(is_static_shape=is_static, is_direct_return=is_direct)
    sizes = []
    for step in range(4):
        assert channel.send(torch.full((3, 5), float(step))).tolist() == [[float(step)] * 5] * 3
        sizes.append(channel.events("a1")[-1]["bytes"] if step else 0)
    if sizes:
        assert all(frame == 1 + 3 * 5 * 4 for frame in sizes[2:])  # a byte and the numbers


@pytest.mark.parametrize("is_direct", [False, True])
@pytest.mark.parametrize(
    "other", [torch.ones(3, 4), torch.ones(12), torch.ones(4, 3, dtype=torch.float64)], ids=str
)
def test_a_static_shape_that_changes_is_refused_with_both(edge, is_direct, other):
    channel = edge(is_static_shape=True, is_direct_return=is_direct)
    channel.send(torch.ones(4, 3))
    with pytest.raises(TensorMismatch, match="_static_shape") as raised:
        channel.writer.write(other)
    assert "([4, 3], float32)" in str(raised.value.expected)
    assert str(list(other.shape)) in str(raised.value.found)
    assert channel.writer.seq == 1
    assert channel.send(torch.zeros(4, 3)).sum() == 0


def test_a_table_is_sent_again_if_its_frame_found_no_memory(edge, monkeypatch):
    channel = edge()
    channel.send(torch.ones(3))
    write = channel.writer._ring.write
    ring = SimpleNamespace(seq=1, open=lambda: None, shut=lambda: None, write=_no_memory)
    monkeypatch.setattr(channel.writer, "_ring", ring)
    with pytest.raises(OSError, match="no memory"):
        channel.writer.write(torch.ones(5))
    monkeypatch.undo()
    assert channel.writer._ring.write == write
    assert channel.send(torch.ones(5)).shape == (5,)


def _no_memory(*_: Any) -> None:
    raise OSError("no memory")


@pytest.mark.parametrize("value", [7, None, [torch.ones(3)], {"a": torch.ones(3)}, np.ones(3)])
def test_a_direct_return_must_be_one_tensor(edge, value):
    channel = edge(is_direct_return=True)
    with pytest.raises(TensorMismatch, match=type(value).__name__):
        channel.writer.write(value)
    assert channel.writer.seq == 0
    assert channel.send(torch.ones(2, 3).t()).shape == (3, 2)


def test_a_tensor_that_is_nowhere_is_refused_before_anything_is_sent(edge):
    channel = edge(is_direct_return=True)
    with pytest.raises(TensorMismatch, match="instead found one on meta"):
        channel.writer.write(torch.ones(3, device="meta"))
    assert channel.send(torch.ones(3)).sum() == 3


@pytest.mark.parametrize("is_direct", [False, True])
def test_a_tensor_whose_memory_was_freed_is_refused_before_anything_is_sent(edge, is_direct):
    channel = edge(is_direct_return=is_direct)
    for left in (0, 11):
        lost = torch.ones(3)
        lost.untyped_storage().resize_(left)
        for value in (lost,) if is_direct else (lost, {"a": lost}):
            with pytest.raises(
                (UnpicklableError, TensorMismatch), match=f"which has {left}: it was"
            ):
                channel.writer.write(value)
    assert channel.writer.seq == 0
    sent = torch.ones(3)
    assert channel.send(sent).sum() == 3
    if not is_direct:
        assert channel.send([sent])[0].sum() == 3
    assert sent.untyped_storage().resizable()


def test_conjugated_and_negated_views_keep_a_static_shape(edge):
    channel = edge(is_static_shape=True)
    numbers = torch.tensor([1 + 2j, 3 - 1j, 5j])
    lazy = numbers.conj()
    plain = [numbers, numbers.imag[::2], LIKE]
    for given in (plain, [lazy, lazy.imag[::2], torch._neg_view(LIKE)], plain):
        for found, wanted in zip(channel.send(given), given, strict=True):
            assert torch.equal(found, wanted) and found.dtype == wanted.dtype


def test_bytes_in_place_of_a_static_shape_are_refused(edge):
    channel = edge(is_static_shape=True)
    channel.send(torch.ones(3))
    with pytest.raises(TensorMismatch, match="_static_shape"):
        channel.writer.write(b"raw")


LIKE = torch.arange(1.0, 7.0)


@pytest.mark.parametrize("is_direct", [False, True])
@pytest.mark.parametrize(
    "other",
    [LIKE.view(2, 3), LIKE.view(torch.int32), LIKE.clone().requires_grad_(), LIKE.repeat(2)],
    ids=["shape", "dtype", "gradient", "size"],
)
def test_a_tensor_arrives_as_it_is_after_one_that_differs_in_one_thing(edge, other, is_direct):
    channel = edge(1, is_direct_return=is_direct)
    for value in (LIKE, other, other, LIKE):
        assert same(channel.send(value), value)


# --- memory


def test_an_idle_loop_gives_the_heap_back_after_large_values_only(edge, monkeypatch):
    given: list[bool] = []
    monkeypatch.setattr(places, "MUCH_BYTES", 10_000)
    monkeypatch.setattr(places, "give_back_heap", lambda: given.append(True))
    channel = edge()
    for times, count in ((1, 0), (2, 2)):  # of 8,000 bytes
        for _ in range(times):
            channel.send(torch.ones(2000))
        for node in channel.nodes:
            node.trim()
        assert len(given) == count


def test_received_memory_is_used_again_and_belongs_to_nobody_else(edge):
    channel = edge()
    first = channel.send(torch.ones(1 << 16))
    address = first.data_ptr()
    kept = first.clone()
    second = channel.send(torch.zeros(1 << 16))
    other = second.data_ptr()
    assert other != address
    assert torch.equal(first, kept)
    del first, second
    assert channel.send(torch.ones(1 << 16)).data_ptr() in (address, other)


# --- ends


def test_a_writer_waits_for_its_reader_where_poison_reaches_it(edge):
    channel = edge()
    writing = channel.threads.submit(channel.writer.write, torch.ones(3))
    until(lambda: channel.nodes[0].waiting_since_ns("a0") > 0)
    now = channel.nodes[1].now("a0")
    assert channel.nodes[0].layout.channel(now.ring) == "c3"
    channel.nodes[1].end_broken("a1")
    with pytest.raises(GraphEnded):
        writing.result(GUARD_S)


def freed(tensor: Any) -> Any:
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize("readers", [1, 2])
@pytest.mark.parametrize(
    ("distort", "what"),
    [
        (lambda found: found[:1], r"a tensor of uint8 \[1\]"),
        (lambda found: found.view(3, 4), r"a tensor of uint8 \[3, 4\]"),
        (lambda found: found.resize_(24), r"a tensor of uint8 \[24\]"),
        (lambda found: found.float(), r"a tensor of float32 \[12\]"),
        (lambda found: found.to("meta"), r"a tensor of uint8 \[12\] on meta"),
        (lambda found: found.to_sparse(), r"a tensor of uint8 \[12\] on cpu, of the layout .*,"),
        (
            lambda found: freed(found.clone()),
            r"a tensor of uint8 \[12\] on cpu, without its memory,",
        ),
        (lambda _: None, "a value of type NoneType"),
    ],
)
def test_what_a_users_communicator_receives_must_be_what_it_was_asked_for(
    edge, readers, distort, what
):
    channel = edge(readers, communicator=Distorting)
    distorting(distort, range(1, readers + 1))
    reading = channel.reading()
    channel.writer.write([torch.ones(3), torch.zeros(5)])
    for rank, each in enumerate(reading, 1):
        with pytest.raises(TensorMismatch, match=f"recv of Distorting, .* of g0, returned {what} "):
            each.result(GUARD_S)
        error = str(each.exception(GUARD_S))
        assert f"from a0 to a{rank}, where a tensor of uint8 [12] was asked for" in error
    found = channel.send([torch.full((3,), 2.0), torch.ones(5)])
    for one, other in [found] if readers == 1 else found:
        assert (one.tolist(), other.tolist()) == ([2] * 3, [1] * 5)


def test_an_aborted_group_is_a_failed_transfer_at_both_ends(edge):
    channel = edge()
    for communicator in channel.communicators:
        communicator.abort("a process of the graph is gone")
    reading = channel.reading()
    with pytest.raises(TransferFailed, match="gone"):
        channel.writer.write(torch.ones(3))
    with pytest.raises(TransferFailed, match="gone") as raised:
        reading[0].result(GUARD_S)
    assert isinstance(raised.value.public(), CommError)


LIST = [torch.ones(3), np.ones(3)]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()], ids=repr)
@pytest.mark.parametrize(
    ("value", "step"),
    [(torch.ones(3), "LoneTable.read"), (LIST, "Table.read"), (LIST, "_undecoded")],
    ids=["lone", "list", "as a frame is taken"],
)
def test_what_fails_between_a_frame_and_its_tensors_is_about_no_value(
    edge, monkeypatch, value, step, error
):
    """An end that went on would take the tensors of one execution for those of the next."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(f"{tensor_channel.__name__}.{step}", fail)
    channel = edge()
    writing = channel.threads.submit(channel.writer.write, value)
    with pytest.raises(TransferFailed, match=type(error).__name__):
        channel.readers[0].read()
    channel.nodes[1].end_broken("a1")
    for communicator in channel.communicators:
        communicator.abort("a process of the graph is gone")
    with pytest.raises((GraphEnded, TransferFailed)):
        writing.result(GUARD_S)


def test_an_interrupt_of_a_writer_after_its_frame_is_about_no_value(edge, monkeypatch):
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    channel = edge()
    monkeypatch.setattr(tensor_channel, "pieces_of", fail)
    reading = channel.threads.submit(channel.readers[0]._ring.read)
    with pytest.raises(TransferFailed, match="KeyboardInterrupt"):
        channel.writer.write(torch.ones(3))
    reading.result(GUARD_S)


def test_nothing_to_read_times_out(edge):
    channel = edge()
    with pytest.raises(TimedOut):
        channel.readers[0].read(1_000_000)
    assert channel.send(torch.ones(1)).item() == 1


# --- what is recorded


def test_each_end_records_one_event_with_the_bytes_of_the_tensors(edge):
    channel = edge()
    for _ in range(3):
        channel.send(torch.ones(1000))
    channel.nodes[1].mark(7, 3)  # the next op ends the last Read
    for name, op in (("a0", 1), ("a1", 2)):
        events = [event for event in channel.events(name) if event["op"] == op]
        assert [event["execution"] for event in events] == [0, 1, 2]
        assert all(event["bytes"] >= 4000 for event in events)


# --- arrays of other libraries


def test_numpy_arrays_travel_as_tensors_where_that_is_asked_for(edge):
    array = np.arange(1000.0)
    assert (channel := edge()).send([array])[0].tolist() == array.tolist()
    assert channel.sent() == []
    channel = edge(array_types={np.ndarray: np.from_dlpack})
    found = channel.send([array])[0]
    assert type(found) is np.ndarray
    assert found.tolist() == array.tolist()
    assert channel.sent() == [array.nbytes]


@pytest.mark.parametrize(
    ("cls", "function", "why"),
    [
        ("torch", np.from_dlpack, "takes a type"),
        (dict, np.from_dlpack, "builtins.dict has no method __dlpack__"),
        (np.ndarray, 7, "from_dlpack must be callable"),
    ],
)
def test_a_type_that_cannot_be_handed_over_is_refused(cls, function, why):
    with pytest.raises(TypeError, match=why):
        rcg.register_array_type(cls, function)


# --- devices


@pytest.mark.parametrize("value", [torch.ones(3), [torch.ones(3), torch.ones(0)]], ids=type)
def test_torchs_default_device_does_not_matter(edge, value):
    channel = edge()

    def read() -> Any:
        with torch.device("meta"):
            return channel.readers[0].read()

    reading = channel.threads.submit(read)
    with torch.device("meta"):
        channel.writer.write(value)
    found = reading.result(GUARD_S)
    for one, other in zip(found, value, strict=True) if type(value) is list else [(found, value)]:
        assert one.device.type == "cpu"
        assert torch.equal(one, other)


@pytest.mark.parametrize("is_direct", [False, True])
def test_a_device_that_is_not_there_fails_the_value(edge, is_direct):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    channel = edge(device="cuda", is_direct_return=is_direct)
    with pytest.raises(RuntimeError, match="No CUDA GPUs are available"):
        channel.send(torch.ones(3))
    assert channel.readers[0].seq == 1


def test_what_is_not_kept_needs_memory_too():
    with pytest.raises(TransferFailed, match="the communicator failed"):
        tensor_channel.nowhere([3, 5], ["cpu", "none"])
