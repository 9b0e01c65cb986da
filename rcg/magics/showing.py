# SPDX-License-Identifier: Apache-2.0
"""Displays the pictures and the widgets of graphs, plans and traces."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Final

from IPython.display import display

from rcg.ir.plan import Plan
from rcg.runtime.driver.compiled_dag import CompiledDAG
from rcg.text import plural, visible
from rcg.trace.measured import measured_of
from rcg.trace.trace import Trace
from rcg.views.html.mimebundle import mimebundle
from rcg.views.svg.pictures import predicted_schedule, schedule_picture, topology_picture

MAX_WIDGETS: Final = 3  # at once
_MAX_GRAPHS: Final = 6  # whose pictures are shown at once
_MAX_INFLIGHT: Final = 10  # for a plan without a compiled graph
_INSTALL_WIDGETS: Final = "the interactive views need more packages: pip install 'rcg[notebook]'"


def topologies(shown: Any, *, channel_details: bool) -> list[tuple[str, str]]:
    """Return the topologies to show for an object, each with its alternative text."""
    if isinstance(shown, Trace):
        shown = shown.active
        found = []
        for measured in measured_of(shown):
            plan, title = measured.graph.plan, visible(measured.graph.title)
            picture = topology_picture(
                plan, title=title, channel_details=channel_details, measured=measured
            )
            found.append((f"Topology of {title}", picture))
        return found
    if isinstance(shown, Plan):
        plan, title, marks = shown, "Plan", {}
    else:
        seen = shown.seen()
        plan, title, marks = shown.plan, seen.stated_title, seen.marks
    picture = topology_picture(plan, title=title, marks=marks, channel_details=channel_details)
    return [(f"Topology of {title}", picture)]


def schedules(shown: Any) -> list[tuple[str, str]]:
    """Return the schedules to show for an object, each with its alternative text."""
    if isinstance(shown, Trace):
        graphs = shown.active.graphs
        made = [(visible(graph.title), schedule_picture(shown, graph)) for graph in graphs]
        return [(f"Schedule of {name}", svg) for name, svg in made if svg is not None]
    if isinstance(shown, Plan):
        return [("Schedule of the plan", predicted_schedule(shown, _MAX_INFLIGHT))]
    picture = predicted_schedule(shown.plan, shown.plan.window, shown.state)
    return [(f"Schedule of {shown.title}", picture)]


def display_pictures(pictures: Sequence[tuple[str, str]], magic: str, nothing: str) -> None:
    """Display pictures, or print that there is nothing to show."""
    for alt, svg in pictures[:_MAX_GRAPHS]:
        display(mimebundle(alt, [(alt, svg)]), raw=True)
    print_more(len(pictures) - _MAX_GRAPHS)
    if not pictures:
        print(f"%{magic}: there is nothing to show: {nothing}")


def print_more(count: int) -> None:
    """Print how many graphs are not shown."""
    if count > 0:
        print(f"{plural(count, 'more graph')}: name one to see it")


def with_executions(graphs: list[CompiledDAG]) -> list[CompiledDAG]:
    """Return the graphs that were executed; all graphs if none was."""
    return [graph for graph in graphs if graph.statistics().executions] or graphs


def print_idle(count: int) -> None:
    """Print how many graphs are not shown because they have not run."""
    if count:
        have = "graph has" if count == 1 else "graphs have"
        print(f"{count} more {have} not run yet: name one to see it")


def load_widgets() -> Any:
    """Return the package of widgets; None after printing how to install it if it is missing."""
    try:
        return importlib.import_module("rcg_widgets")
    except ImportError:
        print(_INSTALL_WIDGETS)
        return None


def display_widgets(name: str, *shown: Any) -> bool:
    """Display a widget for each graph; return whether any was displayed.

    Of a trace, only the graphs with events are shown.
    """
    widgets = load_widgets()
    if widgets is None:
        return False
    wanted: list[tuple[Any, dict[str, int]]] = []
    for each in shown:
        if isinstance(each, Trace):
            active = [at for at, graph in enumerate(each.graphs) if graph.is_active]
            wanted += [(each, {"graph": at}) for at in active]
        else:
            wanted.append((each, {}))
    for each, options in wanted[:MAX_WIDGETS]:
        display(getattr(widgets, name)(each, **options))
    print_more(len(wanted) - MAX_WIDGETS)
    return bool(wanted)
