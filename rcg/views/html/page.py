# SPDX-License-Identifier: Apache-2.0
"""A trace as one HTML page that needs no network, no script and no rcg.

For each graph it has the topology with measured values, where the time went, the schedule beside
its prediction, the timeline of a few executions and of the whole trace, and tables of the critical
path and of ops. Pictures that a phone could not show whole have a narrow form as well. With many
graphs, the later ones have fewer pictures or none, so that the file stays small.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from rcg.table import escaped
from rcg.text import count_text, plural, time_text, visible
from rcg.trace.analysis.summary import GraphSummary, Summary, ops_table, path_table, stall_text
from rcg.trace.analysis.transfers import reference_sums, references_about, references_table
from rcg.trace.measured import Measured, summarize
from rcg.trace.model import GraphTrace, Recording
from rcg.views.data.lettering import DOT
from rcg.views.data.microbatches import microbatches_of
from rcg.views.html.elements import STYLE, advised, card
from rcg.views.html.interactive import assets, data_of, place_of
from rcg.views.scene import Scene
from rcg.views.scenes.timeline import timeline_scene
from rcg.views.scenes.topology import NARROW_ROOM
from rcg.views.svg.canvas import WIDTH
from rcg.views.svg.pictures import (
    actors_pictures,
    pipeline_picture,
    references_picture,
    schedule_picture,
    summary_picture,
    timeline_picture,
    topology_picture,
    whole_timeline_picture,
)

_MAX_GRAPHS: Final = 6
_MAX_OPS: Final = 2000
_MAX_OPEN: Final = 80  # operations that are shown without a click
_MAX_PARTS: Final = 16  # of the critical path
_MAX_TRANSFERS: Final = 50  # in the table of tensors by reference
_NARROW: Final = 420  # a phone shows it whole
MAX_BYTES: Final = 5_000_000
"""The size of a page."""

_STATIC: Final = 0.8  # of it, for pictures and tables
_MARKED: Final = "; the bottleneck is marked"
_LEFT_OUT: Final = "Pictures or tables of this graph are left out: the page would be too large."

_STYLE: Final = (
    "<style>"
    ":root{color-scheme:light dark}body{margin:0;background:var(--rcg-page)}"
    f"main{{max-width:{WIDTH}px;margin:0 auto;padding:28px 20px 60px}}"
    "main>header h1{font-size:21px;margin:0 0 2px;overflow-wrap:anywhere}"
    "main h2.rcg-graph{font-size:16px;margin:34px 0 2px}"
    "main .rcg-figure,main section.rcg-static,main section.rcg-card{margin:14px 0 0}"
    ".rcg-figure{border:1px solid var(--rcg-line);border-radius:9px;overflow-x:auto;"
    "background:var(--rcg-ground)}"
    ".rcg-figure>svg{display:block;max-width:100%;height:auto}.rcg-fits>svg{width:100%}"
    ".rcg-figure:empty,.rcg-figure.rcg-narrow{display:none}.rcg-narrow>svg{width:100%}"
    # On a phone, what has no narrow form scrolls aside: small text cannot be read.
    "@media (max-width:600px){main{padding:16px 10px 40px}.rcg .rcg-static{padding:14px 12px}"
    ".rcg-figure>svg{max-width:none}.rcg-fits>svg{width:860px;flex:none}"
    # They fade at the edge where they go on; at their end they have a margin.
    ".rcg-fits{display:flex}.rcg-fits::after{content:'';flex:none;position:sticky;right:0;"
    "width:28px;margin-left:-28px;"
    "background:linear-gradient(270deg,var(--rcg-ground) 4px,transparent)}"
    ".rcg-figure.rcg-wide{display:none}.rcg-figure.rcg-narrow{display:block}}"
    "</style>"
)


def page_of(trace: Recording, title: str, *, max_bytes: int = MAX_BYTES) -> str:
    """Return a trace as one HTML file.

    Where scripts run, pictures are replaced with interactive views. Their data takes what is left
    of the limit; if that is too little for all bars of a timeline, its earlier part has sums. If
    tables and pictures would take most of it, pictures of later graphs are left out.
    """
    whole, trace = trace, trace.active
    summary = summarize(trace)
    scenes = [
        timeline_scene(Measured.of(trace, graph)) if graph.num_events else None
        for graph in trace.graphs[:_MAX_GRAPHS]
    ]
    script = assets()
    room = _Room(int(max_bytes * _STATIC))
    tables = [room.take(_tables(each)) for each in summary.graphs]
    is_one = len(summary.graphs) == 1  # its answer is on top of the page, with the advice
    profiles = [room.take(_profile(each, has_answer=not is_one)) for each in summary.graphs]
    references = references_picture(whole)
    transfers = [] if references is None else [_fitting(references), references_card(whole)]
    room.take("".join(transfers))
    parts = [
        _graph(trace, graph, figures, number, known, room, *scenes[number : number + 1])
        for number, (graph, figures, *known) in enumerate(
            zip(trace.graphs, summary.graphs, profiles, tables, strict=True)
        )
    ]
    parts += transfers
    if not parts:
        parts = [card("Nothing", "there was no live graph during the recording", "")]
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escaped(title)}</title>{STYLE}{_STYLE}</head>\n"
        f'<body class="rcg rcg-is-auto"><main><header><h1>{escaped(visible(title))}</h1>'
        f'<p class="rcg-about">{escaped(_about(whole))}</p></header>\n'
        + "".join(_headline(each, of=not is_one) for each in summary.graphs)
        + "\n".join(parts)
        + "\n</main>\n"
    )
    tail = "</body></html>\n"
    left = max_bytes - len((head + script + tail).encode())
    data = _data(trace, summary, scenes, left) if script else ""
    return head + (data + script if data else "") + tail


class _Room:
    """The bytes that are left for tables and pictures."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, text: str) -> str:
        """Return a text if there is room for it, otherwise ""."""
        size = len(text.encode())
        if size > self.left:
            return ""
        self.left -= size
        return text


