# SPDX-License-Identifier: Apache-2.0
"""Scenes: approved texts, and what holds for every scene and every painter of it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from rcg.trace.measured import Measured
from rcg.trace.model import SPAN_BASE, OpenOp
from rcg.trace.trace import Trace
from rcg.views.data.colours import IDEAL, TITLES
from rcg.views.data.excerpts import excerpt_of
from rcg.views.data.packing import pack
from rcg.views.scene import COLLECTIVE, NONE, Scene
from rcg.views.scenes.pipeline import pipeline_scene
from rcg.views.scenes.prediction import MAX_SIMULATED
from rcg.views.scenes.schedule import predicted_scene, schedule_scene
from rcg.views.scenes.timeline import timeline_scene
from rcg.views.svg.pictures import schedule_picture
from rcg.views.svg.scene import picture_of
from tests.unit.approved import check_approved
from tests.unit.chrome_format import read
from tests.unit.packed import unpack
from tests.unit.scenes_by_hand import SCENES, queues, training
from tests.unit.simulated_traces import Simulated, recorded, simulated
from tests.unit.traces import event, graph_trace, measure
from tests.unit.views_traces import check_picture, microbatches, pipeline
from tests.unit.views_traces import simulated as run

PREDICTED = (9, IDEAL)  # kinds of what was not measured
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_is_as_approved(name: str) -> None:
    check_approved(name, str(SCENES[name]()))


# --- what holds for every scene -------------------------------------------------------------------


def check_scene(scene: Scene) -> None:
    """Bars of a row never overlap, and everything refers to something that there is."""
    bars = scene.bars
    same = bars.row[1:] == bars.row[:-1]
    assert (np.diff(bars.row.astype(int)) >= 0).all()
    assert (bars.start[1:][same] >= bars.end[:-1][same]).all()
    assert (bars.duration >= 0).all()
    assert (bars.row < len(scene.rows)).all() and (bars.look < len(scene.looks)).all()
    assert (bars.name < len(scene.names)).all()
    assert (scene.links.begin <= scene.links.until).all()
    assert (scene.links.ends < len(bars)).all() and (scene.links.ends >= 0).all()
    for row in scene.rows:
        assert all(scene.rows[each].part == row.part for each in row.members)
    for steps in scene.steps:
        assert (steps.depth >= 0).all() and (np.diff(steps.at) >= 0).all()
        assert scene.depth >= steps.most
    at = 0
    for until in scene.paths.until.tolist():
        begin, end = scene.paths.begin[at:until], scene.paths.end[at:until]
        assert (begin < end).all() and (begin[1:] >= end[:-1]).all()
        at = until


def check_schedule_of(timeline: Scene, schedule: Scene) -> None:
    """A schedule has bars of the timeline: the same times, words, bytes."""
    seen = Counter(facts(timeline))
    rows = np.array([not row.members for row in schedule.rows] or [True])
    own = rows[schedule.bars.row] & ~np.isin(schedule.bars.kind, PREDICTED)
    assert not Counter(facts(schedule, own)) - seen


def facts(scene: Scene, kept: np.ndarray | None = None) -> list[tuple[object, ...]]:
    """What a scene states of each bar: whose, when, how long, what, and how much."""
    which = np.arange(len(scene.bars)) if kept is None else np.flatnonzero(kept)
    return [
        (
            scene.rows[scene.bars.row[bar]].process,
            int(scene.bars.start[bar]),
            int(scene.bars.duration[bar]),
            scene.names[scene.bars.name[bar]].text,
            int(scene.bars.execution[bar]),
            int(scene.bars.bytes[bar]),
            TITLES[int(scene.bars.kind[bar])],
            (*scene.labels(bar), *scene.hover(bar)[:2]),
        )
        for bar in which.tolist()
    ]


def check_causes(scene: Scene) -> None:
    """A cause is another bar."""
    known = np.flatnonzero(scene.causes >= 0)
    assert len(scene.causes) == len(scene.bars)
    assert (scene.causes[known] != known).all() and (scene.causes < len(scene.bars)).all()


def check_payload(scene: Scene) -> None:
    """A payload reads back as it was."""
    head, columns = unpack(pack(*scene.to_payload()))
    for name in ("start", "duration"):
        np.testing.assert_array_equal(np.rint(columns[name] * 1e3), getattr(scene.bars, name))
    for name in ("row", "kind", "look", "name", "peer", "execution", "bytes", "op", "count"):
        np.testing.assert_array_equal(columns[name], getattr(scene.bars, name))
    assert len(head["rows"]) == len(scene.rows) and head["about"] == scene.about


def check_static(scene: Scene) -> None:
    """A picture says of each bar that it shows alone what the scene says of it."""
    picture = picture_of(scene)
    check_picture(picture)
    told = Counter("\n".join(scene.hover(bar)) for bar in range(len(scene.bars)))
    rects = ElementTree.fromstring(picture).iter(f"{SVG}rect")
    drawn = [each.find(f"{SVG}title") for each in rects if each.get("class") == "rcg-bar"]
    assert not Counter(each.text for each in drawn if each is not None) - told


def check_perfetto(trace: Trace, scene: Scene, path: Path) -> None:
    """A file for Perfetto has each bar of the timeline: when, how long, of what, bytes."""
    trace.to_chrome(path)
    found = read(path)
    said = Counter(
        (
            each.start,
            each.end - each.start,
            each.name.removeprefix("wait: "),
            each.category,
            each.args["execution"],
            each.args["bytes"],
        )
        for each in found.slices
    )
    own = Counter(
        (start, took, text, kind, execution, size)
        for _, start, took, text, execution, size, kind, _ in facts(scene)
    )
    assert said == own
    pairs = scene.links.kind != COLLECTIVE
    assert len(found.arrows) + found.about["arrows_left_out"] == int(pairs.sum())


@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(recorded())
def test_all_painters_of_any_recording_say_the_same(tmp_path: Path, trace: Trace) -> None:
    (graph,) = trace.graphs
    timeline = timeline_scene(Measured.of(trace, graph))
    schedule = schedule_scene(Measured.of(trace, graph), timeline=timeline)
    plan = predicted_scene(graph.plan)
    for scene in (timeline, schedule, plan):
        check_scene(scene)
        check_payload(scene)
        check_static(scene)
        assert str(scene)
    pipeline = pipeline_scene(Measured.of(trace, graph), timeline=timeline)
    if pipeline is not None:
        check_scene(pipeline)
        check_payload(pipeline)
        check_static(pipeline)
        assert str(pipeline_scene(Measured.of(trace, graph))) == str(pipeline)
        own = facts(pipeline, ~np.isin(pipeline.bars.kind, PREDICTED))
        assert {fact[:5] for fact in own} <= {fact[:5] for fact in facts(timeline)}
    check_schedule_of(timeline, schedule)
    check_causes(timeline)
    check_causes(schedule)
    check_perfetto(trace, timeline, tmp_path / "trace.json")
    part = excerpt_of(Measured.of(trace, graph))
    if part is not None:
        excerpt = timeline_scene(Measured.of(trace, graph), part=part)
        check_scene(excerpt)
        assert not Counter(facts(excerpt)) - Counter(facts(timeline))
        shown = schedule_scene(Measured.of(trace, graph), is_part=True)
        check_scene(shown)
        check_schedule_of(timeline, shown)


def test_a_bar_has_the_causes_that_it_has_by_hand() -> None:
    """Of two stages: the driver writes c0, a0 computes and writes c1, a1 computes and writes c2."""
    scene = SCENES["timeline"]()
    steps = [
        f"{scene.rows[scene.bars.row[bar]].process} {scene.names[scene.bars.name[bar]].text} "
        f"{TITLES[int(scene.bars.kind[bar])]}"
        for bar in range(len(scene.bars))
    ]
    path, bar = [], steps.index("a1 fwd compute")
    while bar >= 0:
        path.append(steps[bar])
        bar = int(scene.causes[bar])
    assert path == [
        "a1 fwd compute",
        "a1 read c1 serialization",  # after 600 to 640
        "a1 read c1 communication",  # which began when a0 had written
        "a0 write c1 communication",
        "a0 write c1 serialization",
        "a0 fwd compute",
        "a0 read c0 serialization",
        "a0 read c0 communication",  # at 110, when the driver had written
        "driver write c0 communication",
        "driver write c0 serialization",
    ]


def test_the_cells_of_a_heat_strip_are_those_by_hand() -> None:
    """Slices of 10 ns: half of the one at 140 ns is computed, and 8 ns of the one at 790 ns."""
    scene = SCENES["heat"]()
    cells = [
        (
            scene.rows[scene.bars.row[bar]].process,
            int(scene.bars.start[bar]),
            int(scene.bars.end[bar]),
            scene.names[scene.bars.name[bar]].text,
            scene.looks[scene.bars.look[bar]].opacity,
        )
        for bar in range(len(scene.bars))
    ]
    assert cells == [
        ("a0", 140, 150, "from 50 %", 0.6),
        ("a0", 150, 500, "from 90 %", 1.0),
        ("a1", 660, 790, "from 90 %", 1.0),
        ("a1", 790, 800, "from 80 %", 0.9),
    ]
    legend = "stronger colour: a larger share of the slice"
    assert picture_of(scene).count(f">{legend}</text>") == 1, "one entry, of several shades"


def test_what_a_view_lacks_is_said() -> None:
    """Spans in ten rows: two are too deep."""
    rows = [event(1, 0, 0, 1000), *(event(SPAN_BASE, 0, at, 900 - at) for at in range(10))]
    graph = graph_trace({"a0": rows}, spans={"a0": ("inside",)})
    scene = timeline_scene(measure(graph, 0, 1000))
    assert scene.about.endswith("2 spans deeper than 8 not shown")


@settings(max_examples=25)
@given(simulated(has_tensors=True))
def test_every_exchange_of_a_simulation_is_joined_once(made: Simulated) -> None:
    scene = timeline_scene(measure(made.graph, 0, made.end))
    bars, links = scene.bars, scene.links
    for link in np.flatnonzero(links.kind == COLLECTIVE).tolist():
        ends = links.ends_of(link)
        assert len(set(bars.row[ends].tolist())) == len(ends)
        # It begins when the last rank knows that all have arrived, and ends with the last rank.
        assert links.begin[link] == bars.start[ends].max()
        assert links.until[link] == bars.end[ends].max()


# --- figures that were wrong, by hand -------------------------------------------------------------


def test_a_prediction_is_in_one_place_in_picture_and_view() -> None:
    trace = training()
    (graph,) = trace.graphs
    found = []
    for is_part in (True, False):
        scene = schedule_scene(Measured.of(trace, graph), is_part=is_part)
        found.append(facts(scene, scene.bars.kind == 9))
    assert found[0] == found[1] != []


def test_a_legend_explains_numbers_where_there_are_some() -> None:
    trace = run(microbatches(), 3)
    measured = Measured.of(trace, trace.graphs[0])
    pipeline_of = pipeline_scene(measured)
    assert pipeline_of is not None
    scenes = [schedule_scene(measured, is_part=True), pipeline_of]
    for scene, what in zip(scenes, ("call in its execution", "micro-batch"), strict=True):
        for width, is_numbered in ((1040, True), (240, False)):
            picture = picture_of(scene, width=width)
            assert (f">number of the {what}<" in picture) == is_numbered
            assert bool(re.search(r">[FB]?7</text>", picture)) == is_numbered


def test_all_queues_of_a_picture_have_the_scale_that_its_legend_names() -> None:
    """Four frames are four times as high as one."""
    picture = picture_of(queues())
    heights = {
        int(most): max(map(float, re.findall(r"v-([\d.]+)H", path)))
        for path, most in re.findall(
            r'<path d="([^"]*)"><title>values on[^<]* up to (\d+) of', picture
        )
    }
    assert set(heights) == {1, 4} and heights[4] == pytest.approx(4 * heights[1], abs=0.2)
    words = "values on their way: written and not read yet, up to {} in {}"
    assert words.format(4, "the whole recording") in picture
    head, _ = queues().to_payload()
    assert head["depth"] == 4 and head["queue_key"] == words.format(4, "the whole recording")
    trace = run(pipeline(3), 40)
    whole = Measured.of(trace, trace.graphs[0])
    part = timeline_scene(whole, part=excerpt_of(whole, most=2))
    assert part.queue_text == words.format(part.depth, "this part")


def test_a_prediction_of_a_large_plan_is_short() -> None:
    """About 20,000 ops: as many executions as cost little."""
    plan = microbatches(8, 300)
    ops = sum(len(program.ops) for program in plan.programs)
    scene = predicted_scene(plan)
    assert ops > 18_000 and scene.num_executions == 1
    assert len(scene.bars) <= MAX_SIMULATED


# --- what a picture shows -------------------------------------------------------------------------


def test_what_is_shown_are_whole_executions_before_the_pipeline_runs_empty() -> None:
    trace = run(pipeline(3), 40)
    part = excerpt_of(Measured.of(trace, trace.graphs[0]), most=8)
    assert part is not None and (part.first, part.last) == (22, 29)
    assert part.words == "all of executions 22 to 29"
    few = run(pipeline(3), 3)
    part = excerpt_of(Measured.of(few, few.graphs[0]))
    assert part is not None and (part.first, part.last) == (0, 2)
    assert part.start_ns <= few.graphs[0].driver.events["start_ns"].min()  # the submission
    nothing = graph_trace({"a0": [event(1, 0, 0, 5)]})
    assert excerpt_of(measure(nothing, 0, 100)) is None
    assert schedule_picture(Trace((nothing,), 0, 100), nothing) is None


def test_a_call_that_has_not_returned_is_what_is_shown() -> None:
    rows = {
        "a0": [event(0, 0, 0, 10), event(1, 0, 10, 30), event(3, 0, 30, 40), event(0, 1, 40, 50)],
        "a1": [event(0, 0, 0, 50), event(1, 0, 50, 70), event(3, 0, 70, 80)],
    }
    stuck = graph_trace(rows, opens={"a0": OpenOp(1, 1, 50)})
    part = excerpt_of(measure(stuck, 0, 10_000))
    assert part is not None and part.words == "execution 1, not finished"
    assert (part.start_ns, part.end_ns) == (0, 10_000)
    moment = excerpt_of(measure(stuck, 0, 85))  # as long as any other call may take
    assert moment is not None and not moment.is_open
    never = graph_trace({}, opens={"a1": OpenOp(1, 0, 500)})
    part = excerpt_of(measure(never, 0, 900))
    assert part is not None and part.start_ns == 450
    waiting = graph_trace({}, opens={"a1": OpenOp(0, 0, 500, 500, 1)})
    assert excerpt_of(measure(waiting, 0, 900)) is None


def test_of_a_call_that_is_all_that_is_recorded_nothing_is_the_cause() -> None:
    scene = timeline_scene(measure(graph_trace({}, opens={"a0": OpenOp(1, 0, 10)}), 0, 100))
    assert len(scene.bars) and (scene.causes == NONE).all()


def test_a_prediction_that_does_not_fit_is_left_out_and_that_is_said() -> None:
    trace = run(pipeline(3), 60, window=4)
    (graph,) = trace.graphs
    given = {"op_cost": lambda op: 16e6 if op.is_call else 1e3, "is_part": True}
    scene = schedule_scene(Measured.of(trace, graph), **given)
    assert re.search(
        r"not drawn: the prediction, 6\d\.\d /s, has its calls at other times", scene.about
    )
    assert not (scene.bars.kind == 9).any()


@pytest.mark.parametrize("actors", [2, 12, 63])
def test_a_picture_is_readable_from_few_to_many_actors(actors: int) -> None:
    trace = run(pipeline(actors), 30, spans=True)
    (graph,) = trace.graphs
    part = excerpt_of(Measured.of(trace, graph), most=6)
    svg = picture_of(timeline_scene(Measured.of(trace, graph), part=part))
    assert len(svg) < 300_000
    for actor in range(1, actors + 1):
        assert f"Stage#{actor}</text>" in svg
    check_picture(svg)


@pytest.mark.parametrize("name", SCENES)
def test_a_picture_of_every_scene_is_well_formed(name: str) -> None:
    scene = SCENES[name]()
    check_scene(scene)
    check_static(scene)
    svg = picture_of(scene)
    for row in (scene.rows[at] for at in scene.folded if not scene.rows[at].under):
        assert row.label in unescape(svg)
    assert picture_of(replace(scene)) == svg


def test_a_recording_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(ValueError, match="1 ns before it starts"):
        timeline_scene(measure(graph_trace({}), 5, 4))
