# SPDX-License-Identifier: Apache-2.0
"""Traces made by hand: a pipeline whose every nanosecond is written down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rcg.ir.plan import Plan
from rcg.trace.measured import Measured
from rcg.trace.model import EVENT, NO_PEER, Events, GraphTrace, LaneTrace, OpenOp
from rcg.trace.trace import Trace

PIPELINE = """
plan positional=1 keywords=[] returns=one
actor a0 'Stage' ''
actor a1 'Stage' ''
channel c0 driver -> a0 ring node=0 slots=10
channel c1 a0 -> a1 ring node=1 slots=10
channel c2 a1 -> driver ring node=2 slots=10
program driver
  Input * -> s0
  Write s0 -> c0
  Free s0
  Read c2 -> s1
  Output s1
program a0
  Read c0 -> s0
  Call a0.fwd(s0) -> s1 #1
  Free s0
  Write s1 -> c1
  Free s1
program a1
  Read c1 -> s0
  Call a1.fwd(s0) -> s1 #2
  Free s0
  Write s1 -> c2
  Free s1
"""
"""Driver -> a0 -> a1 -> driver. Driver: Write is op 1, Read 3; actors: Read 0, Call 1, Write 3."""

ALLREDUCE = """
plan positional=1 keywords=[] returns=one
actor a0 'Worker' ''
actor a1 'Worker' ''
group g0 gloo a0 a1
channel c0 driver -> a0 a1 ring node=0 slots=10
channel c1 a0 -> a1 status node=3 slots=10
channel c2 a1 -> a0 status node=4 slots=10
channel c3 a0 -> driver ring node=3 slots=10
program driver
  Input * -> s0
  Write s0 -> c0
  Free s0
  Read c3 -> s1
  Output s1
program a0
  Read c0 -> s0
  Call a0.grad(s0) -> s1 #1
  AllReduce s1 (sum) @g0 tells c1 hears c2 -> s2 #3
  Write s2 -> c3
  Free s0, s1, s2
program a1
  Read c0 -> s0
  Call a1.grad(s0) -> s1 #2
  AllReduce s1 (sum) @g0 tells c2 hears c1 -> s2 #4
  Free s0, s1, s2
"""
"""What two actors make is reduced; AllReduce is op 2 of both."""


def event(
    op: int,
    execution: int,
    start: int,
    end: int,
    *,
    waited: int = 0,
    coded: int = 0,
    bytes: int = 0,
    peer: int = NO_PEER,
) -> tuple[int, int, int, int, int, int, int, int]:
    """One row of ``EVENT``."""
    return (start, end, waited, coded, execution, bytes, op, peer)


def events(rows: Iterable[tuple[int, ...]]) -> Events:
    """Rows as an array."""
    return np.array(list(rows), EVENT)


def graph_trace(
    rows: Mapping[str, Iterable[tuple[int, ...]]],
    *,
    plan: str = PIPELINE,
    spans: Mapping[str, tuple[str, ...]] | None = None,
    opens: Mapping[str, OpenOp] | None = None,
    limit: int = 10,
) -> GraphTrace:
    """A graph's record from rows by process; a process without rows did nothing."""
    made = Plan.from_text(plan)
    lanes = tuple(
        LaneTrace(
            program.process,
            made.label(program.process),
            events(rows.get(program.process, ())),
            spans=(spans or {}).get(program.process, ()),
            open=(opens or {}).get(program.process),
        )
        for program in made.programs
    )
    return GraphTrace("5f1c" * 8, made, lanes, limit)


def changed(graph: GraphTrace, process: str, **changes: Any) -> GraphTrace:
    """The record with other facts of one process."""
    lanes = [replace(lane, **changes) if lane.process == process else lane for lane in graph.lanes]
    return replace(graph, lanes=tuple(lanes))


def one_after_the_other(*graphs: GraphTrace) -> GraphTrace:
    """One record of runs of the same plan, one after the other."""
    rows: dict[str, list[Events]] = {lane.process: [] for lane in graphs[0].lanes}
    end = execution = 0
    for graph in graphs:
        moved = {lane.process: lane.events.copy() for lane in graph.lanes}
        for process, later in moved.items():
            later["start_ns"] += end
            later["end_ns"] += end
            later["execution"] += execution
            rows[process].append(later)
        end = max(int(later["end_ns"].max()) for later in moved.values())
        execution = 1 + max(int(later["execution"].max()) for later in moved.values())
    lanes = (replace(lane, events=np.concatenate(rows[lane.process])) for lane in graphs[0].lanes)
    return replace(graphs[0], lanes=tuple(lanes))


def trace(*graphs: GraphTrace, start: int = 0, end: int) -> Trace:
    """A trace of graphs between two moments."""
    return Trace(graphs, start, end)


def one_execution(**more) -> Trace:
    """Written at 1010, at the end of the pipeline at 1200; a0 waited, a1 did not."""
    rows = {
        "driver": [event(1, 7, 1010, 1030, coded=4, bytes=64), event(3, 7, 1030, 1200, waited=150)],
        "a0": [
            event(0, 7, 1000, 1040, waited=28, coded=2, bytes=64, peer=0),
            event(1, 7, 1040, 1090),
            event(3, 7, 1090, 1100, bytes=8),
        ],
        "a1": [event(0, 7, 1100, 1110, bytes=8), event(1, 7, 1110, 1160), event(3, 7, 1160, 1170)],
    }
    return trace(graph_trace(rows, **more), start=1000, end=1300)


def save_run(folder: Path) -> Path:
    """Save the trace of one execution of the pipeline."""
    rows = {
        "driver": [event(1, 0, 10, 30), event(3, 0, 30, 200, waited=150)],
        "a0": [event(0, 0, 0, 40), event(1, 0, 40, 90), event(3, 0, 90, 100)],
        "a1": [event(0, 0, 0, 110, waited=90), event(1, 0, 110, 160), event(3, 0, 160, 170)],
    }
    path = folder / "run.rcg"
    trace(graph_trace(rows), end=300).save(path)
    return path


def measure(graph: GraphTrace, start: int = 0, end: int | None = None) -> Measured:
    """What a graph did in a trace of these times; one without an end ends with its last event."""
    last = max(
        (int(each.events["end_ns"].max()) for each in graph.lanes if len(each.events)), default=0
    )
    return Measured(graph, start, max(last, start) if end is None else end)
