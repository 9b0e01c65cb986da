# SPDX-License-Identifier: Apache-2.0
"""A thread for operations that may never end, so that whoever waits for one can leave it behind.

Gloo has such operations: when a connection closes, whoever waits for a message that has been sent
or received in part is told nothing, and waits until Gloo's time limit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Final

from rcg.options import Deadline

__all__ = ["LeftBehind", "Sideline"]

_GLANCE_S: Final = 0.25
_STILL_S: Final = 0.3  # what has not moved for so long does not move
_LAST_S: Final = 0.5  # for what was ended to be over


class LeftBehind(Exception):
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
    """Runs operations, one at a time, on a thread of its own.

    Args:
        name: The name of the thread, which starts with the first operation.
        grace_s: How long an operation that is not to be waited for any more may go on while
            something moves.
        end: Ends what runs, if that can be done.
        moved: Returns a number that changes when something moves.
        is_lost: Returns whether what runs may never end by itself; asked a few times a second.
    """

    def __init__(
        self,
        name: str,
        grace_s: float,
        end: Callable[[], None],
        moved: Callable[[], int],
        is_lost: Callable[[], bool],
    ) -> None:
        self._name = name
        self._grace_s = grace_s
        self._end = end
        self._moved = moved
        self._is_lost = is_lost
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        # True: something has ended. False: nobody shall wait for long any more.
        self._news: SimpleQueue[bool] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_left_behind = False

    def run(self, operation: Callable[[], None]) -> None:
        """Run an operation and wait for it.

        An interrupt of this thread, as by Ctrl-C, does not leave the operation half done: it is
        raised when that has ended.

        Raises:
            LeftBehind: It did not end in time. Nothing may be run after that.
            BaseException: What the operation raised.
        """
        if self._thread is None:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            thread.start()
            self._thread = thread
        task = _Task(operation)
        interrupt = self._wait(task)
        error, task.error = interrupt or task.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error, interrupt  # the traceback of an error must not hold it

    def hurry(self) -> None:
        """Let nobody wait for long from now on; any thread."""
        self._news.put(False)

    def close(self) -> None:
        """End the thread, unless an operation was left behind on it; idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._tasks.put(None)
            if not self._is_left_behind:
                thread.join(_LAST_S)

    def _wait(self, task: _Task) -> BaseException | None:
        """Have a task run and wait until it has ended; returns what interrupted that."""
        interrupt: BaseException | None = None
        is_asked_for = False
        patience: Iterator[float] | None = None  # once nobody shall wait for long
        wait_s = _GLANCE_S
        while not task.is_over:
            try:
                if not is_asked_for:
                    is_asked_for = True  # first: an interrupt comes after a call, not before it
                    self._tasks.put(task)
                try:
                    shall_hurry = not self._news.get(timeout=wait_s) and patience is None
                except Empty:
                    shall_hurry = patience is not None or self._is_lost()
                if shall_hurry and not task.is_over:
                    patience = patience or self._patience()
                    wait_s = next(patience)
            except StopIteration:
                self._is_left_behind = True
                raise LeftBehind(self._name) from None
            except BaseException as error:  # noqa: BLE001 - raised once the operation has ended
                interrupt = error
        return interrupt

    def _patience(self) -> Iterator[float]:
        """Yield how long to wait, again and again, until it is enough."""
        deadline, before = Deadline(self._grace_s), -1
        while not deadline.expired and (now := self._moved()) != before:
            before = now
            yield _STILL_S
        self._end()
        yield _LAST_S

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            if task is None:
                return
            task.run()
            del task  # before anybody is told: whoever is may end what it uses
            self._news.put(True)
