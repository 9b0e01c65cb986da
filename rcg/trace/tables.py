# SPDX-License-Identifier: Apache-2.0
"""Long results as short tables: the head, the tail, and how many rows lie between.

This room must compute nothing but differences of times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from rcg.trace.text import columns, time_text

if TYPE_CHECKING:
    from rcg.trace.critical import Step
    from rcg.trace.executions import Execution, Executions

__all__ = ["EXECUTION_HEAD", "STEP_HEAD", "cut", "execution_row", "executions_text", "path_text"]

_ENDS: Final = 5
"""How many rows are shown at either end."""

_MOST_STEPS: Final = 30

EXECUTION_HEAD: Final = ("execution", "submitted at", "latency", "fetched after")
STEP_HEAD: Final = ("", "kind", "execution", "takes")

_Row = TypeVar("_Row")


def cut(rows: Sequence[_Row], gap: Callable[[int], _Row], most: int = 2 * _ENDS) -> list[_Row]:
    """Return all rows, or those at both ends and between them what says how many are not there."""
    if len(rows) <= most + 1:
        return list(rows)
    half = most // 2
    return [*rows[:half], gap(len(rows) - 2 * half), *rows[len(rows) - half :]]


def execution_row(execution: Execution) -> tuple[str, str, str, str]:
    """Return what a table says of an execution; its moments have the zero of the execution's."""
    completed, fetched = execution.completed_ns, execution.fetched_ns
    waited = None if fetched is None or completed is None else fetched - completed
    return (
        str(execution.index),
        time_text(execution.submitted_ns),
        time_text(execution.latency_ns),
        time_text(waited),
    )


def executions_text(executions: Executions) -> str:
    """Return the executions of a graph as text."""
    count, whole = len(executions), int(executions.is_complete.sum())
    head = f"{count:,} execution{'' if count == 1 else 's'}"
    if whole < count:
        head += f", {whole:,} of them whole"
    if not count:
        return head
    places = cut(range(count), lambda _: -1)
    rows = [
        ("...", "", "", "") if place < 0 else execution_row(executions[place]) for place in places
    ]
    note = "  submitted at: from the beginning of the trace on"
    return "\n".join([head, *columns([EXECUTION_HEAD, *rows], left=0), note])


def path_text(steps: Sequence[Step]) -> str:
    """Return a critical path as text."""
    if not steps:
        return "no path: the trace does not hold the execution from its submission to its end"
    total = steps[-1].end_ns - steps[0].start_ns
    count = f"{len(steps):,} step{'' if len(steps) == 1 else 's'}"
    rows = cut(
        [
            (step.text, step.kind.name.lower(), str(step.execution), time_text(step.duration_ns))
            for step in steps
        ],
        lambda left_out: (f"... {left_out:,} more steps", "", "", ""),
        _MOST_STEPS,
    )
    return "\n".join([f"{time_text(total)} in {count}", *columns([STEP_HEAD, *rows], left=2)])
