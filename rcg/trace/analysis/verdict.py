# SPDX-License-Identifier: Apache-2.0
"""The verdict on a graph: what limits it, what would help, and how sure that is.

```
a2 (Shard).work limits this: 91 % of the critical path; twice as fast there gives 1.83x ±0.02
  try: graph.map(batches, in_flight=3)  # 3 in flight instead of 10: the same throughput, ...
```

What limits a graph is what takes the largest share of the critical path (``critical.py``). What
that gives, and each piece of advice, comes from a replay of the measured times with the change
(``what_if.py``): there is none if the unchanged replay is not like the trace, if the gain is no
larger than its spread, or if the trace is too short for a spread (``spread.py``). If a replay fails
with an exception, the verdict says so instead.

This room must know neither Ray nor how a verdict is shown, except as text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from rcg.error_text import describe_error
from rcg.ir.channels import STATUS
from rcg.ir.ids import DRIVER
from rcg.ir.ops import Collective, Pass
from rcg.text import IN_LINE, brief, share_text, spread_text
from rcg.trace.analysis.advice import LIMITS, TWICE_AS_FAST, Advice, Advisor, Elsewhere
from rcg.trace.analysis.critical import Paths, SteadyPath
from rcg.trace.analysis.intervals import Ints
from rcg.trace.analysis.spread import LEAST
from rcg.trace.analysis.transfers import read_of, write_of
from rcg.trace.analysis.what_if import (
    MAX_ERROR_PERCENT,
    Place,
    Replays,
)
from rcg.trace.model import GraphTrace

_MAX_ADVICE: Final = 3
_NOTHING: Final = 0.005  # what a gain is rounded to
_LITTLE: Final = 1.05  # a gain of more is one, although its spread may be larger
_MAX_FAILURE: Final = 200  # characters of it
_MAX_OPS: Final = 4_000  # of a plan that is replayed unasked
_REPLAYED_OPS: Final = 25_000  # in one replay, about


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
        advice: What helps: the largest gain of throughput first, then latency; at most three.
        failure: Why there is no advice, if the replays that give it failed, or "".
    """

    text: str
    share: float
    gain: float | None = None
    spread: float | None = None
    error_percent: float | None = None
    elsewhere: Elsewhere | None = None
    advice: tuple[Advice, ...] = ()
    failure: str = ""

    def __str__(self) -> str:
        name, share = brief(self.text, IN_LINE), share_text(self.share, 0)
        every = self.elsewhere
        if every is not None:
            what = f"{brief(every.text, IN_LINE)} on all {every.actors} actors limits this"
            share = share_text(every.share, 0)
        elif self._limits():
            what = f"{name} limits this"
        else:
            what = f"nothing limits this alone: {name}, the largest,"
        joined = ": " if self._limits() or every is not None else " is "
        return "; ".join([f"{what}{joined}{share} of the critical path", *self._then()])

    def _limits(self) -> bool:
        """Return whether less time there would help: others may take as long."""
        error, gain, spread = self.error_percent or 0.0, self.gain, self.spread
        helps = gain is None or spread is None or gain > min(1 + spread, _LITTLE)
        return self.share >= LIMITS and (helps or abs(error) > MAX_ERROR_PERCENT)

    def _then(self) -> Iterator[str]:
        error, gain, every = self.error_percent, self.gain, self.elsewhere
        if self.failure:
            yield f"no advice: {brief(self.failure, _MAX_FAILURE)}"
        elif error is not None and abs(error) > MAX_ERROR_PERCENT:
            yield f"no prediction, a replay of this trace is {share_text(abs(error) / 100, 0)} off"
        elif gain is not None and every is not None:
            yield f"twice as fast there gives {spread_text(every.gain, every.spread)}"
            yield f"{brief(self.text, IN_LINE)} alone {spread_text(gain, self.spread)}"
        elif gain is not None and self.spread is not None:
            if max(abs(gain - 1), self.spread) < _NOTHING:
                yield "twice as fast there gives nothing"
                return
            noise = "" if abs(gain - 1) > self.spread else ", which is noise"
            yield f"twice as fast there gives {spread_text(gain, self.spread)}{noise}"


