# SPDX-License-Identifier: Apache-2.0
"""The mean times of ops without their waits: the input of a replay and of another compilation.

```
driver  |write|  user's code  |read: waits . . |move|
a0      |read: waits . . .|wakes|move|dec|       waking: from the end of the peer's op to the end
peer      |write          |                              of the wait
```

Where tensors are exchanged over a communicator, waking lasts from when the last process arrived to
the end of the wait (``rendezvous.py``).

The time of an op in an execution is the sum over its events: an op of a driver may have several.
All figures are means, because the throughput follows from means. Values above the 99th percentile
count as the 99th percentile, so that one slow first call or one pause does not dominate.

Another compilation has other nodes and channels, so ``call_costs_of`` finds costs by what stays:
the actor, by its id in Ray, and the method; of a transfer the actor and the method that made the
value, and the actor that got it.

This room must know neither simulations nor factors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from rcg.ir.channels import TENSOR
from rcg.ir.costs import CallCosts, Transfer
from rcg.ir.ids import DRIVER
from rcg.ir.ops import Call, Collective, Copy, Op, Read
from rcg.ir.plan import Plan
from rcg.trace.analysis.dependencies import Dependencies
from rcg.trace.analysis.executions import UNSEEN, Executions, by_execution, executions_of
from rcg.trace.analysis.intervals import Ints, Times
from rcg.trace.analysis.parts import KINDS, WRITE, TimeKind, shapes_of
from rcg.trace.analysis.rendezvous import NONE
from rcg.trace.analysis.spread import BATCHES, LEAST, batch_edges
from rcg.trace.analysis.transfers import is_coding
from rcg.trace.model import SPAN_BASE, Events, GraphTrace, kept


@dataclass(frozen=True, slots=True)
class Cost:
    """The mean time of an op per execution, in ns.

    Attributes:
        compute_ns: Time of the method, or of another op that neither reads nor writes.
        moving_ns: Time of moving bytes.
        coding_ns: Time of encoding or decoding.
        waiting_ns: Time of waiting.
        waking_ns: Time from the end of the peer's op, or the arrival of the last process of a
            rendezvous, to the end of the wait, if the op waited.
    """

    compute_ns: float = 0.0
    moving_ns: float = 0.0
    coding_ns: float = 0.0
    waiting_ns: float = 0.0
    waking_ns: float = 0.0

    @property
    def own_ns(self) -> float:
        """The time without waiting."""
        return self.compute_ns + self.moving_ns + self.coding_ns


@dataclass(frozen=True)
class MeasuredCosts:
    """The measured costs of a graph.

    Attributes:
        costs: The cost of each recorded op, by process and index in its program.
        user_ns: Time of the user's code between the driver's ops, per execution.
        is_driver_parallel: Whether ops of the driver overlap because several threads use the graph.
        window: The largest number of executions in flight at a submission, with the new one.
        batches: ``costs`` of the executions of each batch (``spread.py``); none of too few.
    """

    costs: Mapping[tuple[str, int], Cost]
    user_ns: float
    is_driver_parallel: bool
    window: int
    batches: tuple[Mapping[tuple[str, int], Cost], ...] = ()


@kept
def costs_of(graph: GraphTrace, known: Dependencies | None = None) -> MeasuredCosts:
    """Return the measured costs of a graph's ops.

    Args:
        graph: The graph.
        known: The dependencies between its events; None to compute them.
    """
    executions = executions_of(graph)
    dependencies = Dependencies(graph) if known is None else known
    found: dict[tuple[str, int], Cost] = {}
    batches: tuple[dict[tuple[str, int], Cost], ...] = ()
    edges = executions.index[:0]
    if len(executions) >= LEAST:
        batches = tuple({} for _ in range(BATCHES))
        edges = executions.index[batch_edges(len(executions))[1:-1]]
    batch_of = np.searchsorted(edges, dependencies.execution, side="right")
    length = np.diff(dependencies.bounds, axis=1)
    woke = np.maximum(dependencies.entered - dependencies.ready, 0)  # clocks may disagree
    woke = np.where(dependencies.follows, woke, UNSEEN)
    for number, lane in enumerate(graph.lanes):
        rows = np.flatnonzero(dependencies.lane == number)
        rows = rows[np.argsort(dependencies.op[rows], kind="stable")]
        ops = len(graph.program(lane).ops)
        bounds = np.searchsorted(dependencies.op[rows], np.arange(ops + 1))
        for op in np.flatnonzero(np.diff(bounds)).tolist():
            of = rows[bounds[op] : bounds[op + 1]]
            shape = int(dependencies.shape[of[0]])
            woken = of[woke[of] != UNSEEN]
            batch, parts = by_execution(
                batch_of[of], dependencies.execution[of], list(length[of].T)
            )
            found[lane.process, op] = _cost(shape, parts, woke[woken])
            for number in np.unique(batch).tolist() if batches else ():
                inside = [part[batch == number] for part in parts]
                woke_then = woke[woken[batch_of[woken] == number]]
                batches[number][lane.process, op] = _cost(shape, inside, woke_then)
    user_ns, is_parallel = _driver(graph, dependencies)
    window = _window(graph, executions)
    return MeasuredCosts(found, user_ns, is_parallel, window, batches)


def _cost(shape: int, parts: list[Times], woke: Times) -> Cost:
    means = dict.fromkeys(TimeKind, 0.0)
    for kind, part in zip(KINDS[shape].tolist(), parts, strict=True):
        means[TimeKind(kind)] += _mean(part)
    return Cost(
        compute_ns=means[TimeKind.COMPUTE],
        moving_ns=means[TimeKind.COMMUNICATION],
        coding_ns=means[TimeKind.SERIALIZATION],
        waiting_ns=means[TimeKind.WAITING],
        waking_ns=_mean(woke),
    )


def _mean(values: Ints) -> float:
    if not len(values):
        return 0.0
    if len(values) >= 20:  # of a few, the 99th percentile is nearly the largest
        values = np.minimum(values, np.percentile(values, 99, method="lower"))
    return float(values.mean())


def _driver(graph: GraphTrace, dependencies: Dependencies) -> tuple[float, bool]:
    """Return the user's time per execution between the driver's ops, and whether these overlap.

    Before a Read, only the time since its frame arrived counts: until then the user's code may have
    waited for it without an event, such as in an ``await``. The first op in the trace is left out,
    because the time before it is not known.
    """
    program = graph.plan.program(DRIVER)
    events = graph.driver.events
    events = events[events["op"] < SPAN_BASE]
    if len(events) < 2:
        return 0.0, False
    events = events[np.argsort(events["start_ns"], kind="stable")]
    busy_until = np.maximum.accumulate(events["end_ns"])[:-1]
    start, op, execution = (events[name][1:] for name in ("start_ns", "op", "execution"))
    is_parallel = _overlap(events, shapes_of(program))
    user_ns = 0.0
    for at, each in enumerate(program.ops):
        of = np.flatnonzero(op == at)
        since = busy_until[of]
        for channel in each.values_in if len(of) else ():
            write = dependencies.writes_of(channel, execution[of])
            since = np.maximum(
                since, np.where(write == NONE, UNSEEN, dependencies.bounds[write, 3])
            )
        gaps = np.maximum(start[of] - since, 0)
        known = (op[of] != events["op"][0]) | (execution[of] != events["execution"][0])
        user_ns += _mean(by_execution(op[of[known]], execution[of[known]], (gaps[known],))[1][0])
    return user_ns, is_parallel


def _overlap(events: Events, shapes: Ints) -> bool:
    """Return whether any of a driver's events, by start, overlap.

    What was encoded before there was room is left out: another clock says when.
    """
    is_write = shapes[np.minimum(events["op"], len(shapes) - 1)] == WRITE
    events = events[~(is_write & is_coding(events))]
    return bool((events["start_ns"][1:] < np.maximum.accumulate(events["end_ns"])[:-1]).any())


def _window(graph: GraphTrace, executions: Executions) -> int:
    """Return the largest number of executions in flight at a submission, with the new one."""
    fetched = executions.fetched_ns != UNSEEN
    submitted = executions.submitted_ns != UNSEEN
    when = np.maximum.accumulate(executions.fetched_ns[fetched])
    index, at = executions.index[submitted], executions.submitted_ns[submitted]
    most = max(1, min(graph.limit, len(executions)))
    if not len(index) or not len(when):
        return most
    number = np.searchsorted(when, at, side="right")
    last = executions.index[fetched][np.maximum(number - 1, 0)]
    # Executions before the first one in the trace are assumed to be over.
    in_flight = np.where(number > 0, index - last, index - executions.index[0] + 1)
    return int(np.clip(in_flight.max(), 1, most))


def call_costs_of(graphs: Iterable[GraphTrace]) -> CallCosts:
    """Return the measured costs of all graphs together, by actor."""
    calls: dict[tuple[str, str], list[float]] = {}
    transfers: dict[Transfer, list[float]] = {}
    for graph in graphs:
        measured = costs_of(graph).costs
        plan = graph.plan
        actor_of = _Actors(plan)
        for program in plan.programs:
            actor = actor_of.key(program.process)
            for at, op in enumerate(program.ops):
                cost = measured.get((program.process, at))
                if cost is None:
                    continue
                if isinstance(op, Call | Collective):
                    name = op.method if isinstance(op, Call) else op.word
                    calls.setdefault((actor, name), []).append(cost.own_ns)
                elif isinstance(op, Read) and op.channel in actor_of.tensors:
                    key = Transfer(*actor_of.maker(op.channel), actor)
                    transfers.setdefault(key, []).append(cost.own_ns)
    return CallCosts(
        {key: fmean(each) for key, each in calls.items()},
        {key: fmean(each) for key, each in transfers.items()},
    )


class _Actors:
    """The actors of a plan by their ids in Ray, and what makes the value of each tensor channel."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._keys = {actor.id: actor.key or actor.id for actor in plan.actors}
        self.tensors = {each.id for each in plan.channels if each.kind == TENSOR}
        self._sent: dict[str, tuple[str, int]] = {}
        self._maker: dict[tuple[str, int], Op] = {}
        for program in plan.programs:
            for op in program.ops:
                self._maker.update({(program.process, slot): op for slot in op.made()})
                for channel in op.values_out:
                    self._sent[channel] = program.process, op.used()[0]

    def key(self, process: str) -> str:
        """Return the id in Ray of the actor of a program; of the driver, its own name."""
        host = self._plan.host_of(process)
        return self._keys.get(host, host)

    def maker(self, channel: str) -> tuple[str, str]:
        """Return the actor and the method that made a channel's value."""
        process, slot = self._sent[channel]
        op = self._maker[process, slot]
        while isinstance(op, Read | Copy):
            process, slot = self._sent[op.channel] if isinstance(op, Read) else (process, op.slot)
            op = self._maker[process, slot]
        return self.key(process), op.method if isinstance(op, Call) else op.word
