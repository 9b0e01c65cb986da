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
from rcg.ir.index import Place, writes_of
from rcg.ir.ops import Call, Collective, Copy, Op, Read
from rcg.ir.plan import Plan
from rcg.trace.analysis.dependencies import Dependencies
from rcg.trace.analysis.events import KINDS, NONE, WRITE, EventTable, TimeKind
from rcg.trace.analysis.executions import UNSEEN, Executions
from rcg.trace.analysis.intervals import MIN_INT64, Ints, Times
from rcg.trace.analysis.spread import BATCHES, LEAST, batch_edges


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

    costs: Mapping[Place, Cost]
    user_ns: float
    is_driver_parallel: bool
    window: int
    batches: tuple[Mapping[Place, Cost], ...] = ()


def costs_of(dependencies: Dependencies, executions: Executions) -> MeasuredCosts:
    """Return the measured costs of a graph's ops.

    Args:
        dependencies: What each event depends on; what comes from another node, on its Write.
        executions: The executions of the graph.
    """
    table = dependencies.table
    graph = table.graph
    found: dict[Place, Cost] = {}
    batches: tuple[dict[Place, Cost], ...] = ()
    edges = executions.index[:0]
    if len(executions) >= LEAST:
        batches = tuple({} for _ in range(BATCHES))
        edges = executions.index[batch_edges(len(executions))[1:-1]]
    length = np.diff(table.bounds, axis=1)
    woke = np.maximum(dependencies.entered - dependencies.ready, 0)  # clocks may disagree
    woke = np.where(dependencies.follows, woke, UNSEEN)
    for number, op, rows in table.ops():
        place = graph.lanes[number].process, op
        shape = int(table.shape[rows[0]])
        first, parts = table.sums(rows, list(length[rows].T))
        woken = rows[woke[rows] != UNSEEN]
        found[place] = _cost(shape, parts, woke[woken])
        if not batches:
            continue
        ends = np.searchsorted(table.execution[first], edges)
        woken_ends = np.searchsorted(table.execution[woken], edges)
        own = zip(*(np.split(part, ends) for part in parts), strict=True)
        for batch, inside, then in zip(
            batches, own, np.split(woke[woken], woken_ends), strict=True
        ):
            if len(inside[0]):
                batch[place] = _cost(shape, list(inside), then)
    user_ns, is_parallel = _driver(table)
    return MeasuredCosts(found, user_ns, is_parallel, executions.window, batches)


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
    if not values.any():
        return 0.0
    if len(values) >= 20:  # of a few, the 99th percentile is nearly the largest
        place = (len(values) - 1) * 99 // 100
        values = np.minimum(values, np.partition(values, place)[place])
    return float(values.mean())


def _driver(table: EventTable) -> tuple[float, bool]:
    """Return the user's time per execution between the driver's ops, and whether these overlap.

    Before a Read, only the time since its frame arrived counts: until then the user's code may have
    waited for it without an event, such as in an ``await``. The first op in the trace is left out,
    because the time before it is not known.
    """
    of = table.of_lane(table.number(DRIVER))
    rows = np.arange(of.start, of.stop)[~table.is_open[of]]
    if len(rows) < 2:
        return 0.0, False
    rows = rows[np.argsort(table.start_ns[rows], kind="stable")]
    since = np.full(len(table), MIN_INT64)
    since[rows[1:]] = np.maximum.accumulate(table.end_ns[rows])[:-1]
    first, writes = rows[0], writes_of(table.graph.plan)
    user_ns = 0.0
    for at, each in enumerate(table.graph.plan.program(DRIVER).ops):
        own = table.rows(DRIVER, at)
        if at == table.op[first]:
            own = own[table.execution[own] != table.execution[first]]
        begun = since[own]
        for channel in each.values_in if len(own) else ():
            if channel in writes:
                write = table.find(*writes[channel], table.execution[own])
                begun = np.maximum(begun, np.where(write == NONE, UNSEEN, table.end_ns[write]))
        _, (gaps,) = table.sums(own, [np.maximum(table.start_ns[own] - begun, 0)])
        user_ns += _mean(gaps)
    # What was encoded before there was room is left out: another clock says when.
    timed = rows[~(table.codes[rows] & (table.shape[rows] == WRITE))]
    start, end = table.start_ns[timed], np.maximum.accumulate(table.end_ns[timed])
    return user_ns, bool((start[1:] < end[:-1]).any())


def call_costs_of(costs: Iterable[tuple[Plan, Mapping[Place, Cost]]]) -> CallCosts:
    """Return the measured costs of the ops of some plans together, by actor."""
    calls: dict[tuple[str, str], list[float]] = {}
    transfers: dict[Transfer, list[float]] = {}
    for plan, measured in costs:
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
