# SPDX-License-Identifier: Apache-2.0
"""The verdict on a graph: what limits it, what would help, and how sure that is.

```
a2 (Shard).work limits this: 91 % of the critical path; twice as fast there gives 1.83x ±0.02
  try max_inflight_executions=3 instead of 10: the same throughput, latency 27 ms instead of 127 ms
```

What limits a graph is what takes the largest share of the critical path (``critical.py``). What
that gives, and each piece of advice, comes from a replay of the measured times with the change
(``what_if.py``): there is none if the unchanged replay is not like the trace, if the gain is no
larger than its spread, or if the trace is too short for a spread (``spread.py``).

This room must know neither Ray nor how a verdict is shown, except as text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from rcg.errors import DeadlockError, TraceError
from rcg.ir.ids import DRIVER
from rcg.ir.ops import Pass
from rcg.text import IN_LINE, brief, share_text, spread_text, time_text
from rcg.trace.analysis.critical import SteadyPath
from rcg.trace.analysis.executions import Executions
from rcg.trace.analysis.spread import LEAST
from rcg.trace.analysis.what_if import (
    MAX_ERROR_PERCENT,
    Factors,
    Place,
    Replays,
    WhatIf,
    places_of,
)
from rcg.trace.model import GraphTrace

_MAX_ADVICE: Final = 3
_LIMITS: Final = 0.1  # of the path: what has less does not limit anything on its own
_LEAST_GAIN: Final = 0.05  # that is worth a change
_MUCH_SOONER: Final = 0.7  # of the latency, with the same throughput
_WINDOWS: Final = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
_MAX_OPS: Final = 4_000  # of a plan that is replayed unasked
_REPLAYED_OPS: Final = 25_000  # in one replay, about
_TWICE_AS_FAST: Final = Factors(0.5, 0.5, 0.5, 0.5)


@dataclass(frozen=True, slots=True)
class Advice:
    """One change that helps.

    Attributes:
        text: What to change, and what that gives.
        gain: The predicted throughput, or the latency of now, divided by the other.
    """

    text: str
    gain: float


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What a method gives if it takes half the time on all actors of its class.

    Attributes:
        text: The method: ``Stage.fwd``.
        actors: How many there are.
        share: The share of the critical path of all of them, from 0 to 1.
        gain: As in ``Verdict``.
        spread: As in ``Verdict``.
    """

    text: str
    actors: int
    share: float
    gain: float
    spread: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What limits a graph. ``str()`` is a sentence.

    Attributes:
        text: The displayed name of what limits it.
        share: Its share of the critical path, from 0 to 1.
        gain: Predicted throughput, divided by that of now, if it took half the time; None if that
            cannot be predicted.
        spread: How far ``gain`` may be off.
        error_percent: The error of the unchanged replay; None if nothing was replayed.
        elsewhere: What the method gives on all actors of its class, if one alone gives nothing.
        advice: What helps, the largest gain first; at most three.
    """

    text: str
    share: float
    gain: float | None = None
    spread: float | None = None
    error_percent: float | None = None
    elsewhere: Elsewhere | None = None
    advice: tuple[Advice, ...] = ()

    def __str__(self) -> str:
        name, share = brief(self.text, IN_LINE), share_text(self.share, 0)
        every = self.elsewhere
        if every is not None:
            what = f"{brief(every.text, IN_LINE)} on all {every.actors} actors limits this"
            share = share_text(every.share, 0)
        elif self.share < _LIMITS:
            what = f"nothing limits this alone: {name}, the largest,"
        else:
            what = f"{name} limits this"
        joined = " is " if self.share < _LIMITS and every is None else ": "
        return "; ".join([f"{what}{joined}{share} of the critical path", *self._then()])

    def _then(self) -> Iterator[str]:
        error, gain, every = self.error_percent, self.gain, self.elsewhere
        if error is not None and abs(error) > MAX_ERROR_PERCENT:
            yield f"no prediction, a replay of this trace is {abs(error):.0f} % off"
        elif gain is not None and every is not None:
            yield f"twice as fast there gives {spread_text(every.gain, every.spread)}"
            yield f"{brief(self.text, IN_LINE)} alone {spread_text(gain, self.spread)}"
        elif gain is not None and self.spread is not None:
            noise = "" if gain - 1 > self.spread else ", which is noise"
            yield f"twice as fast there gives {spread_text(gain, self.spread)}{noise}"


def verdict_of(
    graph: GraphTrace, path: SteadyPath | None, executions: Executions
) -> Verdict | None:
    """Return the verdict on a graph; None if its trace is too short, or has no path.

    Args:
        graph: The measured graph. It must not hang.
        path: The critical path of all executions.
        executions: The executions of the graph.
    """
    if path is None or path.bottleneck is None or executions.is_timed.sum() < LEAST:
        return None
    most, share = path.bottleneck, path.bottleneck_share
    ops = sum(len(program.ops) for program in graph.plan.programs)
    places = _places_of(graph, path)
    is_user = most.process == DRIVER and most.op is None
    if ops > _MAX_OPS or not (places or is_user):
        return Verdict(most.text, share)
    try:
        replays = Replays(graph, max(16, min(64, _REPLAYED_OPS // ops)), executions)
        found = replays.with_changes(
            (), dict.fromkeys(places, _TWICE_AS_FAST), user=0.5 if is_user else 1.0
        )
        error, spread, gain = found.error_percent, found.spread, found.speedup
        if error is None or abs(error) > MAX_ERROR_PERCENT or spread is None or gain is None:
            return Verdict(most.text, share, error_percent=error)
        advisor = _Advisor(replays, found.baseline_latency_ns, spread / gain)
        elsewhere = None if advisor.is_worth_it(gain) else advisor.elsewhere(places, path)
        advice = sorted(advisor.advice(), key=lambda each: -each.gain)[:_MAX_ADVICE]
    except (DeadlockError, TraceError):
        return Verdict(most.text, share)
    return Verdict(most.text, share, gain, spread, error, elsewhere, tuple(advice))


def _places_of(graph: GraphTrace, path: SteadyPath) -> list[Place]:
    """Return the ops of the bottleneck; none of a gate, whose ops are not replayed."""
    most = path.bottleneck
    return [
        (each.process, each.op)
        for each in path.shares
        if most is not None and (each.process, each.text) == (most.process, most.text)
        if each.op is not None and not isinstance(graph.op(graph.lane(each.process), each.op), Pass)
    ]


@dataclass(frozen=True)
class _Advisor:
    """Finds what helps.

    Attributes:
        replays: The replays of the graph.
        latency_ns: The latency of the unchanged one.
        off: How far any gain may be off, as a share of it: that of the bottleneck's.
    """

    replays: Replays
    latency_ns: float | None
    off: float

    def is_worth_it(self, gain: float | None) -> bool:
        """Return whether a gain is large enough to speak of, and larger than its spread."""
        return gain is not None and gain - 1 > max(gain * self.off, _LEAST_GAIN)

    def with_changes(self, *changes: Any) -> WhatIf:
        """Return the figures with changes, without the spread, which takes several replays."""
        return self.replays.with_changes((), *changes, has_spread=False)

    def elsewhere(self, places: list[Place], path: SteadyPath) -> Elsewhere | None:
        """Return the method that gives most on all actors of its class, if that helps."""
        best: Elsewhere | None = None
        for name, every in places_of(self.replays.graph).items():
            actors = len({process for process, _ in every})
            if actors < 2 or not set(places) < set(every):
                continue
            gain = self.with_changes(dict.fromkeys(every, _TWICE_AS_FAST)).speedup
            if gain is not None and self.is_worth_it(gain) and (best is None or gain > best.gain):
                of = (each.share for each in path.shares if (each.process, each.op) in every)
                best = Elsewhere(name, actors, sum(of), gain, gain * self.off)
        return best

    def advice(self) -> Iterator[Advice]:
        """Yield what helps."""
        yield from self._in_flight()

    def _in_flight(self) -> Iterator[Advice]:
        """Advise as many executions in flight as give as much throughput as any number.

        The replay has no random delays, so one more than it needs is advised.
        """
        now, limit = self.replays.measured.window, self.replays.graph.limit
        most = max(2 * now, 16)
        windows = sorted({*(each for each in _WINDOWS if each <= most), now})

        def rate_at(window: int) -> float:
            return self.with_changes({}, window).throughput or 0.0

        enough = (1 - _LEAST_GAIN / 2) * rate_at(windows[-1])
        # Throughput does not fall with the number in flight.
        best = windows[bisect_left(windows, True, key=lambda each: rate_at(each) >= enough)] + 1
        then = self.with_changes({}, best)
        gain, option = then.speedup, f"max_inflight_executions={best}"
        if best > now and gain is not None and self.is_worth_it(gain):
            how = f"{option} instead of {limit}" if best > limit else f"{best} instead of {now}"
            gives = spread_text(gain, gain * self.off)
            yield Advice(f"keep more executions in flight, {how}: {gives}", gain)
        was_ns, latency_ns = self.latency_ns, then.latency_ns
        if best < now and latency_ns and was_ns and latency_ns <= _MUCH_SOONER * was_ns:
            yield Advice(
                f"{option} instead of {now}: the same throughput, "
                f"latency {time_text(latency_ns)} instead of {time_text(was_ns)}",
                was_ns / latency_ns,
            )
