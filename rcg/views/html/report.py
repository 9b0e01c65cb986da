# SPDX-License-Identifier: Apache-2.0
"""The report as a table: what each process does, since when, and which process it waits for.

Processes that hold up others are marked and show their line of source. A process holds up others if
it died, or if it has been in its op for a while without waiting and others wait for it, directly or
through others. This file must not know where a report comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from rcg.text import bytes_text, count_text, time_text
from rcg.views.html.elements import Cell, card, escaped, table, themed

_LONG_S: Final = 1.0
"""A process that others wait for is called stuck after this time."""

_STATES: Final = {
    "running": ("\N{BLACK CIRCLE}", "rcg-good"),
    "waiting": ("\N{WHITE CIRCLE}", "rcg-slow"),
    "stuck": ("\N{BLACK UP-POINTING TRIANGLE}", "rcg-bad"),
    "dead": ("\N{MULTIPLICATION X}", "rcg-bad"),
    "idle": ("\N{EN DASH}", "rcg-dim"),
    "ended": ("\N{EN DASH}", "rcg-dim"),
}


class ActivityData(Protocol):
    """What one process does (``rcg.runtime.observe.report.Activity``)."""

    @property
    def label(self) -> str: ...  # noqa: D102
    @property
    def pid(self) -> int: ...  # noqa: D102
    @property
    def state(self) -> str: ...  # noqa: D102
    @property
    def op(self) -> str: ...  # noqa: D102
    @property
    def execution(self) -> int: ...  # noqa: D102
    @property
    def for_s(self) -> float: ...  # noqa: D102
    @property
    def waiting_for(self) -> str: ...  # noqa: D102
    @property
    def waiting_text(self) -> str: ...  # noqa: D102
    @property
    def shared_bytes(self) -> int: ...  # noqa: D102
    @property
    def stack(self) -> tuple[str, ...] | None: ...  # noqa: D102


class BacklogData(Protocol):
    """The unread frames of a reader (``rcg.runtime.observe.report.Backlog``)."""

    @property
    def channel(self) -> str: ...  # noqa: D102
    @property
    def reader(self) -> str: ...  # noqa: D102
    @property
    def length(self) -> int: ...  # noqa: D102
    @property
    def slots(self) -> int: ...  # noqa: D102


class ReportData(Protocol):
    """What a graph does now (``rcg.runtime.observe.report.Report``)."""

    @property
    def graph_id(self) -> str: ...  # noqa: D102
    @property
    def state(self) -> str: ...  # noqa: D102
    @property
    def processes(self) -> Sequence[ActivityData]: ...  # noqa: D102
    @property
    def backlogs(self) -> Sequence[BacklogData]: ...  # noqa: D102
    @property
    def used_bytes(self) -> int: ...  # noqa: D102
    @property
    def cap_bytes(self) -> int: ...  # noqa: D102
    @property
    def in_flight(self) -> int: ...  # noqa: D102
    @property
    def limit(self) -> int: ...  # noqa: D102
    @property
    def failures_dropped(self) -> int: ...  # noqa: D102
    @property
    def last_dropped(self) -> str: ...  # noqa: D102
    @property
    def asked(self) -> bool: ...  # noqa: D102
    @property
    def ages(self) -> Sequence[str]: ...  # noqa: D102

    @property
    def network(self) -> Sequence[str]: ...  # noqa: D102


def report_of(report: ReportData, *, title: str = "Report", dark: bool | None = None) -> str:
    """Return a report as HTML without a script.

    Args:
        report: The report.
        title: The title.
        dark: Whether to use dark colours; None leaves it to the reader's browser.
    """
    marked = _holding_up(report)
    rows = [
        _row(report, activity, is_marked=is_marked)
        for activity, is_marked in zip(report.processes, marked, strict=True)
    ]
    head = ("process", "state", "op", "execution", "since", "waiting for", "queue", "memory", "pid")
    about = (
        f"CompiledDAG({report.graph_id[:8]}) is {report.state}: {report.in_flight} of "
        f"{report.limit} executions in flight, {bytes_text(report.used_bytes)} of "
        f"{bytes_text(report.cap_bytes)} shared memory"
    )
    ages = "".join(f'<p class="rcg-slow">{escaped(line)}</p>' for line in report.ages)
    body = table(head, rows, marked) + ages + _stacks(report, marked)
    body += _network(report) + _failures(report)
    return themed(card(title, about, body), dark=dark)


def _holding_up(report: ReportData) -> list[bool]:
    """Return which processes are dead, or running while others wait for them."""
    by_label = {activity.label: activity for activity in report.processes}
    wanted: set[str] = set()
    for activity in report.processes:
        if activity.state == "waiting" and activity.for_s >= _LONG_S:
            ahead = _waits_for(activity)
            seen = {activity.label}
            while ahead:
                label = ahead.pop()
                other = by_label.get(label)
                if other is None or label in seen:
                    continue
                seen.add(label)
                if other.state == "waiting":
                    ahead += _waits_for(other)
                else:
                    wanted.add(label)
    return [
        activity.state == "dead"
        or (activity.state == "running" and activity.label in wanted and activity.for_s >= _LONG_S)
        for activity in report.processes
    ]


def _waits_for(activity: ActivityData) -> list[str]:
    return [label for label in activity.waiting_for.split(", ") if label]


def _row(report: ReportData, activity: ActivityData, *, is_marked: bool) -> list[Cell]:
    state = "stuck" if is_marked and activity.state == "running" else activity.state
    sign, colour = _STATES.get(state, ("\N{BULLET}", ""))
    where = ""
    if activity.stack:  # the table has the name of the file; the whole stack is below it
        where = f"\n{activity.stack[-1].rpartition('/')[2]}"
    elif _is_silent(report, activity):
        where = "\ndoes not answer"
    return [
        Cell(activity.label, "rcg-strong"),
        Cell(f"{sign} {state}", f"rcg-strong rcg-short {colour}"),
        Cell(f"{activity.op}{where}", "rcg-code rcg-op"),
        Cell(count_text(activity.execution) if activity.op != "-" else "-", "rcg-number"),
        Cell(time_text(activity.for_s * 1e9) if activity.op != "-" else "-", "rcg-number"),
        Cell(activity.waiting_text),
        _queue(report, activity),
        Cell(bytes_text(activity.shared_bytes), "rcg-number"),
        Cell(f"{activity.pid}" if activity.pid else "-", "rcg-number rcg-dim"),
    ]


def _is_silent(report: ReportData, activity: ActivityData) -> bool:
    return report.asked and activity.stack is None and activity.state in ("running", "waiting")


def _queue(report: ReportData, activity: ActivityData) -> Cell:
    """Return the fullest channel that a process reads, with all of them in the hover text."""
    queues = [queue for queue in report.backlogs if queue.reader == activity.label]
    if not queues:
        return Cell("0", "rcg-number rcg-dim")
    fullest = max(queues, key=lambda queue: queue.length / max(queue.slots, 1))
    hover = "\n".join(
        f"{queue.channel}: {queue.length} of {queue.slots} frames wait" for queue in queues
    )
    return Cell(f"{fullest.length} / {fullest.slots}", "rcg-number", hover)


def _stacks(report: ReportData, marked: Sequence[bool]) -> str:
    found = []
    for activity, is_marked in zip(report.processes, marked, strict=True):
        if activity.stack:
            lines = "\n".join(activity.stack)
            found.append(
                f"<details{' open' if is_marked else ''}>"
                f"<summary>{escaped(activity.label)} is in</summary>"
                f"<pre>{escaped(lines)}</pre></details>"
            )
    return "".join(found)


def _network(report: ReportData) -> str:
    return "".join(f"<p>{escaped(line)}</p>" for line in report.network)


def _failures(report: ReportData) -> str:
    if not report.failures_dropped:
        return ""
    text = (
        f"failures that were dropped unread: {report.failures_dropped}, the last: "
        f"{report.last_dropped}"
    )
    return f'<p class="rcg-bad">{escaped(text)}</p>'
