# SPDX-License-Identifier: Apache-2.0
"""Charts as plotly figures, which a user restyles, combines and exports.

The pictures of ``svg`` need nothing, and GitHub shows them. A figure of this file needs plotly, and
shows the same facts. Its ground is transparent and its ink legible on light and dark pages, unless
one of them is asked for. Where a notebook stores a figure, it stores rcg's picture beside it, for
viewers without scripts; not once the figure was changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch
from html import escape
from math import ceil, floor, log10
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rcg.errors import TraceError
from rcg.text import bytes_text, plural, share_text, time_text
from rcg.trace.analysis.alike import Odd, odd_text
from rcg.trace.analysis.comparison import Comparison, GraphComparison
from rcg.trace.analysis.events import TimeKind
from rcg.trace.analysis.highest import high_word, highest
from rcg.trace.analysis.latency import BINS
from rcg.trace.analysis.summary import GraphSummary
from rcg.trace.analysis.what_if import WhatIf
from rcg.trace.measured import Measured
from rcg.trace.model import Recording
from rcg.views.data.colours import EXECUTIONS, HATCHED, HIDDEN, KIND_LOOKS, TINTED, TITLES
from rcg.views.data.excerpts import Excerpt, excerpt_of
from rcg.views.data.lettering import DOT
from rcg.views.data.over_time import WORK, bytes_on_the_way
from rcg.views.html.elements import images
from rcg.views.html.findings import (
    JUDGED,
    about_ops,
    compared,
    comparison_picture,
    judged,
    ratio_and,
    what_if_picture,
)
from rcg.views.scene import Ints, Scene
from rcg.views.scenes.heat import MANY, heat_of, rows_of
from rcg.views.scenes.schedule import schedule_scene
from rcg.views.scenes.timeline import cut_of, part_words
from rcg.views.svg.canvas import SANS
from rcg.views.svg.matrix import matrix_of
from rcg.views.svg.pictures import (
    busy_picture,
    heat_picture,
    memory_picture,
    schedule_picture,
    shares_by_actor,
    summary_picture,
    timeline_picture,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

KINDS: Final = ("timeline", "schedule", "shares", "heat", "latency", "busy", "memory")
"""The charts of a profile."""

_INKS: Final = {None: "#767b83", False: "#16191d", True: "#eceff3"}
_LINES: Final = {None: "rgba(128,136,146,.25)", False: "#e3e7eb", True: "#252d37"}
_KINDS: Final = {
    **{look.title: look.colour for look in KIND_LOOKS},
    **{TITLES[kind]: colour for kind, colour in HATCHED.items()},
    TITLES[HIDDEN]: "#f0c5a3",
}
_PATTERNS: Final = {"communication": ".", "serialization": "x", "waiting": "/", "idle": "/"}
_STATES: Final = {"running": "#009e73", "waiting": "#e69f00", "idle": "#98a2ae"}
_GROUND: Final = "rgba(128,136,146,.22)"  # on light and dark pages
_BLUE: Final = EXECUTIONS[0]
_SHADES: Final = [[0, "rgba(0,114,178,0)"], [1, "rgba(0,114,178,1)"]]  # of nothing: the page
_BUSY: Final = "<br><sub>computes, communicates or serializes; else it waits or is idle</sub>"
_ROW: Final = 26  # pixels
_TITLE: Final = 40  # pixels, of a title of one line; of each more:
_LINE: Final = 14
_NOTE: Final = 16
_LEGEND: Final = 26  # pixels, of a row of a legend
_ENTRIES: Final = 105  # letters, in such a row
_NARROW: Final = 3.0  # a range of ratios
_MANY_POWERS: Final = 4
_MIME: Final = "application/vnd.plotly.v1+json"
_MS: Final = 1e6


def bars_of(measured: Measured, kind: str, part: Excerpt) -> tuple[Scene, Ints]:
    """Return the scene of a picture of a few executions, and those of its bars that a chart has.

    A timeline has what each process did; a schedule the measured calls.
    """
    if kind == "schedule":
        scene = schedule_scene(measured, is_part=True)
        is_shown = scene.where("call")
    else:
        scene = cut_of(measured, (part.start_ns, part.end_ns))
        is_shown = np.ones(len(scene.bars), bool)
    is_process = np.array([not row.part and not row.members for row in scene.rows] or [False])
    return scene, np.flatnonzero(is_shown & is_process[scene.bars.row])


def idle_of(scene: Scene) -> list[tuple[int, int, int]]:
    """Return the time without bars in the rows of processes: the row, the start and the end."""
    found = []
    for at, row in enumerate(scene.rows):
        if row.part or row.members:
            continue
        own = scene.bars.row == at
        until = scene.begin
        for start, end in zip(scene.bars.start[own], scene.bars.end[own], strict=True):
            if start > until:
                found.append((at, until, min(int(start), scene.end)))
            until = max(until, int(end))
        if until < scene.end:
            found.append((at, until, scene.end))
    return [each for each in found if each[1] < each[2]]


def profile_figure(kind: str, trace: Recording, measured: Measured, *, dark: bool | None) -> Figure:
    """Return a chart of a profile; see ``Profile.figure``, which has the errors as well."""
    graph, summary = measured.graph, measured.summary
    match kind:
        case "timeline" | "schedule":
            draw = timeline_picture if kind == "timeline" else schedule_picture
            title, part = f"{kind.capitalize()} of {graph.title}", excerpt_of(measured)
            if part is None:
                raise TraceError(
                    "no execution is in the trace with all its calls: record for longer"
                )
            make = _timeline if kind == "timeline" else _schedule
            return make(title, measured, part, dark).with_picture(draw(trace, graph))
        case "shares":
            is_many = len(graph.plan.actors) >= MANY
            picture = shares_by_actor(trace, graph) if is_many else summary_picture(summary)
            lanes = rows_of(measured)[1] if is_many else range(len(graph.lanes))
            return _shares(summary, dark, lanes, is_sorted=is_many).with_picture(picture)
        case "latency":
            return _latency(measured, dark).with_picture(summary_picture(summary))
        case "heat":
            title = f"Computing actors of {graph.title}"
            found = _over_time(title, measured, "computing", (TimeKind.COMPUTE,), dark)
            return found.with_picture(heat_picture(trace, graph))
        case "busy":
            title = f"Busy actors of {graph.title}{_BUSY}"
            found = _over_time(title, measured, "busy", WORK, dark)
            return found.with_picture(busy_picture(trace, graph))
        case "memory":
            times, sizes = bytes_on_the_way(measured)
            title = f"Bytes of {graph.title} that were written and not read yet"
            title += f": at most {bytes_text(sizes.max())}"
            line = {
                "type": "scatter",
                "x": times / _MS,
                "y": sizes,
                "line": {"shape": "hv"},
                "customdata": [bytes_text(each) for each in sizes.tolist()],
                "hovertemplate": "%{x:.1f} ms: %{customdata}<extra></extra>",
            }
            found = _figure(title, [line], dark, x="ms")
            at = ticks_up_to(float(sizes.max()))
            found.update_yaxes(tickvals=at, ticktext=[bytes_text(each) for each in at])
            return found.with_picture(memory_picture(trace, graph))
    raise ValueError(f"unknown chart {kind!r}: it must be one of {', '.join(KINDS)}")


@singledispatch
def figure_of(thing: Any, *, dark: bool | None = None) -> Figure:
    """Return the chart of the result of an analysis, or of a report.

    Raises:
        ImportError: plotly is not installed.
    """
    return _report(thing, dark)  # the types of reports are above this room


@figure_of.register(WhatIf)
def _(found: WhatIf, *, dark: bool | None = None) -> Figure:
    bars = [
        _bars(
            name,
            list(found.busy),
            [100 * each[at] for each in found.busy.values()],
            [share_text(each[at], 0) for each in found.busy.values()],
            colour,
        )
        for at, (name, colour) in enumerate((("now", HATCHED[TimeKind.IDLE]), ("then", _BLUE)))
    ]
    title = f"{found.answer}<br><sub>if {', '.join(found.changes) or 'nothing changed'}</sub>"
    made = _figure(title, bars, dark, x="busy, %", rows=2 * len(found.busy))
    return made.with_picture(what_if_picture(found))


@figure_of.register(Comparison)
@figure_of.register(GraphComparison)
def _(found: Comparison | GraphComparison, *, dark: bool | None = None) -> Figure:
    if isinstance(found, Comparison):
        if not found.active:
            raise TraceError("no graph is in both traces")
        found = found.active[0]
    every = compared(found)
    rows = [(change, text_of) for change, _, _, text_of in every if change.ratio]
    bars = []
    for word, (colour, pattern) in JUDGED.items():
        said = [(each, text_of) for each, text_of in rows if judged(each, text_of) == word]
        bars.append(
            _bars(
                word,
                [each.text for each, _ in said],
                [(each.ratio or 0.0) - 1 for each, _ in said],
                [ratio_and(word, each) for each, _ in said],
                colour,
                pattern,
                base=1,
                hovers=[f"{text(each.before)} to {text(each.after)}" for each, text in said],
            )
        )
    words = ["after divided by before", about_ops(found, every)]
    if len(rows) < len(every):
        words.append(f"{len(every) - len(rows)} more without a ratio")
    title = f"{found.answer}<br><sub>{f' {DOT} '.join(filter(None, words))}</sub>"
    made = _figure(title, [each for each in bars if each["y"]], dark, x="ratio", rows=len(rows))
    order = [change.text for change, _ in rows]
    made.update_layout(xaxis_type="log", barmode="overlay", yaxis_categoryarray=order)
    at = ratio_ticks([change.ratio or 1.0 for change, _ in rows])
    made.update_xaxes(tickvals=at, ticktext=[f"{each:g}x" for each in at])
    made.add_vline(x=1, line={"color": _INKS[dark], "width": 1})
    return made.with_picture(comparison_picture(found))


def matrix_figure(
    title: str, rows: Sequence[str], columns: Sequence[str], sizes: Any, dark: bool | None
) -> Figure:
    """Return how many bytes go from each row to each column as a figure."""
    made = {
        "z": sizes,
        "text": [[bytes_text(each) if each else "" for each in row] for row in sizes.tolist()],
        "texttemplate": "%{text}",
        "colorbar": {"title": "bytes"},
        "hovertemplate": "%{text}<extra></extra>",
    }
    found = _heatmap(title, made, dark, "reader")
    for axis, names in (("xaxis", columns), ("yaxis", rows)):  # which may be the same twice
        found.update_layout({axis: {"tickvals": [*range(len(names))], "ticktext": list(names)}})
    picture = matrix_of("Who gets how much from whom", title, rows, columns, sizes)
    return found.with_picture(picture)


def _timeline(title: str, measured: Measured, part: Excerpt, dark: bool | None) -> Any:
    scene, shown = bars_of(measured, "timeline", part)
    kinds = scene.bars.kind[shown]
    made = [
        _bars_of_scene(scene, shown[kinds == kind], TITLES[kind], _KINDS[TITLES[kind]])
        for kind in np.unique(kinds).tolist()
    ]
    title += f"<br><sub>{part_words(scene, part)}</sub>"
    idle = idle_of(scene)
    if idle:
        name = TITLES[TimeKind.IDLE]
        rows = [scene.rows[row].label for row, _, _ in idle]
        made.append(
            _bars(
                name,
                rows,
                [(end - start) / _MS for _, start, end in idle],
                [""] * len(idle),
                _GROUND,
                _PATTERNS[name],
                base=[start / _MS for _, start, _ in idle],
                hovers=[
                    f"{escape(row)}: {name} {time_text(end - start)}"
                    for row, (_, start, end) in zip(rows, idle, strict=True)
                ],
            )
        )
    return _gantt(title, scene, made, dark)


def _schedule(title: str, measured: Measured, part: Excerpt, dark: bool | None) -> Any:
    """Return the calls; a legend's entry is an execution, or a method that is called repeatedly."""
    scene, shown = bars_of(measured, "schedule", part)
    title += f"<br><sub>{part_words(scene, part)}</sub>"
    bars, entries = scene.bars, dict[str, list[int]]()
    has_several = part.first != part.last
    others = "other executions" if scene.repeats > 1 else "others"
    for at in shown[np.lexsort((bars.start[shown], bars.execution[shown]))].tolist():
        execution, name = int(bars.execution[at]), scene.names[bars.name[at]]
        words = [f"execution {execution}"] if has_several or scene.repeats == 1 else []
        if scene.repeats > 1:
            words.append(f"{name.text} ({name.initial})" if name.initial else name.text)
        is_of_part = part.first <= execution <= part.last
        entries.setdefault(": ".join(words) if is_of_part else others, []).append(at)
    entries = {name: entries[name] for name in sorted(entries, key=others.__eq__)}
    made = []
    for name, own in entries.items():
        looks = [scene.looks[look] for look in bars.look[own]]
        colours = [_tint(each.colour) if each.style == TINTED else each.colour for each in looks]
        found = _bars_of_scene(scene, np.array(own), name, colours)
        found["marker"]["line"] = {"color": [each.colour for each in looks], "width": 1}
        made.append(found)
    return _gantt(title, scene, made, dark)


