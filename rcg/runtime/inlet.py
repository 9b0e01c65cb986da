# SPDX-License-Identifier: Apache-2.0
"""The way into a graph: checking arguments, making room, writing the inputs of an execution.

Any thread may submit. The lock is held while inputs are written and never while anything is waited
for, so an event loop can submit beside threads that wait. All inputs of an execution are written in
one step of the native core, or none.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rcg import _native
from rcg.channels.segments import MOST_IN_FLIGHT
from rcg.channels.shm import NATIVE_ERRORS, Writer, write_all
from rcg.errors import GraphError, MessageTooLarge
from rcg.options import Deadline
from rcg.plan import Plan
from rcg.runtime.admission import Admission
from rcg.runtime.outlet import Outlet
from rcg.runtime.results import confirm
from rcg.runtime.session import Session
from rcg.runtime.window import Window
from rcg.trace.clocks import now_ns
from rcg.values import Codec, Encoded, size_of

__all__ = ["Inlet", "Inputs", "Key", "NoRoom", "arguments_by_key"]

Key = int | str | None
# Makes the refs of an execution, before it is written.
Begin = Callable[[int], Any]


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


class Inlet:
    """The driver's end of all input channels, and the window.

    Args:
        session: The graph.
        writers: The channel of each input key; None is the whole input.
        outlets: Where results arrive; emptied while room is waited for.
        finished: Outputs that were fetched or dropped, for the window to count, as one number
            each: ``execution * len(outlets) + outlet.number``.
    """

    def __init__(
        self,
        session: Session,
        writers: Sequence[tuple[Key, Writer]],
        codec: Codec,
        outlets: Sequence[Outlet],
        finished: deque[int],
    ) -> None:
        options = session.options
        self._session = session
        self._plan: Plan = session.plan
        self.keys = [key for key, _ in writers]
        self._writers = [writer for _, writer in writers]
        self._write_one = self._writers[0].write
        self._codec = codec
        self._outlets = outlets
        self._finished = finished
        self._lock = threading.Lock()
        self._cap_bytes: int = session.member.statistics()["cap_bytes"]
        self.is_whole = self.keys == [None]
        self._admission = Admission(session.member, self._cap_bytes)
        self.window = Window(
            limit=min(options.max_inflight_executions, MOST_IN_FLIGHT),
            capacity=options.max_inflight_executions,
            buffered_limit=options.max_buffered_results,
            outputs=len(outlets),
            is_strict=options.is_inflight_limit_set_by_user,
        )

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

    def submit_value(self, value: Any, begin: Begin) -> Any:
        """Submit one execution whose only input is this value: the commonest shape, spelt out."""
        window = self.window
        with self._lock:
            if window.submitted < window.free_until:
                refs = None
                try:
                    # The refs come first: whatever happens from here on, one that goes away lets
                    # go of what was written.
                    refs = begin(window.submitted)
                    self._write_one(value)
                    confirm(refs)
                    window.submit()
                    return refs
                except _native.NoMemory:
                    window.free_until = 0
                except NATIVE_ERRORS as error:
                    window.free_until = 0
                    raise self._session.translate(error) from None
                except BaseException:
                    window.free_until = 0  # maybe Ctrl-C in between: see _mend
                    raise
        return self.submit(self.encode((value,), {}), begin)

    def submit(self, inputs: Inputs, begin: Begin) -> Any:
        """Submit one execution, waiting for room and for memory; returns its refs.

        Args:
            inputs: What ``encode`` made.
            begin: Makes the refs of the execution.

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
                refs = self.try_submit(inputs, begin, stash=is_alone)
            except _native.NoMemory as error:
                if is_alone:
                    raise self._session.translate(error) from None
                is_alone = complete >= self.window.submitted
            else:
                if refs is not None:
                    return refs
                complete = self.window.submitted - self.window.admitted
            if complete < self.window.submitted:
                self._advance(complete + 1, deadline)

    def try_submit(self, inputs: Inputs, begin: Begin, *, stash: bool = False) -> Any:
        """Submit one execution without waiting; returns its refs, or None if there is no room.

        Raises:
            _native.NoMemory: There is no shared memory for it now; nothing was written.
            CapacityExceededError: Waiting would not help.
            RcgError: The graph has ended.
        """
        window = self.window
        with self._lock:
            if window.submitted >= window.free_until and not self._look():
                return None
            refs = None
            try:
                refs = begin(window.submitted)
                write_all(self._session.member, self._writers, inputs.values, stash=stash)
                confirm(refs)
                self._record(window.submit(), inputs)
                return refs
            except _native.NoMemory:
                raise
            except NATIVE_ERRORS as error:
                raise self._session.translate(error) from None
            except BaseException:
                window.free_until = 0
                raise

    def _record(self, execution: int, inputs: Inputs) -> None:
        """Tell the flight recorder how long encoding took, which only now belongs to something."""
        start_ns, end_ns = inputs.started_ns, inputs.ended_ns
        is_coded = any(value[0] != _native.KIND_BYTES for value in inputs.values)
        if start_ns and is_coded and self._session.options.record:
            self._session.member.record(
                self._writers[0].op, execution, start_ns, end_ns, end_ns - start_ns
            )

    def complete(self) -> int:
        """Count what has arrived; returns how many executions are complete."""
        outlets = self._outlets
        complete = outlets[0].arrived
        for outlet in outlets:
            arrived = outlet.arrived
            if arrived < complete:
                complete = arrived
        self.window.arrive(complete)
        return complete

    def look(self) -> None:
        """Have the window count what was fetched, dropped and completed since; any thread."""
        with self._lock:
            self._mend()
            self._count()

    def _look(self) -> bool:
        """Let the window look at what happened since; returns whether there is room."""
        if self._session.is_over:
            raise self._session.end_error()
        self._mend()
        self._count()
        window = self.window
        window.look(self._admission.room(window.submitted, window.complete))
        return not window.is_full

    def _count(self) -> None:
        while self._finished:
            # Released first, which may be repeated: Ctrl-C in between loses nothing.
            self.window.release(*divmod(self._finished[0], len(self._outlets)))
            self._finished.popleft()
        for outlet in self._outlets:
            if outlet.dropped:
                outlet.discard_dropped()
        self.complete()

    def _mend(self) -> None:
        """Count an execution that was written by an ``execute`` that Ctrl-C interrupted.

        Nobody has a ref of it: its results are dropped.
        """
        while self.window.submitted < self._writers[0].seq:
            execution = self.window.submit()
            for outlet in self._outlets:
                outlet.dropped.append(execution)
                self._finished.append(execution * len(self._outlets) + outlet.number)

    def _advance(self, complete: int, deadline: Deadline) -> None:
        """Wait until so many executions are complete, taking results off every output."""
        try:
            for outlet in self._outlets:
                outlet.advance_to(complete, deadline)
        except NATIVE_ERRORS as error:
            if isinstance(error, _native.TimedOut):
                raise NoRoom from None
            raise self._session.translate(error) from None