def _data(
    trace: Recording, summary: Summary, scenes: Sequence[Scene | None], max_bytes: int
) -> str:
    """Return the data of the interactive views; graphs with more bars get more of the bytes."""
    found = []
    left, bars = max_bytes, sum(len(each.bars) for each in scenes if each is not None)
    for number, each in enumerate(scenes):
        if each is not None and len(each.bars):
            most = int(left * max(len(each.bars) / bars, 1 / len(scenes)))
            found.append(data_of(trace, trace.graphs[number], each, number, most))
            left -= len(found[-1])
            bars -= len(each.bars)
    return "".join(found)


def _headline(graph: GraphSummary, *, of: bool) -> str:
    """Return the answer on top of the page; ``of``: whether the graph is named."""
    if graph.stall is not None:
        return f'<p class="rcg-bad rcg-strong">{escaped(stall_text(graph, of=of))}</p>\n'
    if graph.verdict is None:
        return ""
    name = f"{graph.title}: " if of else ""
    advice = () if of else graph.verdict.advice
    answer = escaped(visible(f"{name}{graph.verdict}"))
    return f'<p class="rcg-strong">{answer}</p>\n{advised(advice)}'


def _about(trace: Recording) -> str:
    info = trace.info
    words = []
    if isinstance(began := info.get("time"), int | float):
        words.append(time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(began)))
    if info.get("host"):
        words.append(str(info["host"]))
    if info.get("cores"):
        words.append(f"{info['cores']} cores")
    words.append(time_text(trace.duration_ns))
    words.append(f"{count_text(trace.num_events)} events")
    if trace.lost:
        words.append(f"{count_text(trace.lost)} lost")
    words += filter(None, [trace.inactive_text])
    versions = info.get("versions")
    if isinstance(versions, dict):
        words += [f"{name} {version}" for name, version in versions.items()]
    return f" {DOT} ".join(visible(word) for word in words)