def _bars_of_scene(
    scene: Scene, which: Ints, name: str, colour: str | Sequence[str]
) -> dict[str, Any]:
    """Return bars of a scene, with its words."""
    bars, pattern = scene.bars, _PATTERNS.get(name, "")
    return _bars(
        name,
        [scene.rows[row].label for row in bars.row[which]],
        (bars.duration[which] / _MS).tolist(),
        # No letters on patterns: the hover text has them.
        ["" if pattern else (scene.labels(at) or [""])[-1] for at in which.tolist()],
        colour,
        pattern,
        base=(bars.start[which] / _MS).tolist(),
        hovers=["<br>".join(map(escape, scene.hover(at))) for at in which.tolist()],
    )


def _gantt(title: str, scene: Scene, bars: Sequence[dict[str, Any]], dark: bool | None) -> Any:
    shown = {label for each in bars for label in each["y"]}
    labels = [row.label for row in scene.rows if row.label in shown]
    labels = list(dict.fromkeys(labels))  # a process has several rows in a scene
    chart = _figure(title, bars, dark, x="ms", rows=len(labels))
    chart.update_layout(barmode="overlay", bargap=0.25)
    chart.update_xaxes(range=[scene.begin / _MS, scene.end / _MS])
    chart.update_yaxes(categoryorder="array", categoryarray=labels)
    return chart.update_traces(textposition="inside", hovertemplate="%{customdata}<extra></extra>")


