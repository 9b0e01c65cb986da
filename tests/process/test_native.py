# SPDX-License-Identifier: Apache-2.0
"""The native core between processes: rings, claims, poison, Ctrl-C, forks, the recorder."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from rcg import _native
from rcg.trace.model import NO_PEER
from tests.harness.board import (
    BLOCK,
    BROKEN,
    BYTES,
    CLOSED,
    PICKLE,
    POLICIES,
    Ring,
    claimed,
    events_of,
    finish,
    pattern,
    reader,
    until,
    until_waiting,
)


@pytest.mark.parametrize("policy", POLICIES)
def test_two_processes_play_ping_pong_around_their_rings(boards: Any, policy: str) -> None:
    board = boards(rings=[Ring(0, (1,), slots=2), Ring(1, (0,), slots=2)])
    child = board.start(
        """
        member = board.member(1, wait=argv[0])
        end, writer = reader(member, 0), member.writer(1, 0)
        for _ in range(500):
            writer.write(BYTES, end.read())
        """,
        policy,
    )
    member = board.member(0, wait=policy)
    writer, end = member.writer(0, 0), reader(member, 1)
    for i in range(500):
        writer.write(BYTES, b"%d" % i)
        assert end.read() == b"%d" % i
    finish(child)


def test_the_claims_of_a_dead_process_are_forgotten(boards: Any) -> None:
    board = boards(3, [Ring(0, (1, 2))])
    sender = board.member(0)
    writer, mine = sender.writer(0, 0), reader(board.member(1))
    writer.write(PICKLE, b"", [pattern(BLOCK)])
    writer.write(PICKLE, b"", [pattern(BLOCK, 1)])
    child = board.start(
        """
        held = reader(board.member(2)).read()
        print("holding", flush=True)
        sys.stdin.read()
        """
    )
    assert child.stdout and child.stdout.readline() == "holding\n"
    child.kill()
    child.communicate()
    (first,) = mine.read(0)
    mine.read(0)
    assert claimed(sender) == 2 * BLOCK  # one held by the dead, one it never read
    assert sender.forget(2) == 2
    assert claimed(sender) == BLOCK
    assert bytes(first) == pattern(BLOCK)
    assert sender.forget(2) == 0
    del first
    assert claimed(sender) == 0


def test_blocks_go_between_processes_and_are_freed_there(boards: Any) -> None:
    board = boards(2, [Ring(0, (1,)), Ring(1, (0,))])
    child = board.start(
        """
        member = board.member(1)
        end, writer = reader(member, 0), member.writer(1, 0)
        kept = []
        for i in range(200):
            kept.append(end.read()[0])
            writer.write(PICKLE, b"", [kept[-1]])
            if len(kept) > 3:
                kept.pop(0)
        kept.clear()
        print(member.statistics()["forwards"], member.statistics()["copies"])
        """
    )
    owner = board.member(0)
    writer, end = owner.writer(0, 0), reader(owner, 1)
    for i in range(200):
        writer.write(PICKLE, b"", [pattern(BLOCK, i)])
        (lease,) = end.read()
        assert bytes(lease) == pattern(BLOCK, i)
        del lease
    assert finish(child) == "200 0\n"
    assert claimed(owner) == 0
    assert owner.statistics()["blocks"] <= 6


def test_poison_wakes_everyone_in_every_process(boards: Any) -> None:
    rings = [Ring(0, (1,), slots=1), Ring(0, (1,)), Ring(1, (0,)), Ring(2, (0,))]
    board = boards(3, rings)
    first, observer = board.member(0), board.member(1)
    children = [
        board.start(
            f"""
            def wait():
                end = {end}
                try:
                    while True:
                        {wait}
                except _native.Poisoned as error:
                    print(*error.args)

            # Not on the main thread, which looks around by itself.
            threading.Thread(target=wait).start()
            """
        )
        for end, wait in [
            ("reader(board.member(1), 1)", "end.read()"),
            ("board.member(2).writer(3, 0)", "end.write(BYTES, b'')"),
        ]
    ]
    outcomes: list[tuple[int, int]] = []

    def wait(call: Callable[[], object]) -> None:
        try:
            call()
        except _native.Poisoned as error:
            outcomes.append(error.args)  # type: ignore[arg-type]

    writer = first.writer(0, 0)
    writer.write(BYTES, b"full")
    ends = [reader(first, 2), reader(board.member(0), 2)]
    calls: list[Callable[[], object]] = [
        lambda: writer.write(BYTES, b"no room"),
        ends[0].read,
        ends[1].read,
        lambda: first.wait_any([], None, 0),
    ]
    threads = [threading.Thread(target=wait, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for number in (0, 1, 2):
        until_waiting(observer, number)
    assert observer.poison(BROKEN, 2)
    for thread in threads:
        thread.join()
    assert outcomes == [(BROKEN, 2)] * 4
    assert [finish(child) for child in children] == ["2 2\n", "2 2\n"]


CTRL_C = """
main, member = threading.main_thread(), board.member(1)
end = reader(member)

