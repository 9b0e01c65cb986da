# SPDX-License-Identifier: Apache-2.0
"""Starting threads, the error when a process can start no more, locks, and work behind.

Where no thread can be started, Python raises a bare RuntimeError, and ``start_thread`` raises
``OutOfThreads``, whose text names the limits. Nothing may depend on a thread that has not started:
a caller counts it, and queues work for it, when it runs, or undoes that if it cannot start.

An exception may come between any two lines: Ctrl-C, a user's signal handler, a thread that is
cancelled. After ``lock.acquire()`` and before the ``try`` it would leave the lock locked for ever.
So rcg takes a lock by ``with lock:``, or within a time by ``with held(lock, timeout_s):``, and in
no other way. No generator yields in such a ``with``, because what enters a generator is Python. A
test looks for both.

Here and in ``descriptors`` a ``purpose`` says what a thread or descriptor is for, as "to do
something", and ``actor`` is the actor of this process, if any.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import threading
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain, count
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from rcg.errors import OutOfThreads
from rcg.log import Log

_T = TypeVar("_T")
_log = Log()


class LockTaken(TimeoutError):
    """A lock was not free in time."""


class held:  # noqa: N801 - used as a function is
    """Take a lock within a time: ``with held(lock, timeout_s): ...``.

    Python runs no signal handler between the methods that a ``with`` calls and its block, if these
    are in C, as a lock's own are. A method or a generator in Python would be interrupted. So both
    methods are made of C alone, and kept in slots, where ``with`` finds them.

    Args:
        lock: The lock.
        timeout_s: How long to wait; 0 does not wait, None sets no limit.
        otherwise: The text of the error.

    Raises:
        LockTaken: The lock was not free in time; the block does not run.
    """

    __slots__ = ("__enter__", "__exit__")

    if TYPE_CHECKING:

        def __enter__(self) -> object: ...
        def __exit__(self, *_: Any) -> None: ...

    def __init__(
        self, lock: threading.Lock, timeout_s: float | None, otherwise: str = "it is in use"
    ) -> None:
        longest_s = -1 if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX)
        taken = filter(None, map(lock.acquire, (True,), (longest_s,)))
        refused = map(_refuse, (otherwise,))  # if it is not taken
        self.__enter__ = chain(taken, refused).__next__  # type: ignore[method-assign]
        self.__exit__ = lock.__exit__  # type: ignore[method-assign]


def _refuse(text: str) -> NoReturn:
    raise LockTaken(text)


def start_thread(
    thread: threading.Thread, purpose: str, actor: str | None = None
) -> threading.Thread:
    """Start a thread and return it, or raise ``OutOfThreads``."""
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise out_of_threads(error, purpose, actor) from error
    return thread


def start_owner(
    run: Callable[[], object], close: Callable[[], object], name: str, purpose: str
) -> None:
    """Start a thread that owns descriptors from then on, and closes them at its end.

    Ctrl-C may come while this waits for the thread, which runs by then or is about to. Either the
    thread calls ``run``, which also closes the descriptors, or this calls ``close``, never both.

    Raises:
        OutOfThreads: It cannot be started.
    """
    claims = count()

    def run_if_first() -> None:
        if not next(claims):
            run()

    try:
        start_thread(threading.Thread(target=run_if_first, name=name, daemon=True), purpose)
    except BaseException:
        if not next(claims):
            close()
        raise


def out_of_threads(error: Exception, purpose: str, actor: str | None = None) -> OutOfThreads:
    """Return the error for a thread that cannot be started.

    Its cause is a RuntimeError or MemoryError of Python, or EAGAIN of native code.
    """
    who = f"process {os.getpid()}" if actor is None else f"{actor} (process {os.getpid()})"
    if "shutdown" in str(error):
        text = f"{who} starts no more threads {purpose}: its interpreter is ending"
        return OutOfThreads(text, pid=os.getpid(), actor=actor)
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    is_limited = limit != resource.RLIM_INFINITY
    return OutOfThreads(
        f"no more threads can be started in {who} {purpose}: the limit of its user (`ulimit -u`, "
        f"{limit if is_limited else 'unlimited'}), of its container or cgroup (pids.max), or of "
        "its memory is reached. Raise it, or end threads and processes",
        pid=os.getpid(),
        limit=limit if is_limited else None,
        actor=actor,
    )


def run_together(calls: Iterable[Callable[[], object]], name: str, most: int | None = None) -> None:
    """Run calls, which must not raise, on ``most`` threads at most; returns when all have ended.

    This thread is one of them. Where no more can be started, those that there are run the calls one
    after another.
    """
    left = deque(calls)

    def run() -> None:
        while left:
            try:
                call = left.popleft()
            except IndexError:  # another thread was faster
                return
            call()

    count = len(left) if most is None else min(len(left), most)
    threads: list[threading.Thread] = []
    with contextlib.suppress(OutOfThreads):
        for _ in range(count - 1):
            thread = threading.Thread(target=run, name=name, daemon=True)
            threads.append(start_thread(thread, "to do several things at once"))
    run()
    for thread in threads:
        thread.join()


async def to_thread(call: Callable[[], _T]) -> _T:
    """Return what a call returns on another thread; on this one if none can be started."""
    takers: deque[str] = deque()  # the first of them makes the call

    def run() -> Any:
        takers.append("thread")
        return call() if takers[0] == "thread" else None

    try:
        return await asyncio.to_thread(run)
    except (RuntimeError, MemoryError):
        takers.append("loop")
        if takers[0] == "thread":
            raise  # of the call
    return call()  # asyncio starts the thread later, which then finds nothing to do


def run_behind(call: Callable[[Callable[[str], object]], _T]) -> _T:
    """Run ``call`` on a thread of its own, wait for it, and return its result.

    Ctrl-C ends the wait alone; the call goes on, if it has begun. What it warns of is logged on
    this thread: if that is in a log handler, no other thread could log. The call is made on this
    thread if no other can be started, or if this is not the main one, to which no Ctrl-C comes.
    """
    results: list[_T] = []
    problems: list[BaseException] = []
    said: SimpleQueue[str | None] = SimpleQueue()

    def run() -> None:
        try:
            results.append(call(said.put))
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            problems.append(error)
        finally:
            said.put(None)

    is_main = threading.current_thread() is threading.main_thread()
    if not (is_main and start_behind(run)):
        return call(_log.warning)
    while (text := said.get()) is not None:
        _log.warning(text)
    if problems:
        raise problems.pop()
    return results.pop()


def start_behind(call: Callable[[], object]) -> bool:
    """Have another thread clean up; returns False if none can be started."""
    try:
        thread = threading.Thread(target=call, name="rcg-teardown", daemon=True)
        start_thread(thread, "to tear a compiled graph down")
    except OutOfThreads:
        return False
    return True
