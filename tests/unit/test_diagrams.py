# SPDX-License-Identifier: Apache-2.0
"""Diagrams of topologies: approved texts, known figures, and what holds for every picture."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.ir.plan import Plan
from rcg.trace.measured import measured_of
from rcg.trace.model import Mark
from rcg.trace.trace import Trace
from rcg.views.data.figures import TopologyFigures, topology_figures_of
from rcg.views.data.folding import LEVELS, fold
from rcg.views.data.lettering import width_of
from rcg.views.data.topology import Topology, topology_of
from rcg.views.diagram import Diagram
from rcg.views.scenes.topology import diagram_of, diagram_of_folded
from rcg.views.svg.canvas import WIDTH
from rcg.views.svg.diagram import svg_of
from rcg.views.svg.pictures import topology_payload
from tests.unit.approved import check_approved
from tests.unit.random_graphs import Case, cases
from tests.unit.tensors_by_hand import tensor_trace
from tests.unit.trace_by_hand import NODES_PLAN
from tests.unit.traces import changed
from tests.unit.views_plans import (
    Builder,
    all_to_all,
    planned,
    scatter_gather,
    steps_around_allreduces,
)
from tests.unit.views_traces import (
    WICKED,
    check_picture,
    labelled,
    microbatches,
    pipeline,
    simulated,
)

SVG = "{http://www.w3.org/2000/svg}"


def measured(trace: Trace) -> Diagram:
    (found,) = measured_of(trace)
    return diagram_of(topology_of(found.graph.plan), figures=topology_figures_of(found))


def nodes() -> Diagram:
    return diagram_of(topology_of(NODES_PLAN, addresses={"n1": "10.0.0.2"}))


def gather() -> Plan:
    """An actor gathers what it scattered."""
    build = Builder()
    parts = build.call("a2", "split", 0, num_returns=2, label="Hub")
    worked = [build.call(f"a{at}", "work", part) for at, part in enumerate(parts)]
    return build.plan(build.call("a2", "join", worked))


MARKS = {
    "a3": Mark("lost", "died"),
    **{f"a{at}": Mark("stuck", f"stuck in work for {at} s") for at in range(9, 20)},
}
TORN_DOWN = {f"a{at}": Mark("over", "torn down") for at in range(3)}

DIAGRAMS: dict[str, Callable[[], Diagram]] = {
    "pipeline": lambda: diagram_of(topology_of(pipeline(3))),
    "1f1b": lambda: measured(labelled(simulated(microbatches(4, 8), 3))),
    "alike": lambda: measured(labelled(simulated(scatter_gather(33), 4))),
    "allreduce": lambda: diagram_of(topology_of(steps_around_allreduces(3))),
    "allreduce-actors": lambda: diagram_of(
        topology_of(steps_around_allreduces(3)), folding="actors"
    ),
    "all-to-all": lambda: diagram_of(topology_of(all_to_all(3))),
    "nodes": nodes,
    "gather": lambda: diagram_of(topology_of(gather())),
    "details": lambda: diagram_of(topology_of(all_to_all(2)), channel_details=True),
    "groups": lambda: measured(tensor_trace()),
    # Of six that are alike, those with which the same is wrong are drawn together.
    "marks": lambda: diagram_of(topology_of(scatter_gather(34), marks=MARKS)),
    "marks-torn-down": lambda: diagram_of(topology_of(gather(), marks=TORN_DOWN)),
}


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_diagram_is_as_approved(name: str) -> None:
    diagram = DIAGRAMS[name]()
    check_approved(f"topology-{name}", str(diagram))
    check_picture(svg_of(diagram, name))


# --- figures -------------------------------------------------------------------------------------


def test_the_time_of_a_box_is_the_median_of_all_its_calls() -> None:
    """1, 2, 9 us and 3, 8, 9 us: 5.5 us. The median of the medians is 5 us."""
    build = Builder()
    plan = build.plan(build.call("a0", "work", build.call("a0", "work", 0)))
    topology = topology_of(plan)
    one, other = [node.ops[0] for node in topology.nodes if node.kind == "call"]
    runs = {one: np.array([1e3, 2e3, 9e3]), other: np.array([3e3, 8e3, 9e3])}
    box = diagram_of(topology, figures=TopologyFigures(runs_ns=runs)).boxes[1]
    assert box.labels[1].text == "5.5 \N{MICRO SIGN}s"
    assert box.words[1] == "median 5.5 \N{MICRO SIGN}s \N{MIDDLE DOT} ran 6 times"


def test_a_box_says_what_the_table_says() -> None:
    (found,) = measured_of(labelled(simulated(microbatches(2, 5), 7, jitter=0.9)))
    figures = topology_figures_of(found)
    table = {(each.process, each.text.rpartition(".")[2]): each.median_ns for each in found.methods}
    drawn = diagram_of(topology_of(found.graph.plan), figures=figures)
    boxes = [box for box in drawn.boxes if box.kind == "call"]
    assert len(boxes) == 4
    for box in boxes:
        (process,) = {process for process, _ in box.ops}
        method = box.labels[0].text.partition(" ")[0]
        runs = np.concatenate([*figures.runs_of(box.ops).values()])
        assert float(np.median(runs)) == table[process, method]


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_a_box_may_have_collectives_that_have_not_run(share: float) -> None:
    """As in a recording that is cut, or of a graph that hangs."""
    whole = simulated(steps_around_allreduces(2, 6), 1)
    (graph,) = whole.graphs
    ends = np.concatenate([lane.events["end_ns"] for lane in graph.lanes])
    until = np.quantile(ends, share)
    for lane in graph.lanes:
        kept = lane.events[lane.events["end_ns"] <= until]
        graph = changed(graph, lane.process, events=kept)
    found = measured(Trace((graph,), whole.start_ns, int(until) + 1))
    said = [text for box in found.boxes for text in box.words if "ran " in text]
    assert said and any(box.kind == "collective" for box in found.boxes)


def test_a_value_that_several_calls_take_is_one_value() -> None:
    """The driver sends 5 bytes once, and 16 calls of one actor take them."""
    build = Builder()
    topology = topology_of(build.plan(*[build.call("a0", "fwd", 0) for _ in range(16)]))
    (channel,) = {edge.channel for edge in topology.edges if edge.source == 0}
    drawn = diagram_of(topology, figures=TopologyFigures(channel_bytes={channel: 5.0}))
    assert [line.label[0].text for line in drawn.lines if line.label][:1] == ["5 B"]


def test_a_text_that_most_lines_share_is_in_the_legend_only() -> None:
    topology = topology_of(pipeline(30))
    sizes = {channel.id: 2048.0 for channel in topology.channels} | {"c7": 4096.0}
    drawn = diagram_of(topology, figures=TopologyFigures(channel_bytes=sizes))
    assert [line.label[0].text for line in drawn.lines if line.label] == ["4.1 kB"]
    assert ">line without a number: 2.05 kB<" in svg_of(drawn, "")


def test_the_legend_explains_what_is_shown_and_nothing_else() -> None:
    words = ["share of the critical path", "width: 1 kB to 1 GB"]
    plain = svg_of(DIAGRAMS["pipeline"](), "")
    both = svg_of(DIAGRAMS["1f1b"](), "")
    assert [f">{each}<" in plain for each in words] == [False, False]
    assert [f">{each}<" in both for each in words] == [True, True]
    assert ">shared memory<" in plain and ">shared memory<" not in svg_of(
        DIAGRAMS["pipeline"](), "", legend=False
    )


# --- what holds for every picture ----------------------------------------------------------------


@given(cases(max_calls=12, kinds=["allreduce"]), st.sampled_from(LEVELS))
def test_boxes_are_apart_and_what_they_say_is_inside(case: Case, level: str) -> None:
    topology = topology_of(planned(case.graph))
    folded = fold(topology, level)  # type: ignore[arg-type]
    drawn = diagram_of_folded(folded, None)
    for one, other in combinations(drawn.boxes, 2):
        assert not one.rect.overlaps(other.rect)
    for part in (*drawn.boxes, *drawn.cards):
        for label in part.labels:
            assert label.room <= part.rect.width
            assert part.rect.y < label.y < part.rect.bottom
    ops = [op for box in drawn.boxes for op in box.ops]
    assert len(ops) == len(set(ops))  # a box stands for its own ops
    svg = svg_of(drawn, "x")
    check_picture(svg)
    assert float(ElementTree.fromstring(svg).get("width", "nan")) <= WIDTH
    assert svg_of(diagram_of_folded(folded, None), "x") == svg


@given(cases(max_calls=12))
def test_a_widget_shows_the_same_shapes_and_knows_their_ops(case: Case) -> None:
    plan = planned(case.graph)
    for picture in topology_payload(plan).head["pictures"]:
        diagram = diagram_of_folded(fold(topology_of(plan), picture["level"]), None)
        shapes = ElementTree.fromstring(f"<svg>{picture['shapes']}</svg>")
        groups = [each.get("class", "").split()[0] for each in shapes.iter("g")]
        assert groups.count("rcg-node") == len(diagram.boxes) == len(picture["nodes"])
        assert groups.count("rcg-edge") == len(diagram.lines) == len(picture["edges"])
        assert f"{picture['shapes']}</g>" in svg_of(diagram, "x")
        for (source, target, _, ops), line in zip(picture["edges"], diagram.lines, strict=True):
            assert (source, target, ops) == (line.source, line.target, line.ops)
            for process, at in ops:
                op = plan.program(process).ops[at]
                assert op.values_in or op.values_out


def wicked() -> Topology:
    build = Builder(keys=("a<b", "n\n"))
    first, second = build.call("a0", WICKED, 0, num_returns=2, label=WICKED)
    long = build.call("a1", "very_" * 60, second, 1, label="Very" * 60)
    return topology_of(build.plan(first, long))


@pytest.mark.parametrize("details", [False, True])
def test_no_text_is_wider_than_its_box(details: bool) -> None:
    svg = svg_of(diagram_of(wicked(), channel_details=details), WICKED)
    check_picture(svg)
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        rect = group.find(f"{SVG}rect")
        for text in () if rect is None else group.iter(f"{SVG}text"):
            width = width_of(
                text.text or "",
                float(text.get("font-size", "nan")),
                bold=text.get("font-weight") == "600",
                monospace="monospace" in text.get("font-family", ""),
            )
            assert rect is not None and width <= float(rect.get("width", "nan"))


def test_light_and_dark() -> None:
    drawn = DIAGRAMS["groups"]()
    light, dark, auto = (svg_of(drawn, "x", dark=dark) for dark in (False, True, None))
    assert "prefers-color-scheme" in auto and "<style" not in light + dark
    for svg, ground in ((light, "#ffffff"), (dark, "#0f1419"), (auto, "#ffffff")):
        (rect,) = re.findall(r'<rect class="rcg-ground" fill="(\S+)" width="\d+"', svg)
        assert rect == ground
    # Every colour that differs is in the style sheet.
    for colour in set(re.findall(r"#[0-9a-f]{6}", dark)):
        assert colour in auto
