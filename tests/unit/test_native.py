# SPDX-License-Identifier: Apache-2.0
"""The native core, from its own side: rings, blocks and claims, doorbells, poison, the recorder."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import itertools
import os
import pickle
import struct
import threading
import time
from typing import Any

import numpy as np
import pytest

from rcg import _native
from tests.harness.board import (
    BLOCK,
    BROKEN,
    BYTES,
    CLOSED,
    FAILURE,
    PICKLE,
    POLICIES,
    Board,
    Failed,
    Ring,
    claimed,
    events_of,
    pattern,
    reader,
    until,
    until_waiting,
)


def address(buffer: Any) -> int:
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


def st_bytes(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


# --- ring ---------------------------------------------------------------------------------------


def test_a_reopened_end_goes_on_where_it_was(boards: Any) -> None:
    board = boards()
    first, second = board.member(0), board.member(1)
    first.writer(0, 0).write(BYTES, b"0")
    first.writer(0, 0).write(BYTES, b"1")
    assert reader(second).read(0) == b"0"
    assert reader(board.member(1)).read(0) == b"1"
    assert first.writer(0, 0).seq == 2


def test_an_end_belongs_to_its_member_and_exists(boards: Any) -> None:
    board = boards()
    first, second = board.member(0), board.member(1)
    with pytest.raises(ValueError, match="member 0 does not read ring 0"):
        reader(first)
    with pytest.raises(ValueError, match="member 1 does not write ring 0"):
        second.writer(0, 0)
    with pytest.raises(IndexError, match="no ring 1"):
        reader(second, 1)
    with pytest.raises(IndexError, match="no ring 7"):
        first.writer(7, 0)
    with pytest.raises(IndexError, match="no ring 7"):
        first.ring(7)


def test_an_end_is_used_by_one_thread_at_a_time(boards: Any) -> None:
    board = boards()
    sender, receiver = board.member(0), board.member(1)
    end = reader(receiver)
    thread = threading.Thread(target=end.read)
    thread.start()
    until_waiting(sender, 1)
    with pytest.raises(RuntimeError, match="in use by another thread"):
        end.read(0)
    sender.writer(0, 0).write(BYTES, b"x")
    thread.join()


def test_a_failing_decoder_fails_only_its_frame_each_time(boards: Any) -> None:
    board = boards()
    sender = board.member(0)
    writer, end = sender.writer(0, 0), reader(board.member(1), decode=pickle.loads)
    writer.write(PICKLE, b"no pickle", [pattern(BLOCK)])
    writer.write(PICKLE, pickle.dumps("next"))
    frame = end.take(0)
    for _ in range(2):
        with pytest.raises(pickle.UnpicklingError):
            frame.decode()
    assert end.read(0) == "next"
    del frame
    assert claimed(sender) == 0


def test_a_frame_gives_the_same_value_each_time_and_lets_go_of_its_memory(boards: Any) -> None:
    board = boards()
    sender = board.member(0)
    sender.writer(0, 0).write(PICKLE, pickle.dumps([1, 2]), [pattern(BLOCK)])
    frame = reader(board.member(1), decode=lambda data, buffers=(): pickle.loads(data)).take(0)
    assert claimed(sender) > 0
    assert frame.decode() is frame.decode()
    assert claimed(sender) == 0


def test_a_frame_that_another_thread_decodes_says_so_and_can_be_had_at_once(boards: Any) -> None:
    """The other thread may wait for this one; both get what was decoded first."""
    board = boards()
    begun, go = threading.Event(), threading.Event()
    made: list[list[int]] = []

    def decode(data: bytes, buffers: Any = ()) -> list[int]:
        mine = [len(made)]
        made.append(mine)
        if mine == [0]:
            begun.set()
            go.wait()
        return mine

    board.member(0).writer(0, 0).write(PICKLE, b"", [b"small"])
    frame = reader(board.member(1), decode=decode).take(0)
    first: list[object] = []
    thread = threading.Thread(target=lambda: first.append(frame.decode()))
    thread.start()
    begun.wait()
    assert frame.decode() is frame
    assert frame.decode(False) is frame
    at_once = frame.decode(True)
    go.set()
    thread.join()
    assert at_once is made[1]
    assert first[0] is at_once is frame.decode()


def test_threads_collect_beside_each_other(boards: Any) -> None:
    """Each waits for a frame of its own, which any of them may take off the ring."""
    board = boards()
    sender, receiver = board.member(0), board.member(1)
    writer, end = sender.writer(0, 0), reader(receiver)
    frames: dict[int, _native.Frame] = {}
    threads = [threading.Thread(target=end.collect, args=(frames, n)) for n in (5, 2, 5, 0)]
    for thread in threads:
        thread.start()
    until_waiting(sender, 1)
    for number in range(6):
        writer.write(BYTES, b"%d" % number)
    for thread in threads:
        thread.join()
    assert {n: frame.decode() for n, frame in frames.items()} == {n: b"%d" % n for n in range(6)}
    end.collect(frames, 3)  # long taken
    with pytest.raises(_native.TimedOut):
        end.collect(frames, 6, 0)
    with pytest.raises(TypeError):
        end.collect([], 6, 0)  # type: ignore[arg-type]


def test_wait_any_sees_whichever_ring_is_first(boards: Any) -> None:
    board = boards(3, [Ring(0, (2,)), Ring(1, (2,))])
    waiter = board.member(2)
    ends = [reader(waiter, 0), reader(waiter, 1)]
    with pytest.raises(_native.TimedOut):
        waiter.wait_any(ends, 0)
    for number in (1, 0):
        other = board.member(number)
        thread = threading.Thread(target=waiter.wait_any, args=(ends,))
        thread.start()
        until_waiting(other, 2)
        other.writer(number, 0).write(BYTES, b"%d" % number)
        thread.join()
        assert [end.pending() for end in ends] == [number == 0, number == 1]
        assert ends[number].read(0) == b"%d" % number


def test_interrupt_ends_a_wait_that_listens(boards: Any) -> None:
    board = boards()
    waiter, observer = board.member(1), board.member(0)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(waiter.wait_any([], None, 0)))
    thread.start()
    until_waiting(observer, 1)
    waiter.interrupt()
    thread.join()
    assert found == [1]
    assert waiter.wait_any([], 0, 0) == 1  # it was interrupted since count 0
    with pytest.raises(_native.TimedOut):
        waiter.wait_any([], 0, 1)


def test_wait_any_refuses_what_it_cannot_wait_for(boards: Any) -> None:
    board = boards()
    first, second = board.member(0), board.member(1)
    with pytest.raises(ValueError, match="something to wait for"):
        second.wait_any([])
    with pytest.raises(TypeError, match="readers of this member"):
        second.wait_any([reader(board.member(1))])
    with pytest.raises(TypeError, match="readers of this member"):
        first.wait_any([object()])  # type: ignore[list-item]


# --- blocks and claims --------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4097, 16 * 1024, BLOCK, 1_000_003])
def test_a_dropped_buffer_frees_its_block_and_the_next_one_takes_it(boards: Any, size: int) -> None:
    board = boards()
    sender = board.member(0)
    writer, end = sender.writer(0, 0), reader(board.member(1))
    for i in range(20):
        data = pattern(size, i)
        writer.write(PICKLE, b"", [data])
        assert bytes(end.read(0)[0]) == data
        assert claimed(sender) == 0
    statistics = sender.statistics()
    assert statistics["blocks"] == 1
    assert statistics["used_bytes"] == statistics["committed_bytes"] < 1.3 * max(size, 16 * 1024)


def test_what_is_not_held_through_a_lease_is_copied(boards: Any) -> None:
    """Small slices, plain heap memory, and memory of a lease that came writable."""
    board = boards(2, [Ring(0, (1,)), Ring(1, (0,))])
    owner, other = board.member(0), board.member(1)
    data = pattern(BLOCK)
    owner.writer(0, 0).write(PICKLE, b"", [data, data], 0b10)
    fixed, writable = reader(other, 0).read(0)
    other.writer(1, 0).write(PICKLE, b"", [memoryview(fixed)[:4096], bytearray(data), writable])
    assert other.statistics()["forwards"] == 0
    assert other.statistics()["copies"] == 2
    del fixed, writable
    assert claimed(owner) == 0
    assert [bytes(b) for b in reader(owner, 1).read(0)] == [data[:4096], data, data]


def test_above_half_the_cap_readers_copy_instead_of_holding(boards: Any) -> None:
    board = boards(rings=[Ring(slots=1)], cap_bytes=16 * BLOCK)
    sender = board.member(0)
    writer, end = sender.writer(0, 0), reader(board.member(1))
    held = []
    for i in range(40):  # far beyond the cap
        writer.write(PICKLE, b"", [pattern(BLOCK, i)], i % 2)
        held.append(end.read(0)[0])
        assert sender.statistics()["used_bytes"] <= 9 * BLOCK
    assert [type(b) for b in held[-2:]] == [bytes, bytearray]
    assert all(bytes(b) == pattern(BLOCK, i) for i, b in enumerate(held))
    held.clear()
    assert claimed(sender) == 0


def test_a_system_that_has_no_memory_is_no_memory(boards: Any) -> None:
    """A sealed file cannot grow, which is what a full /dev/shm looks like to fallocate."""
    board = boards()
    sender = board.member(0)
    writer, end = sender.writer(0, 0), reader(board.member(1))
    writer.write(PICKLE, b"", [pattern(BLOCK)])
    held = end.read(0)
    fcntl.fcntl(board.arenas[0], fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    before = sender.statistics()
    with pytest.raises(_native.NoMemory):
        writer.write(PICKLE, b"", [pattern(BLOCK)])
    # The second block has its addresses, and no memory.
    assert sender.statistics() == {**before, "blocks": 2}
    del held
    writer.write(PICKLE, b"", [pattern(BLOCK)])
    assert bytes(end.read(0)[0]) == pattern(BLOCK)


@pytest.mark.parametrize("size", [2**40, 2**62, 2**63 - 1])
def test_absurd_sizes_are_refused(boards: Any, size: int) -> None:
    member = boards().member(0)
    huge = (ctypes.c_char * size).from_address(address(b"x"))  # it is never read
    writer = member.writer(0, 0)
    with pytest.raises(_native.NoMemory):
        writer.write(PICKLE, b"", [huge])
    with pytest.raises(_native.NoMemory):
        writer.write(BYTES, huge)
    assert member.statistics()["used_bytes"] == 0


def test_trim_gives_the_memory_of_free_blocks_back(boards: Any) -> None:
    board = boards()
    sender = board.member(0)
    writer, end = sender.writer(0, 0), reader(board.member(1))
    empty = st_bytes(board.arenas[0])
    size = 16 * BLOCK
    writer.write(PICKLE, b"", [pattern(size, i) for i in range(4)])
    leases = end.read(0)
    kept = leases[2]
    assert sender.trim() == 0  # all are held
    del leases
    assert st_bytes(board.arenas[0]) >= empty + 4 * size
    assert sender.trim(2 * size) == size
    assert sender.trim() == 2 * size
    assert sender.trim() == 0
    assert sender.statistics()["used_bytes"] == size
    assert sender.statistics()["committed_bytes"] == size
    assert st_bytes(board.arenas[0]) < empty + 2 * size
    assert bytes(kept) == pattern(size, 2)
    writer.write(PICKLE, b"", [pattern(size, i) for i in range(4, 8)])
    assert [bytes(b) for b in end.read(0)] == [pattern(size, i) for i in range(4, 8)]
    assert bytes(kept) == pattern(size, 2)
    assert sender.statistics()["blocks"] == 5  # the cold ones came back at their addresses


def test_who_cannot_be_forgotten(boards: Any) -> None:
    member = boards().member(0)
    for number in (0, 2, 64, 2**32 - 1):
        with pytest.raises(ValueError, match="cannot be forgotten"):
            member.forget(number)


# --- poison, deadlines, Ctrl-C, fork ------------------------------------------------------------


def test_the_first_poison_stands_and_closing_ends_all(boards: Any) -> None:
    board = boards()
    first, second = board.member(0), board.member(1)
    assert first.poisoned == (0, -1)
    assert first.poison(BROKEN, 1)
    assert not second.poison(BROKEN, 0)
    assert second.poisoned == (BROKEN, 1)
    assert not first.poison(CLOSED)
    assert second.poisoned == (CLOSED, 1)
    assert not first.poison(BROKEN, 0)
    assert second.poisoned == (CLOSED, 1)


def test_a_loop_stops_at_once(boards: Any) -> None:
    board = boards(rings=[Ring(0, (1,)), Ring(1, (0,))])
    sender, loop = board.member(0), board.member(1, looping=True)
    sender.writer(0, 0).write(BYTES, b"unread")
    sender.poison(BROKEN)
    with pytest.raises(_native.Poisoned):
        reader(loop, 0).read()
    with pytest.raises(_native.Poisoned):
        loop.writer(1, 0).write(BYTES, b"too late")


# --- want of memory while reading ---------------------------------------------------------------

CONTENTS: dict[str, tuple[int, int, list[int], int]] = {
    "bytes": (BYTES, 100, [], 0),
    "bytes in a block": (BYTES, 20_000, [], 0),
    "small buffers": (PICKLE, 10, [10, 20], 0b10),
    "blocks": (PICKLE, 10, [BLOCK, 10, BLOCK], 0b100),
    "many": (PICKLE, 10, [BLOCK, 10] * 4, 0b1),
    "all in blocks": (PICKLE, 20_000, [BLOCK, 3000], 0b1),
}


@pytest.mark.parametrize("readers", [1, 2])
@pytest.mark.parametrize("cap_bytes", [1 << 28, 24 * BLOCK], ids=["ample", "short"])
@pytest.mark.parametrize("content", CONTENTS)
def test_a_frame_there_was_no_heap_for_is_read_later(
    boards: Any, content: str, cap_bytes: int, readers: int
) -> None:
    """Each allocation fails once: the frame stays on its ring, and its claims with it."""
    testcapi = pytest.importorskip("_testcapi")
    board = boards(3, [Ring(0, (1, 2)[:readers])], cap_bytes=cap_bytes)
    sender, receiver = board.member(0), board.member(1)
    writer, end = sender.writer(0, 0), reader(receiver, decode=lambda data, buffers=(): buffers)
    others = [reader(board.member(2))] if readers == 2 else []
    kind, data_bytes, sizes, writable = CONTENTS[content]
    data, buffers = pattern(data_bytes), [pattern(size, i) for i, size in enumerate(sizes)]
    full = bytes(15 * BLOCK)  # above half of what is short, while it is held
    held = []
    if cap_bytes < 1 << 28:
        writer.write(PICKLE, b"", [full])
        held = [e.read(0) for e in others] + [end.take(0)]
    failures, frames = 0, {}
    for how in (end.take, lambda _: end.collect(frames, end.seq)):
        for number in itertools.count():
            writer.write(kind, data, buffers, writable)
            before, seq = claimed(sender), end.seq
            testcapi.set_nomemory(number, number + 1)
            try:
                frame = how(0)
            except MemoryError:
                failed = True
            else:
                failed = False
            finally:
                testcapi.remove_mem_hooks()
            if failed:
                failures += 1
                assert (end.seq, claimed(sender)) == (seq, before)
                frame = how(0)
            frame = frame or frames.pop(seq)
            assert (end.seq, frames) == (seq + 1, {})
            value = frame.decode()
            wanted = [data] if kind == BYTES else buffers
            assert [bytes(b) for b in ([value] if kind == BYTES else value)] == wanted
            del frame, value
            for other in others:
                other.read(0)
            if not failed:
                break
    assert failures >= 4
    held.clear()
    assert claimed(sender) == 0


# --- damage -------------------------------------------------------------------------------------

BIG = 2**64 - 1
STASHED = 0x80005AFE  # what stands in place of a block


def add_free_block(board: Board, sender: _native.Member) -> None:
    """Make a second block in the sender's arena, which no member holds."""
    with pytest.raises(_native.NoMemory):
        sender.writer(0, 0).write(PICKLE, b"", [pattern(BLOCK), bytes((1 << 28) - BLOCK)])
    assert sender.statistics()["blocks"] == 2


