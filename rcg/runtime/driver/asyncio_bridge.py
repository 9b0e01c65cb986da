# SPDX-License-Identifier: Apache-2.0
"""Asyncio: coroutines that wait for results are woken by a descriptor, without a thread.

While something awaits an output, who publishes a frame there also writes to an eventfd of the
driver, the *bell* of the graph. Each event loop with waiters listens to it. The one that is woken
takes the frames, tells its own waiters, and has the other loops do the same: each loop's waiters
are touched on its thread alone.

To be woken takes some 50 us. So a loop whose waits are short looks again in each of its turns for
a while, and lets other processes run in between, before it listens to the bell.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import weakref
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from rcg.channels.base import GraphEnded, Signal
from rcg.descriptors import Descriptor
from rcg.runtime.driver.output import OutputBuffer
from rcg.runtime.driver.session import Session
from rcg.threads import start_behind

_NEVER: Final = 1 << 62  # an execution that never comes
_LONGEST_NS: Final = 120_000  # a loop whose waits take longer looks only once; as in wait.h
# The kernel wakes a loop where the one that rang runs, which may have more results: it goes on.
_YIELDS: Final = 10


class _Waiter(NamedTuple):
    """A coroutine that waits for a result."""

    buffer: OutputBuffer
    execution: int
    future: asyncio.Future[None]
    since_ns: int


class SubmissionQueue:
    """Coroutines of one event loop that want to execute, in the order in which they came.

    Entered by ``async with``; only the first of them looks for room, so each result wakes one.

    Args:
        on_empty: Called when the last one has left.
    """

    def __init__(self, on_empty: Callable[[], object]) -> None:
        self._turn = asyncio.Lock()
        self._on_empty = on_empty
        self.length = 0

    async def __aenter__(self) -> None:
        self.length += 1
        try:
            await self._turn.acquire()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        # No await in here: a task that leaves executes before the next one looks.
        self._turn.release()
        self._leave()

    def _leave(self) -> None:
        self.length -= 1
        if not self.length:
            self._on_empty()


class _Listener:
    """The waiters of one event loop, on its thread."""

    def __init__(self) -> None:
        self.waiters: list[_Waiter] = []
        self.announced: set[Any] = set()  # the readers whose frames ring the bell
        self.is_looking = False  # in each turn of the loop
        self.until_ns = 0  # it looks so long
        self.expected_ns = 0  # how long a wait takes: a moving mean

    def learn(self, took_ns: int, now_ns: int) -> None:
        """Note how long a wait took: how long the next one may keep the processor."""
        counted = min(took_ns, 4 * _LONGEST_NS)  # one long wait is soon forgotten
        self.expected_ns = (3 * self.expected_ns + counted) // 4
        self.look_from(now_ns)

    def look_from(self, now_ns: int) -> None:
        """Look for as long as waits take, but not longer than it takes to be woken twice."""
        longest_ns = self.expected_ns * 5 // 4 + 5000
        self.until_ns = now_ns + (longest_ns if longest_ns <= _LONGEST_NS else 0)


class AsyncioBridge:
    """Wakes coroutines when results arrive."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._node = session.node
        self._listeners: dict[asyncio.AbstractEventLoop, _Listener] = {}
        self._queues: dict[asyncio.AbstractEventLoop, SubmissionQueue] = {}
        self._is_asking = False  # another thread finds out why the graph has ended
        session.on_end(self.wake)

    def wait_for(self, buffer: OutputBuffer, execution: int) -> asyncio.Future[None]:
        """Return a future of the running loop, done when the result has arrived or never will.

        Raises:
            RuntimeError: This process is a fork of the one that compiled the graph.
        """
        loop, now_ns = asyncio.get_running_loop(), time.monotonic_ns()
        self._node.listen()  # raises in a fork
        listener = self._listeners.get(loop) or self._listen(loop)
        waiter = _Waiter(buffer, execution, loop.create_future(), now_ns)
        buffer.awaited.add(waiter.future)
        listener.waiters.append(waiter)
        listener.look_from(now_ns)
        if listener.is_looking:
            return waiter.future
        is_asleep = now_ns >= listener.until_ns and buffer.reader in listener.announced
        if not is_asleep or buffer.has(execution) or self._session.is_over:
            self._look(loop)
        return waiter.future

    def wait_for_end(self, buffer: OutputBuffer) -> asyncio.Future[None]:
        """Return a future, done when the graph has ended and the session knows why."""
        return self.wait_for(buffer, _NEVER)

    def has_queue(self) -> bool:
        """Whether coroutines of the running loop wait for room."""
        return bool(self._queues) and asyncio.get_running_loop() in self._queues

    def queue(self) -> SubmissionQueue:
        """Return the queue of the running loop, to be entered at once."""
        loop = asyncio.get_running_loop()
        found = self._queues.get(loop)
        if found is None:
            found = self._queues[loop] = SubmissionQueue(lambda: self._queues.pop(loop, None))
        return found

    def wake(self) -> None:
        """Have the loops look around; any thread, never waits."""
        bell = self._session.host.bell  # held: it is closed with the last reference
        if self._listeners and bell.fd >= 0:
            os.eventfd_write(bell.fd, 1)

    # --- on the thread of a loop

    def _listen(self, loop: asyncio.AbstractEventLoop) -> _Listener:
        for other in list(self._listeners):  # `asyncio.run` makes a new one each time
            if other.is_closed():
                self._forget(other)
        bell = self._session.host.bell
        if bell.fd >= 0:  # else the graph was torn down
            loop.add_reader(bell.fd, _on_bell, weakref.ref(self), bell, loop)
        found = self._listeners[loop] = _Listener()
        return found

    def _forget(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let go of a loop that is closed; any thread."""
        listener = self._listeners.pop(loop, None)
        if listener is not None:
            for waiter in listener.waiters:
                waiter.buffer.awaited.discard(waiter.future)
            self._announce(listener, set())

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell waiters what has come, and look again in the next turn, or listen to the bell."""
        listener = self._listeners.get(loop)
        if listener is None:
            return
        self._node.listen()
        self._tell(listener)  # what comes from now on rings, of what is announced
        listener.is_looking = bool(listener.waiters) and time.monotonic_ns() < listener.until_ns
        if listener.is_looking:
            self._announce(listener, set())
            os.sched_yield()
            loop.call_soon(self._look, loop)
        elif self._announce(listener, {waiter.buffer.reader for waiter in listener.waiters}):
            self._node.listen()
            self._tell(listener)
        if self._session.is_over and not listener.waiters:
            self._announce(listener, set())
            self._listeners.pop(loop, None)

    def _announce(self, listener: _Listener, readers: set[Any]) -> bool:
        """Have the frames of these readers ring the bell; returns whether more do than before."""
        known, listener.announced = listener.announced, readers
        for reader in readers - known:
            self._node.await_frames(reader, 1)
        for reader in known - readers:
            self._node.await_frames(reader, -1)
        return not readers <= known

    def _tell(self, listener: _Listener) -> None:
        """Wake the waiters whose results are there; all of them if the graph has ended."""
        failed = self._take({each.buffer.number: each.buffer for each in listener.waiters})
        is_over, now_ns = self._is_over(), time.monotonic_ns()
        left = []
        for waiter in listener.waiters:
            buffer, execution, future, since_ns = waiter
            if is_over or buffer.number in failed or execution < buffer.arrived or future.done():
                buffer.awaited.discard(future)
                listener.learn(now_ns - since_ns, now_ns)
                if not future.done():
                    future.set_result(None)
            else:
                left.append(waiter)
        listener.waiters = left

    def _take(self, buffers: dict[int, OutputBuffer]) -> set[int]:
        """Take the frames of some buffers; returns those that failed, as a fetch says again."""
        failed = set()
        for number, buffer in buffers.items():
            try:
                buffer.drain()
            except GraphEnded:
                pass  # the session says when it knows
            except (Signal, MemoryError, OSError):
                failed.add(number)
        return failed

    def _is_over(self) -> bool:
        """Whether the graph has ended and the session knows why, or nobody can find out.

        Ray may have to be asked, which is not done on an event loop.
        """
        if not self._session.is_over or self._session.has_cause:
            return self._session.is_over
        if not self._is_asking:
            self._is_asking = True
            return not start_behind(self._ask)
        return False

    def _ask(self) -> None:
        try:
            self._session.end_error()
        finally:
            self.wake()


def _on_bell(
    reference: weakref.ref[AsyncioBridge], bell: Descriptor, loop: asyncio.AbstractEventLoop
) -> None:
    """Take what has come, and have other loops look."""
    with contextlib.suppress(BlockingIOError):  # another loop was faster
        os.eventfd_read(bell.fd)
    bridge = reference()
    if bridge is None:
        loop.remove_reader(bell.fd)
        return
    try:
        if loop in bridge._listeners and len(bridge._listeners[loop].waiters) > 1:
            for _ in range(_YIELDS):
                os.sched_yield()
        bridge._look(loop)
        for other in list(bridge._listeners):
            if other is not loop:
                try:
                    other.call_soon_threadsafe(bridge._look, other)
                except RuntimeError:
                    bridge._forget(other)
    except BaseException:  # Ctrl-C: nobody else would wake the other loops
        os.eventfd_write(bell.fd, 1)
        raise
    if loop not in bridge._listeners:  # the graph has ended
        loop.remove_reader(bell.fd)
