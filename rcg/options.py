# SPDX-License-Identifier: Apache-2.0
"""Options of a compiled graph, the environment variables they come from, and deadlines.

Each field of ``Options`` is declared together with its ``Option``: the one record from which the
keywords of ``compile``, the variables, the attributes of ``DAGContext``, the checks and the
documentation follow. ``Options.from_environment`` reads their variables, and other functions
those of the process: how it connects to other nodes (``port_range``, ``peer_timeout_s``, and Ray's
own ``tls_files``), or whether it shows progress. Nothing else reads ``RCG_*`` and ``RAY_CGRAPH_*``
variables; an empty one counts as not set. Every internal wait takes a ``Deadline``. Only
``timeout_from_user`` understands Ray's -1 for "no limit". This room knows nothing of graphs,
channels or Ray.
"""

from __future__ import annotations

import difflib
import math
import os
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, TypeVar, get_args

from rcg.frames import warn_user
from rcg.option_kinds import COUNT, COUNT_OR_NONE, FLAG, FLAG_OR_AUTO, TIMEOUT, Kind, choice
from rcg.option_kinds import FOR_EVER_S as FOR_EVER_S
from rcg.option_kinds import timeout_from_user as timeout_from_user

Overlap = bool | Literal["auto"]
WaitPolicy = Literal["auto", "futex", "yield", "spin"]
ThreadChoice = Literal["own", "main"]

_Value = TypeVar("_Value")


class Deadline:
    """The time at which a wait ends, if any.

    Args:
        timeout_s: Seconds from now; 0 does not wait, None sets no limit.
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
            if timeout_s is None or timeout_s > FOR_EVER_S
            else clock_ns() + round(timeout_s * 1e9)
        )

    @property
    def expired(self) -> bool:
        """Whether the time is up."""
        return self._at_ns is not None and self._clock_ns() >= self._at_ns

    def remaining_s(self) -> float | None:
        """Return the seconds left, never below 0; None means no limit."""
        if self._at_ns is None:
            return None
        return max(0, self._at_ns - self._clock_ns()) / 1e9

    def __repr__(self) -> str:
        return f"Deadline({self.timeout_s!r})"


FOR_EVER: Final = Deadline(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The record of one option of a compiled graph."""

    field: str  # of ``Options``; the variable has the same name in capitals
    default: object
    kind: Kind
    text: str  # one line of documentation, in Markdown
    keyword: str  # of ``compile``
    rays_keyword: str | None = None  # of Ray's ``experimental_compile``, if it means the same
    context: str | None = None  # the attribute of ``DAGContext``; Ray's variable is named after it
    rays_variable: str | None = None  # one that means the same and has no such attribute

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"RCG_{self.field.removesuffix('_s').upper()}"

    @property
    def keywords(self) -> tuple[str, ...]:
        """The keywords of ``compile`` that set it."""
        return (self.keyword, self.rays_keyword) if self.rays_keyword else (self.keyword,)

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that set it: ours, and Ray's that means the same. The first wins."""
        rays = f"RAY_CGRAPH_{self.context}" if self.context else self.rays_variable
        return (self.variable, rays) if rays else (self.variable,)


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoredSetting:
    """A setting of Ray's that is accepted and has no effect.

    It is a keyword of ``experimental_compile``, a variable, an attribute of ``DAGContext``, or both
    of the latter.
    """

    instead: str  # what to use, or why there is no need for it
    keyword: str | None = None
    variable: str | None = None
    context: str | None = None
    default: object = None  # of the attribute
    kind: Kind = TIMEOUT  # of the attribute


def _option(default: _Value, kind: Kind, text: str, **names: str) -> _Value:
    """Return a field of ``Options`` with the rest of its ``Option``.

    The keyword is the name of the field, without its unit of time, unless ``names`` has another.
    """
    return field(default=default, metadata={"kind": kind, "text": text, **names})


