# SPDX-License-Identifier: Apache-2.0
"""Futures of values that may not be made yet.

Ray could call back when a value is there, but on a thread of its own, where it also unpickles the
value: an envelope would be opened there, and hold up Ray. So the first few that are awaited have a
thread each, which Ray wakes at once; one more looks after all others, now and then.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from typing import Any, Final, NamedTuple

from rcg import cluster
from rcg.errors import OutOfThreads
from rcg.rdt.envelope import closed
from rcg.rdt.pullers import holders_of, submit, why_left
from rcg.rdt.tracebacks import for_each, without_frames
from rcg.runtime.sleepers import emptied
from rcg.threads import start_thread

__all__ = ["future_of"]

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

    Args:
        ref: Ray's reference.
        open_made: Returns the value of what Ray has, which may be an envelope.
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
            return list(emptied(_others))
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
            left += emptied(_others)
            if not left:
                _is_polling = False
                return
        started_s = time.monotonic()
        left = [each for each in left if not each.future.cancelled()]
        try:
            ready = set(cluster.ready_of([each.ref for each in left]))
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
        awaited.future.set_exception(without_frames(error))