DAMAGED_DESCS: list[dict[str, int]] = [
    {"arena": 2},
    {"arena": 2**32 - 1},
    {"arena": 1},  # that arena has no blocks
    {"block": 2},
    {"block": 2**32 - 2},
    {"block": STASHED},
    {"block": STASHED, "offset": 1},
    {"offset": BLOCK},
    {"offset": 1},
    {"offset": BIG},
    {"bytes": BLOCK + 1},
    {"bytes": BIG},
    {"offset": BIG, "bytes": 2},
    {"block": 1},  # there is such a block, but it was not sent to us
    {"block": 2**32 - 1, "offset": 0},  # said to be in the frame, which is shorter
    {"block": 2**32 - 1, "offset": BIG, "bytes": 2},
]


@pytest.mark.parametrize("flags", [0, 1], ids=["read-only", "writable"])
@pytest.mark.parametrize("damage", DAMAGED_DESCS, ids=str)
def test_a_damaged_descriptor_is_corrupt(boards: Any, damage: dict[str, int], flags: int) -> None:
    board = boards()
    sender = board.member(0)
    sender.writer(0, 0).write(PICKLE, b"", [pattern(BLOCK)], flags)
    add_free_block(board, sender)
    good = board.desc()
    end = reader(board.member(1))
    for is_signed in (False, True):
        board.set_desc(**damage)
        if is_signed:  # by a writer that is wrong about it, rather than damaged on its way
            board.sign()
        with pytest.raises(_native.Corrupt, match="ring 0"):
            end.read(0)
    assert claimed(sender) == BLOCK
    board.set_desc(**good._asdict())
    board.sign()
    assert bytes(end.read(0)[0]) == pattern(BLOCK)
    assert claimed(sender) == 0


