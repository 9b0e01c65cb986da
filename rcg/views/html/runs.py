# SPDX-License-Identifier: Apache-2.0
"""Profiles side by side as a picture: a bar for throughput and latency of each, and its verdict.

The type of profiles is above this room, so it is not named here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from itertools import chain
from typing import Any, Final

from rcg.display import Mimebundle
from rcg.text import rate_text, time_text, visible
from rcg.trace.analysis.comparison import Change
from rcg.views.data.lettering import DOT, SIZE, width_of
from rcg.views.html.findings import judged, looks_of_changes, meaning_of, ratio_and
from rcg.views.html.mimebundle import mimebundle
from rcg.views.svg.canvas import MARGIN, WIDTH, Canvas, Paint, swatch

_TOP: Final = MARGIN + 74
_LINE: Final = 44.0
_MAX_NAME_WIDTH: Final = 230.0
_VALUE: Final = 88.0  # the column of a value
_RATIO: Final = 140.0  # the column of its ratio


def of_runs(runs: Any) -> Mimebundle:
    """Return the mimebundle of a ``rcg.runs.Runs``: its table as text, and its picture."""
    rows = runs.rows
    return mimebundle(str(runs), [("Profiles side by side", runs_picture(rows))] if rows else [])


def runs_picture(rows: Sequence[Any]) -> str:
    """Return rows of ``rcg.runs.Runs`` as the text of an SVG file."""
    canvas = Canvas()
    canvas.define("first", Paint("fill", "#a3aebb", "#5d6b7a"))
    widest = max(width_of(visible(row.name), SIZE, bold=True) for row in rows)
    left = MARGIN + min(_MAX_NAME_WIDTH, widest) + 18
    half = (WIDTH - MARGIN - left) / 2
    room = half - _VALUE - _RATIO - 14
    figures: list[tuple[str, Callable[[float | None], str], list[Change]]] = [
        ("throughput", rate_text, [row.throughput for row in rows]),
        ("latency", time_text, [row.latency for row in rows]),
    ]
    said = [
        ["" if change.ratio is None else judged(change, text_of) for change in changes]
        for _, text_of, changes in figures
    ]
    looks = {"": canvas.paint("first"), **looks_of_changes(canvas, chain(*said))}
    about = f"against the first {DOT} executions per second, and the median latency"
    shapes = canvas.heading("Profiles side by side", about, WIDTH - 2 * MARGIN)
    legend = [(swatch(look), meaning_of(word) or "the first") for word, look in looks.items()]
    shapes += canvas.legend(legend, MARGIN, MARGIN + 52, WIDTH - 2 * MARGIN).shapes
    for at, (name, text_of, changes) in enumerate(figures):
        x = left + at * half
        shapes.append(canvas.note(name, x, _TOP - 4, room))
        most = max(change.after or 0.0 for change in changes)
        for row, (change, word) in enumerate(zip(changes, said[at], strict=True)):
            y = _TOP + _LINE * row
            length = room * (change.after or 0.0) / most if most else 0.0
            shapes.append(
                f'<rect{looks[word]} x="{x:g}" y="{y + 5:g}" '
                f'width="{length:.1f}" height="11" rx="2"/>'
            )
            value, ratio = x + room + _VALUE, x + room + _VALUE + _RATIO
            words = text_of(change.after)
            shapes.append(canvas.text(words, value, y + 15, _VALUE, bold=True, anchor="end"))
            if change.ratio is not None:
                words = ratio_and(word, change)
                role = "text" if word in ("better", "worse") else "faint"
                shapes.append(
                    canvas.text(words, ratio, y + 15, _RATIO - 10, role=role, anchor="end")
                )
    for row, each in enumerate(rows):
        y = _TOP + _LINE * row
        shapes.append(canvas.text(each.name, MARGIN, y + 15, left - MARGIN - 12, bold=True))
        shapes.append(canvas.note(each.verdict, MARGIN, y + 32, WIDTH - 2 * MARGIN))
    height = _TOP + _LINE * len(rows) + MARGIN - 14
    names = ", ".join(escape(visible(each.name)) for each in rows)
    return canvas.document(shapes, WIDTH, round(height), f"Profiles side by side: {names}")