def verdict_of(
    graph: GraphTrace, path: SteadyPath | None, paths: Paths, cores: int = 0
) -> Verdict | None:
    """Return the verdict on a graph; None if its trace is too short, or has no path.

    Args:
        graph: The measured graph. It must not hang.
        path: The critical path of all executions.
        paths: The paths of the graph.
        cores: How many processors each node of the cluster has; 0 if that is not known.
    """
    executions = paths.executions
    if path is None or path.bottleneck is None or executions.is_timed.sum() < LEAST:
        return None
    most, share = path.bottleneck, path.bottleneck_share
    ops = sum(len(program.ops) for program in graph.plan.programs)
    places = _places_of(graph, path)
    is_user = most.process == DRIVER and most.op is None
    if is_user and _awaits(graph):
        return None
    if ops > _MAX_OPS or not (places or is_user):
        return Verdict(most.text, share)
    try:
        replays = Replays(graph, max(16, min(64, _REPLAYED_OPS // ops)), paths.dependencies)
        found = replays.with_changes(
            (), dict.fromkeys(places, TWICE_AS_FAST), user=0.5 if is_user else 1.0
        )
        error, spread, gain = found.error_percent, found.spread, found.speedup
        if error is None or abs(error) > MAX_ERROR_PERCENT or spread is None or gain is None:
            return Verdict(most.text, share, error_percent=error)
        advisor = Advisor(replays, spread / gain, cores)
        elsewhere = None if advisor.is_worth_it(gain) else advisor.elsewhere(places, path)
        advice = sorted(advisor.advice(), key=lambda each: (each.is_latency, -each.gain))
    except Exception as failure:  # noqa: BLE001 - the figures of a profile stand without advice
        return Verdict(most.text, share, failure=describe_error(failure).partition("\n")[0])
    return Verdict(most.text, share, gain, spread, error, elsewhere, tuple(advice[:_MAX_ADVICE]))


def _awaits(graph: GraphTrace) -> bool:
    """Return whether the driver takes results as soon as they are made, and records no wait.

    So ``await`` does: the time before is not that of the user's code, and the path does not know.
    """
    driver = graph.driver
    before_ns = np.append(driver.events["start_ns"][:1], driver.events["end_ns"][:-1])
    gaps: list[Ints] = [np.empty(0, np.int64)]
    late: list[Ints] = [np.empty(0, np.int64)]
    for channel in graph.plan.channels:
        if channel.kind == STATUS or DRIVER not in channel.readers:
            continue
        writer = graph.lane(channel.writer)
        made = writer.events[
            writer.events["op"] == write_of(graph.plan, channel.writer, channel.id)
        ]
        at = np.flatnonzero(driver.events["op"] == read_of(graph.plan, DRIVER, channel.id))
        taken = driver.events[at]
        if taken["waited_ns"].any():
            return False  # it waits in its ops, which the path knows
        _, of, to = np.intersect1d(made["execution"], taken["execution"], return_indices=True)
        gaps.append(taken["start_ns"][to] - before_ns[at[to]])
        late.append(taken["start_ns"][to] - made["end_ns"][of])
    gap_ns, late_ns = (np.concatenate(each) for each in (gaps, late))
    return bool(len(gap_ns) and np.median(late_ns) < np.median(gap_ns) / 2)


def _places_of(graph: GraphTrace, path: SteadyPath) -> list[Place]:
    """Return the ops of the bottleneck but those of gates; of a collective, those of all ranks."""
    known = path.bottleneck_ops
    ops = [graph.op(graph.lane(process), at) for process, at in known]
    made = {(op.word, op.group) for op in ops if isinstance(op, Collective)}
    return [
        (lane.process, at)
        for lane in graph.lanes
        for at, op in enumerate(graph.program(lane).ops)
        if ((lane.process, at) in known and not isinstance(op, Pass))
        or (isinstance(op, Collective) and (op.word, op.group) in made)
    ]