def test_a_descriptor_of_what_was_sent_to_another_is_corrupt(boards: Any) -> None:
    board = boards(3, [Ring(0, (1,)), Ring(0, (2,))])
    sender = board.member(0)
    for ring in (0, 1):
        sender.writer(ring, 0).write(PICKLE, b"", [pattern(BLOCK, ring)])
    board.set_desc(block=board.desc(ring=1).block)
    board.sign()
    with pytest.raises(_native.Corrupt, match="ring 0"):
        reader(board.member(1)).read(0)
    assert bytes(reader(board.member(2), 1).read(0)[0]) == pattern(BLOCK, 1)


def test_no_claim_is_used_twice(boards: Any) -> None:
    """A writer that names a block twice, or one that we hold already, would have it freed twice."""
    board = boards(2, [Ring(0, (1,)), Ring(0, (1,))])
    sender, receiver = board.member(0), board.member(1)
    writers, ends = [sender.writer(i, 0) for i in (0, 1)], [reader(receiver, i) for i in (0, 1)]
    writers[0].write(PICKLE, b"", [pattern(BLOCK)])
    (held,) = ends[0].read(0)
    writers[0].write(PICKLE, b"", [pattern(BLOCK, 1), pattern(BLOCK, 2)])
    good = board.desc(1, seq=1)
    for wrong in (board.desc(0, seq=1).block, board.desc(0, seq=0).block):
        board.set_desc(1, seq=1, block=wrong)
        board.sign(seq=1)
        with pytest.raises(_native.Corrupt, match="not sent to us"):
            ends[0].read(0)
        assert claimed(sender) == 3 * BLOCK
    writers[1].write(PICKLE, b"", [pattern(BLOCK, 3)])
    assert bytes(ends[1].read(0)[0]) == pattern(BLOCK, 3)
    board.set_desc(1, seq=1, **good._asdict())
    board.sign(seq=1)
    assert [bytes(b) for b in ends[0].read(0)] == [pattern(BLOCK, 1), pattern(BLOCK, 2)]
    del held
    assert claimed(sender) == 0


