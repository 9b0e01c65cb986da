# SPDX-License-Identifier: Apache-2.0
"""Analyses, exports and views of plans with tensor channels and collectives."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

from hypothesis import HealthCheck, given, settings

from rcg.compiler import compile_graph
from rcg.compiler.simulate import Costs, simulate
from rcg.ir.nodes import MethodCall, NodeArg
from rcg.ir.ops import COLLECTIVES
from rcg.ir.plan import Plan
from rcg.trace.analysis.critical import Paths
from rcg.trace.analysis.dependencies import NONE, Dependencies
from rcg.trace.analysis.executions import executions_of
from rcg.trace.analysis.figures import summarize
from rcg.trace.analysis.simulated import from_simulation
from rcg.trace.analysis.what_if import predict, what_if
from rcg.trace.trace import Trace
from rcg.views.data.figures import topology_figures_of
from rcg.views.data.schedule import schedule_payload
from rcg.views.data.slicing import slices_of
from rcg.views.data.timeline import timeline_payload
from rcg.views.data.topology import nodes_of_calls, topology_of
from rcg.views.data.topology_payload import topology_payload
from rcg.views.svg.pictures import (
    predicted_schedule,
    schedule_picture,
    summary_picture,
    topology_picture,
    whole_timeline_picture,
)
from rcg.views.text.ascii import ascii_of
from rcg.views.text.dot import dot_of
from tests.unit.random_graphs import Case, cases
from tests.unit.simulated_traces import Simulated, simulated


@settings(max_examples=25)
@given(cases(max_calls=8, has_tensors=True))
def test_topology_shows_each_value_as_an_edge_whatever_carries_it(case: Case) -> None:
    nodes = {actor.id: "node" for actor in case.graph.actors}
    plan = compile_graph(case.graph, nodes, "node", 4).plan
    topology = topology_of(plan)
    at = nodes_of_calls(plan)
    calls = {node.id: node for node in case.graph.nodes if isinstance(node, MethodCall)}
    edges = {(edge.source, edge.target) for edge in topology.edges}
    for node in calls.values():
        assert topology.nodes[at[node.id]].process == node.actor
        for argument in node.args:
            if isinstance(argument, NodeArg) and argument.node in calls:
                assert (at[argument.node], at[node.id]) in edges
    assert ascii_of(topology)
    assert dot_of(topology, channel_details=True)
    ElementTree.fromstring(topology_picture(plan, title="plan", channel_details=True))
    ElementTree.fromstring(predicted_schedule(plan, 4))
    shown = topology_payload(plan, None).head["nodes"]
    assert all(each["op"] is not None for each in shown if each["kind"] == "call")
    schedule_payload(plan, None)


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
    assert str(predict(graph))
    assert str(what_if(graph, {"Class a0.f": 0.5}))
    slices = slices_of(graph, trace.start_ns, trace.end_ns)
    timeline_payload(graph, slices)
    schedule_payload(graph.plan, graph)
    topology_payload(graph.plan, graph)
    (summary,) = summarize(trace).graphs
    for lane in summary.shares.lanes:
        for waited_for in lane.waiting_for:
            peers = waited_for.split(" or ")
            assert len(set(peers)) == len(peers)
    measured = topology_figures_of(graph, summary).call_ns
    ranks = [op.node for each in graph.plan.programs for op in each.ops if op.word in COLLECTIVES]
    assert {nodes_of_calls(graph.plan)[node] for node in ranks} <= set(measured)
    summary_picture(summary)
    whole_timeline_picture(trace, graph)
    schedule_picture(trace, graph)
    topology_picture(graph.plan, title="plan", measured=(graph, summary))
    trace.to_chrome(tmp_path / "trace.json")
    trace.save(tmp_path / "one.trace")
    assert str(summarize(Trace.load(tmp_path / "one.trace"))) == str(summarize(trace))


def test_a_write_that_waited_for_its_reader_does_not_look_for_an_earlier_read() -> None:
    """A write to a ring waits for room, which an earlier execution makes; a rendezvous does not."""
    plan = Plan.from_text(
        """
        plan positional=1 keywords=[] returns=one
        actor a0 'Maker' ''
        actor a1 'User' ''
        group g0 gloo a0 a1
        channel c0 driver -> a0 a1 ring node=0 slots=4
        channel c1 a0 -> a1 tensor @g0 node=1 slots=1
        channel c2 a1 -> driver ring node=3 slots=4
        program driver
          Input * -> s0
          Write s0 -> c0
          Read c2 -> s1
          Output s1
        program a0
          Read c0 -> s0
          Call a0.f(s0) -> s1 #1
          Write s1 -> c1
        program a1
          Read c0 -> s0
          Call a1.f(s0) -> s1 #2
          Read c1 -> s2
          Call a1.g(s1, s2) -> s3 #3
          Write s3 -> c2
        """
    )
    slow = {("a0", 1): 5.0, ("a1", 1): 40.0, ("a1", 3): 5.0, ("driver", 1): 1.0}
    whole = from_simulation(simulate(plan, Costs(slow), 3, window=2), limit=2)
    # The trace begins after the first execution.
    lanes = [
        replace(lane, events=lane.events[lane.events["execution"] > 0]) for lane in whole.lanes
    ]
    graph = replace(whole, lanes=tuple(lanes))
    found = Dependencies(graph)
    write = int(found.written("c1", 1)[0])
    assert found.bounds[write, 2] > found.bounds[write, 1], "it waited"
    assert found.before[write] != NONE
    assert found.lane[found.before[write]] == found.lane[write]
