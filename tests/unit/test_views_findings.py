# SPDX-License-Identifier: Apache-2.0
"""What follows from a trace shows itself: in a sentence, as a short table, as a picture."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from rcg.profiling import Profile
from rcg.trace.analysis.comparison import Change
from rcg.trace.trace import Trace
from rcg.views.html.findings import comparison_picture, of_what_if, path_picture, what_if_picture
from tests.unit.traces import event, graph_trace, trace
from tests.unit.views_traces import (
    check_picture,
    check_pictures,
    labelled,
    microbatches,
    pipeline,
    simulated,
    times,
)

MOST_TEXT = 6_000
MOST_LINES = 90


def small() -> Profile:
    return Profile(simulated(pipeline(2), 4))


def long() -> Profile:
    """Many executions of many actors, with paths of very many steps."""
    return Profile(simulated(pipeline(12), 400, jitter=0.3))


def empty() -> Profile:
    return Profile(trace(graph_trace({"a0": [event(1, 0, 0, 10)]}), end=100))


def training() -> Profile:
    return Profile(simulated(microbatches(), 6))


PROFILES = [small, long, empty, training]


def findings(profile: Profile) -> list[Any]:
    executions = profile.executions()
    last = int(executions.index[-1])
    return [
        executions,
        profile.critical_path(last),
        profile.what_if(in_flight=3),
        profile.compare(profile),
        profile.compare(small()),
        *profile.compare(profile).graphs,
    ]


@pytest.mark.parametrize("make", PROFILES)
def test_each_prints_shortly_and_shows_itself(make) -> None:
    for found in findings(make()):
        assert len(repr(found)) < 200 and "\n" not in repr(found)
        assert len(str(found)) < MOST_TEXT and str(found).count("\n") < MOST_LINES
        shown = found._repr_mimebundle_()
        assert shown["text/plain"] == str(found)
        assert make is empty or "<img" in shown["text/html"] or "<table" in shown["text/html"]
        check_pictures(shown.get("text/html", ""))
        assert "<script" not in shown.get("text/html", "")


def test_executions_are_a_sequence_of_records() -> None:
    executions = small().executions()
    records = list(executions)
    assert [each.index for each in records] == [0, 1, 2, 3]
    assert [each.latency_ns for each in records] == executions.latency_ns.tolist()
    assert executions[0] == records[0] and executions[-1] == records[3]
    assert executions[1:3] == records[1:3]
    assert records[2].submitted_ns == executions.submitted_ns[2]
    with pytest.raises(IndexError):
        executions[4]


def test_a_picture_of_a_path_has_a_bar_for_each_step_on_the_line_of_its_method() -> None:
    path = small().critical_path(2)
    picture = path_picture(path)
    check_picture(picture)
    bars = re.findall(r'<rect[^>]* y="([0-9.]+)"[^>]*><title>([^\n]*)\n', picture)
    assert bars[0][1] == path[0].text  # lines are by time
    long = [text for text, steps in path.groups() if _ns(steps) >= 0.01 * path.duration_ns]
    for text in long:
        assert len({y for y, of in bars if of == text}) == 1
    assert len(set(bars)) < len(path)
    assert len(bars) == sum(step.text in long for step in path)
    # Steps of other executions are paler.
    others = sum(step.execution != 2 and step.text in long for step in path)
    assert picture.count(' opacity="0.45" x=') == others > 0


def _ns(steps) -> int:
    return sum(step.duration_ns for step in steps)


def test_what_takes_little_in_each_of_many_actors_is_one_line() -> None:
    path = Profile(labelled(simulated(pipeline(40), 30))).critical_path(20)
    assert path.answer.startswith("no step stands out")
    picture = path_picture(path)
    check_picture(picture)
    texts = re.findall(r"<text[^>]*>([^<]*)<", picture)
    took = sum(step.duration_ns for step in path if step.text.endswith(".fwd"))
    share = f"{100 * took / path.duration_ns:.0f} %"
    assert texts[0].startswith(f"{share} of ") and "a0 to a39 (Stage).fwd" in texts
    assert share in texts[1:] and len(texts) < 40


def test_the_steps_of_a_printed_path_are_all_counted() -> None:
    path = Profile(labelled(simulated(pipeline(40), 30))).critical_path(20)
    printed = str(path).partition("takes\n")[2].splitlines()
    counts = [re.match(r" +(?:\.\.\. )?(\d+) (?:more )?steps", line) for line in printed]
    assert any("more steps" in line for line in printed)
    assert sum(int(each[1]) if each else 1 for each in counts) == len(path)


def test_a_comparison_says_what_is_noise() -> None:
    """Of 40 executions: nothing changed; then one method takes half the time."""
    before, slower = (
        Profile(simulated(pipeline(2), 40, op_cost=times(call_us=call_us)))
        for call_us in (400, 800)
    )
    [same] = before.compare(before).graphs
    assert same.throughput.is_noise and same.answer.startswith("alike, 1.00x")
    picture = comparison_picture(same)
    assert "no change beyond the noise" in picture and "rcg-alike" in picture
    assert f">{same.answer}<" in picture
    [found] = slower.compare(before).graphs
    assert not found.throughput.is_noise
    assert found.answer.startswith("1.9") and "largest change: Stage#2.fwd " in found.answer
    assert str(found).startswith(found.answer)
    picture = comparison_picture(found)
    assert f">{found.answer}<" in picture and "worse" not in picture
    assert picture.count(" better<") == 5  # both figures, both methods, the legend


def test_a_change_that_is_shown_within_its_spread_is_noise() -> None:
    """0.987 with 0.0113 is shown as 0.99x and 0.01, which no reader takes for a change."""
    shown = Change("executions", 1000.0, 987.0, (5.0, 10.2))
    assert shown.row(str)[3:] == ("0.99x \N{PLUS-MINUS SIGN}0.01", "noise")
    assert not Change("executions", 1000.0, 980.0, (5.0, 10.2)).is_noise


def test_a_replay_that_is_far_off_is_shown_beside_the_measurement_and_predicts_nothing() -> None:
    found = Profile(simulated(pipeline(2), 40)).what_if({"Stage.fwd": 0.5})
    found = replace(found, measured_throughput=2 * (found.baseline_throughput or 0.0))
    assert found.answer == "no prediction, a replay of this trace is 50 % off"
    picture = what_if_picture(found)
    check_picture(picture)
    assert ">measured<" in picture and ">replayed<" in picture and ">0.50x<" in picture
    assert "busy" not in picture and "predicted" not in picture
    assert str(of_what_if(found)["text/html"]).count("<img") == 1  # no predicted schedule
    assert "replayed, unchanged" in str(found) and "predicted" not in str(found)


def test_names_of_strangers_are_escaped() -> None:
    bad = "<b onclick='x'>&\x00\ud800\n"
    profile = small()
    graph = profile.trace.graphs[0]
    plan = replace(graph.plan, actors=tuple(replace(each, label=bad) for each in graph.plan.actors))
    lanes = tuple(replace(lane, label=bad + lane.label) for lane in graph.lanes)
    profile = Profile(Trace((replace(graph, plan=plan, lanes=lanes),), 0, profile.trace.end_ns))
    for found in findings(profile):
        shown = found._repr_mimebundle_()
        shown["text/plain"].encode()
        html = shown.get("text/html", "")
        html.encode()
        assert "<b " not in html
        check_pictures(html)
