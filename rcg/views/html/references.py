# SPDX-License-Identifier: Apache-2.0
"""The transfers of tensors by reference as a table of sums."""

from __future__ import annotations

from rcg.text import bytes_text, count_text, plural, short_label, time_text
from rcg.trace.analysis.references import ReferenceSums, reference_sums
from rcg.trace.model import Recording
from rcg.views.html.elements import Cell, card, table

_MAX_ROWS = 50


def references_card(trace: Recording) -> str:
    """Return the sums of a trace's transfers as HTML without a script; "" without transfers."""
    sums = reference_sums(trace.transfers)
    if not sums:
        return ""
    about = (
        f"{plural(len(trace.transfers), 'transfer')} of "
        f"{bytes_text(sum(each.bytes for each in sums))}, those that took longest first"
    )
    head = ("from", "to", "transport", "values", "size", "waited", "moved", "rate", "failed")
    rows = [_row(each) for each in sums[:_MAX_ROWS]]
    marked = [bool(each.failed) for each in sums[:_MAX_ROWS]]
    return card("Tensors by reference", about, table(head, rows, marked))


def _row(each: ReferenceSums) -> list[Cell]:
    rate = f"{bytes_text(each.bytes / each.moved_ns * 1e9)}/s" if each.moved_ns else "-"
    return [
        Cell(short_label(each.source), "rcg-strong", each.source),
        Cell(short_label(each.target), "rcg-strong", each.target),
        Cell(each.transport),
        Cell(count_text(each.transfers), "rcg-number"),
        Cell(bytes_text(each.bytes), "rcg-number"),
        Cell(time_text(each.waited_ns), "rcg-number"),
        Cell(time_text(each.moved_ns), "rcg-number"),
        Cell(rate, "rcg-number"),
        Cell(count_text(each.failed), "rcg-number rcg-bad" if each.failed else "rcg-number"),
    ]
