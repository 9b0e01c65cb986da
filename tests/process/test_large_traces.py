# SPDX-License-Identifier: Apache-2.0
"""Pictures and pages of large traces: they stay small."""

from __future__ import annotations

import pytest

from rcg.trace.measured import Measured
from rcg.trace.trace import Trace
from rcg.views.html.page import page_of
from rcg.views.scenes.timeline import timeline_scene
from rcg.views.svg.scene import picture_of
from tests.unit.traces import one_after_the_other
from tests.unit.views_traces import check_page, check_picture, pipeline, simulated


@pytest.mark.full
@pytest.mark.parametrize("actors", [2, 63])
def test_a_million_events_fit(actors: int) -> None:
    some = simulated(pipeline(actors), 200, start_ns=0).graphs[0]
    record = one_after_the_other(*[some] * (1_000_000 // some.num_events))
    trace = Trace((record,), 0, int(record.driver.events["end_ns"].max()) + 1)
    page = page_of(trace, "large")
    assert len(page.encode()) < 5_000_000 and 'data-view="timeline"' in page
    check_page(page)
    svg = picture_of(timeline_scene(Measured.of(trace, trace.graphs[0])))
    assert len(svg) < 300_000 and "narrow bars: height = share of time" in svg
    check_picture(svg)
