# SPDX-License-Identifier: Apache-2.0
"""What every channel does, whatever carries it: one suite, one line per implementation.

A new kind of channel adds a line to ``KINDS``: a function that opens a writer and n readers of it.
"""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from rcg import _native
from rcg.channels import open_reader, open_writer
from rcg.channels.base import GraphEnded, NoMemory, Signal, TimedOut, timeout_ns
from rcg.channels.local import LocalQueue
from rcg.channels.shm import ERRORS
from rcg.errors import (
    ChannelBroken,
    ChannelClosed,
    ChannelError,
    ChannelTimeout,
    InternalError,
    OutOfSharedMemory,
    UnpicklableError,
)
from rcg.ir.channels import ChannelSpec
from rcg.ir.ids import DRIVER
from rcg.runtime.node.memory import Segments
from rcg.runtime.node.node import Node
from rcg.serialization import Failure
from tests.harness.board import until_waiting
from tests.harness.circles import core_has
from tests.harness.places import closing, place_of, plan_without_ops

torch = pytest.importorskip("torch")


@dataclass
class Channel:
    """An open channel: what the suite needs of an implementation."""

    writer: Any
    readers: list[Any]
    nodes: list[Node]  # the writer's, then the readers'
    slots: int  # frames that fit without a read
    edges: tuple[int, ...]  # sizes in bytes around which something changes
    close: Callable[[], None]

    @property
    def reader(self) -> Any:
        (reader,) = self.readers
        return reader

    def send(self, value: Any) -> list[Any]:
        """Write one value and return what each reader gets."""
        self.writer.write(value)
        return [reader.read(0) for reader in self.readers]

    def claimed(self) -> int:
        """Bytes that a process still holds or that are in a ring."""
        return sum(node.memory().claimed_bytes for node in self.nodes)


def open_nodes(
    specs: Sequence[ChannelSpec], cap_bytes: int, *, is_looping: bool = False
) -> tuple[Segments, list[Node]]:
    actors = list(dict.fromkeys(reader for spec in specs for reader in spec.readers))
    rings = tuple(spec for spec in specs if spec.kind in ("ring", "local"))
    queues = {spec.id: LocalQueue() for spec in specs if spec.kind == "local"}
    segments = Segments(plan_without_ops(actors, *rings), cap_bytes=cap_bytes)
    members = segments.layout.members
    return segments, [
        place_of(segments, each, is_looping=is_looping, queues=queues) for each in members
    ]


