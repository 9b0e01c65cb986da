# SPDX-License-Identifier: Apache-2.0
"""The way into a graph: checking arguments, making room, submitting the inputs of an execution.

Any thread may submit, also from code that runs in the middle of another submission: pickling,
``__del__``, a signal handler. There is no lock. Arguments are encoded first, which runs users'
code, and refs are made, which do not stand for anything yet. Then one step of the native core does
the rest or nothing: it compares the limit, gives the execution its number, enters it into the
window, makes the refs its own and publishes all inputs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rcg import _native
from rcg.channels.shm import NATIVE_ERRORS, Writer
from rcg.errors import MessageTooLarge
from rcg.ir.signature import ExecutionSignature, Key
from rcg.options import Deadline
from rcg.runtime.driver.admission import Admission
from rcg.runtime.driver.output import OutputBuffer
from rcg.runtime.driver.session import Session
from rcg.runtime.driver.window import Window
from rcg.runtime.node.segments import MAX_IN_FLIGHT
from rcg.serialization import Codec, Encoded, size_of
from rcg.trace.clocks import now_ns

__all__ = ["RING_POLL_S", "GraphEnded", "Inputs", "NoRoom", "Submission"]

RING_POLL_S: Final = 0.01  # between two looks at a ring whose reader is about to take a frame


@dataclass(frozen=True, slots=True)
class Inputs:
    """The encoded values of the input channels of one execution.

    Attributes:
        values: One for each channel.
        started_ns: When encoding them began; 0 if another process did it.
        ended_ns: When it ended.
    """

    values: list[Encoded]
    started_ns: int = 0
    ended_ns: int = 0


class NoRoom(Exception):
    """There was no room for another execution within the submit timeout."""


class GraphEnded(Exception):
    """The graph has ended; ``Session.end_error`` says why, and may have to ask Ray for that."""


class Submission:
    """The driver's end of all input channels, and the window.

    Args:
        session: The graph.
        writers: The channel of each input key; None is the whole input.
        buffers: Where results arrive; emptied while room is waited for.
    """

    def __init__(
        self,
        session: Session,
        writers: Sequence[tuple[Key, Writer]],
        codec: Codec,
        buffers: Sequence[OutputBuffer],
    ) -> None:
        options = session.options
        self._session = session
        plan = session.plan
        self.signature = ExecutionSignature(
            tuple(key for key, _ in writers), plan.num_positional, tuple(plan.keywords)
        )
        self._op = writers[0][1].op
        self._ends = [writer.end for _, writer in writers]
        self._first = self._ends[0]
        self._submit = session.member.submit
        self._codec = codec
        self._buffers = buffers
        self._cap_bytes: int = session.member.statistics()["cap_bytes"]
        self.is_whole = self.signature.keys == (None,)
        self._admission = Admission(session.member, self._cap_bytes)
        self.window = Window(
            limit=min(options.max_inflight_executions, MAX_IN_FLIGHT),
            capacity=options.max_inflight_executions,
            buffered_limit=options.max_buffered_results,
            outputs=len(buffers),
            is_strict=options.is_inflight_limit_set_by_user,
        )

    @property
    def submitted(self) -> int:
        """How many executions were submitted."""
        return self._first.seq

    # --- arguments

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
        """Return the encoded value of each input channel.

        Raises:
            GraphError: Wrong number or names.
            UnpicklableError: A value cannot be sent.
            MessageTooLarge: They can never fit.
        """
        values = self.signature.values(args, kwargs)
        started_ns = now_ns()
        encoded = list(map(self._codec.encode, values))
        self.check_size(sum(map(size_of, encoded)))
        return Inputs(encoded, started_ns, now_ns())

    def check_size(self, size_bytes: int) -> None:
        """Raise where arguments of this size can never fit."""
        if size_bytes > self._cap_bytes:
            raise MessageTooLarge(
                f"arguments of {size_bytes:,} bytes do not fit into the graph's shared memory of "
                f"{self._cap_bytes:,} bytes: raise `memory_cap_bytes` or pass them in parts",
                size_bytes=size_bytes,
                limit_bytes=self._cap_bytes,
            )

    # --- submitting

    def submit_value(self, value: Any, refs: Any) -> Any:
        """Submit one execution whose only input is this value: the commonest shape, spelt out."""
        window = self.window
        started_ns = 0
        if type(value) is bytes:
            encoded: Encoded = _native.KIND_BYTES, value, None, 0
        else:
            started_ns = now_ns()
            encoded = self._codec.encode(value)
        frames = ((self._first, *encoded),)
        try:
            if (
                self._submit(
                    frames, window.free_until, window.left, window.wanted, refs, started_ns
                )
                is not None
            ):
                return refs
        except (_native.NoMemory, _native.TimedOut):
            pass
        except NATIVE_ERRORS as error:
            raise self._session.translate(error) from None
        self.check_size(size_of(encoded))
        return self.submit(Inputs([encoded], started_ns, now_ns()), refs)

    def submit(self, inputs: Inputs, refs: Any) -> Any:
        """Submit one execution, waiting for room and for memory; returns its refs.

        Args:
            inputs: What ``encode`` made.
            refs: The ref or the list of refs that shall stand for its results.

        Raises:
            NoRoom: There was none within the submit timeout; nothing was submitted.
            OutOfSharedMemory: Nothing is under way that could give memory back.
            CapacityExceededError, RcgError: As in ``try_submit``.
        """
        deadline = Deadline(self._session.options.submit_timeout_s)
        try:
            for execution in self.attempts(inputs, refs):
                if execution is None:
                    time.sleep(RING_POLL_S)
                else:
                    self._advance(execution + 1, deadline)
        except GraphEnded:
            raise self._session.end_error() from None
        return refs

    def attempts(self, inputs: Inputs, refs: Any) -> Iterator[int | None]:
        """Submit one execution, and yield what to wait for between two attempts.

        It does not wait itself, so that a thread and an event loop can each wait in their own way.

        Args:
            inputs: What ``encode`` made.
            refs: The ref or the list of refs that shall stand for its results.

        Yields:
            The execution that has to be complete before the next attempt; None if a reader is about
            to take a frame, for which ``RING_POLL_S`` is long enough.

        Raises:
            OutOfSharedMemory: Nothing is under way that could give memory back.
            GraphEnded, CapacityExceededError, RcgError: As in ``try_submit``.
        """
        is_alone = is_late = False
        while True:
            complete = self.complete()
            try:
                if self.try_submit(inputs, refs, stash=is_alone):
                    return
                complete = max(complete, self.submitted - self.window.admitted)
            except _native.TimedOut:
                is_late = True
            except _native.NoMemory as error:
                # Alone, what finds no memory passes through the stash.
                if is_alone:
                    raise self._session.translate(error) from None
                is_alone = complete >= self.submitted
            if is_late:
                is_late = False
                yield None
            if complete < self.submitted:
                yield complete

    def try_submit(self, inputs: Inputs, refs: Any, *, stash: bool = False) -> bool:
        """Submit one execution without waiting; returns whether there was room in the window.

        Args:
            inputs: What ``encode`` made.
            refs: The ref or the list of refs that shall stand for its results.
            stash: Whether what there is no shared memory for is kept on the heap until it is read.

        Raises:
            _native.NoMemory: There is no shared memory for it now; nothing was written.
            _native.TimedOut: A reader is a whole ring behind; nothing was written.
            CapacityExceededError: Waiting would not help.
            GraphEnded: The graph has ended.
            RcgError: Anything else that the native core says.
        """
        window = self.window
        if self.submitted >= window.free_until and not self._look():
            return False
        frames = tuple((end, *value) for end, value in zip(self._ends, inputs.values, strict=True))
        try:
            execution = self._submit(
                frames, window.free_until, window.left, window.wanted, refs, 0, stash
            )
        except (_native.NoMemory, _native.TimedOut):
            raise
        except _native.Poisoned:
            raise GraphEnded from None
        except NATIVE_ERRORS as error:
            raise self._session.translate(error) from None
        if execution is None:
            return False  # another thread was quicker
        self._record(execution, inputs)
        return True

    def _record(self, execution: int, inputs: Inputs) -> None:
        """Tell the flight recorder how long encoding took, which only now belongs to something."""
        start_ns, end_ns = inputs.started_ns, inputs.ended_ns
        is_coded = any(value[0] != _native.KIND_BYTES for value in inputs.values)
        if start_ns and is_coded and self._session.options.record:
            self._session.member.record(self._op, execution, start_ns, end_ns, end_ns - start_ns)

    def complete(self) -> int:
        """Return how many executions are complete."""
        buffers = self._buffers
        complete = buffers[0].arrived
        for buffer in buffers:
            arrived = buffer.arrived
            if arrived < complete:
                complete = arrived
        return complete

    def discard_dropped(self) -> None:
        """Let go of results whose refs are gone; any thread."""
        for buffer in self._buffers:
            if buffer.dropped:
                buffer.discard_dropped()

    def _look(self) -> bool:
        """Let the window look at what happened since; returns whether there is room."""
        if self._session.is_over:
            raise GraphEnded
        self.discard_dropped()
        submitted = self.submitted
        complete = self.complete()
        self.window.look(submitted, complete, self._admission.room(submitted, complete))
        return submitted - complete < self.window.admitted

    def _advance(self, complete: int, deadline: Deadline) -> None:
        """Wait until so many executions are complete, taking results off every output."""
        try:
            for buffer in self._buffers:
                buffer.advance_to(complete, deadline)
        except NATIVE_ERRORS as error:
            if isinstance(error, _native.TimedOut):
                raise NoRoom from None
            raise self._session.translate(error) from None
