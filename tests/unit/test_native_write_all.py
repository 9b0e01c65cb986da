# SPDX-License-Identifier: Apache-2.0
"""Several frames at once: all of them are published, in order, or none and nothing is left."""

from __future__ import annotations

import gc
import signal
import threading
from typing import Any

import pytest

from rcg import _native
from tests.board import (
    BLOCK,
    BROKEN,
    BYTES,
    FAILURE,
    PICKLE,
    Failed,
    Ring,
    claimed,
    events_of,
    pattern,
    reader,
    until_waiting,
)

# Two inputs of two actors, a third that goes to both.
INPUTS = (Ring(0, (1,)), Ring(0, (2,)), Ring(0, (1, 2)))


def books(member: _native.Member) -> tuple[int, int]:
    """What is claimed, and in how many blocks."""
    statistics = member.statistics()
    return statistics["claimed_bytes"], statistics["blocks_claimed"]


def test_all_frames_are_published(boards: Any) -> None:
    board = boards(3, INPUTS)
    sender, one, other = (board.member(i) for i in range(3))
    writers = [sender.writer(i, i) for i in range(3)]
    data = pattern(BLOCK)
    sender.write_all(
        [
            (writers[0], BYTES, b"bytes"),
            (writers[1], FAILURE, bytearray(b"why"), None),
            (writers[2], PICKLE, b"", [data, b"small"], 0b10),
        ]
    )
    assert [w.seq for w in writers] == [1, 1, 1]
    assert reader(one, 0).read(0) == b"bytes"
    assert reader(other, 1).read(0) == Failed(b"why")
    for member in (one, other):
        block, small = reader(member, 2).read(0)
        assert bytes(block) == data and small == bytearray(b"small")
        assert type(small) is bytearray
    del block
    assert books(sender) == (0, 0)
    sender.write_all([])
    sender.write_all(iter([(writers[0], BYTES, b"again")]), 0)
    assert board.member(0).ring(0) == (2, [1])


def test_one_that_is_too_large_takes_the_others_back(boards: Any) -> None:
    board = boards(3, INPUTS, cap_bytes=4 * BLOCK)
    sender = board.member(0)
    writers = [sender.writer(i, 0) for i in range(3)]
    ends = [reader(board.member(1), 0), reader(board.member(2), 1)]
    writers[0].write(PICKLE, b"", [pattern(BLOCK)])
    kept = ends[0].read(0)
    before = sender.statistics()
    small, large = [pattern(BLOCK, 1)], [pattern(7 * BLOCK)]
    for frames in (
        [(writers[0], PICKLE, b"", small), (writers[1], PICKLE, b"", large)],
        [(writers[0], PICKLE, b"", small), (writers[1], PICKLE, b"", small * 3)],
        [(writers[0], BYTES, pattern(2000)), (writers[1], BYTES, pattern(5 * BLOCK))],
        [(writers[2], PICKLE, b"", small), (writers[1], PICKLE, b"", [*small, *large])],
    ):
        for order in (frames, frames[::-1]):
            with pytest.raises(_native.NoMemory):
                sender.write_all(order)
            assert books(sender) == (BLOCK, 1)
            sender.trim()
            assert sender.statistics()["used_bytes"] == before["used_bytes"]
    assert [w.seq for w in writers] == [1, 0, 0]
    assert [end.pending() for end in ends] == [0, 0]
    assert bytes(kept[0]) == pattern(BLOCK)
    sender.write_all([(w, PICKLE, b"", small) for w in writers[:2]])
    assert [bytes(end.read(0)[0]) for end in ends] == [pattern(BLOCK, 1)] * 2


def test_a_buffer_that_refuses_takes_the_others_back(boards: Any) -> None:
    board = boards(3, INPUTS)
    sender = board.member(0)
    writers = [sender.writer(i, 0) for i in range(3)]
    good = (writers[0], PICKLE, b"", [pattern(BLOCK)])
    with pytest.raises(TypeError, match="bytes-like"):
        sender.write_all([good, (writers[1], PICKLE, b"", [pattern(BLOCK), object()])])
    assert books(sender) == (0, 0)
    sender.write_all([good])
    assert len(reader(board.member(1), 0).read(0)) == 1


def test_a_full_ring_keeps_the_others_unwritten(boards: Any) -> None:
    board = boards(3, [Ring(0, (1,), slots=4), Ring(0, (2,), slots=1)])
    sender, other = board.member(0), board.member(2)
    free, full = sender.writer(0, 0), sender.writer(1, 0)
    full.write(BYTES, b"0")
    frames = [(free, PICKLE, b"", [pattern(BLOCK)]), (full, BYTES, b"1")]
    for timeout_ns in (0, 1_000_000):
        with pytest.raises(_native.TimedOut):
            sender.write_all(frames, timeout_ns)
        assert books(sender) == (0, 0)
    assert (free.seq, full.seq) == (0, 1)

    # It waits for room, holding nothing.
    thread = threading.Thread(target=sender.write_all, args=(frames,))
    thread.start()
    until_waiting(other, 0)
    assert claimed(sender) == 0
    with pytest.raises(RuntimeError, match="in use by another thread"):
        free.write(BYTES, b"between")
    end = reader(other, 1)
    assert end.read(0) == b"0"
    thread.join()
    assert end.read(0) == b"1"
    assert (free.seq, full.seq) == (1, 2)
    assert bytes(reader(board.member(1), 0).read(0)[0]) == pattern(BLOCK)


