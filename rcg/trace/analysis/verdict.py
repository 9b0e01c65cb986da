# SPDX-License-Identifier: Apache-2.0
"""The verdict on a graph, in one of five forms, and how sure it is.

```
a2 (Shard).work limits this: 91 % of the critical path; twice as fast there gives 1.83x ±0.02
  try: results = list(graph.map(inputs, in_flight=3))  # 3 in flight instead of 10: the same ...
10 in flight are too few: nothing is busy more than 41 % of the time; 21 give 2.05x ±0.02
balanced: 8 Stage actors are equally busy, within 4 % (noise 6 %); Stage.fwd on all gives 1.9x
one stall dominated: a1 (Shard).work took 94 ms in execution 7, usually 8 ms
not enough to say: 4 executions are complete; run 6 more
```

What limits a graph is what takes the largest share of the critical path (``critical.py``). The
gain, and each piece of advice, comes from a replay of the measured times with the change
(``what_if.py``): there is none if the unchanged replay is not like the trace, if the gain is no
larger than its spread, or if the trace is too short for a spread (``spread.py``). If a share ``s``
of a path takes half the time, ``1 - s / 2`` of its length are left, and no result comes sooner: a
replay that gains more is off by so much at least, which its spread includes. Where twice as fast
gives less than 1.05x, nothing limits the graph alone: with too few executions in flight none of its
processes has enough to do, and else it is balanced. If a replay fails with an exception, the
verdict says so.

This room must know neither Ray nor how a verdict is shown, except as text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

import numpy as np

from rcg.error_text import describe_error
from rcg.ir.ids import DRIVER
from rcg.ir.index import Place, reads_of, writes_of
from rcg.ir.ops import Collective, Pass
from rcg.text import IN_LINE, brief, hundredths, plural, share_text, spread_text, time_text
from rcg.trace.analysis.advice import TWICE_AS_FAST, Advice, Advisor, Elsewhere
from rcg.trace.analysis.costs import Cost, MeasuredCosts
from rcg.trace.analysis.critical import PathGroup, PathStall, SteadyPath
from rcg.trace.analysis.events import NONE, EventTable
from rcg.trace.analysis.executions import Executions
from rcg.trace.analysis.intervals import MIN_INT64
from rcg.trace.analysis.spread import LEAST, half_width, is_noise
from rcg.trace.analysis.what_if import MAX_ERROR_PERCENT, Replays
from rcg.trace.model import GraphTrace

_MAX_ADVICE: Final = 3
_LITTLE: Final = 1.05  # the least gain of what limits a graph
_SAME: Final = 0.05  # of the busiest actor's time, by which others may differ and be as busy
_ENOUGH: Final = 0.8  # of the time: what is busy longer has enough to do
_FEW_NAMES: Final = 3
_MAX_FAILURE: Final = 200  # characters of it
_MAX_OPS: Final = 4_000  # of a plan that is replayed unasked


class Form(Enum):
    """What a verdict says."""

    LIMITS = "limits"
    STARVED = "starved"
    BALANCED = "balanced"
    STALLED = "stalled"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Alike:
    """Actors that are equally busy, and none of the others busier.

    Attributes:
        labels: Their displayed names, in the order of the plan.
        within: By how much their mean times per execution differ at most, as a share.
        noise: How far these times may be off, as a share (``spread.py``).
    """

    labels: tuple[str, ...]
    within: float
    noise: float

    def __str__(self) -> str:
        classes = {label.partition(" (")[2].rstrip(")") for label in self.labels}
        few = " and ".join(brief(label, IN_LINE) for label in self.labels)
        who = few if len(self.labels) <= _FEW_NAMES else f"{len(self.labels)} actors"
        if len(self.labels) > _FEW_NAMES and len(classes) == 1 and (name := classes.pop()):
            who = f"{len(self.labels)} {brief(name, IN_LINE)} actors"
        within, noise = share_text(self.within, 0), share_text(self.noise, 0)
        return f"{who} are equally busy, within {within} (noise {noise})"


@dataclass(frozen=True, slots=True)
class TooFew:
    """Too few executions in flight for any process to be busy.

    Attributes:
        now: How many were in flight.
        then: How many give as much throughput as any number.
        gain: As in ``Verdict``, with so many.
        spread: As in ``Verdict``.
        busiest: The share of the time, from 0 to 1, that the busiest process was busy.
    """

    now: int
    then: int
    gain: float
    spread: float
    busiest: float

    def __str__(self) -> str:
        gives = spread_text(self.gain, self.spread)
        return (
            f"{self.now} in flight {_are(self.now)} too few: nothing is busy more than "
            f"{share_text(self.busiest, 0)} of the time; {self.then} give {gives}"
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What limits a graph. ``str()`` is a sentence.

    Attributes:
        form: What it says.
        text: The displayed name of what takes the largest share of the critical path.
        share: This share, from 0 to 1.
        gain: Predicted throughput, divided by that of now, if it took half the time; None if that
            cannot be predicted.
        spread: How far ``gain`` may be off.
        error_percent: The error of the unchanged replay; None if nothing was replayed.
        elsewhere: What the method gives on all actors of its class, if one alone gives nothing.
        alike: The actors that are equally busy, if it is balanced and there are several.
        too_few: Which number in flight gives more, if too few are.
        stalls: What was once much slower than usual, longest first.
        known: How many executions are known from their submission to their completion.
        advice: What helps: the largest gain of throughput first, then latency; at most three.
        failure: Why there is no advice, if the replays that give it failed, or "".
    """

    form: Form
    text: str = ""
    share: float = 0.0
    gain: float | None = None
    spread: float | None = None
    error_percent: float | None = None
    elsewhere: Elsewhere | None = None
    alike: Alike | None = None
    too_few: TooFew | None = None
    stalls: tuple[PathStall, ...] = ()
    known: int = 0
    advice: tuple[Advice, ...] = ()
    failure: str = ""

    def __str__(self) -> str:
        name, share = brief(self.text, IN_LINE), share_text(self.share, 0)
        match self.form:
            case Form.UNKNOWN:
                missing = LEAST - self.known
                what = f"{plural(self.known, 'execution')} {_are(self.known)} complete"
                return f"not enough to say: {what}; run {missing} more"
            case Form.STALLED:
                return self._stalled()
            case Form.STARVED:
                return str(self.too_few)
            case Form.BALANCED if self.alike is not None:
                what = f"balanced: {self.alike}"
            case Form.BALANCED:
                what = f"balanced: {name} takes most, {share} of the critical path"
            case Form.LIMITS:
                what = f"{name} limits this: {share} of the critical path"
        return "; ".join([what, *self._then()])

    def _stalled(self) -> str:
        most, *more = self.stalls
        usual = f", usually {time_text(most.usual_ns)}" if most.usual_ns else ""
        stalls = "one stall" if not more else f"{len(self.stalls)} stalls"
        share = share_text(sum(each.share for each in self.stalls), 0)
        return (
            f"{stalls} dominated: {brief(most.text, IN_LINE)} took {time_text(most.took_ns)} in "
            f"execution {most.execution}{usual}; {share} of the critical path"
        )

    def _then(self) -> Iterator[str]:
        error, gain, every = self.error_percent, self.gain, self.elsewhere
        if self.failure:
            yield f"no advice: {brief(self.failure, _MAX_FAILURE)}"
        elif error is not None and abs(error) > MAX_ERROR_PERCENT:
            yield f"no prediction, a replay of this trace is {share_text(abs(error) / 100, 0)} off"
        elif every is not None:
            gives = spread_text(every.gain, every.spread)
            yield f"{brief(every.text, IN_LINE)} twice as fast on all {every.actors} gives {gives}"
        elif gain is not None and self.form is Form.BALANCED:
            yield "twice as fast in one place gives nothing beyond the noise"
        elif gain is not None and self.spread is not None:
            gives = spread_text(gain, self.spread)
            noise = "nothing beyond the noise, " if is_noise(gain, self.spread) else ""
            yield f"twice as fast there gives {noise}{gives}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def verdict_of(
    path: SteadyPath | None,
    executions: Executions,
    table: EventTable,
    replays: Callable[[], Replays],
    cores: int = 0,
    *,
    busiest: Callable[[], float],
) -> Verdict | None:
    """Return the verdict on a graph; None if nothing completed, or its trace has no path.

    Args:
        path: The critical path of all executions.
        executions: The executions of the graph, which must not hang.
        table: Its events.
        replays: Returns its replays.
        cores: How many processors each node of the cluster has; 0 if that is not known.
        busiest: Returns the share of the time that the busiest process was busy.
    """
    graph = table.graph
    known = int(executions.is_timed.sum())
    if known and known < LEAST:
        return Verdict(Form.UNKNOWN, known=known)
    if path is None or path.bottleneck is None or not known:
        return None
    most, ops = path.bottleneck, sum(len(program.ops) for program in graph.plan.programs)
    said = Verdict(Form.LIMITS, most.text, most.share, stalls=path.stalls, known=known)
    if path.stalled > most.share:
        return replace(said, form=Form.STALLED)
    places = _places_of(graph, most)
    is_user = path.is_user_code
    if is_user and _awaits(table):
        return None
    if ops > _MAX_OPS or not (places or is_user):
        return said
    try:
        made = replays()
        found = made.with_changes(
            (), dict.fromkeys(places, TWICE_AS_FAST), user=0.5 if is_user else 1.0
        )
        error, spread, gain = found.error_percent, found.spread, found.speedup
        if error is None or abs(error) > MAX_ERROR_PERCENT or spread is None or gain is None:
            return replace(said, error_percent=error)
        if hundredths(beyond := gain - 1 / (1 - most.share / 2)) > 0:
            spread = max(spread, beyond)
        advisor = Advisor(made, spread / gain, cores)
        is_alone = gain >= _LITTLE
        elsewhere = None if advisor.is_worth_it(gain) else advisor.elsewhere(places, path)
        advice = sorted(advisor.advice(), key=lambda each: (each.is_latency, -each.gain))
    except Exception as failure:  # noqa: BLE001 - the figures of a profile stand without advice
        return replace(said, failure=describe_error(failure).partition("\n")[0])
    too_few = None if is_alone else _too_few(found.window, advice, spread / gain, busiest())
    form = Form.BALANCED if too_few is None else Form.STARVED
    return replace(
        said,
        form=Form.LIMITS if is_alone else form,
        gain=gain,
        spread=spread,
        error_percent=error,
        elsewhere=None if is_alone else elsewhere,
        alike=alike_of(graph, made.measured) if form is Form.BALANCED and not is_alone else None,
        too_few=too_few,
        advice=tuple(advice[:_MAX_ADVICE]),
    )


