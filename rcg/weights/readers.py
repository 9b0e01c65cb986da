# SPDX-License-Identifier: Apache-2.0
"""Several may read the tensors of a subscriber at a time, or one may change them.

A change that waits goes first: no other thread begins to read before it, and no coroutine that
waits for its turn (``async with``). A coroutine that does not (``with``) waits only for a change
that is being made. If it waited longer, so would its loop, and what would end the wait. Where the
loop's own thread wants to change the tensors (``change_async``), a reader that enters there while
nobody reads lets it go first.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from rcg.options import Deadline

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
        call: What makes it.
        thread: Which thread another call of may make it; 0 for none.
        is_over: Whether it was made, or is not wanted any more.
        result: What ``call`` returned.
    """

    call: Callable[[], Any]
    thread: int = 0
    is_over: bool = False
    result: Any = None


class Frozen:
    """A context in which nobody changes the tensors: for ``with``, or ``async with``, once."""

    def __init__(self, readers: Readers) -> None:
        self._with, self._async_with = readers.reading(), readers.reading_async()

    def __enter__(self) -> None:
        self._with.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._with.__exit__(*error)

    async def __aenter__(self) -> None:
        await self._async_with.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        await self._async_with.__aexit__(*error)


class Readers:
    """Keeps those who read apart from the one who changes. Any thread."""

    def __init__(self) -> None:
        self._news = threading.Condition()  # of what follows; held for a moment only
        self._sleeping: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}  # wait for news
        self._inside: dict[object, _Who] = {}
        self._waiting: dict[_Change, None] = {}  # also the one that is being made
        self._changing: _Change | None = None

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Let nobody change the tensors meanwhile."""
        who, entry = _Who.is_here(), object()
        try:
            for change in [*self._waiting]:
                if change.thread == who.thread:
                    with contextlib.suppress(Exception):  # who waits for it has the error
                        self._try(change)
            waits_for_all = who.task is None
            with self._news:
                self._news.wait_for(lambda: self._enter(entry, who, waits_for_all=waits_for_all))
            yield
        finally:
            self._leave(entry)

    @contextlib.asynccontextmanager
    async def reading_async(self) -> AsyncIterator[None]:
        """Let nobody change the tensors meanwhile; the loop goes on until it is this one's turn."""
        who, entry = _Who.is_here(), object()
        try:
            enter = functools.partial(self._enter, entry, who, waits_for_all=True)
            await self._sleep_until(enter, Deadline(None))
            yield
        finally:
            self._leave(entry)

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
        self.check_outside()
        with self._wanting(_Change(call), deadline, what) as change:
            while not self._try(change) and not deadline.expired:
                with self._news:
                    self._news.wait_for(self._is_free, deadline.remaining_s())
        found: _T = change.result
        return found

    async def change_async(self, call: Callable[[], object], deadline: Deadline, what: str) -> None:
        """Make a change on this thread, whose loop goes on meanwhile; as ``change``."""
        self.check_outside(waits=False)
        with self._wanting(_Change(call, threading.get_ident()), deadline, what) as change:
            await self._sleep_until(lambda: self._try(change), deadline)

    def _is_free(self) -> bool:
        return not self._inside and self._changing is None

    def _enter(self, entry: object, who: _Who, *, waits_for_all: bool) -> bool:
        """Read, if it is this one's turn; returns whether it is.

        Args:
            entry: What stands for this reading.
            who: Who reads.
            waits_for_all: Whether for all changes, not only for the one that is being made.
        """
        with self._news:
            if waits_for_all and self._waiting and who not in self._inside.values():
                return False
            if self._changing is not None:
                return False
            self._inside[entry] = who
            return True

    def _leave(self, entry: object) -> None:
        with self._news:
            self._inside.pop(entry, None)
            self._tell()

    def _try(self, change: _Change) -> bool:
        """Make a change if it is wanted and nobody reads or changes; returns whether it is over."""
        try:
            with self._news:
                if change.is_over or not self._is_free():
                    return change.is_over
                self._changing = change
            change.result = change.call()
            change.is_over = True
        finally:
            with self._news:
                if self._changing is change:
                    self._changing = None
                    self._tell()
        return True

    @contextlib.contextmanager
    def _wanting(self, change: _Change, deadline: Deadline, what: str) -> Iterator[_Change]:
        """Let nobody begin to read in a ``with`` that makes a change, or raise TimeoutError."""
        try:
            with self._news:
                self._waiting[change] = None
            yield change
            if not change.is_over:
                waited = f"waited {deadline.timeout_s:g} s"
                raise TimeoutError(f"{what}, but its tensors are read: {waited}")
        finally:
            with self._news:
                self._waiting.pop(change, None)
                change.is_over = True
                self._tell()

    def _tell(self) -> None:
        """Wake up all who wait; the caller holds the lock."""
        self._news.notify_all()
        for woken, loop in [*self._sleeping.items()]:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(woken.set)

    async def _sleep_until(self, is_so: Callable[[], bool], deadline: Deadline) -> None:
        """Wait until something is so, or the deadline is over, while the loop goes on."""
        woken = asyncio.Event()
        try:
            self._sleeping[woken] = asyncio.get_running_loop()
            while not is_so() and not deadline.expired:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), deadline.remaining_s())
                woken.clear()
        finally:
            self._sleeping.pop(woken, None)
