# SPDX-License-Identifier: Apache-2.0
"""Tensors that this process, an actor, gets before the calls that take them run.

Ray gives an actor the arguments of a call when its turn has come. So the keeper of the process that
made the call (``rcg.rdt.keeper``) sends the envelopes of its references along, if it has not
finished by the next look, and the actor gets their tensors while another method runs. A call that
has begun is known by what it has opened. What is here and what is on its way are within
``RCG_PREFETCH_BYTES``; the others wait until a call has taken some.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from rcg.errors import OutOfThreads
from rcg.rdt.envelope import Envelope, Parts, Whole
from rcg.rdt.pull import Wanted
from rcg.rdt.transports import find_transport
from rcg.threads import start_thread

LEAST_BYTES: Final = 256 << 10  # less comes about as fast as it is announced
_KEPT_S: Final = 60.0  # the call may be cancelled
_IDLE_S: Final = 5.0
_MOST_OPENED: Final = 10_000
_MOST_QUEUED: Final = 64


def may_come_ahead(made: object) -> bool:
    """Return whether a value may be got ahead: it needs no group, and is large enough."""
    if type(made) is not Envelope or not isinstance(made.contents, Whole | Parts):
        return False
    if isinstance(made.contents, Parts) and made.contents.references:
        return False  # only Ray's own pickler may send those
    is_host = all(each == "cpu" for each in made.contents.devices)
    is_large = sum(made.contents.sizes) >= LEAST_BYTES
    return is_host and is_large and find_transport(made.transport).is_direct


class AheadFacts(NamedTuple):
    """What was got ahead.

    Attributes:
        values: How many values.
        bytes: The bytes of their tensors.
        used: How many of them a call has taken.
    """

    values: int = 0
    bytes: int = 0
    used: int = 0


class _Job:
    """One value.

    Attributes:
        envelope: It.
        payloads: Its tensors, of uint8 [n], once they are here; None if they cannot be got.
        is_begun: Whether they are being got.
        done_s: When they came, in seconds of the monotonic clock.
    """

    __slots__ = ("done_s", "envelope", "is_begun", "payloads")

    def __init__(self, envelope: Envelope) -> None:
        self.envelope = envelope
        self.payloads: Future[Sequence[Any] | None] = Future()
        self.is_begun = False
        self.done_s = 0.0

    @property
    def size(self) -> int:
        return sum(self.envelope.contents.sizes)


class Ahead:
    """Gets what is announced, on a thread of its own. Any thread.

    Args:
        pull: As ``Connections.pull``.
        most_bytes: What it may hold.
    """

    def __init__(
        self, pull: Callable[[Sequence[Wanted]], list[Sequence[Any] | Exception]], most_bytes: int
    ) -> None:
        self._pull = pull
        self._most_bytes = most_bytes
        self._changed = threading.Condition()
        self._jobs: dict[str, _Job] = {}  # by the ids of the objects
        self._queue: deque[_Job] = deque()
        self._opened: dict[str, None] = {}  # the newest objects that calls have opened
        self._thread: threading.Thread | None = None
        self._facts = AheadFacts()

    def announce(self, envelope: Envelope) -> None:
        """Get the tensors of a value that a call will take, once there is room for them."""
        job = _Job(envelope)
        with self._changed:
            is_known = envelope.key in self._opened or envelope.key in self._jobs
            if is_known or job.size > self._most_bytes or len(self._queue) >= _MOST_QUEUED:
                return
            self._jobs[envelope.key] = job
            self._queue.append(job)
            self._changed.notify()
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, name="rcg-ahead", daemon=True)
        try:
            start_thread(self._thread, "to get tensors ahead")
        except OutOfThreads:  # they are got when the call runs
            with self._changed:
                self._thread = None
                self._jobs.clear()
                self._queue.clear()

    def take(self, envelope: Envelope) -> Sequence[Any] | None:
        """Return the tensors of a value that were got ahead; None if they were not.

        Waits for what is on its way: to ask again would be slower.
        """
        with self._changed:
            self._opened[envelope.key] = None
            if len(self._opened) > _MOST_OPENED:
                del self._opened[next(iter(self._opened))]
            job = self._jobs.pop(envelope.key, None)
            self._changed.notify()  # there may be room for another one
            if job is None or not job.is_begun:
                return None
        payloads = job.payloads.result()
        # An actor that has run again may have made another value of this id.
        if payloads is None or job.envelope.contents.sizes != envelope.contents.sizes:
            return None
        with self._changed:
            self._facts = self._facts._replace(used=self._facts.used + 1)
        return payloads

    def facts(self) -> AheadFacts:
        """Return what was got ahead so far."""
        return self._facts

    def _drop_old(self) -> float:
        """Drop what no call has taken for a while; returns in how many seconds there is more."""
        until_s = time.monotonic() - _KEPT_S
        for key, job in list(self._jobs.items()):
            if job.done_s and job.done_s <= until_s:
                del self._jobs[key]
        first = min((each.done_s for each in self._jobs.values() if each.done_s), default=None)
        return _IDLE_S if first is None else first - until_s

    def _run(self) -> None:
        while True:
            job = self._next()
            if job is None:
                return
            transport = find_transport(job.envelope.transport)
            try:
                (found,) = self._pull([Wanted(job.envelope, transport, "", None)])
            except Exception as error:  # noqa: BLE001 - the call asks again, and raises it
                found = error
            is_here = not isinstance(found, Exception)
            with self._changed:
                job.done_s = time.monotonic()
                if is_here:
                    values, size, used = self._facts
                    self._facts = AheadFacts(values + 1, size + job.size, used)
                else:
                    self._jobs.pop(job.envelope.key, None)
            job.payloads.set_result(found if is_here else None)  # type: ignore[arg-type]
            del job, found

    def _next(self) -> _Job | None:
        """Return what is to be got next; None if the thread ends, because there is nothing."""
        with self._changed:
            while True:
                pause_s = self._drop_old()
                while (
                    self._queue
                    and self._jobs.get(self._queue[0].envelope.key) is not self._queue[0]
                ):
                    self._queue.popleft()  # a call was quicker
                if self._queue and self._held_bytes + self._queue[0].size <= self._most_bytes:
                    job = self._queue.popleft()
                    job.is_begun = True
                    return job
                if not self._changed.wait(pause_s) and not self._jobs:
                    self._thread = None
                    return None

    @property
    def _held_bytes(self) -> int:
        return sum(each.size for each in self._jobs.values() if each.is_begun)
