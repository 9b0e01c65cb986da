# SPDX-License-Identifier: Apache-2.0
"""Plans over several nodes, with lanes, groups and collectives: printed, parsed and checked."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.compiler import compile_graph
from rcg.compiler.simulate import check_deadlock_free, simulate
from rcg.errors import InternalError
from rcg.ir.channels import ChannelSpec, ClusterNode, Gate, Group, Lane
from rcg.ir.ids import DRIVER
from rcg.ir.ops import AllReduce, Pass
from rcg.ir.plan import Plan
from tests.unit.random_graphs import Case, cases, placements

TEXT = """
plan positional=1 keywords=[] returns=list
actor a0 'Stage' ''
actor a1 'Stage' ''
actor a2 'Stage' ''
node n0 'cafe' driver a0
node n1 'beef' a1 a2
lane a0.comm of a0
gate n0 in driver
gate n1 in a1
group g0 nccl a0.comm a1
group g1 'my own' a2 a1
channel c0 driver -> a0 ring node=0 slots=10
channel c1 a0 -> driver a1 a2 ring node=1 slots=10
channel c2 a0 -> a0.comm local node=2 slots=2
channel c3 a0.comm -> a1 tensor @g0 node=2 slots=3
channel c4 a1 -> driver ring node=3 slots=10
channel c5 a2 -> driver a1 ring node=4 slots=10
program driver
  Input * -> s0
  Write s0 -> c0
  Free s0
  Read c1 -> s3
  Read c4 -> s1
  Read c5 -> s2
  Output s1, s2, s3
program a0
  Read c0 -> s0
  Call a0.split(s0) -> s1, s2 #1
  Write s1 -> c1
  Write s2 -> c2
  Free s0, s1, s2
program a1
  Read c1 -> s0
  Read c3 -> s1
  Call a1.join(s0, s1) -> s2 #3
  Write s2 -> c4
  Read c5 -> s3
  Free s0, s1, s2, s3
program a2
  Read c1 -> s0
  Call a2.fwd(s0) -> s1 #4
  Write s1 -> c5
  Free s0, s1
program a0.comm
  Read c2 -> s0
  Write s0 -> c3
  Free s0
program n0
  Pass c4
  Pass c5
program n1
  Pass c1
  Pass c3
