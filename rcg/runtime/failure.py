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
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar

from rcg import cluster
from rcg.callers import not_an_end
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
from rcg.frames import cell_name, is_of_library, is_plumbing, place_text, source_of
from rcg.serialization import Failure
from rcg.text import brief, visible
from rcg.threads import start_thread

_P = ParamSpec("_P")
_T = TypeVar("_T")

# Each text of a failure is cut to so many characters, one after the other, until it fits.
_SHORTER: Final = (8_000, 1_000, 100)
# A frame of a traceback, with its source if there is any.
_FRAME: Final = re.compile(
    r'  File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<name>.+)\n(?:    .*\n)*'
)


@dataclass(frozen=True, slots=True)
class Origin:
    """The actor that an error names. ``process`` is its id in the plan, "" outside of a graph."""

    label: str
    actor_id: str
    actor_repr: str
    pid: int
    ip: str
    process: str = ""


@dataclass(frozen=True, slots=True)
class _FailureReport:
    origin: Origin
    method: str
    execution: int
    traceback_text: str
    cause: bytes | None
    cause_text: str
    place: tuple[str, int, str] | None = None  # file, line and source of the user's innermost line

    @property
    def where(self) -> str:
        """What failed, and at which line: ```Stage.work` of a3, execution 3, In [7] line 4``."""
        label, method = self.origin.label, self.method
        actor = f" of {self.origin.process}" if self.origin.process else ""
        # What the loop itself does has no name: "(sending its result)".
        what = f"`{label}`{actor} {method}" if method[:1] == "(" else f"`{label}.{method}`{actor}"
        text = f"{what}, execution {self.execution}"
        if self.place is None:
            return text
        file, line, source = self.place
        source = brief(source_of(file, line) or source)  # of a cell the driver alone has it
        return f"{text}, {visible(place_text(file, line))}{f': {source}' if source else ''}"


def capture(error: BaseException, origin: Origin, method: str, execution: int) -> Failure:
    """Return a user's exception as a Failure; called in the actor, within ``except``."""
    trace = trace_of(error)
    while trace is not None and is_plumbing(trace.tb_frame):
        trace = trace.tb_next
    raised = not_an_end(error, f"{origin.label}.{method}")
    if raised is not error:
        BaseException.with_traceback(error, trace)  # which its text has

    def look() -> None:
        text = format_error(raised, None if raised is not error else trace)
        described = describe_error(raised)
        cause, place = shielded(_pickle, raised, otherwise=None), _place_of(trace)
        reports.append(_FailureReport(origin, method, execution, text, cause, described, place))

    reports: list[_FailureReport] = []
    try:
        look()
    except KeyboardInterrupt:
        # The loop has its actor's main thread, where the exception may raise KeyboardInterrupt.
        thread = threading.Thread(target=look, name="rcg-failure", daemon=True)
        try:
            start_thread(thread, "to describe an exception").join()
        except OutOfThreads as lack:
            text = f"{type_name(type(raised))} (its text is missing: {lack.message})"
            reports.append(_FailureReport(origin, method, execution, text, None, text))
    return Failure(pickle.dumps(reports[0], 5))


def _place_of(trace: TracebackType | None) -> tuple[str, int, str] | None:
    """Return file, line and source of the innermost line, of the user's own code if any."""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace)]
    own = [each for each in places if not is_of_library(each[0])] or places
    return (*own[-1], brief(source_of(*own[-1]))) if own else None


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
    where = shielded(lambda: report.where, otherwise="")
    with shielding():
        # IPython asks for this. It shows only the traceback of the actor, because the frames that
        # passed the exception on do not help.
        raised._render_traceback_ = partial(_render, where, _with_sources(report.traceback_text))
    with shielding():
        BaseException.add_note(raised, f"in {where}")
    with shielding():
        if getattr(raised, "execution", None) is None:
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
        _with_sources(report.traceback_text),
        cause,
        pid=origin.pid,
        ip=origin.ip,
        actor_repr=origin.actor_repr,
        actor_id=origin.actor_id,
    )
    return error


def error_of_unpickling(error: BaseException, decode: Callable[[], object]) -> Exception:
    """Return the error for a result that cannot be unpickled here; called within ``except``.

    Raises:
        BaseException: ``error`` itself if the result did not cause it, but Ctrl-C or a signal
            handler that exits. Nothing has changed then.
    """
    error = not_an_end(error, "unpickling its result")
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


def _with_sources(traceback_text: str) -> str:
    """Return a traceback of an actor with the lines of the cells, which only the driver knows."""

    def line_of(found: re.Match[str]) -> str:
        file, line = found["file"], int(found["line"])
        cell = cell_name(file)
        if cell is None:
            return found[0]
        return f"  {cell} line {line}, in {found['name']}\n    {source_of(file, line)}\n"

    return _FRAME.sub(line_of, traceback_text)


def _render(where: str, traceback_text: str) -> list[str]:
    """Return the lines that IPython shows in place of the local traceback."""
    lines = [f"in {where}", traceback_text.rstrip()]
    trace = sys.last_traceback if hasattr(sys, "last_traceback") else None
    frames = shielded(traceback.extract_tb, trace, otherwise=traceback.StackSummary())
    own = [frame for frame in frames if f"{os.sep}rcg{os.sep}" not in frame.filename]
    if own and own[-1].line:
        lines += ["", f"got at line {own[-1].lineno}:  {own[-1].line}"]
    return lines
