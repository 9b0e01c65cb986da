# SPDX-License-Identifier: Apache-2.0
"""Reports as tables: of a graph, what each process does; of tensors, each reference and its owner.

In the report of a graph, processes that hold up others are marked and show their line of source. A
process holds up others if it died, or if it has been in its op for a while without waiting and
others wait for it, directly or through others.

The types of reports are above this room, so they are not named here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rcg.text import bytes_text, count_text, short_label, time_text
from rcg.views.html.elements import Cell, card, escaped, table, themed

_LONG_S: Final = 1.0
"""A process that others wait for is called stuck after this time."""

_STATES: Final = {
    "running": ("\N{BLACK CIRCLE}", "rcg-good"),
    "waiting": ("\N{WHITE CIRCLE}", "rcg-slow"),
    "stuck": ("\N{BLACK UP-POINTING TRIANGLE}", "rcg-bad"),
    "dead": ("\N{MULTIPLICATION X}", "rcg-bad"),
    "idle": ("\N{EN DASH}", "rcg-dim"),
    "gave up": ("\N{WHITE CIRCLE}", "rcg-slow"),
    "ended": ("\N{EN DASH}", "rcg-dim"),
    "held": ("\N{BLACK CIRCLE}", "rcg-good"),
    "being made": ("\N{WHITE CIRCLE}", "rcg-slow"),
    "no tensors": ("\N{EN DASH}", "rcg-dim"),
    "failed": ("\N{MULTIPLICATION X}", "rcg-bad"),
    "lost": ("\N{MULTIPLICATION X}", "rcg-bad"),
    "unknown": ("\N{BLACK UP-POINTING TRIANGLE}", "rcg-bad"),
}
_LOST: Final = ("failed", "lost", "dead", "unknown")
_MAX_ROWS: Final = 50
_ID: Final = 16  # digits of an id that tell references apart


def report_of(report: Any, *, title: str = "Report", dark: bool | None = None) -> str:
    """Return a report as HTML without a script.

    Args:
        report: A ``rcg.runtime.observe.report.Report``.
        title: The title.
        dark: Whether to use dark colours; None leaves it to the reader's browser.
    """
    marked = _holding_up(report)
    rows = [_row(report, *each) for each in zip(report.processes, marked, strict=True)]
    head = ("process", "state", "op", "execution", "since", "waiting for", "queue", "memory", "pid")
    about = (
        f"CompiledDAG({report.graph_id[:8]}) is {report.state}: {report.in_flight} of "
        f"{report.limit} executions in flight, {bytes_text(report.used_bytes)} of "
        f"{bytes_text(report.cap_bytes)} shared memory"
    )
    ages = "".join(f'<p class="rcg-slow">{escaped(line)}</p>' for line in report.ages)
    network = "".join(f"<p>{escaped(line)}</p>" for line in report.network)
    body = table(head, rows, marked) + ages + _stacks(report, marked) + network
    if report.failures_dropped:
        dropped = f"{report.failures_dropped}, the last: {report.last_dropped}"
        body += f'<p class="rcg-bad">{escaped(f"failures that were dropped unread: {dropped}")}</p>'
    return themed(card(title, about, body), dark=dark)


def _holding_up(report: Any) -> list[bool]:
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


def _waits_for(activity: Any) -> list[str]:
    return [label for label in activity.waiting_for.split(", ") if label]


def _row(report: Any, activity: Any, is_marked: bool) -> list[Cell]:
    state = "stuck" if is_marked and activity.state == "running" else activity.state
    sign, colour = _STATES.get(state, ("\N{BULLET}", ""))
    where = ""
    if activity.stack:  # the table has the name of the file; the whole stack is below it
        where = f"\n{activity.stack[-1].rpartition('/')[2]}"
    elif report.asked and activity.stack is None and activity.state in ("running", "waiting"):
        where = "\ndoes not answer"
    is_in_op = activity.op != "-"
    return [
        Cell(activity.label, "rcg-strong"),
        Cell(f"{sign} {state}", f"rcg-strong rcg-short {colour}"),
        Cell(f"{activity.op}{where}", "rcg-code rcg-op"),
        Cell(count_text(activity.execution) if is_in_op else "-", "rcg-number"),
        Cell(time_text(activity.for_s * 1e9) if is_in_op else "-", "rcg-number"),
        Cell(activity.waiting_text),
        _queue(report, activity),
        Cell(bytes_text(activity.shared_bytes), "rcg-number"),
        Cell(f"{activity.pid}" if activity.pid else "-", "rcg-number rcg-dim"),
    ]


def _queue(report: Any, activity: Any) -> Cell:
    """Return the fullest channel that a process reads, with all of them in the hover text."""
    queues = [queue for queue in report.backlogs if queue.reader == activity.label]
    if not queues:
        return Cell("0", "rcg-number rcg-dim")
    fullest = max(queues, key=lambda queue: queue.length / max(queue.slots, 1))
    hover = "\n".join(
        f"{queue.channel}: {queue.length} of {queue.slots} frames wait" for queue in queues
    )
    return Cell(f"{fullest.length} / {fullest.slots}", "rcg-number", hover)


def _stacks(report: Any, marked: Sequence[bool]) -> str:
    shown = [
        (activity.label, "\n".join(activity.stack), " open" if is_marked else "")
        for activity, is_marked in zip(report.processes, marked, strict=True)
        if activity.stack
    ]
    return "".join(
        f"<details{is_open}><summary>{escaped(label)} is in</summary>"
        f"<pre>{escaped(lines)}</pre></details>"
        for label, lines, is_open in shown
    )


def tensors_report_of(report: Any) -> str:
    """Return a report of tensors by reference as HTML without a script.

    Args:
        report: A ``rcg.rdt.observe.TensorsReport``.
    """
    shown = report.refs[:_MAX_ROWS]
    about = report.about
    if len(shown) < len(report.refs):
        about += f"; the {len(shown)} largest are shown"
    head = ("reference", "owner", "transport", "size", "state", "age", "sent", "waited for by")
    rows = [_reference_row(each) for each in shown]
    body = table(head, rows, [each.state in _LOST for each in shown]) if rows else ""
    if report.owners:
        owners = [_owner_row(each) for each in report.owners]
        marked = [not each.answers for each in report.owners]
        heads = ("owner", "objects", "size", "freed", "freed unasked", "pid")
        body += table(heads, owners, marked)
    return themed(card("Tensors by reference", about, body), dark=None)


def _reference_row(each: Any) -> list[Cell]:
    sign, colour = _STATES.get(each.state, ("\N{BULLET}", ""))
    is_known = bool(each.transport)
    return [
        Cell(each.ref[:_ID], "rcg-code", each.ref),
        Cell(short_label(each.owner), "rcg-strong", each.owner),
        Cell(each.transport or "-"),
        Cell(bytes_text(each.bytes) if is_known else "-", "rcg-number"),
        Cell(f"{sign} {each.state}", f"rcg-strong rcg-short {colour}"),
        Cell(time_text(each.age_s * 1e9) if is_known else "-", "rcg-number"),
        Cell(count_text(each.pulls) if is_known else "-", "rcg-number"),
        Cell("\n".join(each.waiters)),
    ]


def _owner_row(each: Any) -> list[Cell]:
    owner = Cell(short_label(each.label), "rcg-strong", each.label)
    if not each.answers:
        state = "is dead" if each.death else "does not answer"
        unknown = [Cell("-", "rcg-number rcg-dim")] * 4
        return [owner, Cell(state, "rcg-bad", each.death), *unknown]
    return [
        owner,
        Cell(count_text(each.objects), "rcg-number"),
        Cell(bytes_text(each.bytes), "rcg-number"),
        Cell(count_text(each.freed), "rcg-number"),
        Cell(count_text(each.unkept), "rcg-number"),
        Cell(f"{each.pid}", "rcg-number rcg-dim"),
    ]