def open_shm(readers: int, slots: int, cap_bytes: int, parts: int) -> Channel:
    actors = tuple(f"a{i}" for i in range(readers))
    spec = ChannelSpec("c0", DRIVER, actors, "ring", tuple(range(parts)), slots)
    segments, nodes = open_nodes([spec], cap_bytes)
    held = max(2, 1 << (slots - 1).bit_length())
    return Channel(
        open_writer(spec, 0, nodes[0]),
        [open_reader(spec, 0, node) for node in nodes[1:]],
        nodes,
        held,
        (_native.INLINE_BUFFER, 256 * 1024 // held),
        segments.close,
    )


def open_local(readers: int, slots: int, cap_bytes: int, parts: int) -> Channel:
    spec = ChannelSpec("c0", DRIVER, ("a0",), "local", tuple(range(parts)), slots)
    segments, nodes = open_nodes([spec], cap_bytes)
    held = 1 << (slots - 1).bit_length()
    return Channel(
        open_writer(spec, 0, nodes[0]),
        [open_reader(spec, 0, nodes[1])],
        nodes,
        held,
        (1 << 20,),
        segments.close,
    )


@dataclass(frozen=True)
class Kind:
    """One implementation, and its limits."""

    open: Callable[[int, int, int, int], Channel]
    max_readers: int = 64
    copies: bool = True  # readers get values of their own, in memory that has a cap
    has_frames: bool = True  # frames can be taken and decoded later


KINDS: dict[str, Kind] = {
    "shm": Kind(open_shm),
    "local": Kind(open_local, max_readers=1, copies=False, has_frames=False),
}

Open = Callable[..., Channel]


def opening(kind: Kind) -> Iterator[Open]:
    def make(
        readers: int = 1, slots: int = 16, cap_bytes: int = 1 << 28, parts: int = 1
    ) -> Channel:
        """Open a channel with so many readers, or with as many as it can have."""
        return kind.open(min(readers, kind.max_readers), slots, cap_bytes, parts)

    yield from closing(make)


@pytest.fixture(params=KINDS)
def channel(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Channels of every kind."""
    yield from opening(KINDS[request.param])


@pytest.fixture(params=[name for name, kind in KINDS.items() if kind.copies])
def copying(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Channels whose readers get values of their own."""
    yield from opening(KINDS[request.param])


@pytest.fixture(params=[name for name, kind in KINDS.items() if kind.has_frames])
def framed(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Channels whose frames can be taken and decoded later."""
    yield from opening(KINDS[request.param])


def assert_same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    match wanted:
        case np.ndarray():
            assert found.dtype == wanted.dtype and found.shape == wanted.shape
            assert found.tobytes() == wanted.tobytes()
            assert found is wanted or not found.flags.writeable
        case torch.Tensor():
            assert torch.equal(found, wanted)
        case list():
            assert len(found) == len(wanted)
            for one, other in zip(found, wanted, strict=True):
                assert_same(one, other)
        case Failure():
            assert type(found.data) is bytes and found.data == wanted.data
        case _:
            assert found == wanted


def as_bytes(size: int) -> Any:
    return random.Random(size).randbytes(size)


def as_text(size: int) -> Any:
    return "x" * size


def as_array(size: int) -> Any:
    return np.frombuffer(as_bytes(size), np.uint8)


def as_tensor(size: int) -> Any:
    return torch.frombuffer(bytearray(as_bytes(size) or b"x"), dtype=torch.uint8)[:size]


def as_failure(size: int) -> Any:
    return Failure(as_bytes(size))


def as_both(size: int) -> Any:
    """Half of it in the pickle and half in a buffer."""
    return ["x" * (size // 2), as_array(size - size // 2)]


def as_small_arrays(size: int) -> Any:
    return [as_array(1000 - i % 3) for i in range(size // 1000)]


FORMS = [as_bytes, as_text, as_array, as_tensor, as_failure, as_both, as_small_arrays]


# --- order --------------------------------------------------------------------------------------


@pytest.mark.parametrize("readers", [1, 2, 5])
def test_every_reader_gets_every_value_in_order(
    channel: Open, readers: int, dice: random.Random
) -> None:
    opened = channel(readers, slots=4)
    read = [0] * len(opened.readers)
    for written in range(300):
        while written - min(read) == opened.slots:
            slowest = read.index(min(read))
            assert opened.readers[slowest].read(0) == ["value", read[slowest]]
            read[slowest] += 1
        opened.writer.write(["value", written])
        lucky = dice.randrange(len(read))
        if read[lucky] <= written:
            assert opened.readers[lucky].read(0) == ["value", read[lucky]]
            read[lucky] += 1
    assert opened.writer.seq == 300
    for i, reader in enumerate(opened.readers):
        assert reader.seq == read[i]
        assert reader.pending() == 300 - read[i]


def test_readers_and_a_writer_at_once(channel: Open, dice: random.Random) -> None:
    opened = channel(readers=2, slots=2)
    values = [dice.choice(FORMS)(int(2 ** dice.uniform(0, 17))) for _ in range(400)]
    wrong: list[BaseException] = []

    def read(reader: Any) -> None:
        kept = []
        try:
            for value in values:
                kept.append((reader.read(), value))
                if len(kept) > 5:
                    assert_same(*kept.pop(0))
        except BaseException as error:  # noqa: BLE001 - raised on the test's thread
            wrong.append(error)
            opened.nodes[0].end_broken(DRIVER)

    threads = [threading.Thread(target=read, args=(reader,)) for reader in opened.readers]
    for thread in threads:
        thread.start()
    for value in values:
        opened.writer.write(value)
    for thread in threads:
        thread.join()
    assert not wrong
    assert opened.claimed() == 0


# --- sizes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("readers", core_has(1, [1, 2]))
@pytest.mark.parametrize("form", FORMS)
def test_sizes_around_every_edge(channel: Open, form: Callable[[int], Any], readers: int) -> None:
    opened = channel(readers)
    sizes = {0, 1, 2, 7, 8, 63, 64, 65, 255, 256, 257, 65_535, 65_536, 65_537, 1_000_000}
    for edge in opened.edges:
        sizes.update(range(edge - 250, edge + 3))  # headers and pickles take some of it
        sizes.update(range(2 * edge - 3, 2 * edge + 3))
    for size in sorted(sizes):
        value = form(size)
        for found in opened.send(value):
            assert_same(found, value)
        assert opened.claimed() == 0 or size >= min(opened.edges)
        del found
    assert opened.claimed() == 0


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 500, 5000])
@pytest.mark.parametrize("size", [0, 1, 100, 5000])
def test_any_number_of_buffers(copying: Open, count: int, size: int) -> None:
    opened = copying(readers=2)
    value = [as_array(size) for _ in range(count)]
    for found in opened.send(value):
        assert_same(found, value)
    mixed = [torch.ones(size), *value[: count // 2], "text", torch.zeros(3), *value[count // 2 :]]
    for found in opened.send(mixed):
        assert_same(found, mixed)
        found[0].fill_(7)
    del found
    assert opened.claimed() == 0


# --- what arrives -------------------------------------------------------------------------------


def test_failures_are_no_values_and_exceptions_are(channel: Open) -> None:
    opened = channel(readers=2)
    for found in opened.send(Failure(b"why")):
        assert_same(found, Failure(b"why"))
    for found in opened.send(ValueError("a value like any other")):
        assert type(found) is ValueError and found.args == ("a value like any other",)


def test_a_frame_that_was_taken_knows_whether_it_is_a_failure(framed: Open) -> None:
    opened = framed(readers=2)
    opened.writer.write(Failure(b"once more"))
    opened.writer.write("a value")
    for reader in opened.readers:
        failure, value = reader.take(0), reader.take(0)
        assert failure.is_failure and not value.is_failure
        assert_same(failure.decode(), Failure(b"once more"))


def test_a_failure_is_passed_on_unread(channel: Open) -> None:
    first, second = channel(), channel()
    for size in (1, 5000, 300_000):
        (failure,) = first.send(as_failure(size))
        assert_same(second.send(failure)[0], as_failure(size))


def test_frames_are_taken_now_and_decoded_later_in_any_order(framed: Open) -> None:
    opened = framed(slots=4)
    values = [as_both(size) for size in (10, 100_000, 5000, 70_000)]
    for value in values:
        opened.writer.write(value)
    frames = [opened.reader.take(0) for _ in values]
    assert opened.reader.seq == 4
    for _ in range(20):  # the slots are used again meanwhile
        opened.send(as_both(90_000))
    for i in (2, 0, 3, 1):
        assert_same(frames[i].decode(), values[i])
    frames.clear()
    assert opened.claimed() == 0


@pytest.mark.parametrize("form", [as_array, as_tensor, as_both, as_small_arrays])
def test_what_is_held_never_changes(copying: Open, form: Callable[[int], Any]) -> None:
    opened = copying(readers=2, slots=2)
    sizes = [1000 * i for i in range(1, 60)]
    held = [(found, form(size)) for size in sizes for found in opened.send(form(size))]
    for found, wanted in held:
        assert_same(found, wanted)
    del found, wanted
    held.clear()
    assert opened.claimed() == 0


def test_no_reader_sees_what_another_changes(copying: Open) -> None:
    opened = copying(readers=3)
    for size in (3, 10_000, 1_000_000):
        tensor = as_tensor(size)
        found = opened.send([tensor, [tensor.clone()]])
        for number, (own, (other,)) in enumerate(found):
            own.fill_(number)
            other.fill_(number + 100)
        for number, (own, (other,)) in enumerate(found):
            assert (own == number).all() and (other == number + 100).all()
        assert torch.equal(tensor, as_tensor(size))


# --- loans --------------------------------------------------------------------------------------


def a_loan(node: Node, size: int, kind: Any) -> Any:
    """Return an array or a tensor of bytes in the memory of a node, filled as ``as_array``."""
    found = node.empty(size, kind)
    found[:] = as_tensor(size) if kind is torch.uint8 else as_array(size)
    return found


LOANS = [np.uint8, torch.uint8]


@pytest.mark.parametrize("readers", [1, 2, 5])
@pytest.mark.parametrize("kind", LOANS, ids=str)
def test_loans_of_sizes_around_every_edge(copying: Open, kind: Any, readers: int) -> None:
    opened = copying(readers)
    for edge in (*opened.edges, 100_000):
        for size in (edge - 1, edge, edge + 1):
            for low, high in ((0, size), (1, size), (13, size - 5)):
                loan = a_loan(opened.nodes[0], size, kind)
                for wanted in ([loan[low:high]], {"deep": [loan[low:high], size]}):
                    for found in opened.send(wanted):
                        copy = as_tensor(size) if kind is torch.uint8 else as_array(size)
                        value = found[0] if type(found) is list else found["deep"][0]
                        assert_same(value, copy[low:high])
    del loan, wanted, found, value
    assert opened.claimed() == 0


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_loan_can_be_held_after_the_end(copying: Open, is_sent: bool) -> None:
    opened = copying()
    loan = a_loan(opened.nodes[0], 300_000, np.uint8)
    found = opened.send(loan) if is_sent else []
    opened.nodes[0].end_closed()
    assert_same(opened.nodes[0].empty(10, np.uint8).shape, (10,))
    opened.writer, opened.readers = None, []
    opened.nodes.clear()
    assert loan.tobytes() == as_bytes(300_000)
    assert loan.flags.writeable is not is_sent
    for each in found:
        assert_same(each, as_array(300_000))


def test_a_loan_that_is_not_written_after_all_stays_the_makers(copying: Open) -> None:
    opened = copying()
    loan = a_loan(opened.nodes[0], 400_000, np.uint8)
    with pytest.raises(UnpicklableError):
        opened.writer.write([loan, threading.Lock()])
    loan[:] = as_array(400_000)
    assert_same(opened.send(loan)[0], as_array(400_000))
    with pytest.raises(ValueError, match="read-only"):
        loan[0] = 1


# --- refusals -----------------------------------------------------------------------------------


def test_a_value_that_does_not_pickle_writes_nothing(copying: Open) -> None:
    opened = copying()
    with pytest.raises(UnpicklableError, match=r"value\['lock'\]"):
        opened.writer.write({"array": as_array(100_000), "lock": threading.Lock()})
    assert (opened.writer.seq, opened.reader.pending(), opened.claimed()) == (0, 0, 0)
    assert opened.send("next") == ["next"]


def test_a_value_without_memory_writes_nothing(copying: Open) -> None:
    opened = copying(cap_bytes=1_000_000)
    many = [as_array(i * 100_000) for i in range(1, 9)]
    for value in (as_bytes(2_000_000), as_array(2_000_000), many):
        with pytest.raises(NoMemory) as caught:
            opened.writer.write(value)
        error = caught.value.public(channel="c0")
        assert isinstance(error, OutOfSharedMemory)
        assert error.cap_bytes == 1_000_000 and error.channel == "c0"
        assert (opened.writer.seq, opened.reader.pending(), opened.claimed()) == (0, 0, 0)
    assert_same(opened.send(as_array(600_000))[0], as_array(600_000))


def test_a_value_that_does_not_load_loses_nothing_else(copying: Open) -> None:
    opened = copying()
    opened.writer.write([as_array(100_000), Stubborn()])
    opened.writer.write("next")
    with pytest.raises(RuntimeError, match="I do not load"):
        opened.reader.read(0)
    assert opened.reader.read(0) == "next"
    assert opened.claimed() == 0


class Stubborn:
    def __reduce__(self) -> Any:
        return refuse, ()


def refuse() -> None:
    raise RuntimeError("I do not load")


# --- frames of several parts --------------------------------------------------------------------


def values_of(parts: Any, count: int) -> list[Any]:
    """What a reader of parts got, each decoded."""
    if type(parts) is Failure:
        return [parts] * count
    assert type(parts) in (tuple, list)
    return [part.decode() for part in parts] if type(parts) is list else list(parts)


def no_failure(error: BaseException) -> Failure:
    raise AssertionError from error


def send_parts(
    opened: Channel, values: list[Any], failed: Callable[[BaseException], Failure] = no_failure
) -> list[list[Any]]:
    opened.writer.write(values, failed)
    return [values_of(reader.read(0), len(values)) for reader in opened.readers]


def assert_all_same(found: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("count", [2, 3, 8, 70])
@pytest.mark.parametrize("readers", [1, 2])
def test_parts_of_any_form_and_size_arrive_together(
    channel: Open, count: int, readers: int, dice: random.Random
) -> None:
    opened = channel(readers, parts=count)
    for _ in range(40 if count < 10 else 5):
        values = [dice.choice(FORMS)(int(2 ** dice.uniform(0, 18))) for _ in range(count)]
        for found in send_parts(opened, values):
            assert_all_same(found, values)
    del found
    assert opened.claimed() == 0


PLAIN = [None, True, 7, -(10**30), 0.1, 2j, "text", "\ud800", b"bytes", ""]


@pytest.mark.parametrize("size", [0, 100, 4000, 4096, 5000, 300_000])
def test_plain_parts_arrive_as_they_are(channel: Open, size: int) -> None:
    values = [*PLAIN, as_text(size), as_bytes(size)]
    opened = channel(readers=2, parts=len(values))
    for found in send_parts(opened, values):
        assert_all_same(found, values)


def test_parts_that_are_one_object_stay_apart(copying: Open) -> None:
    shared = bytearray(b"same")
    (found,) = send_parts(copying(parts=2), [shared, shared])
    assert found == [b"same", b"same"] and found[0] is not found[1]


def test_one_failure_in_place_of_all_parts(channel: Open) -> None:
    opened = channel(readers=2, parts=3)
    failure = Failure(b"why")
    for found in send_parts(opened, [failure] * 3):
        assert_all_same(found, [failure] * 3)


class Gone:
    """Its pickle has a buffer, which ``Goer`` lets go of before it is sent."""

    def __init__(self) -> None:
        self.buffer = pickle.PickleBuffer(bytearray(100_000))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return bytes, (self.buffer,)


class Goer:
    def __init__(self, gone: Gone) -> None:
        self.gone = gone

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.gone.buffer.release()
        return int, (5,)


def a_released_buffer() -> Any:
    gone = Gone()
    return [gone, Goer(gone)]


@pytest.mark.parametrize(
    ("make", "error_type"), [(threading.Lock, UnpicklableError), (a_released_buffer, ValueError)]
)
def test_a_part_that_cannot_be_written_fails_alone(
    copying: Open, make: Callable[[], Any], error_type: type[Exception]
) -> None:
    opened = copying(readers=2, parts=4)
    errors: list[BaseException] = []
    counted = [0]

    def failed(error: BaseException) -> Failure:
        errors.append(error)
        return Failure(b"in its place")

    class Counted:
        def __reduce__(self) -> Any:
            counted[0] += 1
            return int, (7,)

    values = [Counted(), make(), as_array(100_000), make()]
    for found in send_parts(opened, values, failed):
        assert_all_same(found, [7, Failure(b"in its place"), as_array(100_000), values[3]])
    assert type(values[1]) is type(values[3]) is Failure
    assert [type(error) for error in errors] == [error_type] * 2
    assert counted == [1]
    del found
    assert opened.claimed() == 0


def test_a_part_that_does_not_unpickle_harms_no_other(copying: Open) -> None:
    opened = copying(parts=3)
    opened.writer.write([1, Stubborn(), as_array(10_000)], no_failure)
    first, second, third = opened.reader.read(0)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="I do not load"):
            second.decode()
    assert first.decode() == 1
    assert_same(third.decode(), as_array(10_000))
    assert send_parts(opened, [1, 2, 3]) == [[1, 2, 3]]


def test_parts_that_find_no_memory_fail_alone(copying: Open) -> None:
    opened = copying(parts=3, cap_bytes=1 << 20)
    for size, count in ((900_000, 1), (2_000_000, 2)):  # one of them has room, or none
        errors: list[BaseException] = []

        def failed(error: BaseException, errors: list[BaseException] = errors) -> Failure:
            errors.append(error)
            return Failure(b"too large")

        values = [as_array(size), "small", as_array(size + 1)]
        (found,) = send_parts(opened, values, failed)
        assert [type(error) for error in errors] == [ERRORS[2]] * count
        assert sum(type(value) is Failure for value in values) == count
        assert_all_same(found, values)
        del found
    assert opened.claimed() == 0


def test_parts_that_fit_one_by_one_need_not_fit_together() -> None:
    spec = ChannelSpec("c0", DRIVER, ("a0",), "ring", (0, 1, 2), 4)
    segments, (writing, reading) = open_nodes([spec], 1 << 20, is_looping=True)
    writer, reader = open_writer(spec, 0, writing), open_reader(spec, 0, reading)
    values = [as_array(700_000), as_array(900_000), as_array(1_000_000)]
    writer.write(values, no_failure)  # a loop keeps what has no room on its heap
    assert_all_same(values_of(reader.read(), 3), values)
    segments.close()


def test_each_part_holds_its_own_memory(copying: Open) -> None:
    opened = copying(parts=3)
    (found,) = send_parts(opened, [as_array(100_000), as_array(200_000), as_text(300_000)])
    held = opened.claimed()
    assert held >= 200_000
    found[1] = None
    assert 100_000 <= opened.claimed() <= held - 200_000
    found[0] = None
    assert opened.claimed() == 0


def test_parts_are_collected_apart(framed: Open) -> None:
    opened = framed(parts=3, slots=4)
    values: list[list[Any]] = [[i, as_array(5000 + i), Failure(b"%d" % i)] for i in range(3)]
    values.append([1, 2.0, "plain"])
    for each in values:
        opened.writer.write(each, no_failure)
    dicts: tuple[dict[int, Any], ...] = ({}, {}, {})
    opened.reader.collect(dicts, 1, 0)
    assert [list(frames) for frames in dicts] == [[0, 1]] * 3
    opened.reader.collect_pending(dicts)
    for execution, each in enumerate(values):
        frames = [of.pop(execution) for of in dicts]
        assert [frame.is_failure for frame in frames] == [type(v) is Failure for v in each]
        assert_all_same([frame.decode() for frame in frames], each)
    with pytest.raises(TimedOut):
        opened.reader.collect(dicts, 4, 0)
    for wrong in ({}, ({}, {}), ({}, {}, []), [{}, {}, {}]):
        with pytest.raises(TypeError, match="a dict, or in a tuple"):
            opened.reader.collect(wrong, 4, 0)
        with pytest.raises(TypeError, match="a dict, or in a tuple"):
            opened.reader.collect_pending(wrong)


# --- waiting ------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_s", [0, 0.001])
def test_nothing_to_read_times_out_and_comes_later(channel: Open, timeout_s: float) -> None:
    opened = channel(readers=2)
    for reader in opened.readers:
        for call in (reader.read, getattr(reader, "take", reader.read)):
            with pytest.raises(TimedOut) as caught:
                call(timeout_ns(timeout_s))
            assert isinstance(caught.value.public(), ChannelTimeout)
    assert opened.send(5) == [5] * len(opened.readers)


def test_timeouts_in_nanoseconds() -> None:
    assert [timeout_ns(t) for t in (None, 0, 0.5, 2, -3)] == [None, 0, 500_000_000, 2 * 10**9, 0]


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Start a call; the list receives what it returns or raises."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(call())
        except Signal as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def test_a_reader_waits_for_the_writer(channel: Open) -> None:
    opened = channel()
    thread, outcome = in_thread(opened.reader.read)
    until_waiting(opened.nodes[0].member, 1)
    opened.writer.write("at last")
    thread.join()
    assert outcome == ["at last"]


def test_the_writer_waits_for_the_slowest_reader(channel: Open) -> None:
    opened = channel(readers=2, slots=2)
    for i in range(opened.slots):
        opened.writer.write(i)
    *_, slowest = opened.readers
    for reader in opened.readers[:-1]:
        reader.read(0)
    thread, outcome = in_thread(lambda: opened.writer.write(["new", as_array(100_000)]))
    until_waiting(opened.nodes[1].member, 0)
    assert opened.writer.seq == opened.slots
    slowest.read(0)
    thread.join()
    assert outcome == [None]
    assert [slowest.read(0) for _ in range(opened.slots - 1)] == [*range(1, opened.slots)]
    assert slowest.read(0)[0] == "new"


# --- the end ------------------------------------------------------------------------------------

ENDS: Sequence[tuple[Callable[[Node], None], type[ChannelError]]] = [
    (Node.end_closed, ChannelClosed),
    (lambda node: node.end_broken(DRIVER), ChannelBroken),
]


@pytest.mark.parametrize(("end", "error_type"), ENDS)
def test_the_end_wakes_a_writer(
    channel: Open, end: Callable[[Node], None], error_type: type[ChannelError]
) -> None:
    opened = channel(readers=2, slots=2)
    for i in range(opened.slots):
        opened.writer.write(i)
    thread, outcome = in_thread(lambda: opened.writer.write("no room"))
    until_waiting(opened.nodes[-1].member, 0)
    end(opened.nodes[-1])
    thread.join()
    (error,) = outcome
    assert isinstance(error, GraphEnded)
    assert type(error.public(channel="c0")) is error_type
    assert opened.writer.seq == opened.slots


@pytest.mark.parametrize(("end", "error_type"), ENDS)
def test_the_end_wakes_a_reader(
    channel: Open, end: Callable[[Node], None], error_type: type[ChannelError]
) -> None:
    opened = channel(readers=2)
    waits = [in_thread(reader.read) for reader in opened.readers]
    for number in range(1, 1 + len(waits)):
        until_waiting(opened.nodes[0].member, number)
    end(opened.nodes[0])
    for thread, outcome in waits:
        thread.join()
        (error,) = outcome
        assert isinstance(error, GraphEnded)
        assert type(error.public(channel="c0")) is error_type


@pytest.mark.parametrize(("end", "error_type"), ENDS)
def test_what_was_written_before_the_end_is_read(
    channel: Open, end: Callable[[Node], None], error_type: type[ChannelError]
) -> None:
    opened = channel()
    opened.writer.write("small")
    opened.writer.write(as_array(100_000))
    end(opened.nodes[0])
    assert opened.reader.pending() == 2
    assert opened.reader.read() == "small"
    assert_same(opened.reader.read(), as_array(100_000))
    for _ in range(2):
        with pytest.raises(GraphEnded) as caught:
            opened.reader.read()
        assert type(caught.value.public()) is error_type


def test_every_signal_of_shared_memory_has_a_public_error() -> None:
    cases: dict[type[Exception], list[tuple[tuple[Any, ...], type[Exception]]]] = {
        ERRORS[0]: [
            ((_native.POISON_CLOSED, -1), ChannelClosed),
            ((_native.POISON_BROKEN, 2), ChannelBroken),
        ],
        ERRORS[1]: [((), ChannelTimeout)],
        ERRORS[2]: [((10, 20, 30, 28), OutOfSharedMemory), ((10, 20, 30, 27), OutOfSharedMemory)],
        ERRORS[3]: [(("ring 0",), ChannelError)],
    }
    assert set(cases) == set(ERRORS)
    for signal, wanted in cases.items():
        for arguments, error_type in wanted:
            found = signal(*arguments).public(channel="c7")
            assert type(found) is error_type and found.channel == "c7"


def test_an_unknown_kind_is_refused() -> None:
    spec = ChannelSpec("c0", DRIVER, ("a0",), "pigeon", (0,), 1)
    for opener in (open_reader, open_writer):
        with pytest.raises(InternalError, match="'pigeon'"):
            opener(spec, 0, None)
