# SPDX-License-Identifier: Apache-2.0
"""The pipeline: micro-batches, bubbles and the ideal, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rcg.compiler import compile_graph
from rcg.ir.ops import Call
from rcg.trace.analysis.alike import odd_text
from rcg.trace.measured import Measured
from rcg.trace.trace import Trace
from rcg.views.data.microbatches import ideal_starts, microbatches_of
from rcg.views.html.mimebundle import of_trace
from rcg.views.scene import Scene
from rcg.views.svg.pictures import pipeline_picture
from tests.unit.pipelines import Script
from tests.unit.scenes_by_hand import pipelined, slow_stage, steps
from tests.unit.traces import changed
from tests.unit.views_plans import Builder
from tests.unit.views_traces import check_picture, microbatches, pipeline

MS = 1_000_000


def notes(scene: Scene) -> dict[str, str]:
    return {row.process: row.note for row in scene.rows if row.note}


def test_the_title_names_the_stage_that_stands_out() -> None:
    """Ideal: (p - 1) / (m + p - 1) = 7 / 23. Measured: span 90, of which a5 works for 72.

    Before its first call are 5 forward calls, after its last one 5 backward calls of 2, and 3 until
    its first gradient; the others work for 48.
    """
    scene = pipelined(steps(microbatches(8, 16), a5=1.5))
    assert scene.title == "a5 is 1.50x slower than its 7 peers: bubble 43 %, ideal 30 %"
    assert set(notes(scene).values()) == {"47 %", "20 %"}


def test_how_slow_a_stage_is_is_that_of_all_executions_as_elsewhere() -> None:
    """In the execution that is shown a5 happens to take 1.2 times as long, and usually 1.5."""
    trace = steps(microbatches(8, 16), a5=1.5)
    (graph,) = trace.graphs
    shown = int(pipelined(trace).about.split()[1].rstrip(","))
    lane = graph.lane("a5")
    events = lane.events.copy()
    calls = [at for at, op in enumerate(graph.program(lane).ops) if op.is_call]
    faster = (events["execution"] == shown) & np.isin(events["op"], calls)
    took = events["end_ns"] - events["start_ns"]
    events["end_ns"][faster] -= took[faster] // 5
    changed_trace = replace(trace, graphs=(changed(graph, "a5", events=events),))
    scene = pipelined(changed_trace)
    assert scene.title.startswith("a5 is 1.50x slower than its 7 peers: ")
    measured = Measured.of(changed_trace, changed_trace.graphs[0])
    assert odd_text(measured.summary.odd) == "7 alike, a5 1.50x slower"


def test_the_bubble_is_that_of_the_profile_if_executions_do_not_overlap() -> None:
    """One execution alone in its trace: its first submission and last result are its ends."""
    trace = steps(microbatches(4, 8), executions=1, a2=1.5)
    scene, shares = pipelined(trace), Measured.of(trace, trace.graphs[0]).shares
    assert [f"{each.bubble:.0%}".replace("%", " %") for each in shares.lanes[1:]] == [
        *notes(scene).values()
    ]


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
    scene = pipelined(steps(plan))
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
    plain = steps(pipeline(3, is_training=True))
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
