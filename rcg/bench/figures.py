# SPDX-License-Identifier: Apache-2.0
"""Figures without contestants: idle CPU, compile and teardown time, the recorder, planning.

Each function measures and returns figures. `runner` decides which of them run.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

import rcg
from rcg import _native
from rcg.bench.contestants import RayCall, RayGraph, RcgGraph
from rcg.bench.record import RCG, Figure
from rcg.bench.rows import ROWS, Row
from rcg.bench.statistics import median
from rcg.bench.usage import Usage, read_usage, total
from rcg.compiler.place import place
from rcg.compiler.schedule import schedule
from rcg.compiler.simulate import simulate
from rcg.ir.channels import ActorSpec
from rcg.ir.graph import Graph
from rcg.ir.nodes import ConstArg, InputValue, MethodCall, NodeArg, Site

__rcg_user__ = True  # see rcg.frames

IDLE_S = 10.0
MAX_WAKEUPS_PER_S = 2.0
MAX_RECORDER_NS = 50.0
MAX_PLANNING_S = 2.0
PLANNED_NODES = (2_500, 5_000, 10_000)
COMPILES = 5
TITLES = {
    "idle": "CPU time of a waiting compiled graph",
    "lifecycle": "time to compile and to tear down",
    "fresh": "echo on fresh actors, start by start",
    "failures": "time until the death of an actor is reported",
    "overlap": "transfers beside computation",
    "unequal-pair": "layers on a pair of which one is slower",
    "rdt": "tensors by reference in ordinary calls",
    "recorder": "cost of recording an event",
    "tracing": "cost of recording and of a profile",
    "what_if": "prediction compared with a real run",
    "traces": "analysis of a million events",
    "planning": "time to plan large graphs",
}


def row_called(name: str) -> Row:
    """Return the row with a name."""
    return next(row for row in ROWS if row.name == name)


def measure_idle(
    graphs: Mapping[str, RcgGraph | RayGraph],
    bare: RayCall,
    seconds: float = IDLE_S,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Figure, ...]:
    """Let a compiled chain of 4 wait, and read the kernel's counters before and after.

    All contestants wait at the same time. The figures include actors without a graph for
    comparison, because a Ray worker uses CPU time as well.
    """
    row = row_called("chain-4")
    payload = row.payload(random.Random(0))
    loop = asyncio.new_event_loop()  # only asynchronous rows use it
    sessions = [graph.open(row, payload, loop) for graph in graphs.values()]
    for session in sessions:
        session.check()
    actors = {name: graph.actors for name, graph in graphs.items()} | {"no graph": bare.actors}
    # A loop that has just been busy may still spin before it sleeps.
    sleep(1.0)
    before = {name: _usages(of) for name, of in actors.items()}
    own_before = read_usage()
    sleep(seconds)
    own = read_usage().since(own_before)
    each = {
        name: [after.since(start) for after, start in zip(_usages(of), before[name], strict=True)]
        for name, of in actors.items()
    }
    for session in sessions:
        session.close()
    loop.close()
    loops = total(each[RCG])
    worst = max((usage.wakeups / max(1, usage.threads) for usage in (own, *each[RCG])), default=0)
    return (
        Figure(
            name="idle-ticks",
            title=f"CPU ticks of rcg's threads in {seconds:.0f} s, waiting graph",
            unit="ticks",
            values={"driver": own.thread_ticks, "4 actors": loops.thread_ticks},
            most=0,
        ),
        Figure(
            name="idle-wakeups",
            title="wake-ups a second of rcg's threads, waiting graph",
            unit="1/s",
            values={
                "driver": own.wakeups / seconds,
                "4 actors": loops.wakeups / seconds,
                "busiest thread": worst / seconds,
            },
            most=MAX_WAKEUPS_PER_S,
            bound=("busiest thread",),
        ),
        Figure(
            name="idle-processes",
            title=f"CPU ticks of 4 actor processes in {seconds:.0f} s, waiting graph",
            unit="ticks",
            values={name: total(usages).process_ticks for name, usages in each.items()},
        ),
    )


def _usages(actors: Sequence[Any]) -> list[Usage]:
    found: list[Usage] = rcg.get([actor.usage.remote() for actor in actors])
    return found


def measure_lifecycle(graphs: Mapping[str, RcgGraph | RayGraph]) -> tuple[Figure, ...]:
    """Compile and tear down a chain of 4, in turns; return the medians."""
    row = row_called("chain-4")
    payload = row.payload(random.Random(0))
    compiled: dict[str, list[float]] = {name: [] for name in graphs}
    torn_down: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(COMPILES):
        for name, graph in graphs.items():
            start = time.perf_counter()
            whole = graph.compile(row, payload)
            compiled[name].append((time.perf_counter() - start) * 1e3)
            start = time.perf_counter()
            whole.teardown()
            torn_down[name].append((time.perf_counter() - start) * 1e3)
    return (
        Figure("compile", "compile, chain of 4", "ms", _medians(compiled)),
        Figure("teardown", "teardown, chain of 4", "ms", _medians(torn_down)),
    )


def _medians(samples: Mapping[str, Iterable[float]]) -> dict[str, float]:
    return {name: median(sorted(times)) for name, times in samples.items()}


def measure_recorder(events: int = 1_000, rounds: int = 1_000) -> tuple[Figure, ...]:
    """Measure `mark`, as the actors' loop calls it, with the recorder on and off, in turns.

    The two calls differ only in recording, so the difference is its cost. There are many short
    turns: other processes interrupt a small share of short turns, but most of a few long ones.
    """
    times: dict[bool, list[float]] = {True: [], False: []}
    with closing(_Board()) as board:
        members = {record: board.member(record=record) for record in times}
        for _ in range(rounds):
            for record, member in members.items():
                mark = member.mark
                start = time.perf_counter_ns()
                for execution in range(events):
                    mark(1, execution)
                times[record].append((time.perf_counter_ns() - start) / events)
    on, off = (median(sorted(times[record])) for record in (True, False))
    return (
        Figure(
            name="recorder",
            title="recorder, per event",
            unit="ns",
            values={"recording": on - off, "call and recording": on, "call alone": off},
            most=MAX_RECORDER_NS,
            bound=("recording",),
        ),
    )


class _Board:
    """A board and an arena for one member without peers."""

    def __init__(self) -> None:
        self._board = os.memfd_create("rcg-bench-board", os.MFD_CLOEXEC)
        self._arena = os.memfd_create("rcg-bench-arena", os.MFD_CLOEXEC)
        _native.format_board(self._board, 1, [], 1024, 1 << 20)
        _native.format_arena(self._arena, 0, 1, 1 << 20)

    def member(self, *, record: bool) -> Any:
        return _native.Member(self._board, [self._arena], 0, record=record, looping=True)

    def close(self) -> None:
        os.close(self._board)
        os.close(self._arena)


def measure_planning() -> tuple[Figure, ...]:
    """Measure place, schedule and simulate on graphs of growing size."""
    seconds = {}
    for nodes in PLANNED_NODES:
        graph = layered_graph(nodes)
        start = time.perf_counter()
        locations = {actor.id: "node" for actor in graph.actors}
        simulate(schedule(place(graph, locations, "node", channel_slots=16)))
        seconds[f"{nodes:,} nodes"] = time.perf_counter() - start
    return (
        Figure(
            name="planning",
            title="place, schedule and simulate",
            unit="s",
            values=seconds,
            most=MAX_PLANNING_S,
        ),
    )


def layered_graph(nodes: int, actors: int = 16) -> Graph:
    """Return a graph of `nodes` calls in layers. A call takes two values of the layer above.

    These are the value of its own actor and that of the next one, so every layer crosses processes.
    """
    site = Site(__file__, 0)
    specs = tuple(ActorSpec(f"a{i}", "Stage", "") for i in range(actors))
    bound: list[InputValue | MethodCall] = [InputValue(0, None, site)]
    above = [0] * actors
    while len(bound) <= nodes:
        layer = []
        for i in range(min(actors, nodes + 1 - len(bound))):
            left, right = above[i], above[(i + 1) % actors]
            args = (NodeArg(left), NodeArg(right), ConstArg("k0"))
            bound.append(MethodCall(len(bound), f"a{i}", "step", args, (), 1, site))
            layer.append(len(bound) - 1)
        above = [*layer, *above[len(layer) :]]
    return Graph(
        nodes=tuple(bound),
        outputs=tuple(dict.fromkeys(above)),
        is_multi=True,
        actors=specs,
        num_positional=1,
        keywords=(),
    )
