# SPDX-License-Identifier: Apache-2.0
"""Who does what, since when, and who waits for whom: the flight recorder as text.

Read from shared memory, so it answers for processes that are stuck or dead.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from rcg import _native
from rcg.channels.segments import Layout
from rcg.plan import DRIVER, Plan

__all__ = ["Activity", "activities", "format_activities"]

_STATES: Final = {
    _native.NOW_IDLE: "idle",
    _native.NOW_RUNNING: "running",
    _native.NOW_WAITING: "waiting",
}


@dataclass(frozen=True, slots=True)
class Activity:
    """What one process of a graph does now.

    Attributes:
        process: Its name in the plan.
        label: Its name for people.
        pid: Its process id.
        state: "running", "waiting" or "idle" (the driver, between calls).
        op: The op it is in, or was in last, as text; "-" before the first.
        execution: Index of the execution.
        for_s: Seconds since the op began; since it ended, when idle.
        waiting_for: The process that has to act first, or None.
    """

    process: str
    label: str
    pid: int
    state: str
    op: str
    execution: int
    for_s: float
    waiting_for: str | None


def activities(member: _native.Member, plan: Plan, layout: Layout) -> list[Activity]:
    """Return what every process of the graph does, from their recorders."""
    channels = {number: name for name, number in layout.rings.items()}
    specs = plan.channels_by_id()
    found = []
    for process, number in layout.members.items():
        pid, op, execution, since_ns, state, ring, _ = member.now(number)
        ops = plan.program(process).ops
        waiting_for = None
        if process == DRIVER and ring not in channels:
            state = (
                _native.NOW_IDLE
            )  # the thread that serves asyncio waits for nothing in particular
        if state == _native.NOW_WAITING and ring in channels:
            spec = specs[channels[ring]]
            waiting_for = spec.writer if spec.writer != process else ", ".join(spec.readers)
        found.append(
            Activity(
                process,
                plan.label(process),
                pid,
                _STATES[state],
                str(ops[op]) if since_ns and op < len(ops) else "-",
                execution,
                (time.monotonic_ns() - since_ns) / 1e9 if since_ns else 0.0,
                waiting_for and ", ".join(map(plan.label, waiting_for.split(", "))),
            )
        )
    return found


def format_activities(found: list[Activity]) -> str:
    """Return a table of what every process does."""
    head = ("process", "pid", "state", "op", "execution", "since", "waiting for")
    rows = [
        (
            activity.label,
            str(activity.pid or "-"),
            activity.state,
            activity.op,
            str(activity.execution),
            f"{activity.for_s:.3g} s",
            activity.waiting_for or "",
        )
        for activity in found
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    )
    return "\n".join(lines)
