# SPDX-License-Identifier: Apache-2.0
"""An output buffer: frames that are taken, kept, discarded, and asked for by several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rcg import _native
from rcg.runtime.driver import output as buffers
from rcg.runtime.driver.output import FAILED, PENDING, READY, OutputBuffer
from rcg.serialization import Failure, loads
from tests.harness.board import BYTES, FAILURE, PICKLE, reader


def opened(boards: Any, decode: Any) -> tuple[OutputBuffer, list[SimpleNamespace]]:
    """A buffer whose ring has one result, and two fetches of it."""
    board = boards()
    board.member(0).writer(0, 0).write(PICKLE, b"", [b"small"])
    end = reader(board.member(1), decode=decode)
    buffer = OutputBuffer("c0", 0, end, lambda: None)
    result = SimpleNamespace(execution=0, state=PENDING, value=None)
    return buffer, [result, result]


def test_who_holds_what_unpickling_waits_for_gets_the_result(
    boards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread unpickles and needs a user's lock; the thread with the lock gets that ref."""
    monkeypatch.setattr(buffers, "_MAX_DECODE_POLLS", 50)
    lock, begun = threading.Lock(), threading.Event()
    guard_s = 60.0

    def decode(data: bytes, buffers: Any = ()) -> str:
        begun.set()
        if threading.current_thread() is thread:
            assert lock.acquire(timeout=guard_s), "it hangs"
            lock.release()
        return "".join(["va", "lue"])

    buffer, (result, same) = opened(boards, decode)
    thread = threading.Thread(target=lambda: buffer.fetch(result, None), daemon=True)
    with lock:
        thread.start()
        begun.wait()
        buffer.fetch(same, None)
        assert (same.state, same.value) == (READY, "value")
        value = same.value
    thread.join(guard_s)
    assert not thread.is_alive()
    assert result.value is value
    assert not buffer.frames


def test_who_only_unpickles_slowly_is_waited_for(boards: Any) -> None:
    begun, go = threading.Event(), threading.Event()
    made: list[object] = []

    def decode(data: bytes, buffers: Any = ()) -> object:
        begun.set()
        go.wait()
        made.append(object())
        return made[-1]

    buffer, (result, same) = opened(boards, decode)
    first = threading.Thread(target=lambda: buffer.fetch(result, None))
    first.start()
    begun.wait()
    second = threading.Thread(target=lambda: buffer.fetch(same, None))
    second.start()
    go.set()
    first.join()
    second.join()
    assert [result.value] == made


def test_unpickling_that_asks_for_its_own_result_fails_it(
    boards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffers, "_DECODE_POLL_S", 1e9)  # a wait would hang the test

    def decode(data: bytes, buffers: Any = ()) -> object:
        buffer.fetch(same, None)
        if same.state == FAILED:
            raise same.value
        return same.value

    buffer, (result, same) = opened(boards, decode)
    buffer.fetch(result, None)
    assert result.state == FAILED
    assert "asks for the result itself" in str(result.value)


def test_what_unpickling_raises_does_not_replace_what_another_thread_made(boards: Any) -> None:
    """It asked for the result in the middle, and then failed."""

    def decode(data: bytes, buffers: Any = ()) -> object:
        same.value, same.state = "filled by another thread", READY
        raise ValueError("too late")

    buffer, (result, same) = opened(boards, decode)
    buffer.fetch(result, None)
    assert (result.state, result.value) == (READY, "filled by another thread")


# --- frames that are taken, kept and discarded


class Filled:
    """A buffer, and the writer of its ring; ``notified`` counts the calls of ``on_awaited``."""

    def __init__(self, boards: Callable[..., Any]) -> None:
        board = boards()
        self.writer = board.member(0).writer(0, 0)
        self.notified = 0
        end = board.member(1).reader(0, 0, loads, Failure)
        self.buffer = OutputBuffer("c0", 0, end, self.notify)

    def notify(self) -> None:
        self.notified += 1

    def send(self, *kinds: int) -> None:
        for kind in kinds:
            self.writer.write(kind, b"value")

    def fetch(self, execution: int) -> tuple[bool, SimpleNamespace]:
        result = SimpleNamespace(execution=execution, state=PENDING, value=None)
        return self.buffer.fetch(result, 0), result


