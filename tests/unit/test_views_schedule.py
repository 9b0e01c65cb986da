# SPDX-License-Identifier: Apache-2.0
"""The schedule: a bar per call, numbers and colours of executions, predicted beside measured."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import numpy as np

from rcg.compiler.simulate import simulate
from rcg.trace.model import OpenOp
from rcg.trace.trace import Trace
from rcg.views.data.excerpts import excerpt_of
from rcg.views.data.schedule import marks_of, schedule_payload
from rcg.views.data.slices import Slices
from rcg.views.data.slicing import slices_of
from rcg.views.svg.schedule import schedule_of
from tests.unit.traces import event, graph_trace
from tests.unit.views_traces import check_picture, microbatches, pipeline, simulated, times

SVG = "{http://www.w3.org/2000/svg}"


def shown(trace: Trace, most: int = 12) -> Slices:
    excerpt = excerpt_of(trace.graphs[0], trace.start_ns, trace.end_ns, most=most)
    assert excerpt is not None
    return slices_of(trace.graphs[0], excerpt.start_ns, excerpt.end_ns)


def bars(svg: str, group: str) -> list[str]:
    """The hovers of the bars in a group."""
    root = ElementTree.fromstring(svg)
    (found,) = [each for each in root.iter() if each.get("class") == group]
    return [
        rect.find(f"{SVG}title").text or ""  # type: ignore[union-attr]
        for rect in found.iter(f"{SVG}rect")
        if rect.get("class") == "rcg-bar"
    ]


def test_the_window_has_whole_executions_before_the_pipeline_runs_empty() -> None:
    trace = simulated(pipeline(3), 40)
    excerpt = excerpt_of(trace.graphs[0], trace.start_ns, trace.end_ns, most=8)
    assert excerpt is not None and (excerpt.first, excerpt.last) == (22, 29)
    assert excerpt.words == "all of executions 22 to 29"
    few = simulated(pipeline(3), 3)
    excerpt = excerpt_of(few.graphs[0], few.start_ns, few.end_ns)
    assert excerpt is not None and (excerpt.first, excerpt.last) == (0, 2)
    assert excerpt.start_ns <= few.graphs[0].driver.events["start_ns"].min()  # the submission
    nothing = graph_trace({"a0": [event(1, 0, 0, 5)]})
    assert excerpt_of(nothing, 0, 100) is None


def test_a_call_that_has_not_returned_is_what_is_shown() -> None:
    rows = {
        "a0": [event(0, 0, 0, 10), event(1, 0, 10, 30), event(3, 0, 30, 40), event(0, 1, 40, 50)],
        "a1": [event(0, 0, 0, 50), event(1, 0, 50, 70), event(3, 0, 70, 80)],
    }
    stuck = graph_trace(rows, opens={"a0": OpenOp(1, 1, 50)})
    excerpt = excerpt_of(stuck, 0, 10_000)
    assert excerpt is not None and excerpt.words == "execution 1, not finished"
    assert (excerpt.start_ns, excerpt.end_ns) == (0, 10_000)
    moment = excerpt_of(stuck, 0, 85)  # as long as any other call may take
    assert moment is not None and not moment.is_open
    never = graph_trace({}, opens={"a1": OpenOp(1, 0, 500)})
    excerpt = excerpt_of(never, 0, 900)
    assert excerpt is not None and excerpt.start_ns == 450
    waiting = graph_trace({}, opens={"a1": OpenOp(0, 0, 500, 500, 1)})
    assert excerpt_of(waiting, 0, 900) is None


def test_there_is_a_bar_for_every_call_in_the_window() -> None:
    slices = shown(simulated(pipeline(3), 30), most=4)
    calls = int(slices.where("call").sum())
    svg = schedule_of(slices)
    hovers = [hover for hover in bars(svg, "rcg-measured") if "fwd" in hover]
    # Those cut by the excerpt's edges may be narrower than a pixel.
    assert calls - 4 <= len(hovers) <= calls
    assert all("measured" in hover and "execution" in hover for hover in hovers)
    check_picture(svg)


def test_over_a_measurement_equal_costs_are_stretched_to_fit() -> None:
    trace = simulated(pipeline(2), 30)
    svg = schedule_of(shown(trace), predicted=simulate(trace.graphs[0].plan, executions=30))
    found = re.search(r"equal cost per call, (\d+) \u00b5s each", svg)
    assert found is not None and 400 < int(found[1]) < 460


def test_a_prediction_that_does_not_fit_is_left_out_and_that_is_said() -> None:
    trace = simulated(pipeline(3), 60, window=4)
    slices = shown(trace, most=6)
    plan = trace.graphs[0].plan
    for call_us, least_ms in ((16_000, 16), (1_000, 1)):
        predicted = simulate(plan, times(call_us=call_us), 50, window=4)
        svg = schedule_of(slices, predicted=predicted, unit_ns=1)
        found = re.search(
            r"not drawn: the prediction, ([\d.]+) /s, is not like what was measured", svg
        )
        assert found is not None
        assert least_ms < 1000 / float(found[1]) < 1.4 * least_ms
        assert "rcg-predicted" not in svg and "predicted</text>" not in svg
        check_picture(svg)


def test_a_colour_is_a_call_of_an_execution() -> None:
    """Two methods, the first of which is called three times in each execution."""
    marks = marks_of(
        np.array([1, 1, 1, 1, 2]), np.array([5, 5, 3, 5, 3]), np.array([1, 4, 6, 9, 1])
    )
    assert marks.turn.tolist() == [0, 1, 0, 2, 0] and marks.repeats == 3
    assert marks.is_other.tolist() == [False, False, True, False, False]
    # Executions follow each other in the order of colours; there are eight.
    assert marks.colour(np.full(5, 0)).tolist() == [0, 1, 0, 2, 0]
    assert marks.colour(np.full(5, 2)).tolist() == [6, 7, 6, 0, 6]
    head, columns = schedule_payload(microbatches(), None)
    turns = np.array(
        [
            head["turns"][lane][op]
            for lane, op in zip(columns["predicted_lane"], columns["predicted_op"], strict=True)
        ]
    )
    assert sorted(set(turns.tolist())) == [-1, *range(8)] and head["repeats"] == 8
    assert head["initials"] == {"fwd": "F", "bwd": "B"}
