# SPDX-License-Identifier: Apache-2.0
"""Plans and traces that an rcg before version 2 of the plan's JSON has written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rcg.ir.plan import Plan
from rcg.trace.analysis.figures import summarize
from rcg.trace.trace import Trace
from tests.unit.trace_by_hand import A0_ROWS

HERE = Path(__file__).parent / "plans_version_1"
"""Each file of JSON was written by that rcg, and beside it the text form of the same plan."""

FILES = sorted(HERE.glob("*.json"))


def test_there_are_files():
    assert len(FILES) == 3
    assert {json.loads(path.read_text())["version"] for path in FILES} == {1}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_plan_of_version_1_is_read(path: Path):
    plan = Plan.from_json(path.read_text())
    plan.check()
    assert str(plan) == path.with_suffix(".txt").read_text().rstrip("\n")
    assert (plan.lanes, plan.gates, plan.groups) == ((), (), ())
    assert {channel.group for channel in plan.channels} == {None}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_version_1_stored_of_memory_follows_from_the_channels(path: Path):
    stored = json.loads(path.read_text())["reach"]
    sources = Plan.from_json(path.read_text()).memory_sources
    assert sources == {process: tuple(names) for process, names in stored}


@pytest.mark.parametrize("reach", [[], "nonsense", [["a7", ["b"]]], None])
def test_what_version_1_stored_of_memory_is_not_used(reach: object):
    data = json.loads(FILES[0].read_text())
    data["reach"] = reach
    assert Plan.from_json(json.dumps(data)) == Plan.from_json(FILES[0].read_text())
    del data["reach"]
    assert Plan.from_json(json.dumps(data)) == Plan.from_json(FILES[0].read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_is_written_again_as_version_2(path: Path):
    plan = Plan.from_json(path.read_text())
    assert json.loads(plan.to_json())["version"] == 2
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("name", ["lanes", "gates", "groups"])
def test_version_1_has_no_lanes_gates_or_groups(name: str):
    data = json.loads(FILES[0].read_text())
    data[name] = []
    with pytest.raises(ValueError, match=f"plan has no '{name}'"):
        Plan.from_json(json.dumps(data))


def test_a_trace_with_a_plan_of_version_1_is_loaded():
    trace = Trace.load(HERE / "by_hand.trace")
    assert [len(graph.plan.channels) for graph in trace.graphs] == [3, 3]
    assert len(trace.graphs[0].lanes[1].events) == len(A0_ROWS) + 1
    assert "a0 (Stage)" in str(summarize(trace))
