# SPDX-License-Identifier: Apache-2.0
"""The life of a compiled graph beside its calls: compiling, the first calls, waiting, teardown.

*Fresh* is the time of an echo on fresh actors, over several starts, with the contestants in turns.
The kernel decides at each start which processes share cores and caches. A wait policy that suits
one placement may not suit another, so a median over one start is not representative.

*Idle* is the CPU time of a waiting graph, from the kernel's counters: of its processes, and of
rcg's threads in them.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import rcg
from rcg.bench.contestants import READY_TIMEOUT_S, GraphContestant, RayCall
from rcg.bench.record import RAY_GRAPH, RCG, Figure, medians
from rcg.bench.rows import ROWS

IDLE_S = 10.0
MAX_WAKEUPS_PER_S = 2.0
COMPILES = 5
STARTS = 10
SETTLING = 1_000  # executions before the measurement; a slow start has to become fast in them
TIMED = 500
MAX_OF_RAY_GRAPH = 0.15
PAYLOAD = b"x"
THREAD_PREFIX = "rcg"  # of the names of rcg's threads


CHAIN: Final = next(row for row in ROWS if row.name == "chain-4")


def measure_idle(graphs: Mapping[str, GraphContestant], bare: RayCall) -> tuple[Figure, ...]:
    """Let a compiled chain of 4 wait, and read the kernel's counters before and after.

    All contestants wait at the same time. The figures include actors without a graph for
    comparison, because a Ray worker uses CPU time as well.
    """
    payload = CHAIN.payload(random.Random(0))
    loop = asyncio.new_event_loop()  # only asynchronous rows use it
    sessions = [graph.open(CHAIN, payload, loop) for graph in graphs.values()]
    for session in sessions:
        session.check()
    actors = {name: graph.actors for name, graph in graphs.items()} | {"no graph": bare.actors}
    # A loop that has just been busy may still spin before it sleeps.
    time.sleep(1.0)
    before = {name: _usages(of) for name, of in actors.items()}
    own_before = read_usage()
    time.sleep(IDLE_S)
    own = read_usage().since(own_before)
    each = {
        name: [after.since(start) for after, start in zip(_usages(of), before[name], strict=True)]
        for name, of in actors.items()
    }
    for session in sessions:
        session.close()
    loop.close()
    loops = total(each[RCG])
    processes = {name: total(usages).process_ticks for name, usages in each.items()}
    worst = max((usage.wakeups / max(1, usage.threads) for usage in (own, *each[RCG])), default=0)
    per_s = {
        "driver": own.wakeups / IDLE_S,
        "4 actors": loops.wakeups / IDLE_S,
        "busiest thread": worst / IDLE_S,
    }
    lasted = f"in {IDLE_S:.0f} s, waiting graph"
    return (
        Figure(
            "idle-ticks",
            f"CPU ticks of rcg's threads {lasted}",
            "ticks",
            {"driver": own.thread_ticks, "4 actors": loops.thread_ticks},
            most=0,
        ),
        Figure(
            "idle-wakeups",
            "wake-ups a second of rcg's threads, waiting graph",
            "1/s",
            per_s,
            most=MAX_WAKEUPS_PER_S,
            bound=("busiest thread",),
        ),
        Figure("idle-processes", f"CPU ticks of 4 actor processes {lasted}", "ticks", processes),
    )


def _usages(actors: Sequence[Any]) -> list[Usage]:
    found: list[Usage] = rcg.get([actor.__ray_call__.remote(read_usage) for actor in actors])
    return found


def measure_lifecycle(graphs: Mapping[str, GraphContestant]) -> tuple[Figure, ...]:
    """Compile and tear down a chain of 4, in turns; return the medians."""
    payload = CHAIN.payload(random.Random(0))
    compiled: dict[str, list[float]] = {name: [] for name in graphs}
    torn_down: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(COMPILES):
        for name, graph in graphs.items():
            start = time.perf_counter()
            whole = graph.compile(CHAIN, payload)
            compiled[name].append((time.perf_counter() - start) * 1e3)
            start = time.perf_counter()
            whole.teardown()
            torn_down[name].append((time.perf_counter() - start) * 1e3)
    return (
        Figure("compile", "compile, chain of 4", "ms", medians(compiled)),
        Figure("teardown", "teardown, chain of 4", "ms", medians(torn_down)),
    )


def measure_fresh(
    graphs: Mapping[str, GraphContestant],
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
        for which, of in (("best", min), ("median", median), ("worst", max))
    }
    figure = Figure("fresh", f"echo on fresh actors, {starts} starts", "us", values)
    if RCG not in times or RAY_GRAPH not in times:
        return (figure,)
    ratio = {f"{RCG}, worst": max(times[RCG]) / median(times[RAY_GRAPH])}
    title = f"echo on fresh actors, worst of {starts}, to the median of Ray's graph"
    return figure, Figure("fresh ratio", title, "", ratio, most=MAX_OF_RAY_GRAPH)


def _time_echo(graph: GraphContestant, settling: int, timed: int) -> float:
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
    return median(found)


class Usage(NamedTuple):
    """Counters since the start of a process.

    Attributes:
        process_ticks: CPU ticks (usually 10 ms) of the whole process.
        threads: Number of rcg's threads.
        thread_ticks: CPU ticks of those threads.
        wakeups: Number of voluntary context switches of those threads: each ends in a wake-up.
    """

    process_ticks: int
    threads: int
    thread_ticks: int
    wakeups: int

    def since(self, before: Usage) -> Usage:
        """Return the difference to an earlier usage. `threads` stays as it is."""
        return Usage(
            self.process_ticks - before.process_ticks,
            self.threads,
            self.thread_ticks - before.thread_ticks,
            self.wakeups - before.wakeups,
        )


def total(usages: Iterable[Usage]) -> Usage:
    """Return the sum of the usage of several processes."""
    return Usage(*map(sum, zip(*usages, strict=True)))


def parse_ticks(stat: str) -> int:
    """Return user and system ticks from the text of `/proc/<pid>/stat`.

    The second field is the program's name in brackets, which may contain spaces and brackets.

    >>> parse_ticks("17 (a (b) c) S 1 1 1 0 -1 0 5 0 0 0 30 12 0 0 20 0 1 0 99")
    42
    """
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def parse_wakeups(status: str) -> int:
    """Return the number of voluntary context switches from `/proc/<pid>/task/<tid>/status`.

    Raises:
        ValueError: The text has no such line.
    """
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == "voluntary_ctxt_switches":
            return int(value)
    raise ValueError("there is no line voluntary_ctxt_switches")


def read_usage(_: object = None) -> Usage:
    """Return the usage of this process, also of an actor's, and of rcg's threads in it."""
    own = [
        thread.native_id
        for thread in threading.enumerate()
        if thread.name.startswith(THREAD_PREFIX) and thread.native_id is not None
    ]
    ticks = wakeups = 0
    for native_id in own:
        task = Path(f"/proc/self/task/{native_id}")
        ticks += parse_ticks((task / "stat").read_text())
        wakeups += parse_wakeups((task / "status").read_text())
    process = parse_ticks(Path(f"/proc/{os.getpid()}/stat").read_text())
    return Usage(process, len(own), ticks, wakeups)
