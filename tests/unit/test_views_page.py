# SPDX-License-Identifier: Apache-2.0
"""The page of a trace: whole, alone, small; and pictures as images."""

from __future__ import annotations

import re
from base64 import b64decode
from dataclasses import replace

import pytest

from rcg.trace.trace import Trace
from rcg.views.html.elements import img
from rcg.views.html.page import page_of
from rcg.views.svg.pictures import prediction_of
from rcg.views.svg.schedule import schedule_of
from tests.unit.traces import graph_trace, trace
from tests.unit.views_traces import (
    WICKED,
    check_page,
    microbatches,
    pipeline,
    simulated,
)


@pytest.mark.parametrize("plan", [pipeline(2), pipeline(4, is_training=True), microbatches(3, 4)])
def test_it_has_everything_and_is_alone(plan: object) -> None:
    record = simulated(plan, 30, spans=True)  # type: ignore[arg-type]
    page = page_of(record, "A page")
    assert len(check_page(page)) == 5
    for words in ("A page", "Profile", "Schedule", "Timeline", "Whole trace", "Operations", "box"):
        assert words in page
    assert "prefers-color-scheme" in page and "predicted from measured costs" in page
    assert page_of(record, "A page") == page


@pytest.mark.parametrize(
    "record", [Trace((), 0, 10), trace(graph_trace({}), end=10), trace(graph_trace({}), end=0)]
)
def test_pages_of_nothing(record: Trace) -> None:
    check_page(page_of(record, ""))


def test_names_cannot_break_out() -> None:
    record = simulated(pipeline(3, label=WICKED), 12)
    lanes = tuple(
        replace(lane, spans=(WICKED, WICKED), node=WICKED) for lane in record.graphs[0].lanes
    )
    info = {"host": WICKED, "versions": {WICKED: WICKED}, "cores": WICKED}
    page = page_of(
        replace(record, graphs=(replace(record.graphs[0], lanes=lanes),), info=info), WICKED
    )
    check_page(page)
    assert "<script" not in page and "<b>" not in page


def test_without_enough_of_a_trace_there_is_no_prediction() -> None:
    assert prediction_of(graph_trace({}), 8) is None
    assert prediction_of(simulated(pipeline(2), 12).graphs[0], 8) is not None


def test_a_picture_as_an_image_is_the_picture() -> None:
    svg = schedule_of(predicted=prediction_of(simulated(pipeline(2), 12).graphs[0], 4))
    html = img(svg, 'a "schedule" <b>')
    assert html.startswith('<img alt="a &quot;schedule&quot; &lt;b&gt;" width="1040"')
    (data,) = re.findall(r'src="data:image/svg\+xml;base64,([A-Za-z0-9+/=]*)"', html)
    assert b64decode(data).decode() == svg
    assert html.count("<") == html.count(">") == 1
