# SPDX-License-Identifier: Apache-2.0
"""Where the traceback of an exception ends that a public function raises: at the user's line.

```
user's line     found = p.what_if({"Stage.fdw": 0.5})        shown
rcg             what_if, _factors, ...                       taken off
user's code     a method, or a value's own code, if any      shown
```

This room knows errors and frames, and neither Ray nor what raises.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable
from types import TracebackType
from typing import Final, ParamSpec, TypeVar

from rcg.error_text import describe_error, trace_of
from rcg.errors import ENDS, ExecutionError, InternalError, RayTaskError, RcgError
from rcg.frames import is_of_library, is_ours

_P = ParamSpec("_P")
_T = TypeVar("_T")
_RAISE: Final = dis.opmap["RAISE_VARARGS"]
_CACHE: Final = dis.opmap["CACHE"]
_CALLS: Final = frozenset(code for name, code in dis.opmap.items() if name.startswith("CALL"))


def not_an_end(error: BaseException, what: str) -> BaseException:
    """Return what to raise in place of a user's exception that Python takes for an end.

    ``list(map(get, refs))`` would end in silence where ``get`` raised StopIteration, and a future
    cannot have it. As in a generator (PEP 479) the user's exception is the cause of an error.

    Args:
        error: Any exception; all others are returned.
        what: What has raised it: ``Rows.next``.
    """
    if not issubclass(type(error), ENDS):
        return error
    made = ExecutionError(f"{what} raised {describe_error(error)}")
    made.__cause__ = error
    return made


def end_at_caller(error: BaseException) -> None:
    """Take rcg's own frames off the outer end of the traceback of an exception meant for users.

    To be called in a handler of the function that the user called, which then raises again: Python
    adds no frame for that, so the traceback goes from the user's line to code of theirs, if any.
    Exceptions that are not meant for users, which are bugs, keep all frames: what no ``raise`` of
    rcg raised.

    Raises:
        ExecutionError: It would be taken for an end; see ``not_an_end``.
    """
    kind = type(error)
    if issubclass(kind, ENDS):
        raise not_an_end(error, "a method, or a value's own code,")
    if issubclass(kind, InternalError):
        return
    whole = trace = trace_of(error)
    while trace is not None and is_ours(trace.tb_frame):
        trace = trace.tb_next
    if issubclass(kind, _MEANT) or _is_ours_to_say(kind, whole) or _has_users_code(trace):
        BaseException.with_traceback(error, trace)  # a user's class may have its own


def leave_out_caller(error: BaseException) -> None:
    """Take the frame of the caller off the traceback of an exception that it passes on."""
    trace = trace_of(error)
    BaseException.with_traceback(error, trace and trace.tb_next)


_MEANT: Final = (RcgError, KeyboardInterrupt, RayTaskError)


def _is_ours_to_say(kind: type[BaseException], trace: TracebackType | None) -> bool:
    """Return whether rcg raised an error, or Python refused what the user called rcg with."""
    is_refusal = issubclass(kind, (TypeError, ValueError)) and _is_of_a_call(trace)
    return is_refusal or _is_raised_by_us(trace)


def _is_raised_by_us(trace: TracebackType | None) -> bool:
    """Return whether the innermost frame is rcg's, and is at a ``raise``."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return (
        trace is not None
        and is_ours(trace.tb_frame)
        and trace.tb_frame.f_code.co_code[trace.tb_lasti] == _RAISE
    )


def _is_of_a_call(trace: TracebackType | None) -> bool:
    """Return whether the function that the user called only made a call that raised at once.

    Python refused the user's arguments, or another public function has ended the traceback.
    """
    if trace is not None and trace.tb_frame.f_code is _WRAPPER:
        trace = trace.tb_next
    if trace is None or trace.tb_next is not None:
        return trace is None
    code, at = trace.tb_frame.f_code.co_code, trace.tb_lasti
    while code[at] == _CACHE:  # which comes behind its instruction
        at -= 2
    return code[at] in _CALLS


def _has_users_code(trace: TracebackType | None) -> bool:
    """Return whether some frame is neither rcg's nor a library's."""
    while trace is not None:
        if not is_ours(trace.tb_frame) and not is_of_library(trace.tb_frame.f_code.co_filename):
            return True
        trace = trace.tb_next
    return False


def at_users_line(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Have errors that a function raises about its use end at the user's line; a decorator."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except (Exception, GeneratorExit) as error:
            end_at_caller(error)
            raise

    return call


_WRAPPER: Final = at_users_line(at_users_line).__code__
"""The code of what ``at_users_line`` returns."""
