# SPDX-License-Identifier: Apache-2.0
"""Bad peers and bad days of the control socket, for tests of every layer.

Messages that are almost right, with descriptors; and a process that has no descriptor left.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import json
import os
import random
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rcg.errors import OutOfDescriptors
from rcg.options import Deadline
from rcg.wire import proof, sockets
from rcg.wire.messages import Challenge, Opening, Prove

GUARD_S = 60


def descriptors() -> int:
    """How many this process has open."""
    return len(os.listdir("/proc/self/fd"))


def until(condition: Callable[[], object]) -> None:
    """Wait for what another thread is about to do."""
    deadline = Deadline(GUARD_S)
    while not condition():
        assert not deadline.expired, "it does not happen"
        time.sleep(0.001)


def suspend(pid: int) -> None:
    """Send SIGSTOP to a process, and wait until every thread of it has obeyed."""

    def state(stat: Path) -> str:
        return stat.read_text().rpartition(")")[2].split()[0]

    os.kill(pid, signal.SIGSTOP)
    until(lambda: all(state(stat) == "T" for stat in Path(f"/proc/{pid}/task").glob("*/stat")))


def rights(*fds: int) -> list[tuple[int, int, bytes]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())]


def is_over(connection: socket.socket) -> bool:
    """Whether the peer ended a connection, maybe after having said something."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def challenge_of(connection: sockets.Connection) -> Challenge:
    """What a listener says first."""
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
    return sockets.packed(dataclasses.replace(sent, proof=mac), body)


def admit(connection: sockets.Connection, secret: str) -> None:
    """Challenge whoever connects, and prove to know the secret, too, as a listener does."""
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


def mutants(good: dict[str, Any], seed: int, count: int) -> Iterator[bytes]:
    """Messages that are almost like a good one: wrong fields, wrong JSON, cut, damaged, deep."""
    rng = random.Random(seed)
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


def told(error: OutOfDescriptors) -> bool:
    """Whether an error says what there is to say."""
    text = str(error)
    return (
        "no file descriptor left" in text
        and f"RLIMIT_NOFILE) is {error.limit}" in text
        and "ulimit -n" in text
        and str(error.pid) in text
    )
