# SPDX-License-Identifier: Apache-2.0
"""HTML of the results of analyses: executions, paths, predictions, comparisons.

Each result has a text and a table or a picture. This file must compute nothing but lengths of bars.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from rcg.display import Mimebundle
from rcg.text import (
    brief,
    count_text,
    cut,
    plural,
    rate_text,
    ratio_text,
    ticks_of,
    time_text,
    visible,
)
from rcg.trace.analysis.critical import CriticalPath, Step
from rcg.trace.analysis.executions import EXECUTION_HEAD, Executions, execution_row
from rcg.trace.analysis.figures import Change, Comparison, GraphComparison
from rcg.trace.analysis.what_if import WhatIf
from rcg.views.data.colours import TITLES
from rcg.views.data.lettering import DOT, SIZE, width_of
from rcg.views.html.elements import Cell, card, table, themed
from rcg.views.html.mimebundle import mimebundle
from rcg.views.svg.canvas import MARGIN, WIDTH, Canvas, Paint, swatch
from rcg.views.svg.looks import kind_entries, kind_looks
from rcg.views.svg.schedule import schedule_of

_TOP: Final = MARGIN + 58
_LINE: Final = 24.0
_BAR: Final = 15.0
_MAX_NAME_WIDTH: Final = 300.0
_MAX_STEPS: Final = 36
_MAX_OPS: Final = 24
_MAX_GRAPHS: Final = 3
_COLUMN: Final = 92.0


def of_executions(executions: Executions) -> Mimebundle:
    """Return the mimebundle of executions: a table of the first and the last ones."""
    count = len(executions)
    places = cut(range(count), lambda _: -1)
    number = "rcg-number"
    gap = [Cell("...", f"{number} rcg-dim"), *(Cell("", number) for _ in EXECUTION_HEAD[1:])]
    rows = [
        gap if place < 0 else [Cell(text, number) for text in execution_row(executions[place])]
        for place in places
    ]
    complete = count_text(int(executions.is_complete.sum()))
    about = f"{count_text(count)} executions, {complete} complete"
    about += f" {DOT} submission times count from the beginning of the trace"
    body = table(EXECUTION_HEAD, rows) if rows else ""
    html = themed(card("Executions", about, body), dark=None)
    return {**mimebundle(str(executions), []), "text/html": html}


def of_path(path: CriticalPath) -> Mimebundle:
    """Return the mimebundle of a critical path: its steps over time, one per line."""
    return mimebundle(str(path), [("Critical path", path_picture(path))] if path else [])


def of_what_if(found: WhatIf) -> Mimebundle:
    """Return the mimebundle of a prediction: its figures and the predicted schedule."""
    about = f"if {', '.join(found.changes)}" if found.changes else "nothing changed"
    picture = schedule_of(
        predicted=found.simulation, unit_ns=1.0, title="Predicted", about=about, width=WIDTH
    )
    return mimebundle(str(found), [("Predicted schedule", picture)])


def of_comparison(found: Comparison | GraphComparison) -> Mimebundle:
    """Return the mimebundle of a comparison: each op of each graph before and after."""
    graphs = found.graphs if isinstance(found, Comparison) else (found,)
    more = len(graphs) - _MAX_GRAPHS
    note = f"{plural(more, 'more graph')}: show comparison.graphs[{_MAX_GRAPHS}]"
    pictures = [("Comparison", comparison_picture(each)) for each in graphs[:_MAX_GRAPHS]]
    return mimebundle(str(found), pictures, note if more > 0 else "")


def path_picture(path: Sequence[Step], *, dark: bool | None = None) -> str:
    """Return a critical path as the text of an SVG file: one bar per step, over time."""
    canvas = Canvas(dark)
    shown = _longest(path)
    start, total = path[0].start_ns, max(path[-1].end_ns - path[0].start_ns, 1)
    own = path[-1].execution
    texts = [
        step.text if step.execution == own else f"{step.text} of execution {step.execution}"
        for step in shown
    ]
    names = min(_MAX_NAME_WIDTH, max(width_of(visible(text), SIZE) for text in texts))
    left = MARGIN + names + 14
    room = WIDTH - left - MARGIN - _COLUMN
    scale = room / total
    bottom = _TOP + _LINE * len(shown)
    about = f"{time_text(total)} in {count_text(len(path))} steps"
    if len(shown) < len(path):
        about += f" {DOT} the {len(shown)} longest are shown"
    title = f"Critical path of execution {path[-1].execution}"
    shapes = canvas.heading(title, about, WIDTH - 2 * MARGIN)
    looks = kind_looks(canvas)
    legend = kind_entries(canvas, sorted({step.kind for step in shown}))
    shapes += canvas.legend(legend, MARGIN, MARGIN + 49, WIDTH - 2 * MARGIN).shapes
    shapes += _axis(canvas, total, left, room, bottom)
    for row, step in enumerate(shown):
        y = _TOP + _LINE * row + 4
        x, length = left + (step.start_ns - start) * scale, max(step.duration_ns * scale, 1.0)
        shapes.append(canvas.text(texts[row], MARGIN, y + 12, names + 1))
        shapes.append(
            f'<rect{looks[step.kind].attributes} x="{x:.1f}" y="{y:g}" width="{length:.1f}" '
            f'height="{_BAR:g}"><title>{_hover(step)}</title></rect>'
        )
        took = time_text(step.duration_ns)
        shapes.append(canvas.note(took, WIDTH - MARGIN, y + 12, _COLUMN, anchor="end"))
    return canvas.document(shapes, WIDTH, bottom + 30, f"Critical path: {about}")


def comparison_picture(found: GraphComparison, *, dark: bool | None = None) -> str:
    """Return a comparison as the text of an SVG file: two bars per figure."""
    canvas = Canvas(dark)
    canvas.define("before", Paint("fill", "#a3aebb", "#5d6b7a"))
    canvas.define("after", Paint("fill", "#0072b2", "#0072b2"))
    ops = sorted(found.ops, key=lambda op: -_most(op))[:_MAX_OPS]
    names = [found.throughput.text, found.latency.text, *(op.text for op in ops)]
    widest = min(_MAX_NAME_WIDTH, max(width_of(visible(name), SIZE, bold=True) for name in names))
    left = MARGIN + widest + 14
    room = WIDTH - left - MARGIN - 3 * _COLUMN
    about = " -> ".join(f"CompiledDAG({graph_id[:8]})" for graph_id in found.graph_ids)
    if len(ops) < len(found.ops):
        about += f" {DOT} the {len(ops)} longest of {len(found.ops)} ops"
    shapes = canvas.heading("Before and after", about, WIDTH - 2 * MARGIN)
    legend = [(swatch(canvas.paint(name)), name) for name in ("before", "after")]
    shapes += canvas.legend(legend, MARGIN, MARGIN + 49, room).shapes
    for at, name in enumerate(("before", "after", "ratio")):
        x = WIDTH - MARGIN - (2 - at) * _COLUMN
        shapes.append(canvas.note(name, x, _TOP - 4, _COLUMN, anchor="end"))
    longest = max(map(_most, ops), default=0.0)
    groups: list[tuple[Change, float, bool]] = [
        (found.throughput, _most(found.throughput), True),
        (found.latency, _most(found.latency), False),
        *((op, longest, False) for op in ops),
    ]
    for row, (change, most, is_rate) in enumerate(groups):
        y = _TOP + (_LINE + 4) * row + (10 if row > 1 else 0) + 2
        shapes.append(canvas.text(change.text, MARGIN, y + 14, widest + 1, bold=row < 2))
        for at, (role, value) in enumerate((("before", change.before), ("after", change.after))):
            length = room * (value or 0.0) / most if most else 0.0
            shapes.append(
                f'<rect{canvas.paint(role)} x="{left:g}" y="{y + 9 * at:g}" '
                f'width="{length:.1f}" height="8" rx="1.5"/>'
            )
        text_of = rate_text if is_rate else time_text
        texts = [text_of(change.before), text_of(change.after), ratio_text(change.ratio)]
        for at, words in enumerate(texts):
            x = WIDTH - MARGIN - (2 - at) * _COLUMN
            shapes.append(canvas.text(words, x, y + 14, _COLUMN - 6, anchor="end", bold=at == 2))
    height = _TOP + (_LINE + 4) * len(groups) + 10 + MARGIN
    return canvas.document(shapes, WIDTH, height, f"Before and after: {about}")


def _longest(path: Sequence[Step]) -> list[Step]:
    """Return the longest steps, as many as can be shown, by time."""
    longest = sorted(path, key=lambda step: -step.duration_ns)[:_MAX_STEPS]
    return sorted(longest, key=lambda step: step.start_ns)


def _axis(canvas: Canvas, total: int, left: float, room: float, bottom: float) -> Iterable[str]:
    for at, label in ticks_of(total, 6):
        x = left + at * room / total
        yield f'<path{canvas.paint("grid")} d="M{x:.1f} {_TOP:g}V{bottom:g}"/>'
        yield canvas.note(label, x, bottom + 16, 80, anchor="middle")


def _hover(step: Step) -> str:
    took = f"{TITLES[step.kind]}: {time_text(step.duration_ns)}"
    return escape(f"{brief(step.text)}\n{took}\nof execution {step.execution}")


def _most(change: Change) -> float:
    return max(change.before or 0.0, change.after or 0.0)