def test_poison_ends_the_wait_for_room(boards: Any) -> None:
    board = boards(3, [Ring(0, (1,), slots=4), Ring(0, (2,), slots=1)])
    sender, other = board.member(0), board.member(2)
    free, full = sender.writer(0, 0), sender.writer(1, 0)
    full.write(BYTES, b"0")
    outcome: list[object] = []

    def wait() -> None:
        try:
            sender.write_all([(free, PICKLE, b"", [pattern(BLOCK)]), (full, BYTES, b"1")])
        except _native.Poisoned as error:
            outcome.extend(error.args)

    thread = threading.Thread(target=wait)
    thread.start()
    until_waiting(other, 0)
    other.poison(BROKEN, 2)
    thread.join()
    assert outcome == [BROKEN, 2]
    assert (free.seq, full.seq, claimed(sender)) == (0, 1, 0)


def test_ctrl_c_while_it_waits_writes_nothing(boards: Any) -> None:
    board = boards(2, [Ring(1, (0,), slots=4), Ring(1, (0,), slots=1)])
    out = board.run(
        """
        member = board.member(1)
        free, full = member.writer(0, 0), member.writer(1, 0)
        full.write(BYTES, b"0")

        def press():
            until_waiting(member, 1)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=press).start()
        try:
            member.write_all([(free, PICKLE, b"", [bytes(BLOCK)]), (full, BYTES, b"1")])
        except KeyboardInterrupt:
            print("interrupted", free.seq, full.seq, claimed(member))
        reader(board.member(0), 1).read(0)
        member.write_all([(free, BYTES, b"1"), (full, BYTES, b"1")], 0)
        print(free.seq, full.seq)
        """
    )
    assert out == "interrupted 0 1 0\n1 2\n"