def test_a_frame_from_an_arena_that_was_not_handed_over_is_corrupt(boards: Any) -> None:
    board = boards()
    board.member(0).writer(0, 0).write(PICKLE, b"", [pattern(BLOCK)])
    end = reader(_native.Member(board.fd, [-1, board.arenas[1]], 1))
    with pytest.raises(_native.Corrupt, match="not there"):
        end.read(0)


def test_what_is_no_board(boards: Any) -> None:
    board = boards()
    empty, other = os.memfd_create("empty"), os.memfd_create("other")
    os.truncate(other, board.size)
    cases = {
        "empty": lambda: _native.Member(empty, board.arenas, 0),
        "zeros": lambda: _native.Member(other, board.arenas, 0),
        "an arena": lambda: _native.Member(board.arenas[0], board.arenas, 0),
        "too many members": lambda: board.member(2),
    }
    for call in cases.values():
        with pytest.raises(_native.Corrupt, match="not a board"):
            call()
    with pytest.raises(OSError, match="Bad file descriptor"):
        _native.Member(10**6, board.arenas, 0)
    os.truncate(board.fd, board.size - 4096)
    with pytest.raises(_native.Corrupt, match="not a board"):
        board.member(0)
    os.close(empty)
    os.close(other)


@pytest.mark.parametrize(("offset", "value"), [(0, 0), (4, 99), (8, 2**32 - 1), (8, 65)])
def test_a_board_of_another_version_is_refused(boards: Any, offset: int, value: int) -> None:
    board = boards()
    with board.map() as bytes_of:
        bytes_of[offset : offset + 4] = value.to_bytes(4, "little")
    with pytest.raises(_native.Corrupt, match="not a board of this version"):
        _native.Member(board.fd, board.arenas + [-1] * 63, 0)


