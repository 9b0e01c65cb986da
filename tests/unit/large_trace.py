# SPDX-License-Identifier: Apache-2.0
"""A trace of a million events, and how long its analyses take.

Run as a program, it prints the seconds: ``python -m tests.unit.large_trace [events]``.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from rcg.trace.analysis.critical import Paths
from rcg.trace.analysis.executions import executions_of
from rcg.trace.analysis.figures import summarize
from rcg.trace.analysis.parts import parts_of
from rcg.trace.analysis.shares import shares_of
from rcg.trace.analysis.what_if import what_if
from rcg.trace.model import EVENT, GraphTrace
from rcg.trace.trace import Trace
from tests.unit.traces import graph_trace, trace


def chain(actors: int) -> str:
    """The plan of a pipeline of so many stages."""
    names = ["driver", *(f"a{number}" for number in range(actors))]
    lines = ["plan positional=1 keywords=[] returns=one"]
    lines += [f"actor {name} 'Stage' ''" for name in names[1:]]
    ring = [*names, "driver"]
    lines += [
        f"channel c{number} {ring[number]} -> {ring[number + 1]} ring node={number} slots=10"
        for number in range(actors + 1)
    ]
    lines += ["program driver", "Input * -> s0", "Write s0 -> c0", "Free s0"]
    lines += [f"Read c{actors} -> s1", "Output s1"]
    for number, name in enumerate(names[1:]):
        lines += [f"program {name}", f"Read c{number} -> s0"]
        lines += [f"Call {name}.fwd(s0) -> s1 #{number + 1}", "Free s0"]
        lines += [f"Write s1 -> c{number + 1}", "Free s1"]
    return "\n".join(lines)


def large_trace(num_events: int = 1_000_000, actors: int = 4, window: int = 10) -> Trace:
    """Return the trace of a pipeline with random times, worked out execution by execution."""
    count = num_events // (3 * actors + 2)
    random = np.random.default_rng(0)
    took = random.gamma(4, 5_000, (count, actors)).astype(np.int64).tolist()
    plan = chain(actors)
    rows: list[list[tuple[int, ...]]] = [[] for _ in range(actors + 1)]
    free = [0] * (actors + 1)  # since when each process is
    made: list[int] = []
    for k in range(count):
        start = free[0]
        if k >= window:
            j = k - window
            begun = max(start, made[j])
            rows[0].append((start, begun + 300, begun - start, 100, j, 800, 3, actors))
            start = begun + 300
        there = start + 400
        rows[0].append((start, there, 0, 50, k, 800, 1, 0))
        free[0] = there
        for a in range(actors):
            row, begun = rows[a + 1], max(free[a + 1], there)
            called = begun + 250
            done = called + took[k][a]
            row.append((free[a + 1], called, begun - free[a + 1], 100, k, 800, 0, a))
            row.append((called, done, 0, 0, k, 0, 1, 0))
            row.append((done, done + 350, 0, 120, k, 800, 3, 0))
            there = free[a + 1] = done + 350
        made.append(there)
    empty = graph_trace({}, plan=plan, limit=window)
    lanes = tuple(
        type(lane)(lane.process, lane.label, np.array(each, EVENT))
        for lane, each in zip(empty.lanes, rows, strict=True)
    )
    return trace(GraphTrace(empty.graph_id, empty.plan, lanes, window), end=max(free))


def main(num_events: int) -> None:
    """Print how long each analysis takes."""
    made = large_trace(num_events)
    (graph,) = made.graphs
    print(f"{made.num_events:,} events")
    steps = {
        "parts": lambda: [parts_of(graph, lane) for lane in graph.lanes],
        "executions": lambda: executions_of(graph),
        "shares": lambda: shares_of(graph, made.start_ns, made.end_ns),
        "critical path": lambda: Paths(graph).steady(),
        "summary, all of these": lambda: summarize(made),
        "what if": lambda: what_if(graph, {"Stage.fwd": 0.5}),
    }
    for name, step in steps.items():
        begun = time.perf_counter()
        step()
        print(f"{name:24} {time.perf_counter() - begun:6.2f} s")
    print(summarize(made))
    print(what_if(graph, {"a1.fwd": 0.5}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
