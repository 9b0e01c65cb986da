# SPDX-License-Identifier: Apache-2.0
"""Traces as files."""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from rcg.errors import TraceError
from rcg.ir.plan import Plan
from rcg.trace.export.files import check_plan
from rcg.trace.measured import summarize
from rcg.trace.model import SPAN_BASE, Clock, TensorTransfer
from rcg.trace.trace import Trace
from tests.unit.simulated_traces import Simulated, simulated
from tests.unit.tensors_by_hand import PLAN as TENSORS
from tests.unit.trace_by_hand import A0_ROWS, END, by_hand
from tests.unit.traces import PIPELINE, changed, event, events, graph_trace, trace


def same(one: Trace, other: Trace) -> bool:
    """Whether two traces hold the same; they compare by identity."""
    for a, b in zip(one.graphs, other.graphs, strict=True):
        assert (a.graph_id, a.plan, a.limit, a.name) == (b.graph_id, b.plan, b.limit, b.name)
        for left, right in zip(a.lanes, b.lanes, strict=True):
            assert left.events.dtype == right.events.dtype
            assert np.array_equal(left.events, right.events)
            assert np.array_equal(left.kernels, right.kernels)
            names = ("process", "label", "spans", "node", "pid", "clock", "lost", "open", "streams")
            names += ("processor_ns",)
            assert [getattr(left, n) for n in names] == [getattr(right, n) for n in names]
    names = ("start_ns", "end_ns", "info", "transfers")
    return all(getattr(one, name) == getattr(other, name) for name in names)


@pytest.fixture
def made():
    graph = by_hand(a0=[*A0_ROWS, event(SPAN_BASE, 1, 31, 33)])
    graph = changed(
        graph,
        "a0",
        spans=("laden\n<ü>",),
        node="10.0.0.7",
        pid=7,
        clock=Clock(-3, 9),
        lost=2,
        kernels=events([event(SPAN_BASE, 1, 32, 70, peer=0)]),
        streams=("GPU 0, stream 7",),
        processor_ns=(5, 7),
    )
    found = trace(replace(graph, name="mine"), graph_trace({}), start=3, end=END)
    taken = TensorTransfer("k-1", "Actor(A)", "Actor(B)", "gloo", 1 << 20, 10, 5, 35, "")
    return replace(found, info={"host": "here", "cores": 2}, transfers=(taken,))


def test_a_trace_is_read_back_as_it_was_written(made, tmp_path):
    path = tmp_path / "run.trace"
    made.save(path)
    read = Trace.load(str(path))
    assert same(made, read)
    assert str(summarize(read)) == str(summarize(made))
    assert read.graphs[0].lanes[1].span_name(SPAN_BASE) == "laden\n<ü>"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(simulated())
def test_any_trace_is_read_back(tmp_path, made: Simulated):
    one = trace(made.graph, end=made.end)
    one.save(tmp_path / "any.trace")
    assert same(one, Trace.load(tmp_path / "any.trace"))


def rewritten(path, change=lambda head: None, *, drop=(), **more):
    """Write a trace again with its head changed, or with members missing or of another array."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist() if name not in drop}
    for process, values in more.items():
        np.save(path.with_name("other.npy"), values, allow_pickle=True)
        members[f"0/{process}.npy"] = path.with_name("other.npy").read_bytes()
    if "trace.json" in members:
        head = json.loads(members["trace.json"])
        change(head)
        members["trace.json"] = json.dumps(head).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


@pytest.mark.parametrize(
    ("change", "drop", "match"),
    [
        (lambda head: head.update(format=99), (), "written by a later rcg .format 99"),
        (lambda head: head.pop("graphs"), (), "is not a trace that rcg wrote"),
        (lambda head: head.update(graphs=5), (), "is not a trace that rcg wrote"),
        (lambda head: head["graphs"][0].update(plan="{}"), (), "not a plan of version"),
        (lambda head: head["graphs"][0]["lanes"][0].update(clock={"x": 1}), (), "not a trace"),
        (lambda head: None, ("trace.json",), "is not a trace that rcg wrote"),
        (lambda head: None, ("0/a0.npy",), "is not a trace that rcg wrote"),
        (lambda head: None, ("0/kernels/a0.npy",), "kernels/a0.npy is missing"),
        (lambda head: head["graphs"][0]["lanes"][1].update(spans=[]), (), "of an op or a span"),
    ],
)
def test_another_file_is_no_trace(made, tmp_path, change, drop, match):
    path = tmp_path / "run.trace"
    made.save(path)
    rewritten(path, change, drop=drop)
    with pytest.raises(TraceError, match=match):
        Trace.load(path)


class Pickled:
    """Whoever reads its pickle makes a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def test_an_array_of_another_layout_is_no_trace_and_no_pickle_is_read(made, tmp_path):
    path = tmp_path / "run.trace"
    for values in (np.zeros(3), np.array([Pickled(tmp_path / "read")])):
        made.save(path)
        rewritten(path, a1=values)
        with pytest.raises(TraceError, match="the events of a1 have another layout"):
            Trace.load(path)
    assert not (tmp_path / "read").exists()


def test_a_truncated_file_is_refused(made, tmp_path):
    path = tmp_path / "run.trace"
    made.save(path)
    whole = path.read_bytes()
    for cut in range(0, len(whole), 97):
        path.write_bytes(whole[:cut])
        with pytest.raises(TraceError):
            Trace.load(path)


@pytest.mark.parametrize(
    "ops",
    [
        "Read c1 -> s0\n  Call a1.fwd(s0) -> s1 #2\n  Write s0 -> c2",
        "Read c1 -> s0\n  Call a1.fwd(s0) -> s1 #2\n  Build k0(s1) -> s2\n  Write s2 -> c2",
    ],
)
def test_a_plan_that_sends_on_what_it_did_not_make_is_no_plan_of_a_trace(tmp_path, ops):
    head, _ = PIPELINE.split("program a1")
    trace(graph_trace({}, plan=f"{head}program a1\n  {ops}\n"), end=END).save(tmp_path / "run")
    with pytest.raises(TraceError, match="a1 writes a value that it does not have: Write"):
        Trace.load(tmp_path / "run")


def test_a_plan_of_a_trace_may_combine_a_value_that_was_read():
    check_plan(Plan.from_text(TENSORS.replace("AllReduce s1 (sum) @g1", "AllReduce s0 (sum) @g1")))
