# SPDX-License-Identifier: Apache-2.0
"""The cost and the accuracy of tracing: recorder, profile, what-if.

The recorder alone is measured as the actors' loop calls it. An echo graph runs with its flight
recorder off, on, and in a profile, in turns on one actor. The prediction of a what-if is compared
with a pipeline whose stage was made twice as fast.
"""

from __future__ import annotations

import os
import random
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import rcg
import rcg.dag
from rcg import _native
from rcg.bench.contestants import ACTOR_OPTIONS
from rcg.bench.graphs import Worker
from rcg.bench.measure import Pace, Turn, call_turn, take_rounds
from rcg.bench.record import Figure, medians
from rcg.profiling import Profile

MAX_RECORDER_NS = 50.0
RECORDER_EVENTS = RECORDER_ROUNDS = 1_000
COMPILES = 8
ROUNDS = 8
PACE = Pace(calls=1000, time_ns=50_000_000, warm_up=50)
MAX_RECORDER_RATIO = 1.05
MAX_PROFILE_RATIO = 1.15
# The stages of a pipeline in seconds. The middle one is clearly the bottleneck.
STAGES_S = (0.002, 0.006, 0.003)
SLOWEST = 1
EXECUTIONS = 150
IN_FLIGHT = 8
MAX_ERROR = 15.0


def measure_recorder() -> tuple[Figure, ...]:
    """Measure `mark`, as the actors' loop calls it, with the recorder on and off, in turns.

    The two calls differ only in recording, so the difference is its cost. There are many short
    turns: other processes interrupt a small share of short turns, but most of a few long ones.
    """
    times: dict[bool, list[float]] = {True: [], False: []}
    with _board() as (board, arena):
        members = {
            record: _native.Member(board, [arena], 0, record=record, looping=True)
            for record in times
        }
        for _ in range(RECORDER_ROUNDS):
            for record, member in members.items():
                mark = member.mark
                start = time.perf_counter_ns()
                for execution in range(RECORDER_EVENTS):
                    mark(1, execution)
                times[record].append((time.perf_counter_ns() - start) / RECORDER_EVENTS)
    on, off = median(times[True]), median(times[False])
    values = {"recording": on - off, "call and recording": on, "call alone": off}
    bound = ("recording",)
    return (Figure("recorder", "recorder, per event", "ns", values, MAX_RECORDER_NS, bound),)


@contextmanager
def _board() -> Iterator[tuple[int, int]]:
    """Make a board and an arena for one member without peers."""
    board = os.memfd_create("rcg-bench-board", os.MFD_CLOEXEC)
    arena = os.memfd_create("rcg-bench-arena", os.MFD_CLOEXEC)
    _native.format_board(board, 1, [], 1024, 1 << 20)
    _native.format_arena(arena, 0, 1, 1 << 20)
    try:
        yield board, arena
    finally:
        os.close(board)
        os.close(arena)


def measure_tracing() -> tuple[Figure, ...]:
    """Measure an echo with the recorder off, on, and in a profile, in turns, on one actor.

    The graphs are compiled several times, in both orders, because the addresses of their memory
    affect the time as much as the recorder does.
    """
    actor = rcg.remote(Worker).options(**ACTOR_OPTIONS).remote()
    with rcg.dag.InputNode() as inp:
        dag = actor.echo.bind(inp)
    samples: dict[str, list[int]] = {}
    for number in range(COMPILES):
        is_recorded = (False, True) if number % 2 else (True, False)
        graphs = {record: dag.compile(record=record) for record in is_recorded}
        turns = _turns(graphs[False], graphs[True])
        found = take_rounds(turns, PACE, ROUNDS, random.Random(number))
        for name, taken in found.items():
            samples.setdefault(name, []).extend(taken)
        for graph in graphs.values():
            graph.teardown()
    times = medians(samples, 1e-3)  # from nanoseconds
    on, profile = ({"ratio": times[name] / times["off"]} for name in ("on", "profile"))
    title = "echo, in a profile to recorder off"
    return (
        Figure("tracing-echo", "echo, by what is recorded", "us", times),
        Figure("tracing-recorder", "echo, recorder on to off", "times", on, MAX_RECORDER_RATIO),
        Figure("tracing-profile", title, "times", profile, MAX_PROFILE_RATIO),
    )


def _turns(bare: Any, recorded: Any) -> dict[str, Turn]:
    plain = call_turn(lambda: rcg.get(recorded.execute(b"x")))

    def profiled(pace: Pace) -> Any:
        with recorded.profile():
            return plain(pace)

    off = call_turn(lambda: rcg.get(bare.execute(b"x")))
    return {"off": off, "on": plain, "profile": profiled}


def measure_what_if() -> tuple[Figure, ...]:
    """Compare a prediction for a stage of half the time with a run of that pipeline."""
    actors = [rcg.remote(Worker).options(**ACTOR_OPTIONS).remote() for _ in STAGES_S]
    faster = [s / 2 if number == SLOWEST else s for number, s in enumerate(STAGES_S)]

    def run(seconds: list[float]) -> Profile:
        with rcg.dag.InputNode() as inp:
            node: Any = inp
            for actor, each in zip(actors, seconds, strict=True):
                node = actor.hold_on.bind(node, each)
        profile: Profile
        with node.compile(max_inflight_executions=IN_FLIGHT) as graph:
            _pipelined(graph, 2 * IN_FLIGHT)
            with graph.profile() as profile:
                _pipelined(graph, EXECUTIONS)
        return profile

    before, after = run(list(STAGES_S)), run(faster)
    nothing = float("nan")  # a figure that fails
    predicted = before.what_if({f"a{SLOWEST}.hold_on": 0.5}).throughput or nothing
    measured = after.executions().throughput or nothing
    fewer = before.what_if(in_flight=1).throughput or nothing
    rates = {
        "before": before.executions().throughput or 0.0,
        "predicted": predicted,
        "measured": measured,
        "predicted with 1 in flight": fewer,
    }
    error = {"error": abs(predicted / measured - 1) * 100}
    return (
        Figure("what-if", "executions per second, one stage twice as fast", "1/s", rates),
        Figure("what-if-error", "what-if: error of the prediction", "%", error, MAX_ERROR),
    )


def _pipelined(graph: Any, executions: int) -> None:
    """Run executions with a full window."""
    refs: deque[Any] = deque()
    for number in range(executions):
        refs.append(graph.execute(number))
        if len(refs) == IN_FLIGHT:
            rcg.get(refs.popleft())
    rcg.get(list(refs))
