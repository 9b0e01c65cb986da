# SPDX-License-Identifier: Apache-2.0
"""Asyncio: a thread that waits in shared memory and wakes event loops.

Each graph has one such thread, started by the first ``await`` that has to wait. It takes frames for
the awaited output buffers, as threads in ``get`` may at the same time, and notifies the event loops
with ``call_soon_threadsafe``.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from rcg.channels.base import Signal
from rcg.errors import OutOfThreads
from rcg.runtime.driver.output import OutputBuffer
from rcg.runtime.driver.session import Session
from rcg.runtime.sleepers import set_done, take_all
from rcg.threads import start_thread

_NEVER: Final = 1 << 62  # an execution that never comes

_Waiter = tuple[OutputBuffer, int, asyncio.AbstractEventLoop, "asyncio.Future[None]"]


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


class AsyncioBridge:
    """Wakes coroutines when results arrive."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._node = session.node
        self._new: deque[_Waiter] = deque()
        # The thread that serves; it puts itself there. Without a lock: a thread that finds another
        # ends at once, so it does no harm to start one too many.
        self._serving: dict[int, object] = {}
        self._queues: dict[asyncio.AbstractEventLoop, SubmissionQueue] = {}
        self._graph_id = session.graph_id
        session.on_end(self.wake)

    def wait_for(self, buffer: OutputBuffer, execution: int) -> asyncio.Future[None]:
        """Return a future of the running loop, done when the result has arrived or never will.

        Raises:
            OutOfThreads: No more threads can be started.
        """
        loop = asyncio.get_running_loop()
        self._node.interrupt()  # raises in a forked child, where no thread of ours would answer
        future: asyncio.Future[None] = loop.create_future()
        waiter = buffer, execution, loop, future
        self._new.append(waiter)
        if not self._serving:
            name = f"rcg-await-{self._graph_id[:6]}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            try:
                start_thread(thread, "to wait for results of a compiled graph")
            except OutOfThreads:
                if not self._serving:  # else another thread has started one
                    with contextlib.suppress(ValueError):
                        self._new.remove(waiter)
                    raise
        self.wake()
        return future

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
        """Have the thread look around; any thread."""
        with contextlib.suppress(RuntimeError):
            self._node.interrupt()

    def _run(self) -> None:
        thread = threading.current_thread()
        if self._serving.setdefault(0, thread) is not thread:
            return
        waiters: list[_Waiter] = []
        seen = 0
        try:
            while True:
                for waiter in take_all(self._new):
                    waiter[0].awaited.add(waiter[1])
                    waiters.append(waiter)
                buffers = list({waiter[0].number: waiter[0] for waiter in waiters}.values())
                # Where each ring stood before we looked: whatever comes from then on ends the
                # wait, also what a thread in `get` takes off the ring before it begins.
                seqs = [(buffer.reader, buffer.arrived) for buffer in buffers]
                waiters = self._tell(waiters, buffers)
                seen = self._node.wait_any(seqs if waiters else [], None, seen)
                for buffer in buffers:
                    buffer.drain()
        except (Signal, RuntimeError, MemoryError, OSError):
            pass  # raised again when the result is fetched
        finally:
            # The graph ended: the result raises the cause. Ray may have to be asked for it, here
            # and not on an event loop.
            try:
                if not self._session.has_cause:
                    self._session.end_error()
            finally:
                # A new waiter starts another thread, which ends in the same way.
                self._serving.clear()
                waiters.extend(take_all(self._new))
                for _, _, loop, future in waiters:
                    set_done(loop, future)

    def _tell(self, waiters: list[_Waiter], buffers: list[OutputBuffer]) -> list[_Waiter]:
        """Wake those whose result is there; returns the others."""
        left = []
        for waiter in waiters:
            buffer, execution, loop, future = waiter
            if execution < buffer.arrived:
                set_done(loop, future)
            elif not future.cancelled():
                left.append(waiter)
        for buffer in buffers:
            buffer.awaited = {waiter[1] for waiter in left if waiter[0] is buffer}
        return left
