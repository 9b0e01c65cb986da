# SPDX-License-Identifier: Apache-2.0
"""Profiles side by side, and which of them a process keeps."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

import rcg
from rcg.errors import TraceError
from rcg.profiling import Profile, kept_profiles
from rcg.runs import Kept, Runs
from rcg.trace.analysis.comparison import Comparison
from rcg.trace.trace import Trace
from rcg.views.html.runs import runs_picture
from tests.unit.approved import check_approved
from tests.unit.test_trace_what_if import pipeline
from tests.unit.traces import graph_trace, trace
from tests.unit.views_traces import check_pictures, labelled, simulated
from tests.unit.views_traces import pipeline as chain

END = 1 << 30


def recorded(name: str = "", *graphs: Any, **how: Any) -> Profile:
    """The profile of a pipeline, or of these graphs."""
    profile = Profile(name=name)
    profile._trace = trace(*(graphs or (pipeline(**how),)), end=END)
    return profile


def test_each_is_shown_against_the_first_with_what_limits_it() -> None:
    """One in flight takes 37 us, three take a1's 22; ten only wait longer."""
    runs = Runs(
        [recorded("one", window=1), recorded("three", window=3), recorded("ten", window=10)]
    )
    ratios = [row.throughput.ratio for row in runs.rows]
    assert ratios == [None, pytest.approx(37 / 22), pytest.approx(37 / 22, rel=1e-2)]
    assert runs.rows[1].latency.after == 65_000  # three of 22 us, less 1 us of the driver
    check_approved("runs", str(runs))
    picture = runs_picture(runs.rows)
    for said in ("the first", "better", "worse", "1.68x better", "1.81x worse"):
        assert f">{said}<" in picture
    shown = runs._repr_mimebundle_()
    assert shown["text/plain"] == str(runs) and check_pictures(shown["text/html"])


def test_graphs_are_matched_by_plan_then_by_name_then_by_place() -> None:
    here, there = replace(pipeline(), name="a"), replace(pipeline(), name="b")
    other = replace(graph_trace({"a0": [(0, 9, 0, 0, 0, 0, 1, 0)]}, plan=OTHER), name="b")
    runs = Runs([recorded("first", here, other), recorded("second", other, there)])
    assert [row.name for row in runs.rows] == ["first: a", "second: b", "first: b", "second: b"]
    assert [row.executions for row in runs.rows] == [64, 64, 1, 1]
    alone = Runs([recorded("first", here, other), recorded("second", other)])
    assert [row.name for row in alone.rows] == ["first: a", "first: b", "second: b"]


OTHER = """\
plan positional=1 keywords=[] returns=one
actor a0 'Stage' ''
channel c0 driver -> a0 ring node=0 slots=10
channel c1 a0 -> driver ring node=1 slots=10
program driver
  Input * -> s0
  Write s0 -> c0
  Read c1 -> s1
  Output s1
program a0
  Read c0 -> s0
  Call a0.fwd(s0) -> s1 #1
  Write s1 -> c1
"""


def test_what_is_no_change_is_called_noise() -> None:
    runs = Runs([recorded("a", window=3), recorded("b", window=3)])
    assert runs.rows[1].throughput.is_noise is True
    assert str(runs).splitlines()[2].split()[3:5] == ["1.00x", "noise"]


def test_of_too_few_executions_it_is_not_known_what_is_a_change() -> None:
    runs = Runs([recorded("a", window=1, executions=4), recorded("b", window=3, executions=4)])
    assert runs.rows[1].throughput.is_noise is None
    assert str(runs).splitlines()[2].split()[4:6] == ["not", "known"]
    assert "x not known<" in runs_picture(runs.rows)


def test_a_profile_is_found_by_its_number_and_its_name() -> None:
    one, two, again = recorded("one"), recorded("two"), recorded("one")
    runs = Runs([one, two, again])
    assert list(runs) == [one, two, again] and len(runs) == 3
    assert runs["one"] is again and runs["two"] is runs[1] and list(runs[1:]) == [two, again]
    assert isinstance(runs[1:], Runs) and repr(runs) == "<Runs: one, two, one>"
    with pytest.raises(KeyError, match="there is no profile 'three'; the names are 'one', 'two'"):
        runs["three"]
    assert str(Runs([])) == "no profile" and Runs([]).rows == ()
    assert Runs([])._repr_mimebundle_() == {"text/plain": "no profile"}


def test_two_compare_in_detail_and_more_side_by_side() -> None:
    one, two, three = (recorded(name) for name in ("one", "two", "three"))
    assert isinstance(one.compare(two), Comparison)
    runs = one.compare(two, three)
    assert isinstance(runs, Runs) and list(runs) == [one, two, three]
    with pytest.raises(TypeError, match="needs another profile"):
        one.compare()  # type: ignore[call-overload]


