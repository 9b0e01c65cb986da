# SPDX-License-Identifier: Apache-2.0
"""Bad peers and bad days of the control socket, for tests of every layer.

Messages that are almost right, with descriptors; a process that has no descriptor left; and Ctrl-C
at every possible place.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import dis
import gc
import itertools
import json
import math
import os
import random
import resource
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from rcg.errors import OutOfDescriptors, OutOfThreads
from rcg.options import Deadline
from rcg.wire import proof, sockets
from rcg.wire.messages import Challenge, Opening, Prove

GUARD_S = 60


def descriptors() -> set[tuple[str, str]]:
    """What this process has open, by number and what it is.

    Not how many: what an earlier test had may go meanwhile.
    """
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since, as the list's own is
            found.add((fd, os.readlink(f"/proc/self/fd/{fd}")))
    return found


def until(condition: Callable[[], object]) -> None:
    """Wait until another thread has made it true."""
    deadline = Deadline(GUARD_S)
    while not condition():
        assert not deadline.expired, "it does not happen"
        time.sleep(0.001)


@contextlib.contextmanager
def noted(text: str) -> Iterator[None]:
    """Note the place on an error of the block."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case: {text}")
        raise


def suspend(pid: int) -> None:
    """Send SIGSTOP to a process, and wait until every thread of it has obeyed."""

    def state(stat: Path) -> str:
        return stat.read_text().rpartition(")")[2].split()[0]

    os.kill(pid, signal.SIGSTOP)
    until(lambda: all(state(stat) == "T" for stat in Path(f"/proc/{pid}/task").glob("*/stat")))


def rights(*fds: int) -> list[tuple[int, int, bytes]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())]


