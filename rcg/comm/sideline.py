# SPDX-License-Identifier: Apache-2.0
"""A thread for operations that may never end, so that their callers can leave it behind.

Gloo has such operations: when a connection closes, the wait for a message that has been sent or
received in part ends only at Gloo's time limit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final

from rcg.options import Deadline
from rcg.threads import start_thread

_GLANCE_S: Final = 0.25
_LAST_S: Final = 0.5  # for what was ended to be over


class LeftBehind(RuntimeError):
    """The operation did not end in time; its thread still waits for it."""


class _Task:
    """One operation, and how it ended."""

    __slots__ = ("error", "is_over", "operation")

    def __init__(self, operation: Callable[[], None]) -> None:
        self.operation: Callable[[], None] | None = operation
        self.error: BaseException | None = None
        self.is_over = False

    def run(self) -> None:
        operation, self.operation = self.operation, None
        try:
            if operation is not None:
                operation()
        except BaseException as error:  # noqa: BLE001 - raised by who asked for the operation
            self.error = error
        self.is_over = True


class Sideline:
    """Runs operations, one at a time, on a thread of its own, which starts with the first one.

    ``glance`` is called a few times a second while an operation is waited for, until ``leave``.
    """

    def __init__(self, name: str, glance: Callable[[], object]) -> None:
        self._name = name
        self._glance = glance
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        # True: something has ended. False: nobody shall wait for long any more.
        self._news: SimpleQueue[bool] = SimpleQueue()
        # The thread, put there by itself: Ctrl-C may come while it is started, and one that finds
        # another ends at once.
        self._threads: dict[int, threading.Thread] = {}
        self._has_started = False
        self._is_left_behind = False

    def start(self) -> None:
        """Start the thread if it does not run, before what must not begin without it."""
        if not self._threads:
            self._has_started = True
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            start_thread(thread, "to wait for an operation of a communicator")

    def run(self, operation: Callable[[], None]) -> None:
        """Run an operation and wait for it.

        An interrupt of this thread, as by Ctrl-C, does not leave the operation half done: it is
        raised when that has ended.

        Raises:
            LeftBehind: It did not end in time after ``leave``. Nothing may be run after that.
            OutOfThreads: No more threads can be started; the operation was not run.
            BaseException: What the operation raised.
        """
        self.start()
        task = _Task(operation)
        interrupt = self._wait(task)
        error, task.error = interrupt or task.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error, interrupt  # the traceback of an error must not hold it

    def leave(self) -> None:
        """Have what runs be left behind, unless it ends in a moment; any thread."""
        self._news.put(False)

    def close(self) -> None:
        """End the thread, unless an operation was left behind on it; idempotent."""
        has_started, self._has_started = self._has_started, False
        if has_started:
            self._tasks.put(None)
        thread = self._threads.pop(0, None)
        if thread is not None and not self._is_left_behind:
            thread.join(_LAST_S)

    def _wait(self, task: _Task) -> BaseException | None:
        """Have a task run and wait until it has ended; returns what interrupted that."""
        interrupt: BaseException | None = None
        is_asked_for = False
        last: Deadline | None = None  # once it shall be left behind
        while not task.is_over:
            try:
                if not is_asked_for:
                    is_asked_for = True  # first: an interrupt comes after a call, not before it
                    self._tasks.put(task)
                try:
                    left_s = _GLANCE_S if last is None else last.remaining_s() or 0.0
                    has_ended = self._news.get(timeout=min(_GLANCE_S, left_s))
                except Empty:
                    if last is None:
                        self._glance()
                    elif last.expired and not task.is_over:
                        self._is_left_behind = True
                        break
                else:
                    if not has_ended and last is None:
                        last = Deadline(_LAST_S)
            except BaseException as error:  # noqa: BLE001 - raised once the operation has ended
                interrupt = error
        if self._is_left_behind:
            raise interrupt or LeftBehind(self._name)
        return interrupt

    def _work(self) -> None:
        thread = threading.current_thread()
        if self._threads.setdefault(0, thread) is not thread:
            return
        while True:
            task = self._tasks.get()
            if task is None:
                self._threads.pop(0, None)
                return
            task.run()
            if self._is_left_behind:
                task.error = None  # whose traceback holds the task, and so all that it used
            del task  # before the caller is woken: it may close what the task uses
            self._news.put(True)
