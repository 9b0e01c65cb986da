# SPDX-License-Identifier: Apache-2.0
"""How things of rcg show themselves in a notebook: the one hook between them and the views.

Plans, traces and compiled graphs stand below the views, and a process that only executes must not
load what draws. So a thing asks this hook when it is shown. What answers is decided in one place,
the face of the package (``rcg/__init__.py``); this room must not know it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

__all__ = ["Displayed", "Mimebundle", "Views", "draw_with", "views"]

Mimebundle = dict[str, str]
"""What a notebook shows of a thing: text and, if there is a picture, HTML without a script."""


class Views(Protocol):
    """What the views do for the rooms below them."""

    def mimebundle(self, thing: object) -> Mimebundle:
        """Return what is shown of a thing whose type the views know."""
        ...

    def plan(self, plan: Any, *, text: str, title: str, actor_ids: Mapping[str, str]) -> Mimebundle:
        """Return what is shown of a plan that runs.

        Args:
            plan: The plan.
            text: What is shown where there are no pictures.
            title: What stands above its picture.
            actor_ids: Ray's ids of the actors, by their ids in the plan.
        """
        ...

    def reports(self, reports: Iterable[Any], text: str) -> Mimebundle:
        """Return what is shown of reports: a table of each beside their text."""
        ...

    def visualize(
        self,
        plan: Any,
        actor_ids: Mapping[str, str],
        *,
        filename: str | os.PathLike[str],
        format: str | None,
        view: bool,
        channel_details: bool,
        legend: bool,
        title: str,
        dark: bool | None,
    ) -> str:
        """Write a picture of a plan to a file; see ``CompiledDAG.visualize``."""
        ...


_load: Callable[[], Views] | None = None


def draw_with(load: Callable[[], Views]) -> None:
    """Say what loads the views; called once, by the face of the package.

    Args:
        load: Returns the views; called whenever something is drawn.
    """
    global _load
    _load = load


def views() -> Views:
    """Return the views, which are loaded now if they were not.

    Raises:
        LookupError: The face has not said what loads them.
    """
    if _load is None:
        raise LookupError("no views are registered: `import rcg` registers them")
    return _load()


class Displayed:
    """What a notebook shows as text and as static HTML, which needs no script."""

    __slots__ = ()

    def _mimebundle(self, views: Views) -> Mimebundle:
        return views.mimebundle(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Mimebundle:
        return self._mimebundle(views())
