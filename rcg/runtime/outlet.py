# SPDX-License-Identifier: Apache-2.0
"""One output of a graph at the driver: frames in order, results in any order, from any thread.

Whoever needs a result becomes the *pump* of its outlet, one thread at a time: it takes frames off
the ring until its own arrives and keeps the others, undecoded, for whom they belong to. The next
frame being the wanted one is the fast path: it is decoded straight from shared memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
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
        "_changed",
        "_frames",
        "_lock",
        "_pump",
        "_waiting",
        "awaited",
        "channel",
        "dropped",
        "end",
        "on_awaited",
        "take",
    )

    def __init__(self, channel: str, reader: Reader, on_awaited: Callable[[], None]) -> None:
        self.channel = channel
        self.end = reader.end
        self.take = reader.take
        self.on_awaited = on_awaited
        self._pump = threading.Lock()  # held by the thread that takes frames off the ring
        self._lock = threading.Lock()  # for what follows
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._frames: dict[int, _native.Frame] = {}
        # Executions whose ref was dropped unread. A deque, because refs die anywhere, also inside
        # our own locks: appending needs none.
        self.dropped: deque[int] = deque()
        self.awaited: set[int] = set()

    @property
    def arrived(self) -> int:
        """How many frames were taken off the ring."""
        return self.end.seq

    @property
    def buffered(self) -> int:
        """How many frames wait here for their refs."""
        return len(self._frames)

    def has(self, execution: int) -> bool:
        """Return whether the result can be had without waiting."""
        end = self.end
        seq = end.seq
        return execution < seq or execution < seq + end.pending()

    def fetch(self, result: Result, timeout_s: float | None) -> bool:
        """Wait for one result and fill it; READY or FAILED afterwards.

        Returns:
            Whether this call filled it, and not another thread's.

        Raises:
            _native.TimedOut: The time was up; the result can be fetched later.
            _native.Poisoned: The graph ended before the result came.
        """
        end = self.end
        if not self._pump.acquire(False):
            return self._fetch_beside_others(result, Deadline(timeout_s))
        if end.seq != result.execution:
            self.release_pump()
            return self._fetch_beside_others(result, Deadline(timeout_s))
        try:
            value = end.read(-1 if timeout_s is None else timeout_ns(timeout_s))
            if type(value) is Failure:
                result.value = to_exception(value)
                result.state = FAILED
            else:
                result.value = value
                result.state = READY
        except BaseException as error:
            if end.seq <= result.execution:
                raise  # nothing was taken
            _fail(result, error)  # what unpickling raised is this result
        finally:
            self._pump.release()
            if self._waiting or self.awaited:
                self._tell()
        return True

    def _fetch_beside_others(self, result: Result, deadline: Deadline) -> bool:
        """``fetch`` when other threads are about, or when results come out of order."""
        execution = result.execution
        frame = None
        with self._lock:
            self._waiting += 1  # before the pump is tried, so that who releases it tells us
            try:
                while True:
                    if result.state >= READY:
                        return False
                    if result.state == PENDING:
                        frame = self._frames.pop(execution, None)
                        if frame is not None:
                            result.state = DECODING
                            break
                        if self._pump.acquire(False):
                            break
                    if not self._changed.wait(deadline.remaining_s()) and deadline.expired:
                        raise _native.TimedOut
            finally:
                self._waiting -= 1
        if frame is None:
            try:
                self._take_until(execution, deadline)
                frame = self.take(timeout_ns(deadline.remaining_s()))
                result.state = DECODING
            finally:
                self.release_pump()
        try:
            value = frame.decode()
            if type(value) is Failure:
                _fail(result, to_exception(value))
            else:
                result.value = value
                result.state = READY
        except BaseException as error:  # noqa: BLE001 - what unpickling raised is this result
            _fail(result, error)
        self._tell()
        return True

    def _tell(self) -> None:
        """Have the others look again."""
        with self._lock:
            self._changed.notify_all()
            is_awaited = bool(self.awaited)
        if is_awaited:
            self.on_awaited()

    # --- pumping: for the one thread that holds the pump

    def try_pump(self) -> bool:
        """Become the pump, if nobody is."""
        return self._pump.acquire(False)

    def release_pump(self) -> None:
        """Stop being the pump; whoever waits looks again."""
        self._pump.release()
        if self._waiting or self.awaited:
            self._tell()

    def take_pending(self) -> None:
        """Take what lies on the ring, without waiting."""
        for _ in range(self.end.pending()):
            self._take_one(0)

    def _take_until(self, execution: int, deadline: Deadline) -> None:
        while self.end.seq < execution:
            self._take_one(timeout_ns(deadline.remaining_s()))

    def _take_one(self, timeout: int) -> None:
        execution = self.end.seq
        frame = self.take(timeout)
        with self._lock:
            self._frames[execution] = frame
            if self._waiting:
                self._changed.notify_all()
        if self.dropped:
            self.discard_dropped()

    def discard_dropped(self) -> None:
        """Let go of frames whose refs are gone."""
        for _ in range(len(self.dropped)):
            try:
                execution = self.dropped.popleft()
            except IndexError:
                return  # another thread is at it
            if execution >= self.end.seq:
                self.dropped.append(execution)  # still to come
            else:
                self._frames.pop(execution, None)

    def advance_to(self, count: int, deadline: Deadline) -> None:
        """Wait until ``count`` frames have arrived, keeping them.

        Raises:
            _native.TimedOut, _native.Poisoned: As in ``fetch``.
        """
        while self.end.seq < count:
            if self.try_pump():
                try:
                    self._take_until(count, deadline)
                    self.take_pending()
                finally:
                    self.release_pump()
                return
            with self._lock:
                self._waiting += 1
                try:
                    if (
                        self._pump.locked()
                        and self.end.seq < count
                        and not self._changed.wait(deadline.remaining_s())
                        and deadline.expired
                    ):
                        raise _native.TimedOut
                finally:
                    self._waiting -= 1


def _fail(result: Result, error: BaseException) -> None:
    result.value = error
    result.state = FAILED