def test_what_is_no_arena(boards: Any) -> None:
    board = boards()
    empty = os.memfd_create("empty")
    of_more = boards(9)  # its blocks count in smaller fields
    for arenas in (
        [empty, board.arenas[1]],
        [board.fd, board.arenas[1]],
        board.arenas[::-1],
        [of_more.arenas[0], board.arenas[1]],
    ):
        with pytest.raises(_native.Corrupt, match="member 0 is not its arena"):
            _native.Member(board.fd, arenas, 0)
    os.close(empty)
    with pytest.raises(OSError, match="Bad file descriptor"):
        _native.Member(board.fd, [10**6, board.arenas[1]], 0)
    with pytest.raises(ValueError, match="its own arena"):
        _native.Member(board.fd, [-1, board.arenas[1]], 0)
    with pytest.raises(ValueError, match="one descriptor"):
        _native.Member(board.fd, [board.arenas[0]], 0)
    with pytest.raises(TypeError):
        _native.Member(board.fd, [None, None], 0)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="unknown wait policy 'hope'"):
        board.member(0, wait="hope")


def test_only_members_make_ends_and_leases() -> None:
    for kind in (_native.Reader, _native.Writer, _native.Lease, _native.Frame):
        with pytest.raises(TypeError, match="cannot create"):
            kind()
    with pytest.raises(TypeError):
        _native.Member.__new__(_native.Member)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("members", "ring"),
    [
        (0, Ring()),
        (65, Ring()),
        (2, Ring(writer=2)),
        (2, Ring(readers=())),
        (2, Ring(readers=(2,))),
        (2, Ring(readers=(1, 1))),
        (2, Ring(slots=0)),
        (2, Ring(slots=3)),
        (2, Ring(slot_bytes=64)),
        (2, Ring(slot_bytes=1000)),
    ],
    ids=str,
)
def test_a_board_that_makes_no_sense_is_refused(members: int, ring: Ring) -> None:
    fd = os.memfd_create("board")
    with pytest.raises(ValueError, match=r"a board has|ring 0:"):
        _native.format_board(fd, members, [tuple(ring)], 16, 1 << 20)
    os.close(fd)