"""


@pytest.fixture
def plan() -> Plan:
    return Plan.from_text(TEXT)


def test_a_plan_over_nodes_reads_as_text(plan: Plan):
    plan.check()
    assert str(plan) == TEXT.strip()
    assert plan.nodes == (
        ClusterNode("n0", "cafe", (DRIVER, "a0")),
        ClusterNode("n1", "beef", ("a1", "a2")),
    )
    assert plan.lanes == (Lane("a0.comm", "a0"),)
    assert plan.gates == (Gate("n0", DRIVER), Gate("n1", "a1"))
    assert plan.groups == (
        Group("g0", "nccl", ("a0.comm", "a1")),
        Group("g1", "my own", ("a2", "a1")),
    )
    assert plan.channels[1] == ChannelSpec("c1", "a0", (DRIVER, "a1", "a2"), "ring", (1,), 10)
    assert plan.channels[3] == ChannelSpec("c3", "a0.comm", ("a1",), "tensor", (2,), 3, "g0")
    assert plan.program("n1").ops == (Pass("c1"), Pass("c3"))


def test_a_plan_over_nodes_travels(plan: Plan):
    assert Plan.from_text(str(plan)) == plan == Plan.from_json(plan.to_json())
    data = json.loads(plan.to_json())
    assert data["version"] == 2
    assert data["nodes"][1] == {"id": "n1", "key": "beef", "processes": ["a1", "a2"]}
    assert data["lanes"] == [{"id": "a0.comm", "actor": "a0"}]
    assert data["gates"] == [{"id": "n0", "host": "driver"}, {"id": "n1", "host": "a1"}]
    assert data["groups"][0] == {"id": "g0", "backend": "nccl", "members": ["a0.comm", "a1"]}
    assert data["channels"][3]["group"] == "g0"
    assert "group" not in data["channels"][0]
    assert data["programs"][-1]["ops"][0] == {"op": "Pass", "channel": "c1"}


def test_a_plan_over_nodes_is_simulated_without_its_gates(plan: Plan):
    check_deadlock_free(plan)
    simulation = simulate(plan, executions=1)
    calls = [
        each for each in simulation.timeline if plan.program(each.process).ops[each.op].is_call
    ]
    assert [each.process for each in calls] == ["a0", "a1", "a2"]
    # Through the lane: two Writes of a0, the lane's Read, and the way of the tensors.
    assert calls[1].start == pytest.approx(calls[0].end + 4 * 0.05)
    assert {each.process for each in simulation.timeline} == {*plan.processes()} - {"n0", "n1"}
    assert simulation.busy().keys() == {*plan.processes()} - {"n0", "n1"}


def test_labels_of_lanes_and_gates_say_where_they_run(plan: Plan):
    assert plan.label("a0.comm") == "a0.comm (Stage)"
    assert plan.label("n1") == "n1 gate in a1 (Stage)"
    assert plan.label("n0") == "n0 gate in driver"
    assert [plan.host_of(each) for each in ("driver", "a0", "a0.comm", "n0", "n1")] == [
        "driver",
        "a0",
        "a0",
        "driver",
        "a1",
    ]


def test_a_plan_knows_what_is_where(plan: Plan):
    assert plan.processes_of("n0") == ("driver", "a0", "a0.comm", "n0")
    assert plan.processes_of("n1") == ("a1", "a2", "n1")
    for find in (plan.node_of, plan.host_of_node):
        with pytest.raises(KeyError):
            find("n7")


def test_the_window_is_that_of_the_shortest_channel_between_processes(plan: Plan):
    assert plan.window == 3


# --- check --------------------------------------------------------------------------------------


def with_line(old: str, new: str) -> Plan:
    assert TEXT.count(f"{old}\n") == 1
    return Plan.from_text(TEXT.replace(f"{old}\n", f"{new}\n" if new else ""))


LOCAL = "channel c2 a0 -> a0.comm local node=2 slots=2"
CROSSING = "channel c1 a0 -> driver a1 a2 ring node=1 slots=10"
TENSOR = "channel c3 a0.comm -> a1 tensor @g0 node=2 slots=3"
GROUP = "group g0 nccl a0.comm a1"
HERE = "node n0 'cafe' driver a0"
THERE = "node n1 'beef' a1 a2"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("lane a0.comm of a0", "lane a0.comm of a1", "a0.comm is not named as a lane of a1"),
        ("lane a0.comm of a0", "lane a0.comm of a7", "lane of a7, which is no actor of the plan"),
        (
            "lane a0.comm of a0",
            "lane a0.comm of a0\nlane a0.comm of a0",
            "2 processes have the id a0.comm",
        ),
        ("lane a0.comm of a0", "lane a0.io of a0\nlane a0.comm of a0", "the programs are those of"),
        ("gate n1 in a1", "gate n1 in driver", "n1 is in driver, but the host of that node is a1"),
        ("gate n1 in a1", "gate n0 in a1", "2 processes have the id n0"),
        ("gate n1 in a1", "gate n2 in a1", "the programs are those of"),
        (THERE, "", "a plan on one node names none"),
        (THERE, "node n2 'beef' a1 a2", "node 1 has the id 'n2'"),
        (THERE, "node n1 'cafe' a1 a2", "2 nodes have the key cafe"),
        (THERE, "node n1 'beef' a1", "a2 is on no node"),
        (THERE, "node n1 'beef' a0 a1 a2", "2 nodes have a0"),
        (THERE, "node n1 'beef' a2 a1", r"n1 must have processes, in the order \['a1', 'a2'\]"),
        (THERE, "node n1 'beef' a1 a2\nnode n2 'f00d'", "n2 must have processes"),
        (THERE, "node n1 'beef' a1 a2 a3", "n1 has a3, which is neither an actor nor the driver"),
        (HERE, "node n0 'cafe' a0", "driver is on no node"),
        (f"{HERE}\n{THERE}", "", r"the gates are \['n0', 'n1'\], but channels arrive at \[\]"),
        (
            f"{HERE}\n{THERE}",
            "node n0 'cafe' a1 a2\nnode n1 'beef' driver a0",
            "n0 is not the driver's node",
        ),
        (
            THERE,
            "node n1 'beef' a1\nnode n2 'f00d' a2",
            r"the gates are \['n0', 'n1'\], but channels arrive at \['n0', 'n1', 'n2'\]",
        ),
        ("  Pass c1", "", "n1 must do exactly this: Pass c1, Pass c3"),
        ("  Pass c1\n  Pass c3", "  Pass c3\n  Pass c1", "n1 must do exactly this: Pass c1, Pass"),
        ("  Pass c1", "  Pass c0\n  Pass c1", "n1 must do exactly this: Pass c1, Pass c3"),
        ("  Write s1 -> c5", "  Write s1 -> c5\n  Pass c1", "only a gate passes channels on"),
        (GROUP, "group g1 nccl a0.comm a1", "2 groups have the id g1"),
        (GROUP, "group g0 nccl a0.comm a9", "g0 has the member a9, which is no actor or lane"),
        (GROUP, "group g0 nccl a0.comm driver", "g0 has the member driver, which is no actor"),
        (GROUP, "group g0 nccl a0.comm n1", "g0 has the member n1, which is no actor or lane"),
        (GROUP, "group g0 nccl a0.comm a1 a0", "2 ranks of g0 are in a0"),
        (GROUP, "group g0 nccl", "g0 must have a backend and members"),
        (GROUP, "group g0 '' a0.comm a1", "g0 must have a backend and members"),
        (GROUP, "group g0 nccl a0 a1", "c3 has an end that is not in g0"),
        (GROUP, "", "c3 names g0: a tensor channel names a group"),
        (LOCAL, "channel c2 a0 -> a0.comm local @g0 node=2 slots=2", "c2 names g0"),
        (LOCAL, "channel c2 a1 -> a0.comm local node=2 slots=2", "c2 is a local channel: it must"),
        (LOCAL, "channel c2 a0 -> a0.comm a2 local node=2 slots=2", "c2 is a local channel"),
        (CROSSING, "channel c1 a0 -> driver a1 a2 n1 ring node=1 slots=10", "an end at a gate"),
        (
            TENSOR,
            "channel c3 a0.comm -> driver tensor @g0 node=2 slots=3",
            "its ends must be actors",
        ),
        (TENSOR, "channel c3 a0.comm -> a1 tensor @g9 node=2 slots=3", "c3 names g9"),
    ],
)
def test_a_plan_over_nodes_that_breaks_a_rule_is_refused(old: str, new: str, why: str):
    with pytest.raises((InternalError, ValueError), match=why):
        with_line(old, new).check()


def test_a_local_channel_has_one_reader():
    text = TEXT.replace("lane a0.comm of a0\n", "lane a0.comm of a0\nlane a0.io of a0\n")
    text = text.replace("a0 -> a0.comm local", "a0 -> a0.comm a0.io local")
    text = text.replace("program n0\n", "program a0.io\n  Read c2 -> s3\nprogram n0\n")
    with pytest.raises(InternalError, match="c2 is a local channel: it must join two lanes"):
        Plan.from_text(text).check()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (TENSOR, "channel c3 a0.comm -> a1 tensor node=2 slots=3"),
        (TENSOR, "channel c3 a0.comm -> a1 ring node=2 slots=3"),
        (LOCAL, "channel c2 a0 -> a0.comm ring node=2 slots=2"),
        (GROUP, "group g0 gloo a1 a0.comm"),
        (GROUP, "group g0 gloo a1 a0.comm a2"),
    ],
)
def test_a_plan_over_nodes_may_be_made_in_other_ways(old: str, new: str):
    with_line(old, new).check()


def test_a_node_has_a_most_of_processes_with_its_gate(plan: Plan, monkeypatch: pytest.MonkeyPatch):
    most = {node.id: len(plan.processes_of(node.id)) for node in plan.nodes}
    assert most == {"n0": 4, "n1": 3}
    monkeypatch.setattr("rcg.ir.check.MAX_PROCESSES", 4)
    plan.check()
    monkeypatch.setattr("rcg.ir.check.MAX_PROCESSES", 3)
    with pytest.raises(InternalError, match="n0 has 4 processes, at most 3 fit on a node"):
        plan.check()


# --- collectives ---------------------------------------------------------------------------------

COLLECTIVES = """
plan positional=1 keywords=[] returns=list
actor a0 'Worker' ''
actor a1 'Worker' ''
actor a2 'Sink' ''
group g0 gloo a0 a1
group g1 gloo a1 a0 a2
group g2 Mine a0 a2 by k3
channel c0 driver -> a0 a1 ring node=0 slots=4
channel c1 a0 -> a1 status node=3 slots=4
channel c2 a1 -> a0 status node=4 slots=4
channel c3 a0 -> a1 a2 tensor @g1 node=3 slots=4 device=cpu static direct
channel c4 a0 -> a2 tensor @g2 node=1 slots=4
channel c5 a2 -> driver ring node=5 slots=4
program driver
  Input * -> s0
  Write s0 -> c0
  Free s0
  Read c5 -> s1
  Output s1
