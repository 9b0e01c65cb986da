# SPDX-License-Identifier: Apache-2.0
"""One output of a graph at the driver: frames in order, results in any order, from any thread.

Whoever needs a result becomes the *pump* of its outlet, one thread at a time: it takes frames off
the ring until its own arrives and keeps the others, undecoded, for whom they belong to. The next
frame being the wanted one is the fast path: it is decoded straight from shared memory.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Final, Protocol

from rcg import _native
from rcg.channels.shm import Failure, Reader, timeout_ns
from rcg.options import Deadline
from rcg.runtime.failure import to_exception

__all__ = ["DECODING", "FAILED", "PENDING", "READY", "Outlet", "Result"]

PENDING: Final = 0
DECODING: Final = 1  # one thread has the frame in hand
READY: Final = 2
FAILED: Final = 3


class Result(Protocol):
    """What an outlet fills: ``state`` last."""

    execution: int
    state: int
    value: Any


class Outlet:
    """The driver's end of one output channel.

    Args:
        channel: Its id in the plan.
        reader: The reading end.
        on_awaited: Called when frames arrived that asyncio waits for; must not block.
    """

    __slots__ = (
        "_changed", "_frames", "_lock", "_waiting", "awaited", "channel", "dropped", "is_pumped",
        "on_awaited", "reader",
    )

    def __init__(self, channel: str, reader: Reader, on_awaited: Any) -> None:
        self.channel = channel
        self.reader = reader
        self.on_awaited = on_awaited
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._frames: dict[int, _native.Frame] = {}
        self.is_pumped = False
        # Executions whose ref was dropped unread. A deque, because refs die anywhere, also inside
        # our own locks: appending needs none.
        self.dropped: deque[int] = deque()
        self.awaited: set[int] = set()

    @property
    def arrived(self) -> int:
        """How many frames were taken off the ring."""
        return self.reader.seq

    @property
    def buffered(self) -> int:
        """How many frames wait here for their refs."""
        return len(self._frames)

    def has(self, execution: int) -> bool:
        """Return whether the result can be had without waiting."""
        reader = self.reader
        seq = reader.seq
        return execution < seq or execution < seq + reader.pending()

    def fetch(self, result: Result, timeout_s: float | None) -> bool:
        """Wait for one result and fill it; READY or FAILED afterwards.

        Returns:
            Whether this call filled it, and not another thread's.

        Raises:
            _native.TimedOut: The time was up; the result can be fetched later.
            _native.Poisoned: The graph ended before the result came.
        """
        execution = result.execution
        deadline = None
        frame = None
        with self._lock:
            while True:
                state = result.state
                if state >= READY:
                    return False
                if state == PENDING:
                    if self._frames and (frame := self._frames.pop(execution, None)) is not None:
                        result.state = DECODING
                        break
                    if not self.is_pumped:
                        self.is_pumped = True
                        break
                if deadline is None:
                    deadline = Deadline(timeout_s)
                self._wait(deadline)
        if frame is not None:
            self._finish(result, frame.decode())
            return True
        reader = self.reader
        try:
            if reader.seq == execution:
                value = reader.read(-1 if timeout_s is None else timeout_ns(timeout_s))
            else:
                if deadline is None:
                    deadline = Deadline(timeout_s)
                self._take_until(execution, deadline)
                value = reader.read(timeout_ns(deadline.remaining_s()))
        except BaseException:
            self.release_pump()
            raise
        if type(value) is Failure:
            result.value = to_exception(value)
            result.state = FAILED
        else:
            result.value = value
            result.state = READY
        self.release_pump()
        return True

    def _finish(self, result: Result, value: Any) -> None:
        if type(value) is Failure:
            result.value = to_exception(value)
            result.state = FAILED
        else:
            result.value = value
            result.state = READY
        with self._lock:
            if self._waiting:
                self._changed.notify_all()

    def _wait(self, deadline: Deadline) -> None:
        """Wait for another thread's news; the lock is held."""
        self._waiting += 1
        try:
            if not self._changed.wait(deadline.remaining_s()) and deadline.expired:
                raise _native.TimedOut
        finally:
            self._waiting -= 1

    # --- pumping: for the one thread that set is_pumped

    def try_pump(self) -> bool:
        """Become the pump, if nobody is."""
        with self._lock:
            if self.is_pumped:
                return False
            self.is_pumped = True
            return True

    def release_pump(self) -> None:
        """Stop being the pump; whoever waits looks again."""
        with self._lock:
            self.is_pumped = False
            if self._waiting:
                self._changed.notify_all()
            is_awaited = bool(self.awaited)
        if is_awaited:
            self.on_awaited()

    def take_pending(self) -> int:
        """Take what lies on the ring, without waiting; returns how many frames."""
        count: int = self.reader.pending()
        for _ in range(count):
            self._take_one(0)
        return count

    def _take_until(self, execution: int, deadline: Deadline) -> None:
        while self.reader.seq < execution:
            self._take_one(timeout_ns(deadline.remaining_s()))

    def _take_one(self, timeout: int) -> None:
        execution = self.reader.seq
        frame = self.reader.take(timeout)
        with self._lock:
            self._frames[execution] = frame
            if self._waiting:
                self._changed.notify_all()
        self.discard_dropped()

    def discard_dropped(self) -> None:
        """Let go of frames whose refs are gone."""
        for _ in range(len(self.dropped)):
            try:
                execution = self.dropped.popleft()
            except IndexError:
                return
            if execution >= self.reader.seq:
                self.dropped.append(execution)  # still to come
            else:
                self._frames.pop(execution, None)

    def advance_to(self, count: int, deadline: Deadline) -> None:
        """Wait until ``count`` frames have arrived, keeping them.

        Raises:
            _native.TimedOut, _native.Poisoned: As in ``fetch``.
        """
        while self.reader.seq < count:
            if self.try_pump():
                try:
                    self._take_until(count, deadline)
                    self.take_pending()
                finally:
                    self.release_pump()
            else:
                with self._lock:
                    if self.is_pumped and self.reader.seq < count:
                        self._wait(deadline)
