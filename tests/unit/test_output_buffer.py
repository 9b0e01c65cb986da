# SPDX-License-Identifier: Apache-2.0
"""Results that threads ask for while one of them is unpickled."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from rcg.runtime.driver import output as buffers
from rcg.runtime.driver.output import FAILED, PENDING, READY, OutputBuffer
from tests.board import PICKLE, reader


def opened(boards: Any, decode: Any) -> tuple[OutputBuffer, list[SimpleNamespace]]:
    """A buffer on whose ring one result lies, and two who ask for it."""
    board = boards()
    board.member(0).writer(0, 0).write(PICKLE, b"", [b"small"])
    end = reader(board.member(1), decode=decode)
    buffer = OutputBuffer("c0", 0, end, lambda: None)
    result = SimpleNamespace(execution=0, state=PENDING, value=None)
    return buffer, [result, result]


def test_who_holds_what_unpickling_waits_for_gets_the_result(boards: Any) -> None:
    """One thread unpickles and needs a lock of the user's; the one that holds it gets that ref."""
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
    monkeypatch.setattr(buffers, "_DECODE_POLL_S", 1e9)  # nobody is waited for

    def decode(data: bytes, buffers: Any = ()) -> object:
        buffer.fetch(same, None)
        if same.state == FAILED:
            raise same.value
        return same.value

    buffer, (result, same) = opened(boards, decode)
    buffer.fetch(result, None)
    assert result.state == FAILED
    assert "asks for the result itself" in str(result.value)
