# SPDX-License-Identifier: Apache-2.0
"""Charts as plotly figures, which a user restyles, combines and exports.

The pictures of ``svg`` need nothing, and GitHub shows them. A figure of this file needs plotly, and
shows the same facts. Its ground is transparent and its ink legible on light and dark pages, unless
one of them is asked for. Where a notebook stores a figure, it stores rcg's picture beside it, for
viewers without scripts; not once the figure was changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import singledispatch
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from rcg.errors import TraceError
from rcg.text import bytes_text, last_number, plural, share_text, spread_text, time_text
from rcg.trace.analysis.comparison import Comparison, GraphComparison
from rcg.trace.analysis.events import TimeKind
from rcg.trace.analysis.latency import BINS
from rcg.trace.analysis.summary import GraphSummary
from rcg.trace.analysis.what_if import WhatIf
from rcg.trace.measured import Measured
from rcg.trace.model import Recording
from rcg.views.data.alike import Odd, odd_text
from rcg.views.data.colours import EXECUTIONS, HATCHED, HIDDEN, KIND_LOOKS, TITLES
from rcg.views.data.excerpts import excerpt_of
from rcg.views.data.figures import odd_actors
from rcg.views.data.over_time import WORK, bytes_on_the_way, shares_over_time
from rcg.views.html.elements import images
from rcg.views.html.findings import JUDGED, compared, comparison_picture, judged, what_if_picture
from rcg.views.scenes.heat import MANY
from rcg.views.scenes.timeline import cut_of
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

KINDS: Final = ("timeline", "schedule", "shares", "heat", "latency", "idle", "memory")
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
_BLUE: Final = EXECUTIONS[0]
_ROW: Final = 26  # pixels
_SLICES: Final = 200  # of the time
_MIME: Final = "application/vnd.plotly.v1+json"
_MS: Final = 1e6


class Bar(NamedTuple):
    """A bar of a row: when it begins and how long it is, in ns; what it is, and how it looks."""

    row: str
    start_ns: float
    duration_ns: float
    label: str
    look: str


def bars_of(measured: Measured, kind: str) -> Iterator[Bar]:
    """Yield what the processes did during a few executions.

    In a timeline the looks are the kinds of time; a schedule has calls only, by execution.

    Raises:
        TraceError: No execution is in the trace with all its calls.
    """
    part = excerpt_of(measured)
    if part is None:
        raise TraceError("no execution is in the trace with all its calls: record for longer")
    scene = cut_of(measured, (part.start_ns, part.end_ns))
    bars, is_schedule = scene.bars, kind == "schedule"
    is_shown = np.array([not row.part for row in scene.rows] or [True])[bars.row]
    if is_schedule:
        is_shown = scene.where("call") & (bars.kind == TimeKind.COMPUTE)
    for at in np.flatnonzero(is_shown).tolist():
        execution = f"execution {bars.execution[at]}"
        yield Bar(
            scene.rows[bars.row[at]].label,
            float(bars.start[at]),
            float(bars.duration[at]),
            f"{scene.names[bars.name[at]].text}, {execution}",
            execution if is_schedule else TITLES[int(bars.kind[at])],
        )


def profile_figure(kind: str, trace: Recording, measured: Measured, *, dark: bool | None) -> Figure:
    """Return a chart of a profile; see ``Profile.figure``, which has the errors as well."""
    graph, summary = measured.graph, measured.summary
    match kind:
        case "timeline" | "schedule":
            draw = timeline_picture if kind == "timeline" else schedule_picture
            title = f"{kind.capitalize()} of {graph.title}"
            found = _gantt(title, bars_of(measured, kind), dark)
            return found.with_picture(draw(trace, graph))
        case "shares":
            is_many = len(graph.plan.actors) >= MANY
            picture = shares_by_actor(trace, graph) if is_many else summary_picture(summary)
            return _shares(summary, dark, is_sorted=is_many).with_picture(picture)
        case "latency":
            return _latency(measured, dark).with_picture(summary_picture(summary))
        case "heat":
            title = f"Computing of {graph.title}"
            found = _over_time(title, measured, "computing", (TimeKind.COMPUTE,), dark)
            return found.with_picture(heat_picture(trace, graph))
        case "idle":
            found = _over_time(f"Idle time of {graph.title}", measured, "idle", WORK, dark)
            return found.with_picture(busy_picture(trace, graph))
        case "memory":
            times, sizes = bytes_on_the_way(measured)
            title = f"Bytes of {graph.title} that were written and not read yet"
            title += f": at most {bytes_text(sizes.max())}"
            line = {"type": "scatter", "x": times / _MS, "y": sizes, "line": {"shape": "hv"}}
            found = _figure(title, [line], dark, x="ms")
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
    rows = [(change, text_of) for change, _, _, text_of in compared(found) if change.ratio]
    bars = []
    for word, (colour, pattern) in JUDGED.items():
        said = [(each, text_of) for each, text_of in rows if judged(each, text_of) == word]
        bars.append(
            _bars(
                word,
                [each.text for each, _ in said],
                [(each.ratio or 0.0) - 1 for each, _ in said],
                [f"{spread_text(each.ratio, each.spread)} {word}" for each, _ in said],
                colour,
                pattern,
                base=1,
                hovers=[f"{text(each.before)} to {text(each.after)}" for each, text in said],
            )
        )
    title = f"{found.answer}<br><sub>after divided by before</sub>"
    made = _figure(title, [each for each in bars if each["y"]], dark, x="ratio", rows=len(rows))
    order = [change.text for change, _ in rows]
    made.update_layout(xaxis_type="log", barmode="overlay", yaxis_categoryarray=order)
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


def _gantt(title: str, bars: Iterable[Bar], dark: bool | None) -> Any:
    by_look: dict[str, list[Bar]] = {}
    for each in bars:
        by_look.setdefault(each.look, []).append(each)
    made = []
    for look, found in by_look.items():
        number = last_number(look)  # of an execution, whose colour is the same in all pictures
        colour = EXECUTIONS[int(number) % len(EXECUTIONS)] if number else _KINDS[look]
        made.append(
            _bars(
                look,
                [each.row for each in found],
                [each.duration_ns / _MS for each in found],
                [last_number(each.label) for each in found if look not in _PATTERNS],
                colour,
                _PATTERNS.get(look, ""),
                base=[each.start_ns / _MS for each in found],
                hovers=[f"{each.label}: {time_text(each.duration_ns)}" for each in found],
            )
        )
    rows = len({each.row for found in by_look.values() for each in found})
    chart = _figure(title, made, dark, x="ms", rows=rows)
    chart.update_layout(barmode="overlay", bargap=0.25)
    return chart.update_traces(textposition="inside")


def _over_time(
    title: str, measured: Measured, what: str, kinds: Sequence[TimeKind], dark: bool | None
) -> Any:
    """Return for which share of each slice of the time processes compute, or are idle."""
    edges, shares = shares_over_time(measured, kinds, *measured.window, _SLICES)
    shown = 1 - shares if what == "idle" else shares
    odd = odd_actors(measured.summary)
    made = {
        "x": (edges[1:] + edges[:-1]) / 2 / _MS,
        "y": _named([lane.label for lane in measured.graph.lanes], odd),
        "z": 100 * shown,
        "zmin": 0,
        "zmax": 100,
        "colorbar": {"title": f"{what}, %"},
        "hovertemplate": f"%{{y}}, %{{x:.1f}} ms: {what} %{{z:.0f}} %<extra></extra>",
    }
    return _heatmap(_with_odd(title, odd), made, dark, "ms")


def _named(labels: Sequence[str], odd: Mapping[str, Odd]) -> list[str]:
    """Return the names of rows; those that stand out say how."""
    return [f"<b>{each}, {odd[each]}</b>" if each in odd else each for each in labels]


def _with_odd(title: str, odd: Mapping[str, Odd]) -> str:
    return f"{title}<br><sub>{odd_text(odd)}</sub>" if odd else title


def _shares(summary: GraphSummary, dark: bool | None, *, is_sorted: bool) -> Any:
    lanes, odd = list(summary.shares.lanes), odd_actors(summary)
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
    found = _figure(title, [made], dark, x="latency, ms")
    found.update_layout(yaxis_title="executions", bargap=0.05)
    for name, percent, side in (("median", 50, "left"), ("p99", 99, "right")):
        at = float(np.percentile(latencies, percent))
        found.add_vline(
            x=at,
            line={"color": _INKS[dark], "width": 1, "dash": "dot"},
            annotation_text=f"{name} {time_text(at * _MS)}",
            annotation_position=f"top {side}",
        )
    return found


def _report(report: Any, dark: bool | None) -> Any:
    """Return for how long each process of a graph has been in its op."""
    held_up_by = report.held_up_by
    by_state: dict[str, list[Any]] = {}
    for row in report.rows:
        is_stuck = row.first.label in held_up_by and row.state == "running"
        by_state.setdefault("stuck" if is_stuck else row.state, []).append(row)
    bars = [
        _bars(
            state,
            [row.label for row in rows],
            [row.first.for_s for row in rows],
            [f"{state} {row.since}: {row.op}" for row in rows],
            _STATES.get(state, "#b84a00"),
        )
        for state, rows in by_state.items()
    ]
    title, count = str(report.verdict), len(report.rows)
    found = _figure(title, bars, dark, x="seconds in this op", rows=count)
    found.update_layout(barmode="stack")
    return found


# --- plotly ---------------------------------------------------------------------------------------


def _bars(
    name: str,
    rows: Sequence[str],
    lengths: Sequence[float],
    texts: Sequence[str],
    colour: str,
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


def _heatmap(title: str, trace: dict[str, Any], dark: bool | None, x: str) -> Any:
    made = {"type": "heatmap", "colorscale": "Blues", **trace}
    return _figure(title, [made], dark, x=x, rows=len(trace["z"]))


def _figure(
    title: str, traces: Sequence[dict[str, Any]], dark: bool | None, *, x: str, rows: int = 8
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
            "legend": {"orientation": "h", "y": 1, "yanchor": "bottom", "x": 0},
            "margin": {"l": 20, "r": 20, "t": 96, "b": 40},
            "colorway": EXECUTIONS,
            "uniformtext": {"minsize": 8, "mode": "hide"},
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
