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
from contextlib import closing
from statistics import median
from typing import Any

import rcg
import rcg.dag
from rcg import _native
from rcg.bench.contestants import ACTOR_OPTIONS
from rcg.bench.graphs import Worker
from rcg.bench.measure import Pace, Turn, call_turn, take_rounds
from rcg.bench.record import Figure
from rcg.profiles import Profile

MAX_RECORDER_NS = 50.0
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
    on, off = (median(times[record]) for record in (True, False))
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


def measure_tracing(compiles: int = COMPILES, rounds: int = ROUNDS) -> tuple[Figure, ...]:
    """Measure an echo with the recorder off, on, and in a profile, in turns, on one actor.

    The graphs are compiled several times, in both orders, because the addresses of their memory
    affect the time as much as the recorder does.
    """
    actor = rcg.remote(Worker).options(**ACTOR_OPTIONS).remote()
    with rcg.dag.InputNode() as inp:
        dag = actor.echo.bind(inp)
    samples: dict[str, list[int]] = {}
    for number in range(compiles):
        is_recorded = (False, True) if number % 2 else (True, False)
        graphs = {record: dag.compile(record=record) for record in is_recorded}
        turns = _turns(graphs[False], graphs[True])
        found = take_rounds(turns, PACE, rounds, random.Random(number))
        for name, taken in found.items():
            samples.setdefault(name, []).extend(taken)
        for graph in graphs.values():
            graph.teardown()
    times = {name: median(found) / 1e3 for name, found in samples.items()}
    return (
        Figure("tracing-echo", "echo, by what is recorded", "us", times),
        Figure(
            "tracing-recorder",
            "echo, recorder on to off",
            "times",
            {"ratio": times["on"] / times["off"]},
            most=MAX_RECORDER_RATIO,
        ),
        Figure(
            "tracing-profile",
            "echo, in a profile to recorder off",
            "times",
            {"ratio": times["profile"] / times["off"]},
            most=MAX_PROFILE_RATIO,
        ),
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
    fewer = before.what_if(max_inflight=1).throughput or nothing
    return (
        Figure(
            "what-if",
            "executions per second, one stage twice as fast",
            "1/s",
            {
                "before": before.executions().throughput or 0.0,
                "predicted": predicted,
                "measured": measured,
                "predicted with 1 in flight": fewer,
            },
        ),
        Figure(
            "what-if-error",
            "what-if: error of the prediction",
            "%",
            {"error": abs(predicted / measured - 1) * 100},
            most=MAX_ERROR,
        ),
    )


def _pipelined(graph: Any, executions: int) -> None:
    """Run executions with a full window."""
    refs: deque[Any] = deque()
    for number in range(executions):
        refs.append(graph.execute(number))
        if len(refs) == IN_FLIGHT:
            rcg.get(refs.popleft())
    rcg.get(list(refs))