def press():
    until_waiting(member, 1)
    {press}

threading.Thread(target=press).start()
try:
    {wait}
except KeyboardInterrupt:
    print("interrupted", end.seq)
print("ready", flush=True)
print(end.read().decode())
"""
TO_MAIN = "signal.pthread_kill(main.ident, signal.SIGINT)"
# The kernel may give the signal to any thread; Python runs the handler on the main thread later.
TO_ANOTHER = "signal.pthread_kill(threading.get_ident(), signal.SIGINT)"


@pytest.mark.parametrize("press", [TO_MAIN, TO_ANOTHER], ids=["main", "another"])
@pytest.mark.parametrize("wait", ["end.read()", "member.wait_any([end])"])
def test_ctrl_c_ends_a_wait_and_changes_nothing_else(boards: Any, wait: str, press: str) -> None:
    board = boards()
    child = board.start(CTRL_C.format(wait=wait, press=press))
    assert child.stdout
    assert child.stdout.readline() == "interrupted 0\n"
    assert child.stdout.readline() == "ready\n"
    board.member(0).writer(0, 0).write(BYTES, b"after all")
    assert finish(child) == "after all\n"


def test_ctrl_c_in_a_writer_writes_nothing(boards: Any) -> None:
    board = boards(rings=[Ring(1, (0,), slots=1)])
    out = board.run(
        """
        member = board.member(1)
        writer = member.writer(0, 0)
        writer.write(BYTES, b"0")

        def press():
            until_waiting(member, 1)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=press).start()
        try:
            writer.write(PICKLE, b"", [bytes(BLOCK)])
        except KeyboardInterrupt:
            print("interrupted", writer.seq, claimed(member))
        end = reader(board.member(0))
        end.read(0)
        writer.write(BYTES, b"1")
        print(end.read(0).decode())
        """
    )
    assert out == "interrupted 1 0\n1\n"


def test_a_signal_handler_that_returns_lets_the_wait_go_on(boards: Any) -> None:
    board = boards()
    child = board.start(
        """
        member = board.member(1)
        end = reader(member)
        signal.signal(signal.SIGUSR1, lambda *_: print("handled", flush=True))

        def press():
            until_waiting(member, 1)
            os.kill(os.getpid(), signal.SIGUSR1)

        threading.Thread(target=press).start()
        print(end.read().decode())
        """
    )
    assert child.stdout and child.stdout.readline() == "handled\n"
    board.member(0).writer(0, 0).write(BYTES, b"value")
    assert finish(child) == "value\n"


def test_a_forked_child_frees_nothing_and_is_no_member(boards: Any) -> None:
    board = boards(2, [Ring(0, (1,)), Ring(1, (0,))])
    out = board.run(
        """
        owner, member = board.member(0), board.member(1)
        out, end, back = owner.writer(0, 0), reader(member), member.writer(1, 0)
        for _ in range(2):
            out.write(PICKLE, b"", [bytes(BLOCK)])
        held, frame = end.read(), end.take()
        out.write(BYTES, b"next")

        if not (pid := os.fork()):
            calls = [
                end.read, end.take, lambda: back.write(BYTES, b""), member.trim,
                lambda: member.poison(1), member.interrupt,
                lambda: member.forget(0), lambda: member.wait_any([end]),
                lambda: reader(member), lambda: member.writer(1, 0), lambda: member.mark(1, 1),
                lambda: member.submit(((back, PICKLE, b"", [bytes(8)]),), 9, {}, 1, object()),
            ]
            refused = 0
            for call in calls:
                try:
                    call()
                except RuntimeError as error:
                    refused += "forked" in str(error)
            del held, frame
            fresh = board.member(0)  # the child may join on its own account
            os._exit(0 if refused == len(calls) and claimed(fresh) == 2 * BLOCK else 1)

        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), claimed(owner) // BLOCK, member.poisoned)
        del held
        print(claimed(owner) // BLOCK)
        del frame
        print(claimed(owner) // BLOCK, end.read(0).decode(), end.seq)
        """
    )
    assert out == "0 2 (0, -1)\n1\n0 next 3\n"


@pytest.mark.full
@pytest.mark.parametrize(
    "leave", ["os._exit(0)", "sys.exit(0)", "raise RuntimeError('the child')", "os.abort()"]
)
def test_forked_children_come_and_go_while_the_parent_goes_on(boards: Any, leave: str) -> None:
    """They drop all they inherited, whole members included, and exit in every way."""
    board = boards(2, [Ring(0, (1,), slots=4), Ring(1, (0,), slots=4)])
    child = board.start(
        """
        import atexit, gc, multiprocessing, resource
        import numpy as np

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        first = os.getpid()
        member = board.member(1)
        end, writer = reader(member, 0), member.writer(1, 0)
        held, frames = [], {}
        refused = multiprocessing.Value("i")  # in memory that all share
        sys.excepthook = lambda *_: None

        def use(call):
            try:
                call()
            except RuntimeError as error:
                with refused.get_lock():
                    refused.value += "forked" in str(error)

        @atexit.register
        def late():
            if os.getpid() != first:
                use(lambda: writer.write(BYTES, b"late"))
                gc.collect()

        def visit():
            use(end.read)
            use(lambda: end.collect(frames, 10**6))
            use(lambda: end.collect_pending(frames))
            use(lambda: writer.write(PICKLE, b"", [held[-1]]))
            use(lambda: member.submit(((writer, PICKLE, b"", [held[-1]]),), 1 << 40, {}, 1, None))
            array = held[-1]
            held.clear()
            gc.collect()
            array[0]  # what it still has it can read
            frames.clear()
            del array
            gc.collect()

        def wait():  # others use the graph while we fork
            try:
                while True:
                    member.wait_any([], None, 0)
            except _native.Poisoned:
                pass

        threading.Thread(target=wait, daemon=True).start()
        statuses = set()
        for i in range(60):
            end.collect(frames, i)
            (buffer,) = frames[i].decode()
            held.append(np.frombuffer(buffer, np.uint8))
            del buffer
            if i > 2:
                del frames[i - 3]
            if i > 5:
                held.pop(0)
            if i % 10 == 9:
                if not (pid := os.fork()):
                    visit()
                    if argv[0]:
                        del end, writer, member, board
                        gc.collect()
                    LEAVE
                statuses.add(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            writer.write(PICKLE, b"", [held[-1]])
        held.clear()
        frames.clear()
        print(*statuses, refused.value)
        """.replace("LEAVE", leave),
        leave == "os._exit(0)",
    )
    sender = board.member(0)
    writer, end = sender.writer(0, 0), reader(sender, 1)
    for i in range(60):
        writer.write(PICKLE, b"", [pattern(BLOCK, i)])
        (back,) = end.read(60_000_000_000)  # if the other side fails, so does this
        assert bytes(back) == pattern(BLOCK, i)
        del back
    status = {"os._exit(0)": 0, "sys.exit(0)": 0, "os.abort()": -6}.get(leave, 1)
    uses = 5 if status == -6 or leave == "os._exit(0)" else 6  # the last from its atexit
    assert finish(child) == f"{status} {6 * uses}\n"
    assert claimed(sender) == 0
    assert sender.statistics()["blocks"] < 12


def test_events_of_a_running_process_are_read_from_another(boards: Any) -> None:
    board = boards(rings=[Ring(0, (1,)), Ring(1, (0,))])
    child = board.start(
        """
        member = board.member(1, looping=True)
        end, writer = member.reader(0, 3, buffers_of, Failed), member.writer(1, 5)
        try:
            for execution in range(100):
                data = end.read()
                member.mark(4, execution)
                writer.write(BYTES, data)
        except _native.Poisoned:
            pass
        """
    )
    member = board.member(0)
    writer, end = member.writer(0, 0), reader(member, 1)
    start, found = 0, []
    for execution in range(10):
        writer.write(BYTES, bytes(100))
        end.read()
        start, lost, events = events_of(member, 1, start)
        assert lost == 0
        found += list(events)
        until_waiting(member, 1)
        pid, op, running, since_ns, _, ring, count = member.now(1)
        assert (pid, op, running, ring, count) == (
            child.pid,
            3,
            execution + 1,
            0,
            3 * execution + 3,
        )
        assert since_ns > 0
    found += list(events_of(member, 1, start)[2])
    assert [(each["op"], each["execution"], each["bytes"]) for each in found] == [
        event for i in range(10) for event in [(3, i, 100), (4, i, 0), (5, i, 100)]
    ]
    for before, after in itertools.pairwise(found):
        assert before["end_ns"] == after["start_ns"]  # one timestamp ends an op and begins the next
    for each in found:
        assert each["waited_ns"] <= each["end_ns"] - each["start_ns"]
        assert each["peer"] == (0 if each["waited_ns"] else NO_PEER)
    member.poison(CLOSED)
    finish(child)
    assert member.events(1, 0)[0] >= 30  # also after its owner died


def test_the_waiting_of_the_main_thread_adds_up_while_it_lasts(boards: Any) -> None:
    """It wakes to look for Ctrl-C, and what it waited so far is not lost then."""
    board = boards()
    child = board.start("reader(board.member(1)).read()")
    observer = board.member(0)
    until(lambda: observer.counters(1)[1])
    waits, waited_ns, _ = observer.counters(1)
    assert waits == 0
    assert waited_ns >= 90_000_000
    observer.writer(0, 0).write(BYTES, b"")
    finish(child)
    assert observer.counters(1)[0] == 1
