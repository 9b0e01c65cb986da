# SPDX-License-Identifier: Apache-2.0
"""HTML of the results of analyses: executions, paths, predictions, comparisons.

Each result has a text and a table or a picture. This file must compute nothing but lengths of bars.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import chain
from typing import Final

from rcg.display import Mimebundle
from rcg.text import (
    brief,
    count_text,
    plural,
    rate_text,
    share_text,
    spread_text,
    ticks_of,
    time_text,
    visible,
)
from rcg.trace.analysis.alike import SAME_SHARE, alike_rows, members_text, name_of_rows
from rcg.trace.analysis.comparison import (
    Change,
    Comparison,
    GraphComparison,
    alike_ops,
    folded_changes,
)
from rcg.trace.analysis.critical import CriticalPath, Step
from rcg.trace.analysis.events import TimeKind
from rcg.trace.analysis.executions import Executions, ran_text
from rcg.trace.analysis.what_if import WhatIf
from rcg.views.data.colours import TITLES
from rcg.views.data.lettering import DOT, SIZE, width_of
from rcg.views.html.elements import card, themed
from rcg.views.html.mimebundle import mimebundle
from rcg.views.scenes.schedule import scene_of_simulation
from rcg.views.svg.canvas import LEGEND_LINE, MARGIN, WIDTH, Canvas, Paint, swatch
from rcg.views.svg.lanes import fitting, heights_for
from rcg.views.svg.looks import Look, kind_entries, kind_looks
from rcg.views.svg.scene import picture_of

_TOP: Final = MARGIN + 58
_LINE: Final = 24.0
_MAX_NAME_WIDTH: Final = 300.0
_MAX_ROWS: Final = 64
_MAX_BUSY: Final = 12
_MAX_OPS: Final = 24
_MAX_GRAPHS: Final = 3
_COLUMN: Final = 92.0
_TOOK: Final = 138.0
_SHARE: Final = 56.0
_MAX_HOVERS: Final = 60  # of the steps on one line
_PALE: Final = 0.45
_SHORT: Final = 0.01  # of a path, or of the longest op: what takes less has no line of its own
_STANDS_OUT: Final = 0.1  # of a path: has a line of its own even if many have
_SAID: Final = ("better", "worse", "not known")  # of a change, beside its ratio
JUDGED: Final = {
    "better": ("#009e73", ""),
    "worse": ("#d55e00", "/"),
    "alike": ("#98a2ae", "."),
    "not known": ("#98a2ae", "x"),
    "changed": ("#0072b2", ""),
}
"""What is said of a change, with its colour and its pattern. Of too few executions it is not known
whether a change is more than noise; a share that has changed is neither better nor worse."""


def of_executions(executions: Executions) -> Mimebundle:
    """Return the mimebundle of executions: a table of the first and the last ones."""
    count = len(executions)
    about = ran_text(count, int(executions.is_complete.sum()))
    about += f" {DOT} submission times count from the beginning of the trace"
    html = themed(card("Executions", about, executions.table().html() if count else ""))
    return {**mimebundle(str(executions), []), "text/html": html}


def of_path(path: CriticalPath) -> Mimebundle:
    """Return the mimebundle of a critical path: its steps over time, by actor and method."""
    return mimebundle(str(path), [("Critical path", path_picture(path))] if path else [])


def of_what_if(found: WhatIf) -> Mimebundle:
    """Return the mimebundle of a prediction: the answer, its figures, the predicted schedule."""
    figures = ("What if", what_if_picture(found))
    if found.is_far_off:
        return mimebundle(str(found), [figures])
    scene = scene_of_simulation(found.simulation)
    about = f"{_changes_of(found)} {DOT} {scene.about}"
    picture = picture_of(scene, title="Predicted schedule", about=about)
    return mimebundle(str(found), [figures, ("Predicted schedule", picture)])


def of_comparison(found: Comparison | GraphComparison) -> Mimebundle:
    """Return the mimebundle of a comparison: each op of each graph before and after."""
    graphs = found.active if isinstance(found, Comparison) else (found,)
    more = len(graphs) - _MAX_GRAPHS
    note = f"{plural(more, 'more graph')}: show comparison.active[{_MAX_GRAPHS}]"
    pictures = [("Comparison", comparison_picture(each)) for each in graphs[:_MAX_GRAPHS]]
    return mimebundle(str(found), pictures, note if more > 0 else "")


def path_picture(path: CriticalPath) -> str:
    """Return a critical path as the text of an SVG file.

    The steps of an actor's method are on one line, over time; those of executions that had to go
    first are paler.
    """
    canvas = Canvas()
    least = _SHORT * path.duration_ns
    shown: list[tuple[str, list[Step]]] = []
    short: list[tuple[str, list[Step]]] = []
    groups = path.groups()
    is_long = [_time(steps) >= least for _, steps in groups]
    if sum(is_long) > _MAX_OPS:
        is_long = [_time(steps) >= _STANDS_OUT * path.duration_ns for _, steps in groups]
    for group, has_line in zip(groups, is_long, strict=True):
        (shown if has_line else short).append(group)
    # What takes little in each of many actors may be most of the path together.
    texts = [text for text, _ in short]
    rest: list[Step] = []
    num_rest = 0
    for rows_of in alike_rows(texts, [(0.0,)] * len(texts), 0.0):
        steps = list(chain(*(short[at][1] for at in rows_of)))
        if (_time(steps) >= least or not shown) and len(shown) < _MAX_ROWS:
            shown.append((name_of_rows([texts[at] for at in rows_of]), steps))
        else:
            rest += steps
            num_rest += len(rows_of)
    (most, longest), rows = max(shown, key=lambda group: _time(group[1])), len(shown)
    answer = path.answer
    if most != groups[0][0]:
        share = share_text(_time(longest) / max(path.duration_ns, 1), 0)
        answer = f"{share} of {time_text(path.duration_ns)} is {visible(most)}: no actor stands out"
    shown.sort(key=lambda group: group[1][0].start_ns)
    if rest:
        shown.append((plural(num_rest, "more op"), rest))
    start, total, own = path[0].start_ns, max(path.duration_ns, 1), path[-1].execution
    widths = [width_of(visible(text), SIZE, bold=True) for text, _ in shown]
    names = min(_MAX_NAME_WIDTH, max(widths))
    left = MARGIN + names + 14
    room = WIDTH - left - MARGIN - _TOOK - _SHARE - 8
    scale = room / total
    line = heights_for(len(shown), _LINE, _LINE, _LINE - 8)
    line *= fitting(line * len(shown), len(shown))
    bar = line - 9 if line == _LINE else line - 2
    bottom = _TOP + line * len(shown)
    shapes = canvas.heading(answer, f" {DOT} ".join(path.about), WIDTH - 2 * MARGIN)
    looks = kind_looks(canvas)
    legend = kind_entries(canvas, sorted({step.kind for step in path}))
    if any(step.execution != own for step in path):
        pale = f'<g opacity="{_PALE}">{swatch(looks[TimeKind.COMPUTE].attributes)}</g>'
        legend.append((pale, "for an execution that goes first"))
    shapes += canvas.legend(legend, MARGIN, MARGIN + 49, WIDTH - 2 * MARGIN).shapes
    shapes += _axis(canvas, total, left, room, bottom)
    for row, (text, steps) in enumerate(shown):
        y = _TOP + line * row + 4
        shapes.append(canvas.text(text, MARGIN, y + bar - 3, names + 1, bold=text == most))
        at = {"left": left - start * scale, "scale": scale, "y": y, "height": bar}
        shapes += _steps(steps, own, looks, hovers=len(steps) <= _MAX_HOVERS and row < rows, **at)
        took = _time(steps)
        words = time_text(took) + (
            f" in {count_text(len(steps))} steps" if len(steps) > 1 and row < rows else ""
        )
        x = WIDTH - MARGIN - _SHARE
        shapes.append(canvas.note(words, x, y + bar - 3, _TOOK, anchor="end"))
        share = share_text(took / total, 0)
        shapes.append(
            canvas.text(share, WIDTH - MARGIN, y + bar - 3, _SHARE, anchor="end", bold=text == most)
        )
    return canvas.document(shapes, WIDTH, bottom + 30, f"Critical path: {answer}")


def _steps(
    steps: Sequence[Step],
    own: int,
    looks: Mapping[int, Look],
    *,
    left: float,
    scale: float,
    y: float,
    height: float,
    hovers: bool,
) -> Iterator[str]:
    """Yield the bars of a line: each with a hover text, or those that look alike as one shape."""
    boxes: dict[tuple[TimeKind, bool], list[str]] = {}
    for step in steps:
        x, width = left + step.start_ns * scale, step.duration_ns * scale
        is_own = step.execution == own
        if hovers:
            pale = "" if is_own else f' opacity="{_PALE}"'
            yield (
                f'<rect{looks[step.kind].attributes}{pale} x="{x:.1f}" y="{y:g}" '
                f'width="{max(width, 1.0):.1f}" height="{height:g}">'
                f"<title>{_hover(step)}</title></rect>"
            )
        else:
            box = f"M{x:.1f} {y:g}h{width:.2f}v{height:g}h-{width:.2f}z"
            boxes.setdefault((step.kind, is_own), []).append(box)
    for (kind, is_own), found in boxes.items():
        pale = "" if is_own else f' opacity="{_PALE}"'
        yield f'<path{looks[kind].attributes}{pale} style="stroke:none" d="{"".join(found)}"/>'


def what_if_picture(found: WhatIf) -> str:
    """Return a prediction as the text of an SVG file: figures now and then, and who is busy.

    If the unchanged replay is far off, that is what is shown.
    """
    was = found.measured_throughput, found.measured_latency_ns
    if found.is_far_off:
        then = found.baseline_throughput, found.baseline_latency_ns
        sides, how, spread = ("measured", "replayed"), "the replay has no change in it", None
    else:
        then = found.throughput, found.latency_ns
        sides, how = ("now", "then"), "predicted from measured times"
        # As a share: with a full window, latency is as many periods as there are executions in it.
        spread = None if found.spread is None else found.spread / (found.speedup or 1.0)
    throughput, latency = (
        Change(name, before, after, (0.0, None if spread is None else spread * (after or 0.0)))
        for name, before, after in zip(("executions", "latency (median)"), was, then, strict=True)
    )
    shares = {} if found.is_far_off else found.busy
    busy = [Change(f"{label} busy", *each) for label, each in shares.items()]
    rows = [(each.before or 0.0, each.after or 0.0) for each in busy]
    groups_of = alike_rows([each.text for each in busy], rows, SAME_SHARE)
    folded = [(each, members_text(names)) for each, names in folded_changes(busy, groups_of)]
    busiest = sorted(folded, key=lambda each: -_most(each[0]))[:_MAX_BUSY]
    about = f"{_changes_of(found)} {DOT} {how}"
    if len(busiest) < len(folded):
        about += f" {DOT} the busiest of {len(busy)} processes"
    groups = [
        (throughput, "", _most(throughput), rate_text),
        (latency, "", _most(latency), time_text),
        *((*each, 1.0, share_text) for each in busiest),
    ]
    return _changes_picture(found.answer, about, sides, groups, is_judged=not found.is_far_off)


Compared = tuple[Change, str, float, Callable[[float | None], str]]
"""A change, the hover of its name, the value whose bar is longest, what returns a value as text."""


def compared(found: GraphComparison) -> list[Compared]:
    """Return what a comparison shows: the figures of the graph, and those of the longest ops."""
    longest = max(map(_most, found.ops), default=0.0)
    folded = [(each, members_text(names)) for each, names in alike_ops(found.ops)]
    ops = sorted(folded, key=lambda each: -_most(each[0]))[:_MAX_OPS]
    ops = [each for each in ops if _most(each[0]) >= _SHORT * longest]
    return [
        (found.throughput, "", _most(found.throughput), rate_text),
        (found.latency, "", _most(found.latency), time_text),
        *((*each, longest, time_text) for each in ops),
    ]


def comparison_picture(found: GraphComparison) -> str:
    """Return a comparison as the text of an SVG file: two bars per figure."""
    groups = compared(found)
    about = f" {DOT} ".join(filter(None, [found.title, about_ops(found, groups)]))
    return _changes_picture(found.answer, about, ("before", "after"), groups)


def about_ops(found: GraphComparison, groups: Sequence[Compared]) -> str:
    """Return which ops ``compared`` has: ``the longest 4 of 11 ops``; "" if it has each of them."""
    shown = len(groups) - 2
    return f"the longest {shown} of {len(found.ops)} ops" if shown < len(found.ops) else ""


def _changes_picture(
    answer: str,
    about: str,
    sides: tuple[str, str],
    groups: Sequence[Compared],
    *,
    is_judged: bool = True,
) -> str:
    """Return changes as two bars each; the first two are the figures of the whole graph.

    Each has the hover of its name, the value that is as long as there is room, and what returns a
    value as text. ``sides`` names the two values; ``is_judged``, whether one is better or worse.
    """
    canvas = Canvas()
    canvas.define("before", Paint("fill", "#a3aebb", "#5d6b7a"))
    widths = [width_of(visible(change.text), SIZE, bold=True) for change, *_ in groups]
    widest = min(_MAX_NAME_WIDTH, max(widths))
    left = MARGIN + widest + 14
    columns = (_COLUMN, _COLUMN, _COLUMN * 1.9)
    room = WIDTH - left - MARGIN - sum(columns)
    ends = [WIDTH - MARGIN - sum(columns[at + 1 :]) for at in range(3)]
    said = [judged(change, text_of) if is_judged else "changed" for change, _, _, text_of in groups]
    looks = looks_of_changes(canvas, said)
    shapes = canvas.heading(answer, about, WIDTH - 2 * MARGIN)
    has_verdicts = set(said) != {"changed"}
    legend = [(swatch(canvas.paint("before")), sides[0])]
    legend += [
        (swatch(look), f"{sides[1]}: {meaning_of(word)}" if has_verdicts else sides[1])
        for word, look in looks.items()
    ]
    drawn = canvas.legend(legend, MARGIN, MARGIN + 49, ends[0] - columns[0] - MARGIN)
    shapes += drawn.shapes
    top = _TOP + drawn.height - LEGEND_LINE  # beside its last row stand the heads of the columns
    for name, x, column in zip((*sides, "ratio"), ends, columns, strict=True):
        shapes.append(canvas.note(name, x, top - 4, column, anchor="end"))
    for row, (change, hover, most, text_of) in enumerate(groups):
        y = top + (_LINE + 4) * row + (10 if row > 1 else 0) + 2
        name = canvas.text(change.text, MARGIN, y + 14, widest + 1, bold=row < 2)
        shapes.append(f"<g><title>{escape(hover)}</title>{name}</g>" if hover else name)
        for at, value in enumerate((change.before, change.after)):
            look = looks[said[row]] if at else canvas.paint("before")
            length = room * min((value or 0.0) / most, 1.0) if most else 0.0
            shapes.append(
                f'<rect{look} x="{left:g}" y="{y + 9 * at:g}" '
                f'width="{length:.1f}" height="8" rx="1.5"/>'
            )
        cells = [text_of(change.before), text_of(change.after)]
        if text_of is not share_text:
            cells.append(ratio_and(said[row], change))
        for at, words in enumerate(cells):
            is_strong = at == 2 and said[row] in ("better", "worse", "changed")
            role = "text" if at < 2 or is_strong else "faint"
            shapes.append(
                canvas.text(
                    words,
                    ends[at],
                    y + 14,
                    columns[at] - 6,
                    role=role,
                    bold=is_strong,
                    anchor="end",
                )
            )
    height = top + (_LINE + 4) * len(groups) + 10 + MARGIN
    return canvas.document(shapes, WIDTH, height, f"{answer}: {about}")


def _changes_of(found: WhatIf) -> str:
    return f"if {', '.join(found.changes)}" if found.changes else "nothing changed"


def _axis(canvas: Canvas, total: int, left: float, room: float, bottom: float) -> Iterable[str]:
    for at, label in ticks_of(total, 6):
        x = left + at * room / total
        yield f'<path{canvas.paint("grid")} d="M{x:.1f} {_TOP:g}V{bottom:g}"/>'
        yield canvas.note(label, x, bottom + 16, 80, anchor="middle")


def _hover(step: Step) -> str:
    took = f"{TITLES[step.kind]}: {time_text(step.duration_ns)}"
    return escape(f"{brief(step.text)}\n{took}\nof execution {step.execution}")


def _time(steps: Iterable[Step]) -> int:
    return sum(step.duration_ns for step in steps)


def judged(change: Change, text_of: Callable[[float | None], str]) -> str:
    """Return what is said of a change, a word of ``JUDGED``; ``text_of`` says what it is of.

    Rates are better if they rise, times if they fall; shares are neither.
    """
    if change.ratio is None or text_of not in (rate_text, time_text):
        return "changed"
    if change.is_noise is None:
        return "not known"
    if change.is_noise:
        return "alike"
    return "better" if (change.ratio > 1) == (text_of is rate_text) else "worse"


def meaning_of(word: str) -> str:
    """Return what a word of ``JUDGED`` means, for a legend."""
    meanings = {
        "alike": "no change beyond the noise",
        "not known": "not known, too few executions",
        "changed": "neither better nor worse",
    }
    return meanings.get(word, word)


def looks_of_changes(canvas: Canvas, said: Iterable[str]) -> dict[str, str]:
    """Return the attributes of bars by what is said of them, in the order of ``JUDGED``."""
    canvas.define("better", Paint("fill", "#00875f", "#2fae83"))
    canvas.define("worse", Paint("fill", "#d55e00", "#d55e00"))
    canvas.define("worse-line", Paint("stroke", "#ffd2b3", "#5c2900"))
    canvas.define("alike", Paint("fill", "#7fb8d8", "#33586c"))
    canvas.define("not-known", Paint("fill", "#c9d0d8", "#3d4854"))
    canvas.define("not-known-line", Paint("stroke", "#8b96a3", "#7b8794"))
    canvas.define("changed", Paint("fill", "#0072b2", "#0072b2"))
    found, used = {}, set(said)
    for word in JUDGED:
        role = word.replace(" ", "-")
        if word in used:
            is_hatched = word in ("worse", "not known")
            found[word] = (
                canvas.hatch(role, f"{role}-line", gap=4) if is_hatched else canvas.paint(role)
            )
    return found


def ratio_and(word: str, change: Change) -> str:
    """Return the ratio of a change with what is said of it: ``1.90x ±0.05 better``."""
    ratio = spread_text(change.ratio, change.spread)
    return f"{ratio} {word}" if word in _SAID else ratio


def _most(change: Change) -> float:
    return max(change.before or 0.0, change.after or 0.0)
