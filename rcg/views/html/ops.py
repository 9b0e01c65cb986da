# SPDX-License-Identifier: Apache-2.0
"""A table of the times of each op of a graph, as HTML."""

from __future__ import annotations

from rcg.text import bytes_text, count_text, speed_text, time_text
from rcg.trace.analysis.ops import OpTimes
from rcg.trace.analysis.summary import GraphSummary
from rcg.views.html.elements import Cell, table

_UNKNOWN = "-"


def ops_table(summary: GraphSummary) -> str:
    """Return a table of the times of each op as HTML, in the order of the programs."""
    head = ("process", "op", "count", "median", "p99", "total", "waited", "moved", "speed")
    labels = {lane.process: lane.label for lane in summary.shares.lanes}
    rows = [_op_row(labels.get(each.process, each.process), each) for each in summary.ops]
    most = summary.critical.bottleneck if summary.critical is not None else None
    marked = [
        most is not None and (each.process, each.op) == (most.process, most.op)
        for each in summary.ops
    ]
    return table(head, rows, marked)


def _op_row(label: str, each: OpTimes) -> list[Cell]:
    number = "rcg-number"
    return [
        Cell(label, "rcg-strong"),
        Cell(each.text, "rcg-code"),
        Cell(count_text(each.count), number),
        Cell(time_text(each.median_ns), number),
        Cell(time_text(each.p99_ns), number),
        Cell(time_text(each.total_ns), number),
        Cell(time_text(each.waited_ns), number),
        Cell(bytes_text(each.bytes) if each.bytes else _UNKNOWN, number),
        Cell(speed_text(each.gb_per_s), number),
    ]