@pytest.mark.parametrize(
    ("owner", "members", "reserve"), [(2, 2, 1 << 20), (0, 0, 1 << 20), (0, 65, 1 << 20), (0, 1, 1)]
)
def test_an_arena_that_makes_no_sense_is_refused(owner: int, members: int, reserve: int) -> None:
    fd = os.memfd_create("arena")
    with pytest.raises(ValueError, match="an arena needs"):
        _native.format_arena(fd, owner, members, reserve)
    os.close(fd)


# --- the recorder -------------------------------------------------------------------------------


def test_overwritten_events_are_counted_as_lost(boards: Any) -> None:
    board = boards(events=8)
    member = board.member(0, looping=True)
    for i in range(21):  # the last one stays open
        member.mark(i, 100 + i)
    count, lost, events = events_of(member, 0, 0)
    assert (count, lost) == (20, 12)
    assert [(each["op"], each["execution"]) for each in events] == [
        (i, 100 + i) for i in range(12, 20)
    ]
    assert member.events(0, 20) == (20, 0, b"")
    assert member.events(0, 10**6) == (10**6, 0, b"")
    member.mark(21, 121)
    (after,) = events_of(member, 0, 20)[2]
    assert (after["op"], after["execution"]) == (20, 120)
    for call in (member.events, lambda number, _: member.now(number)):
        with pytest.raises(IndexError, match="no member 2"):
            call(2, 0)


