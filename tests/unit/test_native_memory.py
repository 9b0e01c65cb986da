# SPDX-License-Identifier: Apache-2.0
"""Memory under a cap: what is free is reclaimed from everyone, what does not fit is passed on."""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rcg import _native
from tests.harness.board import (
    BYTES,
    FAILURE,
    PICKLE,
    Board,
    Failed,
    Ring,
    claimed,
    pattern,
    reader,
    until,
)

MB = 1 << 20
CHAIN = (Ring(0, (1,)), Ring(1, (2,)), Ring(2, (0,)))


def used(member: _native.Member) -> int:
    return int(member.statistics()["used_bytes"])


def stashed(member: _native.Member) -> int:
    return int(member.statistics()["stashed_bytes"])


# --- reclaiming


def test_a_block_that_was_reclaimed_is_taken_again(boards: Any) -> None:
    board = boards(2, (Ring(0, (1,)), Ring(1, (0,))), cap_bytes=8 * MB)
    first, second = board.member(0), board.member(1)
    there, here = reader(second), reader(first, 1)
    writers = first.writer(0, 0), second.writer(1, 0)
    for i in range(6):
        writers[i % 2].write(PICKLE, b"", [pattern(5 * MB, i)])
        (held,) = (there, here)[i % 2].read(0)
        assert bytes(held) == pattern(5 * MB, i)
        del held
    assert used(first) == 5 * MB
    assert first.statistics()["blocks"] == second.statistics()["blocks"] == 1