def is_over(connection: socket.socket) -> bool:
    """Whether the peer ended a connection, perhaps after a message."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def challenge_of(connection: sockets.Connection) -> Challenge:
    """The first message of a listener."""
    with sockets.receive(connection) as received:
        assert isinstance(received.message, Challenge)
        return received.message


def enter(connection: sockets.Connection, opening: Opening) -> None:
    """Open a connection with a first message, whose secret is the right one."""
    asked = challenge_of(connection)
    sent, body = proof.prove(opening, asked)
    sockets.send(connection, sent, body=body)
    with sockets.receive(connection) as received:
        assert proof.is_answer(received.message, sent, body, opening.secret, asked)


def proven(asked: Challenge, opening: Opening, body: bytes) -> bytes:
    """Any bytes in place of a first message, with a proof that is right."""
    sent, _ = proof.prove(opening, asked)
    mac = proof._mac(proof._OPENS, asked, sent, body, opening.secret)
    return sockets.pack_message(dataclasses.replace(sent, proof=mac), body)


def admit(connection: sockets.Connection, secret: str) -> None:
    """Challenge a peer that connects, and prove to know the secret, as a listener does."""
    asked = proof.challenge()
    sockets.send(connection, asked)
    with sockets.receive(connection) as received:
        assert isinstance(received.message, Prove)
        assert proof.is_proof(received.message, received.body, secret, asked)
        answer = proof.answer(received.message, received.body, secret, asked)
    sockets.send(connection, answer)


NUMBERS = (-1, -(1 << 70), 1 << 70, 10**4000, 1.5, True, None, "7", [], {}, float("inf"))
TEXTS = ("", "\0", "\ud800", "x" * 40_000, None, 7, [], {}, [[[]]], True)


DEEP_THAT_FITS = 60_000


def mutants(good: dict[str, Any], rng: random.Random, count: int) -> Iterator[bytes]:
    """Messages that are almost like a good one: wrong fields, wrong JSON, cut, damaged, deep."""
    whole = json.dumps(good).encode() + b"\0"
    yield from (
        b"{}\0",
        b"[]\0",
        b"null\0",
        b"\0",
        b"\xff\xfe\0\0",
        b"[" * DEEP_THAT_FITS + b"\0",
        b'{"type":' + b"[" * 900 + b"]" * 900 + b"}\0",
        b'{"type":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}\0",
        b'{"type": ' + b"9" * 5000 + b"}\0",
        b'{"type": "\\ud800"}\0',
        b'{"type": NaN}\0',
        whole.replace(b"\0", b""),
        whole + b"x" * 100,
    )
    fields = list(good)
    for _ in range(count):
        match rng.randrange(5):
            case 0:
                name = rng.choice(fields)
                wrong = {**good, name: rng.choice(NUMBERS + TEXTS)}
                yield json.dumps(wrong).encode() + b"\0"
            case 1:
                name = rng.choice(fields)
                less = {key: value for key, value in good.items() if key != name}
                yield json.dumps(less).encode() + b"\0"
            case 2:
                yield whole[: rng.randrange(1, len(whole))]
            case 3:
                damaged = bytearray(whole)
                for _ in range(rng.randrange(1, 6)):
                    damaged[rng.randrange(len(damaged))] = rng.randrange(256)
                yield bytes(damaged)
            case 4:
                name = rng.choice(fields)
                deep: Any = rng.choice(NUMBERS + TEXTS)
                for _ in range(rng.choice((1, 10, 900))):
                    deep = [deep]
                yield json.dumps({**good, name: deep}).encode() + b"\0"


def with_descriptors(connection: socket.socket, data: bytes, fds: list[int]) -> None:
    with contextlib.suppress(ConnectionError):
        connection.sendmsg([data], rights(*fds) if fds else [])


@contextlib.contextmanager
def none_left(spare: int = 0) -> Iterator[None]:
    """This process can open ``spare`` descriptors and no more."""
    gc.collect()  # what is garbage would give some back meanwhile
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd"))) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8 + spare, hard))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        for _ in range(spare):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


@contextlib.contextmanager
def no_threads(after: int = 0, times: float = math.inf, kind: str = "") -> Iterator[list[str]]:
    """Have rcg and asyncio start no threads; yields the names of those that they tried to start.

    Args:
        after: How many can be started before.
        times: How many cannot.
        kind: Which are meant: this stands in their names.
    """
    start = threading.Thread.start
    names: list[str] = []
    turns = itertools.count()

    def failing(self: threading.Thread) -> None:
        is_users = not self.name.startswith(("rcg", "asyncio")) and type(self) is threading.Thread
        if is_users or kind not in self.name or not after <= next(turns) < after + times:
            return start(self)
        names.append(self.name)
        raise RuntimeError("can't start new thread")

    threading.Thread.start = failing  # type: ignore[method-assign]
    try:
        yield names
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]


def says_what_is_lacking(error: OutOfDescriptors | OutOfThreads) -> bool:
    """Whether an error names the process, what it lacks and the limits."""
    text = str(error)
    if isinstance(error, OutOfThreads):
        limits = "`ulimit -u`" in text and "pids.max" in text
        return "no more threads can be started" in text and limits and str(error.pid) in text
    return (
        "no file descriptor left" in text
        and f"RLIMIT_NOFILE) is {error.limit}" in text
        and "ulimit -n" in text
        and str(error.pid) in text
    )


# After these instructions, and at the start of a function, the interpreter looks for signals.
_LOOKS_AFTER = ("CALL", "JUMP_BACKWARD", "POP_JUMP_BACKWARD")


def ctrl_c_anywhere(call: Callable[[], object], *names: str) -> Iterator[int]:
    """Call again and again, with Ctrl-C at the next place each time, until it comes to its end.

    Only at places where a signal handler may run: after each call, and at each start of a function.
    Python swallows what is raised in ``__del__``, so Ctrl-C comes nowhere below that.

    Args:
        call: Whatever it returns is dropped.
        *names: Where Ctrl-C comes: packages, modules, classes and functions, each of which must
            run. What others do is one step.

    Yields:
        The number of the place, after each call.
    """
    gc.disable()  # an object in a cycle of references counts as left
    try:
        for at in itertools.count():
            interrupt = _CtrlC(at, names)
            with warnings.catch_warnings():
                # A socket whose owner is gone is closed by the interpreter, which warns of it.
                warnings.simplefilter("ignore", ResourceWarning)
                sys.settrace(interrupt)
                try:
                    call()
                except KeyboardInterrupt:
                    pass
                finally:
                    sys.settrace(None)
            yield at
            if not interrupt.has_come:
                assert interrupt.seen == set(names)
                return
    finally:
        gc.enable()
        gc.collect()  # now, and not in the middle of the next test


class _CtrlC:
    """A tracer that raises KeyboardInterrupt at the n-th place where it may come."""

    def __init__(self, at: int, names: tuple[str, ...]) -> None:
        self._left = at
        self._names = names
        self.seen: set[str] = set()  # of these names
        self.has_come = False

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        name = f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}."
        found = [each for each in self._names if name.startswith(f"{each}.")]
        if self.has_come or not found or _is_dying(frame):
            return None
        self.seen.update(found)
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        looks = True  # it has just started

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal looks
            if event == "opcode":
                name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
                # What a tracer raises at a return is no longer in the ``try`` around the call.
                if looks and not self.has_come and name != "RETURN_VALUE":
                    if not self._left:
                        self.has_come = True
                        raise KeyboardInterrupt
                    self._left -= 1
                looks = name.startswith(_LOOKS_AFTER)
            elif event == "exception":
                looks = False  # the handler comes first
            return trace

        return trace


def _is_dying(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False
