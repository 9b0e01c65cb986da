# SPDX-License-Identifier: Apache-2.0
"""Waiting for a change by another thread, without a lock that users' code could run under.

A condition variable is locked while its waiters check their condition, so a signal handler or a
``__del__`` may run under that lock. Here each waiter sleeps on a lock of its own, which no other
waiter takes: the change is stored in single steps, and then every waiter checks again.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any, Final

from rcg.options import Deadline

_RELEASE: Final[Callable[[Any], None]] = _thread.LockType.release


class Sleepers:
    """The threads that wait for one kind of change."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: deque[Any] = deque()

    def wait(self, condition: Callable[[], object], timeout_s: float | None) -> bool:
        """Wait until ``condition`` holds; returns whether it does. Any thread, Ctrl-C anywhere."""
        deadline = Deadline(timeout_s)
        while not condition():
            left = deadline.remaining_s()
            if left == 0:
                return False
            waiter = _thread.allocate_lock()
            waiter.acquire()
            self._waiters.append(waiter)
            try:
                if condition():
                    return True
                waiter.acquire(True, -1 if left is None else min(left, threading.TIMEOUT_MAX))
            finally:
                with contextlib.suppress(ValueError):
                    self._waiters.remove(waiter)
        return True

    def wake(self) -> None:
        """Wake all waiters, so that they check again; call it after storing the change."""
        waiters = self._waiters
        with contextlib.suppress(IndexError):  # another thread wakes them, too
            # Taken out and woken within one call into C, where no signal handler of Python runs.
            any(map(_RELEASE, map(deque.popleft, repeat(waiters, len(waiters)))))


def take_all(queue: deque[Any] | None) -> Iterator[Any]:
    """Remove and yield the present items of a queue; several threads may do so at the same time."""
    for _ in range(len(queue or ())):
        try:
            yield queue.popleft()  # type: ignore[union-attr]
        except IndexError:
            return


def set_done(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    """Complete a future of an event loop, if it is not done; any thread."""
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(_set_done, future)


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
