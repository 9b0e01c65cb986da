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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rcg import _native
from rcg.channels.shm import NATIVE_ERRORS, Writer
from rcg.errors import GraphError, MessageTooLarge
from rcg.ir.plan import Plan
from rcg.options import Deadline
from rcg.runtime.driver.admission import Admission
from rcg.runtime.driver.output import OutputBuffer
from rcg.runtime.driver.session import Session
from rcg.runtime.driver.window import Window
from rcg.serialization import Codec, Encoded, size_of
from rcg.trace.clocks import now_ns

__all__ = ["AGAIN_S", "Submission", "Inputs", "Key", "NoRoom", "arguments_by_key"]

AGAIN_S: Final = 0.01  # after which a ring is looked at once more

Key = int | str | None


def arguments_by_key(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    keys: Sequence[Key],
    *,
    num_positional: int,
    keywords: Sequence[str],
) -> dict[Key, Any]:
    """Return the value of each input key of an execution; other names are ignored, as in Ray.

    Raises:
        GraphError: Wrong number or names.
    """
    if len(args) != num_positional:
        raise GraphError(
            "dag.execute() or dag.execute_async() must be called with "
            f"{num_positional} positional args, got {len(args)}"
        )
    values: dict[Key, Any] = dict(enumerate(args))
    if None in keys:
        values[None] = args[0]
    for name in keywords:
        if name not in kwargs:
            raise GraphError(
                f"dag.execute() or dag.execute_async() must be called with kwarg `{name}`"
            )
        values[name] = kwargs[name]
    return values


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
        self._plan: Plan = session.plan
        self.keys = [key for key, _ in writers]
        self._op = writers[0][1].op
        self._ends = [writer.end for _, writer in writers]
        self._first = self._ends[0]
        self._submit = session.member.submit
        self._codec = codec
        self._buffers = buffers
        self._cap_bytes: int = session.member.statistics()["cap_bytes"]
        self.is_whole = self.keys == [None]
        self._admission = Admission(session.member, self._cap_bytes)
        self.window = Window(
            limit=session.plan.window,
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
        plan = self._plan
        values = arguments_by_key(
            args,
            kwargs,
            self.keys,
            num_positional=plan.num_positional,
            keywords=plan.keywords,
        )
        started_ns = now_ns()
        encoded = [self._codec.encode(values[key]) for key in self.keys]
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
        is_alone = False
        while True:
            complete = self.complete()
            try:
                if self.try_submit(inputs, refs, stash=is_alone):
                    return refs
                complete = max(complete, self.submitted - self.window.admitted)
            except _native.TimedOut:
                time.sleep(AGAIN_S)  # a reader is about to take a frame
            except _native.NoMemory as error:
                # Alone, what finds no memory passes through the stash.
                if is_alone:
                    raise self._session.translate(error) from None
                is_alone = complete >= self.submitted
            if complete < self.submitted:
                self._advance(complete + 1, deadline)

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
            RcgError: The graph has ended.
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
            raise self._session.end_error()
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
