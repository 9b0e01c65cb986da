# SPDX-License-Identifier: Apache-2.0
"""The time of an echo on fresh actors, over several starts, with the contestants in turns.

The kernel decides at each start which processes share cores and caches. A wait policy that suits
one placement may not suit another, so a median over one start is not representative.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import rcg
from rcg.bench.contestants import READY_TIMEOUT_S, RayGraph, RcgGraph
from rcg.bench.record import RAY_GRAPH, RCG, Figure
from rcg.bench.statistics import median

__rcg_user__ = True  # see rcg.frames

STARTS = 10
SETTLING = 1_000  # executions before the measurement; a slow start has to become fast in them
TIMED = 500
MAX_OF_RAY_GRAPH = 0.15
PAYLOAD = b"x"


def measure_fresh(
    graphs: Mapping[str, RcgGraph | RayGraph],
    starts: int = STARTS,
    settling: int = SETTLING,
    timed: int = TIMED,
) -> tuple[Figure, ...]:
    """Measure an echo on fresh actors of each contestant; return best, median and worst."""
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(starts):
        for name, graph in graphs.items():
            times[name].append(_time_echo(graph, settling, timed))
    values = {
        f"{name}, {which}": of(found)
        for name, found in times.items()
        for which, of in (("best", min), ("median", _median), ("worst", max))
    }
    figures = [Figure("fresh", f"echo on fresh actors, {starts} starts", "us", values)]
    if RCG in times and RAY_GRAPH in times:
        ratio = max(times[RCG]) / _median(times[RAY_GRAPH])
        figures.append(
            Figure(
                "fresh ratio",
                f"echo on fresh actors, worst of {starts}, to the median of Ray's graph",
                "",
                {f"{RCG}, worst": ratio},
                most=MAX_OF_RAY_GRAPH,
            )
        )
    return tuple(figures)


def _median(values: list[float]) -> float:
    return median(sorted(values))


def _time_echo(graph: RcgGraph | RayGraph, settling: int, timed: int) -> float:
    """Return the median time in microseconds of an echo on a fresh actor."""
    actor = graph.start_one()
    try:
        with graph.input_node() as inp:
            dag = actor.echo.bind(inp)
        compiled: Any = graph.compile_dag(dag)
        try:
            for _ in range(settling):
                graph.get(compiled.execute(PAYLOAD), timeout=READY_TIMEOUT_S)
            found = []
            for _ in range(timed):
                start = time.perf_counter_ns()
                value = graph.get(compiled.execute(PAYLOAD))
                found.append((time.perf_counter_ns() - start) / 1e3)
                if value != PAYLOAD:
                    raise ValueError(f"{graph.name} returned {value!r}")
        finally:
            compiled.teardown()
    finally:
        rcg.kill(actor)
    return _median(found)
