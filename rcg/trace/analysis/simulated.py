# SPDX-License-Identifier: Apache-2.0
"""Turns a simulated timeline into a record, so that the same analyses work on both.

```
simulated   |op|      |op |op|           waiting is the gap between two ops
recorded    |op| waits|op |op|           a Read, Write or collective begins when the op before
                                         it ended
```

This room must know neither figures nor how simulations are made.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from rcg.compiler.simulate import Simulation
from rcg.ir.ops import Op
from rcg.ir.plan import Plan
from rcg.trace.model import EVENT, NO_PEER, Events, GraphTrace, LaneTrace

LATEST_NS: Final = 1 << 60
"""The latest simulated time. Later times, which follow from absurd costs, are set to it."""


def from_simulation(
    simulation: Simulation, *, graph_id: str = "", limit: int = 10, codes: bool = False
) -> GraphTrace:
    """Return a simulation as the record of a graph.

    As in a recording, ops without duration are left out, except Reads, Writes and collectives.

    Args:
        simulation: The simulation, with times in ns. They are rounded.
        graph_id: Hex id of the graph.
        limit: The limit of executions in flight.
        codes: Whether the time of Reads counts as decoding instead of moving bytes.
    """
    plan = simulation.plan
    by_process: dict[str, list[tuple[float, float, int, int]]] = {
        program.process: [] for program in plan.programs
    }
    for span in simulation.timeline:
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
