# SPDX-License-Identifier: Apache-2.0
"""The number of processes on each node of a plan, and of nodes to which a process sends.

There is an error if they are too many.

Checked as soon as it is known which actors are where, and again with lanes. This room must know
neither graphs nor how a plan is made.
"""

from __future__ import annotations

from rcg.errors import PlacementError
from rcg.ir.ids import DRIVER
from rcg.ir.plan import Plan
from rcg.ir.programs import FIRST_NODE, MAX_LINKS, MAX_PROCESSES
from rcg.text import plural


def check_room(plan: Plan) -> None:
    """Check that the processes of a plan fit on their nodes, and reach the others.

    Raises:
        PlacementError: Those of a node are too many, or one sends to too many nodes.
    """
    for node in [each.id for each in plan.nodes] or [FIRST_NODE]:
        processes = plan.processes_of(node)
        if len(processes) > MAX_PROCESSES:
            raise _refusal(plan, node, processes)
    reached: dict[str, set[str]] = {}
    crossings = plan.crossings()
    for channel in plan.channels:
        reached.setdefault(channel.writer, set()).update(crossings.get(channel.id, ()))
    for process, nodes in reached.items():
        if len(nodes) > MAX_LINKS:
            raise PlacementError(
                f"{plan.label(process)} would send to {len(nodes)} other nodes, and a process can "
                f"send to at most {MAX_LINKS}: have another actor pass the value on to some of them"
            )


def has_room(plan: Plan) -> bool:
    """Return whether the processes of a plan fit on their nodes, and reach the others."""
    try:
        check_room(plan)
    except PlacementError:
        return False
    return True


def _refusal(plan: Plan, node: str, processes: tuple[str, ...]) -> PlacementError:
    lanes = {lane.id for lane in plan.lanes}.intersection(processes)
    actors = {actor.id for actor in plan.actors}.intersection(processes)
    counts = [
        *(["the driver"] if DRIVER in processes else []),
        plural(len(actors), "actor"),
        *([plural(len(lanes), "lane")] if lanes else []),
        *(["a gate"] if node in processes else []),
    ]
    key = next((each.key for each in plan.nodes if each.id == node), None)
    where = "one node" if key is None else f"the node {key}"
    ways = ["use fewer actors there", "several compiled DAGs, or actors on more nodes"]
    if lanes:
        ways.insert(0, "compile without overlap")
    return PlacementError(
        f"the DAG would have {len(processes)} processes on {where} ({', '.join(counts)}), and at "
        f"most {MAX_PROCESSES} can share channels on a node: {', '.join(ways)}",
        location=key,
    )