@pytest.mark.parametrize("size", [MB, MB + 1, 5 * MB + 4096, 9 * MB - 4096, 9 * MB])
def test_large_blocks_take_no_more_than_their_pages(boards: Any, size: int) -> None:
    board = boards(2, cap_bytes=9 * MB)
    sender = board.member(0)
    sender.writer(0, 0).write(PICKLE, b"", [pattern(size)])
    assert claimed(sender) == used(sender) == -(-size // 4096) * 4096
    assert bytes(reader(board.member(1)).read(0)[0]) == pattern(size)


def test_a_block_that_is_used_again_grows_and_when_memory_is_short_shrinks(boards: Any) -> None:
    board = boards(2, cap_bytes=16 * MB)
    sender, end = board.member(0), reader(board.member(1))
    writer = sender.writer(0, 0)
    for size, most in ((6 * MB, 6), (7 * MB, 7), (9 * MB, 9), (9 * MB - 8 * 4096, 9)):
        writer.write(PICKLE, b"", [pattern(size)])
        assert bytes(end.read(0)[0]) == pattern(size)
        assert used(sender) <= most * MB
    writer.write(PICKLE, b"", [pattern(15 * MB)])
    assert bytes(end.read(0)[0]) == pattern(15 * MB)


def test_what_lies_between_held_blocks_is_not_merged_with_them(boards: Any) -> None:
    board = boards(2, (Ring(slots=64),), cap_bytes=8 * MB, reserve_bytes=8 * MB)
    sender, end = board.member(0), reader(board.member(1))
    writer = sender.writer(0, 0)
    held = {}
    for i in range(8):
        writer.write(PICKLE, b"", [pattern(MB - 4096 * 32, i)])
        held[i] = end.read(0)[0]
    for i in (1, 2, 4, 5, 6):
        del held[i]
    writer.write(PICKLE, b"", [pattern(2 * MB + 4096, 100)])  # three neighbours
    held[100] = end.read(0)[0]
    writer.write(PICKLE, b"", [pattern(MB + 4096, 101)])  # two
    held[101] = end.read(0)[0]
    with pytest.raises(_native.NoMemory):
        writer.write(PICKLE, b"", [bytes(2 * MB)])
    sizes = {100: 2 * MB + 4096, 101: MB + 4096}
    for i, buffer in held.items():
        assert bytes(buffer) == pattern(sizes.get(i, MB - 4096 * 32), i)


# --- the stash


def loop(board: Board, number: int = 0) -> _native.Member:
    return board.member(number, looping=True)


@pytest.mark.parametrize("writable", [0, 1])
@pytest.mark.parametrize("size", [5000, 65_536, 200_001, 3 * MB])
def test_what_there_is_no_memory_for_arrives_from_the_stash(
    boards: Any, size: int, writable: int
) -> None:
    board = boards(2, (Ring(slots=4),), cap_bytes=4 * MB)
    sender, receiver = loop(board), board.member(1)
    writer, end = sender.writer(0, 0), reader(receiver)
    writer.write(PICKLE, b"", [bytes(4 * MB)])  # takes all there is
    writer.write(PICKLE, b"", [pattern(size)], writable)
    assert stashed(sender) == size
    assert used(sender) == 4 * MB
    end.read(0)
    (found,) = end.read(10**9)
    assert bytes(found) == pattern(size)
    assert memoryview(found).readonly is (not writable)
    until(lambda: stashed(sender) == 0)  # the copy goes
    assert used(sender) <= 4 * MB


@pytest.mark.parametrize("kind", [PICKLE, BYTES, FAILURE])
def test_a_long_message_arrives_from_the_stash(boards: Any, kind: int) -> None:
    board = boards(2, (Ring(slots=4),), cap_bytes=4 * MB)
    sender = loop(board)
    writer = sender.writer(0, 0)
    end = board.member(1).reader(0, 0, lambda data, buffers=(): (bytes(data), buffers), Failed)
    writer.write(PICKLE, b"", [bytes(4 * MB)])
    writer.write(kind, pattern(300_000), [pattern(100, 7), pattern(9000, 8)])
    end.read(0)
    found = end.read(10**9)
    match kind:
        case _native.KIND_PICKLE:
            data, buffers = found
            assert [bytes(b) for b in buffers] == [pattern(100, 7), pattern(9000, 8)]
        case _native.KIND_FAILURE:
            data = found.data
        case _:
            data = found
    assert data == pattern(300_000)


def test_a_frame_that_is_not_written_leaves_no_copy(boards: Any) -> None:
    board = boards(2, (Ring(),), cap_bytes=4 * MB)
    sender = loop(board)
    writer = sender.writer(0, 0)
    writer.write(PICKLE, b"", [bytes(4 * MB)])
    with pytest.raises(BufferError):
        writer.write(PICKLE, b"", [bytes(MB), memoryview(bytes(100_000))[::2]])
    with pytest.raises(_native.NoMemory) as caught:
        writer.write(PICKLE, b"", [bytes(MB), bytes(3 * MB + 1)])  # more than the cap in all
    wanted, used_bytes, cap, _ = caught.value.args
    assert (wanted, cap) == (4 * MB + 1, 4 * MB) and used_bytes <= cap
    assert stashed(sender) == 0
    assert writer.seq == 1


def test_without_memory_a_member_that_may_wait_raises(boards: Any) -> None:
    """Such a member is the driver, which delays executions instead of using a stash."""
    board = boards(2, cap_bytes=4 * MB)
    sender, end = board.member(0), reader(board.member(1))
    writer = sender.writer(0, 0)
    writer.write(PICKLE, b"", [bytes(4 * MB)])
    with pytest.raises(_native.NoMemory):
        writer.write(PICKLE, b"", [pattern(MB)])
    frame = (writer, PICKLE, b"", [pattern(MB)])
    assert sender.submit((frame,), 9, {}, 1, [], 0, True) == 1  # unless it asks for a stash
    end.read(0)
    assert bytes(end.read(10**9)[0]) == pattern(MB)


def test_a_stash_ends_with_its_member_also_while_signals_come() -> None:
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
    try:
        for _ in range(50):
            board = Board(2, cap_bytes=4 * MB)
            sender = loop(board)
            writer = sender.writer(0, 0)
            writer.write(PICKLE, b"", [bytes(4 * MB)])
            writer.write(PICKLE, b"", [pattern(100_000)])
            del sender, writer
            board.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_member_that_goes_takes_its_thread_along(boards: Any) -> None:
    board = boards(2, cap_bytes=4 * MB)
    before = len(os.listdir("/proc/self/task"))
    for _ in range(5):
        sender = loop(board)
        writer = sender.writer(0, 0)
        end = reader(board.member(1))
        writer.write(PICKLE, b"", [bytes(4 * MB)])
        writer.write(PICKLE, b"", [pattern(MB)])
        assert len(os.listdir("/proc/self/task")) == before + 1
        end.read(0)
        end.read(10**9)
        del sender, writer, end
        assert len(os.listdir("/proc/self/task")) == before


# --- the ledger


def test_the_ledger_says_what_executions_need_at_their_peak(boards: Any) -> None:
    """0 -> 1 -> 2 -> 0: at most two of the three values are there at a time."""
    board = boards(3, CHAIN, cap_bytes=64 * MB)
    driver, first, second = (board.member(i, looping=i > 0) for i in range(3))
    into, middle, out = driver.writer(0, 0), first.writer(1, 0), second.writer(2, 0)
    ends = reader(first, 0), reader(second, 1), reader(driver, 2)
    for _ in range(3):
        into.write(PICKLE, b"", [bytes(2 * MB)])
        held = ends[0].read(0)
        middle.write(PICKLE, b"", [bytes(3 * MB)])
        held = ends[1].read(0)
        out.write(PICKLE, b"", [bytes(MB)])
        held = ends[2].read(0)
    assert driver.survey(0, 3, 3) == (MB, 5 * MB, 0, 0)
    into.write(PICKLE, b"", [bytes(2 * MB)])
    assert driver.survey(3, 3, 4) == (3 * MB, 0, 2 * MB, 2 * MB)
    del held
    assert driver.survey(3, 3, 4) == (2 * MB, 0, 2 * MB, 2 * MB)
    ends[0].read(0)
    assert driver.survey(3, 3, 4) == (0, 0, 0, 2 * MB)


def test_readers_leave_room_for_what_is_expected(boards: Any) -> None:
    board = boards(2, cap_bytes=16 * MB)
    sender, receiver = board.member(0), board.member(1)
    writer, end = sender.writer(0, 0), reader(receiver)
    sender.expect(14 * MB)
    writer.write(PICKLE, b"", [pattern(MB)])
    first = end.read(0)
    assert claimed(sender) == MB  # held
    writer.write(PICKLE, b"", [pattern(2 * MB)])
    second = end.read(0)
    assert claimed(sender) == MB  # copied: with it 14 MB would not fit any more
    assert [bytes(first[0]), bytes(second[0])] == [pattern(MB), pattern(2 * MB)]


# --- anything at all


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([5_000, 20_000, 70_000, 300_000, MB, 1_500_000, 3 * MB, 4 * MB]),
            st.integers(0, 3),  # how many later ones it is held for
            st.booleans(),
        ),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 3),
)
def test_whatever_is_sent_and_held_arrives_and_the_cap_is_kept(
    values: list[tuple[int, int, bool]], under_way: int
) -> None:
    """A loop under a cap of the largest value: never refused, never overwritten."""
    board = Board(2, (Ring(slots=4),), cap_bytes=4 * MB, reserve_bytes=8 * MB)
    sender, receiver = loop(board), board.member(1)
    writer, end = sender.writer(0, 0), reader(receiver)
    held: list[tuple[int, Any, bytes]] = []

    def take(i: int) -> None:
        _, keep, _ = values[i]
        (found,) = end.read(10**10)
        expected = random.Random(i).randbytes(64)
        held.append((i + keep, found, expected))
        for until_then, buffer, start in list(held):
            assert bytes(memoryview(buffer)[:64]) == start
            assert bytes(memoryview(buffer)[-64:]) == start[::-1]
            if until_then <= i:
                held.remove((until_then, buffer, start))

    for i, (size, _, writes) in enumerate(values):
        start = random.Random(i).randbytes(64)
        writer.write(PICKLE, b"", [start + bytes(size - 128) + start[::-1]], int(writes))
        assert used(sender) <= 4 * MB
        if i + 1 >= under_way:
            take(i + 1 - under_way)
    for i in range(max(0, len(values) + 1 - under_way), len(values)):
        take(i)
    held.clear()
    assert claimed(sender) == 0
    board.close()


