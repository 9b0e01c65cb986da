# SPDX-License-Identifier: Apache-2.0
"""Every analysis, export and view, of random programs with edges of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from rcg.compiler import compile_graph
from rcg.compiler.simulate import Simulation
from rcg.ir.ops import COLLECTIVES, Call, Op
from rcg.profiling import Profile
from rcg.trace.analysis.events import EventTable
from rcg.trace.analysis.what_if import places_of
from rcg.trace.measured import Measured, summarize
from rcg.trace.trace import Trace
from rcg.views.data.figures import topology_figures_of
from rcg.views.data.topology import topology_of
from rcg.views.text import ascii_of, dot_of
from rcg_widgets import ScheduleWidget, TimelineWidget, TopologyWidget
from tests.unit import chrome_format, views_traces
from tests.unit.pipelines import gpipe
from tests.unit.simulated_traces import Simulated, recorded, simulated
from tests.unit.traces import measure
from tests.unit.views_traces import check_page, check_pictures


def calls_ns(simulation: Simulation) -> dict[tuple[str, int, str], float]:
    """How long each call takes, by actor, index in its program and method."""
    ops = {each.process: each.ops for each in simulation.plan.programs}
    return {
        (op.actor, each.op, op.method): each.end - each.start
        for each in simulation.timeline
        if isinstance(op := ops[each.process][each.op], Call)
    }


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(simulated(has_tensors=True))
def test_what_calls_take_is_predicted_and_shown(made: Simulated) -> None:
    graph = made.graph
    trace = Trace((graph,), 0, max(made.end, 1))
    took = calls_ns(made.simulation)
    assert calls_ns(measure(graph).predict(64)) == pytest.approx(took)
    faster = calls_ns(measure(graph).replays.what_if({"Class a0.f": 0.5}).simulation)
    halved = {
        call: ns / 2 if call[0] == "a0" and call[2] == "f" else ns for call, ns in took.items()
    }
    assert faster == pytest.approx(halved)
    (summary,) = summarize(trace).graphs
    for lane in summary.shares.lanes:
        for waited_for in lane.waiting_for:
            peers = waited_for.split(" or ")
            assert len(set(peers)) == len(peers)
    timed = topology_figures_of(Measured.of(trace, graph)).runs_ns
    for each in graph.plan.programs:
        ranks = {(each.process, at) for at, op in enumerate(each.ops) if op.word in COLLECTIVES}
        assert ranks <= timed.keys()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(recorded(), recorded())
def test_every_view_takes_every_recording(tmp_path: Path, trace: Trace, other: Trace) -> None:
    """Of every program; the advice, which looks at every edge, must not fail."""
    profile, (graph,) = Profile(trace), trace.graphs
    (figures,) = profile.summary.graphs
    assert figures.verdict is None or figures.verdict.failure == "", figures.verdict
    check_shown(profile)
    check_shown(profile.compare(Profile(other)))
    check_shown(profile.compare(profile))
    check_shown(graph.plan)
    executions = profile.executions()
    check_shown(executions)
    for execution in executions.index[[0, -1] if len(executions) else []].tolist():
        check_shown(profile.critical_path(execution))
    names = places_of(graph)
    if graph.num_events:
        check_shown(profile.what_if({next(iter(names)): 0.5} if names else {}, in_flight=3))
    profile.call_costs()
    profile.save_html(tmp_path / "page.html")
    check_page((tmp_path / "page.html").read_text())
    trace.to_chrome(tmp_path / "trace.json")
    chrome_format.read(tmp_path / "trace.json")
    assert len(trace.to_pandas()) == trace.num_events
    trace.save(tmp_path / "one.trace")
    assert str(Profile(Trace.load(tmp_path / "one.trace"))) == str(profile)
    for view in (TimelineWidget, ScheduleWidget, TopologyWidget):
        view(trace)._repr_mimebundle_()
    for view in (ScheduleWidget, TopologyWidget):
        view(graph.plan)._repr_mimebundle_()
    drawn = topology_of(graph.plan)
    ascii_of(drawn)
    dot_of(drawn, channel_details=True)


def check_shown(thing: Any) -> None:
    """It prints, and displays well-formed pictures."""
    bundle = thing._repr_mimebundle_()
    assert str(thing) and bundle["text/plain"]
    check_pictures(bundle.get("text/html", ""))


def test_the_waits_of_reads_take_time_in_proportion_to_the_ops(monkeypatch: pytest.MonkeyPatch):
    asked = 0
    values_out = Op.values_out.fget

    def counted(op: Op) -> tuple[str, ...]:
        nonlocal asked
        asked += 1
        return values_out(op)

    monkeypatch.setattr(Op, "values_out", property(counted))
    counts = []
    for microbatches in (4, 32):
        plan = compile_graph(
            gpipe(3, microbatches), {f"a{at}": "node" for at in range(3)}, "node", 4
        ).plan
        (graph,) = views_traces.simulated(plan, 2).graphs
        asked = 0
        EventTable(graph)
        counts.append(asked / sum(len(program.ops) for program in plan.programs))
    assert counts[1] < 1.2 * counts[0]
