# SPDX-License-Identifier: Apache-2.0
"""Reports as tables: of a graph, what each process does; of tensors, each reference and its owner.

The first line of the report of a graph is its verdict. Processes that hold up others are marked and
show their line of source; those that are alike have one row.

The types of reports are above this room, so they are not named here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rcg.text import bytes_text, count_text, short_label, time_text
from rcg.views.html.elements import Cell, card, escaped, table, themed

_STATES: Final = {
    "running": ("\N{BLACK CIRCLE}", "rcg-good"),
    "waiting": ("\N{WHITE CIRCLE}", "rcg-slow"),
    "stuck": ("\N{BLACK UP-POINTING TRIANGLE}", "rcg-bad"),
    "dead": ("\N{MULTIPLICATION X}", "rcg-bad"),
    "idle": ("\N{EN DASH}", "rcg-dim"),
    "ready": ("\N{EN DASH}", "rcg-dim"),
    "gave up": ("\N{WHITE CIRCLE}", "rcg-slow"),
    "ended": ("\N{EN DASH}", "rcg-dim"),
    "held": ("\N{BLACK CIRCLE}", "rcg-good"),
    "being made": ("\N{WHITE CIRCLE}", "rcg-slow"),
    "no tensors": ("\N{EN DASH}", "rcg-dim"),
    "failed": ("\N{MULTIPLICATION X}", "rcg-bad"),
    "unreachable": ("\N{MULTIPLICATION X}", "rcg-bad"),
    "lost": ("\N{MULTIPLICATION X}", "rcg-bad"),
    "unknown": ("\N{BLACK UP-POINTING TRIANGLE}", "rcg-bad"),
}
_LOST: Final = ("failed", "lost", "dead", "unreachable", "unknown")
_MAX_ROWS: Final = 50
_ID: Final = 16  # digits of an id that tell references apart


def report_of(report: Any, *, title: str = "Report") -> str:
    """Return a ``runtime.observe.report.Report`` as HTML: its verdict, and a table of processes."""
    about = (
        f"{title} is {report.state}: {report.in_flight} of {report.limit} executions in flight, "
        f"{bytes_text(report.used_bytes)} of {bytes_text(report.cap_bytes)} shared memory"
    )
    rows = report.rows
    body = _processes(report, rows)
    ages = "".join(f'<p class="rcg-slow">{escaped(line)}</p>' for line in report.ages)
    network = "".join(f"<p>{escaped(line)}</p>" for line in report.network)
    body += ages + _stacks(report, rows)
    if len(rows) < len(report.processes):
        each = [type(rows[0])((one,), one.waiting_text, one.state) for one in report.processes]
        body += (
            f"<details><summary>all {len(each)} processes</summary>"
            f"{_processes(report, each)}</details>"
        )
    body += network
    if report.failures_dropped:
        dropped = f"{report.failures_dropped}, the last: {report.last_dropped}"
        body += f'<p class="rcg-bad">{escaped(f"failures that were dropped unread: {dropped}")}</p>'
    return themed(card(str(report.verdict), about, body))


def _processes(report: Any, rows: Sequence[Any]) -> str:
    head = ("process", "state", "op", "execution", "since", "waiting for", "queue", "memory", "pid")
    held_up_by = report.held_up_by
    marked = [row.first.label in held_up_by for row in rows]
    cells = [_row(report, *each) for each in zip(rows, marked, strict=True)]
    return table(head, cells, marked)


def _row(report: Any, row: Any, is_marked: bool) -> list[Cell]:
    activity = row.first
    state = "stuck" if is_marked and row.state == "running" else row.state
    sign, colour = _STATES.get(state, ("\N{BULLET}", ""))
    where = ""
    if activity.stack:  # the table has the name of the file; the whole stack is below it
        where = f"\n{row.users_line.rpartition('/')[2]}"
    elif report.silent(activity):
        where = "\ndoes not answer"
    members = "\n".join(f"{each.label}: {each.waiting_text}" for each in row.members)
    return [
        Cell(row.label, "rcg-strong", members if len(row.members) > 1 else ""),
        Cell(f"{sign} {state}", f"rcg-strong rcg-short {colour}"),
        Cell(f"{row.op}{where}", "rcg-code rcg-op"),
        Cell(row.execution, "rcg-number"),
        Cell(row.since, "rcg-number"),
        Cell(row.waiting_text),
        _queue(report, row),
        Cell(bytes_text(row.shared_bytes), "rcg-number"),
        Cell(row.pid, "rcg-number rcg-dim"),
    ]


def _queue(report: Any, row: Any) -> Cell:
    """Return the fullest channel that a process reads, with all of them in the hover text."""
    labels = [each.label for each in row.members]
    queues = [queue for queue in report.backlogs if queue.reader in labels]
    if not queues:
        return Cell("0", "rcg-number rcg-dim")
    fullest = max(queues, key=lambda queue: queue.length / max(queue.slots, 1))
    hover = "\n".join(
        f"{queue.channel}: {queue.length} of {queue.slots} values wait" for queue in queues
    )
    return Cell(f"{fullest.length} / {fullest.slots}", "rcg-number", hover)


def _stacks(report: Any, rows: Sequence[Any]) -> str:
    """Return the stacks of processes, those of stuck ones open."""
    held_up_by = report.held_up_by
    return "".join(
        f"<details{' open' if row.first.label in held_up_by else ''}>"
        f"<summary>{escaped(row.label)} {'is' if len(row.members) == 1 else 'are'} in</summary>"
        f"<pre>{escaped(chr(10).join(row.stack))}</pre></details>"
        for row in rows
        if row.first.stack
    )


def tensors_report_of(report: Any) -> str:
    """Return a ``rcg.rdt.observe.TensorsReport`` as HTML without a script."""
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
    return themed(card("Tensors by reference", about, body))


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
