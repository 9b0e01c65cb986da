# SPDX-License-Identifier: Apache-2.0
"""What-if: predicts figures if some ops were faster, by a replay of the measured ops with factors.

The replay uses the compiler's simulator (``rcg.compiler.simulate``). Each op takes its mean
measured time without waiting (``costs.py``), and the waits follow from the channels. A Read or
Write that waited continues as long after its peer's op as measured. The ends of a transfer over a
communicator, and the ranks of a collective, continue as long after the last of them arrived. The
time of the user's code before each submission is replayed as well. So the model includes the order
of the ops and their mean times. It does not include random delays, competition for cores, or
submissions in bursts. Every result states the error of the replay without factors against the
measurement.

This room must know neither Ray nor how results are shown, except as text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property, partial
from typing import Final

import numpy as np
import numpy.typing as npt

from rcg.compiler.simulate import Costs, Simulation, simulate, simulated_period
from rcg.display import Charted, Displayed
from rcg.errors import DeadlockError, TraceError
from rcg.ir.channels import LOCAL, slots_for
from rcg.ir.ids import DRIVER
from rcg.ir.index import Place, writes_of
from rcg.ir.ops import Call, Collective, Input, Op
from rcg.ir.plan import Plan
from rcg.table import Table
from rcg.text import (
    plural,
    rate_text,
    ratio_text,
    share_text,
    spread_text,
    time_text,
    visible,
)
from rcg.trace.analysis.costs import Cost, MeasuredCosts
from rcg.trace.analysis.critical import text_of
from rcg.trace.analysis.events import EventTable
from rcg.trace.analysis.executions import Executions, executions_of
from rcg.trace.analysis.shares import Shares
from rcg.trace.analysis.spread import half_width, is_noise
from rcg.trace.model import EVENT, NO_PEER, Events, GraphTrace, LaneTrace

_MAX_CHANGES_CHARS: Final = 100
_REPLAYED_OPS: Final = 25_000  # in one replay, about
_WINDOWED_OPS: Final = 100_000  # in one with many in flight
_LEAST_WINDOWS: Final = 3  # how many windows a replay has, but of a large plan
_BATCH: Final = 8  # executions in the replay of a batch, besides those that fill the pipeline

_MOST_NEAR: Final = 3  # names that one may have meant
_MOST_NAMES: Final = 8  # names that are listed
_NOTABLE: Final = 0.1  # of the latency, by which it changes
MAX_ERROR_PERCENT: Final = 25.0
"""An unchanged replay that is farther from the trace predicts nothing."""


@dataclass(frozen=True, repr=False)
class WhatIf(Charted, Displayed):
    """The predicted and the measured figures of a graph.

    Throughputs are executions per second from completion to completion. Latencies are medians in ns
    from submission to completion. A figure that is not known is None.

    Attributes:
        changes: The changes, as text.
        window: Number of executions in flight.
        throughput: Predicted throughput: the measured one, times what the replay gains.
        latency_ns: Predicted latency, the same way.
        baseline_throughput: Throughput of the replay without changes.
        baseline_latency_ns: Latency of the replay without changes.
        measured_throughput: Throughput in the trace.
        measured_latency_ns: Latency in the trace.
        simulation: The predicted timeline, in ns.
        graph_id: Hex id of the graph.
        notes: Assumptions of the replay that may not hold.
        busy: The share of the time, from 0 to 1, that each process is busy, by its label: at the
            measured throughput, and at the predicted one.
        batch_speedups: ``speedup`` in each of some parts of the trace; empty if it is too short.
    """

    changes: tuple[str, ...]
    window: int
    throughput: float | None
    latency_ns: float | None
    baseline_throughput: float | None
    baseline_latency_ns: float | None
    measured_throughput: float | None
    measured_latency_ns: float | None
    simulation: Simulation
    graph_id: str
    notes: tuple[str, ...] = ()
    busy: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    batch_speedups: tuple[float, ...] = ()

    @cached_property
    def graph(self) -> GraphTrace:
        """The prediction as a record, for the views and analyses of traces."""
        return from_simulation(self.simulation, graph_id=self.graph_id, limit=self.window)

    @property
    def error_percent(self) -> float | None:
        """The error of the unchanged replay's throughput; positive if above the measured one."""
        ratio = _ratio(self.baseline_throughput, self.measured_throughput)
        return None if ratio is None else (ratio - 1) * 100

    @property
    def speedup(self) -> float | None:
        """Predicted throughput divided by the measured one."""
        return _ratio(self.throughput, self.measured_throughput)

    @property
    def spread(self) -> float | None:
        """How far ``speedup`` may be off; None if there are too few executions to tell.

        It holds how much parts of the trace disagree (``spread.py``), and the error of the
        unchanged replay.
        """
        if not self.batch_speedups or self.speedup is None or self.error_percent is None:
            return None
        off = self.speedup * abs(self.error_percent) / 100
        return math.hypot(half_width(self.batch_speedups), off)

    @property
    def is_noise(self) -> bool | None:
        """Whether the speedup differs from 1 by no more than its spread; None if unknown."""
        return is_noise(self.speedup, self.spread)

    @property
    def is_far_off(self) -> bool:
        """Whether the unchanged replay is too far from the measurement for a prediction."""
        return abs(self.error_percent or 0.0) > MAX_ERROR_PERCENT

    @property
    def answer(self) -> str:
        """The answer in one line: ``1.90x ±0.05: 118 /s to 224 /s``."""
        if self.is_far_off:
            off = share_text(abs(self.error_percent or 0.0) / 100, 0)
            return f"no prediction, a replay of this trace is {off} off"
        rates = f"{rate_text(self.measured_throughput)} to {rate_text(self.throughput)}"
        ratio = f"{spread_text(self.speedup, self.spread)}: {rates}"
        if self.spread is None:
            return f"{ratio}, from too few executions to tell it from noise"
        if not self.is_noise:
            return ratio
        late = _ratio(self.latency_ns, self.measured_latency_ns)
        if late is not None and abs(late - 1) > _NOTABLE:
            times = f"{time_text(self.measured_latency_ns)} to {time_text(self.latency_ns)}"
            alike = f"throughput alike, {spread_text(self.speedup, self.spread)}"
            return f"latency {ratio_text(late)}: {times}; {alike}"
        return f"no change beyond the noise, {ratio}"

    def __repr__(self) -> str:
        rates = f"{rate_text(self.throughput)} instead of {rate_text(self.measured_throughput)}"
        changes = visible(", ".join(self.changes))[:_MAX_CHANGES_CHARS] or "unchanged"
        return f"<WhatIf {changes}: {rates}>"

    def __str__(self) -> str:
        lines = [self.answer, f"if {visible(', '.join(self.changes)) or 'nothing changed'}"]
        head = ("", "executions", "latency (median)")
        sides = [("measured", self.measured_throughput, self.measured_latency_ns)]
        if self.is_far_off:
            sides += [("replayed, unchanged", self.baseline_throughput, self.baseline_latency_ns)]
        else:
            sides += [("predicted", self.throughput, self.latency_ns)]
        rows = [(who, rate_text(rate), time_text(ns)) for who, rate, ns in sides]
        lines.append(Table(head, rows, "nff").text("  "))
        off = ""
        if self.error_percent is not None:
            where = "above" if self.error_percent >= 0 else "below"
            error = share_text(abs(self.error_percent) / 100)
            far = "as" if error == share_text(0.0) else f"{error} {where} the"
            off = f"; the unchanged replay is {far} measured"
        lines.append(f"  {self.window} in flight{off}")
        if self.busy and not self.is_far_off:
            label, (before, after) = max(self.busy.items(), key=lambda each: each[1][1])
            busy = f"{share_text(after, 0)}, {share_text(before, 0)} before"
            lines.append(f"  the busiest is then {visible(label)}: {busy}")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


