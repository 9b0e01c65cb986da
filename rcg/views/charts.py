# SPDX-License-Identifier: Apache-2.0
"""Charts as plotly figures, which a user restyles, combines and exports.

The pictures of ``svg`` need nothing, and GitHub shows them. A figure of this file needs plotly, and
shows the same facts. Its ground is transparent and its ink legible on light and dark pages, unless
one of them is asked for. Where a notebook stores a figure, it stores rcg's picture beside it, for
viewers without scripts; not once the figure was changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import singledispatch
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from rcg.errors import TraceError
from rcg.text import bytes_text, last_number, plural, share_text, spread_text, time_text
from rcg.trace.analysis.executions import executions_of
from rcg.trace.analysis.figures import Comparison, GraphComparison
from rcg.trace.analysis.latency import BINS
from rcg.trace.analysis.parts import TimeKind
from rcg.trace.analysis.summary import GraphSummary
from rcg.trace.analysis.what_if import WhatIf
from rcg.trace.model import GraphTrace, Recording
from rcg.views.data.colours import EXECUTIONS, HATCHED, KIND_COLOURS, SPAN_COLOUR, TITLES
from rcg.views.data.excerpts import excerpt_of
from rcg.views.data.over_time import busy_share, bytes_on_the_way
from rcg.views.data.slices import OPS, SPAN
from rcg.views.data.slicing import slices_of
from rcg.views.html.elements import images
from rcg.views.html.findings import JUDGED, compared, comparison_picture, judged, what_if_picture
from rcg.views.svg.canvas import SANS
from rcg.views.svg.matrix import matrix_of
from rcg.views.svg.pictures import schedule_picture, summary_picture, timeline_picture

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_INKS: Final = {None: "#767b83", False: "#16191d", True: "#eceff3"}
_LINES: Final = {None: "rgba(128,136,146,.25)", False: "#e3e7eb", True: "#252d37"}
_COLOURS: Final = {
    TITLES[kind]: colour for kind, colour in [*KIND_COLOURS.items(), *HATCHED.items()]
} | {TITLES[SPAN]: SPAN_COLOUR}
_PATTERNS: Final = {"communication": ".", "serialization": "x", "waiting": "/", "idle": "/"}
_STATES: Final = {"running": "#009e73", "waiting": "#e69f00", "idle": "#98a2ae"}
_ROW: Final = 26  # pixels
_MIME: Final = "application/vnd.plotly.v1+json"
_MS: Final = 1e6


class Bar(NamedTuple):
    """A bar of a row: when it begins and how long it is, in ns; what it is, and how it looks."""

    row: str
    start_ns: float
    duration_ns: float
    label: str
    look: str


def timeline_bars(trace: Recording, graph: GraphTrace) -> Iterator[Bar]:
    """Yield what the processes did during a few executions, by kind of time."""
    yield from _bars(trace, graph, lambda kind, _: TITLES[kind])


def schedule_bars(trace: Recording, graph: GraphTrace) -> Iterator[Bar]:
    """Yield the calls of a few executions, by execution."""
    yield from _bars(
        trace,
        graph,
        lambda kind, execution: f"execution {execution}" if kind == TimeKind.COMPUTE else "",
        only_calls=True,
    )


def _bars(
    trace: Recording,
    graph: GraphTrace,
    look_of: Callable[[int, int], str],
    *,
    only_calls: bool = False,
) -> Iterator[Bar]:
    excerpt = excerpt_of(graph, trace.start_ns, trace.end_ns)
    if excerpt is None:
        raise TraceError("no execution is in the trace with all its calls: record for longer")
    found = slices_of(graph, excerpt.start_ns, excerpt.end_ns, trace.start_ns)
    offset = found.start_ns - trace.start_ns
    is_shown = found.where("call") if only_calls else found.track == OPS
    for at in np.flatnonzero(is_shown).tolist():
        execution = int(found.execution[at])
        if look := look_of(int(found.kind[at]), execution):
            name = f"{found.names[found.name[at]].text}, execution {execution}"
            row = found.heads[found.lane[at]].label
            yield Bar(row, float(found.start[at] + offset), float(found.duration[at]), name, look)


def profile_figure(
    kind: str, trace: Recording, graph: GraphTrace, summary: GraphSummary, *, dark: bool | None
) -> Figure:
    """Return a chart of a profile; see ``Profile.figure``.

    Raises:
        ImportError: plotly is not installed.
        ValueError: There is no such kind.
        TraceError: The trace has too little for it.
    """
    title = graph.title
    match kind:
        case "timeline":
            bars = timeline_bars(trace, graph)
            picture = timeline_picture(trace, graph)
            return _gantt(f"Timeline of {title}", bars, dark, picture)
        case "schedule":
            bars = schedule_bars(trace, graph)
            picture = schedule_picture(trace, graph)
            return _gantt(f"Schedule of {title}", bars, dark, picture)
        case "shares":
            return _shares(title, summary, dark)
        case "latency":
            return _latency(title, graph, summary, dark)
        case "idle":
            names, times, shares = busy_share(trace, graph)
            idle = 100 * (1 - shares)
            made = {"type": "heatmap", "z": idle, "x": times / _MS, "y": names, "zmin": 0}
            made |= {"zmax": 100, "colorscale": "Blues", "colorbar": {"title": "idle, %"}}
            made["hovertemplate"] = "%{y}, %{x:.1f} ms: idle %{z:.0f} %<extra></extra>"
            return _figure(f"Idle time of {title}", [made], dark, x="ms", rows=len(names))
        case "memory":
            times, sizes = bytes_on_the_way(trace, graph)
            made = {"type": "scatter", "x": times / _MS, "y": sizes, "line": {"shape": "hv"}}
            about = f"Bytes written and not read yet, {title}"
            return _figure(f"{about}: at most {bytes_text(sizes.max())}", [made], dark, x="ms")
    raise ValueError(
        f"unknown chart {kind!r}: it must be one of timeline, schedule, shares, latency, idle, "
        "memory"
    )


@singledispatch
def figure_of(thing: Any, *, dark: bool | None = None) -> Figure:
    """Return the chart of the result of an analysis, or of a report.

    Raises:
        ImportError: plotly is not installed.
    """
    return _report(thing, dark)  # the types of reports are above this room


@figure_of.register(WhatIf)
def _(found: WhatIf, *, dark: bool | None = None) -> Figure:
    names = list(found.busy)
    sides = [("now", _COLOURS["idle"]), ("then", _COLOURS["compute"])]
    bars = [
        {
            **_bars_of(name, names, colour),
            "x": [100 * each[at] for each in found.busy.values()],
            "text": [share_text(each[at], 0) for each in found.busy.values()],
        }
        for at, (name, colour) in enumerate(sides)
    ]
    title = f"{found.answer}<br><sub>if {', '.join(found.changes) or 'nothing changed'}</sub>"
    made = _figure(title, bars, dark, x="busy, %", rows=2 * len(names))
    return made.with_picture(found.answer, what_if_picture(found))


@figure_of.register(Comparison)
@figure_of.register(GraphComparison)
def _(found: Comparison | GraphComparison, *, dark: bool | None = None) -> Figure:
    if isinstance(found, Comparison):
        if not found.active:
            raise TraceError("no graph is in both traces")
        found = found.active[0]
    rows = [(change, text_of) for change, _, _, text_of in compared(found) if change.ratio]
    bars = []
    for word, (colour, pattern) in JUDGED.items():
        each = [(change, text_of) for change, text_of in rows if judged(change, text_of) == word]
        texts = [f"{spread_text(change.ratio, change.spread)} {word}" for change, _ in each]
        values = [
            f"{text_of(change.before)} to {text_of(change.after)}" for change, text_of in each
        ]
        bars.append(
            {
                **_bars_of(word, [change.text for change, _ in each], colour, pattern),
                "base": 1,
                "textposition": "auto",
                "x": [(change.ratio or 0.0) - 1 for change, _ in each],
                "text": texts,
                "customdata": values,
                "hovertemplate": "%{y}: %{customdata}<extra></extra>",
            }
        )
    title = f"{found.answer}<br><sub>after divided by before</sub>"
    made = _figure(title, bars, dark, x="ratio", rows=len(rows))
    order = [change.text for change, _ in rows]
    made.update_layout(xaxis_type="log", barmode="overlay", yaxis_categoryarray=order)
    made.add_vline(x=1, line={"color": _INKS[dark], "width": 1})
    return made.with_picture(found.answer, comparison_picture(found))


def matrix_figure(
    title: str, rows: Sequence[str], columns: Sequence[str], sizes: Any, dark: bool | None
) -> Figure:
    """Return how many bytes go from each row to each column as a figure."""
    texts = [[bytes_text(each) if each else "" for each in row] for row in sizes.tolist()]
    made = {"type": "heatmap", "z": sizes, "text": texts}
    made |= {"texttemplate": "%{text}", "colorscale": "Blues", "colorbar": {"title": "bytes"}}
    made["hovertemplate"] = "%{text}<extra></extra>"
    found = _figure(title, [made], dark, x="reader", rows=len(rows))
    for axis, names in (("xaxis", columns), ("yaxis", rows)):  # which may be the same twice
        found.update_layout({axis: {"tickvals": [*range(len(names))], "ticktext": list(names)}})
    picture = matrix_of("Who gets how much from whom", title, rows, columns, sizes)
    return found.with_picture(title, picture)


def _bars_of(name: str, rows: Sequence[str], colour: str, pattern: str = "") -> dict[str, Any]:
    """Return the look of the bars of one kind, each in a row; no kind is told by colour alone."""
    shape = {"shape": pattern, "fillmode": "overlay", "fgcolor": "rgba(255,255,255,.55)"}
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": list(rows),
        "marker": {"color": colour, "pattern": {**shape, "solidity": 0.25}},
        "insidetextanchor": "middle",
        "textposition": "inside",
    }


def _gantt(title: str, bars: Iterable[Bar], dark: bool | None, picture: str | None) -> Figure:
    rows: dict[str, None] = {}
    looks: dict[str, list[Bar]] = {}
    for each in bars:
        rows[each.row] = None
        looks.setdefault(each.look, []).append(each)
    made = []
    for look, found in looks.items():
        number = last_number(look)  # of an execution, whose colour is the same in all pictures
        colour = EXECUTIONS[int(number) % len(EXECUTIONS)] if number else _COLOURS[look]
        made.append(
            {
                **_bars_of(look, [each.row for each in found], colour, _PATTERNS.get(look, "")),
                "base": [each.start_ns / _MS for each in found],
                "x": [each.duration_ns / _MS for each in found],
                "text": [last_number(each.label) for each in found if look not in _PATTERNS],
                "textangle": 0,
                "customdata": [f"{each.label}: {time_text(each.duration_ns)}" for each in found],
                "hovertemplate": "%{customdata}<extra>%{y}</extra>",
            }
        )
    found = _figure(title, made, dark, x="ms", rows=len(rows))
    found.update_layout(barmode="overlay", bargap=0.25, uniformtext={"minsize": 8, "mode": "hide"})
    return found.with_picture(title, picture)


def _shares(title: str, summary: GraphSummary, dark: bool | None) -> Figure:
    lanes = summary.shares.lanes
    names = [lane.label for lane in lanes]
    bars = []
    for kind in TimeKind:
        shares = [lane.of(kind) / (lane.duration_ns or 1) for lane in lanes]
        name = TITLES[kind]
        bars.append(
            {
                **_bars_of(name, names, _COLOURS[name], _PATTERNS.get(name, "")),
                "x": [100 * each for each in shares],
                "text": [share_text(each, 0) for each in shares],
                "hovertemplate": f"%{{y}}: {name} %{{text}}<extra></extra>",
            }
        )
    title = f"Where the time of {title} went"
    found = _figure(title, bars, dark, x="%", rows=len(names))
    found.update_layout(barmode="stack", uniformtext={"minsize": 9, "mode": "hide"})
    return found.with_picture(title, summary_picture(summary))


def _latency(title: str, graph: GraphTrace, summary: GraphSummary, dark: bool | None) -> Figure:
    latencies = executions_of(graph).latency_ns / _MS
    if not len(latencies):
        raise TraceError("no execution is in the trace from its submission to its completion")
    made = {"type": "histogram", "x": latencies, "nbinsx": BINS}
    made["marker"] = {"color": _COLOURS["compute"]}
    about = f"Latency of {plural(len(latencies), 'execution')} of {title}"
    found = _figure(about, [made], dark, x="latency, ms")
    found.update_layout(yaxis_title="executions", bargap=0.05)
    line = {"color": _INKS[dark], "width": 1, "dash": "dot"}
    for name, percent, side in (("median", 50, "left"), ("p99", 99, "right")):
        at = float(np.percentile(latencies, percent))
        found.add_vline(
            x=at,
            line=line,
            annotation_text=f"{name} {time_text(at * _MS)}",
            annotation_position=f"top {side}",
        )
    return found.with_picture(about, summary_picture(summary))


def _report(report: Any, dark: bool | None) -> Figure:
    """Return for how long each process of a graph has been in its op."""
    held_up_by = report.held_up_by
    by_state: dict[str, list[Any]] = {}
    for row in report.rows:
        is_stuck = row.first.label in held_up_by and row.state == "running"
        by_state.setdefault("stuck" if is_stuck else row.state, []).append(row)
    bars = [
        {
            **_bars_of(state, [row.label for row in rows], _STATES.get(state, "#b84a00")),
            "x": [row.first.for_s for row in rows],
            "text": [f"{state} {row.since}: {row.op}" for row in rows],
            "textposition": "auto",
        }
        for state, rows in by_state.items()
    ]
    found = _figure(str(report.verdict), bars, dark, x="seconds in this op", rows=len(report.rows))
    found.update_layout(barmode="stack")
    return found


def _figure(
    title: str,
    traces: Sequence[dict[str, Any]],
    dark: bool | None,
    *,
    x: str,
    rows: int = 8,
) -> Any:
    """Return a figure in the look of rcg: no ground, and ink for the page that it is on."""
    try:
        from plotly import graph_objects, io
    except ImportError as error:
        raise ImportError("charts need plotly: pip install 'rcg[notebook]'") from error
    ink, line = _INKS[dark], _LINES[dark]
    axis = {"gridcolor": line, "zerolinecolor": line, "linecolor": line, "automargin": True}
    template = {
        "layout": {
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"color": ink, "family": SANS, "size": 12.5},
            "title": {"x": 0, "y": 1, "yanchor": "top", "pad": {"l": 14, "t": 14}},
            "legend": {
                "orientation": "h",
                "y": 1,
                "yanchor": "bottom",
                "x": 0,
                "traceorder": "normal",
            },
            "margin": {"l": 20, "r": 20, "t": 96, "b": 40},
            "colorway": EXECUTIONS,
            "xaxis": axis,
            "yaxis": axis,
        }
    }

    chart = _chart_type(graph_objects.Figure, io.renderers)(
        list(traces), {"title": {"text": title}, "template": template}
    )
    chart.update_layout(xaxis_title=x, height=160 + _ROW * max(rows, 8))
    if any(each.get("orientation") == "h" or each["type"] == "heatmap" for each in traces):
        chart.update_yaxes(autorange="reversed")  # the first row is on top
    return chart


def _chart_type(figure: Any, renderers: Any) -> Any:
    """Return the type of charts: figures of plotly that are stored with a picture.

    Args:
        figure: plotly's type of figures.
        renderers: plotly's renderers.
    """

    class Chart(figure):
        """A figure; a notebook stores it with rcg's picture, as long as both are the same."""

        _picture = _drawn = ""

        def with_picture(self, alt: str, picture: str | None) -> Any:
            self._picture = images([(alt, picture)]) if picture else ""
            self._drawn = self.to_json() if picture else ""
            return self

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
            is_same = bool(self._picture) and self.to_json() == self._drawn
            html = {"text/html": self._picture} if is_same else {}
            words = re.sub("<[^>]*>", " ", str(self.layout.title.text)).split()
            return {_MIME: found[_MIME], "text/plain": " ".join(["chart:", *words]), **html}

        def __reduce__(self) -> Any:
            return figure, (self.to_dict(),)

    return Chart
