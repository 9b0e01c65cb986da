# SPDX-License-Identifier: Apache-2.0
"""Samples a running graph, or what a function returns (see ``rcg.runtime.observe.live``).

A sampler holds a graph, or a method of an object, by a weak reference, so watching does not keep it
alive.
"""

from __future__ import annotations

import inspect
import time
import weakref
from collections.abc import Callable, Mapping
from math import nan
from typing import Any, Final

from rcg.runtime.observe.live import FIGURES, STUCK_AFTER_S, Meter, Most, Rates, Sample
from rcg.text import graph_title

__all__ = ["Sampler"]

_KNOWN: Final = (*FIGURES, "completed", "limit", "cap", "state")
_OVER: Final = ("closed", "broken", "ended")


class Sampler:
    """Takes samples of a source.

    Args:
        source: A compiled graph, or a function that returns a mapping with some of ``completed`` (a
            count, from which the throughput follows), ``throughput``, ``in_flight``, ``limit``,
            ``queued``, ``waiting`` (0 to 1), ``memory`` and ``cap`` (bytes) and ``state``
            (``closed``, ``broken`` and ``ended`` end the samples).
        clock: A monotonic clock in seconds.
        stuck_after_s: See ``rcg.runtime.observe.live.Meter``.

    Raises:
        TypeError: The source is neither.
    """

    def __init__(
        self,
        source: Any,
        clock: Callable[[], float] = time.monotonic,
        *,
        stuck_after_s: float = STUCK_AFTER_S,
    ) -> None:
        is_graph = callable(getattr(source, "statistics", None))
        if not is_graph and not callable(source):
            raise TypeError(
                "give the monitor a compiled graph, or a function that returns a dict of numbers, "
                f"found {type(source).__name__}"
            )
        self._clock = clock
        self._read = self._of_graph if is_graph else self._of_function
        self._source = _weakly(source) if is_graph or inspect.ismethod(source) else lambda: source
        self._meter = Meter(stuck_after_s)
        self._rates, self._most = Rates(), Most()
        self.title = graph_title(source.name, source.get_id()) if is_graph else ""

    def take(self) -> Sample:
        """Take a sample.

        Raises:
            TypeError: The function returned no mapping.
            ValueError: The mapping has no known key.
        """
        source = self._source()
        now = self._clock()
        return Sample(now, state="gone") if source is None else self._read(now, source)

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

    def _of_graph(self, now: float, graph: Any) -> Sample:
        if getattr(graph, "is_teardown", False):
            return Sample(now, state="closed")
        return self._meter.take(now, graph.report(timeout=0))  # without stacks: no actor is asked

    def _of_function(self, now: float, source: Callable[[], Any]) -> Sample:
        found = source()
        if not isinstance(found, Mapping):
            what = type(found).__name__
            raise TypeError(f"the source returned {what} instead of a dict of numbers")
        if not any(name in found for name in _KNOWN):
            raise ValueError(f"the source returned none of {', '.join(_KNOWN)}")
        sums = {"completed": float(found["completed"])} if "completed" in found else {}
        rate = self._rates.update(now, sums).get("completed", nan)
        return self._most.update(
            Sample(
                now,
                **{"throughput": rate, **{name: found[name] for name in FIGURES if name in found}},
                limit=int(found.get("limit", 0)),
                cap=int(found.get("cap", 0)),
                completed=int(sums.get("completed", 0)),
                state=found["state"] if found.get("state") in _OVER else "running",
            )
        )


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