def test_without_the_recorder_nothing_is_written(boards: Any) -> None:
    board = boards()
    member = board.member(0, record=False)
    member.writer(0, 0).write(BYTES, b"x")
    member.mark(1, 1)
    member.record(1, 1, 1, 2)
    assert member.events(0, 0) == (0, 0, b"")
    assert member.now(0)[1:] == (0, 0, 0, _native.NOW_IDLE, 0, 0)


# --- counters -----------------------------------------------------------------------------------


@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_waits_are_counted_and_seen_by_others(boards: Any, policy: str, record: bool) -> None:
    board = boards(rings=[Ring(0, (1,), slots=1)])
    sender, receiver = board.member(0), board.member(1, wait=policy, record=record)
    writer, end = sender.writer(0, 0), reader(receiver)
    assert sender.counters(1) == (0, 0, 0)
    writer.write(BYTES, b"there already")
    end.read()
    with pytest.raises(_native.TimedOut):
        end.read(0)  # does not wait
    assert sender.counters(1) == (0, 0, 0)
    before_ns = 0
    for count in (1, 2, 3):
        thread = threading.Thread(target=end.read)
        thread.start()
        until(lambda: sender.waiting_since(1))
        since_ns = sender.waiting_since(1)
        assert sender.counters(1)[:2] == (count - 1, before_ns)
        assert since_ns <= time.monotonic_ns()
        ended_ns = time.monotonic_ns()
        writer.write(BYTES, b"at last")
        thread.join()
        waits, waited_ns, _ = sender.counters(1)
        assert (waits, sender.waiting_since(1)) == (count, 0)
        assert waited_ns - before_ns >= ended_ns - since_ns
        before_ns = waited_ns
    assert sender.counters(0)[:2] == (0, 0)
    for call in (sender.counters, sender.waiting_since):
        with pytest.raises(IndexError, match="no member 2"):
            call(2)


def test_waits_for_room_and_waits_that_end_badly_count_once(boards: Any) -> None:
    board = boards(rings=[Ring(0, (1,), slots=1)])
    sender = board.member(0)
    writer, end = sender.writer(0, 0), reader(board.member(1))
    writer.write(BYTES, b"0")
    with pytest.raises(_native.TimedOut):
        writer.write(BYTES, b"1", None, 0, 250_000_000)  # in slices, on the main thread
    waits, waited_ns, _ = sender.counters(0)
    assert waits == 1
    assert waited_ns >= 250_000_000
    with pytest.raises(_native.TimedOut):
        sender.wait_any([], 1_000_000, 0)
    assert sender.counters(0)[0] == 1  # it had nothing to wait for
    assert end.read(0) == b"0"
    with pytest.raises(_native.TimedOut):
        end.read(1_000_000)
    assert sender.counters(1)[0] == 1


def test_nothing_keeps_memory_or_descriptors(boards: Any) -> None:
    """Members, ends, leases and frames that are dropped in any order close what they opened."""

    def cycle() -> None:
        board = Board()
        sender, receiver = board.member(0), board.member(1)
        writer, end = sender.writer(0, 0), reader(receiver)
        writer.write(PICKLE, b"", [bytes(BLOCK)])
        writer.write(PICKLE, b"", [bytes(BLOCK)])
        lease, frame = end.read(0), end.take(0)
        board.close()
        del sender, writer, receiver, end
        assert bytes(lease[0]) == bytes(BLOCK)
        del lease
        frame.decode()

    def mappings() -> int:
        with open("/proc/self/maps") as lines:
            return sum("memfd:" in line for line in lines)

    gc.collect()
    before = (len(os.listdir("/proc/self/fd")), mappings())
    for _ in range(20):
        cycle()
    assert (len(os.listdir("/proc/self/fd")), mappings()) == before