def test_a_name_is_kept_in_the_file_and_defaults_to_the_time() -> None:
    profile = Profile(name="after")
    profile.complete(trace(pipeline(), end=END))
    file = BytesIO()
    profile.trace.save(file)
    assert Profile(Trace.load(file.getvalue())).name == "after"
    assert Profile(Trace.load(file.getvalue()), name="mine").name == "mine"
    when = replace(trace(pipeline(), end=END), info={"time": 1_700_000_000.0})
    hours, minutes, seconds = Profile(when).name.split(":")
    assert minutes == "13" and seconds == "20" and 0 <= int(hours) < 24
    for name in ("a" * 81, "a\nb"):
        with pytest.raises(ValueError, match="at most 80 letters"):
            Profile(name=name)
    with pytest.raises(TypeError):
        Profile(name=3)  # type: ignore[arg-type]


def test_the_newest_are_kept_up_to_a_number_and_an_amount() -> None:
    size = sum(lane.events.nbytes for lane in pipeline().lanes)
    kept = Kept(most=3, most_bytes=10 * size)
    for number in range(5):
        kept.add(recorded(str(number)))
    gc.collect()
    assert [run.name for run in kept.runs()] == ["2", "3", "4"]
    held = recorded("held")
    kept.add(held)
    for number in range(3):
        kept.add(recorded(str(number)))
    gc.collect()
    assert [run.name for run in kept.runs()] == ["held", "0", "1", "2"]

    few = Kept(most=9, most_bytes=2 * size)
    for number in range(3):
        few.add(recorded(str(number)))
    gc.collect()
    assert [run.name for run in few.runs()] == ["1", "2"]
    few.add(recorded("large", pipeline(executions=640)))  # alone more than all may have
    gc.collect()
    assert [run.name for run in few.runs()] == ["large"]


def test_a_profile_is_kept_once_and_let_go_of_when_told_to() -> None:
    kept_profiles(keep=0)
    profile = Profile(name="this")
    for _ in range(2):
        profile.complete(trace(pipeline(), end=END))
    other = Profile(name="that")
    other.complete(trace(pipeline(), end=END))
    assert [run.name for run in kept_profiles()] == ["this", "that"]
    assert [run.name for run in kept_profiles(keep=1)] == ["that"]
    with pytest.raises(ValueError, match="`keep` must be 0 or more"):
        kept_profiles(keep=-1)
    del other
    assert len(kept_profiles(keep=0)) == 0


def test_profiles_can_be_called_after_they_were_imported_as_a_module(monkeypatch) -> None:
    before = rcg.profiles
    module = importlib.import_module("rcg.profiles")
    monkeypatch.setattr(rcg, "profiles", before)  # as it was, after this test
    assert module.Profile is rcg.Profile
    assert [*module()] == [*before()]


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ask",
    [
        lambda profile: profile.what_if({"Stage.fdw": 0.5}),
        lambda profile: profile.what_if([("Stage.fwd", 0.5)]),
        lambda profile: profile.what_if({"Stage.fwd": 0}),
        lambda profile: profile.what_if(in_flight=0),
        lambda profile: profile.what_if(speed=2),
        lambda profile: profile.figure("tmeline"),
        lambda profile: profile.figure("shares", graph=7),
        lambda profile: profile.graph("nope"),
        lambda profile: profile.executions(graph=3),
        lambda profile: profile.compare(),
        lambda profile: profile.compare(3),
        lambda profile: profile.save_html("/there/is/none.html"),
        lambda _: Profile().trace,
        lambda _: Profile(name=3),
        lambda _: Trace.load(b"no trace"),
        lambda _: Runs([])["x"],
        lambda _: rcg.profiles(keep=-1),
    ],
)
def test_an_error_about_a_question_ends_at_the_users_line(ask: Callable[[Profile], Any]) -> None:
    with pytest.raises((TraceError, TypeError, ValueError, KeyError, OSError)) as raised:
        ask(recorded("one"))
    assert {Path(entry.path) for entry in raised.traceback} == {Path(__file__)}


def test_of_many_names_those_are_said_that_one_may_have_meant() -> None:
    trace = labelled(simulated(chain(23), 12))
    with pytest.raises(
        TraceError, match=r"no call `Stage.fdw`; did you mean `Stage.fwd` or"
    ) as few:
        Profile(trace).what_if({"Stage.fdw": 0.5})
    assert len(str(few.value)) < 120
    with pytest.raises(TraceError, match=r"it has .*, and 39 more$"):
        Profile(trace).what_if({"?": 0.5})  # of 2 names for each stage, and one for all