def _tint(colour: str) -> str:
    """Return half of a colour and half of white: an opaque one, so that its label is legible."""
    parts = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return "#" + "".join(f"{(each + 255) // 2:02x}" for each in parts)


def _over_time(
    title: str, measured: Measured, what: str, kinds: Sequence[TimeKind], dark: bool | None
) -> Any:
    """Return for which share of each slice of the time actors do that, as the picture has it."""
    heat = heat_of(measured, kinds)
    odd = measured.summary.odd
    made = {
        "x": (heat.edges[1:] + heat.edges[:-1]) / 2 / _MS,
        "y": _named([row.label for row in heat.rows], odd),
        "z": 100 * heat.shares,
        "zmin": 0,
        "zmax": 100,
        "colorscale": _SHADES,
        "colorbar": {"title": f"{what}, %"},
        "hovertemplate": f"%{{y}}, %{{x:.1f}} ms: {what} %{{z:.0f}} %<extra></extra>",
    }
    return _heatmap(_with_odd(title, odd), made, dark, "ms")


def _named(labels: Sequence[str], odd: Mapping[str, Odd]) -> list[str]:
    """Return the names of rows; those that stand out say how."""
    return [f"<b>{each}, {odd[each]}</b>" if each in odd else each for each in labels]


def _with_odd(title: str, odd: Mapping[str, Odd]) -> str:
    return f"{title}<br><sub>{odd_text(odd)}</sub>" if odd else title


