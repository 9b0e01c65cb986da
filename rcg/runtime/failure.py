# SPDX-License-Identifier: Apache-2.0
"""Failures: the exception of a failed execution on its way from an actor to the driver.

A user's exception arrives as an instance of its own class *and* of Ray's ``RayTaskError``, with the
traceback of the actor. An exception that does not pickle arrives as its text. Errors of rcg itself
(no shared memory, a value that does not pickle) arrive unchanged.

An exception is a user's object, and any use of it may raise. In every case there is a failure with
the best text available, here and at the driver.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from rcg import cluster
from rcg.error_text import (
    describe_error,
    format_error,
    is_ctrl_c_possible,
    shielded,
    shielding,
    shortened,
    trace_of,
    type_name,
)
from rcg.errors import ExecutionError, OutOfThreads, RcgError
from rcg.frames import is_plumbing
from rcg.serialization import Failure
from rcg.threads import start_thread

# Each text of a failure is cut to so many characters, one after the other, until it fits.
_SHORTER: Final = (8_000, 1_000, 100)


@dataclass(frozen=True, slots=True)
class Origin:
    """The actor that an error names."""

    label: str
    actor_id: str
    actor_repr: str
    pid: int
    ip: str


@dataclass(frozen=True, slots=True)
class _FailureReport:
    origin: Origin
    method: str
    execution: int
    traceback_text: str
    cause: bytes | None
    cause_text: str


def capture(error: BaseException, origin: Origin, method: str, execution: int) -> Failure:
    """Return a user's exception as a Failure; called in the actor, within ``except``."""
    trace = trace_of(error)
    while trace is not None and is_plumbing(trace.tb_frame):
        trace = trace.tb_next

    def look() -> None:
        text, described = format_error(error, trace), describe_error(error)
        cause = shielded(_pickle, error, otherwise=None)
        reports.append(_FailureReport(origin, method, execution, text, cause, described))

    reports: list[_FailureReport] = []
    try:
        look()
    except KeyboardInterrupt:
        # The loop has its actor's main thread, where the exception may raise KeyboardInterrupt.
        thread = threading.Thread(target=look, name="rcg-failure")
        try:
            start_thread(thread, "to describe an exception").join()
        except OutOfThreads as lack:
            text = f"{type_name(type(error))} (its text is missing: {lack.message})"
            reports.append(_FailureReport(origin, method, execution, text, None, text))
    return Failure(pickle.dumps(reports[0], 5))


def _pickle(error: BaseException) -> bytes:
    data = cluster.dumps(error)
    cluster.loads(data)  # a constructor that needs arguments fails only here
    return data


def capture_own(error: RcgError) -> Failure:
    """Return an error of rcg as a Failure."""
    return Failure(pickle.dumps(error, 5))


def smaller_failures(failure: Failure) -> Iterator[Failure]:
    """Yield a failure with less and less text, for one that found no memory.

    The last one fits into the smallest slot of a ring, and so needs no memory.
    """
    report: Any = pickle.loads(failure.data)
    for most in _SHORTER:
        if isinstance(report, RcgError):
            facts = {
                name: shortened(fact, most) if isinstance(fact, str) else fact
                for name, fact in report.facts.items()
            }
            yield capture_own(type(report)(shortened(report.message, most), **facts))
        else:
            shorter = dataclasses.replace(
                report,
                traceback_text=shortened(report.traceback_text, most),
                cause=None,
                cause_text=shortened(report.cause_text, most),
            )
            yield Failure(pickle.dumps(shorter, 5))
    yield capture_own(ExecutionError("it failed, and there is no shared memory left for its error"))


def summary_of(failure: Failure) -> str:
    """Return one line that says what failed and how."""
    report: Any = pickle.loads(failure.data)
    if isinstance(report, RcgError):
        return f"{type(report).__name__}: {report.message}"
    return (
        f"{report.origin.label}.{report.method}, execution {report.execution}: {report.cause_text}"
    )


class _Unpicklable(Exception):
    """Stands in for an exception that could not be sent: its text is the original's."""


def to_exception(failure: Failure) -> BaseException:
    """Return the exception to raise at the driver."""
    report: Any = pickle.loads(failure.data)
    if isinstance(report, RcgError):
        return report
    raised: Any = shielded(_as_users, report, otherwise=None)
    if raised is None:
        raised = _as_rays(report, _Unpicklable(report.cause_text))
    # Each by itself: a user's class may forbid any of them.
    with shielding():
        # IPython asks for this. It shows only the traceback of the actor, because the frames that
        # passed the exception on do not help.
        method = f"{report.origin.label}.{report.method}"
        lines = partial(_render, method, report.execution, report.traceback_text)
        raised._render_traceback_ = lines
    with shielding():
        BaseException.add_note(raised, f"(execution {report.execution} of a compiled graph)")
    with shielding():
        if not hasattr(raised, "execution"):
            raised.execution = report.execution
    return raised  # type: ignore[no-any-return]


def _as_users(report: _FailureReport) -> BaseException | None:
    """Return the exception in the user's own type, whose class may raise; None without a pickle."""
    if report.cause is None:
        return None
    cause = cluster.loads(report.cause)
    error = _as_rays(report, cause)
    # SystemExit, KeyboardInterrupt and CancelledError concern the actor: raised here in their own
    # type they would end this program, or cancel a coroutine.
    return cluster.as_user_error(error) if issubclass(type(cause), Exception) else error


def _as_rays(report: _FailureReport, cause: BaseException) -> BaseException:
    """Return the exception as Ray's ``RayTaskError`` alone."""
    origin = report.origin
    error: BaseException = cluster.task_error(
        f"{origin.label}.{report.method}",
        report.traceback_text,
        cause,
        pid=origin.pid,
        ip=origin.ip,
        actor_repr=origin.actor_repr,
        actor_id=origin.actor_id,
    )
    return error


def error_of_unpickling(error: BaseException, decode: Callable[[], object]) -> Exception:
    """Return the error for a result that cannot be unpickled here; called within ``except``.

    Args:
        error: The exception of unpickling.
        decode: Unpickles again.

    Raises:
        BaseException: ``error`` itself if the result did not cause it, but Ctrl-C or a signal
            handler that exits. Nothing has changed then.
    """
    if issubclass(type(error), Exception):
        return error  # type: ignore[return-value]
    if not issubclass(type(error), KeyboardInterrupt) or not is_ctrl_c_possible():
        try:
            decode()
        except BaseException as again:
            if issubclass(type(again), KeyboardInterrupt) and is_ctrl_c_possible():
                raise
            # In its own type it would end this program, or cancel a coroutine.
            made = ExecutionError(f"its result cannot be unpickled: {describe_error(error)}")
            made.__cause__ = error
            return made
    try:
        raise error
    finally:
        del error  # its traceback has this frame


def _render(method: str, execution: int, traceback_text: str) -> list[str]:
    """Return the lines that IPython shows in place of the local traceback."""
    lines = [f"in the actor's method {method}, execution {execution}:", traceback_text.rstrip()]
    trace = sys.last_traceback if hasattr(sys, "last_traceback") else None
    frames = shielded(traceback.extract_tb, trace, otherwise=traceback.StackSummary())
    own = [frame for frame in frames if f"{os.sep}rcg{os.sep}" not in frame.filename]
    if own and own[-1].line:
        lines += ["", f"got at line {own[-1].lineno}:  {own[-1].line}"]
    return lines
