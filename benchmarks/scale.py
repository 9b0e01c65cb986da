# SPDX-License-Identifier: Apache-2.0
"""What is large: planning graphs of 10,000 nodes, analysing a trace of a million events.

Both are made up and pure: nothing runs on Ray.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from rcg.bench.record import Figure
from rcg.compiler.place import place
from rcg.compiler.schedule import schedule
from rcg.compiler.simulate import simulate
from rcg.ir.channels import ActorSpec
from rcg.ir.graph import Graph
from rcg.ir.nodes import ConstArg, InputValue, MethodCall, NodeArg, Site
from rcg.ir.plan import Plan
from rcg.profiling import Profile
from rcg.trace.model import EVENT, NO_PEER, GraphTrace, LaneTrace
from rcg.trace.trace import Trace
from rcg.views.html.page import page_of

MAX_PLANNING_S = 2.0
PLANNED_NODES = (2_500, 5_000, 10_000)
EVENTS = 1_000_000
MAX_ANALYSIS_S = 5.0
MAX_PAGE_MB = 5.0


def measure_planning() -> tuple[Figure, ...]:
    """Measure place, schedule and simulate on graphs of growing size."""
    seconds = {}
    for nodes in PLANNED_NODES:
        graph = layered_graph(nodes)
        start = time.perf_counter()
        locations = {actor.id: "node" for actor in graph.actors}
        simulate(schedule(place(graph, locations, "node", channel_slots=16)))
        seconds[f"{nodes:,} nodes"] = time.perf_counter() - start
    return (Figure("planning", "place, schedule and simulate", "s", seconds, MAX_PLANNING_S),)


def layered_graph(nodes: int) -> Graph:
    """Return a graph of `nodes` calls of 16 actors in layers. A call takes two values of the last.

    These are the value of its own actor and that of the next one, so every layer crosses processes.
    """
    site, actors = Site(__file__, 0), 16
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


def measure_large_trace() -> tuple[Figure, ...]:
    """Measure the analysis of a large trace, and making a page of it."""
    trace = large_trace()
    start = time.perf_counter()
    text = str(Profile(trace).summary)
    analysed = {"summary": time.perf_counter() - start}
    start = time.perf_counter()
    page = page_of(trace, "a million events")
    made = {"page": time.perf_counter() - start, "summary": float(text.count("\n"))}
    size = {"HTML": len(page.encode()) / 1e6}
    title = f"trace of {trace.num_events / 1e6:.1f} million events"
    return (
        Figure("trace-analysis", f"{title}: analysis", "s", analysed, MAX_ANALYSIS_S),
        Figure("trace-page", f"{title}: page", "MB", size, MAX_PAGE_MB),
        Figure("trace-time", "time to make the page; length of the summary", "s; lines", made),
    )


def large_trace() -> Trace:
    """Return a synthetic trace of a chain of 8 actors, with random jitter from a fixed seed."""
    actors = 8
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
    count = EVENTS // (3 * actors + 2)
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