def _too_few(now: int, advice: Sequence[Advice], off: float, busiest: float) -> TooFew | None:
    """Return how many more in flight help, if that is what helps most; None if it is not.

    Args:
        now: How many were in flight.
        advice: What helps, the largest gain of throughput first.
        off: How far any gain may be off, as a share of it.
        busiest: The share of the time that the busiest process was busy.
    """
    most = next(iter(advice), None)
    if most is None or not most.in_flight or busiest > _ENOUGH:
        return None
    return TooFew(now, most.in_flight, most.gain, most.gain * off, busiest)


def alike_of(graph: GraphTrace, measured: MeasuredCosts) -> Alike | None:
    """Return the actors that are as busy as the busiest, within the noise; None if it is alone.

    Busy is what an actor's ops take in an execution, on average, without waiting. Actors that
    differ by less than ``_SAME`` count as alike even if the noise is smaller.
    """

    def busy_of(costs: Mapping[Place, Cost]) -> dict[str, float]:
        found = dict.fromkeys((actor.id for actor in graph.plan.actors), 0.0)
        for (process, _), cost in costs.items():
            if process in found:
                found[process] += cost.own_ns
        return found

    busy = busy_of(measured.costs)
    most = max(busy, key=lambda actor: busy[actor], default=None)
    if most is None or not busy[most] or not measured.batches:
        return None
    noise = half_width([busy_of(each)[most] for each in measured.batches]) / busy[most]
    least = (1 - max(noise, _SAME)) * busy[most]
    alike = [actor for actor, each in busy.items() if each >= least]
    if len(alike) < 2:
        return None
    within = 1 - min(busy[actor] for actor in alike) / busy[most]
    return Alike(tuple(map(graph.plan.label, alike)), within, noise)


