# SPDX-License-Identifier: Apache-2.0
"""The hook through which the views display objects of rcg in a notebook.

Plans, traces and compiled graphs are below the views, and a process that only executes must not
load the views. So an object calls this hook when it is displayed. ``rcg/__init__.py`` connects the
hook to the views; this room must not know them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import Any, Literal, Protocol, TypedDict, Unpack

Mimebundle = dict[str, str]
"""The forms of an object for a notebook: text and, if there is a picture, HTML without a script."""


class DrawingOptions(TypedDict):
    """The title of a picture, and the parameters of ``CompiledDAG.visualize``."""

    filename: str | PathLike[str] | None
    format: str | None
    view: bool
    channel_details: bool
    legend: bool
    title: str
    dark: bool | None
    layout: Literal["phases", "actors", "dot"] | None


class Views(Protocol):
    """What the views do for the rooms below them."""

    def mimebundle(self, thing: object) -> Mimebundle:
        """Return the displayed forms of an object whose type the views know."""
        ...

    def plan(
        self,
        plan: Any,
        *,
        text: str,
        title: str,
        actor_ids: Mapping[str, str],
        addresses: Mapping[str, str],
        marks: Mapping[str, Any],
    ) -> Mimebundle:
        """Return the displayed forms of a running plan.

        Args:
            plan: The plan.
            text: The text, for places without pictures.
            title: The title of the picture.
            actor_ids: Ray's ids of the actors, by their ids in the plan.
            addresses: The addresses of the nodes of the cluster, by their ids in the plan.
            marks: What is wrong with actors, by their ids in the plan.
        """
        ...

    def reports(self, reports: Iterable[Any], text: str, tensors: Any = None) -> Mimebundle:
        """Return the displayed forms of reports of graphs, and of the one of tensors, if any."""
        ...

    def runs(self, runs: Any) -> Mimebundle:
        """Return the displayed forms of profiles side by side."""
        ...

    def figure(self, thing: object, *, dark: bool | None) -> Any:
        """Return the plotly figure of a thing whose type the views know."""
        ...

    def visualize(
        self,
        plan: Any,
        actor_ids: Mapping[str, str],
        *,
        addresses: Mapping[str, str],
        marks: Mapping[str, Any],
        **options: Unpack[DrawingOptions],
    ) -> str:
        """Draw a plan; write a file if one is asked for."""
        ...

    def chrome(self, trace: Any, path: str | PathLike[str]) -> None:
        """Write a trace to a file for ui.perfetto.dev."""
        ...


_load: Callable[[], Views] | None = None


def draw_with(load: Callable[[], Views]) -> None:
    """Set the function that loads the views; ``rcg/__init__.py`` calls this once.

    Args:
        load: Returns the views; called whenever something is drawn.
    """
    global _load
    _load = load


def views() -> Views:
    """Return the views, and load them if necessary.

    Raises:
        LookupError: ``draw_with`` was not called.
    """
    if _load is None:
        raise LookupError("no views are registered: `import rcg` registers them")
    return _load()


class Displayed:
    """Base of objects that a notebook displays as text and as static HTML without a script."""

    __slots__ = ()

    def _mimebundle(self, views: Views) -> Mimebundle:
        return views.mimebundle(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Mimebundle:
        return self._mimebundle(views())


class Charted:
    """Base of objects that are charts of plotly as well."""

    __slots__ = ()

    def figure(self, *, dark: bool | None = None) -> Any:
        """Return a chart as a ``plotly.graph_objects.Figure``, to restyle, combine or export.

        Args:
            dark: Whether it is for a dark page; None for ink that is legible on both.

        Raises:
            ImportError: plotly is not installed.
        """
        return views().figure(self, dark=dark)
