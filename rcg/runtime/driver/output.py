# SPDX-License-Identifier: Apache-2.0
"""One output of a graph at the driver: frames in order, results in any order, from any thread.

A thread that needs a result takes frames off the ring until that result has been taken, by itself
or by another thread that waits there; frames for others wait in a dict, undecoded, until they are
asked for. There is no lock that Ctrl-C could leave locked: taking a frame puts it into the dict in
one step of the native core, decoding may be repeated, and a result is filled from the dict. Ctrl-C
between any two lines loses nothing.

A ``ResultFeed`` is what a thread needs that passes results on; it does not keep the graph.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from rcg.channels.base import Frame, FrameReader, Frames, GraphEnded, Signal, timeout_ns
from rcg.channels.shm import Ticket
from rcg.runtime.by_reference import HeldResult
from rcg.runtime.driver.session import Session
from rcg.runtime.failure import error_of_unpickling, summary_of
from rcg.runtime.refs import FAILED, HELD, PENDING, READY, take_arrived
from rcg.serialization import Encoded, Failure


class ResultFeed:
    """Waits for results of a graph on behalf of handles; a ``Feed``."""

    def __init__(self, session: Session, buffers: Sequence[OutputBuffer]) -> None:
        self._buffers = buffers
        self._node = session.node
        self.encode: Callable[[Any], Encoded] = session.node.encode
        self.interrupt: Callable[[], None] = session.node.interrupt
        self.on_close, self.forget_close = session.on_close, session.forget_close

    def places(self) -> list[Any]:
        """Return the position of each output; a wait from there ends with the next result."""
        return [(buffer.reader, buffer.arrived) for buffer in self._buffers]

    def wait(self, places: list[Any], seen: int) -> int:
        """Wait until an output has a new result, and take the results that arrived.

        Args:
            places: What ``places`` returned before the caller looked for results.
            seen: What the last call returned; 0 at first. ``interrupt`` ends a wait.

        Raises:
            RuntimeError: This process is a fork of the one that compiled the graph.
        """
        with contextlib.suppress(GraphEnded):
            seen = self._node.wait_any(places, None, seen)
        for buffer in self._buffers:
            buffer.take_pending()
        return seen


# If two threads get the same ref at the same moment, the second looks this often, and so many times
# at most, whether the first has decoded it. Then it decodes, too: the first may wait for it.
_DECODE_POLL_S: Final = 0.0001
_MAX_DECODE_POLLS: Final = 5000


class OutputBuffer:
    """The driver's end of one output. Any thread may use it.

    Args:
        channel: The id of its channel in the plan.
        number: Which of the graph's buffers it is.
        reader: The reading end, which outputs that arrive in one frame share.
        on_awaited: Called when frames arrived that asyncio waits for; must not block.
        is_held: Whether its values are references: their tensors stay with an actor.
    """

    __slots__ = (
        "_collect",
        "_into",
        "_siblings",
        "awaited",
        "channel",
        "dropped",
        "failures_dropped",
        "frames",
        "last_dropped",
        "number",
        "on_awaited",
        "reader",
        "ready",
    )

    def __init__(
        self,
        channel: str,
        number: int,
        reader: FrameReader,
        on_awaited: Callable[[], None],
        *,
        is_held: bool = False,
    ) -> None:
        self.ready = HELD if is_held else READY  # the state of a result that is there
        self.channel = channel
        self.number = number
        self.reader = reader
        self._collect = reader.collect
        self.on_awaited = on_awaited
        self.frames: dict[int, Frame] = {}  # taken off the ring and not fetched yet, by execution
        # Where the reader puts frames, and whose dicts these are besides our own.
        self._into: Frames = self.frames
        self._siblings: tuple[OutputBuffer, ...] = ()
        # Executions whose ref was dropped unread. A deque, because a ref may be dropped at any
        # point, also in the middle of the code below, and appending is one step.
        self.dropped: deque[int] = deque()
        self.failures_dropped = 0  # among them, for the report
        self.last_dropped: Frame | None = None
        self.awaited: set[object] = set()  # what coroutines wait on for its results

    @staticmethod
    def share(buffers: Sequence[OutputBuffer]) -> None:
        """Have the buffers of one channel take the parts of its frames, in this order."""
        dicts = tuple([buffer.frames for buffer in buffers])
        for buffer in buffers:
            buffer._into = dicts
            buffer._siblings = tuple([each for each in buffers if each is not buffer])

    @property
    def arrived(self) -> int:
        """How many frames were taken off the ring."""
        return self.reader.seq

    @property
    def here(self) -> int:
        """How many frames have come, also those that lie on the ring."""
        return self.reader.seq + self.reader.pending()

    def has(self, execution: int) -> bool:
        """Return whether the result has arrived."""
        return execution < self.reader.seq or execution < self.here

    def fetch(self, result: Ticket, longest_ns: int | None) -> bool:
        """Wait for one result and fill it: its value, and then its state.

        Args:
            result: The result.
            longest_ns: How long it waits; None for ever.

        Returns:
            Whether this call filled it, and not another thread's.

        Raises:
            TimedOut: The time was up; the result can be fetched later.
            GraphEnded, FrameDamaged: There is no result any more.
        """
        execution, frames = result.execution, self.frames
        before = self.reader.seq if self._siblings else 0
        self._collect(self._into, execution, longest_ns)
        # The buffer that took frames for its siblings wakes those that wait for them.
        if self.dropped or self.awaited or (self._siblings and self.reader.seq != before):
            self._tell()
        looks = 0
        while True:
            frame = frames.get(execution)
            if frame is not None:
                try:
                    value = frame.decode() if looks < _MAX_DECODE_POLLS else frame.decode(True)
                except BaseException as error:  # noqa: BLE001 - an exception of unpickling is the result
                    value = None
                    failed = error_of_unpickling(error, frame.decode)
                    if result.state == PENDING:
                        result.value, result.state = failed, FAILED
                    break
                if value is not frame:
                    break
            elif result.state != PENDING:
                return False
            else:  # ``drop_held`` was faster
                raise GraphEnded(True)
            looks += 1
            time.sleep(_DECODE_POLL_S)
        if result.state == PENDING:
            # Only raising turns a Failure into an exception: a stored exception would keep, by its
            # traceback, the frames of its caller alive, and the refs in them.
            result.value = value
            result.state = FAILED if type(value) is Failure else self.ready
        return frames.pop(execution, None) is not None

    def advance_to(self, count: int, timeout_s: float | None) -> None:
        """Wait until ``count`` frames have arrived, keeping them.

        Raises:
            TimedOut, GraphEnded, FrameDamaged: As in ``fetch``.
        """
        self._collect(self._into, count - 1, timeout_ns(timeout_s))
        self.take_pending()

    def take_pending(self) -> None:
        """Take the frames that are on the ring, without waiting."""
        self.drain()
        if self.dropped or self.awaited or self._siblings:
            self._tell()

    def drain(self) -> None:
        """As ``take_pending``, for the thread that serves asyncio, which needs no notification."""
        self.reader.collect_pending(self._into)

    def _tell(self) -> None:
        """After frames came or refs went: discard unwanted frames, and wake waiters elsewhere."""
        is_awaited = False
        for buffer in (self, *self._siblings):
            if buffer.dropped:
                buffer.discard_dropped()
            is_awaited = is_awaited or bool(buffer.awaited)
        if is_awaited:
            self.on_awaited()

    def discard_dropped(self) -> None:
        """Discard frames whose refs are gone."""
        for execution in take_arrived(self.dropped, self.reader.seq):
            frame = self.frames.pop(execution, None)
            if frame is None:
                continue
            if frame.is_failure:
                self.failures_dropped += 1
                self.last_dropped = frame
            else:
                for held in self._held_by(frame):
                    held.discard()

    def keep_held(self) -> None:
        """Have actors keep the tensors of results that have come, also of those not fetched."""
        if self.ready != HELD:
            return
        with contextlib.suppress(Signal):  # the graph has ended, or a frame is damaged
            self.take_pending()
        self.discard_dropped()
        for frame in list(self.frames.values()):
            for held in self._held_by(frame):
                held.keep()

    def drop_held(self) -> None:
        """Drop results whose tensors stay with actors: the graph ends, and nobody can get them."""
        if self.ready == HELD:
            self.frames.clear()

    def _held_by(self, frame: Frame) -> list[HeldResult]:
        """Return the result that a frame has, if its tensors stay with an actor."""
        if self.ready != HELD or frame.is_failure:
            return []
        try:
            value = frame.decode()
        except Exception:  # noqa: BLE001 - it may be damaged
            return []
        return [value] if isinstance(value, HeldResult) else []


class Outputs(tuple[OutputBuffer, ...]):
    """The buffers of a graph, and what they have seen together."""

    def completed(self) -> int:
        """Return how many executions have all of their results here."""
        return min(buffer.here for buffer in self)

    def take_dropped(self) -> None:
        """Count what came for refs that are gone, also what still lies on the rings."""
        for buffer in self:
            if buffer.dropped:
                with contextlib.suppress(Signal):  # the graph ended, or a later frame is damaged
                    buffer.take_pending()
                buffer.discard_dropped()

    def failures_dropped(self) -> int:
        """Return how many failures came for refs that are gone."""
        return sum(buffer.failures_dropped for buffer in self)

    def last_dropped(self) -> str:
        """Return the summary of such a failure, "" if there was none."""
        for buffer in self:
            if buffer.last_dropped is not None:
                failure = buffer.last_dropped.decode()
                return summary_of(failure) if type(failure) is Failure else ""
        return ""
