# SPDX-License-Identifier: Apache-2.0
"""How much a graph has done and holds: plain numbers, read from shared memory in microseconds.

Those of other nodes are asked for, in a fraction of a millisecond.
"""

from __future__ import annotations

from dataclasses import dataclass

from rcg.runtime.observe.report import Activity
from rcg.text import bytes_text, table


@dataclass(frozen=True, slots=True)
class ProcessStatistics:
    """What one process of a graph has done so far.

    Attributes:
        process: Its name in the plan.
        label: Its displayed name: ``a0 (Stage)``.
        pid: Its process id; 0 before it has started.
        execution: Index of the execution it was in last.
        waits: How often it had to wait, for input or for room.
        waited_s: Seconds it spent waiting.
        shared_bytes: Shared memory that its arena takes.
    """

    process: str
    label: str
    pid: int
    execution: int
    waits: int
    waited_s: float
    shared_bytes: int

    @classmethod
    def of(cls, activity: Activity) -> ProcessStatistics:
        """Return the numbers of what a process does."""
        return cls(
            activity.process,
            activity.label,
            activity.pid,
            activity.execution,
            activity.waits,
            activity.waited_s,
            activity.shared_bytes,
        )


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a compiled graph has done so far and holds now; prints as text.

    Attributes:
        executions: Executions that were submitted.
        completed: Of these, those whose every output has arrived here.
        in_flight: Executions that were submitted and not completed.
        buffered: Completed executions with results that were neither fetched nor dropped.
        failures_dropped: Failures whose refs were dropped unread.
        limit: Executions that may be in flight at once.
        used_bytes: Shared memory that the graph's values take, including free blocks.
        cap_bytes: Shared memory that they may take.
        stashes: Values that passed through a process's heap, because there was no shared memory.
        processes: Each process of the graph, the driver first.
    """

    executions: int
    completed: int
    in_flight: int
    buffered: int
    failures_dropped: int
    limit: int
    used_bytes: int
    cap_bytes: int
    stashes: int
    processes: tuple[ProcessStatistics, ...]

    def __str__(self) -> str:
        plural = "s" if self.executions != 1 else ""
        lines = [
            f"{self.executions} execution{plural}, {self.completed} completed, {self.in_flight} of "
            f"{self.limit} in flight, {self.buffered} buffered; {bytes_text(self.used_bytes)} of "
            f"{bytes_text(self.cap_bytes)} shared memory"
            + (f", {self.stashes} values passed on without any" if self.stashes else ""),
            *table(
                ("process", "pid", "execution", "waits", "waited", "memory"),
                [
                    (
                        each.label,
                        str(each.pid or "-"),
                        str(each.execution),
                        str(each.waits),
                        f"{each.waited_s:.3g} s",
                        bytes_text(each.shared_bytes),
                    )
                    for each in self.processes
                ],
            ),
        ]
        return "\n".join(lines)
