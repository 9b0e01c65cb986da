# SPDX-License-Identifier: Apache-2.0
"""Stalls: the op on which a graph hung when its trace ended, and the processes that wait for it.

```
driver  |write|read 7: waits . . . . . . . . . . . . . .>
a0      |call 7|write|read 8: waits (nothing was submitted: it is idle)
a1      |read 7|call 7 ───────────────────────────────────>   stalled, 1 process waits
                ^ since                            trace ends
```

A trace usually ends while ops are running. A running op is a stall if it has lasted longer than any
execution took, and several times longer than any run of the same op that ended. If no run of it
ended, it is a stall if a process waits for it. Waiting is transitive: a process that waits for
another also waits for the processes that the other one waits for. An actor that waits to read an
input has nothing to do and waits for no process. What nobody waits for is no stall if the driver
has fetched its execution, or never submitted it: the actor was only kept from its processor.

This room must know neither figures nor how stalls are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from rcg.ir.ids import DRIVER
from rcg.ir.ops import Collective
from rcg.trace.analysis.critical import text_of
from rcg.trace.analysis.executions import UNSEEN, Executions
from rcg.trace.model import GraphTrace, LaneTrace

_LONGER: Final = 5
"""A stalled op has lasted this many times longer than the longest run of it that ended."""


@dataclass(frozen=True, slots=True)
class Stall:
    """An op that had not ended at the end of the trace, much longer than usual.

    Attributes:
        process: Its process.
        op: Its index in the program.
        text: Its displayed name.
        execution: Index of its execution.
        since_ns: When it began, from the beginning of the trace.
        lasted_ns: Its duration up to the end of the trace.
        usual_ns: Median time of the runs that ended, without waiting; None if none did.
        waiting: Labels of the processes that wait for it, in the order of the lanes.
    """

    process: str
    op: int
    text: str
    execution: int
    since_ns: int
    lasted_ns: int
    usual_ns: float | None
    waiting: tuple[str, ...]


def stall_of(graph: GraphTrace, executions: Executions, start_ns: int, end_ns: int) -> Stall | None:
    """Return the op on which a graph hung at the end of its trace; None if it did not hang.

    Of several ops it is the one that most processes wait for, then the one that began first.

    Args:
        graph: The record of the graph.
        executions: The executions of the graph.
        start_ns: Beginning of the trace.
        end_ns: End of the trace.
    """
    waits = _waits(graph)
    gates = {gate.id for gate in graph.plan.gates}  # these only wait for what others send
    longest = int(executions.latency_ns.max(initial=0))
    in_flight = set(executions.index[executions.fetched_ns == UNSEEN].tolist())
    found = []
    for lane in graph.lanes:
        if lane.open is None or lane.process in (*waits, *gates, DRIVER):
            continue
        waiting = tuple(
            other.label for other in graph.lanes if lane.process in waits_for(waits, other.process)
        )
        stall = _stall(graph, lane, start_ns, end_ns, waiting)
        if stall is None or not (stall.waiting or stall.execution in in_flight):
            continue
        if stall.lasted_ns > longest:
            found.append(stall)
    return max(found, key=lambda each: (len(each.waiting), -each.since_ns), default=None)


def _stall(
    graph: GraphTrace, lane: LaneTrace, start_ns: int, end_ns: int, waiting: tuple[str, ...]
) -> Stall | None:
    now = lane.open
    if now is None or not 0 <= now.op < len(graph.program(lane).ops):
        return None
    lasted = end_ns - now.since_ns
    events = lane.events[lane.events["op"] == now.op]
    own = events["end_ns"] - events["start_ns"] - events["waited_ns"]
    if lasted <= _LONGER * int(own.max(initial=0)) or lasted <= 0:
        return None
    if not waiting and not len(events):
        return None
    return Stall(
        process=lane.process,
        op=now.op,
        text=text_of(graph, lane, now.op),
        execution=now.execution,
        since_ns=now.since_ns - start_ns,
        lasted_ns=lasted,
        usual_ns=float(np.median(own)) if len(own) else None,
        waiting=waiting,
    )


def _waits(graph: GraphTrace) -> dict[str, tuple[str, ...]]:
    """Return, for each process that waited at the end, the ones it waited for directly."""
    channels = graph.plan.channels_by_id()
    found: dict[str, tuple[str, ...]] = {}
    for lane in graph.lanes:
        now = lane.open
        ops = graph.program(lane).ops
        if now is None or not now.waiting_since_ns or not 0 <= now.op < len(ops):
            continue
        op = ops[now.op]
        if op.is_call:
            continue  # waiting for a method of another graph is a stall as well
        found[lane.process] = ()
        named = now.peer < len(graph.lanes)
        peer = graph.lanes[now.peer].process if named else ""
        for channel in op.values_in:
            writer = channels[channel].writer
            found[lane.process] = () if writer == DRIVER else (writer,)
        for channel in op.values_out:
            readers = tuple(each for each in channels[channel].readers if each != lane.process)
            found[lane.process] = (peer,) if peer in readers else readers
        if isinstance(op, Collective):
            others = tuple(channels[channel].writer for channel in op.hears)
            found[lane.process] = (peer,) if peer in others else others
    return found


def waits_for(waits: Mapping[str, tuple[str, ...]], process: str) -> set[str]:
    """Return all processes that a process waits for, directly or through others.

    Args:
        waits: For each process that waits, the processes that it waits for directly.
        process: The process; if it does not wait, the result is empty.
    """
    found: set[str] = set()
    left = list(waits.get(process, ()))
    while left:
        each = left.pop()
        if each not in found:
            found.add(each)
            left += waits.get(each, ())
    return found
