# SPDX-License-Identifier: Apache-2.0
"""The flight recorder of one process of a graph: other processes read it, and spans write to it.

The native core always writes one 64-byte event per op into a ring in shared memory. Reading does
not affect the writer: a reader remembers its position and learns how many events it lost.

A context variable, which the loop of a graph sets on its thread, determines the graph and process
of a user's span. Coroutines and ``asyncio.to_thread`` inherit it. A thread that a method starts
gets it with ``contextvars.copy_context().run``. Outside of a graph's method a span does nothing.
"""

from __future__ import annotations

import contextlib
import enum
import time
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Final, NamedTuple

import numpy as np

from rcg import _native
from rcg.trace.model import EVENT, Events


class State(enum.IntEnum):
    """The state of a process, according to its recorder."""

    IDLE = _native.NOW_IDLE
    RUNNING = _native.NOW_RUNNING
    WAITING = _native.NOW_WAITING


class Now(NamedTuple):
    """What a process does now.

    Attributes:
        pid: Its process id; 0 before it has started.
        op: Index in its program of the op that it is executing, or executed last.
        execution: Index of the execution of that op.
        since_ns: When that op began; 0 before the first one.
        state: Its state.
        ring: Number of the ring that it waits for, if it waits.
        events: Number of events that it has recorded.
    """

    pid: int
    op: int
    execution: int
    since_ns: int
    state: State
    ring: int
    events: int


class Counters(NamedTuple):
    """The counters of a process.

    Attributes:
        waits: Number of waits.
        waited_ns: Total time of waiting.
        shared_bytes: Shared memory that its arena uses.
    """

    waits: int
    waited_ns: int
    shared_bytes: int


def now_of(member: _native.Member, number: int) -> Now:
    """Return what the member with a number does now, also if it is stuck or dead."""
    pid, op, execution, since_ns, state, ring, events = member.now(number)
    return Now(pid, op, execution, since_ns, State(state), ring, events)


def counters_of(member: _native.Member, number: int) -> Counters:
    """Return the counters of the member with a number."""
    return Counters(*member.counters(number))


def events_from(records: bytes) -> Events:
    """Return the native core's records as rows of ``EVENT``, sorted by start."""
    events = np.frombuffer(records, EVENT)
    # A span is written when it ends, after the spans inside it, and threads of a driver interleave.
    order = np.argsort(events["start_ns"], kind="stable")
    return events[order]


class Recorder:
    """Reads the events of one member, from where the last ``drain`` ended.

    Args:
        member: This process in the graph.
        number: Number of the member whose events are read.
        first: Number of the first event to read.
    """

    def __init__(self, member: _native.Member, number: int, first: int = 0) -> None:
        self._member = member
        self._number = number
        self._next = first
        self.lost = 0

    def drain(self) -> Events:
        """Return the events since the last call. Events that were overwritten count as ``lost``."""
        self._next, lost, records = self._member.events(self._number, self._next)
        self.lost += lost
        return events_from(records)


class SpanWriter:
    """Writes the spans of one process of a graph.

    Args:
        member: The process.
        execution: Returns the index of the execution that runs now.
    """

    __slots__ = ("_execution", "_member", "_ops")

    def __init__(self, member: _native.Member, execution: Callable[[], int]) -> None:
        self._member = member
        self._execution = execution
        self._ops: dict[str, int] = {}

    def execution(self) -> int:
        """Return the index of the execution that runs now."""
        return self._execution()

    def write(self, name: str, execution: int, start_ns: int, end_ns: int) -> None:
        """Record a span. A forked child has no recorder, and records nothing."""
        with contextlib.suppress(RuntimeError):
            op = self._ops.get(name)
            if op is None:
                op = self._member.span(name)
                if len(self._ops) < _native.MAX_SPANS:  # later names share one number
                    self._ops[name] = op
            self._member.record(op, execution, start_ns, end_ns)


here: Final[ContextVar[SpanWriter | None]] = ContextVar("rcg_span_writer", default=None)
"""The writer for spans in this context."""


class span:  # noqa: N801 - reads as a function: `with rcg.span("name"):`
    """Record the duration of a block, with a name, in the trace of the graph that runs it.

    It costs about a microsecond, and almost nothing outside of a graph's method. Spans may be
    nested. An exception ends a span as well. A process stores at most 256 names of at most 63
    bytes, so a name should describe the work and not contain values.

    Args:
        name: The name of the span.

    Raises:
        TypeError: The name is not a string.
    """

    __slots__ = ("_at", "_name", "_start_ns", "_writer")

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"rcg.span() takes the span's name as a str, found {name!r}")
        self._name = name

    def __enter__(self) -> span:
        self._writer = here.get()
        self._at = 0 if self._writer is None else self._writer.execution()
        self._start_ns = time.monotonic_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            self._writer.write(self._name, self._at, self._start_ns, time.monotonic_ns())
