# SPDX-License-Identifier: Apache-2.0
"""Traces as Chrome trace JSON and as DataFrames: rows of hand-made ones, and any trace in both."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from rcg.ir.ops import COLLECTIVES
from rcg.trace.export import chrome
from rcg.trace.export.chrome import to_chrome
from rcg.trace.export.frame import COLUMNS, to_pandas
from rcg.trace.model import SPAN_BASE, Clock, OpenOp
from rcg.trace.trace import Trace
from tests.unit.chrome_format import Found, read
from tests.unit.simulated_traces import recorded
from tests.unit.trace_by_hand import DRIVER_APART, END, by_hand
from tests.unit.traces import changed, event, events, graph_trace, one_execution, trace
from tests.unit.views_plans import Builder

SPAN = SPAN_BASE


@pytest.fixture
def written(tmp_path: Path):
    def write(traced: Trace, name: str = "trace.json") -> Found:
        to_chrome(traced, tmp_path / name)
        return read(tmp_path / name)

    return write


def test_ops_are_named_events_with_times_from_the_beginning(written):
    found = written(one_execution())
    [call] = [s for s in found.named("Stage.fwd") if s.process == "a0 (Stage)"]
    assert (call.category, call.start, call.end) == ("call", 40, 90)
    assert call.args == {"execution": 7}
    assert call.parent is None
    [sent] = found.named("write c0")
    assert (sent.category, sent.process, sent.start, sent.end) == ("write", "driver", 10, 30)
    assert {key: float(value) for key, value in sent.args.items()} == {
        "execution": 7,
        "bytes": 64,
        "waited_us": 0,
        "coded_us": 0.004,
    }
    [taken] = found.named("read c0")
    assert taken.args["peer"] == "driver"
    assert float(taken.args["waited_us"]) == 0.028


def test_arrows_go_to_every_reader_of_a_channel(written):
    rows = {
        "driver": [event(1, 0, 10, 20), event(1, 1, 20, 30)],
        "a0": [event(0, 0, 20, 30), event(0, 1, 30, 40)],
        "a1": [event(0, 0, 25, 60), event(0, 1, 60, 70)],
    }
    build = Builder()
    plan = build.plan(*(build.call(actor, "f", 0, label="A") for actor in ("a0", "a1")))
    found = written(trace(graph_trace(rows, plan=str(plan)), end=100))
    ends = {
        (out.args["execution"], into.process, into.args["execution"]) for out, into in found.arrows
    }
    assert ends == {(n, process, n) for n in (0, 1) for process in ("a0 (A)", "a1 (A)")}
    # A frame lies there until the last reader has taken it.
    assert found.counters["unread in c0"] == [(0, 0), (20, 1), (25, 0), (30, 1), (60, 0)]


def test_no_counter_where_events_were_lost(written):
    traced = one_execution()
    [graph] = traced.graphs
    found = written(replace(traced, graphs=(changed(graph, "a0", lost=5),)))
    assert set(found.counters) == {"unread in c2"}
    assert found.about["lost_events"] == 5


def test_what_a_device_did_is_a_thread_per_stream(written):
    """``a0`` began two kernels on one stream and a copy on another; one ended after its call."""
    rows = [event(SPAN, 0, 15, 35, peer=0), event(SPAN + 1, 0, 35, 90, peer=0)]
    rows.append(event(SPAN + 2, 0, 38, 60, peer=1))
    graph = changed(
        graph_trace({"a0": [event(1, 0, 10, 50)]}),
        "a0",
        spans=("gemm", "relu", "Memcpy HtoD"),
        kernels=events(rows),
        streams=("GPU 0, stream 7", "GPU 0, stream 9"),
    )
    found = written(trace(graph, start=5, end=100))
    kernels = [each for each in found.slices if each.category == "kernel"]
    assert [(each.name, each.start, each.end) for each in kernels] == [
        ("gemm", 10, 30),
        ("relu", 30, 85),
        ("Memcpy HtoD", 33, 55),
    ]
    streams = [found.threads[each.thread].partition(", stream ")[2] for each in kernels]
    assert streams == ["7)", "7)", "9)"]
    assert {each.args["execution"] for each in kernels} == {0}
    assert len({each.process for each in found.slices}) == 1
    frame = to_pandas(trace(graph, start=5, end=100))
    rows = frame[frame["kind"] == "kernel"]
    assert list(rows["name"]) == ["gemm", "relu", "Memcpy HtoD"]
    assert list(rows["duration_ns"]) == [20, 55, 22]
    assert rows["peer"].isna().all() and set(rows["label"]) == {graph.lane("a0").label}


def test_what_was_open_at_the_end_lasts_to_the_end(written):
    opens = {
        "a0": OpenOp(op=0, execution=8, since_ns=1100, waiting_since_ns=1120, peer=0),
        "driver": OpenOp(op=3, execution=8, since_ns=1150),
    }
    found = written(one_execution(opens=opens))
    [op] = found.named("read c0 (not finished)")
    assert (op.start, op.end) == (100, 300)
    assert op.args == {"execution": 8, "finished": False, "peer": "driver"}
    [wait] = found.named("wait for driver (not finished)")
    assert (wait.start, wait.end, wait.parent) == (100, 300, op)
    [op] = found.named("read c2 (not finished)")  # beside one that ends at 200
    assert (op.start, op.end, op.parent) == (150, 300, None)


def test_what_began_before_is_cut_at_the_beginning(written):
    rows = {"a0": [event(0, 0, 500, 900, waited=300), event(0, 1, 900, 1100, waited=150, peer=0)]}
    found = written(trace(graph_trace(rows), start=1000, end=2000))
    before, across = found.named("read c0")
    assert (before.start, before.end) == (0, 0)
    assert (across.start, across.end) == (0, 100)
    assert float(across.args["waited_us"]) == 0.15
    waits = [s for s in found.slices if s.category == "wait"]
    assert [(s.start, s.end) for s in waits] == [(0, 50)]


def test_an_arrow_against_time_is_left_out_and_counted(written):
    rows = {"a0": [event(3, 0, 100, 110)], "a1": [event(0, 0, 50, 60)]}  # clocks that are off
    found = written(trace(graph_trace(rows), end=200))
    assert not found.arrows
    assert found.about["arrows_left_out"] == 1
    # What was sent and taken at once is drawn where the Read lasts.
    rows = {"a0": [event(3, 0, 55, 110)], "a1": [event(0, 0, 55, 60)]}
    assert len(written(trace(graph_trace(rows), end=200)).arrows) == 1
    rows = {"a1": [event(3, 0, 55, 110)], "driver": [event(3, 0, 55, 60)]}
    assert len(written(trace(graph_trace(rows), end=200)).arrows) == 1


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


def test_an_op_that_the_program_does_not_have_is_unknown(written):
    found = written(trace(graph_trace({"a0": [event(99, 0, 10, 20)]}), end=100))
    assert [s.name for s in found.slices] == ["unknown"]


def test_text_is_made_in_pieces(written, monkeypatch):
    whole = written(one_execution())
    monkeypatch.setattr(chrome, "PIECE_ROWS", 3)
    assert written(one_execution()) == whole


def test_nanoseconds_stay_exact_after_days(written):
    day = 86_400_000_000_000
    rows = {"a0": [event(1, n, 30 * day + n, 30 * day + n + 1) for n in range(1000)]}
    found = written(trace(graph_trace(rows), end=31 * day))
    assert [(s.start, s.end) for s in found.slices] == [
        (30 * day + n, 30 * day + n + 1) for n in range(1000)
    ]


def test_a_frame_has_a_row_for_each_event():
    frame = to_pandas(one_execution())
    assert tuple(frame.columns) == COLUMNS
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    assert [row["name"] for row in rows if row["process"] == "a0"] == [
        *("read c0", "Stage.fwd", "write c1")
    ]
    taken = next(row for row in rows if row["name"] == "read c0")
    assert taken == {
        "graph": "5f1c" * 8,
        "node": "n0",
        "process": "a0",
        "label": "a0 (Stage)",
        "op": "Read c0 -> s0",
        "kind": "read",
        "name": "read c0",
        "execution": 7,
        "start_ns": 0,
        "end_ns": 40,
        "duration_ns": 40,
        "waited_ns": 28,
        "coded_ns": 2,
        "bytes": 64,
        "peer": "driver",
        "group": None,
        "rank": None,
    }
    assert tuple(to_pandas(trace(end=0)).columns) == COLUMNS


# --- any trace ----------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(recorded())
def test_any_trace_is_a_file_that_perfetto_takes(written, traced: Trace):
    found = written(traced)
    events = [s for s in found.slices if s.category not in ("wait", "take")]
    opened = sum(lane.open is not None for graph in traced.graphs for lane in graph.lanes)
    assert len(events) == traced.num_events + opened
    for each in events:
        assert (each.parent is None) == (each.category != "span")
        assert each.category != "span" or each.op.category == "call"
    frame = to_pandas(traced)
    ended = [each for each in events if each.args.get("finished", True)]
    assert Counter(each.name for each in ended) == Counter(frame["name"])
    for out, into in found.arrows:
        assert out.op.category in ("write", "pass", *COLLECTIVES)
        # A `take` of no length at the end of its Read lies inside nothing.
        if into.op.category in ("read", "pass"):
            assert out.op.args["execution"] == into.op.args["execution"]
            assert out.op.name.split()[-1] == into.op.name.split()[-1]
        else:
            assert into.start == into.end or into.op.category in COLLECTIVES


# --- a driver's op in several events


def test_an_arrow_joins_the_events_of_a_driver_that_move_the_frame(written):
    apart = written(trace(by_hand(driver=DRIVER_APART), end=END))
    plain = written(trace(by_hand(), end=END))

    def joined(found):
        return sorted((out.start, into.start, into.name) for out, into in found.arrows)

    was = joined(plain)
    # Of execution 0 the move is an event of its own, without a wait before it.
    assert joined(apart) == [
        (start, end, "read c2" if (start, name) == (43, "take c2") else name)
        for start, end, name in was
    ]
