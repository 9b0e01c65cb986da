# SPDX-License-Identifier: Apache-2.0
"""What the recorder keeps of an event, the user's spans, and draining all of it as it comes."""

from __future__ import annotations

import os
import pickle
import threading
import time
from typing import Any

import numpy as np
import pytest

from rcg import _native
from rcg.trace.model import EVENT, NO_PEER, SPAN_BASE
from rcg.trace.recorder import events_from
from tests.harness.board import BROKEN, BYTES, PICKLE, Failed, Ring, events_of, until, until_waiting
from tests.harness.drain import Running
from tests.harness.served import together


def test_the_native_core_and_the_trace_agree_on_the_layout() -> None:
    assert _native.SPAN_BASE == SPAN_BASE
    assert EVENT.itemsize == 56


# --- the parts of an event ----------------------------------------------------------------------


def test_a_loops_write_says_how_long_it_encoded_and_a_read_how_long_it_decoded(boards: Any) -> None:
    board = boards(rings=[Ring(0, (1,)), Ring(1, (0,))])
    sender, loop = board.member(0), board.member(1, looping=True)
    decoded = threading.Event()

    def decode(data: bytes) -> Any:
        decoded.wait(0.02)
        return pickle.loads(data)

    end, writer = loop.reader(0, 0, decode, Failed), loop.writer(1, 2)
    sender.writer(0, 0).write(PICKLE, pickle.dumps("in"))
    assert end.read() == "in"
    loop.mark(1, 0)
    writer.open()
    decoded.wait(0.02)  # encoding
    writer.write(PICKLE, b"out")
    loop.mark(0, 1)
    read, call, write = events_of(sender, 1)[2]
    assert [read["op"], call["op"], write["op"]] == [0, 1, 2]
    for event in (read, write):
        assert 20e6 <= event["coded_ns"] <= event["end_ns"] - event["start_ns"]
    assert call["coded_ns"] == 0


def test_bytes_are_neither_encoded_nor_decoded(boards: Any) -> None:
    board = boards()
    sender, loop = board.member(0), board.member(1, looping=True)
    end = loop.reader(0, 0, pickle.loads, Failed)
    sender.writer(0, 0).write(BYTES, b"x")
    end.read()
    loop.mark(1, 0)
    assert [event["coded_ns"] for event in events_of(sender, 1)[2]] == [0]
    assert [event["coded_ns"] for event in events_of(sender, 0)[2]] == [0]


def test_a_frame_that_is_decoded_later_is_an_event_of_its_own(boards: Any) -> None:
    board = boards()
    sender, taker = board.member(0), board.member(1)
    end = taker.reader(0, 3, pickle.loads, Failed)
    writer = sender.writer(0, 0)
    for value in ("a", "b"):
        writer.write(PICKLE, pickle.dumps(value))
    frames: dict[int, Any] = {}
    first = end.take()
    end.collect(frames, 1)
    assert (first.decode(), frames[1].decode(), first.decode()) == ("a", "b", "a")
    events = events_of(sender, 1)[2]
    assert [(each["op"], each["execution"]) for each in events] == [(3, 0), (3, 1), (3, 0), (3, 1)]
    for taken, coded in zip(events[:2], events[2:], strict=True):
        assert taken["bytes"] > coded["bytes"] == 0
        assert coded["coded_ns"] == coded["end_ns"] - coded["start_ns"] > taken["coded_ns"] == 0


def test_a_write_that_waited_names_the_reader_that_was_late(boards: Any) -> None:
    board = boards(3, [Ring(0, (1, 2), slots=2)])
    writer = board.member(0, looping=True)
    prompt, late = (board.member(i).reader(0, 0, pickle.loads, Failed) for i in (1, 2))
    end = writer.writer(0, 0)
    for _ in range(2):
        end.write(BYTES, b"x")
        prompt.read()
    assert [event["peer"] for event in events_of(writer, 0)[2]] == [NO_PEER] * 2
    thread = threading.Thread(target=end.write, args=(BYTES, b"x"))
    thread.start()
    until_waiting(writer, 0)
    late.read()
    thread.join()
    writer.mark(1, 3)
    event = events_of(writer, 0)[2][-1]
    assert event["waited_ns"] > 0
    assert event["peer"] == 2


@pytest.mark.parametrize("comes", ["while it waits again", "while it does something else"])
def test_a_wait_that_times_out_goes_on_with_the_next_read(boards: Any, comes: str) -> None:
    """As of a loop that gives memory back when nothing has come for a while."""
    board = boards()
    sender, loop = board.member(0), board.member(1, looping=True)
    writer, end = sender.writer(0, 0), loop.reader(0, 0, pickle.loads, Failed)
    with pytest.raises(_native.TimedOut):
        end.read(1_000_000)
    time.sleep(0.02)
    if comes == "while it waits again":
        thread = threading.Thread(target=end.read)
        thread.start()
        until_waiting(loop, 1)
    before_ns = time.monotonic_ns()
    writer.write(BYTES, b"x")
    thread.join() if comes == "while it waits again" else end.read()
    loop.mark(1, 0)
    (event,) = events_of(sender, 1)[2]
    assert event["peer"] == 0
    assert event["start_ns"] + event["waited_ns"] > before_ns


def test_times_are_those_of_the_monotonic_clock(boards: Any) -> None:
    member = boards(events=1 << 15).member(0, looping=True)
    around = []
    for execution in range(30_000):  # many looks at the clock, and times between them
        if execution % 5_000 == 0:
            time.sleep(0.003)
        before = time.monotonic_ns()
        member.mark(0, execution)
        around.append((before, time.monotonic_ns()))
    member.mark(1, 0)
    events = events_of(member, 0)[2]
    assert len(events) == len(around)
    before, after = np.array(around).T
    off_ns = np.maximum(before - events["start_ns"], events["start_ns"] - after)
    assert off_ns.max() < 2_000
    assert (np.diff(events["start_ns"]) >= 0).all()
    assert (events["end_ns"] >= events["start_ns"]).all()


