# SPDX-License-Identifier: Apache-2.0
"""Links and gates of the native core: frames from the rings of one board to those of another."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import queue
import socket
import struct
import termios
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rcg import _native
from tests.harness.board import (
    BLOCK,
    BYTES,
    CLOSED,
    PICKLE,
    Board,
    Failed,
    Ring,
    claimed,
    events_of,
    pattern,
    reader,
    until,
)
from tests.harness.submission import submission

# --- two nodes: member 0 of `here` writes ring 0, read by itself and by member 1; on `there`
# member 0 is the gate, which publishes in ring 0 for the members 1 and 2, and in ring 1 for 1. Ring
# 2 there does not cross: 1 writes it for 2.

CHANNEL = 7
HEAD = struct.Struct("<IIIIQQQQQII")
MAGIC = 0x70676372


class Nodes:
    """Two boards and one connection between them."""

    def __init__(
        self,
        *,
        slots: int = 16,
        cap_bytes: int = 1 << 28,
        has_local: bool = True,
        is_awaited: bool = False,
    ) -> None:
        readers = (0, 1) if has_local else (0,)
        self.here = Board(2, [Ring(0, readers, slots), Ring(0, readers, slots)])
        rings = [Ring(0, (1, 2), slots), Ring(0, (1,), slots), Ring(1, (2,), slots)]
        self.there = Board(3, rings, cap_bytes=cap_bytes)
        self.sender = self.here.member(0)
        self.gate_member = self.there.member(0)
        self.losses: queue.Queue[tuple[int, ...]] = queue.Queue()
        self.failures: queue.Queue[tuple[int, int]] = queue.Queue()
        self.refusals: list[tuple[int, ...]] = []
        self.gate = _native.Gate(
            self.gate_member,
            [(CHANNEL, 0, 0, False), (CHANNEL + 1, 1, 1, is_awaited)],
            lambda *loss: self.losses.put(loss),
            self._refuse,
        )
        self.near, far = socket_pair()
        self.gate.add(far.detach(), 3, [0, 1])
        self.links = _native.Links(
            self.sender, [self.near.fileno()], lambda *failure: self.failures.put(failure)
        )

    def _refuse(self, *facts: int) -> bytes:
        self.refusals.append(facts)
        return b"no room"

    def writer(self, ring: int = 0) -> _native.Writer:
        made = self.sender.writer(ring, 0)
        made.send_by(self.links, CHANNEL + ring, 1)
        return made

    def close(self) -> None:
        self.links.stop()
        self.near.close()
        self.gate.stop()
        self.here.close()
        self.there.close()


def _recorder(losses: queue.Queue[tuple[int, ...]]) -> Callable[..., None]:
    return lambda *loss: losses.put(loss)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near, far


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    made = Nodes()
    yield made
    made.close()


def as_data(data: bytes, buffers: Any = ()) -> tuple[bytes, list[bytes]]:
    return bytes(data), [bytes(each) for each in buffers]


SHAPES: list[tuple[int, tuple[int, ...]]] = [
    (0, ()),
    (1, ()),
    (900, ()),
    (5_000, ()),
    (300_000, ()),
    (10, (0,)),
    (10, (5, 0, 4096)),
    (10, (4097,)),
    (10, (1 << 20,)),
    (40_000, (1 << 20, 17, 70_000)),
    (100, (9,) * 300),
    (100, (5_000,) * 1_500),
    (2_000, tuple(range(0, 9_000, 100))),
]


@pytest.mark.parametrize("has_local", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_frame_of_any_shape_arrives_as_it_was(
    shape: tuple[int, tuple[int, ...]], has_local: bool
):
    nodes = Nodes(has_local=has_local)
    size, sizes = shape
    writer = nodes.writer()
    readers = [reader(nodes.there.member(i), 0, as_data) for i in (1, 2)]
    if has_local:
        readers.append(reader(nodes.here.member(1), 0, as_data))
    for number in range(3):
        data = pattern(size, number)
        buffers = [pattern(each, number + i) for i, each in enumerate(sizes)]
        writer.write(PICKLE, data, buffers or None)
        for each in readers:
            got = each.read(10_000_000_000)
            assert got == (data, buffers)
    until(lambda: nodes.sender.ring(0)[1][0] == 3)
    until(lambda: claimed(nodes.sender) == claimed(nodes.gate_member) == 0)
    nodes.close()


def test_what_its_reader_will_write_to_arrives_writable(nodes: Nodes):
    writer = nodes.writer(1)
    far = reader(nodes.there.member(1), 1)
    writer.write(PICKLE, b"", [pattern(9_000), pattern(50), pattern(9_000)], 0b011)
    first, second, third = far.read()
    assert [memoryview(each).readonly for each in (first, second, third)] == [False, False, True]
    assert bytes(first) == bytes(third) == pattern(9_000)


def test_a_gate_records_when_each_frame_came(nodes: Nodes):
    writer, far = nodes.writer(), reader(nodes.there.member(1), 0, as_data)
    for execution in range(3):
        before = time.monotonic_ns()
        writer.write(BYTES, bytes(100))
        far.read()
        *_, last = events_of(nodes.gate_member, 0)[2]
        assert (last["execution"], last["bytes"]) == (execution, 100)
        assert before <= last["start_ns"] <= last["end_ns"] <= time.monotonic_ns()


def test_large_frames_come_one_after_the_other(nodes: Nodes):
    # The gate serves a connection for 4 MiB before others have their turn, also where a frame ends.
    writer = nodes.writer(1)
    near, far = reader(nodes.here.member(1), 1), reader(nodes.there.member(1), 1)
    for number in range(300):
        writer.write(PICKLE, b"", [bytes(1_000_000 + 500 * number)])
        for each in (near, far):
            assert memoryview(each.read()[0]).nbytes == 1_000_000 + 500 * number


def test_threads_that_submit_at_once_keep_the_order_of_every_ring_on_every_link():
    """Sending much lets other threads run: between two links, and between two rings."""
    count, rings = 40, (0, 1)
    here = Board(1, [Ring(0, (0,), 64), Ring(0, (0,), 64)])
    theirs = [Board(2, [Ring(0, (1,), 128), Ring(0, (1,), 128)]) for _ in range(2)]
    losses: queue.Queue[tuple[int, ...]] = queue.Queue()
    pairs = [socket_pair() for _ in theirs]
    gates = []
    for board, (_, far_end) in zip(theirs, pairs, strict=True):
        passages = [(ring, ring, 0, False) for ring in rings]
        gate = _native.Gate(board.member(0), passages, _recorder(losses), lambda *_: b"")
        gate.add(far_end.detach(), 0, list(rings))
        gates.append(gate)
    submit = submission(here, list(rings))
    links = _native.Links(submit.member, [near.fileno() for near, _ in pairs], lambda *_: None)
    for ring, writer in enumerate(submit.writers):
        writer.send_by(links, ring, 0b11)
    errors: list[BaseException] = []

    def run() -> None:
        done = 0
        while done < count and not errors:
            try:
                submit(*[(PICKLE, b"", [bytes(200_000)]) for _ in rings])
                done += 1
            except _native.TimedOut:
                os.sched_yield()
            except BaseException as error:
                errors.append(error)
                raise

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: not losses.empty() or all(g.statistics()[0] == 6 * count for g in gates))
    assert losses.empty(), losses.get()
    assert not errors
    links.stop()
    for gate, (near, _) in zip(gates, pairs, strict=True):
        gate.stop()
        near.close()
    for board in (here, *theirs):
        board.close()


def test_what_an_execution_holds_on_its_drivers_node_is_counted_with_what_arrives_there(
    nodes: Nodes,
):
    """The driver has begun the account of an execution before anything of it arrives."""
    driver = submission(nodes.there, [2], 1)
    held = reader(nodes.there.member(2), 2)
    driver((PICKLE, b"", [bytes(BLOCK)]))
    nodes.writer(1).write(PICKLE, b"", [bytes(BLOCK)])
    result = reader(nodes.there.member(1), 1)
    kept = [held.read(), result.read()]
    assert driver.member.survey(0, 0, 1) == (2 * BLOCK, 0, 2 * BLOCK, 2 * BLOCK)
    kept.clear()
    assert driver.member.survey(0, 1, 1) == (0, 2 * BLOCK, 0, 0)


def test_a_driver_that_waits_for_room_goes_on_when_frames_are_sent():
    nodes = Nodes(slots=2, has_local=False)
    writer = nodes.writer(1)
    far = reader(nodes.there.member(1), 1)
    got: list[int] = []

    def read() -> None:
        got.extend(memoryview(far.read()[0]).nbytes for _ in range(40))

    thread = threading.Thread(target=read)
    thread.start()
    for _ in range(40):
        writer.write(PICKLE, b"", [bytes(3_000_000)])
    thread.join()
    assert got == [3_000_000] * 40
    nodes.close()


def test_what_does_not_fit_under_the_cap_is_dropped_and_fails_alone():
    nodes = Nodes(cap_bytes=1 << 20)
    writer = nodes.writer()
    far = reader(nodes.there.member(1), 0, as_data)
    nodes.there.member(2)
    writer.write(BYTES, b"before")
    writer.write(PICKLE, b"", [pattern(3 << 20)])
    writer.write(BYTES, b"after")
    assert far.read() == b"before"
    failed = far.read()
    assert isinstance(failed, Failed)
    assert failed.data == b"no room"
    assert far.read() == b"after"
    ((channel, execution, wanted, _, cap, reason),) = nodes.refusals
    assert (channel, execution, cap, reason) == (CHANNEL, 1, 1 << 20, errno.EFBIG)
    assert wanted == 3 << 20
    nodes.close()


def test_what_fits_but_finds_no_room_now_goes_through_the_heap():
    nodes = Nodes(cap_bytes=1 << 20, has_local=False)
    writer = nodes.writer()
    far = [reader(nodes.there.member(each), 0, as_data) for each in (1, 2)]
    for number in range(8):
        writer.write(PICKLE, b"", [pattern(600_000, number)])
    for number in range(8):
        for each in far:
            assert each.read() == (b"", [pattern(600_000, number)])
    assert not nodes.refusals
    nodes.close()


def test_a_frame_that_is_awaited_is_never_refused():
    """What is larger than the cap goes through the heap."""
    nodes = Nodes(cap_bytes=1 << 20, is_awaited=True)
    writer = nodes.writer(1)
    far = reader(nodes.there.member(1), 1, as_data)
    for size, sizes in (
        (10, (3 << 20,)),
        (2 << 20, (5, 5_000)),
        (10, (100,)),
        (10, (1 << 21,) * 3),
    ):
        data, buffers = pattern(size), [pattern(each) for each in sizes]
        writer.write(PICKLE, data, buffers)
        assert far.read(10_000_000_000) == (data, buffers)
    assert not nodes.refusals
    assert nodes.gate_member.statistics()["stashes"] >= 5
    nodes.close()


def test_a_gate_that_is_idle_gives_its_free_memory_back(nodes: Nodes):
    writer = nodes.writer()
    far = [reader(nodes.there.member(each), 0, as_data) for each in (1, 2)]
    for _ in range(2):  # again, when it has been idle before
        writer.write(PICKLE, b"", [pattern(1 << 20)])
        for each in far:
            assert each.read() == (b"", [pattern(1 << 20)])
        until(lambda: nodes.gate_member.statistics()["committed_bytes"] == 0)


def test_forwarded_blocks_are_sent_from_where_they_are():
    # Member 1 of `here` reads a block of member 0 and sends it on to the other node.
    here = Board(2, [Ring(0, (1,)), Ring(1, (1,))])
    there = Board(2, [Ring(0, (1,))])
    gate = _native.Gate(there.member(0), [(0, 0, 0, False)], lambda *_: None, lambda *_: b"")
    near, far_end = socket_pair()
    gate.add(far_end.detach(), 0, [0])
    owner, middle = here.member(0), here.member(1)
    links = _native.Links(middle, [near.fileno()], lambda *_: None)
    onward = middle.writer(1, 0)
    onward.send_by(links, 0, 1)
    source = owner.writer(0, 0)
    taker = reader(middle)
    far = reader(there.member(1))
    for number in range(20):
        source.write(PICKLE, b"", [pattern(100_000, number)])
        (array,) = taker.read()
        onward.write(PICKLE, b"", [array])
        del array
        assert bytes(far.read()[0]) == pattern(100_000, number)
    until(lambda: claimed(owner) == 0)
    assert middle.statistics()["forwards"] == 20
    links.stop()
    gate.stop()
    near.close()


# --- connections that end, and what is no frame ----------------------------------------------


def head_of(
    channel: int = CHANNEL, execution: int = 0, data: int = 0, buffers: int = 0, **changes: int
) -> bytes:
    """The head of a frame, with the sum that it should have."""
    words = {
        "magic": MAGIC,
        "channel": channel,
        "kind": BYTES,
        "nbuffers": buffers,
        "execution": execution,
        "data_bytes": data,
        "small_bytes": 0,
        "payload_bytes": data,
        "check": 0,
        "is_apart": 0,
        "pad": 0,
    } | {name: value for name, value in changes.items() if name != "check"}
    words["check"] = changes.get("check", _sum(words))
    return HEAD.pack(*words.values())


def _fold(a: int, b: int) -> int:
    product = a * b
    return product % 2**64 ^ product >> 64


def _sum(words: dict[str, int]) -> int:
    def both(low: str, high: str) -> int:
        return words[low] | words[high] << 32

    return (
        _fold(
            both("magic", "channel") ^ 0x9E3779B97F4A7C15, words["execution"] ^ 0xBF58476D1CE4E5B9
        )
        ^ _fold(words["data_bytes"] ^ 0x94D049BB133111EB, words["small_bytes"] ^ 0xD6E8FEB86659FD93)
        ^ _fold(
            both("kind", "nbuffers") ^ 0xA0761D6478BD642F,
            words["payload_bytes"] ^ 0xE7037ED1A0B428DB ^ words["is_apart"] << 63,
        )
    )


LOST = {
    name: getattr(_native, f"LOST_{name}")
    for name in ("CLOSED", "SYSTEM", "FRAME", "CHANNEL", "ORDER", "MEMORY")
}


def test_a_frame_written_by_hand_is_taken(nodes: Nodes):
    near, far_end = socket_pair()
    nodes.gate.add(far_end.detach(), 9, [0])
    far = reader(nodes.there.member(1), 0, as_data)
    near.sendall(head_of(data=5) + b"hello")
    assert far.read() == b"hello"
    for each in head_of(execution=1, data=3) + b"abc":  # one byte at a time
        near.sendall(bytes([each]))
    assert far.read() == b"abc"
    near.close()
    assert nodes.losses.get() == (9, 0, LOST["CLOSED"], 0, 0, 0)


@pytest.mark.parametrize(
    ("sent", "why", "facts"),
    [
        (lambda: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(64), "FRAME", None),
        (lambda: head_of(check=5), "FRAME", None),
        (lambda: head_of(kind=0), "FRAME", None),
        (lambda: head_of(kind=77), "FRAME", None),
        (lambda: head_of(data=9, payload_bytes=8), "FRAME", None),
        (lambda: head_of(buffers=1 << 25), "FRAME", None),
        (lambda: head_of(buffers=1, payload_bytes=4) + struct.pack("<Q", 10), "FRAME", None),
        (lambda: head_of(buffers=1, payload_bytes=9) + struct.pack("<Q", 2**63), "FRAME", None),
        (lambda: head_of(channel=99), "CHANNEL", None),
        (lambda: head_of(channel=CHANNEL + 1), "CHANNEL", None),
        (lambda: head_of(execution=1), "ORDER", (0, 1)),
        (lambda: head_of(data=1) + b"x" + head_of(data=1) + b"y", "ORDER", (1, 0)),
        (lambda: head_of(data=1) + b"x" + head_of(data=1, execution=2), "ORDER", (1, 2)),
    ],
)
def test_bytes_that_are_no_frame_end_their_connection_and_are_reported(
    nodes: Nodes, sent: Callable[[], bytes], why: str, facts: tuple[int, int] | None
):
    near, far_end = socket_pair()
    nodes.gate.add(far_end.detach(), 9, [0])
    near.sendall(sent())
    sender, channel, found, _, expected, came = nodes.losses.get()
    assert (sender, found) == (9, LOST[why])
    if facts:
        assert (channel, expected, came) == (CHANNEL, *facts)
    assert near.recv(1) == b""
    # The other connection goes on.
    other = nodes.writer(1)
    other.write(BYTES, b"still there")
    assert reader(nodes.there.member(1), 1, as_data).read() == b"still there"


def test_what_turns_out_later_to_be_no_frame_names_its_sender_too(nodes: Nodes):
    near, far_end = socket_pair()
    nodes.gate.add(os.dup(far_end.fileno()), 9, [0, 1])
    near.sendall(head_of(channel=CHANNEL + 1, buffers=1, payload_bytes=1 << 20))
    left = bytearray(4)
    until(lambda: not fcntl.ioctl(far_end, termios.FIONREAD, left) and not any(left))
    far_end.close()
    near.sendall(struct.pack("<Q", 10 << 1))  # one buffer, and not of the size that the head says
    assert nodes.losses.get()[:3] == (9, CHANNEL + 1, LOST["FRAME"])
    near.close()


def test_a_connection_is_over_once_it_is_lost_also_where_a_fork_has_a_copy_of_it(nodes: Nodes):
    near, copied = socket_pair()
    nodes.gate.add(os.dup(copied.fileno()), 9, [0])
    near.sendall(bytes(64))
    assert nodes.losses.get()[:3] == (9, 0, LOST["FRAME"])
    near.settimeout(10)
    assert near.recv(1) == b""
    near.close()
    nodes.writer(1).write(BYTES, b"still there")
    assert reader(nodes.there.member(1), 1, as_data).read() == b"still there"
    assert nodes.losses.empty()  # the gate has heard nothing more of it
    copied.close()


def test_a_connection_that_ends_within_a_frame_leaves_no_memory_claimed(nodes: Nodes):
    near, far_end = socket_pair()
    nodes.gate.add(far_end.detach(), 9, [0])
    size = 1 << 20
    near.sendall(head_of(buffers=1, payload_bytes=size) + struct.pack("<Q", size << 1) + b"part")
    until(lambda: claimed(nodes.gate_member) > 0)
    near.close()
    assert nodes.losses.get()[:4] == (9, 0, LOST["CLOSED"], 1)
    until(lambda: claimed(nodes.gate_member) == 0)


def test_a_lost_link_is_reported_once_and_writing_goes_on(nodes: Nodes):
    writer = nodes.writer()
    near = reader(nodes.here.member(1), 0, as_data)
    nodes.gate.stop()
    nodes.near.shutdown(socket.SHUT_RDWR)
    for _ in range(40):
        writer.write(BYTES, b"x")
        assert near.read() == b"x"
    assert nodes.failures.get() == (0, errno.EPIPE)
    assert nodes.failures.empty()
    assert nodes.links.statistics() == [(0, 0, errno.EPIPE)]
    assert nodes.sender.ring(0)[1][0] == 40


def test_a_poisoned_node_takes_no_more(nodes: Nodes):
    writer = nodes.writer()
    nodes.there.member(1).poison(CLOSED)
    writer.write(BYTES, b"x")
    until(lambda: not nodes.losses.empty() or nodes.near.recv(1) == b"")
    assert nodes.losses.empty()


def test_a_forked_child_leaves_links_and_gates_alone(nodes: Nodes):
    writer = nodes.writer()
    far = reader(nodes.there.member(1), 0, as_data)
    pid = os.fork()
    if not pid:
        nodes.links.stop()
        nodes.gate.stop()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    writer.write(BYTES, b"x")
    assert far.read() == b"x"


class Owner:
    """Owns what calls it."""

    def __init__(self, call: Callable[[Any], Any]) -> None:
        self.owned = call(lambda *_: self)


def test_what_is_stopped_knows_nobody_any_more():
    """The collector sees no cycles through objects of the native core."""
    board = Board(2, [Ring(0, (0, 1))])
    near, far = socket_pair()
    member = board.member(0)
    owners = [
        Owner(lambda call: _native.Links(member, [near.fileno()], call)),
        Owner(lambda call: _native.Gate(member, [(0, 0, 0, False)], call, call)),
    ]
    gone = [weakref.ref(owner) for owner in owners]
    assert [owner.owned.stop() for owner in owners] == [True, True]
    assert [owner.owned.stop() for owner in owners] == [False, False]
    owners.clear()
    gc.collect()
    assert [each() for each in gone] == [None, None]
    near.close()
    far.close()
    board.close()


def test_send_by_refuses_what_cannot_be():
    board = Board(2, [Ring(0, (1,))])
    member = board.member(0)
    near, far = socket_pair()
    links = _native.Links(member, [near.fileno()], lambda *_: None)
    with pytest.raises(ValueError, match="must read its own ring"):
        member.writer(0, 0).send_by(links, 0, 1)
    with pytest.raises(ValueError, match="1 to 64 links"):
        _native.Links(member, [], lambda *_: None)
    links.stop()
    far.close()
