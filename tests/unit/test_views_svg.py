# SPDX-License-Identifier: Apache-2.0
"""The SVG: well-formed, complete, self-contained, and no text wider than its box."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.views.data.figures import TopologyFigures
from rcg.views.data.folding import fold
from rcg.views.data.lettering import width_of
from rcg.views.data.topology import Topology, topology_of
from rcg.views.svg.canvas import WIDTH
from rcg.views.svg.topology import svg_of
from tests.unit.random_graphs import Case, cases
from tests.unit.views_plans import Builder, planned, scatter_gather
from tests.unit.views_traces import pipeline

SVG = "{http://www.w3.org/2000/svg}"
WICKED = "<b>&\"'\\\n\x00\ud800]]>\N{RIGHT-TO-LEFT OVERRIDE}"


def marks(svg: str, name: str) -> list[ElementTree.Element]:
    root = ElementTree.fromstring(svg)
    return [each for each in root.iter() if name in each.get("class", "").split()]


def texts_of(svg: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter(f"{SVG}text"))


def wicked() -> Topology:
    build = Builder(keys=("a<b", "n\n"))
    first, second = build.call("a0", WICKED, 0, num_returns=2, label=WICKED)
    long = build.call("a1", "very_" * 60, second, 1, label="Very" * 60)
    return topology_of(build.plan(first, long))


@given(cases(), st.booleans(), st.sampled_from([None, False, True]))
def test_it_has_a_mark_for_everything(case: Case, details: bool, dark: bool | None) -> None:
    topology = topology_of(planned(case.graph))
    svg = svg_of(topology, channel_details=details, dark=dark)
    folded = fold(topology, "calls" if details else "methods")
    assert len(marks(svg, "rcg-node")) == len(folded.rows)
    assert len(marks(svg, "rcg-edge")) == len(folded.lines)
    assert len(marks(svg, "rcg-actor-box")) == sum(card.kind == "actor" for card in folded.cards)
    assert min(float(each.get("font-size", "nan")) for each in texts_of(svg)) >= 11.5
    assert float(ElementTree.fromstring(svg).get("width", "nan")) <= WIDTH
    again = topology_of(planned(case.graph))
    assert svg_of(again, channel_details=details, dark=dark) == svg


@pytest.mark.parametrize("details", [False, True])
def test_no_text_is_wider_than_its_box(details: bool) -> None:
    svg = svg_of(wicked(), channel_details=details)
    checked = 0
    for group in [*marks(svg, "rcg-node"), *marks(svg, "rcg-actor-box")]:
        rect = group.find(f"{SVG}rect")
        assert rect is not None
        for text in group.iter(f"{SVG}text"):
            width = width_of(
                text.text or "",
                float(text.get("font-size", "nan")),
                bold=text.get("font-weight") == "600",
                monospace="monospace" in text.get("font-family", ""),
            )
            assert width <= float(rect.get("width", "nan"))
            y, top = float(text.get("y", "nan")), float(rect.get("y", "nan"))
            assert top < y < top + float(rect.get("height", "nan"))
            checked += 1
    assert checked >= 7


def test_light_and_dark() -> None:
    topology = topology_of(scatter_gather(3))
    light, dark, auto = (svg_of(topology, dark=dark) for dark in (False, True, None))
    assert "prefers-color-scheme" in auto and "<style" not in light + dark
    for svg, ground in ((light, "#ffffff"), (dark, "#0f1419"), (auto, "#ffffff")):
        (rect,) = marks(svg, "rcg-ground")
        assert rect.get("fill") == ground
        root = ElementTree.fromstring(svg)
        assert (rect.get("width"), rect.get("height")) == (root.get("width"), root.get("height"))
    # Every colour that differs is in the style sheet.
    for colour in set(re.findall(r"#[0-9a-f]{6}", dark)):
        assert colour in auto


def test_a_value_that_several_calls_take_is_one_value():
    """The driver sends 5 bytes once, and 16 calls of one actor take them."""
    build = Builder()
    topology = topology_of(build.plan(*[build.call("a0", "fwd", 0) for _ in range(16)]))
    (channel,) = {edge.channel for edge in topology.edges if edge.source == 0}
    drawn = svg_of(topology, measured=TopologyFigures(channel_bytes={channel: 5.0}))
    assert re.findall(r">([^<>]* B)<", drawn) == ["5 B"]


def test_boxes_are_tinted_by_their_share_and_lines_are_as_wide_as_their_bytes():
    """Of an execution of 16 micro-batches: 48 MiB to the second actor, half of it to the driver."""
    build = Builder()
    values = [build.call("a1", "back", build.call("a0", "fwd", 0)) for _ in range(16)]
    topology = topology_of(build.plan(*values))
    folded = fold(topology)
    forward, back = (
        [node.id for node in topology.nodes if node.name == name] for name in ("fwd", "back")
    )
    sizes = {"a0": 3 << 20, "a1": 3 << 19}
    figures = TopologyFigures(
        call_ns={**dict.fromkeys(forward, 2e6), **dict.fromkeys(back, 1e6), forward[0]: 9e6},
        channel_bytes={
            edge.channel: sizes[node.process]
            for edge in topology.edges
            if edge.channel and (node := topology.nodes[edge.source]).process in sizes
        },
        on_path=dict.fromkeys(forward, 0.05),
    )
    drawn = svg_of(topology, measured=figures)
    assert [len(row.nodes) for row in folded.rows] == [1, 16, 16, 1]
    boxes = ["|".join(each.itertext()) for each in marks(drawn, "rcg-node")]
    assert "fwd \u00d716|2 ms \u00b7 80 %" in boxes[1]  # the median, and the sum of the shares
    assert boxes[2].endswith("back \u00d716|1 ms")
    # What stands on a tint is not faint.
    assert re.findall(r'class="rcg-(\w+)"[^>]*>(?:2 ms \u00b7 80 %|1 ms)<', drawn) == [
        "text",
        "faint",
    ]
    assert [len(each.findall(f"{SVG}rect")) for each in marks(drawn, "rcg-node")] == [1, 2, 1, 1]
    assert re.findall(r">([^<>]* MB)<", drawn) == ["16 \u00d7 3.15 MB", "16 \u00d7 1.57 MB"]
    lines = [each.findall(f"{SVG}path")[0] for each in marks(drawn, "rcg-edge")]
    assert [line.get("stroke-width") for line in lines] == ["1.25", "4.97", "4.73"]  # 50 MB, 25 MB
    words = ["share of the critical path", "width: 1 kB to 1 GB"]
    for measured, explained in ((figures, words), (replace(figures, on_path={}), words[1:])):
        legend = svg_of(topology, measured=measured)
        assert [each for each in words if f">{each}<" in legend] == explained
    assert not any(each in svg_of(topology) for each in words)


def test_a_text_that_most_lines_share_is_in_the_legend_only() -> None:
    topology = topology_of(pipeline(30))
    sizes = {channel.id: 2048 for channel in topology.channels} | {"c7": 4096}
    drawn = svg_of(topology, measured=TopologyFigures(channel_bytes=sizes))
    amounts = ["".join(each.itertext()) for each in marks(drawn, "rcg-amount")]
    assert amounts == ["4.1 kB"]
    assert "line without a number: 2.05 kB" in drawn
