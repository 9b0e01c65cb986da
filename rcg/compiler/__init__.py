# SPDX-License-Identifier: Apache-2.0
"""The compiler: pure passes from a checked graph to a plan that is known to run.

::

    Graph ──transports──> Graph ──place──> Plan ──lanes──> Plan ──schedule──> Plan
                                                 (overlap)                     │
                      the plan and a timeline: Simulation <──simulate──────────┘

``transports`` decides what ``auto`` is, ``place`` how every value travels (``routes``). ``lanes``
gives transfers programs of their own where they overlap with calls, ``schedule`` sets the order of
every program (``order``), ``simulate`` rejects plans that could deadlock and predicts a timeline.
``room`` rejects plans with too many processes on a node.
Each pass checks its input. The same graph always gives the same plan: no order comes from a hash.
This package must know neither Ray, nor torch, nor how a plan is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from rcg.compiler import lanes as _lanes
from rcg.compiler import place as _place
from rcg.compiler import schedule as _schedule
from rcg.compiler import simulate as _simulate
from rcg.compiler import transports as _transports
from rcg.compiler.order import has_rendezvous
from rcg.compiler.room import check_room
from rcg.ir.costs import Cost, Predicted
from rcg.ir.graph import Graph
from rcg.ir.plan import Plan

__all__ = ["compile_graph"]

_PREDICTED_ROUNDS: Final = 3  # so often the window is filled: the pipeline fills only in the first
_MOST_IN_FLIGHT: Final = 16  # in a prediction: the period does not change with more


def compile_graph(
    graph: Graph,
    locations: Mapping[str, str],
    driver_location: str,
    channel_slots: int,
    *,
    overlap: bool = False,
    costs: Iterable[Cost] = (),
    gpus: _transports.Gpus | None = None,
) -> _simulate.Simulation:
    """Run all passes.

    Args:
        graph: The checked graph.
        locations: The node of the cluster that each actor lives on, by actor id.
        driver_location: The node that the compiling process lives on.
        channel_slots: How many frames each channel between processes holds.
        overlap: Whether transfers of tensors overlap with calls.
        costs: What calls and transfers cost, as far as that is known.
        gpus: The GPUs of the actors, which decide what ``auto`` is.

    Returns:
        The plan and its predicted timeline.

    Raises:
        PlacementError: Nobody knows where an actor is, or a node has too many processes.
        DeadlockError: The programs would wait for each other.
        InternalError: A pass broke the rules of ``Plan.check``.
    """
    graph = _transports.with_transports(graph, gpus or {})
    placed = _place.place(graph, locations, driver_location, channel_slots, gpus or {})
    check_room(placed)
    if overlap:
        placed = _lanes.with_lanes(placed)
        check_room(placed)
    scheduled = _schedule.schedule(placed)
    known = tuple(costs)
    if known:
        scheduled = _faster(replace(scheduled, costs=known), replace(placed, costs=known))
    return _simulate.simulate(scheduled, describe=graph.describe)


def _faster(scheduled: Plan, placed: Plan) -> Plan:
    """Return a plan in the order that its costs suggest, unless ``scheduled`` is faster.

    Both orders are greedy, so either may be. The prediction is put into the plan.
    """
    best = _full(scheduled)
    if has_rendezvous(placed):  # otherwise there is one order only
        by_costs = _full(_schedule.schedule(placed))
        best = best if best.period < by_costs.period else by_costs
    period_ns = round(best.period)
    predicted = [
        Predicted(process, round(busy), period_ns) for process, busy in best.busy().items()
    ]
    return replace(best.plan, predicted=tuple(predicted))


def _full(plan: Plan) -> _simulate.Simulation:
    """Simulate a plan while many executions are in flight."""
    window = min(plan.window, _MOST_IN_FLIGHT)
    return _simulate.simulate(plan, executions=_PREDICTED_ROUNDS * window, window=window)
