# SPDX-License-Identifier: Apache-2.0
"""Spans of the user's: ``with rcg.span("attention"):`` inside a method shows up in the trace.

Where a span belongs is a context variable that a graph's loop sets on its thread. It goes along
into coroutines and into ``asyncio.to_thread``; a thread that a method starts by itself gets it with
``contextvars.copy_context().run``. Outside of a graph's method a span does nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Final

from rcg import _native

__all__ = ["SpanWriter", "here", "span"]


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
        """Record a span; not in a forked child, which has no recorder."""
        with contextlib.suppress(RuntimeError):
            op = self._ops.get(name)
            if op is None:
                op = self._member.span(name)
                if len(self._ops) < _native.MAX_SPANS:  # those that come later share one
                    self._ops[name] = op
            self._member.record(op, execution, start_ns, end_ns)


here: Final[ContextVar[SpanWriter | None]] = ContextVar("rcg_span_writer", default=None)
"""Where spans of this context are written."""


class span:  # noqa: N801 - reads as a function: `with rcg.span("name"):`
    """Record how long the block takes, under a name, in the trace of the graph that runs it.

    Costs about a microsecond, and next to nothing where no graph's method runs. Spans may be
    nested, and an exception ends them like anything else. A process keeps at most 256 names of at
    most 63 bytes: let a name say what is done, not with which value.

    Args:
        name: What the block does.

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
