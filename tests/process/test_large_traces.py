# SPDX-License-Identifier: Apache-2.0
"""Pictures and pages of large traces: they stay small."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rcg.trace.measured import Measured
from rcg.views.html.page import page_of
from rcg.views.scenes.timeline import timeline_scene
from rcg.views.svg.scene import picture_of
from tests.unit.views_traces import (
    check_page,
    check_picture,
    many_events,
    pipeline,
    simulated,
)


@pytest.mark.full
def test_a_million_events_fit() -> None:
    page = page_of(many_events(63, 1_000_000), "large")
    assert len(page.encode()) < 5_000_000
    assert 'data-view="timeline"' in page
    check_page(page)


@pytest.mark.full
def test_many_graphs_fit() -> None:
    one = simulated(pipeline(8), 20)
    graphs = tuple(replace(one.graphs[0], graph_id=f"{number:032x}") for number in range(40))
    page = page_of(replace(one, graphs=graphs), "many")
    assert len(page.encode()) < 5_000_000
    check_page(page)
    assert page.count("Operations") == 40


@pytest.mark.full
@pytest.mark.parametrize("actors", [2, 63])
def test_a_million_events_are_as_small(actors: int) -> None:
    trace = many_events(actors, 1_000_000)
    svg = picture_of(timeline_scene(Measured.of(trace, trace.graphs[0])))
    assert len(svg) < 300_000
    assert "narrow bars: height = share of time" in svg
    check_picture(svg)
