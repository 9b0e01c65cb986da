# SPDX-License-Identifier: Apache-2.0
"""Traces of graphs that never ran, of any size: what the compiler's simulation predicts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rcg.compiler.simulate import simulate
from rcg.ir.ids import DRIVER
from rcg.ir.ops import Call, Op, Read, Write
from rcg.ir.plan import Plan
from rcg.trace.model import EVENT, NO_PEER, SPAN_BASE, GraphTrace, LaneTrace
from rcg.trace.trace import Trace
from tests.unit.views_plans import Builder

MEGABYTE = 1_000_000


def pipeline(stages: int) -> Plan:
    """A chain of stages, and back."""
    build = Builder()
    value = 0
    for stage in range(stages):
        value = build.call(f"a{stage}", "forward", value, label=f"Stage{stage}")
    for stage in reversed(range(stages)):
        value = build.call(f"a{stage}", "backward", value)
    return build.plan(value)


def cost_ns(op: Op) -> float:
    match op:
        case Call(method="backward"):
            return 210_000.0
        case Call():
            return 140_000.0
        case Write():
            return 90_000.0
        case Read():
            return 4_000.0
        case _:
            return 300.0


def trace_of(plan: Plan, executions: int, *, window: int = 8, seed: int = 5) -> Trace:
    """A trace of so many executions, a little uneven, with a span in every fourth call."""
    timeline = simulate(plan, cost_ns, executions, window=window).timeline
    random = np.random.default_rng(seed)
    by_process: dict[str, list[tuple[float, float, int, int]]] = {}
    for span in timeline:
        by_process.setdefault(span.process, []).append(
            (span.start, span.end, span.execution, span.op)
        )
    peers = _peers(plan)
    lanes = []
    for program in plan.programs:
        rows = np.array(sorted(by_process[program.process]))
        start, end = rows[:, 0], rows[:, 1]
        events = np.zeros(len(rows), EVENT)
        before = start if program.process == DRIVER else np.concatenate([[0.0], end[:-1]])
        # Each predicted op gets longer by up to a tenth of its work.
        events["start_ns"], events["end_ns"] = before, end
        work = (end - start) * random.uniform(0.9, 1.0, len(rows))
        events["waited_ns"] = np.where(
            [not isinstance(program.ops[int(op)], Call) for op in rows[:, 3]],
            np.maximum(end - before - work, 0),
            0,
        )
        events["execution"], events["op"] = rows[:, 2], rows[:, 3]
        is_moving = np.array([isinstance(op, Read | Write) for op in program.ops])
        events["bytes"] = np.where(is_moving[events["op"]], 3 * MEGABYTE, 0)
        events["coded_ns"] = np.where(is_moving[events["op"]], work * 0.3, 0)
        events["peer"] = [peers.get((program.process, int(op)), NO_PEER) for op in rows[:, 3]]
        calls = np.flatnonzero([isinstance(program.ops[int(op)], Call) for op in rows[:, 3]])[::4]
        spans = events[calls].copy()
        length = spans["end_ns"] - spans["start_ns"]
        spans["start_ns"] += length // 5
        spans["end_ns"] -= length // 3
        spans["op"], spans["waited_ns"], spans["bytes"] = SPAN_BASE, 0, 0
        spans["peer"] = NO_PEER
        together = np.concatenate([events, spans])
        together = together[np.argsort(together["start_ns"], kind="stable")]
        label = plan.label(program.process)
        lanes.append(LaneTrace(program.process, label, together, ("attention",), node="10.0.0.1"))
    ending = max(int(lane.events["end_ns"].max()) for lane in lanes if len(lane.events))
    return Trace((GraphTrace("5f1c" * 8, plan, tuple(lanes), window),), 0, ending)


def _peers(plan: Plan) -> Mapping[tuple[str, int], int]:
    numbers = {program.process: number for number, program in enumerate(plan.programs)}
    channels = plan.channels_by_id()
    found = {}
    for program in plan.programs:
        for at, op in enumerate(program.ops):
            if isinstance(op, Read):
                found[program.process, at] = numbers[channels[op.channel].writer]
            elif isinstance(op, Write):
                found[program.process, at] = numbers[channels[op.channel].readers[0]]
    return found
