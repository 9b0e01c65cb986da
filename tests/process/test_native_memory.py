# SPDX-License-Identifier: Apache-2.0
"""Bodies that the reader pulls from the memory of another process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator

import pytest

from rcg import _native
from tests.harness.board import CLOSED, Board, finish, pattern, reader
from tests.harness.peers import suspend

MB = 1 << 20


@contextlib.contextmanager
def stash(
    cap_bytes: int = 4 * MB,
    buffers: str = "[pattern(3 << 20)]",
    then: str = "sys.stdin.readline()",
) -> Iterator[tuple[subprocess.Popen[str], _native.Reader]]:
    """A member that fills the memory, and then writes buffers; and who reads these next."""
    board = Board(2, cap_bytes=cap_bytes)
    end = reader(board.member(1))
    owner = board.start(
        f"""
        member = board.member(0, looping=True)
        writer = member.writer(0, 0)
        writer.write(PICKLE, b"", [bytes({cap_bytes})])
        writer.write(PICKLE, b"", {buffers})
        print("written", flush=True)
        {then}
        """
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "written\n"
    end.read(10**9)
    yield owner, end
    finish(owner, "\n")
    board.close()


def test_a_stash_is_read_while_its_owner_holds_pythons_lock() -> None:
    """The owner is in a call that never lets go of the GIL, as users' native code may be."""
    reads_stdin_with_the_gil = "ctypes.PyDLL(None).getchar()"
    with stash(then=reads_stdin_with_the_gil) as (_, end):
        assert bytes(end.read(10**10)[0]) == pattern(3 * MB)


def test_a_pull_that_times_out_or_is_interrupted_can_be_repeated() -> None:
    with stash() as (owner, end):
        suspend(owner.pid)
        with pytest.raises(_native.TimedOut):
            end.read(50_000_000)
        frames: dict[int, _native.Frame] = {}
        end.collect_pending(frames)  # does not wait for long
        assert frames == {}

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, interrupt)
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        try:
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it comes in the second
                timer.start()
                end.read()
        finally:
            signal.signal(signal.SIGINT, before)
            timer.join()
        owner.send_signal(signal.SIGCONT)
        assert bytes(end.read(10**10)[0]) == pattern(3 * MB)


def test_a_pull_goes_on_where_it_stopped() -> None:
    """A reader with short timeouts, as in asyncio and lists of refs, gets it in the end."""
    with stash(64 * MB, "[pattern(32 << 20), pattern(20 << 20, 1)]") as (_, end):
        assert end.pending() == 0  # it is there, and takes time to get
        attempts = 0
        while True:
            attempts += 1
            try:
                found = end.read(500_000)
            except _native.TimedOut:
                continue
            break
        assert attempts > 1
        assert [bytes(each) for each in found] == [pattern(32 * MB), pattern(20 * MB, 1)]


def test_a_signal_handler_may_collect_what_is_being_pulled() -> None:
    with stash() as (owner, end):
        suspend(owner.pid)
        frames: dict[int, _native.Frame] = {}

        def collect(*_: object) -> None:
            owner.send_signal(signal.SIGCONT)
            end.collect(frames, 1, 10**10)

        before = signal.signal(signal.SIGALRM, collect)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            end.collect(frames, 1, 20 * 10**9)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert [bytes(each) for each in frames[1].decode()] == [pattern(3 * MB)]


def test_poison_ends_a_pull_from_who_is_gone() -> None:
    board = Board(2, cap_bytes=4 * MB)
    observer = board.member(1)
    end = reader(observer)
    board.run(
        """
        member = board.member(0, looping=True)
        writer = member.writer(0, 0)
        writer.write(PICKLE, b"", [bytes(4 << 20)])
        writer.write(PICKLE, b"", [pattern(3 << 20)])
        """
    )
    end.read(10**9)
    threading.Timer(0.2, observer.poison, (CLOSED,)).start()
    with pytest.raises(_native.Poisoned):
        end.read()
    board.close()
