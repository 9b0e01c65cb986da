# SPDX-License-Identifier: Apache-2.0
"""The timeline: a bar per part, lines from write to read, queues, and never too large."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from rcg.trace.model import SPAN_BASE, GraphTrace
from rcg.views.data.excerpts import excerpt_of
from rcg.views.data.slices import Slices
from rcg.views.data.slicing import slices_of
from rcg.views.data.timeline import path_of, queues_of, timeline_payload
from rcg.views.svg.bars import Band, Bars, draw
from rcg.views.svg.canvas import Canvas
from rcg.views.svg.looks import Look
from rcg.views.svg.timeline import timeline_of
from tests.unit.traces import event, graph_trace
from tests.unit.views_traces import check_picture, pipeline, simulated

SVG = "{http://www.w3.org/2000/svg}"

ROWS = {
    "driver": [event(1, 0, 0, 100, coded=40), event(3, 0, 100, 990, waited=800, peer=2)],
    "a0": [
        event(0, 0, 50, 140, waited=60, coded=10, bytes=64, peer=0),
        event(1, 0, 140, 500),
        event(SPAN_BASE, 0, 200, 300),
        event(3, 0, 500, 600, coded=30, bytes=900),
    ],
    "a1": [
        event(0, 0, 80, 660, waited=520, coded=20, bytes=900, peer=1),
        event(1, 0, 660, 800),
        event(3, 0, 800, 900, coded=10, waited=20, bytes=7, peer=0),
    ],
}


def all_of(graph: GraphTrace, end: int = 1000) -> Slices:
    return slices_of(graph, 0, end)


def bars_of(svg: str) -> list[str]:
    return [
        rect.find(f"{SVG}title").text or ""  # type: ignore[union-attr]
        for rect in ElementTree.fromstring(svg).iter(f"{SVG}rect")
        if rect.get("class") == "rcg-bar"
    ]


def test_there_is_a_bar_per_part_a_line_per_transfer_and_a_queue_per_reader() -> None:
    slices = all_of(graph_trace(ROWS, spans={"a0": ("attention",)}))
    svg = timeline_of(slices)
    assert len(bars_of(svg)) == len(slices) == 18
    root = ElementTree.fromstring(svg)
    (transfers,) = [each for each in root.iter() if each.get("class") == "rcg-transfers"]
    assert (transfers[0].get("d") or "").count("M") == 3
    assert svg.count("values written and not read yet") == 3
    for words in ("attention", "waits for", "idle", "transfer", "spans", "ops", "900 B"):
        assert words in svg
    check_picture(svg)


def test_queues_count_what_was_written_and_not_read() -> None:
    rows = {
        "driver": [event(1, number, 10 * number, 10 * number + 1) for number in range(4)],
        "a0": [event(0, number, 25 + 20 * number, 30 + 20 * number) for number in range(3)],
    }
    queue = queues_of(all_of(graph_trace(rows)))[1]
    assert list(zip(queue.at.tolist(), queue.depth.tolist(), strict=True)) == [
        (0, 0),
        (1, 1),
        (11, 2),
        (21, 3),
        (25, 2),
        (31, 3),
        (45, 2),
        (65, 1),
    ]
    # What was written before the excerpt lies in the queue when it begins.
    later = queues_of(slices_of(graph_trace(rows), 22, 1000))[1]
    assert later.depth[0] == 3


def test_the_critical_path_goes_from_lane_to_lane_and_from_execution_to_execution() -> None:
    """The same again 1000 ns later: until then, the driver does not submit."""
    rows = {
        process: [
            (start + turn * 1000, end + turn * 1000, waited, coded, turn, *rest)
            for turn in range(2)
            for start, end, waited, coded, _, *rest in rows
        ]
        for process, rows in ROWS.items()
    }
    graph = graph_trace(rows, spans={"a0": ("attention",)})
    slices = all_of(graph, 2000)
    one, other = [[0, 0, 100], [1, 100, 600], [2, 600, 900]], [[0, 900, 1100]]
    other += [[1, 1100, 1600], [2, 1600, 1900]]
    assert path_of(graph, slices, 0).tolist() == one
    assert path_of(graph, slices, 1).tolist() == [*one, *other]
    late = slices_of(graph, 500, 1200)
    shown = [[1, 0, 100], [2, 100, 400], [0, 400, 600], [1, 600, 700]]
    assert path_of(graph, late, 1).tolist() == shown
    head, columns = timeline_payload(graph, slices)
    assert head["paths"] == [None, 0, 1] and columns["path_until"].tolist() == [6, 9, 12]
    assert columns["path_lane"].tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]
    assert columns["path_end"][9:].tolist() == [1.1, 1.6, 1.9]
    svg = timeline_of(slices, path=path_of(graph, slices, 1))
    root = ElementTree.fromstring(svg)
    (group,) = [each for each in root.iter() if each.get("class") == "rcg-critical"]
    runs, steps = (each.get("d") or "" for each in group[0])
    assert (runs.count("M"), steps.count("M")) == (6, 5) and "critical path" in svg
    assert "critical path" not in timeline_of(slices)
    check_picture(svg)


@pytest.mark.parametrize("actors", [2, 12, 63])
def test_it_is_readable_from_few_to_many_actors(actors: int) -> None:
    trace = simulated(pipeline(actors), 30, spans=True)
    excerpt = excerpt_of(trace.graphs[0], trace.start_ns, trace.end_ns, most=6)
    assert excerpt is not None
    svg = timeline_of(slices_of(trace.graphs[0], excerpt.start_ns, excerpt.end_ns))
    assert len(svg) < 300_000
    for actor in range(1, actors + 1):
        assert f"Stage#{actor}</text>" in svg
    check_picture(svg)


def test_half_covered_columns_are_half_as_high() -> None:
    left = np.arange(0, 1000, 0.1)
    bars = Bars(
        np.zeros(len(left), int),
        left,
        np.full(len(left), 0.05),
        np.zeros(len(left), int),
        np.arange(len(left)),
    )
    drawn = draw(
        Canvas(False),
        [Band(0.0, 20.0)],
        [Look("", "text")],
        bars,
        1000.0,
        labels_of=lambda row: [],
        hover_of=lambda row: "",
        budget=10_000,
    )
    (path,) = drawn.shapes
    assert set(re.findall(r"v(-?[\d.]+)", path)) == {"10"}
    assert len(drawn.merged) == len(left)