@dataclass(frozen=True, slots=True)
class Factors:
    """Factors on the parts of an op's time."""

    compute: float = 1.0
    moving: float = 1.0
    coding: float = 1.0
    waking: float = 1.0

    def of(self, cost: Cost) -> Cost:
        """Return the scaled cost."""
        return replace(
            cost,
            compute_ns=cost.compute_ns * self.compute,
            moving_ns=cost.moving_ns * self.moving,
            coding_ns=cost.coding_ns * self.coding,
            waking_ns=cost.waking_ns * self.waking,
        )


_Unchanged = tuple[tuple[float | None, float | None], list[str], dict[str, float]]
"""The figures of a replay without changes, its notes, and the share that each process is busy."""


class Replays:
    """Replays of one graph; what was measured, and the unchanged replay, are computed once.

    Args:
        table: The events of the graph.
        measured: The measured costs of its ops.
        executions: Its executions.
        shares: Returns where the time of its processes went.
        count: Number of executions to simulate; None for about 64, or fewer of a large plan.

    Raises:
        TraceError: The trace holds no events of the graph.
    """

    def __init__(
        self,
        table: EventTable,
        measured: MeasuredCosts,
        executions: Executions,
        shares: Callable[[], Shares],
        count: int | None = None,
    ) -> None:
        if not measured.costs:
            raise TraceError(
                "the trace holds no events of this graph: run it while it is recorded, then replay "
                "it"
            )
        self.table = table
        self.graph = table.graph
        self.executions = executions
        self._shares = shares
        self.measured = measured
        self._ops = sum(len(program.ops) for program in self.graph.plan.programs)
        self._count = count

    def what_if(
        self,
        scale: Mapping[str, float] | None = None,
        *,
        communication: float = 1.0,
        serialization: float = 1.0,
        in_flight: int | None = None,
    ) -> WhatIf:
        """Predict the figures of the graph if some of its ops took longer or shorter.

        Args:
            scale: Factors on the time of calls, by ``Stage.fwd`` (the method on all actors of the
                class), ``a0.fwd``, ``a0 (Stage).fwd`` or the label of a lane and the method. 0.5 is
                twice as fast. If several names match an op, their factors are multiplied.
            communication: Factor on the time of moving bytes. Waking up is not scaled.
            serialization: Factor on the time of encoding and decoding.
            in_flight: Number of executions to keep in flight. Channels with fewer slots get
                more. None: the largest number in the trace.

        Raises:
            TraceError: A name is not known, a factor is not finite and above 0, or a number is
                below 1.
        """
        for name, factor in (("communication", communication), ("serialization", serialization)):
            _check_factor(name, factor)
        if in_flight is not None and (not isinstance(in_flight, int) or in_flight < 1):
            raise TraceError(f"`in_flight` must be a positive integer, found {in_flight!r}")
        factors = _factors(self.graph, scale or {})
        changes = [f"{name} took {factor:g}x" for name, factor in (scale or {}).items()]
        changes += [f"communication took {communication:g}x"] if communication != 1 else []
        changes += [f"serialization took {serialization:g}x"] if serialization != 1 else []
        if in_flight:
            were = "was" if in_flight == 1 else "were"
            changes.append(f"{plural(in_flight, 'execution')} {were} in flight")
        changed = {
            place: Factors(factors.get(place, 1.0), communication, serialization)
            for place in self.measured.costs
        }
        return self.with_changes(tuple(changes), changed, in_flight)

    @cached_property
    def _unchanged(self) -> _Unchanged:
        """The replay without changes."""
        window = self.measured.window
        simulation, notes = _replay(
            self.graph.plan, self.measured, window, self.executions_with(window)
        )
        return _figures(simulation, window), notes, _busy(simulation)

    def with_changes(
        self,
        changes: tuple[str, ...],
        factors: Mapping[Place, Factors],
        in_flight: int | None = None,
        *,
        user: float = 1.0,
        has_spread: bool = True,
        instead: Mapping[Place, Cost] | None = None,
    ) -> WhatIf:
        """Return the figures if some ops took longer or shorter.

        Args:
            changes: The changes, as text.
            factors: The factors of the ops that change.
            in_flight: As in ``what_if``.
            user: Factor on the time of the user's code before each submission.
            has_spread: Whether the spread of the speedup is computed as well.
            instead: What ops cost instead of what was measured, before the factors.
        """
        graph, measured = self.graph, self.measured
        window = in_flight or measured.window
        plan = graph.plan if in_flight is None else _with_slots(graph.plan, in_flight)
        user_ns = measured.user_ns * user

        def changed(costs: Mapping[Place, Cost]) -> MeasuredCosts:
            scaled = {
                place: factors[place].of(cost) if place in factors else cost
                for place, cost in costs.items()
            }
            return replace(measured, costs=scaled, user_ns=user_ns)

        costs, executions = changed(instead or measured.costs), self.executions_with(window)
        simulation, more = _replay(plan, costs, window, executions)
        busy = _busy(simulation)
        base, notes, was = self._unchanged
        real = self.executions.throughput, self.executions.latency_at(50)
        figures = zip(_figures(simulation, window), base, real, strict=True)
        throughput, latency_ns = (
            None if now is None or not before or known is None else known * (now / before)
            for now, before, known in figures
        )
        return WhatIf(
            changes,
            window,
            throughput,
            latency_ns,
            *base,
            *real,
            simulation=simulation,
            graph_id=graph.graph_id,
            notes=tuple(dict.fromkeys((*_missing(graph, measured), *notes, *more))),
            # As for the other figures: what was measured, and that times the ratio of the replays.
            busy={
                lane.label: (lane.busy, min(lane.busy * (now / (was[lane.process] or 1.0)), 1.0))
                for lane in self._shares().lanes
                if (now := busy.get(lane.process)) is not None
            },
            batch_speedups=tuple(
                before
                / max(_period_of_batch(plan, changed({**measured.costs, **costs}), window), 1.0)
                for costs, before in zip(measured.batches, self._periods, strict=True)
                if has_spread
            ),
        )

    def executions_with(self, window: int) -> int:
        """Return how many executions are replayed with so many in flight.

        Those that are in flight together may complete in bursts, so there are whole windows of them
        after the first one: then the rate does not depend on how many.
        """
        if self._count is not None:
            return max(self._count, window)
        about = max(16, min(64, _REPLAYED_OPS // self._ops))
        least = 1 if self.is_too_long_with(window) else _LEAST_WINDOWS
        return window * max(about // window, least) + 1

    def is_too_long_with(self, window: int) -> bool:
        """Return whether the replay with so many in flight would be too long to be exact."""
        return _LEAST_WINDOWS * window * self._ops > _WINDOWED_OPS

    def rate_at(self, window: int) -> float:
        """Return the throughput with so many executions in flight."""
        plan, count = _with_slots(self.graph.plan, window), self.executions_with(window)
        # The first window fills the graph, and in the last one the driver submits nothing.
        without = window if count > 3 * window else 0
        return 1e9 / max(_period(plan, self.measured, window, count, without), 1.0)

    def gain_of(self, plan: Plan) -> float | None:
        """Return the throughput of another plan with the same ops, divided by that of this one.

        An op costs there what it costs here. Ops that are new cost nothing.
        """
        graph, measured = self.graph, self.measured
        actor_of = {lane.id: lane.actor for lane in graph.plan.lanes}
        known = {
            (actor_of.get(process, process), *_work_of(graph.plan.program(process).ops[at])): cost
            for (process, at), cost in measured.costs.items()
        }
        costs = {
            (program.process, at): known[place]
            for program in plan.programs
            for at, op in enumerate(program.ops)
            if (place := (program.process, *_work_of(op))) in known
        }
        window = measured.window
        executions = self.executions_with(window)
        simulation, _ = _replay(plan, replace(measured, costs=costs), window, executions)
        (was, _), *_ = self._unchanged
        return _ratio(_figures(simulation, window)[0], was)

    @cached_property
    def _periods(self) -> list[float]:
        """The period of the unchanged replay of each batch."""
        measured = self.measured
        return [
            _period_of_batch(
                self.graph.plan,
                replace(measured, costs={**measured.costs, **costs}),
                measured.window,
            )
            for costs in measured.batches
        ]


def _work_of(op: Op) -> tuple[object, ...]:
    """Return what tells an op from others of its actor, in whatever slots its values are."""
    node = op.node if isinstance(op, Call | Collective) else None
    return type(op), op.channels_in, op.channels_out, node, getattr(op, "key", None)


def _busy(simulation: Simulation) -> dict[str, float]:
    """Return the share of the time between two completions that each process is busy."""
    period = max(simulation.period, 1.0)
    return {process: min(each / period, 1.0) for process, each in simulation.busy().items()}


def predict(plan: Plan, measured: MeasuredCosts, executions: int = 64) -> Simulation:
    """Replay a graph unchanged."""
    simulation, _ = _replay(plan, measured, measured.window, executions)
    return simulation


def _ratio(value: float | None, by: float | None) -> float | None:
    return None if value is None or not by else value / by


def _check_factor(name: str, factor: float) -> None:
    is_number = isinstance(factor, int | float) and not isinstance(factor, bool)
    if not is_number or not math.isfinite(factor) or factor <= 0:
        raise TraceError(f"the factor of `{name}` must be a number above 0, found {factor!r}")


def places_of(graph: GraphTrace) -> dict[str, list[Place]]:
    """Return the calls of each method, by all names that ``scale`` of ``what_if`` may have."""
    names: dict[str, list[Place]] = {}
    labels = {actor.id: actor.label for actor in graph.plan.actors}
    for lane in graph.lanes:
        for at, op in enumerate(graph.program(lane).ops):
            if isinstance(op, Call):
                owners = (labels.get(op.actor, op.actor), op.actor, graph.plan.label(op.actor))
                for owner in dict.fromkeys((*owners, lane.label)):
                    names.setdefault(f"{owner}.{op.method}", []).append((lane.process, at))
    return names


def _factors(graph: GraphTrace, scale: Mapping[str, float]) -> dict[Place, float]:
    """Return the factor of each call."""
    if not isinstance(scale, Mapping):
        raise TraceError(
            "`scale` must be a dict of factors by name, as in {'Stage.fwd': 0.5}, "
            f"found a {type(scale).__name__}"
        )
    names = places_of(graph)
    factors: dict[Place, float] = {}
    for name, factor in scale.items():
        _check_factor(name, factor)
        if name not in names:
            raise TraceError(f"the graph has no call `{name}`; {_known(name, names)}", name=name)
        for place in names[name]:
            factors[place] = factors.get(place, 1.0) * factor
    return factors


def _known(name: str, names: Iterable[str]) -> str:
    """Return which names there are, of many those that are like one that there is not."""
    known = sorted(names)
    near = get_close_matches(name, known, n=_MOST_NEAR)
    if near and len(known) > _MOST_NAMES:
        return f"did you mean {' or '.join(f'`{each}`' for each in near)}?"
    more = f", and {len(known) - _MOST_NAMES} more" if len(known) > _MOST_NAMES else ""
    return f"it has {', '.join(known[:_MOST_NAMES]) or 'none: it calls nothing'}{more}"


def _missing(graph: GraphTrace, measured: MeasuredCosts) -> list[str]:
    """Return a note on the calls without events, which cost nothing in the replay."""
    texts = [
        text_of(graph, lane, at)
        for lane in graph.lanes
        for at, op in enumerate(graph.program(lane).ops)
        if op.is_call and (lane.process, at) not in measured.costs
    ]
    return [f"not in the trace, so assumed to cost nothing: {', '.join(texts)}"] if texts else []


def _replay(
    plan: Plan, measured: MeasuredCosts, window: int, executions: int
) -> tuple[Simulation, list[str]]:
    """Simulate with measured costs. A driver with one thread executes one op at a time."""
    costs, count = _costs_of(plan, measured), max(executions, window)
    if not measured.is_driver_parallel:
        try:
            return simulate(plan, costs, count, window=window, is_driver_draining=False), []
        except DeadlockError:
            pass  # with short channels, only a driver that fetches while it submits can continue
    notes = []
    if not measured.is_driver_parallel:
        notes.append("the replay assumes that the driver fetches while it submits")
    return simulate(plan, costs, count, window=window), notes


def _period(
    plan: Plan, measured: MeasuredCosts, window: int, executions: int, without: int = 0
) -> float:
    """Return the period of what ``_replay`` simulates, without the first and the last ones."""
    costs = _costs_of(plan, measured)
    period = partial(simulated_period, plan, costs, executions, window=window, without=without)
    if not measured.is_driver_parallel:
        try:
            return period(is_driver_draining=False)
        except DeadlockError:
            pass
    return period()


def _period_of_batch(plan: Plan, measured: MeasuredCosts, window: int) -> float:
    """Return the period of a replay of few executions: one window fills the graph."""
    return _period(plan, measured, window, window * (1 + math.ceil(_BATCH / window)) + 1)


def _costs_of(plan: Plan, measured: MeasuredCosts) -> Costs:
    each = {place: cost.own_ns for place, cost in measured.costs.items()}
    first = _first_of_driver(plan)
    if first is not None:
        each[DRIVER, first] = each.get((DRIVER, first), 0.0) + measured.user_ns
    waking = {place: cost.waking_ns for place, cost in measured.costs.items()}
    return Costs(each, waking)


def _with_slots(plan: Plan, window: int) -> Plan:
    slots = slots_for(window)
    channels = tuple(
        channel
        if channel.kind == LOCAL or channel.slots >= slots
        else replace(channel, slots=slots)
        for channel in plan.channels
    )
    return replace(plan, channels=channels)


def _first_of_driver(plan: Plan) -> int | None:
    """Return the op of the driver before which the user's time is replayed: an Input or a Write."""
    ops = plan.program(DRIVER).ops
    return next((at for at, op in enumerate(ops) if op.values_out or isinstance(op, Input)), None)


def _figures(simulation: Simulation, window: int) -> tuple[float | None, float | None]:
    """Return throughput and median latency of a replay: the driver and who writes to it know."""
    writes, driver = writes_of(simulation.plan), simulation.plan.program(DRIVER)
    needed = {writes[each][0] for op in driver.ops for each in op.values_in if each in writes}
    graph = from_simulation(simulation, only={DRIVER, *needed}, limit=window)
    executions = executions_of(EventTable(graph))
    return executions.throughput, executions.latency_at(50)


# --- a simulation as a record -------------------------------------------------------------------

LATEST_NS: Final = 1 << 60
"""The latest simulated time. Later times, which follow from absurd costs, are set to it."""


def from_simulation(
    simulation: Simulation,
    *,
    graph_id: str = "",
    limit: int = 10,
    codes: bool = False,
    only: Collection[str] | None = None,
) -> GraphTrace:
    """Return a simulation as the record of a graph, so that the same analyses work on both.

    ```
    simulated   |op|      |op |op|      waiting is the gap between two ops
    recorded    |op| waits|op |op|      a Read, Write or collective begins when the op before ended
    ```

    As in a recording, ops without duration are left out, except Reads, Writes and collectives.

    Args:
        simulation: The simulation, with times in ns. They are rounded.
        graph_id: Hex id of the graph.
        limit: The limit of executions in flight.
        codes: Whether the time of Reads counts as decoding instead of moving bytes.
        only: The processes that have events; None for all.
    """
    plan = simulation.plan
    by_process: dict[str, list[tuple[float, float, int, int]]] = {
        program.process: [] for program in plan.programs
    }
    for span in simulation.timeline:
        if only is None or span.process in only:
            by_process[span.process].append((span.start, span.end, span.execution, span.op))
    lanes = tuple(
        LaneTrace(process, plan.label(process), _events(plan, process, rows, codes))
        for process, rows in by_process.items()
    )
    return GraphTrace(graph_id, plan, lanes, limit)


def _events(
    plan: Plan, process: str, rows: list[tuple[float, float, int, int]], codes: bool
) -> Events:
    ops = plan.program(process).ops
    events = np.zeros(len(rows), EVENT)
    if not rows:
        return events
    start, end = (_round([row[at] for row in rows]) for at in (0, 1))
    execution, op = (np.array([row[at] for row in rows], np.int64) for at in (2, 3))
    order = np.lexsort((op, execution, end, start))
    start, end, execution, op = start[order], end[order], execution[order], op[order]
    free_from = np.concatenate(([0], np.maximum.accumulate(end)[:-1]))
    moves = np.array([each.is_rendezvous for each in ops])[op]
    begun = np.where(moves, np.minimum(start, free_from), start)
    events["start_ns"], events["end_ns"] = begun, end
    events["waited_ns"] = start - begun
    reads = np.array([bool(each.values_in) for each in ops])[op]
    events["coded_ns"] = np.where(reads & codes, end - start, 0)
    events["execution"], events["op"] = execution, op
    events["peer"] = _peers(plan, process, ops)[op]
    return events[moves | (begun < end)]


def _round(times: list[float]) -> npt.NDArray[np.int64]:
    rounded: npt.NDArray[np.int64] = np.rint(np.clip(times, 0, LATEST_NS)).astype(np.int64)
    return rounded


def _peers(plan: Plan, process: str, ops: tuple[Op, ...]) -> npt.NDArray[np.int64]:
    """Return the lane that each op waits for; ``NO_PEER`` if there are several or none."""
    numbers = {program.process: number for number, program in enumerate(plan.programs)}
    channels = plan.channels_by_id()
    peers = np.full(len(ops), NO_PEER)
    for at, op in enumerate(ops):
        for channel in op.values_in:
            peers[at] = numbers[channels[channel].writer]
        for channel in op.values_out:
            if len(channels[channel].readers) == 1:
                peers[at] = numbers[channels[channel].readers[0]]
    return peers
