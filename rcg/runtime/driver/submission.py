# SPDX-License-Identifier: Apache-2.0
"""Submission: checking arguments, making room, and publishing the inputs of an execution.

Any thread may submit, also from code that runs in the middle of another submission: pickling,
``__del__``, a signal handler. There is no lock. Arguments are encoded first, which runs users'
code, and refs are made, which belong to no execution yet. Then one step of the native core does
the rest or nothing: it compares the limit, gives the execution its number, enters it into the
window, assigns the refs and publishes all inputs.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rcg.channels.base import FrameWriter, GraphEnded, NoMemory, Signal, TimedOut
from rcg.errors import MessageTooLarge
from rcg.ir.signature import ExecutionSignature, Key
from rcg.options import Deadline
from rcg.runtime.by_reference import ByReference, has_references, lower_inputs
from rcg.runtime.driver.output import OutputBuffer
from rcg.runtime.driver.session import Session
from rcg.runtime.driver.window import Admission, Window
from rcg.runtime.refs import NEW, watch_of_submitting
from rcg.runtime.watch import Watch
from rcg.serialization import KIND_BYTES, Encoded, join_parts, size_of
from rcg.text import graph_title
from rcg.trace.clocks import now_ns

NO_ROOM: Final = "there was no room for another execution"
RING_POLL_S: Final = 0.01  # between two looks at a ring whose reader is about to take a frame


@dataclass(frozen=True, slots=True)
class InputChannel:
    """A channel that takes inputs to their readers.

    Attributes:
        writer: The writing end.
        op: Index of its Write in the driver's program.
        keys: The inputs that it carries, one for each part of a frame; None is the whole input.
        nodes: The node of the graph of each.
    """

    writer: FrameWriter
    op: int
    keys: tuple[Key, ...]
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Inputs:
    """The encoded inputs of one execution: a value for each channel, which may have several parts.

    Attributes:
        started_ns, ended_ns: When encoding them began and ended; 0 if another process did it.
        references: The references among them, to be held until the actors have read them.
    """

    values: list[Encoded]
    started_ns: int = 0
    ended_ns: int = 0
    references: tuple[ByReference, ...] = ()


class _Hold:
    """An execution that has references among its inputs."""

    def __init__(self, submission: Submission, ref: Any) -> None:
        self._submission = weakref.ref(submission)
        self._graph = submission.graph_id
        self._ref = weakref.ref(ref)
        self._execution: int | None = None

    def is_over(self) -> bool:
        """Whether all of its results have come, or it was not submitted and never will be."""
        submission, ref = self._submission(), self._ref()
        if submission is None:
            return True
        if self._execution is None:
            if ref is not None and ref.state == NEW:
                return False
            # Without its ref the number is not known: it is one of those that are submitted.
            self._execution = submission.submitted - 1 if ref is None else ref.execution
        return submission.has_completed(self._execution)

    def label(self) -> str:
        """Return what messages call it."""
        number = "an execution" if self._execution is None else f"execution {self._execution}"
        submission = self._submission()
        graph = graph_title("", self._graph) if submission is None else submission.title
        return f"{number} of {graph}"


class Submission:
    """The driver's end of all input channels, and the window.

    Args:
        session: The graph.
        inputs: The input channels.
        buffers: Where results arrive; emptied while room is waited for.
    """

    def __init__(
        self, session: Session, inputs: Sequence[InputChannel], buffers: Sequence[OutputBuffer]
    ) -> None:
        options, plan = session.options, session.plan
        self.signature = ExecutionSignature(
            tuple([key for channel in inputs for key in channel.keys]),
            plan.num_positional,
            tuple(plan.keywords),
        )
        # How many arguments there are if they are the inputs, in this order; -1 if they are not.
        is_positional = self.signature.keys == tuple(range(plan.num_positional))
        self._num_positional = plan.num_positional if is_positional else -1
        self._op = inputs[0].op
        self._writers = [channel.writer for channel in inputs]
        self._nodes = [node for channel in inputs for node in channel.nodes]
        # Where the inputs of each channel are among those of the signature.
        ends = list(itertools.accumulate(len(channel.keys) for channel in inputs))
        self._parts = [slice(*pair) for pair in zip([0, *ends], ends, strict=False)]
        self._first = self._writers[0]
        self._session = session
        self.graph_id = session.graph_id
        self._node = session.node
        self._submit = session.node.submit
        self._codec = session.node.codec
        self._buffers = buffers
        self._cap_bytes = session.host.cap_bytes
        self.is_whole = self.signature.keys == (None,)
        self._admission = Admission(session.node, self._cap_bytes)
        self.window = Window(
            limit=plan.window,
            capacity=options.max_inflight_executions,
            buffered_limit=options.max_buffered_results,
            outputs=len(buffers),
            is_strict=options.is_inflight_limit_set_by_user,
        )

    @property
    def title(self) -> str:
        """What messages call the graph."""
        return self._session.title

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
            Exception: As ``lower_inputs``.
        """
        if len(args) == self._num_positional:
            values: Sequence[Any] = args
        else:
            values = self.signature.values(args, kwargs)
        references: tuple[ByReference, ...] = ()
        if has_references(values):
            values, references = self._lower(values)
        started_ns = now_ns()
        codec = self._codec
        encoded = [
            codec.encode(values[parts.start])
            if parts.stop - parts.start == 1
            else codec.encode_parts(values[parts])
            for parts in self._parts
        ]
        if references:
            return Inputs(encoded, started_ns, now_ns(), references)
        return Inputs(encoded, started_ns, now_ns())

    def _lower(self, values: Sequence[Any]) -> tuple[list[Any], tuple[ByReference, ...]]:
        """Return inputs as they travel, and the references among them; waits for their values."""
        session = self._session

        def readers_of(at: int) -> list[Any]:
            return [session.handles[each] for each in session.plan.readers_of(self._nodes[at])]

        return lower_inputs(values, readers_of, session.options.submit_timeout_s)

    def join(self, encoded: Sequence[Encoded]) -> Inputs:
        """Return the inputs of the signature, encoded one by one, as the channels carry them."""
        values = [encoded[parts] for parts in self._parts]
        return Inputs([value[0] if len(value) == 1 else join_parts(value) for value in values])

    def _check_size(self, inputs: Inputs) -> None:
        size_bytes, limit_bytes = sum(map(size_of, inputs.values)), self._cap_bytes
        if size_bytes > limit_bytes:
            raise MessageTooLarge(
                f"arguments of {size_bytes:,} bytes do not fit into the graph's shared memory of "
                f"{limit_bytes:,} bytes: raise `memory_cap_bytes` or pass them in parts",
                size_bytes=size_bytes,
                limit_bytes=limit_bytes,
            )

    # --- submitting

    def submit_value(self, value: Any, refs: Any) -> Any:
        """Submit one execution whose only input is this value: the commonest shape, spelt out."""
        started_ns = 0
        if type(value) is bytes:
            encoded: Encoded = KIND_BYTES, value, None, 0
        elif isinstance(value, ByReference):
            return self.submit(self.encode((value,), {}), refs)
        else:
            started_ns = now_ns()
            encoded = self._codec.encode(value)
        window = self.window
        try:  # as in `submit`, without a call more
            if (
                self._submit(
                    ((self._first, *encoded),),
                    window.free_until,
                    window.left,
                    window.wanted,
                    refs,
                    started_ns,
                )
                is not None
            ):
                return refs
        except (NoMemory, TimedOut):
            pass
        except Signal as signal:
            raise self._session.public(signal) from None
        return self._submit_later(Inputs([encoded], started_ns, now_ns()), refs)

    def submit(self, inputs: Inputs, refs: Any, early_s: float = 0.0) -> Any:
        """Submit one execution, waiting for room and for memory; returns its refs.

        It ends so long before the submit timeout, if there is no room.

        Raises:
            ChannelTimeout: There was none within the submit timeout; nothing was submitted.
            MessageTooLarge: They can never fit.
            OutOfSharedMemory: No execution is in flight that could return memory.
            CapacityExceededError, RcgError: As in ``try_submit``.
        """
        if inputs.references:
            self.hold(inputs, refs)
            return self._submit_later(inputs, refs, early_s)
        frames, window = self._frames(inputs), self.window
        started_ns = inputs.started_ns  # encoding has just ended
        try:
            if (
                self._submit(
                    frames, window.free_until, window.left, window.wanted, refs, started_ns
                )
                is not None
            ):
                return refs
        except (NoMemory, TimedOut):
            pass
        except Signal as signal:
            raise self._session.public(signal) from None
        return self._submit_later(inputs, refs, early_s)

    def _frames(self, inputs: Inputs) -> tuple[Any, ...]:
        """Return a ``(writer, *encoded)`` for each input channel."""
        pairs = zip(self._writers, inputs.values, strict=True)
        return tuple([(writer, *value) for writer, value in pairs])

    def _submit_later(self, inputs: Inputs, refs: Any, early_s: float = 0.0) -> Any:
        """Submit one execution, waiting for what is in the way; see ``submit``."""
        limit_s = self._session.options.submit_timeout_s
        deadline = Deadline(None if limit_s is None else max(0.0, limit_s - early_s))
        watch = watch_of_submitting(refs, deadline)
        try:
            for execution in self.attempts(inputs, refs):
                is_late, has_come = watch.is_late, False
                if execution is not None:
                    has_come = self._advance(execution + 1, watch, deadline)
                elif not is_late:
                    time.sleep(RING_POLL_S)
                if is_late and not has_come:
                    raise watch.error(NO_ROOM)
                watch.look()
        except GraphEnded:
            raise self._session.end_error(deadline) from None
        return refs

    def attempts(self, inputs: Inputs, refs: Any) -> Iterator[int | None]:
        """Submit one execution, and yield what to wait for between two attempts.

        It does not wait itself, so that a thread and an event loop can each wait in their own way.

        Yields:
            The execution that has to be complete before the next attempt; None if a reader is about
            to take a frame, for which ``RING_POLL_S`` is long enough.

        Raises:
            MessageTooLarge: The inputs can never fit.
            OutOfSharedMemory: No execution is in flight that could return memory.
            GraphEnded, CapacityExceededError, RcgError: As in ``try_submit``.
        """
        self._check_size(inputs)
        is_alone = False
        while True:
            is_late = False
            complete = self.complete()
            try:
                if self.try_submit(inputs, refs, stash=is_alone):
                    return
                complete = max(complete, self.submitted - self.window.admitted)
            except TimedOut:
                is_late = True
            except NoMemory as signal:
                # An execution that is alone may use the stash.
                if is_alone:
                    raise self._session.public(signal) from None
                is_alone = complete >= self.submitted
            if is_late:
                yield None
            if complete < self.submitted:
                yield complete

    def try_submit(self, inputs: Inputs, refs: Any, *, stash: bool = False) -> bool:
        """Submit one execution without waiting; returns whether there was room in the window.

        Args:
            inputs: The result of ``encode``.
            refs: The ref or the list of refs for its results.
            stash: Whether values without shared memory are kept on the heap until they are read.

        Raises:
            NoMemory: There is no shared memory for it now; nothing was written.
            TimedOut: A reader is a whole ring behind; nothing was written.
            CapacityExceededError: Waiting would not help.
            GraphEnded: The graph has ended.
            RcgError: A channel cannot be used any more.
        """
        window = self.window
        if self.submitted >= window.free_until and not self._look():
            return False
        try:
            execution = self._submit(
                self._frames(inputs), window.free_until, window.left, window.wanted, refs, 0, stash
            )
        except (NoMemory, TimedOut, GraphEnded):
            raise
        except Signal as signal:
            raise self._session.public(signal) from None
        if execution is None:
            return False  # another thread was quicker
        self._record(execution, inputs)
        return True

    def hold(self, inputs: Inputs, refs: Any) -> None:
        """Hold the references among inputs until all results of their execution have come.

        Call it before they are submitted: then Ctrl-C leaves no execution without its inputs.
        """
        hold = _Hold(self, refs[0] if isinstance(refs, list) else refs)
        for each in inputs.references:
            each.hold_until(hold.is_over, hold.label)

    def has_completed(self, execution: int) -> bool:
        """Return whether an execution is complete, or never will be."""
        with contextlib.suppress(Signal):  # it has ended
            for buffer in self._buffers:
                if buffer.arrived <= execution:
                    buffer.take_pending()
        return self._session.is_over or self.complete() > execution

    def _record(self, execution: int, inputs: Inputs) -> None:
        """Record how long encoding took, which only now belongs to an execution."""
        start_ns, end_ns = inputs.started_ns, inputs.ended_ns
        is_coded = any(value[0] != KIND_BYTES for value in inputs.values)
        if start_ns and is_coded and self._session.options.record:
            self._node.record(self._op, execution, start_ns, end_ns, end_ns - start_ns)

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
        """Update the window; return whether there is room."""
        if self._session.is_over:
            raise GraphEnded(self._session.is_closed)
        self.discard_dropped()
        submitted = self.submitted
        complete = self.complete()
        self.window.look(submitted, complete, self._admission.room(submitted, complete))
        return submitted - complete < self.window.admitted

    def _advance(self, complete: int, watch: Watch, deadline: Deadline) -> bool:
        """Wait until so many executions are complete, taking results off every output.

        It returns False when there is something to do for the watch before.
        """
        try:
            for buffer in self._buffers:
                buffer.advance_to(complete, watch.next_s())
        except TimedOut:
            return False
        except Signal as signal:
            raise self._session.public(signal, deadline) from None
        return True
