# SPDX-License-Identifier: Apache-2.0
"""One selection for several widgets: all of them highlight the same."""

from __future__ import annotations

from typing import Any

import traitlets

from rcg_widgets.base import SELECTED, View, Window

__all__ = ["Selection", "link"]


class Selection(traitlets.HasTraits):
    """The selection of the widgets that are linked to it.

    Traits:
        selected_process: Name in the plan of a process, or None.
        selected_op: Index of one of its ops, or None.
        selected_execution: Index of an execution, or None.
        window: Beginning and end of the time that is shown, in microseconds, or None.
    """

    selected_process = traitlets.Unicode(None, allow_none=True)
    selected_op = traitlets.Int(None, allow_none=True)
    selected_execution = traitlets.Int(None, allow_none=True)
    window = Window()

    def __init__(self, **traits: Any) -> None:
        super().__init__(**traits)
        self._links: list[traitlets.link] = []

    def add(self, *widgets: View) -> None:
        """Link widgets. They get this selection.

        Raises:
            TypeError: One of them has no selection.
        """
        for widget in widgets:
            missing = [name for name in SELECTED if not _has(widget, name)]
            if missing:
                raise TypeError(
                    f"{type(widget).__name__} cannot be linked: it has no trait {missing[0]!r}"
                )
        for widget in widgets:
            self._links += [traitlets.link((self, name), (widget, name)) for name in SELECTED]

    def unlink(self) -> None:
        """Unlink all widgets. Each keeps its selection."""
        for each in self._links:
            each.unlink()
        self._links.clear()

    def __repr__(self) -> str:
        return (
            f"Selection(process={self.selected_process!r}, op={self.selected_op!r}, "
            f"execution={self.selected_execution!r})"
        )


def link(*widgets: View) -> Selection:
    """Link the selections of widgets, and the time that they show, and return what they share.

    At first each trait has the value of the first widget where it is not None. The kernel forwards
    changes, so the other widgets follow late while it is busy.

    Raises:
        TypeError: One of them has no selection.
    """
    selection = Selection()
    for name in SELECTED:
        found = (getattr(widget, name) for widget in widgets if _has(widget, name))
        setattr(selection, name, next((each for each in found if each is not None), None))
    selection.add(*widgets)
    return selection


def _has(widget: object, name: str) -> bool:
    return isinstance(widget, traitlets.HasTraits) and widget.has_trait(name)
