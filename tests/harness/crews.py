# SPDX-License-Identifier: Apache-2.0
"""Crews: the ranks of a group of communicators, as threads or as processes, for one suite.

A member runs functions, each on a thread of its own, with a state that they share. Functions for
processes are found by their names in ``tests.harness.communicators``. Run as a program, this is a
member.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.harness.peers import GUARD_S, until

ROOT = Path(__file__).parents[2]


def started(call: Callable[[], Any], name: str) -> Future[Any]:
    """Call on a thread of this name; its kernel id is ``tid`` of the future."""
    future: Future[Any] = Future()
    ready = threading.Event()

    def run() -> None:
        future.tid = threading.get_native_id()  # type: ignore[attr-defined]
        ready.set()
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - the test has it
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    ready.wait(GUARD_S)
    return future


def is_asleep(pid: int, tid: int) -> bool:
    """Whether a thread sleeps in the kernel."""
    try:
        text = Path(f"/proc/{pid}/task/{tid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] == "S"


class ThreadMember:
    """A member that is threads of this process."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self.pid = os.getpid()

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        return started(lambda: function(self.state, *args), "member")

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.submit(function, *args).result(GUARD_S)

    def wait_until_pending(self, future: Future[Any]) -> None:
        until_asleep(self.pid, future.tid, future)  # type: ignore[attr-defined]

    def close(self) -> None:
        pass


def until_asleep(pid: int, tid: int, future: Future[Any]) -> None:
    """Wait until a thread has slept for a while, as one does in a pending operation."""
    seen = itertools.count(1)
    asleep = 0

    def sleeps() -> bool:
        nonlocal asleep
        next(seen)
        asleep = asleep + 1 if is_asleep(pid, tid) else 0
        return asleep >= 50 or future.done()

    until(sleeps)


class ProcessMember:
    """A member that is a process, with these variables of its own."""

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        ours, theirs = multiprocessing.Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.crews", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
                **(variables or {}),
            },
        )
        theirs.close()
        self.pid = self._process.pid
        self._pipe: Connection = ours
        self._futures: dict[int, Future[Any]] = {}
        self._numbers = itertools.count()
        threading.Thread(target=self._listen, daemon=True).start()

    def submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        number = next(self._numbers)
        self._futures[number] = Future()
        self._pipe.send((number, function.__name__, args))
        return self._futures[number]

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.submit(function, *args).result(GUARD_S)

    def wait_until_pending(self, future: Future[Any]) -> None:
        until(lambda: hasattr(future, "tid") or future.done())
        if not future.done():
            until_asleep(self.pid, future.tid, future)  # type: ignore[attr-defined]

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """End it by SIGKILL; returns when it is gone."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(GUARD_S)

    def close(self) -> None:
        if self.is_alive:
            self.kill()
        self._pipe.close()

    def _listen(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                number, kind, value = self._pipe.recv()
                future = self._futures[number]
                if kind == "tid":
                    future.tid = value  # type: ignore[attr-defined]
                elif kind == "result":
                    future.set_result(value)
                else:
                    future.set_exception(value)
        for future in self._futures.values():
            if not future.done():
                future.set_exception(ChildProcessError(f"member {self.pid} has ended"))


def serve(pipe: Connection) -> None:
    """Be a member: run what the pipe asks for until it ends."""
    from tests.harness import communicators

    state: dict[str, Any] = {}
    lock = threading.Lock()

    def run(number: int, name: str, args: tuple[Any, ...]) -> None:
        def tell(kind: str, value: object) -> None:
            with lock, contextlib.suppress(OSError):
                pipe.send((number, kind, value))

        tell("tid", threading.get_native_id())
        try:
            found = getattr(communicators, name)(state, *args)
        except BaseException as error:  # noqa: BLE001 - the test has it
            tell("error", error)
        else:
            tell("result", found)

    with contextlib.suppress(EOFError):
        while True:
            threading.Thread(target=run, args=pipe.recv(), daemon=True).start()
    os._exit(0)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
