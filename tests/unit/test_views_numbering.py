# SPDX-License-Identifier: Apache-2.0
"""Calls that are alike are labelled alike: the form, the size, and the numbers in pictures."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

from rcg.ir.ops import Call, Op
from rcg.trace.measured import Measured
from rcg.trace.trace import Trace
from rcg.views.data.excerpts import excerpt_of
from rcg.views.scenes.pipeline import pipeline_scene
from rcg.views.svg.numbering import Alike, Writing, writings_of
from rcg.views.svg.pictures import heat_picture, pipeline_picture, schedule_picture
from rcg.views.svg.scene import picture_of
from tests.unit.scenes_by_hand import spans
from tests.unit.views_traces import labelled, microbatches, pipeline, simulated

WIDE, NARROW = 60.0, 14.0


def alike(method: str, width: float, height: float = 24) -> Alike:
    """Labels of one, two and six digits' length: 0.7 of the size each."""
    return Alike(method, width, height, (0.7, 1.4, 4.2))


def test_the_longest_form_that_fits_on_all_is_chosen_for_all() -> None:
    assert writings_of([alike("f", WIDE), alike("f", 90.0)]) == [Writing(2, 11.5, False)] * 2
    assert writings_of([alike("f", WIDE), alike("f", 22.0)]) == [Writing(1, 11.5, False)] * 2


def test_a_number_that_is_too_wide_is_smaller_and_then_turned() -> None:
    sizes = [writings_of([alike("f", width)])[0] for width in (9.6, 8.6, 7.9, 7.3, 7.1)]
    assert sizes == [
        Writing(0, 11.5, False),
        Writing(0, 10.0, False),
        Writing(0, 9.0, False),
        Writing(0, 8.5, True),
        None,
    ]
    assert writings_of([alike("f", 7.3, 8.0)]) == [None], "no room for it turned"


def test_a_long_number_is_turned_on_a_bar_that_is_a_little_longer() -> None:
    # "B15" on a bar of 17 by 20 pixels: 19.6 long in size 10, 16.7 in size 8.5.
    assert writings_of([Alike("bwd", 17, 20, (1.96, 6.0))]) == [Writing(0, 8.5, True)]
    assert writings_of([Alike("bwd", 17, 18, (1.96, 6.0))]) == [None]


def test_one_size_for_a_method_and_what_cannot_have_a_label_hinders_none() -> None:
    assert writings_of([alike("f", 7.3), alike("f", 7.9), alike("g", 9.6), alike("h", 3)]) == [
        Writing(0, 8.5, True),
        Writing(0, 8.5, True),
        Writing(0, 11.5, False),
        None,
    ]


def test_much_wider_bars_of_a_method_stay_upright() -> None:
    assert writings_of([alike("f", 7.3), alike("f", 9.6), alike("f", 8.6), alike("f", 7.9)]) == [
        Writing(0, 8.5, True),
        Writing(0, 10.0, False),
        Writing(0, 10.0, False),
        Writing(0, 8.5, True),
    ]


def deep() -> Trace:
    """Eight stages and 16 micro-batches: a call is less than a hundredth of an execution."""

    def cost(op: Op) -> float:
        return (8e6 if op.method == "bwd" else 4e6) if isinstance(op, Call) else 2e4

    return labelled(simulated(microbatches(8, 16), 3, op_cost=cost, window=1))


def test_all_cells_of_a_pipeline_have_their_number() -> None:
    trace = deep()
    svg = pipeline_picture(trace, trace.graphs[0])
    assert svg is not None
    found = Counter(re.findall(r"<text x=[^>]*>(\d+)</text>", svg))
    assert found == {f"{batch}": 16 for batch in range(16)}, "F and B of eight stages"
    assert svg.count("rotate(-90") == 128, "the short ones are turned"


def test_a_schedule_labels_all_calls_of_a_row_or_none_of_them() -> None:
    trace = deep()
    svg = schedule_picture(trace, trace.graphs[0])
    assert svg is not None
    found = Counter(re.findall(r">([FB])\d+</text>", svg))
    assert min(found["F"], found["B"]) >= 128, "those of the execution, and what is beside it"
    assert ">fwd<" in svg and ">bwd<" in svg, "the legend says what letters are"


def test_all_views_show_the_same_execution() -> None:
    trace = deep()
    measured = Measured.of(trace, trace.graphs[0])
    part, scene = excerpt_of(measured), pipeline_scene(measured)
    assert part is not None and scene is not None
    assert scene.about.startswith(f"execution {part.last}, one of 3 complete ones")


def test_a_number_beside_a_bar_is_above_the_thin_bar_that_follows() -> None:
    def cost(op: Op) -> float:
        return (9e6 if op.actor == "a1" else 8e5) if isinstance(op, Call) else 3e5

    trace = simulated(pipeline(3), 40, op_cost=cost)
    svg = schedule_picture(trace, trace.graphs[0])
    assert svg is not None
    thin = {
        float(y) for y in re.findall(r'class="rcg-bar"[^>]* y="([\d.]+)"[^>]*height="4.5"', svg)
    }
    beside = re.search(r'<g class="rcg-beside">(.*?)</g></g>', svg)
    assert beside is not None and thin
    for y in map(float, re.findall(r'<text x="[\d.]+" y="([\d.]+)"', beside[1])):
        assert any(0 < top - y < 4 for top in thin)


def test_spans_have_names_where_they_fit_and_in_the_legend() -> None:
    svg = picture_of(spans())
    assert ">all</text>" in svg, "its bar is wide"
    assert ">span: all, part, aside</text>" in svg


def test_a_span_without_a_name_has_no_label() -> None:
    scene = spans()
    nameless = tuple(replace(each, text="") for each in scene.names)
    assert "<text" in picture_of(replace(scene, names=nameless))


def test_cells_of_heat_touch() -> None:
    """A gap of less than a pixel between them would read as thin lines."""
    trace = deep()
    root = ElementTree.fromstring(heat_picture(trace, trace.graphs[0]))
    ends: dict[str, list[tuple[float, float]]] = {}
    for each in root.iter("{http://www.w3.org/2000/svg}rect"):
        if each.get("class") == "rcg-bar":
            x, width = float(each.get("x", "nan")), float(each.get("width", "nan"))
            ends.setdefault(each.get("y", ""), []).append((x, x + width))
    pairs = [pair for own in ends.values() for pair in pairwise(sorted(own))]
    gaps = [after - end for (_, end), (after, _) in pairs]
    assert len(gaps) > 50
    assert not any(0.15 < gap < 1 for gap in gaps)
