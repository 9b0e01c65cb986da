# SPDX-License-Identifier: Apache-2.0
"""Finds the cause of a hang in a report, and describes it in a sentence.

A graph hangs if a process has been in one op for much longer than the time between completions.
Which processes wait for it is determined as in ``rcg.trace.analysis.ops``, which is for traces:
waiting is transitive, and an actor that waits for an input has nothing to do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rcg.runtime.observe.activity import Activity
from rcg.text import IN_LINE, brief, time_text
from rcg.trace.analysis.ops import waits_for

__all__ = ["STUCK_AFTER_S", "OpTimeout", "Trouble", "call_of", "trouble_of", "waits_of"]

STUCK_AFTER_S: Final = 5.0
"""A graph hangs if an op takes longer than this, and ``_LONGER`` times what is usual."""

_LONGER: Final = 5  # times the longest time between completions
_CALL: Final = re.compile(r"Call a\d+\.(.+?)\(")


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a graph hangs.

    Attributes:
        text: On which op, for how long, and how many processes wait for it.
        labels: The processes that hold up the others, that of the text first.
    """

    text: str
    labels: tuple[str, ...]


class OpTimeout:
    """The time after which an op counts as hanging: several times that between completions.

    Args:
        least_s: The least time, in seconds.
    """

    def __init__(self, least_s: float = STUCK_AFTER_S) -> None:
        self._least_s = least_s
        self._completed = -1
        self._since_s = 0.0
        self._longest_s = 0.0

    def update(self, now_s: float, completed: int, in_flight: float) -> float:
        """Note the number of completed executions; return the timeout in seconds."""
        if completed != self._completed or not in_flight:
            if self._completed >= 0 and completed != self._completed:
                self._longest_s = max(self._longest_s, now_s - self._since_s)
            self._completed, self._since_s = completed, now_s
        return max(self._least_s, _LONGER * self._longest_s)


def trouble_of(processes: Sequence[Activity], timeout_s: float) -> Trouble | None:
    """Return on which op a graph hangs, or None if it does not hang.

    Args:
        processes: ``Report.processes``, the driver first.
        timeout_s: The time that an op may take.
    """
    late = [each for each in processes[1:] if each.state == "running" and each.for_s > timeout_s]
    if not late:
        return None
    waits = waits_of(processes)
    held = {label: waits_for(waits, label) for label in waits}
    counts = {each.label: sum(each.label in wanted for wanted in held.values()) for each in late}
    late.sort(key=lambda each: (counts[each.label], each.for_s), reverse=True)
    first, count = late[0], counts[late[0].label]
    waiting = f"{count or 'no'} process{'es wait' if count > 1 else ' waits'} for it"
    waiting += "" if count else " yet"
    name = f"{first.label}.{call_of(first.op)}" if call_of(first.op) else None
    return Trouble(
        f"{brief(name or f'{first.label} {first.op}', IN_LINE)} has not ended for "
        f"{time_text(first.for_s * 1e9)} (execution {first.execution}): {waiting}",
        tuple(each.label for each in late if counts[each.label] == count),
    )


def call_of(op: str) -> str:
    """Return the method that an op calls, or "".

    >>> call_of("Call a1.count(s0) -> s1 #2"), call_of("Read c2 -> s0")
    ('count', '')
    """
    found = _CALL.match(op)
    return found[1] if found else ""


def waits_of(processes: Sequence[Activity]) -> Mapping[str, tuple[str, ...]]:
    """Return the labels of those that each waiting process waits for, without the driver.

    An actor that waits for the driver has nothing to do.
    """
    labels = [each.label for each in processes[1:]]
    return {
        each.label: tuple(label for label in labels if label in each.waiting_for.split(", "))
        for each in processes
        if each.state == "waiting"
    }
