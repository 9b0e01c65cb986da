# SPDX-License-Identifier: Apache-2.0
"""Views of graphs whose tensors travel over communicators: edges, groups and exchanges."""

from __future__ import annotations

from hypothesis import given, settings

from rcg.ir.ops import Call, Collective
from rcg.ir.plan import Plan
from rcg.views.data.topology import Topology, topology_of
from rcg.views.scenes.topology import diagram_of
from rcg.views.svg.diagram import svg_of
from rcg.views.svg.pictures import predicted_schedule
from rcg.views.text import ascii_of, dot_of
from tests.unit.random_graphs import Case, cases
from tests.unit.test_plan_nodes import COLLECTIVES as TEXT
from tests.unit.views_plans import planned
from tests.unit.views_traces import check_picture


def topology(text: str = TEXT) -> Topology:
    return topology_of(Plan.from_text(text))


def edges(drawn: Topology) -> list[tuple[str, str, str, str | None]]:
    names = [str(node) for node in drawn.nodes]
    return [
        (names[edge.source], names[edge.target], edge.kind, edge.channel) for edge in drawn.edges
    ]


def test_a_collective_is_one_node_that_is_joined_to_its_ranks() -> None:
    assert edges(topology()) == [
        ("input", "a0.grad", "shm", "c0"),
        ("input", "a1.grad", "shm", "c0"),
        ("a0.grad", "allreduce @g0", "collective", None),
        ("a0.grad", "a2.join", "communicator Mine", "c4"),
        ("a1.grad", "allreduce @g0", "collective", None),
        ("allreduce @g0", "a2.join", "gloo", "c3"),
        ("a2.join", "output", "shm", "c5"),
    ]
    node = topology().nodes[3]
    assert (node.kind, node.name, node.group) == ("collective", "allreduce", "g0")
    assert node.ops == (("a0", 3), ("a1", 2))


def test_channels_are_those_of_values_and_know_their_group_and_hints() -> None:
    drawn = topology()
    assert [channel.id for channel in drawn.channels] == ["c0", "c3", "c4", "c5"]
    hinted = drawn.channels[1]
    assert (hinted.kind, hinted.group, hinted.device) == ("gloo", "g1", "cpu")
    assert hinted.is_static_shape and hinted.is_direct_return
    assert [(each.id, each.backend, each.members) for each in drawn.groups] == [
        ("g0", "gloo", ("a0", "a1")),
        ("g1", "gloo", ("a1", "a0", "a2")),
        ("g2", "Mine", ("a0", "a2")),
    ]


def test_a_value_that_falls_back_for_the_driver_has_its_own_kind() -> None:
    text = TEXT.replace(
        "channel c5 a2 -> driver ring node=5", "channel c6 a0 -> driver ring node=3 slots=4\n"
        "channel c5 a2 -> driver ring node=5"
    )  # fmt: skip
    text = text.replace("  Write s2 -> c3\n", "  Write s2 -> c3\n  Write s2 -> c6\n")
    text = text.replace("  Read c5 -> s1\n", "  Read c6 -> s2\n  Read c5 -> s1\n")
    text = text.replace("Output s1", "Output s2, s1").replace("returns=one", "returns=list")
    found = edges(topology(text))
    assert ("allreduce @g0", "output", "fallback", "c6") in found
    assert ("a2.join", "output", "shm", "c5") in found
    assert "3 ---> 5 (shared memory for the driver)" in ascii_of(topology(text))


@settings(max_examples=25)
@given(cases(max_calls=8, has_tensors=True))
def test_every_rank_is_in_one_node_and_every_channel_of_values_is_drawn(case: Case) -> None:
    plan = planned(case.graph)
    drawn = topology_of(plan)
    at = {
        op.node: node.id
        for node in drawn.nodes
        for process, place in node.ops
        if isinstance(op := plan.program(process).ops[place], Call | Collective)
    }
    for node in case.graph.nodes:
        if (actor := case.graph.actor_of(node.id)) is not None and node.id in at:
            assert actor in [
                process.partition(".")[0] for process, _ in drawn.nodes[at[node.id]].ops
            ]
    joined = {(edge.source, edge.target) for edge in drawn.edges}
    for node in case.graph.nodes:
        for upstream in getattr(node, "args", ()):
            assert upstream not in at or (at[upstream], at[node.id]) in joined
    ranks = [rank for node in drawn.nodes if node.kind == "collective" for rank in node.ops]
    assert sorted(ranks) == sorted(
        (program.process, at)
        for program in plan.programs
        for at, op in enumerate(program.ops)
        if isinstance(op, Collective)
    )
    kinds = {channel.id: channel.kind for channel in plan.channels}
    for edge in drawn.edges:
        assert edge.channel is None or kinds[edge.channel] in ("ring", "tensor")
        is_tensor = edge.channel is not None and kinds[edge.channel] == "tensor"
        assert is_tensor == (edge.kind == "gloo" or edge.kind.startswith("communicator "))
    assert topology_of(Plan.from_text(str(plan))) == drawn
    check_picture(svg_of(diagram_of(drawn, channel_details=True), ""))
    ascii_of(drawn)
    dot_of(drawn, channel_details=True)
    check_picture(predicted_schedule(plan, 4))
