# SPDX-License-Identifier: Apache-2.0
"""Submitting: an execution gets its number, its refs and all its frames in one step, or nothing."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from rcg import _native
from tests.harness.board import (
    BLOCK,
    BYTES,
    FAILURE,
    PICKLE,
    Failed,
    Ring,
    claimed,
    events_of,
    pattern,
    reader,
)
from tests.harness.submission import NEVER, NEW, PENDING, Ref, submission

# Two inputs of two actors, a third that goes to both.
INPUTS = (Ring(0, (1,)), Ring(0, (2,)), Ring(0, (1, 2)))


def books(member: _native.Member) -> tuple[int, int]:
    """What is claimed, and in how many blocks."""
    statistics = member.statistics()
    return statistics["claimed_bytes"], statistics["blocks_claimed"]


def test_all_frames_are_published_and_the_refs_are_theirs(boards: Any) -> None:
    board = boards(3, INPUTS)
    submit = submission(board, [0, 1, 2])
    one, other = board.member(1), board.member(2)
    data = pattern(BLOCK)
    refs = [Ref(), Ref()]
    frames = (
        (BYTES, b"bytes"),
        (FAILURE, bytearray(b"why"), None),
        (PICKLE, b"", [data, b"small"], 0b10),
    )
    assert submit(*frames, refs=refs) == 0
    assert submit.seqs == [1, 1, 1]
    assert [ref.facts for ref in refs] == [(0, PENDING)] * 2
    assert submit.left == {0: 1}
    assert reader(one, 0).read(0) == b"bytes"
    assert reader(other, 1).read(0) == Failed(b"why")
    for member in (one, other):
        block, small = reader(member, 2).read(0)
        assert bytes(block) == data and small == bytearray(b"small")
        assert type(small) is bytearray
    del block
    assert books(submit.member) == (0, 0)
    ref = Ref()
    assert submit((BYTES, b""), (BYTES, b""), (BYTES, b""), refs=ref) == 1
    assert ref.facts == (1, PENDING)


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_at_the_limit_nothing_happens(boards: Any, limit: int) -> None:
    board = boards(2)
    submit = submission(board, [0])
    for i in range(limit):
        assert submit((BYTES, b"x"), limit=limit) == i
    ref = Ref()
    before = submit.member.statistics()
    assert submit((PICKLE, b"", [pattern(BLOCK)]), limit=limit, refs=ref) is None
    assert submit.member.statistics() == before  # not even memory was asked for
    assert (submit.seqs, ref.facts, len(submit.left)) == ([limit], (NEW, NEW), limit)


def test_a_full_ring_keeps_the_others_unwritten(boards: Any) -> None:
    board = boards(3, [Ring(0, (1,), slots=4), Ring(0, (2,), slots=1)])
    submit = submission(board, [0, 1])
    assert submit((BYTES, b"0"), (BYTES, b"0")) == 0
    ref = Ref()
    with pytest.raises(_native.TimedOut):
        submit((PICKLE, b"", [pattern(BLOCK)]), (BYTES, b"1"), refs=ref)
    assert (submit.seqs, ref.facts, submit.left, books(submit.member)) == (
        [1, 1],
        (NEW, NEW),
        {0: 1},
        (0, 0),
    )
    reader(board.member(2), 1).read(0)
    assert submit((BYTES, b"1"), (BYTES, b"1"), refs=ref) == 1


def test_one_that_is_too_large_takes_the_others_back(boards: Any) -> None:
    board = boards(3, INPUTS, cap_bytes=4 * BLOCK)
    submit = submission(board, [0, 1])
    sender = submit.member
    ends = [reader(board.member(1), 0), reader(board.member(2), 1)]
    submit((PICKLE, b"", [pattern(BLOCK)]), (BYTES, b""))
    kept = ends[0].read(0)
    ends[1].read(0)
    before = sender.statistics()
    small, large = [pattern(BLOCK, 1)], [pattern(7 * BLOCK)]
    for frames in (
        [(PICKLE, b"", small), (PICKLE, b"", large)],
        [(PICKLE, b"", small), (PICKLE, b"", small * 3)],
        [(BYTES, pattern(2000)), (BYTES, pattern(5 * BLOCK))],
    ):
        for order in (frames, frames[::-1]):
            refs = [Ref(), Ref()]
            with pytest.raises(_native.NoMemory):
                submit(*order, refs=refs)
            assert [ref.facts for ref in refs] == [(NEW, NEW)] * 2
            assert books(sender) == (BLOCK, 1)
            sender.trim()
            assert sender.statistics()["used_bytes"] == before["used_bytes"]
    assert (submit.seqs, list(submit.left)) == ([1, 1], [0])
    assert [end.pending() for end in ends] == [0, 0]
    assert bytes(kept[0]) == pattern(BLOCK)
    submit((PICKLE, b"", small), (PICKLE, b"", small))
    assert [bytes(end.read(0)[0]) for end in ends] == [pattern(BLOCK, 1)] * 2


class Disobedient(Ref):
    """A ref that raises when its execution, or then its state, is set."""

    __slots__ = ("_at",)

    def __init__(self, at: str) -> None:
        super().__init__()
        self._at = at

    def __setattr__(self, name: str, value: Any) -> None:
        if getattr(self, "_at", "") == name and value != NEW:
            raise ZeroDivisionError(name)
        super().__setattr__(name, value)


@pytest.mark.parametrize("at", ["execution", "state"])
@pytest.mark.parametrize("place", [None, 0, 1, 2])
def test_a_ref_that_refuses_takes_all_back(boards: Any, at: str, place: int | None) -> None:
    submit = submission(boards(3, INPUTS), [0, 1])
    refs: Any = [Ref(), Ref(), Ref()]
    if place is None:
        refs = Disobedient(at)
    else:
        refs[place] = Disobedient(at)
    frame = (PICKLE, b"", [pattern(BLOCK)])
    with pytest.raises(ZeroDivisionError):
        submit(frame, frame, refs=refs)
    found = [refs] if place is None else refs
    assert [ref.state for ref in found] == [NEW] * len(found)
    assert (submit.seqs, submit.left, books(submit.member)) == ([0, 0], {}, (0, 0))
    assert submit(frame, frame) == 0


def test_without_memory_of_pythons_nothing_is_left_behind(boards: Any) -> None:
    """Each allocation fails once."""
    testcapi = pytest.importorskip("_testcapi")
    submit = submission(boards(3, INPUTS), [0, 1])
    failures = 0
    for nth in range(1000):
        refs = [Ref(), Ref()]
        buffers = [pattern(BLOCK), *[b"small"] * 4]  # more than there is room for on the stack
        entries = tuple((writer, PICKLE, b"x" * 3000, buffers) for writer in submit.writers)
        submitted = None
        testcapi.set_nomemory(nth, nth + 1)
        try:
            submitted = submit.member.submit(entries, 2, submit.left, 1, refs)
        except MemoryError:
            failures += 1
        finally:
            testcapi.remove_mem_hooks()
        if submitted is not None:
            assert [ref.facts for ref in refs] == [(0, PENDING)] * 2
            break
        assert [ref.state for ref in refs] == [NEW, NEW]
        assert (submit.seqs, submit.left, books(submit.member)) == ([0, 0], {}, (0, 0))
    assert failures >= 4


# --- in the middle of it ------------------------------------------------------------------------


@contextmanager
def collecting_always(trash: Callable[[], object]) -> Iterator[None]:
    """Have garbage made by ``trash`` collected wherever Python makes a container."""

    def refill(phase: str, _: object) -> None:
        if phase == "stop" and not full:
            trash()

    full: list[None] = []
    before = gc.get_threshold()
    gc.collect()
    gc.callbacks.append(refill)
    gc.set_threshold(1)
    try:
        yield
    finally:
        full.append(None)
        gc.set_threshold(*before)
        gc.callbacks.remove(refill)


def test_a_collection_of_garbage_finds_all_or_nothing(boards: Any) -> None:
    """``__del__`` submits, in the middle of other submissions: as often as it comes up."""
    board = boards(2, [Ring(0, (1,), slots=64)] * 2)
    submit = submission(board, [0, 1])
    ends = [reader(board.member(1), i) for i in range(2)]
    inner: list[tuple[int | None, tuple[int, int], set[int]]] = []
    is_inside: list[None] = []

    class Trash:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            if is_inside:
                return
            is_inside.append(None)
            ref = Ref()
            seen = set(submit.seqs)
            execution = submit((PICKLE, b"", [pattern(BLOCK)]), (BYTES, b"inner"), refs=ref)
            inner.append((execution, ref.facts, seen))
            is_inside.pop()

    outer: list[tuple[int | None, tuple[int, int]]] = []
    with collecting_always(Trash):
        for _ in range(20):
            ref = Ref()
            buffers = [np.arange(10), pattern(BLOCK), b"small"]
            found = submit((PICKLE, b"x" * 2000, buffers), (BYTES, b"outer"), refs=ref)
            outer.append((found, ref.facts))
            while ends[0].pending():
                for end in ends:
                    end.take(0)
    assert inner
    assert all(len(seen) == 1 for _, _, seen in inner)
    executions = [(e, facts) for e, facts, _ in inner] + outer
    assert sorted(executions) == [(i, (i, PENDING)) for i in range(len(executions))]
    assert list(submit.left) == list(range(len(executions)))


def test_a_signal_at_any_moment_finds_all_or_none_written(boards: Any) -> None:
    """The handler runs between bytecodes, thousands of times, looks, and submits itself."""
    count = 5
    board = boards(2, [Ring(0, (1,), slots=64)] * count)
    submit = submission(board, list(range(count)))
    ends = [reader(board.member(1), i) for i in range(count)]
    seen: list[set[int]] = []
    executions: list[int | None] = []

    is_inside: list[None] = []  # one of these at a time, or they would see each other's

    def come(*_: object) -> None:
        if not is_inside:
            is_inside.append(None)
            seen.append(set(submit.seqs))
            executions.append(submit(*[(BYTES, b"handler")] * count))
            is_inside.pop()

    before = signal.signal(signal.SIGALRM, come)
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    try:
        data = [pattern(5000)]
        while len(seen) < 300:
            executions.append(submit(*[(PICKLE, b"", data)] * count))
            while ends[-1].pending():
                for end in ends:
                    end.take(0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert all(len(seqs) == 1 for seqs in seen)
    assert sorted(filter(None, executions)) == list(range(1, len(executions)))
    del data
    assert claimed(submit.member) == 0


def test_threads_prepare_at_the_same_time_and_publish_in_one_order(boards: Any) -> None:
    """What each ring carries under a number is of the same submission."""
    board = boards(2, [Ring(0, (1,), slots=4)] * 2)
    submit = submission(board, [0, 1])
    ends = [reader(board.member(1), i) for i in range(2)]
    threads, each = 6, 60
    numbers: dict[int, bytes] = {}

    def work(name: int) -> None:
        done = 0
        while done < each:
            mark = b"%d %d" % (name, done)
            large = mark + bytes(200_000)  # its copy lets other threads run
            try:
                execution = submit((PICKLE, b"", [large]), (BYTES, mark))
            except _native.TimedOut:
                continue
            assert execution is not None
            numbers[execution] = mark
            done += 1

    workers = [threading.Thread(target=work, args=(name,)) for name in range(threads)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for worker in workers:
            worker.start()
        found = []
        for _ in range(threads * each):
            (buffer,) = ends[0].read()
            mark = ends[1].read()
            found.append((bytes(buffer)[: len(mark)], mark))
            del buffer
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(before)
    assert found == [(numbers[i], numbers[i]) for i in range(threads * each)]
    assert list(submit.left) == list(range(threads * each))
    assert claimed(submit.member) == 0


# --- what else it keeps -------------------------------------------------------------------------


def test_a_buffer_that_came_read_only_is_forwarded_to_each(boards: Any) -> None:
    board = boards(3, [Ring(0, (1,)), Ring(1, (2,)), Ring(1, (0, 2))])
    owner, last = board.member(0), board.member(2)
    data = pattern(BLOCK)
    owner.writer(0, 0).write(PICKLE, b"", [data])
    submit = submission(board, [1, 2], 1)
    (lease,) = reader(submit.member, 0).read(0)
    with pytest.raises(_native.NoMemory):
        submit((PICKLE, b"", [lease]), (BYTES, bytes(1 << 29)))
    assert books(owner) == (BLOCK, 1)
    submit((PICKLE, b"", [lease, lease]), (PICKLE, b"", [lease]))
    assert submit.member.statistics()["copies"] == 0
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
    frames = ((writers[0], BYTES, bytes(10)), (writers[1], BYTES, bytes(20)))
    _, _, before = events_of(observer, 0, 0)
    assert len(before) == 0
    started_ns = time.monotonic_ns() - 50_000
    sender.submit(frames, NEVER, {}, 1, Ref(), started_ns)
    sender.submit(frames, NEVER, {}, 1, Ref())
    _, lost, events = events_of(observer, 0, 0)
    assert lost == 0
    assert [(each["op"], each["execution"], each["bytes"]) for each in events] == [
        (10, 0, 10),
        (11, 0, 20),
        (10, 1, 10),
        (11, 1, 20),
    ]
    for each in events:
        assert each["start_ns"] + each["waited_ns"] + each["coded_ns"] <= each["end_ns"]
    # Encoding is part of the first write.
    assert [bool(each["coded_ns"]) for each in events] == [True, False, False, False]
    assert abs(int(events[0]["start_ns"]) - started_ns) < 1000
    for first, second in ((0, 1), (2, 3)):
        assert events[first]["end_ns"] == events[second]["start_ns"]


def test_what_it_refuses(boards: Any) -> None:
    board = boards(3, INPUTS)
    sender = board.member(0)
    writer, twin, other = sender.writer(0, 0), sender.writer(0, 0), sender.writer(1, 0)
    left: dict[int, int] = {}

    def submit(*frames: Any) -> int | None:
        return sender.submit(frames, NEVER, left, 1, Ref())

    for again in (writer, twin):
        with pytest.raises(ValueError, match="ring 0 is listed twice"):
            submit((writer, BYTES, b""), (other, BYTES, b""), (again, BYTES, b""))
    wrong: list[Any] = [
        writer,
        (writer, BYTES),
        (writer, BYTES, b"", None, 0, -1),
        (object(), BYTES, b""),
        (reader(board.member(1)), BYTES, b""),
        (board.member(0).writer(0, 0), BYTES, b""),
        (writer, BYTES, b"", ()),
        (writer, "kind", b""),
        (writer, BYTES, "text"),
    ]
    for frame in wrong:
        for before in ((), ((other, BYTES, bytearray(b"good")),)):
            with pytest.raises(TypeError):
                submit(*before, frame)
    good = (writer, BYTES, b"")
    for arguments in (
        (),
        ((good,), NEVER, left, 1),
        ((), NEVER, left, 1, Ref()),
        ([good], NEVER, left, 1, Ref()),
        ((good,), "7", left, 1, Ref()),
        ((good,), NEVER, [], 1, Ref()),
        ((good,), NEVER, left, 1, Ref(), "now"),
        ((good,), NEVER, left, 1, Ref(), 0, False, 0),
    ):
        with pytest.raises(TypeError):
            sender.submit(*arguments)  # type: ignore[call-arg, arg-type]
    with pytest.raises(OverflowError):
        sender.submit((good,), -1, left, 1, Ref())
    assert (writer.seq, other.seq, claimed(sender), left) == (0, 0, 0, {})
    assert submit(good, (other, BYTES, b"")) == 0
    writer.write(BYTES, b"alone")
    with pytest.raises(RuntimeError, match="not at the execution of the others"):
        submit(good, (other, BYTES, b""))


def test_a_submission_beside_a_write_that_waits_in_the_same_ring_raises(boards: Any) -> None:
    """A ring has one writer: submitting while another thread writes raises."""
    board = boards(2, [Ring(0, (1,), slots=1)])
    submit = submission(board, [0])
    submit((BYTES, b"0"))
    thread = threading.Thread(target=submit.writers[0].write, args=(BYTES, b"1"))
    thread.start()
    while board.member(1).now(0)[4] != _native.NOW_WAITING:
        pass
    with pytest.raises(RuntimeError, match="in use by another thread"):
        submit((BYTES, b"between"))
    end = reader(board.member(1))
    assert end.read(0) == b"0"
    thread.join()
    assert end.read(0) == b"1"


def test_a_list_that_changes_meanwhile_does_no_harm(boards: Any) -> None:
    """Copying lets other threads run, and they may hold the very lists."""
    board = boards(2, [Ring(0, (1,))])
    submit = submission(board, [0])
    end = reader(board.member(1))
    for _ in range(50):
        buffers = [pattern(BLOCK), bytearray(pattern(1 << 20)), pattern(BLOCK, 2)]
        wanted = [bytes(buffer) for buffer in buffers]
        thread = threading.Thread(target=buffers.clear)
        thread.start()
        try:
            submit((PICKLE, b"", buffers))
        except IndexError:
            pass  # it was cleared before its members were looked at
        else:
            found = [bytes(buffer) for buffer in end.read(0)]
            assert found in (wanted, [])
        thread.join()
    assert claimed(submit.member) == 0


# --- letting go ---------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [1, 2, 7, 64, 130])
def test_releasing_lets_go_of_one_output_once(outputs: int) -> None:
    left = {3: (1 << outputs) - 1, 4: 1}
    wanted = set(range(outputs))
    for output in (*range(0, outputs, 2), *range(outputs)):
        _native.release(left, 3, output)
        wanted.discard(output)
        assert left.get(3, 0) == sum(1 << other for other in wanted)
    assert left == {4: 1}
    _native.release(left, 3, 0)
    _native.release(left, 99, 5)
    assert left == {4: 1}


def test_releasing_takes_what_it_knows() -> None:
    for arguments in ((), ({}, 1), ([], 1, 1), ({}, "1", 1), ({}, 1, None)):
        with pytest.raises(TypeError, match="release"):
            _native.release(*arguments)  # type: ignore[call-arg, arg-type]