def _shares(
    summary: GraphSummary, dark: bool | None, which: Iterable[int], *, is_sorted: bool
) -> Any:
    """Return where the time of some processes went, which are the numbers of their lanes."""
    lanes, odd = [summary.shares.lanes[at] for at in which], summary.odd
    if is_sorted:
        lanes.sort(key=lambda lane: -lane.compute_ns)
    bars = []
    for kind in TimeKind:
        shares, name = [lane.of(kind) / (lane.duration_ns or 1) for lane in lanes], TITLES[kind]
        bars.append(
            _bars(
                name,
                _named([lane.label for lane in lanes], odd),
                [100 * each for each in shares],
                [share_text(each, 0) for each in shares],
                _KINDS[name],
                _PATTERNS.get(name, ""),
            )
        )
    title = _with_odd(f"Where the time of {summary.title} went", odd)
    found = _figure(title, bars, dark, x="%", rows=len(lanes))
    found.update_layout(barmode="stack", legend_traceorder="normal")
    return found.update_traces(textposition="inside")


def _latency(measured: Measured, dark: bool | None) -> Any:
    latencies = measured.executions.latency_ns / _MS
    if not len(latencies):
        raise TraceError("no execution is in the trace from its submission to its completion")
    made = {"type": "histogram", "x": latencies, "nbinsx": BINS, "marker": {"color": _BLUE}}
    title = f"Latency of {plural(len(latencies), 'execution')} of {measured.graph.title}"
    found = _figure(title, [made], dark, x="latency, ms", notes=2)
    found.update_layout(yaxis_title="executions", bargap=0.05)
    high = high_word(len(latencies)), highest(latencies), "right", 0
    for name, at, side, lift in (("median", float(np.median(latencies)), "left", _NOTE), high):
        found.add_vline(
            x=at,
            line={"color": _INKS[dark], "width": 1, "dash": "dot"},
            annotation_text=f"{name} {time_text(at * _MS)}",
            annotation_position=f"top {side}",
            annotation_yanchor="bottom",  # above all bars
            annotation_yshift=lift,  # so that both are legible where they are close
        )
    return found


