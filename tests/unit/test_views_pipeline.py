# SPDX-License-Identifier: Apache-2.0
"""The pipeline: micro-batches, bubbles and the ideal, by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from rcg.compiler import compile_graph
from rcg.ir.ops import Call, Op
from rcg.ir.plan import Plan
from rcg.trace.measured import Measured
from rcg.trace.trace import Trace
from rcg.views.data.colours import IDEAL, TITLES
from rcg.views.data.microbatches import ideal_starts, microbatches_of
from rcg.views.html.mimebundle import of_trace
from rcg.views.scene import Scene
from rcg.views.scenes.pipeline import pipeline_scene
from rcg.views.scenes.timeline import timeline_scene
from rcg.views.svg.pictures import pipeline_picture
from tests.unit.pipelines import Script
from tests.unit.scenes_by_hand import pipelined, slow_stage
from tests.unit.views_plans import Builder
from tests.unit.views_traces import check_picture, labelled, microbatches, pipeline, simulated

MS = 1_000_000


def costs(**slow: float) -> Callable[[Op], float]:
    """A forward call takes 1 ms, a backward one 2 ms, of some actors so many times as long."""

    def cost(op: Op) -> float:
        if not isinstance(op, Call):
            return 0.0
        return (2 if op.method == "bwd" else 1) * MS * slow.get(op.actor, 1)

    return cost


def run(plan: Plan, executions: int = 3, window: int = 1, **slow: float) -> Trace:
    return labelled(simulated(plan, executions, op_cost=costs(**slow), window=window))


def cells(scene: Scene, kind: str) -> dict[str, list[tuple[str, float, float]]]:
    """The label, the beginning and the end of each bar of a kind, in ms, by process."""
    found: dict[str, list[tuple[str, float, float]]] = {}
    for bar in np.flatnonzero(scene.bars.kind == list(TITLES.values()).index(kind)).tolist():
        times = (scene.bars.start[bar] - scene.begin, scene.bars.end[bar] - scene.begin)
        own = found.setdefault(scene.rows[scene.bars.row[bar]].process, [])
        own.append((scene.labels(bar)[0], *(float(each) / MS for each in times)))
    return found


def notes(scene: Scene) -> dict[str, str]:
    return {row.process: row.note for row in scene.rows if row.note}


def test_two_stages_by_hand() -> None:
    """Span 9: each of both works for 6 of it. That is the ideal as well."""
    scene = pipelined(run(microbatches(2, 2)))
    measured = {
        "a0": [("F0", 0, 1), ("F1", 1, 2), ("B0", 4, 6), ("B1", 7, 9)],
        "a1": [("F0", 1, 2), ("B0", 2, 4), ("F1", 4, 5), ("B1", 5, 7)],
    }
    assert cells(scene, "compute") == measured == cells(scene, "ideal")
    assert notes(scene) == {"a0": "33 %", "a1": "33 %"}
    assert scene.title == "Pipeline: bubble 33 %, ideal 33 %"
    assert scene.about.startswith("execution 1, one of 3 complete ones · 2 micro-batches")


def test_a_slow_stage_by_hand() -> None:
    """Span 15: a0 works for 6 of it, a1 for 12. The ideal takes the medians 1.5 and 3."""
    scene = pipelined(run(microbatches(2, 2), a1=2))
    assert cells(scene, "compute")["a1"] == [
        ("F0", 1, 3),
        ("B0", 3, 7),
        ("F1", 7, 9),
        ("B1", 9, 13),
    ]
    assert cells(scene, "ideal")["a1"] == [
        ("F0", 1.5, 3), ("B0", 3, 6), ("F1", 6, 7.5), ("B1", 7.5, 10.5)
    ]  # fmt: skip
    assert notes(scene) == {"a0": "60 %", "a1": "20 %"}
    assert scene.title == "Pipeline: bubble 40 %, ideal 33 %"


def test_the_title_names_the_stage_that_stands_out() -> None:
    """Ideal: (p - 1) / (m + p - 1) = 7 / 23. Measured: span 90, of which a5 works for 72.

    Before its first call are 5 forward calls, after its last one 5 backward calls of 2, and 3 until
    its first gradient; the others work for 48.
    """
    scene = pipelined(run(microbatches(8, 16), a5=1.5))
    assert scene.title == "a5 is 1.50x slower than its 7 peers: bubble 43 %, ideal 30 %"
    assert set(notes(scene).values()) == {"47 %", "20 %"}


def test_the_bubble_is_that_of_the_profile_if_executions_do_not_overlap() -> None:
    """One execution alone in its trace: its first submission and last result are its ends."""
    trace = run(microbatches(4, 8), executions=1, a2=1.5)
    scene, shares = pipelined(trace), Measured.of(trace, trace.graphs[0]).shares
    assert [f"{each.bubble:.0%}".replace("%", " %") for each in shares.lanes[1:]] == [
        *notes(scene).values()
    ]


def test_calls_of_other_executions_are_pale_and_count_as_bubble() -> None:
    """Forward only, three in flight: the first stage begins the next one while the last works."""
    build = Builder(keys=(0, 1))
    first = [build.call("a0", "fwd", value) for value in (0, 1)]
    plan = build.plan(*[build.call("a1", "fwd", value) for value in first])
    scene = pipelined(run(plan, executions=9, window=3))
    is_other = scene.bars.execution != 4
    assert is_other.any() and all(
        scene.looks[look].title == "another execution" for look in scene.bars.look[is_other]
    )
    assert notes(scene) == {"a0": "33 %", "a1": "33 %"}


def test_a_call_that_waits_for_a_method_of_another_graph_does_not_run_meanwhile() -> None:
    """Each backward call of a1 waits for 1 of its 2: it works for 4 of 9."""
    trace = run(microbatches(2, 2))
    (graph,) = trace.graphs
    lane = graph.lane("a1")
    backward = [at for at, op in enumerate(graph.program(lane).ops) if op.title() == "bwd"]
    events = lane.events.copy()
    events["waited_ns"][np.isin(events["op"], backward)] = MS
    lanes = tuple([replace(x, events=events) if x is lane else x for x in graph.lanes])
    scene = pipelined(replace(trace, graphs=(replace(graph, lanes=lanes),)))
    assert cells(scene, "compute")["a1"] == [
        ("F0", 1, 2), ("B0", 3, 4), ("F1", 4, 5), ("B1", 6, 7)
    ]  # fmt: skip
    assert notes(scene) == {"a0": "33 %", "a1": "56 %"}


def test_measured_cells_are_bars_of_the_timeline() -> None:
    trace = slow_stage()
    timeline = timeline_scene(Measured.of(trace, trace.graphs[0]))
    scene = pipelined(trace)

    def facts(of: Scene) -> set[tuple[object, ...]]:
        bars = of.bars
        return {
            (of.rows[bars.row[at]].process, int(bars.op[at]), int(bars.execution[at]),
             int(bars.start[at]), int(bars.end[at]), of.names[bars.name[at]].text)
            for at in np.flatnonzero(of.where("call") & (bars.kind != IDEAL)).tolist()
        }  # fmt: skip

    shown = facts(scene)
    assert len(shown) == 4 * 16 and shown <= facts(timeline)
    known = pipeline_scene(Measured.of(trace, trace.graphs[0]), timeline=timeline)
    assert str(known) == str(scene)


def test_a_micro_batch_is_what_its_values_say() -> None:
    """GPipe takes the last micro-batch first on the way back: call 0 of bwd is of micro-batch 1."""
    build = Builder(keys=(0, 1))
    there = [build.call("a1", "fwd", build.call("a0", "fwd", value)) for value in (0, 1)]
    back = [build.call("a0", "bwd", build.call("a1", "bwd", value)) for value in reversed(there)]
    plan = build.plan(build.call("a0", "step", *back))
    found = microbatches_of(plan)
    of = {
        (process, op.method): [found.get((process, at)) for at, each in enumerate(program.ops)
                               if isinstance(each, Call) and each.method == op.method]
        for program in plan.programs for process in [program.process]
        for op in program.ops if isinstance(op, Call)
    }  # fmt: skip
    assert of == {
        ("a0", "fwd"): [0, 1], ("a1", "fwd"): [0, 1],
        ("a1", "bwd"): [1, 0], ("a0", "bwd"): [1, 0],
        ("a0", "step"): [None],
    }  # fmt: skip
    scene = pipelined(run(plan))
    (bar, *_) = np.flatnonzero([name.batch == 1 and name.text == "bwd" for name in scene.names])
    at = int(np.flatnonzero(scene.bars.name == bar)[0])
    assert scene.hover(at)[1:3] == ["call 0 of execution 1", "micro-batch 1"]
    assert scene.labels(at) == ["B1", "1"]


@pytest.mark.parametrize("overlap", [False, True])
def test_micro_batches_of_tensors(overlap: bool) -> None:
    """Tensors go over a communicator, with overlap by lanes of their own."""
    script = Script(2)
    for _ in range(3):
        script.bind(0, "bwd", script.bind(1, "fwd", script.bind(0, "fwd")))
    nodes = {f"a{stage}": "n" for stage in range(2)}
    plan = compile_graph(script.graph(), nodes, "n", 10, overlap=overlap).plan
    assert sorted(microbatches_of(plan).values()) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    starts = ideal_starts(plan, dict.fromkeys(microbatches_of(plan), 1.0))
    assert max(starts.values()) == 8  # one micro-batch after the other, as they were bound


def test_the_ideal_waits_for_values_and_for_the_actor_only() -> None:
    plan = microbatches(2, 2)
    places = microbatches_of(plan)
    starts = ideal_starts(plan, dict.fromkeys(places, 1.0))
    assert sorted(each for (process, _), each in starts.items() if process == "a0") == [0, 1, 3, 5]
    assert sorted(each for (process, _), each in starts.items() if process == "a1") == [1, 2, 3, 4]


def test_what_is_no_pipeline_has_no_picture_of_one() -> None:
    plain = run(pipeline(3, is_training=True))
    assert microbatches_of(plain.graphs[0].plan) == {}
    assert pipeline_picture(plain, plain.graphs[0]) is None
    (graph,) = slow_stage().graphs
    lanes = tuple([replace(lane, events=lane.events[:0]) for lane in graph.lanes])
    nothing = Trace((replace(graph, lanes=lanes),), 0, 100)
    assert pipeline_picture(nothing, nothing.graphs[0]) is None


def test_a_notebook_shows_the_picture() -> None:
    trace = slow_stage()
    svg = pipeline_picture(trace, trace.graphs[0])
    assert svg is not None
    check_picture(svg)
    assert "a2 is 1.50x slower than its 3 peers" in svg and ">bubble</text>" in svg
    assert 'alt="Pipeline of' in of_trace(trace)["text/html"]
