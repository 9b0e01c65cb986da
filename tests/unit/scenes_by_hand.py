# SPDX-License-Identifier: Apache-2.0
"""Scenes of records by hand and of small simulations, for approved texts and for every painter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from rcg.ir.ops import Call, Op
from rcg.ir.plan import Plan
from rcg.trace.measured import Measured
from rcg.trace.model import SPAN_BASE, GraphTrace, OpenOp, TensorTransfer
from rcg.trace.trace import Trace
from rcg.views.data.excerpts import excerpt_of
from rcg.views.scene import Scene
from rcg.views.scenes.heat import heat_scene, memory_scene, shares_scene
from rcg.views.scenes.pipeline import pipeline_scene
from rcg.views.scenes.references import references_scene
from rcg.views.scenes.schedule import predicted_scene, schedule_scene
from rcg.views.scenes.timeline import timeline_scene
from tests.unit.tensors_by_hand import tensor_trace
from tests.unit.trace_by_hand import (
    DRIVER_APART,
    END,
    LANES_ROWS,
    NODES,
    NODES_ROWS,
    WITH_LANES,
    by_hand,
)
from tests.unit.traces import changed, event, events, graph_trace, measure
from tests.unit.views_plans import Builder, scatter_gather
from tests.unit.views_traces import labelled, microbatches, pipeline, simulated, times

ROWS = {
    "driver": [event(1, 0, 0, 100, coded=40), event(3, 0, 100, 990, waited=800, peer=2)],
    "a0": [
        event(0, 0, 50, 140, waited=60, coded=10, bytes=64, peer=0),
        event(1, 0, 140, 500),
        event(SPAN_BASE, 0, 200, 300),
        event(3, 0, 500, 600, coded=30, bytes=900),
    ],
    "a1": [
        event(0, 0, 80, 660, waited=520, coded=20, bytes=900, peer=1),
        event(1, 0, 660, 800),
        event(3, 0, 800, 900, coded=10, waited=20, bytes=7, peer=0),
    ],
}
"""One execution of two stages, in 1000 ns."""


def whole(graph: GraphTrace, end: int) -> Scene:
    """The timeline of all of a record that begins at 0."""
    return timeline_scene(measure(graph, 0, end))


def spans() -> Scene:
    """Spans in spans, and two that overlap because a method's coroutines alternate."""
    rows = [
        event(1, 0, 0, 1000),
        event(SPAN_BASE, 0, 100, 900),
        event(SPAN_BASE + 1, 0, 200, 400),
        event(SPAN_BASE + 2, 0, 300, 500),
        event(SPAN_BASE + 1, 0, 600, 700),
    ]
    return whole(graph_trace({"a0": rows}, spans={"a0": ("all", "part", "aside")}), 1000)


def devices() -> Scene:
    kernels = [
        event(SPAN_BASE + 1, 0, 20, 95, peer=0),
        event(SPAN_BASE + 2, 0, 30, 40, peer=1),
        event(SPAN_BASE + 3, 0, 90, 200, peer=1),
    ]
    names = ("attention", "gemm", "ncclDevKernel_SendRecv", "Memcpy HtoD (Pinned -> Device)")
    graph = graph_trace({"a0": [event(1, 0, 10, 100)]}, spans={"a0": names})
    streams = ("GPU 0, stream 7", "GPU 0, stream 13")
    return whole(changed(graph, "a0", kernels=events(kernels), streams=streams), 150)


def queues() -> Scene:
    """Four executions are submitted at once: the queue of a0 is deep, that of a1 never is."""
    rows: dict[str, list[tuple[int, ...]]] = {"driver": [], "a0": [], "a1": []}
    for number in range(4):
        at = 20 + number * 100
        rows["driver"].append(event(1, number, number, number + 1, bytes=64))
        rows["a0"] += [event(0, number, at, at + 1), event(3, number, at + 80, at + 81)]
        rows["a1"].append(event(0, number, at + 100, at + 101))
    return whole(graph_trace(rows), 600)


def _hand_schedule(rows: dict[str, list[tuple[int, ...]]], end: int, **more: object) -> Scene:
    return schedule_scene(measure(graph_trace(rows, **more), 0, end))