program a0
  Read c0 -> s0
  Call a0.grad(s0) -> s1 #1
  Write s1 -> c4
  AllReduce s1 (sum) @g0 tells c1 hears c2 -> s2 #3
  Write s2 -> c3
  Free s0, s1, s2
program a1
  Read c0 -> s0
  Call a1.grad(s0) -> s1 #2
  AllReduce s1 (sum) @g0 tells c2 hears c1 -> s2 #4
  Read c3 -> s3
  Free s0, s1, s2, s3
program a2
  Read c4 -> s0
  Read c3 -> s1
  Call a2.join(s0, s1) -> s2 #5
  Write s2 -> c5
  Free s0, s1, s2
"""


def test_collectives_read_as_text_and_as_json():
    plan = Plan.from_text(COLLECTIVES)
    plan.check()
    assert str(plan) == COLLECTIVES.strip()
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.groups[2].communicator == "k3"
    spec = plan.channels[3]
    assert (spec.device, spec.is_static_shape, spec.is_direct_return) == ("cpu", True, True)
    op = plan.program("a1").ops[2]
    assert isinstance(op, AllReduce)
    assert (op.channels_out, op.channels_in) == (("c2",), ("c1",))


def test_a_program_says_where_a_slot_is_used_last():
    plan = Plan.from_text(COLLECTIVES)
    found = [sorted(plan.program("a0").last_used(position)) for position in range(5)]
    assert found == [[], [0], [], [1], [2]]
    assert plan.program("a2").last_used(2) == {0, 1}


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("channel c3 a0 -> a1 a2 tensor @g1", "channel c3 a0 -> a1 a2 tensor @g0", "not in g0"),
        ("group g1 gloo a1 a0 a2", "group g1 gloo a1 a0 a2 a2", "ranks of g1 are in a2"),
        ("@g0 tells c1", "@g2 tells c1", "a0 must tell all other members of g2"),
        ("@g0 tells c1", "@g9 tells c1", "a0 is no member of g9"),
        ("@g0 tells c1 hears c2", "@g0 hears c2", "a0 must tell all other members of g0"),
        ("@g0 tells c1 hears c2", "@g0 tells c1", "a0 must hear the other members of g0"),
        ("@g0 tells c2 hears c1 -> s2", "@g0 tells c2 hears c1 -> s2, s9", "a slot for each"),
        ("s1 (sum) @g0 tells c2", "s1 (max) @g0 tells c2", "have no part in the collective of g0"),
        ("s1 (sum) @g0 tells c2", "s1 (sum) root 2 @g0 tells c2", "g0 has no rank 2"),
        ("channel c1 a0 -> a1 status", "channel c1 a0 -> a1 ring", "not for allreduce"),
        (
            "channel c3 a0 -> a1 a2 tensor @g1 node=3",
            "channel c3 a0 -> a1 a2 tensor @g1 node=3, 1",
            "c3 is a tensor channel: it carries one value",
        ),
        (
            "channel c2 a1 -> a0 status",
            "channel c2 a1 -> driver status",
            "c2 is a status channel: its ends must be actors",
        ),
    ],
)
def test_collectives_that_break_a_rule_are_refused(old: str, new: str, why: str):
    assert old in COLLECTIVES
    with pytest.raises((InternalError, ValueError), match=why):
        Plan.from_text(COLLECTIVES.replace(old, new)).check()


def test_a_broadcast_needs_a_group_of_its_ends():
    text = COLLECTIVES.replace("group g1 gloo a1 a0 a2", "group g1 gloo a1 a0 a2 a3")
    text = text.replace("actor a2 'Sink' ''", "actor a2 'Sink' ''\nactor a3 'Idle' ''")
    text += "program a3\n  Read c6 -> s0\n  Call a3.f(s0) -> s1 #9\n  Write s1 -> c7\n"
    text = text.replace(
        "program driver", "channel c6 driver -> a3 ring node=9 slots=4\nprogram driver"
    )
    with pytest.raises(
        InternalError, match="c3 is a broadcast: its ends must be all members of g1"
    ):
        Plan.from_text(text).check()


@given(cases(has_tensors=True), st.data(), st.booleans())
def test_a_plan_without_one_of_its_parts_is_refused(case: Case, data: st.DataObject, overlap: bool):
    """Any line that declares or moves something is needed."""
    locations, driver = data.draw(placements(case.graph))
    plan = compile_graph(case.graph, locations, driver, 3, overlap=overlap).plan
    text = str(plan).split("\n")
    needed = (
        "actor",
        "node",
        "group",
        "lane",
        "gate",
        "channel",
        "program",
        "Read",
        "Write",
        "Pass",
    )
    lines = [number for number, line in enumerate(text) if line.split()[0] in needed]
    del text[data.draw(st.sampled_from(lines))]
    with pytest.raises((InternalError, ValueError)):
        Plan.from_text("\n".join(text)).check()
