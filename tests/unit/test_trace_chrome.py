# SPDX-License-Identifier: Apache-2.0
"""Traces as files for Perfetto and as DataFrames.

``test_scenes`` holds the bars of a file, and its arrows, against the timeline, for any recording.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from rcg.trace.export.frame import COLUMNS, to_pandas
from rcg.trace.model import SPAN_BASE, Clock
from rcg.trace.trace import Trace
from rcg.views import chrome
from rcg.views.chrome import to_chrome
from tests.unit.approved import check_approved
from tests.unit.chrome_format import Found, read
from tests.unit.simulated_traces import recorded
from tests.unit.tensors_by_hand import tensor_trace
from tests.unit.traces import changed, event, events, graph_trace, one_execution, trace
from tests.unit.views_traces import microbatches, simulated

SPAN = SPAN_BASE


@pytest.fixture
def written(tmp_path: Path):
    def write(traced: Trace, name: str = "trace.json") -> Found:
        to_chrome(traced, tmp_path / name)
        return read(tmp_path / name)

    return write


def test_transfers_and_collectives_have_groups_ranks_and_arrows(written):
    found = written(tensor_trace())
    ranks = {
        (s.process, s.category): (s.args["group"], s.args["rank"])
        for s in (*found.named("allreduce g1"), *found.named("write c1"))
    }
    assert ranks["a2 (Stage)", "communication"] == ("g1", 0)
    assert ranks["a1 (Stage)", "communication"] == ("g1", 1)
    assert ranks["a0 (Stage)", "communication"] == ("g0", 0)
    sent = [(out.process, into.process) for out, into in found.arrows if out.name == "write c1"]
    assert sorted(sent) == [("a0 (Stage)", "a1 (Stage)"), ("a0 (Stage)", "a2 (Stage)")]
    assert list(found.counters) == [f"unread values ({'5f1c' * 2})"]


def test_calls_are_numbered_where_a_method_has_several(written):
    assert {s.args["call"] for s in written(simulated(microbatches(2, 3), 1)).named("fwd")} == {
        0,
        1,
        2,
    }
    for call in written(one_execution()).named("fwd"):
        assert call.args == {"execution": 7, "bytes": 0}


def test_no_counter_where_events_were_lost(written):
    traced = one_execution()
    [graph] = traced.graphs
    found = written(replace(traced, graphs=(changed(graph, "a0", lost=5),)))
    assert not found.counters
    assert found.about["lost_events"] == 5


def test_what_a_device_did_is_a_thread_per_stream(written):
    rows = [event(SPAN, 0, 15, 35, peer=0), event(SPAN + 1, 0, 38, 60, peer=1)]
    graph = changed(
        graph_trace({"a0": [event(1, 0, 10, 50)]}),
        "a0",
        spans=("gemm", "Memcpy HtoD"),
        kernels=events(rows),
        streams=("GPU 0, stream 7", "GPU 0, stream 9"),
    )
    found = written(trace(graph, start=5, end=100))
    kernels = [each for each in found.slices if each.category.startswith("GPU")]
    assert [(each.name, each.start, each.end) for each in kernels] == [
        ("gemm", 10, 30),
        ("Memcpy HtoD", 33, 55),
    ]
    streams = [found.threads[each.thread].partition(", stream ")[2] for each in kernels]
    assert streams == ["7)", "9)"]
    frame = to_pandas(trace(graph, start=5, end=100))
    rows = frame[frame["kind"] == "kernel"]
    assert list(rows["name"]) == ["gemm", "Memcpy HtoD"]
    assert list(rows["duration_ns"]) == [20, 22]
    assert rows["peer"].isna().all() and set(rows["label"]) == {graph.lane("a0").label}


def test_an_arrow_against_time_is_left_out_and_counted(written):
    """The clock of a1 is off: what it takes has not begun to be written."""
    rows = {"a0": [event(3, 0, 55, 110)], "a1": [event(0, 0, 50, 120, waited=40)]}
    assert len(written(trace(graph_trace(rows), end=200)).arrows) == 1
    rows = {"a0": [event(3, 0, 55, 110)], "a1": [event(0, 0, 50, 120, waited=70)]}
    found = written(trace(graph_trace(rows), end=200))
    assert not found.arrows and found.about["arrows_left_out"] == 1


def test_one_process_of_several_graphs_is_one_process(written):
    (made,) = one_execution().graphs
    for number, process in enumerate(("driver", "a0", "a1")):
        facts = {"pid": 100 + number, "node": "10.0.0.1", "clock": Clock(5, 2500)}
        made = changed(made, process, **facts)
    both = (replace(made, graph_id=identity * 4) for identity in ("abcd1234", "ef567890"))
    found = written(trace(*both, start=1000, end=1300))
    assert (len(found.processes), len(found.threads)) == (3, 6)
    assert set(found.threads.values()) == {"graph abcd1234", "graph ef567890"}
    labels = [facts["process_labels"] for facts in found.processes.values()]
    assert labels[0] == "pid 100, 10.0.0.1, clock within 2.5 µs"


def test_text_is_made_in_pieces(written, monkeypatch):
    whole = written(one_execution())
    monkeypatch.setattr(chrome, "PIECE_ROWS", 3)
    assert written(one_execution()) == whole


def test_nanoseconds_stay_exact_after_days(written):
    day = 86_400_000_000_000
    rows = {"a0": [event(1, n, 30 * day + n, 30 * day + n + 1) for n in range(1000)]}
    found = written(trace(graph_trace(rows), end=31 * day), "trace.json.gz")
    assert [(s.start, s.end) for s in found.slices] == [
        (30 * day + n, 30 * day + n + 1) for n in range(1000)
    ]


def test_a_frame_has_a_row_for_each_event():
    check_approved("frame", to_pandas(one_execution()).to_csv(index=False))
    assert tuple(to_pandas(trace(end=0)).columns) == COLUMNS


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(recorded())
def test_a_frame_of_any_trace_has_its_events(traced: Trace):
    assert len(to_pandas(traced)) == traced.num_events