def _graph(
    trace: Recording,
    graph: GraphTrace,
    summary: GraphSummary,
    number: int,
    known: Sequence[str],
    room: _Room,
    timeline: Scene | None = None,
) -> str:
    title = visible(graph.title)
    parts = [f'<h2 class="rcg-graph">{escaped(title)}</h2>'] if len(trace.graphs) > 1 else []
    profile, tables = known
    is_whole = bool(profile) and (bool(tables) or not summary.ops)

    def add(kind: str, draw: Callable[[], str | None], place: str = "") -> None:
        nonlocal is_whole
        picture = (draw() or "") if is_whole else ""
        shown = room.take(picture)
        is_whole &= shown == picture
        # A view may be there although its picture is not: of executions that have not ended.
        if shown or place:
            parts.append(f'<div class="rcg-figure{kind}" {place}>{shown}</div>')

    if number < _MAX_GRAPHS:
        draw = partial(
            topology_picture, graph.plan, title=title, measured=Measured.of(trace, graph)
        )
        parts.append(f"<div {place_of('topology', number)}>")
        add(" rcg-wide", draw)
        add(" rcg-narrow", partial(draw, room=NARROW_ROOM))
        parts.append("</div>")
    parts += [profile] if profile else []
    if timeline is not None:
        fits, of = " rcg-fits", timeline
        if is_whole:
            both = (actors_pictures(trace, graph, width) for width in (WIDTH, _NARROW))
            for (_, wide), (_, narrow) in zip(*both, strict=True):
                add(f"{fits} rcg-wide", partial(str, wide))
                add(" rcg-narrow", partial(str, narrow))
        if microbatches_of(graph.plan):
            add(fits, lambda: pipeline_picture(trace, graph), place_of("pipeline", number))
        add(fits, lambda: schedule_picture(trace, graph), place_of("schedule", number))
        parts.append(f"<div {place_of('timeline', number)}>")  # the view shows what both show
        add(fits, lambda: timeline_picture(trace, graph))
        add(fits, lambda: whole_timeline_picture(trace, of))
        parts.append("</div>")
    if not is_whole:
        parts.append(f'<p class="rcg-about">{_LEFT_OUT}</p>')
    return "\n".join([*parts, tables] if tables else parts)


def _profile(summary: GraphSummary, *, has_answer: bool) -> str:
    wide, narrow = (
        summary_picture(summary, width, has_answer=has_answer) for width in (WIDTH, _NARROW)
    )
    advice = summary.verdict.advice if has_answer and summary.verdict else ()
    return (
        f'<div class="rcg-figure rcg-wide">{wide}</div>\n'
        f'<div class="rcg-figure rcg-narrow">{narrow}</div>{advised(advice)}'
    )


def _fitting(picture: str) -> str:
    return f'<div class="rcg-figure rcg-fits">{picture}</div>'


def _tables(summary: GraphSummary) -> str:
    """Return the cards that are tables: of the critical path, and of operations."""
    operations = _operations(summary)
    if operations:
        about = "longest first; times are without waiting"
        operations = card("Operations", about + _MARKED * bool(summary.limiting_ops), operations)
    return "\n".join(filter(None, [_path(summary), operations]))


def _path(summary: GraphSummary) -> str:
    """Return the critical path of all executions as a card; "" without one."""
    path = summary.critical
    if path is None or not path.shares:
        return ""
    table = path_table(summary, path, _MAX_PARTS)
    about = "what the results waited for, over all executions"
    stalls = "".join(f"<p>{escaped(str(each))}</p>" for each in path.stalls)
    return card("Critical path", about + _MARKED * bool(table.marked), table.html() + stalls)


def _operations(summary: GraphSummary) -> str:
    """Return the tables of operations that have a few rows, and folded those that have many."""
    alike = summary.methods or summary.ops
    tables = {plural(len(alike), "operation"): alike}
    if len(alike) < len(summary.ops):
        tables[f"{plural(len(summary.ops), 'operation')}, each place in a program"] = summary.ops
    return "".join(
        ops_table(summary, ops).html()
        if len(ops) <= _MAX_OPEN and ops is alike
        else f"<details><summary>{name}</summary>{ops_table(summary, ops).html()}</details>"
        for name, ops in tables.items()
        if len(ops) <= _MAX_OPS
    )


def references_card(trace: Recording) -> str:
    """Return the sums of a trace's transfers as HTML without a script; "" without transfers."""
    sums = reference_sums(trace.transfers)
    if not sums:
        return ""
    about = f"{references_about(sums)}, those that took longest first"
    return card("Tensors by reference", about, references_table(sums[:_MAX_TRANSFERS]).html())
