# SPDX-License-Identifier: Apache-2.0
"""Threads that wait for another thread's news, without a lock that a user's thread holds.

A condition variable is held while its waiters look, and whatever runs there (a signal handler,
``__del__``) runs under it. Here each waiter sleeps on a lock of its own, which nobody else takes:
news is stored in single steps, and then every waiter looks again.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from rcg.options import Deadline

__all__ = ["Sleepers", "emptied", "set_done"]


class Sleepers:
    """The threads that wait for news of one kind."""

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
        """Have everybody look again. To be called after the news is stored; any thread."""
        for waiter in emptied(self._waiters):
            waiter.release()


def emptied(queue: deque[Any] | None) -> Iterator[Any]:
    """Yield what is in a queue at this moment, taking it out; others may do so at the same time."""
    for _ in range(len(queue or ())):
        try:
            yield queue.popleft()  # type: ignore[union-attr]
        except IndexError:
            return


def set_done(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    """Have who awaits a future of this loop go on; any thread."""
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(_set_done, future)


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
