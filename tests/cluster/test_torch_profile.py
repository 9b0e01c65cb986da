# SPDX-License-Identifier: Apache-2.0
"""Profiles with torch's own events, of the threads that run methods and transfers."""

from __future__ import annotations

import os
import sys
import threading
import types
from typing import Any

import numpy as np
import pytest

import rcg
from rcg.dag import InputNode
from rcg.errors import CompileError
from rcg.runtime.observe.profiler import _Recording
from rcg.trace.clocks import now_ns
from rcg.trace.model import SPAN_BASE, GraphTrace
from tests.cluster.stage import GUARD_S

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.usefixtures("ray_session"), pytest.mark.full]


@rcg.remote(num_cpus=0)
class Worker:
    """Computes with torch; its thread-locals are those of whichever thread runs it."""

    def __init__(self) -> None:
        self.local = threading.local()

    def make(self, n):
        return torch.full((n, n), 2.0)

    def work(self, x):
        return float((x @ x).relu().sum())

    def remembered(self, x):
        """The thread-locals of earlier calls, and whether gradients are on."""
        before = getattr(self.local, "seen", 0)
        self.local.seen = before + 1
        return before, torch.is_grad_enabled()

    def profile(self, step):
        """Start a profiler, compute, or stop it and return the operators that it saw."""
        if step == "start":
            self.profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
            self.profiler.start()
        elif step == "stop":
            self.profiler.stop()
            return {event.name for event in self.profiler.events()}
        else:
            torch.ones(8, 8).mm(torch.ones(8, 8))
        return step

    def pid(self):
        return os.getpid()

    def have_nvtx(self, is_there):
        """Have a package nvtx that writes down what it is told, or none."""
        self.told = []
        domain = types.SimpleNamespace(
            get_event_attributes=lambda message: message,
            push_range=self.told.append,
            pop_range=lambda: self.told.append("end"),
        )
        found = types.SimpleNamespace(get_domain=lambda name: self.told.append(name) or domain)
        sys.modules["nvtx"] = found if is_there else None

    def ranges(self):
        return self.told


@pytest.fixture(scope="module")
def workers(ray_session):
    made = [Worker.remote() for _ in range(2)]
    rcg.get([each.pid.remote() for each in made])
    yield made
    for each in made:
        rcg.kill(each)


def compiled(workers: list[Any], **options: Any) -> Any:
    one, two = workers
    with InputNode() as inp:
        value = one.make.bind(inp).with_tensor_transport(transport="gloo")
        return two.work.bind(value).experimental_compile(**options)


def spans(graph: GraphTrace, process: str) -> dict[str, int]:
    """How often each span is in the trace of a process; each lies inside one of its ops."""
    lane = graph.lane(process)
    inside = lane.events[lane.events["op"] >= SPAN_BASE]
    ops = lane.events[lane.events["op"] < SPAN_BASE]
    for event in inside:
        around = (ops["start_ns"] <= event["start_ns"] + 50_000) & (
            ops["end_ns"] + 50_000 >= event["end_ns"]
        )
        assert event["execution"] in ops["execution"][around]
    names = [lane.span_name(int(op)) for op in inside["op"]]
    return {name: names.count(name) for name in dict.fromkeys(names)}


@pytest.mark.parametrize("overlap", [False, True])
def test_methods_show_what_torch_did_in_them(workers, overlap, monkeypatch):
    started_ns = []
    start = _Recording.profile_torch

    def profile_torch(recording, is_on):
        start(recording, is_on)
        started_ns.append(now_ns())

    monkeypatch.setattr(_Recording, "profile_torch", profile_torch)
    with compiled(workers, overlap=overlap) as graph:
        assert rcg.get(graph.execute(10), timeout=GUARD_S) == 4000.0
        with graph.profile(torch=True) as profile:
            for _ in range(5):
                assert rcg.get(graph.execute(10), timeout=GUARD_S) == 4000.0
        assert profile.trace.start_ns >= started_ns[0], "its loading is no part of the profile"
        trace = profile.graph()
        found = spans(trace, "a1")
        assert found["aten::mm"] == 5
        assert {"aten::relu", "aten::sum", "aten::matmul"} <= found.keys()
        assert spans(trace, "a0")["aten::full"] == 5
        # Afterwards nothing is marked any more, and the next profile has none.
        with graph.profile() as plain:
            assert rcg.get(graph.execute(10), timeout=GUARD_S) == 4000.0
        assert not spans(plain.graph(), "a1")
        assert np.sum(plain.graph().lane("a1").events["op"] < SPAN_BASE) > 0


def test_all_graphs_of_a_process_and_those_compiled_meanwhile(workers):
    with compiled(workers) as one, rcg.profile(torch=True) as profile:
        rcg.get(one.execute(5), timeout=GUARD_S)
        with compiled(workers) as two:
            rcg.get(two.execute(5), timeout=GUARD_S)
            rcg.get(one.execute(5), timeout=GUARD_S)
    first = profile.graph(one.get_id())
    assert spans(first, "a1")["aten::mm"] == 2


def test_a_profile_that_began_before_its_first_graph_has_what_came_before(workers):
    with rcg.profile() as profile:
        begun_ns = now_ns()
        with compiled(workers) as graph:
            rcg.get(graph.execute(5), timeout=GUARD_S)
    assert profile.trace.start_ns <= begun_ns, "as tensors may have moved by reference since"


def test_thread_locals_and_grad_mode_are_those_of_the_thread(workers):
    with InputNode() as inp:
        dag = workers[0].remembered.bind(inp)
    with dag.experimental_compile() as graph:
        assert [rcg.get(graph.execute(1)) for _ in range(2)] == [(0, True), (1, True)]
        with graph.profile(torch=True):
            assert rcg.get(graph.execute(1)) == (2, True)


def test_a_profiler_of_the_users_sees_what_methods_of_a_graph_do(workers):
    """It had no CPU events, as the graph ran on another thread (ray#56366)."""
    one = workers[0]
    with InputNode() as inp:
        dag = one.profile.bind(inp)
    with dag.experimental_compile() as graph:
        refs = [graph.execute(step) for step in ("start", "compute", "stop")]
        assert "aten::mm" in rcg.get(refs[2])
    # Around the graph, by ordinary calls, where it runs on their thread.
    rcg.get(one.profile.remote("start"))
    with dag.experimental_compile(thread="main") as graph:
        rcg.get(graph.execute("compute"))
    assert "aten::mm" in rcg.get(one.profile.remote("stop"))


def test_ops_are_ranges_of_nvtx(workers):
    one, two = workers
    rcg.get([one.have_nvtx.remote(True), two.have_nvtx.remote(False)])
    with InputNode() as inp:
        dag = one.make.bind(inp)
    with InputNode() as inp:
        both = two.work.bind(one.make.bind(inp))
    with dag.experimental_compile(nvtx=True) as graph:
        rcg.get(graph.execute(2), timeout=GUARD_S)
    told = rcg.get(one.ranges.remote())
    ops = [op.title({"a0": "Worker"}) for op in graph.plan.program("a0").ops]
    assert told[0] == "rcg"
    assert told[1 : 1 + 2 * len(ops)] == [each for op in ops for each in (op, "end")]
    assert told[-1] == "end", "what ended the graph ends its range"
    with pytest.raises(CompileError, match=r"actor's process has not: `pip install 'rcg\[gpu\]'`"):
        both.experimental_compile(nvtx=True)
