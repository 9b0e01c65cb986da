# SPDX-License-Identifier: Apache-2.0
"""A running graph at one moment, and since the moment before: rates, shares, and a row per actor.

A ``Meter`` makes ``Sample``s of reports. The monitor in a notebook and ``rcg top`` draw them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import isfinite, nan
from typing import Final

from rcg.ir.ids import DRIVER
from rcg.ir.phrases import IN
from rcg.runtime.observe.activity import (
    LOST,
    STUCK_AFTER_S,
    Activity,
    by_label,
    ends_of,
)
from rcg.runtime.observe.report import Report
from rcg.text import ACTOR, count_text, time_text

__all__ = ["FIGURES", "STUCK_AFTER_S", "Meter", "OpTimeout", "Row", "Sample", "folded"]

_LONGER: Final = 5  # times the longest time between completions

FIGURES: Final = ("throughput", "in_flight", "queued", "waiting", "memory")
"""The figures of a sample that are drawn over time, and whose maximum is kept."""

_FEW: Final = 8  # so many actors have a row each, whatever they do
_ALIKE: Final = 3  # rows that are folded
_OVER: Final = ("ended", *LOST)


@dataclass(frozen=True, slots=True)
class Row:
    """What the driver or one actor does, its lanes included, or several actors that are alike.

    Attributes:
        label: Its displayed name: ``a0 (Stage)``; of several ``a12 to a37 (Stage)``.
        state: "running", "waiting", "gave up" (the driver, see ``Activity``), "ready" (there is
            nothing to do), "stuck" (the graph hangs there), "ended", or one of ``LOST``.
        busy: Share of the time since the previous sample, 0 to 1, that it did not wait. None if it
            is not known.
        queued: Frames that wait in the channels that it reads.
        slots: How many frames may be there; 0 if nothing waits.
        doing: Its method and execution, or what it waits for.
        memory: Shared memory that its values take, in bytes.
        count: How many actors it stands for.
    """

    label: str
    state: str
    busy: float | None
    queued: int
    slots: int
    doing: str
    memory: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample. A number that is not known is NaN.

    Attributes:
        time_s: When, on the clock of whoever samples.
        throughput: Executions completed per second since the previous sample.
        in_flight: Executions in flight.
        queued: Frames that were written and not yet read.
        waiting: Share of the actors' time, 0 to 1, that they waited since the previous sample; not
            known while there is nothing for them to do.
        memory: Shared memory that the graph's values take, in bytes.
        limit: Limit of executions in flight; 0 if it is not known.
        cap: Shared memory that values may take, in bytes; 0 if it is not known.
        completed: Number of completed executions; 0 if it is not known.
        state: ``running``, or why the samples have ended: ``closed``, ``broken``, ``ended``,
            ``gone``.
        verdict: What holds the graph up if it hangs, or "".
        rows: The driver and the actors, in their order; alike ones are one row if the graph hangs
            or is idle.
        most: The largest value of each of ``FIGURES`` that was known so far.
    """

    time_s: float
    throughput: float = nan
    in_flight: float = nan
    queued: float = nan
    waiting: float = nan
    memory: float = nan
    limit: int = 0
    cap: int = 0
    completed: int = 0
    state: str = "running"
    verdict: str = ""
    rows: tuple[Row, ...] = ()
    most: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_last(self) -> bool:
        """Whether the graph has ended."""
        return self.state != "running"


class Rates:
    """The growth of sums per second since the previous time."""

    def __init__(self) -> None:
        self._before: tuple[float, Mapping[str, float]] | None = None

    def update(self, now_s: float, sums: Mapping[str, float]) -> dict[str, float]:
        """Return the growth of each sum; nothing the first time."""
        before, self._before = self._before, (now_s, sums)
        if before is None or now_s <= before[0]:
            return {}
        passed_s = now_s - before[0]
        grown = {name: sums[name] - before[1][name] for name in sums if name in before[1]}
        return {name: max(0.0, each) / passed_s for name, each in grown.items() if isfinite(each)}


class Most:
    """The largest value so far of each figure of samples."""

    def __init__(self) -> None:
        self._most: dict[str, float] = {}

    def update(self, sample: Sample) -> Sample:
        """Return the sample with these values in it."""
        for name in FIGURES:
            value = float(getattr(sample, name))
            if isfinite(value):
                self._most[name] = max(value, self._most.get(name, value))
        return replace(sample, most=dict(self._most))


class OpTimeout:
    """The time after which an op counts as hanging: several times that between completions."""

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