def _report(report: Any, dark: bool | None) -> Any:
    """Return for how long each process of a graph has been in its op."""
    held_up_by = report.held_up_by
    by_state: dict[str, list[Any]] = {}
    for row in report.rows:
        is_stuck = row.first.label in held_up_by and row.state in ("running", "waiting")
        by_state.setdefault("stuck" if is_stuck else row.state, []).append(row)
    bars = [
        _bars(
            state,
            [row.label for row in rows],
            [row.first.for_s for row in rows],
            [f"{state} {row.since}: {row.where}" for row in rows],
            _STATES.get(state, "#b84a00"),
        )
        for state, rows in by_state.items()
    ]
    title, count = str(report.verdict), len(report.rows)
    found = _figure(title, bars, dark, x="seconds there", rows=count)
    found.update_layout(barmode="stack")
    return found


# --- plotly ---------------------------------------------------------------------------------------


def _bars(
    name: str,
    rows: Sequence[str],
    lengths: Sequence[float],
    texts: Sequence[str],
    colour: str | Sequence[str],
    pattern: str = "",
    *,
    base: Any = None,
    hovers: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return the bars of one kind, each in a row; no kind is told by colour alone."""
    look = {"fillmode": "overlay", "fgcolor": "rgba(255,255,255,.55)", "solidity": 0.25}
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": list(rows),
        "x": list(lengths),
        "base": base,
        "text": list(texts),
        "textangle": 0,
        "insidetextanchor": "middle",
        "customdata": list(hovers or texts),
        "hovertemplate": f"%{{y}}: %{{customdata}}<extra>{name}</extra>",
        "marker": {"color": colour, "pattern": {"shape": pattern, **look}},
    }


def ratio_ticks(ratios: Sequence[float]) -> list[float]:
    """Return ticks for a logarithmic axis of ratios.

    >>> ratio_ticks([0.18, 2.1]), ratio_ticks([0.9, 1.3])
    ([0.1, 0.2, 0.5, 1.0, 2.0, 5.0], [0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4])
    >>> ratio_ticks([])
    [0.98, 1.0, 1.02]
    """
    low, high = min([1.0, *ratios]), max([1.0, *ratios])
    if high / low < _NARROW:  # where a logarithm is nearly a line
        step = _step(high - low or 0.1)
        return [round(at * step, 6) for at in range(floor(low / step) - 1, ceil(high / step) + 2)]
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    digits = (1, 2, 5) if len(powers) <= _MANY_POWERS else (1,)
    ticks = [round(digit * 10.0**power, 9) for power in powers for digit in digits]
    inside = [at for at, each in enumerate(ticks) if low <= each <= high]
    return ticks[max(inside[0] - 1, 0) : inside[-1] + 2]


def ticks_up_to(most: float) -> list[float]:
    """Return ticks from 0 to a number or the next one above it.

    >>> ticks_up_to(8_192_000)
    [0, 2000000, 4000000, 6000000, 8000000, 10000000]
    """
    step = max(round(_step(most)), 1)
    return [step * at for at in range(ceil(most / step) + 1)]


def _step(length: float) -> float:
    """Return a round step for about five ticks."""
    wanted = length / 5 or 1.0
    power = 10.0 ** floor(log10(wanted))
    return next(power * each for each in (1, 2, 5, 10) if power * each >= wanted * 0.999)


def _heatmap(title: str, trace: dict[str, Any], dark: bool | None, x: str) -> Any:
    made = {"type": "heatmap", "colorscale": "Blues", **trace}
    return _figure(title, [made], dark, x=x, rows=len(trace["z"]))


def _figure(
    title: str,
    traces: Sequence[dict[str, Any]],
    dark: bool | None,
    *,
    x: str,
    rows: int = 8,
    notes: int = 0,
) -> Any:
    """Return a figure in the look of rcg: no ground, and ink for the page that it is on.

    Args:
        title: The title; the lines after the first are smaller.
        traces: What is in it, as plotly has it.
        dark: For which page its ink is.
        x: The title of its horizontal axis.
        rows: How many rows it is high.
        notes: How many lines of notes stand above the plot.
    """
    try:
        from plotly import graph_objects, io
    except ImportError as error:
        raise ImportError("charts need plotly: pip install 'rcg[notebook]'") from error
    ink, line = _INKS[dark], _LINES[dark]
    axis = {
        "gridcolor": line,
        "zerolinecolor": line,
        "linecolor": line,
        "automargin": True,
        "ticks": "outside",
        "tickcolor": "rgba(0,0,0,0)",  # which only keeps labels off the plot
        "title": {"standoff": 6, "font": {"size": 12.5}},
    }
    template = {
        "layout": {
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"color": ink, "family": SANS, "size": 12.5},
            "title": {"x": 0, "y": 1, "yanchor": "top", "pad": {"l": 14, "t": 14}},
            "legend": {"orientation": "h", "y": 1, "yanchor": "bottom", "x": 0},
            "margin": {"l": 20, "r": 20, "b": 56},
            "colorway": EXECUTIONS,
            "uniformtext": {"minsize": 8, "mode": "hide"},
            "xaxis": axis,
            "yaxis": axis,
        },
        "data": {
            "heatmap": [{"colorbar": {"title": {"font": {"size": 12.5}}, "outlinewidth": 0}}],
        },
    }
    chart = _chart_type(graph_objects.Figure, io.renderers)(
        list(traces), {"title": {"text": _headed(title, dark)}, "template": template}
    )
    entries = [len(each["name"]) + 6 for each in traces] if len(traces) > 1 else []
    # Plotly has entries of several rows in columns of one width.
    letters = sum(entries) if sum(entries) <= _ENTRIES else len(entries) * max(entries)
    top = _TITLE + _LINE * title.count("<br>") + _LEGEND * ceil(letters / _ENTRIES) + _NOTE * notes
    top += 0 if entries else 8
    height = top + 64 + _ROW * max(rows, 5)
    chart.update_layout(xaxis_title_text=x, margin_t=top, height=height)
    if any(each.get("orientation") == "h" or each["type"] == "heatmap" for each in traces):
        chart.update_yaxes(autorange="reversed")  # the first row is on top
    return chart


def _headed(title: str, dark: bool | None) -> str:
    """Return a title in bold, with the rest of it below.

    Its ink is that of the page if JupyterLab or VS Code states one: they may be dark.
    """
    first, *rest = title.split("<br>", 1)
    words = "<br>".join([f"<b>{first}</b>", *rest])
    if dark is not None:
        return words
    ink = f"var(--jp-ui-font-color1,var(--vscode-editor-foreground,{_INKS[dark]}))"
    return f'<span style="color:{ink}">{words}</span>'


def _chart_type(figure: Any, renderers: Any) -> Any:
    """Return the type of charts, of plotly's type of figures and its renderers."""

    class Chart(figure):
        """A figure; a notebook stores it with rcg's picture, as long as both are the same."""

        _picture = _drawn = ""

        def with_picture(self, picture: str | None) -> Any:
            if picture:
                self._picture, self._drawn = images([(self._words(), picture)]), self.to_json()
            return self

        def _words(self) -> str:
            return " ".join(re.sub("<[^>]*>", " ", str(self.layout.title.text)).split())

        def _is_for_notebooks(self) -> bool:
            return "plotly_mimetype" in str(renderers.default)

        def _ipython_display_(self) -> None:
            if self._is_for_notebooks():
                raise NotImplementedError("the mimebundle is shown")
            super()._ipython_display_()

        def _repr_mimebundle_(self, *given: Any, **options: Any) -> dict[str, Any]:
            found: dict[str, Any] = super()._repr_mimebundle_(*given, **options)
            if not self._is_for_notebooks():
                return found
            # plotly's HTML has megabytes of script, which viewers without a kernel remove.
            bundle = {_MIME: found[_MIME], "text/plain": f"chart: {self._words()}"}
            if self._picture and self.to_json() == self._drawn:
                bundle["text/html"] = self._picture
            return bundle

        def __reduce__(self) -> Any:
            return figure, (self.to_dict(),)

    return Chart
