# SPDX-License-Identifier: Apache-2.0
"""A profile: a trace with its analysis, as figures, text, pictures and files.

``with rcg.profile() as p`` makes one; ``Profile(Trace.load(path))`` makes one of a trace that was
saved. This room puts analysis and views together; it must not know how traces are recorded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rcg.errors import TraceError
from rcg.ir.costs import CallCosts
from rcg.text import plural
from rcg.trace.analysis.costs import call_costs_of
from rcg.trace.analysis.critical import CriticalPath, critical_path
from rcg.trace.analysis.executions import Executions, executions_of
from rcg.trace.analysis.figures import Comparison, compare, summarize
from rcg.trace.analysis.summary import Summary
from rcg.trace.analysis.what_if import WhatIf, what_if
from rcg.trace.model import GraphTrace
from rcg.trace.trace import Trace
from rcg.views.html.mimebundle import of_trace, text_of
from rcg.views.html.page import page_of

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure


class Profile:
    """The recorded executions of graphs. Prints as a summary; a notebook shows pictures.

    Args:
        trace: The recorded trace; None while recording.
    """

    def __init__(self, trace: Trace | None = None) -> None:
        self._trace = trace

    def complete(self, trace: Trace) -> None:
        """Set the recorded trace; once."""
        self._trace = trace

    @property
    def is_complete(self) -> bool:
        """Whether recording has ended."""
        return self._trace is not None

    @property
    def trace(self) -> Trace:
        """The trace: events by graph and process, which can be saved and exported.

        Raises:
            TraceError: It is still being recorded.
        """
        if self._trace is None:
            raise TraceError(
                "this profile is still being recorded: look at it after the `with` block, or after "
                "stop()"
            )
        return self._trace

    @cached_property
    def summary(self) -> Summary:
        """Figures of each graph: throughput, latency, shares of time, critical path, operations."""
        return summarize(self.trace)

    def graph(self, graph: int | str | None = None) -> GraphTrace:
        """Return the record of one graph.

        Args:
            graph: Its number in the trace, its name, or (the beginning of) its id; None if there is
                only one, or only one that did something.

        Raises:
            TraceError: There is no such graph, or several and none was named.
        """
        graphs = self.trace.graphs
        active = self.trace.active.graphs
        match graph:
            case None if len(active) == 1:
                return active[0]
            case int(number) if -len(graphs) <= number < len(graphs):
                return graphs[number]
            case str(text):
                found = [each for each in graphs if text and each.name == text]
                found = found or [
                    each for each in graphs if text and each.graph_id.startswith(text)
                ]
                if len(found) == 1:
                    return found[0]
        if not graphs:
            raise TraceError(
                "no graph was recorded: compile one, and run it while the profile is on"
            )
        known = ", ".join(f"{at}: {_name_of(each)}" for at, each in enumerate(graphs))
        at = next(at for at, each in enumerate(graphs) if each is active[0])
        wanted = "there are several graphs" if graph is None else f"there is no graph {graph!r}"
        raise TraceError(
            f"{wanted}; choose one by its number, id or name, as in `graph={at}`; this profile has "
            f"{known}"
        )

    def executions(self, graph: int | str | None = None) -> Executions:
        """Return when each execution was submitted, completed and fetched. See ``graph``.

        Times are nanoseconds from the beginning of the trace.
        """
        return executions_of(self.graph(graph)).since(self.trace.start_ns)

    def critical_path(self, execution: int, graph: int | str | None = None) -> CriticalPath:
        """Return the steps that an execution's latency consists of, from its submission on.

        Times are nanoseconds from the beginning of the trace.
        """
        origin_ns = self.trace.start_ns
        steps = critical_path(self.graph(graph), execution)
        return CriticalPath((step.since(origin_ns) for step in steps), steps.usual_ns)

    def call_costs(self) -> CallCosts:
        """Return what methods and transfers took, by actor, for ``compile(costs=profile)``."""
        return call_costs_of(self.trace.graphs)

    def compare(self, other: Profile) -> Comparison:
        """Compare this profile with a later one: per operation, shares, throughput, latency."""
        return compare(self.trace, other.trace)

    def what_if(
        self,
        scale: Mapping[str, float] | None = None,
        *,
        communication: float = 1.0,
        serialization: float = 1.0,
        max_inflight: int | None = None,
        graph: int | str | None = None,
    ) -> WhatIf:
        """Predict throughput and timeline if some operations took another time.

        The measured times are replayed in the compiler's simulator.

        Args:
            scale: Factor by method: ``{"Stage.fwd": 0.5}`` for all actors of the class,
                ``{"a0.fwd": 0.5}`` for one.
            communication: Factor for reading and writing channels.
            serialization: Factor for encoding and decoding.
            max_inflight: How many executions may be in flight; None for as many as now.
            graph: See ``graph``.

        Raises:
            TraceError: There is no such method, or too little was recorded.
            ValueError: A factor is not a positive number.
        """
        return what_if(
            self.graph(graph),
            scale,
            communication=communication,
            serialization=serialization,
            max_inflight=max_inflight,
        )

    def figure(
        self, kind: str = "timeline", graph: int | str | None = None, *, dark: bool | None = None
    ) -> Figure:
        """Return a chart as a ``plotly.graph_objects.Figure``, to restyle, combine or export.

        Args:
            kind: "timeline" or "schedule", of a few executions; "shares": where the time of each
                process went; "latency": a histogram; "idle": how much each process was idle over
                time; "memory": how many bytes were written and not read yet.
            graph: See ``graph``.
            dark: Whether it is for a dark page; None for ink that is legible on both.

        Raises:
            ImportError: plotly is not installed.
            TraceError: There is no such graph, or too little was recorded.
            ValueError: There is no such kind.
        """
        from rcg.views.charts import profile_figure  # for who asks for charts

        found = self.graph(graph)
        summary = self.summary.graphs[self.trace.graphs.index(found)]
        return profile_figure(kind, self.trace, found, summary, dark=dark)

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per event. Needs pandas."""
        return self.trace.to_pandas()

    def save_html(self, path: str | os.PathLike[str], title: str = "") -> None:
        """Write everything as one self-contained HTML file, which needs no network.

        Where scripts run, its pictures are interactive. It has at most 5 MB: of a long trace, the
        earlier bars of the timeline are sums. Of many large graphs the pictures alone may have
        more; then they stay as they are.

        Raises:
            FileNotFoundError: There is no such folder.
        """
        folder = Path(path).resolve().parent
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no folder {str(folder)!r} for the page")
        Path(path).write_text(page_of(self.trace, title or "rcg profile"), encoding="utf-8")

    def __str__(self) -> str:
        if self._trace is None:
            return "a profile that is being recorded"
        return text_of(self._trace)

    def __repr__(self) -> str:
        if self._trace is None:
            return "<Profile, being recorded>"
        return repr(self._trace).replace("Trace", "Profile", 1)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        if self._trace is None:
            return {"text/plain": str(self)}
        return of_trace(self._trace)


def _name_of(graph: GraphTrace) -> str:
    count = len(executions_of(graph))
    return f"{graph.title}: {plural(count, 'execution')}"
