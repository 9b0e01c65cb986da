# SPDX-License-Identifier: Apache-2.0
"""The data for other libraries: a Plotly figure of a trace, a Graphviz source of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rcg.trace.analysis.events import TimeKind
from rcg.trace.measured import Measured
from rcg.views.data.colours import HATCHED, KIND_COLOURS
from rcg.views.data.topology import topology_of
from rcg.views.text import dot_of
from rcg_widgets.subject import recorded, subject_of

if TYPE_CHECKING:
    import graphviz
    import plotly.graph_objects

__all__ = ["figure", "source"]

_KINDS: Final = (
    *((kind, colour, "") for kind, colour in KIND_COLOURS.items()),
    *((kind, colour, "/") for kind, colour in HATCHED.items()),
)


def figure(trace: Any, *, graph: int | str | None = None) -> plotly.graph_objects.Figure:
    """Return a Plotly figure of a trace: where the time of each process went, and latencies.

    Args:
        trace: A trace, a graph of a trace, or an object with one as ``trace``.
        graph: The graph, if the trace has several: its number, or the beginning of its id.

    Raises:
        ImportError: Plotly is not installed.
        TypeError: The argument has no trace.
        TraceError: The trace has no such graph, or it has several and none was chosen.
    """
    try:
        from plotly import graph_objects
        from plotly.subplots import make_subplots
    except ImportError as error:
        raise ImportError("figure() needs Plotly: pip install 'rcg[notebook]'") from error
    subject, record = recorded(trace, graph)
    measured = Measured(record, subject.start_ns, subject.end_ns)
    window, executions = measured.window, measured.executions
    lanes = measured.shares.lanes
    length = max(window[1] - window[0], 1)
    latencies = executions.latency_ns
    scale, unit = (
        (1e6, "ms") if len(latencies) and latencies.max() >= 1e6 else (1e3, "\N{MICRO SIGN}s")
    )
    made = make_subplots(
        rows=1,
        cols=2,
        column_widths=[0.6, 0.4],
        subplot_titles=("share of time", "latency of an execution"),
        horizontal_spacing=0.12,
    )
    labels = [lane.label for lane in lanes]
    for kind, colour, pattern in _KINDS:
        name = kind.name.lower()
        made.add_trace(
            graph_objects.Bar(
                name=name,
                y=labels,
                x=[lane.of(kind) / length for lane in lanes],
                orientation="h",
                marker={"color": colour, "pattern": {"shape": pattern}},
                hovertemplate="%{y}: %{x:.1%} " + name + "<extra></extra>",
            ),
            row=1,
            col=1,
        )
    made.add_trace(
        graph_objects.Histogram(
            x=latencies / scale,
            marker={"color": KIND_COLOURS[TimeKind.COMPUTE]},
            showlegend=False,
            hovertemplate=f"%{{x}} {unit}: %{{y}} executions<extra></extra>",
        ),
        row=1,
        col=2,
    )
    for each in made.layout.annotations:
        each.font.size = 13
    made.update_layout(
        barmode="stack",
        bargap=0.25,
        height=max(300, 130 + 26 * len(labels)),
        margin={"l": 10, "r": 10, "t": 40, "b": 10},
        legend={"orientation": "h", "y": -0.22, "x": 0, "traceorder": "normal"},
        # Legible in light and dark notebooks: a figure does not know the theme.
        font={"size": 12, "color": "#7a8694"},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
    )
    made.update_xaxes(gridcolor="rgba(122,134,148,.25)", zerolinecolor="rgba(122,134,148,.4)")
    made.update_yaxes(gridcolor="rgba(122,134,148,.25)", zerolinecolor="rgba(122,134,148,.4)")
    made.update_xaxes(tickformat=".0%", range=[0, 1], row=1, col=1)
    made.update_xaxes(title=unit, row=1, col=2)
    made.update_yaxes(title="executions", row=1, col=2)
    made.update_yaxes(autorange="reversed", row=1, col=1)
    return made


def source(what: Any, *, graph: int | str | None = None) -> graphviz.Source:
    """Return a plan as a Graphviz source, which Jupyter draws if ``dot`` is installed.

    Args:
        what: A plan, a compiled graph, a trace, or an object with one as ``trace``.
        graph: The graph, if the trace has several: its number, or the beginning of its id.

    Raises:
        ImportError: The package graphviz is not installed.
        TypeError: The argument has no graph.
        TraceError: The trace has no such graph, or it has several and none was chosen.
    """
    try:
        import graphviz
    except ImportError as error:
        raise ImportError("source() needs graphviz: pip install 'rcg[notebook]'") from error
    return graphviz.Source(dot_of(topology_of(subject_of(what, graph).plan)))