def write_that_waits() -> Scene:
    """A Write encodes 8, waits 20 for room, and publishes 1."""
    rows: dict[str, list[tuple[int, ...]]] = {"driver": [], "a0": []}
    for number in range(2):
        at = number * 60
        rows["driver"].append(event(1, number, at, at + 1))
        rows["a0"] += [
            event(0, number, at + 1, at + 2),
            event(1, number, at + 2, at + 10),
            event(3, number, at + 10, at + 39, waited=20, coded=8, bytes=10**7, peer=0),
        ]
    return _hand_schedule(rows, 120)


def hang() -> Scene:
    rows = {
        "a0": [event(0, 0, 0, 10), event(1, 0, 10, 30), event(3, 0, 30, 40), event(0, 1, 40, 50)],
        "a1": [
            event(0, 0, 0, 50, waited=30, peer=1),
            event(1, 0, 50, 70),
            event(3, 0, 70, 80),
        ],
    }
    return _hand_schedule(rows, 1_000, opens={"a0": OpenOp(1, 1, 50)})


def _scheduled(trace: Trace, *, is_part: bool = True) -> Scene:
    (graph,) = trace.graphs
    return schedule_scene(Measured.of(trace, graph), is_part=is_part)


def training() -> Trace:
    """Three stages, forward and back."""
    return labelled(simulated(pipeline(3, is_training=True), 12, op_cost=times(140, 90), window=3))


def batches() -> Trace:
    """1F1B of three micro-batches."""
    return labelled(simulated(microbatches(2, 3), 3, window=2))


def slow_stage() -> Trace:
    """1F1B of four stages and eight micro-batches; a2 takes 1.5 times as long as the others."""

    def cost(op: Op) -> float:
        if not isinstance(op, Call):
            return 2e4
        return (1e7 if op.method == "bwd" else 5e6) * (1.5 if op.actor == "a2" else 1.0)

    return labelled(simulated(microbatches(), 3, op_cost=cost, window=1))


MS = 1_000_000


def steps(plan: Plan, executions: int = 3, window: int = 1, **slow: float) -> Trace:
    """A forward call takes 1 ms, a backward one 2 ms, of some actors so many times as long."""

    def cost(op: Op) -> float:
        if not isinstance(op, Call):
            return 0.0
        return (2 if op.method == "bwd" else 1) * MS * slow.get(op.actor, 1)

    return labelled(simulated(plan, executions, op_cost=cost, window=window))


def forward_only() -> Trace:
    """Three in flight: the first stage begins the next execution while the last one works."""
    build = Builder(keys=(0, 1))
    first = [build.call("a0", "fwd", value) for value in (0, 1)]
    plan = build.plan(*[build.call("a1", "fwd", value) for value in first])
    return steps(plan, executions=9, window=3)


def busy_elsewhere() -> Trace:
    """Each backward call of a1 waits for 1 of its 2, for a method that another graph has."""
    trace = steps(microbatches(2, 2))
    (graph,) = trace.graphs
    lane = graph.lane("a1")
    backward = [at for at, op in enumerate(graph.program(lane).ops) if op.title() == "bwd"]
    moved = lane.events.copy()
    moved["waited_ns"][np.isin(moved["op"], backward)] = MS
    return replace(trace, graphs=(changed(graph, "a1", events=moved),))


def pipelined(trace: Trace) -> Scene:
    """The pipeline of a trace of one graph."""
    (graph,) = trace.graphs
    scene = pipeline_scene(Measured.of(trace, graph))
    assert scene is not None
    return scene


def alike() -> Trace:
    """Nine workers, one of which is slow, and a reducer."""

    def cost(op: object) -> float:
        is_slow = getattr(op, "actor", "") == "a4"
        return (3e5 if is_slow else 1e5) if getattr(op, "is_call", False) else 1e3

    return labelled(simulated(scatter_gather(9), 3, op_cost=cost))


def _excerpt(trace: Trace) -> Scene:
    (graph,) = trace.graphs
    part = excerpt_of(Measured.of(trace, graph), most=1)
    return timeline_scene(Measured.of(trace, graph), part=part)


