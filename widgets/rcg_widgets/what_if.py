# SPDX-License-Identifier: Apache-2.0
"""What if: sliders for what may change, and what a replay predicts. ``what_if.js`` draws it."""

from __future__ import annotations

from typing import Any, Final

import anywidget
import traitlets

from rcg.text import rate_text, share_text, time_text, visible
from rcg.trace.analysis.what_if import WhatIf, places_of
from rcg.trace.measured import Measured
from rcg_widgets.base import script, style
from rcg_widgets.subject import recorded

__all__ = ["WhatIfWidget"]

_MAX_BUSY: Final = 6
_MOST_IN_FLIGHT: Final = 64
_LEAST_FACTOR, _MOST_FACTOR = 0.1, 2.0


class WhatIfWidget(anywidget.AnyWidget):
    """What would change throughput and latency, by sliders: in flight, methods, communication.

    Each position is answered by ``what_if``: a replay of the measured times, in the kernel. So the
    sliders work while no cell runs.

    Args:
        what: A trace, a graph of a trace, or an object with one as ``trace``, such as a profile.
        graph: The graph, if the trace has several: its number, or the beginning of its id.
        title: The title.

    Traits:
        in_flight: How many executions are in flight.
        scale: The factors on the times of methods, by their names, as in ``what_if``.
        communication: The factor on the time of moving bytes.
        found: What is shown of the prediction.
        choices: The limits of the sliders, and the names of the methods.
        title: The title.

    Raises:
        TypeError: The argument has no trace.
        TraceError: The trace has no such graph, it has several and none was chosen, or nothing was
            recorded of it.
    """

    _esm = script("common", "what_if")
    _css = style()

    in_flight = traitlets.Int(1, min=1, max=_MOST_IN_FLIGHT).tag(sync=True)
    scale: Any = traitlets.Dict(
        value_trait=traitlets.Float(min=_LEAST_FACTOR, max=_MOST_FACTOR)
    ).tag(sync=True)
    communication = traitlets.Float(1.0, min=_LEAST_FACTOR, max=_MOST_FACTOR).tag(sync=True)
    found = traitlets.Dict().tag(sync=True)
    choices = traitlets.Dict().tag(sync=True)
    title = traitlets.Unicode("").tag(sync=True)

    def __init__(
        self, what: Any, *, graph: int | str | None = None, title: str = "What if"
    ) -> None:
        subject, record = recorded(what, graph)
        self._replays = Measured.of(subject.trace, record).replays
        costs, now = self._replays.measured.costs, self._replays.measured.window
        limit = max(2 * now, record.limit, 8)
        super().__init__(
            in_flight=min(now, _MOST_IN_FLIGHT),
            title=title,
            choices={
                "in_flight": [1, min(limit, _MOST_IN_FLIGHT)],
                "now": now,
                "factor": [_LEAST_FACTOR, _MOST_FACTOR],
                "methods": _methods_of(record),
                "communicates": any(cost.moving_ns for cost in costs.values()),
            },
        )
        self._answer()

    @property
    def prediction(self) -> WhatIf:
        """What ``what_if`` returns for the positions of the sliders."""
        now = self.choices["now"]
        return self._replays.what_if(
            {name: factor for name, factor in self.scale.items() if factor != 1},
            communication=self.communication,
            in_flight=None if self.in_flight == now else self.in_flight,
        )

    @traitlets.observe("in_flight", "scale", "communication")
    def _changed(self, _: Any) -> None:
        if hasattr(self, "_replays") and self.found:
            self._answer()

    def _answer(self) -> None:
        # Numbered, so that the same answer is one as well.
        self.found = {"number": self.found.get("number", 0) + 1, **_shown(self.prediction)}

    def __repr__(self) -> str:
        return f"WhatIfWidget({self.found['answer']})"


def _methods_of(record: Any) -> list[str]:
    """Return the names of methods on all actors of a class, then those on one."""
    found = places_of(record)
    classes = {actor.label for actor in record.plan.actors}
    ids = {actor.id for actor in record.plan.actors}
    owned = [(name.rpartition(".")[0], name) for name in found]
    return [name for owner, name in owned if owner in classes] + [
        name for owner, name in owned if owner in ids
    ]


def _shown(found: WhatIf) -> dict[str, Any]:
    """Return what the widget shows of a prediction: a row has a name, and now and then as text."""
    rows = []

    def add(name: str, before: float | None, after: float | None, text: Any, most: float) -> None:
        shares = [round((each or 0.0) / (most or 1.0), 4) for each in (before, after)]
        rows.append({"name": name, "texts": [text(before), text(after)], "shares": shares})

    if not found.is_far_off:
        was, then = found.measured_throughput, found.throughput
        add("executions", was, then, rate_text, max(was or 0.0, then or 0.0))
        was, then = found.measured_latency_ns, found.latency_ns
        add("latency (median)", was, then, time_text, max(was or 0.0, then or 0.0))
        busiest = sorted(found.busy.items(), key=lambda each: -max(each[1]))[:_MAX_BUSY]
        for label, (before, after) in busiest:
            add(f"{visible(label)} busy", before, after, lambda each: share_text(each, 0), 1.0)
    changes = ", ".join(found.changes)
    return {
        "answer": found.answer if found.changes else "as measured: move a slider",
        "changes": f"if {visible(changes)}" if changes else "",
        "rows": rows,
        "notes": list(found.notes),
    }
