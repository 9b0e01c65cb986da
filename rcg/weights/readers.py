# SPDX-License-Identifier: Apache-2.0
"""Several may read the tensors of a subscriber at a time, or one may change them.

A thread that waits to change them goes first: no other thread begins to read before it. But a
coroutine never waits for that, or its loop, and what would end the wait with it, stood still. Where
the loop's own thread wants to change them (``change_async``), a reader that enters there while
nobody reads lets it go first.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from rcg.options import Deadline
from rcg.threads import to_thread

_T = TypeVar("_T")


class _Who(NamedTuple):
    """Who reads: a thread, or a coroutine of its loop."""

    thread: int
    task: object = None

    @classmethod
    def is_here(cls) -> _Who:
        with contextlib.suppress(RuntimeError):  # no loop runs in this thread
            return cls(threading.get_ident(), asyncio.current_task() or asyncio.get_running_loop())
        return cls(threading.get_ident())


@dataclass(eq=False, slots=True)
class _Change:
    """A change that waits.

    Attributes:
        call: What makes it, if another call of this thread may.
        thread: Which thread that is; 0 for none.
        is_over: Whether it was made, or is not wanted any more.
    """

    call: Callable[[], object] = bool
    thread: int = 0
    is_over: bool = False


class Readers:
    """Keeps those who read apart from the one who changes. Any thread."""

    def __init__(self) -> None:
        self._free = threading.Condition()  # its lock is held by a change
        self._inside: dict[object, _Who] = {}
        self._waiting: dict[_Change, None] = {}

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Let nobody change the tensors meanwhile."""
        who, entry = _Who.is_here(), object()
        try:
            with self._free:
                for change in [*self._waiting]:
                    if change.thread == who.thread and not self._inside and not change.is_over:
                        with contextlib.suppress(Exception):  # who waits for it has the error
                            change.call()
                            change.is_over = True
                if who.task is None and who not in self._inside.values():
                    self._free.wait_for(lambda: not self._waiting)
                self._inside[entry] = who
            yield
        finally:
            with self._free:
                self._inside.pop(entry, None)
                self._free.notify_all()

    def check_outside(self, *, waits: bool = True) -> None:
        """Raise RuntimeError if this thread reads, and would wait for itself.

        Args:
            waits: Whether the whole thread would wait; if not, this coroutine.
        """
        who = _Who.is_here()
        inside = [*self._inside.values()]
        if who in inside or (waits and who.thread in [each.thread for each in inside]):
            raise RuntimeError(
                "the tensors cannot be changed inside of `with subscriber.frozen()` of the same "
                "thread: leave it before"
            )

    def change(self, call: Callable[[], _T], deadline: Deadline, what: str) -> _T:
        """Make a change when nobody reads, and let nobody begin until it is made.

        Args:
            call: Makes it; its result is returned.
            deadline: Until when to wait for those who read.
            what: The beginning of the error's text.

        Raises:
            RuntimeError: This thread reads.
            TimeoutError: Somebody reads all the time.
        """
        with self._wanting(_Change()) as change, self._free:
            self.check_outside()
            self._wait(change, deadline, what)
            return call()

    async def change_async(self, call: Callable[[], object], deadline: Deadline, what: str) -> None:
        """Make a change on this thread, whose loop goes on meanwhile; as ``change``."""

        def wait() -> None:
            with self._free:
                self._wait(change, deadline, what)

        self.check_outside(waits=False)
        with self._wanting(_Change(call, threading.get_ident())) as change:
            while not change.is_over:
                with self._free:
                    if not self._inside:
                        call()
                        return
                await to_thread(wait)

    @contextlib.contextmanager
    def _wanting(self, change: _Change) -> Iterator[_Change]:
        try:
            with self._free:
                self._waiting[change] = None
            yield change
        finally:
            with self._free:
                self._waiting.pop(change, None)
                change.is_over = True
                self._free.notify_all()

    def _wait(self, change: _Change, deadline: Deadline, what: str) -> None:
        """Wait until nobody reads, or the change is over; the caller holds the lock."""
        left_s = deadline.remaining_s()
        if not self._free.wait_for(lambda: change.is_over or not self._inside, left_s):
            raise TimeoutError(f"{what}, but its tensors are read: waited {deadline.timeout_s:g} s")
