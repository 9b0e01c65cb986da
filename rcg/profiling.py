# SPDX-License-Identifier: Apache-2.0
"""A profile: a trace with its analysis, as figures, text, pictures and files.

``with rcg.profile() as p`` makes one; ``Profile(Trace.load(path))`` makes one of a trace that was
saved. This room puts analysis and views together; it must not know how traces are recorded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, overload

from rcg.callers import at_users_line
from rcg.errors import TraceError
from rcg.ir.costs import CallCosts
from rcg.runs import Kept, Runs, checked_name
from rcg.text import plural
from rcg.trace.analysis.comparison import Comparison
from rcg.trace.analysis.costs import call_costs_of
from rcg.trace.analysis.critical import CriticalPath
from rcg.trace.analysis.executions import Executions
from rcg.trace.analysis.summary import Summary
from rcg.trace.analysis.what_if import WhatIf
from rcg.trace.measured import Measured, compared, measured_of, summarize
from rcg.trace.model import GraphTrace
from rcg.trace.trace import Trace
from rcg.views.html.mimebundle import of_trace, text_of
from rcg.views.html.page import page_of

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure


_kept: Final = Kept()
"""The profiles that this process has recorded: ``rcg.profiles()``."""


class Profile:
    """The recorded executions of graphs. Prints as a summary; a notebook shows pictures.

    Args:
        trace: The recorded trace; None while recording.
        name: What tells it from other profiles; by default what the trace was called when it was
            recorded.
    """

    @at_users_line
    def __init__(self, trace: Trace | None = None, name: str = "") -> None:
        self._trace = trace
        self._name = checked_name(name)

    def complete(self, trace: Trace) -> None:
        """Set the recorded trace, once, and keep the profile for ``rcg.profiles()``."""
        if self._name:  # so that a file of it has the name as well
            trace = replace(trace, info={**trace.info, "name": self._name})
        self._trace = trace
        _kept.add(self)

    @property
    def name(self) -> str:
        """What tells it from other profiles: the name it was recorded under, or when it was."""
        info = {} if self._trace is None else self._trace.info
        given = self._name or info.get("name")
        if isinstance(given, str) and given:
            return given
        return time.strftime("%H:%M:%S", time.localtime(info.get("time", time.time())))

    @property
    def is_complete(self) -> bool:
        """Whether recording has ended."""
        return self._trace is not None

    @property
    @at_users_line
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
    @at_users_line
    def summary(self) -> Summary:
        """Figures of each graph: throughput, latency, shares of time, critical path, operations."""
        return summarize(self.trace)

    @at_users_line
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
        known = ", ".join(
            f"{at}: {_name_of(each)}" for at, each in enumerate(measured_of(self.trace))
        )
        at = next(at for at, each in enumerate(graphs) if each is active[0])
        wanted = "there are several graphs" if graph is None else f"there is no graph {graph!r}"
        raise TraceError(
            f"{wanted}; choose one by its number, id or name, as in `graph={at}`; this profile has "
            f"{known}"
        )

    @at_users_line
    def measured(self, graph: int | str | None = None) -> Measured:
        """Return what one graph did: all its figures, each computed once. See ``graph``."""
        return Measured.of(self.trace, self.graph(graph))

    @at_users_line
    def executions(self, graph: int | str | None = None) -> Executions:
        """Return when each execution was submitted, completed and fetched. See ``graph``.

        Times are nanoseconds from the beginning of the trace.
        """
        return self.measured(graph).executions.since(self.trace.start_ns)

    @at_users_line
    def critical_path(self, execution: int, graph: int | str | None = None) -> CriticalPath:
        """Return the steps that an execution's latency consists of, from its submission on.

        Times are nanoseconds from the beginning of the trace.
        """
        origin_ns = self.trace.start_ns
        steps = self.measured(graph).paths.of(execution)
        return CriticalPath((step.since(origin_ns) for step in steps), steps.usual_ns)

    @at_users_line
    def call_costs(self) -> CallCosts:
        """Return what methods and transfers took, by actor, for ``compile(costs=profile)``."""
        return call_costs_of(
            (each.graph.plan, each.costs.costs) for each in measured_of(self.trace)
        )

    @overload
    def compare(self, other: Profile, /) -> Comparison: ...
    @overload
    def compare(self, other: Profile, another: Profile, /, *others: Profile) -> Runs: ...
    @at_users_line
    def compare(self, *others: Profile) -> Comparison | Runs:
        """Compare this profile with a later one, or several, which are each compared with this.

        Returns:
            Of two profiles, what changed: per operation, shares, throughput, latency. Of more, a
            row for each: throughput, latency, and what limits it.

        Raises:
            TypeError: There is no other, or one is no profile.
        """
        for each in others:
            if not isinstance(each, Profile):
                raise TypeError(f"compare() takes profiles, found a {type(each).__name__}")
        match others:
            case ():
                raise TypeError("compare() needs another profile, or several")
            case (other,):
                return compared(self.trace, other.trace)
            case _:
                return Runs((self, *others))

    @at_users_line
    def what_if(
        self,
        scale: Mapping[str, float] | None = None,
        *,
        communication: float = 1.0,
        serialization: float = 1.0,
        in_flight: int | None = None,
        graph: int | str | None = None,
    ) -> WhatIf:
        """Predict throughput and timeline if some operations took another time.

        The measured times are replayed in the compiler's simulator.

        Args:
            scale: Factor by method: ``{"Stage.fwd": 0.5}`` for all actors of the class,
                ``{"a0.fwd": 0.5}`` for one.
            communication: Factor for reading and writing channels.
            serialization: Factor for encoding and decoding.
            in_flight: How many executions may be in flight; None for as many as now.
            graph: See ``graph``.

        Raises:
            TraceError: There is no such method, or too little was recorded.
            ValueError: A factor is not a positive number.
        """
        return self.measured(graph).replays.what_if(
            scale,
            communication=communication,
            serialization=serialization,
            in_flight=in_flight,
        )

    @at_users_line
    def figure(
        self, kind: str = "timeline", graph: int | str | None = None, *, dark: bool | None = None
    ) -> Figure:
        """Return a chart as a ``plotly.graph_objects.Figure``, to restyle, combine or export.

        Args:
            kind: "timeline" or "schedule", of a few executions; "shares": where the time of each
                process went; "heat": when each actor computed; "busy": when it computed,
                communicated or serialized; "latency": a histogram; "memory": how many bytes were
                written and not read yet.
            graph: See ``graph``.
            dark: Whether it is for a dark page; None for ink that is legible on both.

        Raises:
            ImportError: plotly is not installed.
            TraceError: There is no such graph, or too little was recorded.
            ValueError: There is no such kind.
        """
        from rcg.views.charts import profile_figure  # for who asks for charts

        return profile_figure(kind, self.trace, self.measured(graph), dark=dark)

    @at_users_line
    def to_pandas(self) -> pd.DataFrame:
        """Return one row per event. Needs pandas."""
        return self.trace.to_pandas()

    @at_users_line
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


@at_users_line
def kept_profiles(keep: int | None = None) -> Runs:
    """Return the profiles of this process that are kept; see ``rcg.profiles``."""
    if keep is not None:
        _kept.reduce(keep)
    return _kept.runs()


def _name_of(measured: Measured) -> str:
    return f"{measured.graph.title}: {plural(len(measured.executions), 'execution')}"
