# SPDX-License-Identifier: Apache-2.0
"""A large trace with random times, whose bars no page holds all."""

from __future__ import annotations

import numpy as np

from rcg.trace.model import EVENT, GraphTrace
from rcg.trace.trace import Trace
from tests.unit.traces import graph_trace, trace
from tests.unit.views_traces import pipeline

WAYS = ("values_out", "values_in")


def large_trace(num_events: int, actors: int = 4) -> Trace:
    """Return the trace of a pipeline with random times, worked out execution by execution."""
    count = num_events // (3 * actors + 2)
    random = np.random.default_rng(0)
    took = random.gamma(4, 5_000, (count, actors)).astype(np.int64).tolist()
    plan = pipeline(actors)
    driver, actor = plan.program("driver").ops, plan.program("a0").ops
    write, fetch = ([bool(getattr(op, way)) for op in driver].index(True) for way in WAYS)
    read, call, send = (
        [bool(is_it(op)) for op in actor].index(True)
        for is_it in (lambda op: op.values_in, lambda op: op.is_call, lambda op: op.values_out)
    )
    window = 10
    rows: list[list[tuple[int, ...]]] = [[] for _ in range(actors + 1)]
    free = [0] * (actors + 1)  # since when each process is
    made: list[int] = []
    for k in range(count):
        start = free[0]
        if k >= window:
            j = k - window
            begun = max(start, made[j])
            rows[0].append((start, begun + 300, begun - start, 100, j, 800, fetch, actors))
            start = begun + 300
        there = start + 400
        rows[0].append((start, there, 0, 50, k, 800, write, 0))
        free[0] = there
        for a in range(actors):
            row, begun = rows[a + 1], max(free[a + 1], there)
            called = begun + 250
            done = called + took[k][a]
            row.append((free[a + 1], called, begun - free[a + 1], 100, k, 800, read, a))
            row.append((called, done, 0, 0, k, 0, call, 0))
            row.append((done, done + 350, 0, 120, k, 800, send, 0))
            there = free[a + 1] = done + 350
        made.append(there)
    empty = graph_trace({}, plan=str(plan), limit=window)
    lanes = tuple(
        type(lane)(lane.process, lane.label, np.array(each, EVENT))
        for lane, each in zip(empty.lanes, rows, strict=True)
    )
    return trace(GraphTrace(empty.graph_id, empty.plan, lanes, window), end=max(free))
