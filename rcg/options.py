# SPDX-License-Identifier: Apache-2.0
"""Options of a compiled graph, the environment variables they come from, and deadlines.

``Options`` is frozen and checked whenever one is made. ``Options.from_environment`` is the one
reader of ``RCG_*`` variables and of the ``RAY_CGRAPH_*`` ones that came before them. A ``Deadline``
is what every wait below the public border takes; Ray's -1 for "for ever" is understood in one
function only, ``timeout_from_user``. This room knows nothing of graphs, channels or Ray.
"""

from __future__ import annotations

import difflib
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, Final, Literal, get_args

from rcg.warn import warn_user

__all__ = [
    "Deadline",
    "Options",
    "ThreadChoice",
    "WaitPolicy",
    "is_progress_wanted",
    "timeout_from_user",
]

WaitPolicy = Literal["auto", "futex", "yield", "spin"]
ThreadChoice = Literal["own", "main"]


class Deadline:
    """A moment after which to stop waiting, or never.

    Args:
        timeout_s: Seconds from now, 0 for "do not wait", None for "wait for ever".
        clock_ns: The clock; tests pass their own.

    Raises:
        ValueError: ``timeout_s`` is negative or not a number.

    >>> Deadline(None).remaining_s() is None
    True
    >>> now = iter([1_000_000_000, 3_000_000_000])
    >>> Deadline(5.0, clock_ns=lambda: next(now)).remaining_s()
    3.0
    """

    __slots__ = ("_at_ns", "_clock_ns", "timeout_s")

    def __init__(
        self, timeout_s: float | None, *, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        if timeout_s is not None and not timeout_s >= 0:
            raise ValueError(f"a timeout must be None or at least 0 seconds, found {timeout_s!r}")
        self._clock_ns = clock_ns
        self.timeout_s = timeout_s
        self._at_ns = (
            None
            if timeout_s is None or timeout_s == math.inf
            else clock_ns() + round(timeout_s * 1e9)
        )

    @property
    def expired(self) -> bool:
        """Whether the moment has come."""
        return self._at_ns is not None and self._clock_ns() >= self._at_ns

    def remaining_s(self) -> float | None:
        """Return the seconds left, never below 0; None means for ever."""
        if self._at_ns is None:
            return None
        return max(0, self._at_ns - self._clock_ns()) / 1e9

    def __repr__(self) -> str:
        return f"Deadline({self.timeout_s!r})"


def timeout_from_user(value: object, name: str) -> float | None:
    """Read a timeout as users give it: seconds, None for no limit, or Ray's old -1 for the same.

    Args:
        value: What the user gave.
        name: What the user calls it (a parameter or an environment variable), for messages.

    Returns:
        Seconds, or None for "no limit".

    Raises:
        TypeError: It is not a number.
        ValueError: It is negative, other than -1, or not a number of seconds at all (NaN).
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(
            f"`{name}` must be a number of seconds, or None for no limit, found {value!r}"
        )
    seconds = float(value)
    if seconds == -1:
        warn_user(f"`{name}` = -1 for no limit is deprecated: use None", DeprecationWarning)
        return None
    if not seconds >= 0:
        raise ValueError(
            f"`{name}` must be at least 0 seconds, or None for no limit, found {value!r}"
        )
    return None if seconds == math.inf else seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a compiled graph is built and run. Frozen; ``replace`` makes a changed, checked copy.

    Attributes:
        submit_timeout_s: Longest wait of ``execute`` for room in the window; None is no limit.
        get_timeout_s: Longest wait for a result; None is no limit (a death is noticed anyway).
        teardown_timeout_s: Longest wait for the actors' loops to end.
        compile_timeout_s: Longest wait for the actors to answer; None is no limit.
        buffer_size_bytes: Checked and without effect: channels size themselves.
        max_inflight_executions: Executions that may be under way at once.
        max_buffered_results: Executions whose results may wait at the driver.
        is_inflight_limit_set_by_user: Whether the window was asked for (an argument, a variable);
            then ``execute`` raises when it is full instead of waiting. Set by ``replace`` and
            ``from_environment`` when they are given ``max_inflight_executions``.
        overlap_communication: Without effect while all values go through shared memory.
        wait: How a process waits: see the data plane in ARCHITECTURE.md.
        memory_cap_bytes: Most shared memory that the graph may hold; None is a share of the
            machine's.
        concurrent: Whether methods of different graphs may overlap on one actor.
        thread: Whether methods run on a thread of their own or on the actor's main thread.
        record: Whether the flight recorder runs.

    Raises:
        TypeError: A field has the wrong type.
        ValueError: A field is out of range; the text names it.

    >>> Options().replace(buffer_size_bytes=0)
    Traceback (most recent call last):
        ...
    ValueError: `buffer_size_bytes` must be a positive integer, found 0
    """

    submit_timeout_s: float | None = None
    get_timeout_s: float | None = None
    teardown_timeout_s: float | None = 30.0
    compile_timeout_s: float | None = None
    buffer_size_bytes: int = 1_000_000
    max_inflight_executions: int = 10
    max_buffered_results: int = 1000
    is_inflight_limit_set_by_user: bool = False
    overlap_communication: bool = False
    wait: WaitPolicy = "auto"
    memory_cap_bytes: int | None = None
    concurrent: bool = False
    thread: ThreadChoice = "own"
    record: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            kind = _KINDS[field.name]
            checked = _check(kind, getattr(self, field.name), field.name)
            object.__setattr__(self, field.name, checked)

    def replace(self, **changes: Any) -> Options:
        """Return a copy with these fields changed, checked like a new one.

        Args:
            **changes: Fields by name. Giving ``max_inflight_executions`` counts as the user
                setting the limit.

        Raises:
            TypeError: There is no field of that name, or a value has the wrong type.
            ValueError: A value is out of range; the text names the field.
        """
        unknown = sorted(set(changes) - _KINDS.keys())
        if unknown:
            raise TypeError(
                f"there is no option {', '.join(map(repr, unknown))}: "
                f"the options are {', '.join(_KINDS)}"
            )
        if "max_inflight_executions" in changes:
            changes.setdefault("is_inflight_limit_set_by_user", True)
        return replace(self, **changes)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Options:
        """Return the options that the environment asks for; ``RCG_*`` wins over ``RAY_CGRAPH_*``.

        A variable that rcg does not know, or that has no effect here, is told in a warning.

        Args:
            environ: The variables. Empty ones count as not set.

        Raises:
            ValueError: A variable does not hold what its option takes; the text names it.
        """
        _warn_of_others(environ)
        changes: dict[str, object] = {}
        for option, names in _VARIABLES.items():
            for name in names:
                text = environ.get(name, "").strip()
                if text:
                    changes[option] = _parse(_KINDS[option], text, name)
                    break
        return cls().replace(**changes)


def is_progress_wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether long work may show its progress: unless ``RCG_PROGRESS`` says no.

    Args:
        environ: The variables. An empty one counts as not set.

    Raises:
        ValueError: The variable holds neither yes nor no.
    """
    text = environ.get(_PROGRESS, "").strip()
    return not text or _parse("flag", text, _PROGRESS) is True


_Kind = Literal["timeout", "positive", "optional positive", "flag", "wait", "thread"]

_KINDS: Final[Mapping[str, _Kind]] = {
    "submit_timeout_s": "timeout",
    "get_timeout_s": "timeout",
    "teardown_timeout_s": "timeout",
    "compile_timeout_s": "timeout",
    "buffer_size_bytes": "positive",
    "max_inflight_executions": "positive",
    "max_buffered_results": "positive",
    "is_inflight_limit_set_by_user": "flag",
    "overlap_communication": "flag",
    "wait": "wait",
    "memory_cap_bytes": "optional positive",
    "concurrent": "flag",
    "thread": "thread",
    "record": "flag",
}

# option -> the variables that set it, the first that is set wins.
_VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "submit_timeout_s": ("RCG_SUBMIT_TIMEOUT", "RAY_CGRAPH_submit_timeout"),
    "get_timeout_s": ("RCG_GET_TIMEOUT", "RAY_CGRAPH_get_timeout"),
    "teardown_timeout_s": ("RCG_TEARDOWN_TIMEOUT", "RAY_CGRAPH_teardown_timeout"),
    "compile_timeout_s": ("RCG_COMPILE_TIMEOUT",),
    "buffer_size_bytes": ("RCG_BUFFER_SIZE_BYTES", "RAY_CGRAPH_buffer_size_bytes"),
    "max_inflight_executions": (
        "RCG_MAX_INFLIGHT_EXECUTIONS",
        "RAY_CGRAPH_max_inflight_executions",
    ),
    "max_buffered_results": ("RCG_MAX_BUFFERED_RESULTS", "RAY_CGRAPH_max_buffered_results"),
    "overlap_communication": (
        "RCG_OVERLAP_COMMUNICATION",
        "RAY_CGRAPH_overlap_gpu_communication",
    ),
    "wait": ("RCG_WAIT",),
    "memory_cap_bytes": ("RCG_MEMORY_CAP_BYTES",),
    "concurrent": ("RCG_CONCURRENT",),
    "thread": ("RCG_THREAD",),
    "record": ("RCG_RECORD",),
}

# Variables of Ray's that are understood and change nothing, and what to use instead.
_WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "RAY_CGRAPH_read_iteration_timeout_s": "rcg does not poll",
    "RAY_CGRAPH_ENABLE_DETECT_DEADLOCK": "plans are proven free of deadlock when compiled",
    "RAY_CGRAPH_VISUALIZE_SCHEDULE": "print(cdag.plan) shows the schedule",
    "RAY_CGRAPH_ENABLE_PROFILING": "cdag.report() and cdag.statistics() show what runs",
    "RAY_CGRAPH_ENABLE_TORCH_PROFILING": "start torch's profiler in a method: it sees that thread",
    "RAY_CGRAPH_ENABLE_NVTX_PROFILING": "start nvtx.Profile in a method: it sees that thread",
}
_PROGRESS: Final = "RCG_PROGRESS"
# Not options of a graph. The second is read elsewhere: when the native core is built.
_OTHERS: Final = (_PROGRESS, "RCG_WERROR")

_FLAGS: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def _warn_of_others(environ: Mapping[str, str]) -> None:
    known = [*(name for names in _VARIABLES.values() for name in names), *_OTHERS]
    for name, text in environ.items():
        if not name.startswith(("RCG_", "RAY_CGRAPH_")) or not text.strip():
            continue
        if name in _WITHOUT_EFFECT:
            if text.strip().lower() not in ("0", "false", "no"):
                warn_user(f"{name} has no effect: {_WITHOUT_EFFECT[name]}", UserWarning)
        elif name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            warn_user(f"there is no variable {name}{hint}", UserWarning)


def _check(kind: _Kind, value: object, name: str) -> object:
    """Return the value in its plain form, or raise an error that names it."""
    match kind:
        case "timeout":
            return timeout_from_user(value, name)
        case "positive" | "optional positive":
            if value is None and kind == "optional positive":
                return None
            if isinstance(value, bool) or not isinstance(value, Integral) or value <= 0:
                or_none = " or None" if kind == "optional positive" else ""
                raise ValueError(f"`{name}` must be a positive integer{or_none}, found {value!r}")
            return int(value)
        case "flag":
            if not isinstance(value, bool):
                raise TypeError(f"`{name}` must be True or False, found {value!r}")
            return value
        case "wait" | "thread":
            choices = get_args(WaitPolicy if kind == "wait" else ThreadChoice)
            if value not in choices:
                raise ValueError(
                    f"`{name}` must be one of {', '.join(map(repr, choices))}, found {value!r}"
                )
            return value


def _parse(kind: _Kind, text: str, variable: str) -> object:
    """Read the text of a variable; errors name the variable."""
    match kind:
        case "timeout":
            if text.lower() == "none":
                return None
            return timeout_from_user(_number(text, variable, "a number of seconds"), variable)
        case "positive" | "optional positive":
            if kind == "optional positive" and text.lower() == "none":
                return None
            number = _number(text, variable, "a positive integer")
            whole = int(number) if math.isfinite(number) and number == int(number) else number
            return _check(kind, whole, variable)
        case "flag":
            if text.lower() not in _FLAGS:
                raise ValueError(f"`{variable}` must be one of {', '.join(_FLAGS)}, found {text!r}")
            return _FLAGS[text.lower()]
        case "wait" | "thread":
            return _check(kind, text.lower(), variable)


def _number(text: str, variable: str, wanted: str) -> float:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"`{variable}` must be {wanted}, found {text!r}") from None