@pytest.fixture
def filled(boards: Any) -> Filled:
    return Filled(boards)


def test_a_result_has_come_when_its_frame_lies_on_the_ring(filled: Filled) -> None:
    buffer = filled.buffer
    assert not buffer.has(0) and buffer.here == 0
    filled.send(BYTES, BYTES)
    assert [buffer.has(execution) for execution in range(3)] == [True, True, False]
    assert (buffer.here, buffer.arrived) == (2, 0)
    filled.fetch(0)
    assert [buffer.has(execution) for execution in range(3)] == [True, True, False]
    buffer.take_pending()
    assert [buffer.has(execution) for execution in range(3)] == [True, True, False]
    assert (buffer.here, buffer.arrived) == (2, 2)


def test_one_of_those_who_fetch_a_result_filled_it(boards: Any) -> None:
    """That fetch releases the output; a second release would be that of another execution."""
    inner: list[bool] = []

    def decode(data: bytes, buffers: Any = ()) -> str:
        if not inner:
            inner.append(True)
            inner[0] = buffer.fetch(same, None)
        return "value"

    buffer, (result, same) = opened(boards, decode)
    assert [buffer.fetch(result, None), *inner, buffer.fetch(result, None)] == [False, True, False]
    assert (result.state, result.value) == (READY, "value")


def test_advancing_waits_for_so_many_frames_and_keeps_all_that_are_there(filled: Filled) -> None:
    filled.send(BYTES)
    filled.buffer.advance_to(1, 0)
    assert sorted(filled.buffer.frames) == [0]
    with pytest.raises(_native.TimedOut):
        filled.buffer.advance_to(2, 0)
    filled.send(BYTES, BYTES, BYTES)
    filled.buffer.advance_to(2, 0)
    assert sorted(filled.buffer.frames) == [0, 1, 2, 3]


TAKING: dict[str, Callable[[Filled], object]] = {
    "fetch": lambda filled: filled.fetch(filled.buffer.arrived),
    "advance_to": lambda filled: filled.buffer.advance_to(filled.buffer.arrived + 1, 0),
    "take_pending": lambda filled: filled.buffer.take_pending(),
}


@pytest.mark.parametrize("take", TAKING.values(), ids=TAKING)
def test_coroutines_are_woken_by_frames_that_others_took(
    filled: Filled, take: Callable[[Filled], object]
) -> None:
    filled.send(BYTES, BYTES)
    take(filled)
    assert filled.notified == 0  # no coroutine waits
    filled.buffer.awaited.add(1)
    filled.send(BYTES)
    take(filled)
    assert filled.notified == 1


def test_the_thread_that_serves_asyncio_is_not_woken_by_itself(filled: Filled) -> None:
    filled.buffer.awaited.add(0)
    filled.send(BYTES)
    filled.buffer.drain()
    assert sorted(filled.buffer.frames) == [0]
    assert filled.notified == 0


@pytest.mark.parametrize("take", TAKING.values(), ids=TAKING)
def test_a_dropped_result_is_discarded_when_it_has_arrived(
    filled: Filled, take: Callable[[Filled], object]
) -> None:
    buffer = filled.buffer
    buffer.dropped.extend((1, 2))
    filled.send(BYTES, BYTES)
    take(filled)
    buffer.take_pending()
    assert 1 not in buffer.frames
    assert list(buffer.dropped) == [2]  # still to come
    filled.send(BYTES)
    buffer.take_pending()
    assert 2 not in buffer.frames
    assert not buffer.dropped


def test_failures_that_nobody_fetched_are_counted_and_the_last_is_kept(filled: Filled) -> None:
    buffer = filled.buffer
    filled.send(FAILURE, BYTES, FAILURE, FAILURE)
    buffer.take_pending()
    last = buffer.frames[2]
    buffer.dropped.extend((0, 1, 2, 7))
    buffer.discard_dropped()
    assert buffer.failures_dropped == 2
    assert buffer.last_dropped is last
    assert sorted(buffer.frames) == [3]
