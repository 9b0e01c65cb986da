# SPDX-License-Identifier: Apache-2.0
"""The user's spans: ``with rcg.span("attention"):`` inside a method records an event in the trace.

A context variable, which the loop of a graph sets on its thread, determines the graph and process
of a span. Coroutines and ``asyncio.to_thread`` inherit it. A thread that a method starts gets it
with ``contextvars.copy_context().run``. Outside of a graph's method a span does nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import Final

from rcg import _native


class SpanWriter:
    """Writes the spans of one process of a graph."""

    __slots__ = ("_execution", "_member", "_ops")

    def __init__(self, member: _native.Member, execution: Callable[[], int]) -> None:
        self._member = member
        self._execution = execution
        self._ops: dict[str, int] = {}

    def execution(self) -> int:
        """Return the index of the execution that runs now."""
        return self._execution()

    @contextlib.contextmanager
    def moving(self, size: int) -> Iterator[None]:
        """Count a block in the middle of decoding as moving so many bytes, in the op that runs."""
        with contextlib.suppress(RuntimeError):
            self._member.transferring()
        try:
            yield
        finally:
            with contextlib.suppress(RuntimeError):
                self._member.transferred(size, True)

    def write(self, name: str, execution: int, start_ns: int, end_ns: int, stream: int = 0) -> None:
        """Record a span, or what a device did on a stream (``rcg.trace.model.stream_number``).

        A forked child has no recorder, and records nothing.
        """
        with contextlib.suppress(RuntimeError):
            op = self._ops.get(name)
            if op is None:
                op = self._member.span(name)
                if len(self._ops) < _native.MAX_SPANS:  # later names share one number
                    self._ops[name] = op
            self._member.record(op, execution, start_ns, end_ns, stream)


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
