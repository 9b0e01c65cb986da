# SPDX-License-Identifier: Apache-2.0
"""Threads that get values for others: event loops, futures, calls that wait for a limited time.

A pull from a process may take for ever, because that process is stopped. So each holder has threads
of its own, a few, and holds up no other (``submit``).

A value may not be made yet (``future_of``). Ray could call back when it is there, but on a thread
of its own, where it also unpickles the value: an envelope would be opened there, and hold up Ray.
So the first few that are awaited have a thread each, which Ray wakes at once; one more looks after
all others, now and then.

All are daemons: the interpreter does not wait for them when it ends.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

from rcg import cluster
from rcg.callers import not_an_end
from rcg.error_text import without_frames
from rcg.errors import OutOfThreads, Transfer
from rcg.rdt.envelope import Envelope, closed
from rcg.rdt.pull import for_each
from rcg.runtime.sleepers import take_all
from rcg.threads import start_thread

_MOST_LANES: Final = 8  # threads for one holder
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
            _set_error(self.future, error)

    def run(self) -> None:
        try:
            if not self.future.set_running_or_notify_cancel():
                return
            self.future.set_result(self.context.run(self.call))
        except BaseException as error:  # noqa: BLE001 - raised where the value is wanted
            _set_error(self.future, error)


def _set_error(future: Future[Any], error: BaseException) -> None:
    future.set_exception(without_frames(not_an_end(error, "getting a value")))


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
            if lane.idle >= lane.jobs.qsize() or lane.threads == _MOST_LANES:
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
        with contextlib.suppress(Empty):  # it may have come since; another thread may take it
            return lane.jobs.get_nowait()
        lane.threads -= 1
        if not lane.threads:
            _lanes.pop(key, None)
        return None


_MOST: Final = 32  # threads that wait for one value each
_CANCELLED_S: Final = 0.5  # between two looks whether it is still wanted
_LEAST_S: Final = 0.002  # between two looks at all others
_PART: Final = 20  # a look takes at most one part in so many of the time


class _Awaited(NamedTuple):
    ref: Any
    open_made: Callable[[Any], Any]
    future: Future[Any]


_counting: Final = threading.Lock()
_waiting = 0  # threads that wait for one value each
_others: Final[deque[_Awaited]] = deque()
_is_polling = False


def future_of(ref: Any, open_made: Callable[[Any], Any]) -> Future[Any]:
    """Return a future of the value of an ObjectRef.

    If it is cancelled, the reference is dropped soon. It gets ``OutOfThreads`` where no thread can
    be started that waits for the value.
    """
    global _waiting, _is_polling
    awaited = _Awaited(ref, open_made, Future())
    claims = count()  # on what is counted, as in `start_owner`: the thread, or who undoes it
    target: Callable[[list[_Awaited]], None] | None = None

    def run(args: list[_Awaited]) -> None:
        if target is not None and not next(claims):
            target(args)

    try:
        with _counting:
            if _waiting < _MOST:
                args = [awaited]
                _waiting += 1
                target = _wait_for  # Ctrl-C comes nowhere between the two
            else:
                args = []
                _others.append(awaited)
                if _is_polling:
                    return awaited.future
                _is_polling = True
                target = _poll
        # Daemons: the interpreter does not wait for what may never be made. The list is emptied by
        # the thread, which would hold its arguments for as long as it runs.
        thread = threading.Thread(target=run, args=(args,), name="rcg-await", daemon=True)
        start_thread(thread, "to wait for tensors")
    except BaseException as error:
        if target is not None and not next(claims):
            for each in _left_without(target, awaited):
                _fail(each, why_left(error))
        if not isinstance(error, OutOfThreads):
            raise
    return awaited.future


def _left_without(target: Callable[[list[_Awaited]], None], awaited: _Awaited) -> list[_Awaited]:
    """Undo the counting of a thread; returns those for which nobody waits now."""
    global _waiting, _is_polling
    with _counting:
        if target is _poll:
            _is_polling = False
            return list(take_all(_others))
        _waiting -= 1
        if not _is_polling:
            return [awaited]
        _others.append(awaited)
        return []


def _wait_for(args: list[_Awaited]) -> None:
    global _waiting
    awaited = args.pop()
    try:
        while not cluster.ready_of([awaited.ref], _CANCELLED_S):
            if awaited.future.cancelled():
                return
        _deliver(awaited)
    except Exception as error:  # noqa: BLE001 - raised where the value is wanted
        _fail(awaited, error)
    finally:
        with _counting:
            _waiting -= 1
        del awaited


def _poll(_: list[_Awaited]) -> None:
    """Look after what has no thread of its own, until there is nothing left."""
    global _is_polling
    left: list[_Awaited] = []
    while True:
        with _counting:
            left += take_all(_others)
            if not left:
                _is_polling = False
                return
        started_s = time.monotonic()
        left = [each for each in left if not each.future.cancelled()]
        try:
            ready = set(cluster.ready_of(list({each.ref for each in left})))  # each once, for Ray
        except Exception as error:  # noqa: BLE001 - raised where the values are wanted
            for each, its_own in zip(left, for_each(error, len(left)), strict=True):
                _fail(each, its_own)
            left.clear()
            continue
        for each in left:
            if each.ref in ready:
                _deliver(each)
        left = [each for each in left if each.ref not in ready]
        ready.clear()
        each = None  # type: ignore[assignment]
        time.sleep(max(_LEAST_S, (time.monotonic() - started_s) * _PART))


def _deliver(awaited: _Awaited) -> None:
    """Have the value opened, of what has been made."""
    try:
        with closed(True):
            made = cluster.get(awaited.ref)
        open_made = awaited.open_made
        submit(holders_of([made]), lambda: open_made(made), awaited.future)
    except Exception as error:  # noqa: BLE001 - raised where the value is wanted
        _fail(awaited, error)


def _fail(awaited: _Awaited, error: Exception) -> None:
    if awaited.future.set_running_or_notify_cancel():
        _set_error(awaited.future, error)
