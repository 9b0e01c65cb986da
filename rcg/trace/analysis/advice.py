# SPDX-License-Identifier: Apache-2.0
"""What would help a graph: changes that a replay of the measured times predicts a gain for.

how many are in flight        throughput stops rising with the number in flight; latency does not
overlap                       the compiler predicts both plans from the measured costs
where to cut                  spans of a method that all actors of a chain have are its layers
where actors are              values that cross between nodes would not, if actors changed places
Python's lock                 a method that does not run while other threads of its process do

Advice is a line of Python, which works as it is where the graph is named ``graph``, what it was
compiled from ``dag``, its inputs ``inputs``, and the layers of a model ``layers``.

There is no advice where the model does not hold: where a change gives no more than its spread, or
the trace has not what it needs.

This room must know neither Ray nor how advice is shown, except as text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np

from rcg.compiler import overlap_gain, without_overlap
from rcg.ir.channels import TENSOR
from rcg.ir.costs import CALL, MOVE, Cost
from rcg.ir.ids import DRIVER
from rcg.ir.index import Place
from rcg.ir.ops import Call, Collective, Read
from rcg.text import IN_LINE, brief, bytes_text, share_text, spread_text, time_text, wrapped
from rcg.trace.analysis.critical import SteadyPath, text_of
from rcg.trace.analysis.events import EventTable
from rcg.trace.analysis.executions import Executions
from rcg.trace.analysis.placement import Placements
from rcg.trace.analysis.spread import is_noise
from rcg.trace.analysis.what_if import (
    Factors,
    Replays,
    WhatIf,
    places_of,
)
from rcg.trace.model import SPAN_BASE, LaneTrace

LIMITS: Final = 0.1  # of the path: what has less does not limit anything on its own
_LEAST_GAIN: Final = 0.05  # that is worth a change
_MUCH_SOONER: Final = 0.7  # of the latency, with the same throughput
_WINDOWS: Final = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
_ON_DEVICES: Final = "nccl"  # the backend that moves tensors without processors
_LAYERS: Final = 0.8  # of a call that its spans must be, to be layers
_MOST_LAYERS: Final = 1_000  # all stretches of which are compared
_MOST_MOVED: Final = 4  # actors that are named
_KEPT: Final = 0.2  # of its time that a method does not run while other threads of its process do
_ROUNDING: Final = 1 + 1e-9  # of sums in another order
_LEAST_NS: Final = 100_000_000  # of processor time, whose clocks are coarse
TWICE_AS_FAST: Final = Factors(0.5, 0.5, 0.5, 0.5)


@dataclass(frozen=True, slots=True)
class Advice:
    """One change that helps.

    Attributes:
        code: The change, as a line of Python.
        effect: What that gives.
        gain: The predicted throughput, or the latency of now, divided by the other; 1 if it cannot
            be predicted.
        is_latency: Whether the gain is one of latency.
        in_flight: How many executions in flight it advises for throughput; 0 if it does not.
    """

    code: str
    effect: str
    gain: float
    is_latency: bool = False
    in_flight: int = 0

    @property
    def text(self) -> str:
        """The line, with what it gives as its comment."""
        return f"{self.code}  # {self.effect}"

    def lines(self, most: int) -> list[str]:
        """Return ``text`` in lines of so many characters, which work as they are.

        The code is on one line, however long it is, and what does not fit behind it is in comments
        of their own.
        """
        if len(self.text) <= most:
            return [self.text]
        return [self.code, *(f"# {line}" for line in wrapped(self.effect, most - 2))]


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


@dataclass(frozen=True)
class Advisor:
    """Finds what helps.

    Attributes:
        replays: The replays of the graph.
        off: How far any gain may be off, as a share of it: that of the bottleneck's.
        cores: How many processors each node has; 0 if that is not known.
    """

    replays: Replays
    off: float
    cores: int

    def is_worth_it(self, gain: float | None) -> bool:
        """Return whether a gain is large enough to speak of, and larger than its spread."""
        return gain is not None and gain - 1 > _LEAST_GAIN and not is_noise(gain, gain * self.off)

    def with_changes(self, *changes: Any) -> WhatIf:
        """Return the figures with changes, without the spread, which takes several replays."""
        return self.replays.with_changes((), *changes, has_spread=False)

    def elsewhere(self, places: list[Place], path: SteadyPath) -> Elsewhere | None:
        """Return the method that gives most on all actors of its class, if that helps."""
        best: Elsewhere | None = None
        if not places:
            return None
        for name, every in places_of(self.replays.graph).items():
            actors = len({process for process, _ in every})
            if actors < 2 or not set(places) < set(every):
                continue
            gain = self.with_changes(dict.fromkeys(every, TWICE_AS_FAST)).speedup
            if gain is not None and self.is_worth_it(gain) and (best is None or gain > best.gain):
                of = (each.share for each in path.shares if (each.process, each.op) in every)
                if (share := sum(of)) >= LIMITS:
                    best = Elsewhere(name, actors, share, gain, gain * self.off)
        return best

    def advice(self) -> Iterator[Advice]:
        """Yield what helps."""
        yield from self._in_flight()
        yield from self._overlap()
        yield from self._cuts()
        yield from self._places()
        yield from self._locks()

    def _cuts(self) -> Iterator[Advice]:
        """Advise where to cut a model whose layers are spans of one method of a chain of actors."""
        graph, measured = self.replays.graph, self.replays.measured
        stages = _stages_of(self.replays.table, self.replays.executions)
        if not stages:
            return
        layers = [_layers_of(graph.lane(stage.place[0])) for stage in stages]
        calls_ns = [measured.costs[stage.place].compute_ns for stage in stages]
        held = list(zip(layers, calls_ns, strict=True))
        if not all(each is not None and sum(each) >= _LAYERS * ns for each, ns in held):
            return
        # Where all stages have the same few spans, these are parts of a stage and no layers.
        names = [frozenset(graph.lane(stage.place[0]).spans) for stage in stages]
        if len(set(names)) < len(names) and max(map(len, names)) > 1:
            return
        if sum(len(each or ()) for each in layers) > _MOST_LAYERS:
            return
        counts = [len(each or ()) for each in layers]
        every = [ns for each in layers for ns in each or ()]
        cuts = best_cuts(every, len(stages))
        then = np.add.reduceat(np.array(every), [0, *cuts]).tolist()
        factors = {
            stage.place: Factors(compute=1 + (now - sum(each or ())) / ns)
            for stage, (each, ns), now in zip(stages, held, then, strict=True)
        }
        gain = self.with_changes(factors).speedup
        if gain is not None and self.is_worth_it(gain):
            words = "layer" if len(cuts) == 1 else "layers"
            was = ", ".join(map(str, accumulate(counts[:-1])))
            ends = ["", *map(str, cuts), ""]
            yield Advice(
                "parts = " + ", ".join(f"layers[{low}:{high}]" for low, high in pairwise(ends)),
                f"cut after {words} {', '.join(map(str, cuts))} instead of {was}: "
                f"{spread_text(gain, gain * self.off)}",
                gain,
            )

    def _places(self) -> Iterator[Advice]:
        """Advise which actors should share a node.

        An exchange within a class leaves as much on each node as there is. Where none helps, a node
        may have to have room for more, which only Ray knows; their processors are known.
        """
        plan = self.replays.graph.plan
        if len(plan.nodes) < 2:
            return
        placements = Placements(self.replays.table, self.replays.measured.costs)
        for is_exchange in (True, False):
            if (found := placements.best(is_exchange=is_exchange)) is None:
                continue
            gain = self.replays.with_changes((), {}, has_spread=False, instead=found.costs).speedup
            if gain is None or not self.is_worth_it(gain):
                continue
            if not is_exchange and not self._has_processors(found.moved, gain):
                continue
            classes = {each.id: each.label for each in plan.actors}
            keys = [each.id for each in plan.nodes]
            moved = list(found.moved.items())
            named = moved[:_MOST_MOVED]
            where = []
            for actor, node in named:
                others = [plan.label(each) for each in found.beside[actor] if each != DRIVER]
                beside = " and ".join(brief(each, IN_LINE) for each in others)
                where.append(
                    f"{brief(plan.label(actor), IN_LINE)} on {node}"
                    + (f" beside {beside}" if beside else "")
                )
            room = "" if is_exchange else ", if Ray has room there"
            more = f" and {len(moved) - _MOST_MOVED} more" if len(moved) > _MOST_MOVED else ""
            placed = [_placed(classes[actor], keys.index(node)) for actor, node in named]
            yield Advice(
                f"{', '.join(actor for actor, _ in named)} = {', '.join(placed)}",
                f"{', '.join(where)}{more}{room}: "
                f"{spread_text(gain, gain * self.off)}; in each execution "
                f"{bytes_text(found.bytes)} less cross between nodes, {time_text(found.wire_ns)} "
                "less on the wire",
                gain,
            )
            return

    def _has_processors(self, moved: Mapping[str, str], gain: float) -> bool:
        """Return whether nodes have the processors for what moves to them, as far as is known."""
        graph = self.replays.graph
        executions = self.replays.executions
        length = (executions.last_completion_ns or 0) - (executions.first_submission_ns or 0)
        used: Counter[str] = Counter()
        for lane in graph.lanes:
            if lane.processor_ns is not None and lane.process == graph.plan.host_of(lane.process):
                node = moved.get(lane.process, graph.plan.node_of(lane.process))
                used[node] += lane.processor_ns[1]
        most = max((used[node] for node in moved.values()), default=0)
        return not self.cores or most * gain <= self.cores * length

    def _overlap(self) -> Iterator[Advice]:
        """Advise that transfers overlap with methods, or do not, as the compiler would order them.

        Passing values to a lane and back may cost more than it hides. That methods would run faster
        while no lane uses their processors is not known, and not counted.
        """
        plan, measured = self.replays.graph.plan, self.replays.measured.costs
        if not any(each.kind == TENSOR for each in plan.channels):
            return
        tensors = {each.id: each.nodes[0] for each in plan.channels if each.kind == TENSOR}
        longest: Counter[tuple[str, int]] = Counter()  # a value moves to its slowest reader
        for (process, at), cost in measured.items():
            op = plan.program(process).ops[at]
            if isinstance(op, Call | Collective):
                of = CALL, op.node
            elif isinstance(op, Read) and op.channel in tensors:
                of = MOVE, tensors[op.channel]
            else:
                continue
            longest[of] = max(longest[of], round(cost.own_ns))
        costs = [Cost(*of, cost_ns) for of, cost_ns in longest.items()]
        if plan.lanes:
            gain = self.replays.gain_of(without_overlap(plan, costs))
            if gain is not None and self.is_worth_it(gain):
                gives = spread_text(gain, gain * self.off)
                effect = f"overlap costs more here than it hides: {gives}"
                yield Advice("graph = dag.experimental_compile(overlap=False)", effect, gain)
            return
        uses_cores = any(group.backend != _ON_DEVICES for group in plan.groups)
        nodes = {plan.node_of(actor.id) for actor in plan.actors}
        cores = dict.fromkeys(nodes, self.cores) if self.cores and uses_cores else {}
        window = self.replays.measured.window
        gain = overlap_gain(plan, costs, window, cores) if costs else None
        if gain is not None and self.is_worth_it(gain):
            gives = spread_text(gain, gain * self.off)
            effect = f"tensors move while methods run: {gives}"
            yield Advice("graph = dag.experimental_compile(overlap=True)", effect, gain)

    def _locks(self) -> Iterator[Advice]:
        """Say where other threads of a process run while its method does not.

        They may be the method's own workers, or hold Python's lock; a replay cannot tell, so there
        is no gain. A method that sleeps, or waits for a device, counts only as far as others run.
        """
        graph, measured = self.replays.graph, self.replays.measured
        used_ns: Counter[str] = Counter()  # by a method and by transfers in lanes, of each process
        for lane in graph.lanes:
            used_ns[graph.plan.host_of(lane.process)] += (lane.processor_ns or (0, 0))[0]
        for lane in graph.lanes:
            if lane.processor_ns is None:
                continue
            calls = {
                (lane.process, at): measured.costs[lane.process, at].compute_ns
                for at, op in enumerate(graph.program(lane).ops)
                if op.is_call and (lane.process, at) in measured.costs
            }
            table = self.replays.table
            busy_ns = int(table.own_ns[table.of_lane(table.number(lane.process))].sum())
            thread_ns, process_ns = lane.processor_ns
            others_ns = process_ns - used_ns[graph.plan.host_of(lane.process)]
            kept_ns = min(busy_ns - thread_ns, others_ns)
            share = kept_ns / busy_ns if busy_ns else 0.0
            if not calls or busy_ns < _LEAST_NS or share < _KEPT:
                continue
            gain = self.with_changes(dict.fromkeys(calls, Factors(compute=1 - share))).speedup
            if gain is not None and self.is_worth_it(gain):
                name = text_of(graph, lane, max(calls, key=lambda place: calls[place])[1])
                yield Advice(
                    "print(graph.report())",
                    f"{brief(name, IN_LINE)} is on no processor {share_text(share, 0)} of its time "
                    "while other threads of its process are: its own workers, or threads that hold "
                    "the GIL, which could run in another process",
                    1.0,
                )

    def _in_flight(self) -> Iterator[Advice]:
        """Advise as many executions in flight as give as much throughput as any number.

        The replay has no random delays, so one more than it needs is advised.
        """
        replays = self.replays
        now, limit = replays.measured.window, replays.graph.limit
        most = max(2 * now, 16)
        known = [each for each in (*_WINDOWS, now) if each <= most]
        windows = sorted({each for each in known if not replays.is_too_long_with(each + 1)})
        if now not in windows:
            return
        enough = (1 - _LEAST_GAIN / 2) * replays.rate_at(windows[-1])
        # Throughput does not fall with the number in flight.
        at = bisect_left(windows, True, key=lambda each: replays.rate_at(each) >= enough)
        best = windows[at] + 1
        then = replays.with_changes((), {}, best, has_spread=False)
        gain = then.speedup
        code = f"results = list(graph.map(inputs, in_flight={best}))"
        effect = f"{best} in flight instead of {now}"
        if best > now and gain is not None and self.is_worth_it(gain):
            if best > limit:
                code = f"graph = dag.experimental_compile(max_inflight_executions={best}); {code}"
            gives = spread_text(gain, gain * self.off)
            yield Advice(code, f"{effect}: {gives}", gain, in_flight=best)
        was_ns, latency_ns = then.measured_latency_ns, then.latency_ns
        if best < now and latency_ns and was_ns and latency_ns <= _MUCH_SOONER * was_ns:
            yield Advice(
                code,
                f"{effect}: the same throughput, latency {time_text(latency_ns)} instead of "
                f"{time_text(was_ns)}",
                was_ns / latency_ns,
                is_latency=True,
            )


def _placed(name: str, node: int) -> str:
    """Return the class of an actor with the option that puts it on a node of the plan."""
    strategy = "ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy"
    return (
        f"{name}.options(scheduling_strategy={strategy}(graph.plan.nodes[{node}].key, soft=False))"
    )


@dataclass(frozen=True, slots=True)
class _Stage:
    """A call of a chain, and when it begins and ends in an execution, on average."""

    place: Place
    name: str
    start_ns: float
    end_ns: float


def _stages_of(table: EventTable, executions: Executions) -> list[_Stage]:
    """Return the calls of a pipeline, in its order: one of each actor, all of one method.

    None if the graph is something else.
    """
    graph, timed = table.graph, executions.index[executions.is_timed]
    stages = []
    for lane in graph.lanes:
        calls = [(at, op) for at, op in enumerate(graph.program(lane).ops) if isinstance(op, Call)]
        if not calls:
            continue
        (at, op), *more = calls
        rows = table.rows(lane.process, at)
        rows = rows[np.isin(table.execution[rows], timed)]
        if more or not len(rows):
            return []
        of = np.searchsorted(executions.index, table.execution[rows])
        since = executions.submitted_ns[of]
        start, end = (float((each[rows] - since).mean()) for each in (table.start_ns, table.end_ns))
        name = op.title({actor.id: actor.label for actor in graph.plan.actors})
        stages.append(_Stage((lane.process, at), name, start, end))
    stages.sort(key=lambda stage: stage.start_ns)
    is_chain = all(a.end_ns <= b.start_ns for a, b in pairwise(stages))
    is_alike = len({stage.name for stage in stages}) == 1
    return stages if is_chain and is_alike and len(stages) > 1 else []


def _layers_of(lane: LaneTrace) -> list[float] | None:
    """Return the mean times of the spans of each execution; None if their number differs.

    Those of torch's profiler, whose names are like ``aten::linear``, are no layers.
    """
    spans = lane.events[lane.events["op"] >= SPAN_BASE]
    if not len(spans) or any("::" in name for name in lane.spans):
        return None
    over = np.maximum.accumulate(spans["end_ns"])
    is_outer = np.concatenate(([True], spans["start_ns"][1:] >= over[:-1]))
    spans = spans[is_outer]
    executions, counts = np.unique(spans["execution"], return_counts=True)
    if len(set(counts[1:-1].tolist())) != 1:  # the first and the last may be cut off
        return None
    spans = spans[np.isin(spans["execution"], executions[1:-1])]
    times = (spans["end_ns"] - spans["start_ns"]).reshape(-1, int(counts[1]))
    found: list[float] = times.mean(axis=0).tolist()
    return found


def best_cuts(times: Sequence[float], parts: int) -> list[int]:
    """Return after how many layers to cut, so that the slowest part is as fast as can be."""

    def cuts_for(most: float) -> list[int]:
        cuts: list[int] = []
        held = 0.0
        for at, time in enumerate(times):
            is_last_chance = len(times) - at <= parts - 1 - len(cuts)
            if at and len(cuts) < parts - 1 and (held + time > most or is_last_chance):
                cuts.append(at)
                held = 0.0
            held += time
        return cuts

    def is_enough(most: float) -> bool:
        cuts = cuts_for(most)
        return bool(np.add.reduceat(np.array(times), [0, *cuts]).max() <= most)

    ends = np.concatenate(([0.0], np.cumsum(times)))
    sums = np.unique(ends[None, :] - ends[:, None]) * _ROUNDING
    return cuts_for(float(sums[bisect_left(sums, True, key=is_enough)]))
