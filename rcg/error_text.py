# SPDX-License-Identifier: Apache-2.0
"""Exceptions as text, even if their methods raise.

An exception is a user's object: its ``__str__``, its notes, its cause, even the name of its class
may raise, and then ``traceback`` raises, too. Each function here returns the best text available.

Ctrl-C on the main thread passes through. Every other exception raised here comes from the exception
object.
"""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final, TypeVar

_T = TypeVar("_T")
_E = TypeVar("_E", bound=BaseException)
_MAX_CHAIN: Final = 20
# The attributes that the interpreter itself uses, which no class can replace.
_CAUSE: Final[Any] = BaseException.__dict__["__cause__"]
_CONTEXT: Final[Any] = BaseException.__dict__["__context__"]
_HIDES_CONTEXT: Final[Any] = BaseException.__dict__["__suppress_context__"]
_TRACEBACK: Final[Any] = BaseException.__dict__["__traceback__"]
_NAME: Final[Any] = type.__dict__["__qualname__"]
_MODULE: Final[Any] = type.__dict__["__module__"]

_CAUSED: Final = (
    "\nThe above exception was the direct cause of the following exception:\n\n",
    "\nDuring handling of the above exception, another exception occurred:\n\n",
)


def is_ctrl_c_possible() -> bool:
    """Return whether a KeyboardInterrupt on this thread may be Ctrl-C: on the main thread alone."""
    return threading.current_thread() is threading.main_thread()


def shielded(call: Callable[..., _T], *args: object, otherwise: _T) -> _T:
    """Return what ``call`` returns, or ``otherwise`` where users' code in it raises."""
    try:
        return call(*args)
    except KeyboardInterrupt:
        if is_ctrl_c_possible():
            raise
        return otherwise
    except BaseException:  # noqa: BLE001 - users' code raises anything
        return otherwise


class shielding(contextlib.AbstractContextManager[None]):  # noqa: N801 - used as a function is
    """Suppress exceptions of users' code; they end only this block."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        """Go on after the block, but for Ctrl-C."""
        if kind is None:
            return False
        return not (issubclass(kind, KeyboardInterrupt) and is_ctrl_c_possible())


def type_name(kind: type) -> str:
    """Return the module and name of a class, even if its metaclass refuses to give them.

    >>> type_name(ValueError), type_name(threading.Thread)
    ('ValueError', 'threading.Thread')
    """
    name = shielded(_NAME.__get__, kind, otherwise="(a class without a name)")
    module = shielded(lambda: "".join((_MODULE.__get__(kind),)), otherwise="builtins")
    return name if module in ("builtins", "__main__") else f"{module}.{name}"


def trace_of(error: BaseException) -> TracebackType | None:
    """Return where an exception was raised."""
    found: TracebackType | None = _TRACEBACK.__get__(error)
    return found


def describe_error(error: BaseException) -> str:
    """Return an exception without its traceback: class, text and notes.

    >>> describe_error(ValueError("no such key"))
    'ValueError: no such key'
    """
    usual = ""
    if _has_text(error):
        usual = "".join(shielded(traceback.format_exception_only, error, otherwise=[])).strip()
    return usual or f"{type_name(type(error))}: {_text_of(error)}"


def _has_text(error: BaseException) -> bool:
    """Return whether ``str`` works; where not, ``traceback`` gives no text at all."""
    return shielded(lambda: type(str(error)) is str, otherwise=False)


def _text_of(error: BaseException) -> str:
    """Return ``str`` of an exception, or its arguments."""
    for tell in (str, BaseException.__str__, BaseException.__repr__):
        found = shielded(tell, error, otherwise=None)
        if isinstance(found, str):
            return "".join((found,))  # of a class of its own, it may raise again
    return "(an exception that cannot be shown: its __str__ and its __repr__ raise)"


def format_error(error: BaseException, trace: TracebackType | None) -> str:
    """Return an exception with its traceback and its causes.

    Args:
        error: The exception.
        trace: Where its traceback begins.
    """
    usual: list[str] = []
    if _has_text(error):
        usual = shielded(traceback.format_exception, type(error), error, trace, otherwise=usual)
    return "".join(usual or _format_chain(error, trace))


def _format_chain(error: BaseException, trace: TracebackType | None) -> Iterator[str]:
    """Yield the parts of what ``traceback`` could not format.

    One member of the chain may be bad, and the others are not.
    """
    chain: list[tuple[BaseException, TracebackType | None, str]] = [(error, trace, "")]
    seen = {id(error)}
    while len(chain) < _MAX_CHAIN:
        cause, context = _CAUSE.__get__(error), _CONTEXT.__get__(error)
        before = context if cause is None and not _HIDES_CONTEXT.__get__(error) else cause
        if before is None or id(before) in seen:
            break
        seen.add(id(before))
        chain.append((before, trace_of(before), _CAUSED[cause is None]))
        error = before
    for member, where, joint in reversed(chain):
        yield "Traceback (most recent call last):\n"
        yield from shielded(traceback.format_tb, where, otherwise=list[str]())
        yield describe_error(member) + "\n"
        yield joint


def shortened(text: str, most: int) -> str:
    """Return a text of at most about ``most`` characters, with its middle left out.

    >>> shortened("a long text that goes on and on to its end", 16)
    'a long t ... 26 characters left out ... its end'
    >>> shortened("short", 16)
    'short'
    """
    if len(text) <= most:
        return text
    half = most // 2
    left = len(text) - 2 * half
    return f"{text[:half]} ... {left} characters left out ...{text[-half:] if half else ''}"


def without_frames(error: _E) -> _E:
    """Return an error without its traceback, and without those of its causes.

    A traceback holds the frames of all callers, and their local names. If one of these is a list
    with the error in it, all of them live until Python collects cycles, and so do the references
    of the user's method.
    """
    found: BaseException | None = error
    for _ in range(_MAX_CHAIN):
        if found is None:
            break
        found.__traceback__ = None
        found = found.__cause__ or found.__context__
    return error
