# SPDX-License-Identifier: Apache-2.0
"""Analyses, exports and views of plans with tensor channels and collectives."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from rcg.compiler import compile_graph
from rcg.compiler.simulate import Simulation
from rcg.ir.ops import COLLECTIVES, Call, Op
from rcg.trace.analysis.critical import Paths
from rcg.trace.analysis.executions import executions_of
from rcg.trace.analysis.figures import summarize
from rcg.trace.analysis.rendezvous import with_waits
from rcg.trace.analysis.what_if import predict, what_if
from rcg.trace.trace import Trace
from rcg.views.data.figures import topology_figures_of
from rcg.views.data.schedule import schedule_payload
from rcg.views.data.slicing import slices_of
from rcg.views.data.timeline import timeline_payload
from rcg.views.data.topology import nodes_of_calls
from rcg.views.svg.pictures import (
    schedule_picture,
    summary_picture,
    topology_picture,
    whole_timeline_picture,
)
from rcg.views.svg.topology_payload import topology_payload
from tests.unit import views_traces
from tests.unit.pipelines import gpipe
from tests.unit.simulated_traces import Simulated, simulated


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
def test_every_analysis_and_view_takes_their_traces(tmp_path: Path, made: Simulated) -> None:
    graph = made.graph
    trace = Trace((graph,), 0, max(made.end, 1))
    assert str(summarize(trace))
    paths = Paths(graph, executions_of(graph))
    for execution in range(made.simulation.executions):
        paths.of(execution)
    paths.steady()
    took = calls_ns(made.simulation)
    assert calls_ns(predict(graph)) == pytest.approx(took)
    faster = calls_ns(what_if(graph, {"Class a0.f": 0.5}).simulation)
    halved = {
        call: ns / 2 if call[0] == "a0" and call[2] == "f" else ns for call, ns in took.items()
    }
    assert faster == pytest.approx(halved)
    slices = slices_of(graph, trace.start_ns, trace.end_ns)
    timeline_payload(graph, slices)
    schedule_payload(graph.plan, graph)
    topology_payload(graph.plan, (graph, summarize(trace).graphs[0]))
    (summary,) = summarize(trace).graphs
    for lane in summary.shares.lanes:
        for waited_for in lane.waiting_for:
            peers = waited_for.split(" or ")
            assert len(set(peers)) == len(peers)
    measured = topology_figures_of(graph, summary).call_ns
    ranks = [op.node for each in graph.plan.programs for op in each.ops if op.word in COLLECTIVES]
    assert {nodes_of_calls(graph.plan)[node] for node in ranks} <= set(measured)
    summary_picture(summary)
    whole_timeline_picture(trace, slices)
    schedule_picture(trace, graph)
    topology_picture(graph.plan, title="plan", measured=(graph, summary))
    trace.to_chrome(tmp_path / "trace.json")
    trace.save(tmp_path / "one.trace")
    assert str(summarize(Trace.load(tmp_path / "one.trace"))) == str(summarize(trace))


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
        for lane in graph.lanes:
            with_waits(graph, lane)
        counts.append(asked / sum(len(program.ops) for program in plan.programs))
    assert counts[1] < 1.2 * counts[0]
