# SPDX-License-Identifier: Apache-2.0
"""The base of all widgets: their script and style, and their selection.

A widget has a few traits and plain ECMAScript modules in the same folder. Nothing is bundled or
loaded from the network: the modules of a view are joined to one text, which anywidget sends to the
browser. A module has import lines, so that it can be tested alone. They are removed when modules
are joined.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import anywidget
import traitlets

from rcg.views.html.interactive import joined_script
from rcg_widgets.static import Pictures, small

__all__ = ["SELECTED", "View", "Window", "script", "style"]

_HERE: Final = Path(__file__).parent

SELECTED: Final = ("selected_process", "selected_op", "selected_execution", "window")
"""The traits that ``link`` synchronizes."""


def script(*names: str) -> str:
    """Return modules joined to one text. Each may use the modules before it."""
    return joined_script(_HERE, names)


def style() -> str:
    """Return the style sheet of all widgets."""
    return (_HERE / "widgets.css").read_text(encoding="utf-8")


class Window(traitlets.List[float]):
    """A trait: when a time begins and ends, in microseconds; None for all."""

    def __init__(self, help: str = "") -> None:
        super().__init__(traitlets.Float(), None, allow_none=True, help=help)

    def validate(self, obj: Any, value: Any) -> Any:
        """Refuse what is no time: the state of a widget is JSON, which has no ``nan``."""
        found = super().validate(obj, value)
        if found is not None and not (
            len(found) == 2 and all(map(math.isfinite, found)) and found[0] <= found[1]
        ):
            raise traitlets.TraitError(
                f"`window` must be None, or two finite times of which the first is no later, "
                f"found {found!r}"
            )
        return found


class View(anywidget.AnyWidget):
    """A widget with one picture of one graph.

    Traits:
        payload: The packed data (see ``rcg.views.data.packing``).
        title: The title.
        selected_process: Name in the plan of the highlighted process, or None.
        selected_op: Index in its program of the highlighted op, or None.
        selected_execution: Index of the highlighted execution, or None.
        window: Beginning and end of the time that is shown, in microseconds from the beginning of
            the trace. None shows all; a topology has no use for it.

    The last four can be read, set and observed. ``rcg_widgets.link`` synchronizes them with those
    of other widgets.
    """

    _css = style()

    payload = traitlets.Bytes(b"", help="The packed data.").tag(sync=True)
    title = traitlets.Unicode("", help="The title.").tag(sync=True)
    selected_process = traitlets.Unicode(
        None, allow_none=True, help="Name in the plan of the highlighted process."
    ).tag(sync=True)
    selected_op = traitlets.Int(
        None, allow_none=True, help="Index in its program of the highlighted op."
    ).tag(sync=True)
    selected_execution = traitlets.Int(
        None, allow_none=True, help="Index of the highlighted execution."
    ).tag(sync=True)
    window = Window("The time that is shown.").tag(sync=True)

    _about = ""

    def __init__(self, about: str, pictures: Pictures = tuple, **traits: Any) -> None:
        self._about = about
        self._pictures = pictures
        self._html: str | None = None
        super().__init__(**traits)

    def select(
        self,
        process: str | None = None,
        op: int | None = None,
        execution: int | None = None,
    ) -> None:
        """Highlight a process, one of its ops or an execution; without arguments, nothing."""
        with self.hold_sync():
            self.selected_process = process
            self.selected_op = op
            self.selected_execution = execution

    def _repr_mimebundle_(self, **given: Any) -> Any:
        """Return the widget, and a picture for viewers that do not run widgets."""
        data, metadata = super()._repr_mimebundle_(**given)
        if self._html is None:
            self._html = small(self._pictures, f"{self.title}: {self._about}")
            self._pictures = tuple  # their data is no longer needed
        return {**data, **({"text/html": self._html} if self._html else {})}, metadata

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._about})"