# --- spans --------------------------------------------------------------------------------------


def test_spans_have_names_that_others_can_read(boards: Any) -> None:
    board = boards()
    member, other = board.member(0), board.member(1)
    ops = [member.span(name) for name in ("attention", "mlp", "attention")]
    assert ops == [SPAN_BASE, SPAN_BASE + 1, SPAN_BASE]
    assert other.spans(0) == ["attention", "mlp"]
    assert other.spans(1) == []
    member.record(ops[1], 7, 100, 250)
    (event,) = events_of(other, 0)[2]
    assert (event["op"], event["execution"], event["start_ns"], event["end_ns"]) == (
        SPAN_BASE + 1,
        7,
        100,
        250,
    )


def test_long_names_are_cut_between_characters_and_too_many_share_the_last_op(boards: Any) -> None:
    member = boards().member(0)
    member.span("\N{GREEK SMALL LETTER ALPHA}" * 40)
    assert member.spans(0) == ["\N{GREEK SMALL LETTER ALPHA}" * 31]
    assert member.span("") == SPAN_BASE + 1
    ops = {member.span(f"span {i}") for i in range(2 * _native.MAX_SPANS)}
    assert len(ops) == _native.MAX_SPANS - 1
    assert max(ops) == SPAN_BASE + _native.MAX_SPANS
    assert len(member.spans(0)) == _native.MAX_SPANS


# --- the drain -----------------------------------------------------------------------------------


def test_what_comes_faster_than_a_drain_takes_it_is_counted(boards: Any) -> None:
    board = boards(events=8)
    member = board.member(0, looping=True)
    drain = _native.Drain(member, board.fd, 10**7)
    for execution in range(_native.DRAIN_EVENTS + 1001):
        member.mark(0, execution)
    drain.stop()
    drain.run(1)
    lost, records = drain.take(0)
    assert lost == 1000
    assert np.array_equal(
        events_from(records)["execution"], np.arange(1000, _native.DRAIN_EVENTS + 1000)
    )


def test_a_drain_counts_what_is_too_much_for_it(boards: Any) -> None:
    board = boards(events=8)
    member = board.member(0, looping=True)
    running = Running(board, member, most=1000)
    for execution in range(2001):
        member.mark(0, execution)
    (lost, events), _ = running.stop()
    assert (lost, len(events)) == (1500, 500)  # a member may fill its part of it
    assert np.array_equal(events["execution"], np.arange(500))  # what came first is kept


def test_a_drain_holds_what_happens_between_its_start_and_its_end(boards: Any) -> None:
    board = boards(events=8)
    member = board.member(0, looping=True)
    for execution in range(5):
        member.mark(0, execution)
    for first in (5, 50):  # twice, and the recorder goes on in between
        running = Running(board, member)
        for execution in range(first, first + 20):
            member.mark(0, execution)
        (lost, events), _ = running.stop()
        assert lost == 0
        assert list(events["execution"]) == list(range(first - 1, first + 19))
        for execution in range(first + 20, 50):
            member.mark(0, execution)
        _, _, kept = events_of(member, 0)
        assert kept["execution"][-1] == max(first + 18, 48)


def test_events_of_before_and_after_a_drain_are_found_where_they_lie(boards: Any) -> None:
    board = boards(events=64)
    member = board.member(0, looping=True)
    for execution in range(10):
        member.mark(0, execution)
    running = Running(board, member)
    for execution in range(10, 20):
        member.mark(0, execution)
    running.stop()
    for execution in range(20, 30):
        member.mark(0, execution)
    count, lost, events = events_of(member, 0)
    assert (count, lost) == (29, 0)
    assert list(events["execution"]) == list(range(29))


def test_threads_of_a_driver_write_at_once(boards: Any) -> None:
    board = boards(events=8)
    member = board.member(0)
    running = Running(board, member)
    op = member.span("work")

    def work(number: int) -> None:
        for start in range(20_000):
            member.record(op, number, start, start + 1)

    together(*[lambda number=number: work(number) for number in range(3)])
    (lost, events), _ = running.stop()
    assert lost == 0
    assert [int((events["execution"] == number).sum()) for number in range(3)] == [20_000] * 3


def test_the_memory_of_the_larger_rings_is_taken_by_the_first_drain(boards: Any) -> None:
    board = boards()
    member = board.member(0)

    def taken() -> int:
        return os.fstat(board.fd).st_blocks * 512

    before = taken()
    member.events(1, 0)
    assert taken() == before
    _native.Drain(member, board.fd, 10)
    room = _native.DRAIN_EVENTS * 64 * 2
    assert taken() - before == room
    _native.Drain(member, board.fd, 10)
    assert taken() - before == room


def test_what_a_drain_refuses(boards: Any) -> None:
    board = boards()
    member = board.member(0)
    with pytest.raises(TypeError, match="Drain"):
        _native.Drain("member", board.fd, 1)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="Bad file descriptor"):
        _native.Drain(member, -1, 1)
    drain = _native.Drain(member, board.fd, 1)
    with pytest.raises(IndexError, match="no member 2"):
        drain.take(2)
    member.poison(BROKEN)  # a drain still reads what an ended graph did
    drain.stop()
    drain.stop()
    drain.run(1)
    until(lambda: drain.take(0) == (0, b""))