def test_a_signal_at_any_moment_finds_all_or_none_written(boards: Any) -> None:
    """The handler runs between bytecodes, thousands of times, and looks at the rings."""
    count = 5
    board = boards(2, [Ring(0, (1,), slots=2)] * count)
    sender, receiver = board.member(0), board.member(1)
    writers = [sender.writer(i, 0) for i in range(count)]
    ends = [reader(receiver, i) for i in range(count)]
    seen: list[set[int]] = []

    def look(*_: object) -> None:
        seen.append({writer.seq for writer in writers})

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    try:
        data = [pattern(5000)]
        while len(seen) < 300:
            sender.write_all([(writer, PICKLE, b"", data) for writer in writers])
            for end in ends:
                end.read(0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert all(len(seqs) == 1 for seqs in seen)
    assert claimed(sender) == 0


def test_readers_see_the_frames_in_the_order_of_the_list(boards: Any) -> None:
    """Who has seen a later ring's frame finds those of the earlier rings published."""
    count = 4
    board = boards(2, [Ring(0, (1,), slots=2)] * count)
    child = board.start(
        """
        member = board.member(1)
        ends = [reader(member, i) for i in argv[0]]
        for number in range(argv[1]):
            late = [end.pending() for end in ends]
            while not late[0]:  # the last one that is published
                late = [end.pending() for end in ends]
            if not all(end.pending() for end in ends):
                print("out of order", number, late)
            for end in ends:
                end.read(0)
        """,
        [2, 0, 3, 1],
        2000,
    )
    sender = board.member(0)
    writers = [sender.writer(i, 0) for i in (1, 3, 0, 2)]
    for _ in range(2000):
        sender.write_all([(writer, BYTES, b"x") for writer in writers])
    out, _ = child.communicate()
    assert (child.returncode, out) == (0, "")


def test_a_buffer_that_came_read_only_is_forwarded_to_each(boards: Any) -> None:
    board = boards(3, [Ring(0, (1,)), Ring(1, (2,)), Ring(1, (0, 2))])
    owner, middle, last = (board.member(i) for i in range(3))
    data = pattern(BLOCK)
    owner.writer(0, 0).write(PICKLE, b"", [data])
    (lease,) = reader(middle, 0).read(0)
    one, other = middle.writer(1, 0), middle.writer(2, 0)
    with pytest.raises(_native.NoMemory):
        middle.write_all([(one, PICKLE, b"", [lease]), (other, BYTES, bytes(1 << 29))])
    assert books(owner) == (BLOCK, 1)
    middle.write_all([(one, PICKLE, b"", [lease, lease]), (other, PICKLE, b"", [lease])])
    assert middle.statistics()["copies"] == 0
    del lease
    found = [*reader(last, 1).read(0), *reader(last, 2).read(0), *reader(owner, 2).read(0)]
    assert [bytes(buffer) for buffer in found] == [data] * 4
    while found:
        assert claimed(owner) == BLOCK
        found.pop()
    assert claimed(owner) == 0


def test_the_recorder_gets_an_event_for_each_frame(boards: Any) -> None:
    board = boards(3, INPUTS)
    sender, observer = board.member(0), board.member(1)
    writers = [sender.writer(i, 10 + i) for i in range(2)]
    writers[0].open()  # encoding is part of the write
    sender.write_all([(writers[0], BYTES, bytes(10)), (writers[1], BYTES, bytes(20))])
    writers[0].write(BYTES, b"", None, 0, 0)
    _, lost, events = events_of(observer, 0, 0)
    assert lost == 0
    assert [(each["op"], each["execution"], each["bytes"]) for each in events] == [
        (10, 0, 10),
        (11, 0, 20),
        (10, 1, 0),
    ]
    for each in events:
        assert each["start_ns"] + each["waited_ns"] + each["coded_ns"] <= each["end_ns"]
    assert [bool(each["coded_ns"]) for each in events] == [True, False, False]
    assert events[0]["end_ns"] == events[1]["start_ns"]


def test_a_loop_records_its_frames_one_after_the_other(boards: Any) -> None:
    board = boards(3, INPUTS)
    loop = board.member(0, looping=True)
    writers = [loop.writer(i, 10 + i) for i in range(2)]
    loop.write_all([(writers[0], BYTES, bytes(10)), (writers[1], BYTES, bytes(20))])
    loop.mark(5, 0)
    _, _, events = events_of(loop, 0, 0)
    assert [(each["op"], each["bytes"]) for each in events] == [(10, 10), (11, 20)]
    assert events[0]["end_ns"] == events[1]["start_ns"]
    loop.poison(BROKEN)
    with pytest.raises(_native.Poisoned):
        loop.write_all([(writers[0], BYTES, b"too late")])


def test_what_it_refuses(boards: Any) -> None:
    board = boards(3, INPUTS)
    sender = board.member(0)
    writer, twin, other = sender.writer(0, 0), sender.writer(0, 0), sender.writer(1, 0)
    for again in (writer, twin):
        with pytest.raises(ValueError, match="ring 0 is listed twice"):
            sender.write_all([(writer, BYTES, b""), (other, BYTES, b""), (again, BYTES, b"")])
    wrong: list[Any] = [
        [writer],
        [(writer, BYTES)],
        [(writer, BYTES, b"", None, 0, -1)],
        [(object(), BYTES, b"")],
        [(reader(board.member(1)), BYTES, b"")],
        [(board.member(0).writer(0, 0), BYTES, b"")],
        [(writer, BYTES, b"", ())],
        [(writer, "kind", b"")],
        [(writer, BYTES, "text")],
        7,
    ]
    for frames in wrong:
        for before in ([], [(other, BYTES, bytearray(b"good"))]):
            with pytest.raises(TypeError):
                sender.write_all(before + frames if isinstance(frames, list) else frames)
    with pytest.raises(TypeError):
        sender.write_all()  # type: ignore[call-arg]
    assert (writer.seq, other.seq, claimed(sender)) == (0, 0, 0)
    sender.write_all([(writer, BYTES, b""), (other, BYTES, b"")])


def test_a_list_that_changes_meanwhile_does_no_harm(boards: Any) -> None:
    """Waiting for room lets other threads run, and they may hold the very list."""
    board = boards(3, [Ring(0, (1,), slots=1), Ring(0, (2,))])
    sender, receiver = board.member(0), board.member(1)
    first, second = sender.writer(0, 0), sender.writer(1, 0)
    first.write(BYTES, b"full")
    frames: list[Any] = [
        (first, PICKLE, b"", [pattern(BLOCK)]),
        (second, PICKLE, bytearray(pattern(BLOCK)), None),
    ]
    thread = threading.Thread(target=sender.write_all, args=(frames,))
    thread.start()
    until_waiting(receiver, 0)
    frames.clear()
    del first, second
    gc.collect()
    end = reader(receiver, 0)
    assert end.read(0) == b"full"
    thread.join()
    assert bytes(end.read(0)[0]) == pattern(BLOCK)
    found = reader(board.member(2), 1, decode=lambda data: bytes(data)).read(0)
    assert found == pattern(BLOCK)


def test_a_forked_child_writes_nothing(boards: Any) -> None:
    board = boards(2)
    out = board.run(
        """
        member = board.member(0)
        writer = member.writer(0, 0)
        if not (pid := os.fork()):
            for frames in ([(writer, PICKLE, b"", [bytes(BLOCK)])], []):
                try:
                    member.write_all(frames)
                except RuntimeError as error:
                    assert "forked" in str(error)
                else:
                    os._exit(1)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), writer.seq, claimed(member))
        """
    )
    assert out == "0 0 0\n"
