# SPDX-License-Identifier: Apache-2.0
"""Samples a running graph: its counters, and the rates between two samples.

A sampler holds a graph, or a method of an object, by a weak reference, so watching does not keep it
alive.
"""

from __future__ import annotations

import inspect
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any, Final

from rcg_widgets.trouble import OpTimeout, trouble_of

__all__ = ["Sample", "Sampler"]

_KNOWN: Final = ("throughput", "completed", "in_flight", "limit", "queued", "waiting", "state")
_OVER: Final = ("closed", "broken", "ended")


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample. A number that is not known is NaN.

    Attributes:
        time_s: When, on the sampler's clock.
        throughput: Executions completed per second since the previous sample.
        in_flight: Executions in flight.
        queued: Frames that were written and not yet read.
        waiting: Share of the actors' time, 0 to 1, that they waited since the previous sample; not
            known while there is nothing for them to do.
        limit: Limit of executions in flight; 0 if it is not known.
        completed: Number of completed executions; 0 if it is not known.
        state: ``running``, or why the samples have ended: ``closed``, ``broken``, ``ended``,
            ``gone``.
        trouble: A sentence about the op on which the graph hangs, or "".
    """

    time_s: float
    throughput: float = nan
    in_flight: float = nan
    queued: float = nan
    waiting: float = nan
    limit: int = 0
    completed: int = 0
    state: str = "running"
    trouble: str = ""

    @property
    def is_last(self) -> bool:
        """Whether the graph has ended."""
        return self.state != "running"


class Sampler:
    """Takes samples of a source.

    Args:
        source: A compiled graph, or a function that returns a mapping with some of ``completed`` (a
            count, from which the throughput follows), ``throughput``, ``in_flight``, ``limit``,
            ``queued``, ``waiting`` (0 to 1) and ``state`` (``closed``, ``broken`` and ``ended`` end
            the samples).
        clock: A monotonic clock in seconds.

    Raises:
        TypeError: The source is neither.
    """

    def __init__(self, source: Any, clock: Callable[[], float] = time.monotonic) -> None:
        is_graph = callable(getattr(source, "statistics", None))
        if not is_graph and not callable(source):
            raise TypeError(
                "give the monitor a compiled graph, or a function that returns a dict of numbers, "
                f"found {type(source).__name__}"
            )
        self._clock = clock
        self._read = _of_graph if is_graph else _of_function
        self._source = _weakly(source) if is_graph or inspect.ismethod(source) else lambda: source
        self._op_timeout = OpTimeout()
        self._before: tuple[float, Mapping[str, float]] | None = None

    def take(self) -> Sample:
        """Take a sample.

        Raises:
            TypeError: The function returned no mapping.
            ValueError: The mapping has no known key.
        """
        source = self._source()
        now = self._clock()
        if source is None:
            return Sample(now, state="gone")
        found, sums = self._read(source)
        rates = self._rates(now, sums)
        trouble = self._trouble(now, found, sums)
        has_work = bool(found.get("in_flight", 1.0) or rates.get("completed"))
        waited = min(rates.get("waited_s", nan), 1.0) if has_work else nan
        return Sample(
            now,
            throughput=found.get("throughput", rates.get("completed", nan)),
            in_flight=found.get("in_flight", nan),
            queued=found.get("queued", nan),
            waiting=found.get("waiting", waited),
            limit=int(found.get("limit", 0)),
            completed=int(sums.get("completed", 0)),
            state=found["state"] if found.get("state") in _OVER else "running",
            trouble=trouble,
        )

    def is_of(self, other: Sampler) -> bool:
        """Return whether both sample the same graph, or the same function, possibly redefined."""
        mine, theirs = self._source(), other._source()
        if inspect.ismethod(mine):
            return bool(mine == theirs)
        return mine is not None and (mine is theirs or _is_again(mine, theirs))

    @property
    def is_over(self) -> bool:
        """Whether the source is a graph that was torn down, or is gone."""
        source = self._source()
        return source is None or bool(getattr(source, "is_teardown", False))

    def _trouble(self, now: float, found: Mapping[str, Any], sums: Mapping[str, float]) -> str:
        """Return a sentence about the op on which a graph hangs, which no function tells, or ""."""
        if "processes" not in found:
            return ""
        in_flight = found["in_flight"]
        timeout_s = self._op_timeout.update(now, int(sums["completed"]), in_flight)
        return trouble_of(found["processes"], timeout_s) if in_flight else ""

    def _rates(self, now: float, sums: Mapping[str, float]) -> dict[str, float]:
        """Return the growth of each sum per second since the previous sample."""
        before, self._before = self._before, (now, sums)
        if before is None or now <= before[0]:
            return {}
        passed = now - before[0]
        grown = {name: sums[name] - before[1][name] for name in sums if name in before[1]}
        return {name: max(0.0, each) / passed for name, each in grown.items() if isfinite(each)}


Read = tuple[Mapping[str, Any], Mapping[str, float]]


def _of_function(source: Callable[[], Any]) -> Read:
    found = source()
    if not isinstance(found, Mapping):
        raise TypeError(f"the source returned {type(found).__name__} instead of a dict of numbers")
    if not any(name in found for name in _KNOWN):
        raise ValueError(f"the source returned none of {', '.join(_KNOWN)}")
    sums = {"completed": float(found["completed"])} if "completed" in found else {}
    return found, sums


def _of_graph(graph: Any) -> Read:
    if getattr(graph, "is_teardown", False):
        return {"state": "closed"}, {}
    statistics = graph.statistics()
    report = graph.report(timeout=0)  # without stacks, so no actor is asked
    actors = report.processes[1:]
    # The current wait counts from the beginning of the op.
    waited = sum(
        each.waited_s + (each.for_s if each.state == "waiting" else 0.0) for each in actors
    )
    found = {
        "in_flight": float(statistics.in_flight),
        "limit": statistics.limit,
        "queued": float(sum(each.length for each in report.backlogs)),
        "state": report.state,
        "processes": report.processes,
    }
    return found, {"completed": statistics.completed, "waited_s": waited / max(len(actors), 1)}


def _is_again(one: Any, other: Any) -> bool:
    """Return whether two functions come from one definition, such as in a cell run twice."""
    if not (inspect.isfunction(one) and inspect.isfunction(other)):
        return False
    if one.__closure__ or other.__closure__ or one.__defaults__ != other.__defaults__:
        return False  # they may use different objects
    is_named = one.__name__ != "<lambda>"
    is_same = (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)
    return is_same and (is_named or one.__code__ == other.__code__)


def _weakly(source: Any) -> Callable[[], Any]:
    """Return a function that returns the source while it exists, without keeping it."""
    if hasattr(source, "weak"):
        found: Callable[[], Any] = source.weak()  # a graph runs while its refs are held
        return found
    try:
        return weakref.WeakMethod(source) if inspect.ismethod(source) else weakref.ref(source)
    except TypeError:
        return lambda: source
