# SPDX-License-Identifier: Apache-2.0
"""What a failed execution carries: an exception on its way from an actor to the driver.

Users' exceptions arrive as instances of their own class *and* of Ray's ``RayTaskError``, with the
traceback of the actor. An exception that does not pickle still arrives, as its text. Errors of rcg
itself (no shared memory, a value that does not pickle) arrive as what they are.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import traceback
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from rcg import cluster
from rcg.channels.shm import Failure
from rcg.errors import RcgError

__all__ = ["FRAMES_OF_OTHERS", "Origin", "capture", "capture_own", "describe", "to_exception"]

# What stands between the loop and the user's method: nothing he wants to read about.
FRAMES_OF_OTHERS: Final = (
    "rcg/runtime/worker.py",
    "rcg/runtime/coroutines.py",
    "concurrent/futures/_base.py",
    "ray/util/tracing/tracing_helper.py",
)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where methods run: what an error says about its actor."""

    label: str
    actor_id: str
    actor_repr: str
    pid: int
    ip: str


@dataclass(frozen=True, slots=True)
class _Report:
    origin: Origin
    method: str
    execution: int
    traceback_text: str
    cause: bytes | None
    cause_text: str


def capture(error: BaseException, origin: Origin, method: str, execution: int) -> Failure:
    """Return a user's exception as a Failure; called in the actor, within ``except``."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.endswith(FRAMES_OF_OTHERS):
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    cause: bytes | None
    try:
        cause = cluster.dumps(error)
        cluster.loads(cause)  # a constructor that needs arguments fails only here
    except Exception:  # noqa: BLE001 - users' exceptions run users' code
        cause = None
    described = "".join(traceback.format_exception_only(error)).strip()
    report = _Report(origin, method, execution, text, cause, described)
    return Failure(pickle.dumps(report, 5))


def capture_own(error: RcgError) -> Failure:
    """Return an error of rcg as a Failure."""
    return Failure(pickle.dumps(error, 5))


def describe(failure: Failure) -> str:
    """Return what failed, and how, in a line."""
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
    cause: BaseException
    try:
        cause = (
            _Unpicklable(report.cause_text) if report.cause is None else cluster.loads(report.cause)
        )
    except Exception:  # noqa: BLE001 - the class may not be importable here
        cause = _Unpicklable(report.cause_text)
    origin = report.origin
    error = cluster.task_error(
        f"{origin.label}.{report.method}",
        report.traceback_text,
        cause,
        pid=origin.pid,
        ip=origin.ip,
        actor_repr=origin.actor_repr,
        actor_id=origin.actor_id,
    )
    # What is no Exception (SystemExit, KeyboardInterrupt, CancelledError) happened to the actor:
    # raised here in its own type it would end this program, or cancel a coroutine.
    raised: Any = cluster.as_user_error(error) if isinstance(cause, Exception) else error
    with contextlib.suppress(Exception):  # a class of the user's may forbid it
        # IPython asks for this. It shows what happened in the actor; how rcg passed it on is
        # nothing that anybody wants to read.
        raised._render_traceback_ = partial(
            _rendered, f"{origin.label}.{report.method}", report.execution, report.traceback_text
        )
        raised.add_note(f"(execution {report.execution} of a compiled graph)")
        if not hasattr(raised, "execution"):
            raised.execution = report.execution
    return raised  # type: ignore[no-any-return]


def _rendered(method: str, execution: int, traceback_text: str) -> list[str]:
    """Return the lines that IPython shows in place of the local traceback."""
    lines = [f"in the actor's method {method}, execution {execution}:", traceback_text.rstrip()]
    trace = sys.last_traceback if hasattr(sys, "last_traceback") else None
    own = [f for f in traceback.extract_tb(trace) if f"{os.sep}rcg{os.sep}" not in f.filename]
    if own and own[-1].line:
        lines += ["", f"got at line {own[-1].lineno}:  {own[-1].line}"]
    return lines
