# SPDX-License-Identifier: Apache-2.0
"""Pictures and pages of large traces: they stay small."""

from __future__ import annotations

import pytest

from rcg.trace.measured import Measured
from rcg.views.html.page import page_of
from rcg.views.scenes.timeline import timeline_scene
from rcg.views.svg.scene import picture_of
from tests.unit.views_traces import (
    check_page,
    check_picture,
    many_events,
)


@pytest.mark.full
@pytest.mark.parametrize("actors", [2, 63])
def test_a_million_events_fit(actors: int) -> None:
    trace = many_events(actors, 1_000_000)
    page = page_of(trace, "large")
    assert len(page.encode()) < 5_000_000 and 'data-view="timeline"' in page
    check_page(page)
    svg = picture_of(timeline_scene(Measured.of(trace, trace.graphs[0])))
    assert len(svg) < 300_000 and "narrow bars: height = share of time" in svg
    check_picture(svg)
