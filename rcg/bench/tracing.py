# SPDX-License-Identifier: Apache-2.0
"""The cost and the accuracy of tracing: recorder, profile, what-if, large traces.

An echo graph runs with its flight recorder off, on, and in a profile, in turns on one actor. The
prediction of a what-if is compared with a pipeline whose stage was made twice as fast. A trace of a
million events is analysed and turned into a page.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

import rcg
import rcg.dag
from rcg.bench.contestants import ACTOR_OPTIONS
from rcg.bench.measure import Pace, Turn, call_turn, take_rounds
from rcg.bench.record import Figure
from rcg.bench.statistics import median
from rcg.bench.workers import Worker
from rcg.ir.plan import Plan
from rcg.profiles import Profile
from rcg.trace.model import EVENT, NO_PEER, GraphTrace, LaneTrace
from rcg.trace.trace import Trace
from rcg.views.html.page import page_of

__rcg_user__ = True  # see rcg.frames

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
EVENTS = 1_000_000
MAX_ANALYSIS_S = 5.0
MAX_PAGE_MB = 5.0


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
    times = {name: median(sorted(found)) / 1e3 for name, found in samples.items()}
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


def measure_large_trace(
    events: int = EVENTS, clock: Callable[[], float] = time.perf_counter
) -> tuple[Figure, ...]:
    """Measure the analysis of a large trace, and making a page of it."""
    trace = large_trace(events)
    start = clock()
    summary = Profile(trace).summary
    text = str(summary)
    analysed = clock() - start
    start = clock()
    page = page_of(trace, "a million events")
    made = clock() - start
    return (
        Figure(
            "trace-analysis",
            f"trace of {trace.num_events / 1e6:.1f} million events: analysis",
            "s",
            {"summary": analysed},
            most=MAX_ANALYSIS_S,
        ),
        Figure(
            "trace-page",
            f"trace of {trace.num_events / 1e6:.1f} million events: page",
            "MB",
            {"HTML": len(page.encode()) / 1e6},
            most=MAX_PAGE_MB,
        ),
        Figure(
            "trace-time",
            "time to make the page; length of the summary",
            "s; lines",
            {"page": made, "summary": float(text.count("\n"))},
        ),
    )


def large_trace(events: int, actors: int = 8) -> Trace:
    """Return a synthetic trace of a chain of actors, with random jitter from a fixed seed."""
    chain = range(actors)
    lines = ["plan positional=1 keywords=[] returns=one"]
    lines += [f"actor a{i} 'Stage' ''" for i in chain]
    names = ["driver", *(f"a{i}" for i in chain), "driver"]
    lines += [
        f"channel c{i} {names[i]} -> {names[i + 1]} ring node={i} slots=16"
        for i in range(actors + 1)
    ]
    lines += ["program driver", "  Input * -> s0", "  Write s0 -> c0", "  Free s0"]
    lines += [f"  Read c{actors} -> s1", "  Output s1"]
    for i in chain:
        lines += [f"program a{i}", f"  Read c{i} -> s0", f"  Call a{i}.fwd(s0) -> s1 #{i + 1}"]
        lines += ["  Free s0", f"  Write s1 -> c{i + 1}", "  Free s1"]
    plan = Plan.from_text("\n".join(lines))
    count = events // (3 * actors + 2)
    rng = np.random.default_rng(0)
    period = 40_000
    submitted = np.arange(count) * period + rng.integers(0, 2_000, count)
    lanes = []
    arrived = submitted + 3_000
    driver = np.zeros(2 * count, EVENT)
    _fill(driver[0::2], 1, submitted, arrived)
    for i in chain:
        rows = np.zeros(3 * count, EVENT)
        called = arrived + 2_000
        written = called + 20_000 + rng.integers(0, 8_000, count)
        sent = written + 2_000
        begun = np.concatenate([[0], sent[:-1]])  # the next read begins where the write ended
        _fill(rows[0::3], 0, begun, called, waited=np.maximum(arrived - begun, 0), peer=i)
        _fill(rows[1::3], 1, called, written)
        _fill(rows[2::3], 3, written, sent)
        lanes.append(LaneTrace(f"a{i}", plan.label(f"a{i}"), rows))
        arrived = sent
    _fill(driver[1::2], 3, arrived, arrived + 1_000)
    driver.sort(order="start_ns")
    all_lanes = (LaneTrace("driver", "driver", driver), *lanes)
    graph = GraphTrace("f" * 32, plan, all_lanes, 16)
    return Trace((graph,), 0, int(arrived[-1]) + 1_000, {"host": "made up"})


def _fill(
    rows: Any, op: int, start: Any, end: Any, *, waited: Any = 0, peer: int = NO_PEER
) -> None:
    rows["op"], rows["execution"] = op, np.arange(len(rows))
    rows["start_ns"], rows["end_ns"] = start, end
    rows["waited_ns"], rows["bytes"], rows["peer"] = waited, 4096, peer
