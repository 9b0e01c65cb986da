# SPDX-License-Identifier: Apache-2.0
"""Checks whether the parts of a loaded trace could have been recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from rcg.compiler.simulate import check_deadlock_free
from rcg.ir.plan import Plan
from rcg.ir.programs import Program
from rcg.trace.model import NO_PEER, SPAN_BASE, LaneTrace

MAX_PROCESSES: Final = 1_000

MAX_NS: Final = 1 << 60
"""The largest time before or after zero: 36 years. The difference of two times fits 64 bits."""

MAX_COUNT: Final = 1 << 53
"""The most executions and lost events: integers up to here are exact as doubles."""

_MAX_SUM: Final = 1 << 62
"""The most that the figures of a graph's events may add up to."""

_MAX_OPS: Final = 60_000  # of a process


def check_plan(plan: Plan) -> None:
    """Check that the compiler could have made a plan.

    Raises:
        ValueError, InternalError, DeadlockError: The plan is refused.
    """
    if len(plan.programs) > MAX_PROCESSES:
        raise ValueError(f"the plan has {len(plan.programs):,} processes")
    for program in plan.programs:
        if len(program.ops) > _MAX_OPS:
            raise ValueError(f"{program.process} has {len(program.ops):,} ops")
    plan.check()
    for program in plan.programs:
        made = {
            slot
            for op in program.ops
            if not op.values_in and not op.is_holding
            for slot in op.made()
        }
        for op in program.ops:
            if op.values_out and not made.issuperset(op.used()):
                raise ValueError(f"{program.process} writes a value that it does not have: {op}")
    check_deadlock_free(plan)


def check_events(lane: LaneTrace, program: Program) -> None:
    """Check each event of a lane on its own."""
    events = lane.events
    if not len(events):
        return
    op = events["op"]
    is_known = np.where(op < SPAN_BASE, op < len(program.ops), op - SPAN_BASE < len(lane.spans))
    start, end = events["start_ns"], events["end_ns"]
    rules = {
        "is of an op or a span that is not there": is_known,
        "has times that no clock shows": (start >= -MAX_NS) & (end <= MAX_NS),
        "ends before it begins": start <= end,
        "waited, encoded or moved less than nothing": (events["waited_ns"] >= 0)
        & (events["coded_ns"] >= 0)
        & (events["bytes"] >= 0),
        "is of an execution that cannot be": (events["execution"] >= 0)
        & (events["execution"] <= MAX_COUNT),
    }
    for what, holds in rules.items():
        if not holds.all():
            raise ValueError(f"event {int(np.argmin(holds)):,} of {lane.process} {what}")


def check_peers(lane: LaneTrace, count: int) -> None:
    """Check that events waited for existing processes."""
    peers = [lane.events["peer"]]
    peers += [] if lane.open is None else [np.array([lane.open.peer])]
    for each in peers:
        if not ((each < count) | (each == NO_PEER)).all():
            raise ValueError(f"an event of {lane.process} waited for a process that is not there")


def check_sums(lanes: tuple[LaneTrace, ...]) -> None:
    """Check that the figures of all events can be added in 64 bits."""
    sums: Mapping[str, float] = {
        name: sum(float(lane.events[name].astype(np.float64).sum()) for lane in lanes)
        for name in ("waited_ns", "coded_ns", "bytes")
    }
    lasted = sum(
        float((lane.events["end_ns"] - lane.events["start_ns"]).astype(np.float64).sum())
        for lane in lanes
    )
    for name, total in (*sums.items(), ("durations", lasted)):
        if total > _MAX_SUM:
            raise ValueError(f"the {name} of all events add up to more than 64 bits hold")