_SET_BY_USER: Final = {
    "max_inflight_executions": "is_inflight_limit_set_by_user",
    "max_buffered_results": "is_buffered_limit_set_by_user",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a compiled graph is built and run. Frozen; ``replace`` makes a changed, checked copy.

    ``is_inflight_limit_set_by_user`` and ``is_buffered_limit_set_by_user`` are no options: they say
    whether the user set the limit (by an argument or a variable). If so, ``execute`` raises at the
    first instead of waiting, and ``get`` at the second. ``replace`` and ``from_environment`` set
    them when they are given ``max_inflight_executions`` and ``max_buffered_results``.

    Raises:
        TypeError: A field has the wrong type.
        ValueError: A field is out of range; the text names it.

    >>> Options().replace(buffer_size_bytes=0)
    Traceback (most recent call last):
        ...
    ValueError: `buffer_size_bytes` must be a positive integer, found 0
    """

    wait: WaitPolicy = _option(  # noqa: RUF009 - it makes a field
        "auto",
        choice(*get_args(WaitPolicy)),
        "how a process waits: `auto`, `futex` (least CPU), `yield`, `spin`",
    )
    compile_timeout_s: float | None = _option(
        None, TIMEOUT, "how long compiling may wait for busy actors", keyword="timeout"
    )
    submit_timeout_s: float | None = _option(
        None,
        TIMEOUT,
        "how long `execute` may wait for room in the window",
        rays_keyword="_submit_timeout",
        context="submit_timeout",
    )
    get_timeout_s: float | None = _option(
        None, TIMEOUT, "how long a `get` without a timeout of its own waits", context="get_timeout"
    )
    report_after_s: float | None = _option(
        5.0,
        TIMEOUT,
        "how long a `get` waits before it says once, on standard error, what holds the graph up; "
        "`None` never does",
    )
    teardown_timeout_s: float | None = _option(
        30.0,
        TIMEOUT,
        "how long a teardown waits for methods that are still running",
        context="teardown_timeout",
    )
    max_inflight_executions: int = _option(
        10,
        COUNT,
        "how many executions may be in flight; once you set it, `execute` raises at the limit "
        "instead of waiting",
        rays_keyword="_max_inflight_executions",
        context="max_inflight_executions",
    )
    max_buffered_results: int = _option(
        1000,
        COUNT,
        "how many executions may have unread results at the driver; once you set it, a `get` that "
        "passes over more of them raises, too",
        rays_keyword="_max_buffered_results",
        context="max_buffered_results",
    )
    buffer_size_bytes: int = _option(
        1_000_000,
        COUNT,
        "no effect: it is checked and then ignored, because channels size themselves",
        rays_keyword="_buffer_size_bytes",
        context="buffer_size_bytes",
    )
    overlap: Overlap = _option(  # noqa: RUF009 - it makes a field
        False,
        FLAG_OR_AUTO,
        "whether tensors move over communicators while methods run, on threads of their own; "
        "`auto` does it where the costs of calls and transfers predict a gain",
        rays_keyword="_overlap_gpu_communication",
        context="overlap_gpu_communication",
    )
    memory_cap_bytes: int | None = _option(
        None,
        COUNT_OR_NONE,
        "how much shared memory a graph may hold; `None` is half of what the machine has free",
    )
    thread: ThreadChoice = _option(  # noqa: RUF009 - it makes a field
        "own",
        choice(*get_args(ThreadChoice)),
        "on which thread of an actor methods run: `own` is one of the graph's, `main` the "
        "actor's main thread",
    )
    concurrent: bool = _option(
        False, FLAG, "whether methods of different graphs may overlap on one actor"
    )
    record: bool = _option(True, FLAG, "whether the flight recorder runs")
    nvtx: bool = _option(
        False,
        FLAG,
        "whether ops are NVTX ranges for Nsight Systems (the actors' nodes need the extra `gpu`)",
        rays_variable="RAY_CGRAPH_ENABLE_NVTX_PROFILING",
    )
    is_inflight_limit_set_by_user: bool = False
    is_buffered_limit_set_by_user: bool = False

    def __post_init__(self) -> None:
        for option in OPTIONS:
            checked = option.kind.check(getattr(self, option.field), option.field)
            object.__setattr__(self, option.field, checked)
        for name in _SET_BY_USER.values():
            FLAG.check(getattr(self, name), name)

    def replace(self, **changes: Any) -> Options:
        """Return a copy with these fields changed, checked like a new one.

        Args:
            **changes: Fields by name. Giving ``max_inflight_executions`` or
                ``max_buffered_results`` counts as the user setting the limit.

        Raises:
            TypeError: There is no field of that name, or a value has the wrong type.
            ValueError: A value is out of range; the text names the field.
        """
        names = [known.name for known in fields(self)]
        unknown = sorted(changes.keys() - names)
        if unknown:
            raise TypeError(
                f"there is no option {', '.join(map(repr, unknown))}: "
                f"the options are {', '.join(names)}"
            )
        for name in _SET_BY_USER.keys() & changes.keys():
            changes.setdefault(_SET_BY_USER[name], True)
        return replace(self, **changes)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Options:
        """Return the options that the environment asks for; ``RCG_*`` wins over ``RAY_CGRAPH_*``.

        A warning names each variable that rcg does not know or that has no effect here.

        Raises:
            ValueError: A variable does not hold what its option takes; the text names it.
        """
        _warn_of_others(environ)
        changes: dict[str, object] = {}
        for option in OPTIONS:
            for name in option.variables:
                text = environ.get(name, "").strip()
                if text:
                    changes[option.field] = option.kind.parse(text, name)
                    break
        return cls().replace(**changes)


OPTIONS: Final[tuple[Option, ...]] = tuple(
    Option(
        field=each.name,
        default=each.default,
        **{"keyword": each.name.removesuffix("_s"), **each.metadata},
    )
    for each in fields(Options)
    if each.metadata
)

IGNORED: Final[tuple[IgnoredSetting, ...]] = (
    IgnoredSetting(
        keyword="enable_asyncio",
        instead="every compiled DAG supports execute() and execute_async(), and every ref "
        "supports get and await",
    ),
    IgnoredSetting(
        variable="RAY_CGRAPH_read_iteration_timeout_s",
        context="read_iteration_timeout",
        default=0.1,
        instead="rcg does not poll",
    ),
    IgnoredSetting(
        variable="RAY_CGRAPH_ENABLE_DETECT_DEADLOCK",
        instead="every plan is checked for deadlocks when it is compiled",
    ),
    IgnoredSetting(
        variable="RAY_CGRAPH_VISUALIZE_SCHEDULE",
        instead="print(cdag.plan) shows the schedule",
    ),
    IgnoredSetting(
        variable="RAY_CGRAPH_ENABLE_PROFILING",
        instead="`with cdag.profile() as p` records every operation; cdag.report() shows what "
        "runs now",
    ),
    IgnoredSetting(
        variable="RAY_CGRAPH_ENABLE_TORCH_PROFILING",
        instead="rcg.profile(torch=True) records what torch does in methods",
    ),
)

PORT_RANGE: Final = "RCG_PORT_RANGE"
PEER_TIMEOUT: Final = "RCG_PEER_TIMEOUT"
PREFETCH_BYTES: Final = "RCG_PREFETCH_BYTES"
USES_NIXL: Final = "RCG_NIXL"
_VLLM: Final = "RCG_VLLM"
_VLLM_CHANNEL: Final = "RCG_VLLM_CHANNEL"
_VLLM_CHANNELS: Final = ("auto", "shm", "vllm", "nccl")
_VLLM_OVERLAP: Final = "RCG_VLLM_OVERLAP"
_PROGRESS: Final = "RCG_PROGRESS"
# Not options of a graph. The last is read when the native core is built.
_OTHERS: Final = (
    PORT_RANGE,
    PEER_TIMEOUT,
    PREFETCH_BYTES,
    USES_NIXL,
    _PROGRESS,
    _VLLM,
    _VLLM_CHANNEL,
    _VLLM_OVERLAP,
    "RCG_WERROR",
)

_USE_TLS: Final = "RAY_USE_TLS"
TLS_FILES: Final = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
_DEFAULT_PEER_TIMEOUT_S: Final = 15.0
_MAX_PEER_TIMEOUT_S: Final = 3600.0
_DEFAULT_PREFETCH_BYTES: Final = 256 << 20
_MAX_PORT: Final = 65535


def port_range(environ: Mapping[str, str] = os.environ) -> range | None:
    """Return the ports at which a process may listen for other nodes; None for any free one.

    Raises:
        ValueError: ``RCG_PORT_RANGE`` holds no range of ports.

    >>> port_range({"RCG_PORT_RANGE": "20000-20099"})
    range(20000, 20100)
    """
    text = environ.get(PORT_RANGE, "").strip()
    if not text:
        return None
    first, dash, last = (part.strip() for part in text.partition("-"))
    ends = first, last if dash else first
    if all(end.isascii() and end.isdigit() for end in ends):
        low, high = map(int, ends)
        if 1 <= low <= high <= _MAX_PORT:
            return range(low, high + 1)
    raise ValueError(
        f"`{PORT_RANGE}` must be a range of ports from 1 to {_MAX_PORT}, such as 20000-20099, "
        f"found {text!r}"
    )


def peer_timeout_s(environ: Mapping[str, str] = os.environ) -> float:
    """Return how long a process of another node may be unreachable before it counts as lost.

    Raises:
        ValueError: ``RCG_PEER_TIMEOUT`` holds no number of seconds from 1 to an hour.
    """
    text = environ.get(PEER_TIMEOUT, "").strip()
    if not text:
        return _DEFAULT_PEER_TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 1 <= seconds <= _MAX_PEER_TIMEOUT_S:
        raise ValueError(
            f"`{PEER_TIMEOUT}` must be a number of seconds from 1 to {_MAX_PEER_TIMEOUT_S:g}, "
            f"found {text!r}"
        )
    return seconds


def prefetch_bytes(environ: Mapping[str, str] = os.environ) -> int:
    """Return how many bytes of tensors an actor may get before the calls that take them run.

    Raises:
        ValueError: ``RCG_PREFETCH_BYTES`` holds no number of bytes.

    >>> prefetch_bytes({"RCG_PREFETCH_BYTES": "1000000"})
    1000000
    """
    text = environ.get(PREFETCH_BYTES, "").strip()
    if not text:
        return _DEFAULT_PREFETCH_BYTES
    if text.isascii() and text.isdigit():
        return int(text)
    raise ValueError(
        f"`{PREFETCH_BYTES}` must be a number of bytes, such as {_DEFAULT_PREFETCH_BYTES}, or 0 "
        f"for none, found {text!r}"
    )


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of Ray's TLS, of which each machine of a cluster has its own."""

    certificate: str  # of this machine
    key: str  # of the certificate
    authority: str  # the certificate of the authority that has signed those of all machines


def tls_files() -> TlsFiles | None:
    """Return the files by which Ray's own connections use TLS, None if they do not.

    Raises:
        ValueError: ``RAY_USE_TLS`` is on and a file is not named.
    """
    if os.environ.get(_USE_TLS, "").strip().lower() not in ("1", "true"):
        return None
    found = [os.environ.get(name, "").strip() for name in TLS_FILES]
    for name, path in zip(TLS_FILES, found, strict=True):
        if not path:
            raise ValueError(f"`{_USE_TLS}` is on, so `{name}` must name a file")
    return TlsFiles(*found)


def uses_nixl(environ: Mapping[str, str] = os.environ) -> bool | None:
    """Return whether ``auto`` takes NIXL between nodes; None where there is RDMA.

    Raises:
        ValueError: ``RCG_NIXL`` holds neither yes nor no.
    """
    text = environ.get(USES_NIXL, "").strip()
    return FLAG.parse(text, USES_NIXL) is True if text else None


def is_progress_wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether long work may show its progress: unless ``RCG_PROGRESS`` says no.

    Raises:
        ValueError: The variable holds neither yes nor no.
    """
    text = environ.get(_PROGRESS, "").strip()
    return not text or FLAG.parse(text, _PROGRESS) is True


def is_vllm_executor(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether vLLM's backend ``ray`` means rcg's executor.

    Raises:
        ValueError: ``RCG_VLLM`` holds neither yes nor no.
    """
    text = environ.get(_VLLM, "").strip()
    return bool(text) and FLAG.parse(text, _VLLM) is True


def vllm_channel(environ: Mapping[str, str] = os.environ) -> str:
    """Return how hidden states travel between the stages of vLLM; "" if nothing is set.

    Raises:
        ValueError: ``RCG_VLLM_CHANNEL`` holds no such way.
    """
    text = environ.get(_VLLM_CHANNEL, "").strip()
    if text and text not in _VLLM_CHANNELS:
        raise ValueError(f"{_VLLM_CHANNEL} must be one of {_VLLM_CHANNELS}, found {text!r}")
    return text


def is_vllm_overlapping(environ: Mapping[str, str] = os.environ) -> bool | None:
    """Return whether hidden states of vLLM move beside methods; None if nothing is set.

    Raises:
        ValueError: ``RCG_VLLM_OVERLAP`` holds neither yes nor no.
    """
    text = environ.get(_VLLM_OVERLAP, "").strip()
    return FLAG.parse(text, _VLLM_OVERLAP) is True if text else None


def with_attributes(docstring: str | None, texts: Iterable[tuple[str, str]]) -> str:
    """Return the docstring of a class with a section that lists its attributes.

    Args:
        docstring: What the class says itself.
        texts: The name of each attribute, and its line of documentation in Markdown.
    """
    entries = [
        textwrap.fill(
            f"{name}: {text[0].upper()}{text[1:]}.".replace("`", "``"),
            width=100,
            initial_indent=" " * 8,
            subsequent_indent=" " * 12,
        )
        for name, text in texts
    ]
    return "\n".join([(docstring or "").rstrip(), "", "    Attributes:", *entries, ""])


def _warn_of_others(environ: Mapping[str, str]) -> None:
    known = [*(name for option in OPTIONS for name in option.variables), *_OTHERS]
    ignored = {setting.variable: setting.instead for setting in IGNORED if setting.variable}
    for name, text in environ.items():
        if not name.startswith(("RCG_", "RAY_CGRAPH_")) or not text.strip():
            continue
        if name in ignored:
            if text.strip().lower() not in ("0", "false", "no"):
                warn_user(f"{name} has no effect: {ignored[name]}", UserWarning)
        elif name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            warn_user(f"there is no variable {name}{hint}", UserWarning)


Options.__doc__ = with_attributes(
    Options.__doc__, ((option.field, option.text) for option in OPTIONS)
)