def test_a_gap_names_the_ring(boards):
    board = boards()
    board.member(0).writer(0, 0).write(PICKLE, b"zero", [])
    board.set_frame(execution=1)
    board.sign()
    end = reader(board.member(1))
    for call in (end.read, end.take):
        with pytest.raises(_native.Corrupt, match="ring 0: expected execution 0 and found 1"):
            call(0)


# --- frames of several parts --------------------------------------------------------------------

PARTS, TUPLE = _native.KIND_PARTS, _native.KIND_TUPLE


def heads(*parts: tuple[int, int]) -> bytes:
    return struct.pack(f"{2 * len(parts)}I", *[number for part in parts for number in part])


def parts_of(boards: Any, parts: int) -> tuple[_native.Writer, _native.Reader]:
    board = boards()
    end = board.member(1).reader(0, 0, lambda data, buffers=(): [data, *buffers], Failed, parts)
    return board.member(0).writer(0, 0), end


def test_a_frame_of_parts_is_read_part_by_part(boards: Any) -> None:
    writer, end = parts_of(boards, 3)
    writer.write(PARTS, heads((PICKLE, 1), (BYTES, 0), (FAILURE, 0)), [b"a", b"b", b"c", b"d"])
    one, two, three = end.read(0)
    assert one.decode() == [b"a", b"b"]
    assert two.decode() == b"c"
    assert three.decode() == Failed(b"d") and three.is_failure


@pytest.mark.parametrize(
    "wrong",
    [
        heads((PICKLE, 1), (BYTES, 0)),
        heads((PICKLE, 1), (BYTES, 0), (PICKLE, 1), (BYTES, 0)),
        heads((PICKLE, 1), (BYTES, 0), (PICKLE, 1))[:-1],
        heads((PICKLE, 2), (BYTES, 0), (PICKLE, 1)),
        heads((PICKLE, 0), (BYTES, 0), (PICKLE, 1)),
        heads((PICKLE, 2**32 - 1), (BYTES, 3), (PICKLE, 0)),
        heads((0, 1), (BYTES, 0), (PICKLE, 1)),
        heads((PARTS, 1), (BYTES, 0), (PICKLE, 1)),
        b"",
    ],
)
def test_wrong_heads_of_parts_are_damage_and_the_frame_stays(boards: Any, wrong: bytes) -> None:
    writer, end = parts_of(boards, 3)
    writer.write(PARTS, wrong, [b"a", b"b", b"c", b"d", b"e"])
    for call in (end.read, end.take, lambda _: end.collect(({}, {}, {}), 0, 0)):
        with pytest.raises(_native.Corrupt, match="parts are damaged"):
            call(0)
        assert end.seq == 0


@pytest.mark.parametrize(("kind", "parts"), [(PICKLE, 2), (BYTES, 2), (PARTS, 1), (TUPLE, 1)])
def test_a_frame_with_parts_is_for_a_reader_of_parts_only(
    boards: Any, kind: int, parts: int
) -> None:
    writer, end = parts_of(boards, parts)
    writer.write(kind, heads((PICKLE, 0), (PICKLE, 0)), [b"a", b"b"])
    with pytest.raises(_native.Corrupt):
        end.read(0)
    assert end.seq == 0


@pytest.mark.parametrize("value", [(1, 2), (1, 2, 3, 4), [1, 2, 3], 5])
def test_one_pickle_of_parts_holds_as_many_as_there_are(boards: Any, value: Any) -> None:
    board = boards()
    end = board.member(1).reader(0, 0, lambda _: value, Failed, 3)
    board.member(0).writer(0, 0).write(TUPLE, b"")
    dicts: tuple[dict[int, Any], ...] = ({}, {}, {})
    with pytest.raises(_native.Corrupt, match="no tuple"):
        end.collect(dicts, 0, 0)
    assert end.seq == 0 and dicts == ({}, {}, {})
