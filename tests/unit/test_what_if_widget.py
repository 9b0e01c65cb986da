# SPDX-License-Identifier: Apache-2.0
"""The what-if widget without a browser: it shows what ``what_if`` answers, at every position."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("anywidget", reason="the widgets need pip install 'rcg[notebook]'")

import traitlets

from rcg.errors import TraceError
from rcg.ir.plan import Plan
from rcg.profiling import Profile
from rcg_widgets import WhatIfWidget
from tests.unit.test_trace_what_if import pipeline
from tests.unit.traces import PIPELINE, graph_trace, measure, trace


def rows(widget: WhatIfWidget) -> dict[str, Any]:
    return {row["name"]: row for row in widget.found["rows"]}


def test_it_begins_with_what_was_measured() -> None:
    """a1 takes 22 us. The latency is four times that, less 1 us of the driver."""
    widget = WhatIfWidget(Profile(trace(pipeline(window=4), end=1 << 30)))
    assert widget.in_flight == 4 and widget.choices["now"] == 4
    assert widget.choices["in_flight"] == [1, 8]
    assert widget.choices["methods"] == ["Stage.fwd", "a0.fwd", "a1.fwd"]
    assert widget.found["answer"] == "as measured: move a slider"
    found = rows(widget)
    assert found["executions"]["texts"] == ["45,500 /s", "45,500 /s"]
    assert found["latency (median)"]["texts"] == ["87 µs", "87 µs"]
    assert repr(widget) == "WhatIfWidget(as measured: move a slider)"


def test_each_position_shows_what_what_if_answers() -> None:
    graph = pipeline(window=4)
    widget = WhatIfWidget(graph)
    widget.in_flight = 1
    expected = measure(graph).replays.what_if(in_flight=1)
    assert widget.found["answer"] == expected.answer
    assert widget.found["changes"] == "if 1 execution was in flight"
    # One in flight takes 37 us instead of every 22, and its latency is that.
    assert rows(widget)["executions"]["texts"] == ["45,500 /s", "27,000 /s"]
    assert rows(widget)["executions"]["shares"] == [1, pytest.approx(22 / 37, abs=1e-3)]
    widget.scale = {"a1.fwd": 0.5}
    assert (
        widget.found["answer"]
        == measure(graph).replays.what_if({"a1.fwd": 0.5}, in_flight=1).answer
    )
    widget.communication = 0.5
    expected = measure(graph).replays.what_if({"a1.fwd": 0.5}, in_flight=1, communication=0.5)
    assert widget.found["answer"] == expected.answer
    assert widget.prediction.throughput == expected.throughput
    widget.in_flight, widget.scale, widget.communication = 4, {}, 1.0
    assert widget.found["answer"] == "as measured: move a slider"


@pytest.mark.parametrize(
    "change", [{"in_flight": 0}, {"communication": 0.0}, {"scale": {"a1.fwd": 9.0}}]
)
def test_what_no_slider_says_is_refused(change: dict[str, Any]) -> None:
    widget = WhatIfWidget(pipeline())
    ((name, value),) = change.items()
    with pytest.raises(traitlets.TraitError):
        setattr(widget, name, value)


def test_without_a_record_there_is_nothing_to_ask() -> None:
    with pytest.raises(TypeError, match="needs a trace of what ran"):
        WhatIfWidget(Plan.from_text(PIPELINE))
    with pytest.raises(TraceError, match="no events"):
        WhatIfWidget(graph_trace({}))