def _awaits(table: EventTable) -> bool:
    """Return whether the driver takes results as soon as they are made, and records no wait.

    So ``await`` does: the time before is not that of the user's code, and the path does not know.
    """
    plan, of = table.graph.plan, table.of_lane(table.number(DRIVER))
    before_ns = np.full(len(table), MIN_INT64)
    before_ns[of] = np.append(table.start_ns[of][:1], table.end_ns[of][:-1])
    writes, reads = writes_of(plan), reads_of(plan)
    gaps, late = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for channel in plan.channels:
        if (channel.id, DRIVER) not in reads or channel.id not in writes:
            continue
        taken = table.rows(*reads[channel.id, DRIVER])
        if table.waited_ns[taken].any():
            return False  # it waits in its ops, which the path knows
        made = table.find(*writes[channel.id], table.execution[taken])
        taken, made = taken[made != NONE], made[made != NONE]
        gaps.append(table.start_ns[taken] - before_ns[taken])
        late.append(table.start_ns[taken] - table.end_ns[made])
    gap_ns, late_ns = (np.concatenate(each) for each in (gaps, late))
    return bool(len(gap_ns) and np.median(late_ns) < np.median(gap_ns) / 2)


def _places_of(graph: GraphTrace, most: PathGroup) -> list[Place]:
    """Return the ops of the bottleneck but those of gates; of a collective, those of all ranks."""
    known = most.ops
    ops = [graph.op(graph.lane(process), at) for process, at in known]
    made = {(op.word, op.group) for op in ops if isinstance(op, Collective)}
    return [
        (lane.process, at)
        for lane in graph.lanes
        for at, op in enumerate(graph.program(lane).ops)
        if ((lane.process, at) in known and not isinstance(op, Pass))
        or (isinstance(op, Collective) and (op.word, op.group) in made)
    ]