def references() -> Scene:
    maker, taker = "Actor(Maker, " + "a" * 32 + ")", "Actor(Taker, " + "b" * 32 + ")"
    one = TensorTransfer("k-1", maker, taker, "gloo", 1 << 20, 1_000, 500, 3_500, "")
    transfers = (
        one,
        replace(one, start_ns=1_200, end_ns=6_300, waited_ns=100),  # overlaps with the first
        replace(one, source=taker, target=maker, start_ns=2_000, end_ns=2_300, waited_ns=0),
        replace(one, start_ns=9_000, end_ns=9_700, waited_ns=700, error="it is gone", bytes=0),
    )
    found = references_scene(Trace((), 900, 20_000, {}, transfers))
    assert found is not None
    return found


def by_actor(make: Callable[[Measured], Scene]) -> Scene:
    """A scene of two stages in 1000 ns, so that a slice of the heat strip is 10 ns.

    a0 computes 145 to 500, and a1 660 to 798.
    """
    rows = {
        "driver": [
            event(1, 0, 0, 100, coded=40, bytes=64),
            event(3, 0, 100, 1000, waited=800, peer=2),
        ],
        "a0": [
            event(0, 0, 50, 145, waited=60, coded=10, bytes=64, peer=0),
            event(1, 0, 145, 500),
            event(3, 0, 500, 600, coded=30, bytes=900),
        ],
        "a1": [
            event(0, 0, 80, 660, waited=520, coded=20, bytes=900, peer=1),
            event(1, 0, 660, 798),
            event(3, 0, 800, 900, coded=10, waited=20, bytes=7, peer=0),
        ],
    }
    return make(measure(graph_trace(rows), 0, 1000))


def _of_trace(trace: Trace) -> Scene:
    return timeline_scene(Measured.of(trace, trace.graphs[0]))


SCENES: dict[str, Callable[[], Scene]] = {
    "timeline": lambda: whole(graph_trace(ROWS, spans={"a0": ("attention <b>",)}), 1000),
    "timeline-spans": spans,
    "timeline-devices": devices,
    "timeline-queues": queues,
    "timeline-nodes": lambda: whole(
        graph_trace(NODES_ROWS, plan=NODES, limit=4, opens={"n0": OpenOp(0, 1, 210, 210)}), 300
    ),
    "timeline-tensors": lambda: _of_trace(tensor_trace()),
    "timeline-lanes": lambda: whole(graph_trace(LANES_ROWS, plan=WITH_LANES), 80),
    "timeline-driver-apart": lambda: whole(by_hand(driver=DRIVER_APART), END),
    "timeline-cut": lambda: timeline_scene(measure(graph_trace(ROWS), 120, 700)),
    "timeline-unknown": lambda: whole(graph_trace({"a0": [event(99, 0, 0, 10)]}), 20),
    "timeline-excerpt": lambda: _excerpt(training()),
    "schedule": lambda: _scheduled(training()),
    "schedule-batches": lambda: _scheduled(batches()),
    "schedule-alike": lambda: _scheduled(alike()),
    "schedule-tensors": lambda: _scheduled(tensor_trace(), is_part=False),
    "schedule-write-that-waits": write_that_waits,
    "schedule-hang": hang,
    "schedule-nothing": lambda: _hand_schedule({}, 10),
    "pipeline": lambda: pipelined(slow_stage()),
    # Span 9: each of both works for 6 of it. That is the ideal as well.
    "pipeline-of-two": lambda: pipelined(steps(microbatches(2, 2))),
    # Span 15: a0 works for 6 of it, a1 for 12. The ideal takes the medians 1.5 and 3.
    "pipeline-slow": lambda: pipelined(steps(microbatches(2, 2), a1=2)),
    # Calls of other executions count as bubble.
    "pipeline-forward": lambda: pipelined(forward_only()),
    # a1 works for 4 of 9: a call that waits does not run meanwhile.
    "pipeline-busy-elsewhere": lambda: pipelined(busy_elsewhere()),
    "predicted": lambda: predicted_scene(pipeline(2), executions=2),
    "predicted-batches": lambda: predicted_scene(microbatches(2, 3), executions=1),
    "predicted-costs": lambda: predicted_scene(
        pipeline(2), executions=1, op_cost=lambda op: 3e6 if op.is_call else 1e3
    ),
    "references": references,
    "heat": lambda: by_actor(heat_scene),
    "shares": lambda: by_actor(shares_scene),
    "memory": lambda: by_actor(memory_scene),
}
"""Makers of scenes by name."""
