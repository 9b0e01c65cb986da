# SPDX-License-Identifier: Apache-2.0
"""The compiler: pure passes from a checked graph to a plan that is known to run.

::

    Graph ──place──> Plan ──schedule──> Plan ──simulate──> Simulation (the plan and a timeline)

``place`` decides how every value travels (``routes``), ``schedule`` the order of every program
(``order``), ``simulate`` rejects plans that could deadlock and predicts a timeline. Each pass
checks its input plan. The same graph always gives the same plan: no order comes from a hash. This
package must know neither Ray, nor torch, nor how a plan is run.
"""

from __future__ import annotations

from collections.abc import Mapping

from rcg.compiler import place as _place
from rcg.compiler import schedule as _schedule
from rcg.compiler import simulate as _simulate
from rcg.ir.graph import Graph

__all__ = ["compile_graph"]


def compile_graph(
    graph: Graph, locations: Mapping[str, str], driver_location: str, channel_slots: int
) -> _simulate.Simulation:
    """Run all passes.

    Args:
        graph: The checked graph.
        locations: The node of the cluster that each actor lives on, by actor id.
        driver_location: The node that the compiling process lives on.
        channel_slots: How many frames each channel holds.

    Returns:
        The plan and its predicted timeline.

    Raises:
        PlacementError: An actor cannot be reached from the driver.
        DeadlockError: The programs would wait for each other.
        InternalError: A pass broke the rules of ``Plan.check``.
    """
    placed = _place.place(graph, locations, driver_location, channel_slots)
    scheduled = _schedule.schedule(placed)
    return _simulate.simulate(scheduled, describe=graph.describe)
