# SPDX-License-Identifier: Apache-2.0
"""Threads that open values for others: event loops, futures, and whoever waits for a limited time.

What is pulled from a process may take for ever, because that process is stopped. So each holder
has threads of its own, a few, and holds up no other. They are daemons: the interpreter does not
wait for them when it ends.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Final

from rcg.errors import OutOfThreads, Transfer
from rcg.rdt.envelope import Envelope
from rcg.rdt.tracebacks import without_frames
from rcg.threads import start_thread

__all__ = ["holders_of", "submit", "why_left"]

_MOST: Final = 8  # threads for one holder
_IDLE_S: Final = 5.0


class _Lane:
    """The threads of one holder, and what they are to do."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[_Job] = SimpleQueue()
        self.threads = 0
        self.idle = 0


class _Job:
    __slots__ = ("call", "context", "future")

    def __init__(self, call: Callable[[], Any], future: Future[Any]) -> None:
        self.call = call
        self.future = future
        self.context = contextvars.copy_context()

    def fail(self, error: Exception) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(without_frames(error))

    def run(self) -> None:
        try:
            if not self.future.set_running_or_notify_cancel():
                return
            self.future.set_result(self.context.run(self.call))
        except BaseException as error:  # noqa: BLE001 - raised where the value is wanted
            self.future.set_exception(without_frames(error))


_lanes: Final[dict[Hashable, _Lane]] = {}
_lock: Final = threading.Lock()


def submit(
    key: Hashable, call: Callable[[], Any], future: Future[Any] | None = None
) -> Future[Any]:
    """Call a function on a thread of a holder, in the context of the caller.

    Args:
        key: The holder; see ``holders_of``.
        call: The function.
        future: Gets what it returns or raises; None makes one. Where no thread can be started, and
            none runs, it gets ``OutOfThreads``.
    """
    found: Future[Any] = Future() if future is None else future
    claims = count()  # on what is counted, as in `start_owner`: the thread, or who undoes it
    is_counted = False

    def run() -> None:
        if not next(claims):
            _run(key, lane)

    try:
        with _lock:
            lane = _lanes.setdefault(key, _Lane())
            lane.jobs.put(_Job(call, found))
            if lane.idle >= lane.jobs.qsize() or lane.threads == _MOST:
                return found
            lane.threads += 1
            is_counted = True  # Ctrl-C comes nowhere between the two
        thread = threading.Thread(target=run, name="rcg-pull", daemon=True)
        start_thread(thread, "to get tensors")
    except BaseException as error:
        if is_counted and not next(claims):
            for job in _left_after(key, lane):
                job.fail(why_left(error))
        if not isinstance(error, OutOfThreads):
            raise
    return found


def why_left(error: BaseException) -> Exception:
    """Return an error for what no thread does, because of what kept the thread from starting."""
    if isinstance(error, OutOfThreads):
        return OutOfThreads(error.message, **error.facts)
    return Transfer("the thread that gets tensors was interrupted before it ran. Get them again")


def holders_of(values: Iterable[Any]) -> Hashable:
    """Return the key of the holders of the envelopes among some values."""
    return frozenset(each.holder.key for each in values if type(each) is Envelope)


def _left_after(key: Hashable, lane: _Lane) -> list[_Job]:
    """Count a thread less; returns the jobs that nobody will do, because it was the last one."""
    left: list[_Job] = []
    with _lock:
        lane.threads -= 1
        if not lane.threads:
            _lanes.pop(key, None)
            while not lane.jobs.empty():
                left.append(lane.jobs.get())
    return left


def _run(key: Hashable, lane: _Lane) -> None:
    while True:
        job = _next(key, lane)
        if job is None:
            return
        job.run()
        del job  # it has the value


def _next(key: Hashable, lane: _Lane) -> _Job | None:
    """Return what is to be done next; None if there has been nothing for a while."""
    with _lock:
        lane.idle += 1
    try:
        return lane.jobs.get(timeout=_IDLE_S)
    except Empty:
        pass
    finally:
        with _lock:
            lane.idle -= 1
    with _lock:
        if not lane.jobs.empty():
            return lane.jobs.get()
        lane.threads -= 1
        if not lane.threads:
            _lanes.pop(key, None)
        return None
