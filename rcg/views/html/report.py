# SPDX-License-Identifier: Apache-2.0
"""Reports as tables: of a graph, what each process does; of tensors, each reference and its owner.

The first line of the report of a graph is its verdict. Processes that hold up others are marked and
show their line of source; those that are alike have one row.

The types of reports are above this room, so they are not named here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rcg.table import escaped
from rcg.text import bytes_text
from rcg.views.html.elements import card, themed

_MAX_ROWS: Final = 50


def report_of(report: Any, *, title: str = "Report") -> str:
    """Return a ``runtime.observe.report.Report`` as HTML: its verdict, and a table of processes."""
    about = (
        f"{title} is {report.state}: {report.in_flight} of {report.limit} executions in flight, "
        f"{bytes_text(report.used_bytes)} of {bytes_text(report.cap_bytes)} shared memory"
    )
    rows = report.rows
    body = report.table(rows).html()
    ages = "".join(f'<p class="rcg-slow">{escaped(line)}</p>' for line in report.ages)
    network = "".join(f"<p>{escaped(line)}</p>" for line in report.network)
    body += ages + _stacks(report, rows)
    if len(rows) < len(report.processes):
        each = [type(rows[0])((one,), one.waiting_text, one.state) for one in report.processes]
        body += (
            f"<details><summary>all {len(each)} processes</summary>"
            f"{report.table(each).html()}</details>"
        )
    body += network
    if report.failures_dropped:
        dropped = f"{report.failures_dropped}, the last: {report.last_dropped}"
        body += f'<p class="rcg-bad">{escaped(f"failures that were dropped unread: {dropped}")}</p>'
    return themed(card(str(report.verdict), about, body))


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
    tables = [each.html() for each in (report.table(_MAX_ROWS), report.owners_table()) if each.rows]
    about = report.about
    if len(report.refs) > _MAX_ROWS:
        about += f"; the {_MAX_ROWS} largest are shown"
    return themed(card("Tensors by reference", about, "".join(tables)))