# --- what others still have


def test_a_block_of_a_dead_and_a_living_reader_stays_claimed(boards: Any) -> None:
    board = boards(3, [Ring(0, (1, 2))])
    owner = board.member(0)

    def counted() -> tuple[int, int]:
        """The bytes that are claimed, by the ledger and by the blocks themselves."""
        return owner.survey(0, 1, 1)[0], claimed(owner)

    dead, alive = (reader(board.member(number)) for number in (1, 2))
    owner.writer(0, 0).write(PICKLE, b"", [pattern(MB)])
    (kept,), _ = alive.read(0), dead.read(0)
    assert counted() == (MB, MB)
    owner.forget(1)
    assert counted() == (MB, MB)
    assert bytes(kept) == pattern(MB)
    del kept
    assert counted() == (0, 0)


def test_an_owner_that_joins_again_leaves_alone_what_its_earlier_self_sent(boards: Any) -> None:
    """Addresses are few, so that its own free blocks are merged: those of before are not."""
    board = boards(2, [Ring(0, (1,), slots=16)], cap_bytes=64 * MB, reserve_bytes=8 * MB)
    end = reader(board.member(1))
    earlier = board.member(0)
    writer = earlier.writer(0, 0)
    for seed in range(3):
        writer.write(PICKLE, b"", [pattern(MB, seed)])
    (kept,) = end.read(0)
    for _ in range(2):
        end.read(0)
    del writer, earlier
    again = board.member(0).writer(0, 0)
    for size in (MB, MB, 2 * MB, 3 * MB, 4 * MB):
        again.write(PICKLE, b"", [pattern(size, 9)])
        (found,) = end.read(0)
        assert bytes(found) == pattern(size, 9)
        assert bytes(kept) == pattern(MB)
        del found
    with pytest.raises(_native.NoMemory):
        again.write(PICKLE, b"", [bytes(7 * MB)])
    assert bytes(kept) == pattern(MB)


def test_the_account_of_an_execution_is_not_touched_by_one_long_before(boards: Any) -> None:
    """Accounts are used again after so many executions; a result may be held for longer."""
    accounts = 1024
    board = boards(2, [Ring(0, (1,), slots=2)], cap_bytes=64 * MB)
    driver = board.member(0)
    end = reader(board.member(1))
    writer = driver.writer(0, 0)
    writer.write(PICKLE, b"", [bytes(MB)])
    (kept,) = end.read(0)
    for _ in range(accounts - 1):
        writer.write(PICKLE, b"x")
        end.read(0)
    writer.write(PICKLE, b"", [bytes(2 * MB)])
    (found,) = end.read(0)
    count = accounts + 1
    assert driver.survey(accounts, accounts, count) == (3 * MB, 0, 2 * MB, 2 * MB)
    del kept
    assert driver.survey(accounts, accounts, count) == (2 * MB, 0, 2 * MB, 2 * MB)
    del found
    assert driver.survey(accounts, accounts, count) == (0, 0, 0, 2 * MB)