class Meter:
    """Makes samples of the reports of one graph.

    Args:
        stuck_after_s: An op that takes longer, and much longer than the executions so far, is where
            the graph hangs. In seconds.
    """

    def __init__(self, stuck_after_s: float = STUCK_AFTER_S) -> None:
        self._timeout = OpTimeout(stuck_after_s)
        self._rates, self._most = Rates(), Most()

    def take(self, now_s: float, report: Report) -> Sample:
        """Return a sample.

        Args:
            now_s: The time on a monotonic clock.
            report: ``graph.report(timeout=0)`` of that moment.
        """
        actors = report.processes[1:]
        # The current wait counts from the beginning of the op.
        waited = {
            each.process: each.waited_s + (each.for_s if each.state == "waiting" else 0.0)
            for each in actors
        }
        rates = self._rates.update(now_s, {"completed": report.completed, **waited})
        timeout_s = self._timeout.update(now_s, report.completed, report.in_flight)
        is_stuck = report.in_flight and any(
            each.state == "running" and each.for_s > timeout_s for each in actors
        )
        verdict = report.verdict if is_stuck else None
        has_work = bool(report.in_flight or rates.get("completed"))
        shares = {each: min(rates[each], 1.0) for each in waited if each in rates}
        stuck = verdict.causes if verdict else ()
        rows = _rows(report, shares, stuck, has_work=has_work)
        waiting = sum(shares.values()) / len(shares) if shares and has_work else nan
        return self._most.update(
            Sample(
                now_s,
                throughput=rates.get("completed", nan),
                in_flight=float(report.in_flight),
                queued=float(sum(each.queued for each in rows)),
                waiting=waiting,
                memory=float(report.used_bytes),
                limit=report.limit,
                cap=report.cap_bytes,
                completed=report.completed,
                state=report.state,
                verdict=str(verdict or ""),
                rows=folded(rows) if verdict or not has_work else rows,
            )
        )


def _rows(
    report: Report, waited: Mapping[str, float], stuck: Sequence[str], *, has_work: bool
) -> tuple[Row, ...]:
    """Return a row for the driver, for each actor, and for a gate while values wait for it.

    So their queues add up to all values that wait.

    Args:
        report: What all processes do.
        waited: The share of the time that each process waited, if that is known.
        stuck: Labels of the processes on which the graph hangs.
        has_work: Whether there is something to do.
    """
    together: dict[str, list[Activity]] = {}  # actors, each with its lanes
    for each in report.processes:
        together.setdefault(each.process.partition(".")[0], []).append(each)
    known = by_label(report.processes)
    found = []
    for name, members in together.items():
        queued, slots = report.queue_of({each.label for each in members})
        if not (queued or name == DRIVER or ACTOR.fullmatch(name)):
            continue
        # A lane stands for its actor where the graph hangs in it.
        shown = next((each for each in members if each.label in stuck), members[0])
        process, is_over = members[0].process, members[0].state in _OVER
        state = _state_of(shown, stuck, has_work=has_work)
        ends = ends_of(shown, known)
        roots = [label for label in stuck if label in ends]
        found.append(
            Row(
                label=members[0].label,
                state=state,
                busy=None if is_over or process not in waited else 1 - waited[process],
                queued=queued,
                slots=slots,
                doing=_doing(shown, state, roots),
                memory=sum(each.shared_bytes for each in members),
            )
        )
    return tuple(found)


def _state_of(activity: Activity, stuck: Sequence[str], *, has_work: bool) -> str:
    if activity.state in _OVER:
        return activity.state
    if activity.label in stuck:
        return "stuck"
    return activity.state if has_work and activity.state != "idle" else "ready"


def _doing(activity: Activity, state: str, roots: Sequence[str]) -> str:
    method = activity.kind.removeprefix(IN)
    match state:
        case "stuck":
            for_text = time_text(activity.for_s * 1e9)
            return f"{method} for {for_text}, execution {count_text(activity.execution)}"
        case "waiting" | "gave up":
            wanted = roots or activity.waiting_for.split(", ")
            names = ", ".join(label.partition(" ")[0] for label in wanted)
            names = re.sub(r"\bdriver$", "the driver", names)
            return f"waits for {names}" if names else "waits"
        case "running":
            return f"{method}, execution {count_text(activity.execution)}"
    how = LOST.get(state)
    return f"{how} in {method}, execution {count_text(activity.execution)}" if how else ""


def folded(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return rows, of many actors with neighbours that are alike and do not run as one row."""
    if len(rows) <= _FEW:
        return tuple(rows)
    found: list[Row] = []
    for key, group in groupby(rows, _likeness):
        alike = list(group)
        if len(alike) < _ALIKE or key[0] in ("running", "stuck", *LOST):
            found += alike
            continue
        first, last = alike[0], alike[-1]
        busy = [each.busy for each in alike if each.busy is not None]
        found.append(
            replace(
                first,
                label=f"{first.label.partition(' ')[0]} to {last.label}",
                busy=sum(busy) / len(busy) if busy else None,
                queued=sum(each.queued for each in alike),
                slots=sum(each.slots for each in alike),
                memory=sum(each.memory for each in alike),
                count=len(alike),
            )
        )
    return tuple(found)


def _likeness(row: Row) -> tuple[str, ...]:
    return row.state, row.label.partition(" ")[2], row.doing
