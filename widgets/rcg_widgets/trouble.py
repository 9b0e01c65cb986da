# SPDX-License-Identifier: Apache-2.0
"""Finds the cause of a hang in a report, and describes it in a sentence.

A graph hangs if a process has been in one op for much longer than the time between completions.
Which processes wait for it is determined as in ``rcg.trace.analysis.ops``, which is for traces:
waiting is transitive, and an actor that waits for an input has nothing to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from rcg.text import IN_LINE, brief, time_text
from rcg.trace.analysis.ops import waits_for

__all__ = ["OpTimeout", "trouble_of"]

_MIN_TIMEOUT_S: Final = 1.0
_LONGER: Final = 5  # times the longest time between completions
_CALL: Final = re.compile(r"Call a\d+\.(.+?)\(")


class OpTimeout:
    """The time after which an op counts as hanging: several times that between completions."""

    def __init__(self) -> None:
        self._completed = -1
        self._since_s = 0.0
        self._longest_s = 0.0

    def update(self, now_s: float, completed: int, in_flight: float) -> float:
        """Note the number of completed executions; return the timeout in seconds."""
        if completed != self._completed or not in_flight:
            if self._completed >= 0 and completed != self._completed:
                self._longest_s = max(self._longest_s, now_s - self._since_s)
            self._completed, self._since_s = completed, now_s
        return max(_MIN_TIMEOUT_S, _LONGER * self._longest_s)


def trouble_of(processes: Sequence[Any], timeout_s: float) -> str:
    """Return on which op a graph hangs, for how long, and how many wait; "" if it does not hang.

    Args:
        processes: ``Report.processes``, the driver first.
        timeout_s: The time that an op may take.
    """
    actors = processes[1:]
    late = [
        each
        for each in actors
        if _of(each, "state") == "running" and float(_of(each, "for_s") or 0) > timeout_s
    ]
    if not late:
        return ""
    labels = [str(_of(each, "label")) for each in processes]
    waits = {
        label: _waited_for(each, labels)
        for label, each in zip(labels, processes, strict=True)
        if _of(each, "state") == "waiting"
    }
    counts = {
        id(each): sum(str(_of(each, "label")) in waits_for(waits, label) for label in waits)
        for each in late
    }
    first = max(late, key=lambda each: (counts[id(each)], float(_of(each, "for_s"))))
    count = counts[id(first)]
    waiting = f"{count or 'no'} process{'es wait' if count > 1 else ' waits'} for it"
    waiting += "" if count else " yet"
    return (
        f"{_name(first)} has not ended for {time_text(float(first.for_s) * 1e9)} "
        f"(execution {_of(first, 'execution')}): {waiting}"
    )


def _of(activity: Any, name: str) -> Any:
    return getattr(activity, name, "")


def _name(activity: Any) -> str:
    op = str(_of(activity, "op"))
    call = _CALL.match(op)
    what = f".{call[1]}" if call else f" {op}"
    return brief(f"{_of(activity, 'label')}{what}", IN_LINE)


def _waited_for(activity: Any, labels: Iterable[str]) -> tuple[str, ...]:
    names = str(_of(activity, "waiting_for")).split(", ")
    # An actor that waits for the driver has nothing to do.
    return tuple(label for label in labels if label in names and label != "driver")
