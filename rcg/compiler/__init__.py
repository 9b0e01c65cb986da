# SPDX-License-Identifier: Apache-2.0
"""The compiler: pure passes from a checked graph to a plan that is known to run.

::

    Graph ──transports──> Graph ──place──> Plan ──lanes──> Plan ──schedule──> Plan
                                                 (overlap)                     │
                      the plan and a timeline: Simulation <──simulate──────────┘

``transports`` decides what ``auto`` is, ``place`` how every value travels (``routes``); it rejects
plans with too many processes on a node. ``lanes`` gives transfers programs of their own where they
overlap with calls, ``schedule`` sets the order of every program (``order``), ``simulate`` rejects
plans that could deadlock and predicts a timeline.
Each pass checks its input. The same graph always gives the same plan: no order comes from a hash.
This package must know neither Ray, nor torch, nor how a plan is run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from rcg.compiler import lanes as _lanes
from rcg.compiler import place as _place
from rcg.compiler import schedule as _schedule
from rcg.compiler import simulate as _simulate
from rcg.compiler import transports as _transports
from rcg.compiler.order import has_rendezvous
from rcg.compiler.place import check_room, has_room
from rcg.ir.costs import Cost, Predicted
from rcg.ir.graph import Graph
from rcg.ir.plan import Plan
from rcg.options import Overlap

LEAST_GAIN: Final = 0.05
"""``overlap="auto"`` overlaps for no less: predictions are not better than that."""

_PREDICTED_ROUNDS: Final = 3  # so often the window is filled: the pipeline fills only in the first
_MOST_IN_FLIGHT: Final = 16  # in a prediction: the period does not change with more


def compile_graph(
    graph: Graph,
    locations: Mapping[str, str],
    driver_location: str,
    channel_slots: int,
    *,
    overlap: Overlap = False,
    costs: Iterable[Cost] = (),
    gpus: _transports.Gpus | None = None,
    cores: Mapping[str, int] | None = None,
) -> _simulate.Simulation:
    """Run all passes.

    Args:
        graph: The checked graph.
        locations: The node of the cluster that each actor lives on, by actor id.
        driver_location: The node that the compiling process lives on.
        channel_slots: How many frames each channel between processes holds.
        overlap: Whether transfers of tensors overlap with calls; "auto": if the costs predict that
            executions follow each other sooner by ``LEAST_GAIN``.
        costs: What calls and transfers cost, as far as that is known.
        gpus: The GPUs of the actors, which decide what the transport ``auto`` is.
        cores: How many processors each node of the cluster has, as far as that is known.

    Returns:
        The plan and its predicted timeline.

    Raises:
        PlacementError: It is not known where an actor is, or a node has too many processes.
        DeadlockError: The programs would wait for each other.
        InternalError: A pass broke the rules of ``Plan.check``.
    """
    gpus = gpus or {}
    graph = _transports.with_transports(graph, gpus)
    placed = _place.place(graph, locations, driver_location, channel_slots, gpus)
    check_room(placed)
    if overlap and overlap != "auto":
        placed = _lanes.with_lanes(placed)
        check_room(placed)
    known = tuple(costs)
    scheduled = _put_in_order(placed, known)
    if overlap == "auto" and known:
        laned = _lanes.with_lanes(placed)
        if laned.lanes and has_room(laned):
            laned = _put_in_order(laned, known)
            on_cpus = {actor: each for actor, each in locations.items() if not gpus.get(actor)}
            period_ns = _period_ns(scheduled, on_cpus, cores or {})
            if _period_ns(laned, on_cpus, cores or {}) <= (1 - LEAST_GAIN) * period_ns:
                scheduled = laned
    return _simulate.simulate(scheduled, describe=graph.describe)


def overlap_gain(
    plan: Plan, costs: Iterable[Cost], in_flight: int, cores: Mapping[str, int] | None = None
) -> float | None:
    """Return how much sooner executions would follow each other if transfers overlapped with calls.

    Args:
        plan: A plan without lanes.
        costs: What its calls and transfers cost, at least one.
        in_flight: How many executions are in flight.
        cores: As in ``compile_graph``; of nodes of the plan, if processors move the tensors.

    Returns:
        The predicted period without lanes, divided by that with them; None if lanes make no
        difference, or there is no room for them.
    """
    plan = _schedule.unordered(plan)
    laned = _lanes.with_lanes(plan)
    if not laned.lanes or not has_room(laned):
        return None
    known = tuple(costs)
    nodes = {actor.id: plan.node_of(actor.id) for actor in plan.actors}
    off, on = (
        _period_ns(_put_in_order(each, known, in_flight), nodes, cores or {})
        for each in (plan, laned)
    )
    return off / on if on else None


def without_overlap(plan: Plan, costs: Iterable[Cost]) -> Plan:
    """Return a plan with lanes as it would be without them, in the order for these costs."""
    plan = replace(_schedule.unordered(plan), costs=(), predicted=())  # which name lanes
    return _put_in_order(_lanes.without_lanes(plan), tuple(costs))


def _put_in_order(placed: Plan, costs: tuple[Cost, ...], in_flight: int = _MOST_IN_FLIGHT) -> Plan:
    """Return a plan in order; with costs, in the faster of two orders."""
    scheduled = _schedule.schedule(placed)
    if not costs:
        return scheduled
    return _faster(replace(scheduled, costs=costs), replace(placed, costs=costs), in_flight)


def _period_ns(plan: Plan, locations: Mapping[str, str], cores: Mapping[str, int]) -> float:
    """Return the predicted time between two completions, in which no node does more than it can.

    Lanes take turns with the calls on the processors of their node: what they do at once takes
    longer. ``locations`` has the node of each actor whose calls and transfers use processors.
    """
    actors = {lane.id: lane.actor for lane in plan.lanes}
    work_ns: Counter[str] = Counter()
    for each in plan.predicted:
        where = locations.get(actors.get(each.process, each.process))
        if where is not None and where in cores:
            work_ns[where] += each.busy_ns
    least_ns = max((work / cores[where] for where, work in work_ns.items()), default=0.0)
    return max(least_ns, *(each.period_ns for each in plan.predicted))


def _faster(scheduled: Plan, placed: Plan, in_flight: int) -> Plan:
    """Return a plan in the order that its costs suggest, unless ``scheduled`` is faster.

    Both orders are greedy, so either may be faster. The prediction is put into the plan.
    """
    best = _full(scheduled, in_flight)
    if has_rendezvous(placed):  # otherwise there is one order only
        by_costs = _full(_schedule.schedule(placed), in_flight)
        best = best if best.period < by_costs.period else by_costs
    period_ns = round(best.period)
    predicted = [
        Predicted(process, round(busy), period_ns) for process, busy in best.busy().items()
    ]
    return replace(best.plan, predicted=tuple(predicted))


def _full(plan: Plan, in_flight: int) -> _simulate.Simulation:
    """Simulate a plan while as many executions are in flight, or as it allows."""
    window = min(plan.window, in_flight)
    return _simulate.simulate(plan, executions=_PREDICTED_ROUNDS * window, window=window)
