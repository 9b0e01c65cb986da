# SPDX-License-Identifier: Apache-2.0
"""Plans over several nodes, with lanes and groups: data that prints, parses and is checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.compiler.simulate import check_deadlock_free, simulate
from rcg.errors import InternalError
from rcg.ir.channels import ActorSpec, ChannelSpec, ClusterNode, Gate, Group, Lane
from rcg.ir.ids import DRIVER, Slot
from rcg.ir.ops import Call, Input, Op, Output, Pass, Read, Write
from rcg.ir.plan import Plan
from rcg.ir.programs import MAX_PROCESSES, Program

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
    nodes = {process: plan.node_of(process) for process in plan.processes()}
    assert nodes == {
        "driver": "n0",
        "a0": "n0",
        "a1": "n1",
        "a2": "n1",
        "a0.comm": "n0",
        "n0": "n0",
        "n1": "n1",
    }
    assert plan.processes_of("n0") == ("driver", "a0", "a0.comm", "n0")
    assert plan.processes_of("n1") == ("a1", "a2", "n1")
    assert [plan.host_of_node(node) for node in ("n0", "n1")] == ["driver", "a1"]
    assert plan.crossings() == {"c1": ("n1",), "c3": ("n1",), "c4": ("n0",), "c5": ("n0",)}
    for find in (plan.node_of, plan.host_of_node):
        with pytest.raises(KeyError):
            find("n7")


def test_a_plan_that_names_no_nodes_is_on_one():
    text = """
plan positional=1 keywords=[] returns=one
actor a0 'Stage' ''
channel c0 driver -> a0 ring node=0 slots=1
channel c1 a0 -> driver ring node=1 slots=1
program driver
  Input * -> s0
  Write s0 -> c0
  Read c1 -> s1
  Output s1
program a0
  Read c0 -> s0
  Call a0.f(s0) -> s1 #1
  Write s1 -> c1
"""
    plan = Plan.from_text(text)
    plan.check()
    assert str(plan) == text.strip()
    assert "nodes" not in json.loads(plan.to_json())
    assert (plan.node_of("driver"), plan.node_of("a0")) == ("n0", "n0")
    assert plan.processes_of("n0") == ("driver", "a0")
    assert plan.host_of_node("n0") == "driver"
    assert plan.crossings() == {}


def test_no_shared_memory_leaves_its_node(plan: Plan):
    assert plan.memory_sources == {
        "driver": ("driver", "a0", "n0"),
        "a0": ("driver", "a0", "n0"),
        "a1": ("a2", "n1"),  # of a value that crosses, the gate's
        "a2": ("n1",),
        "a0.comm": ("driver", "a0", "n0"),
        "n0": (),
        "n1": (),
    }


def test_the_window_is_that_of_the_shortest_channel_between_processes(plan: Plan):
    assert plan.window == 3


# --- check --------------------------------------------------------------------------------------


def with_line(old: str, new: str) -> Callable[[], Plan]:
    def change() -> Plan:
        assert TEXT.count(f"{old}\n") == 1
        return Plan.from_text(TEXT.replace(f"{old}\n", f"{new}\n" if new else ""))

    return change


LOCAL = "channel c2 a0 -> a0.comm local node=2 slots=2"
CROSSING = "channel c1 a0 -> driver a1 a2 ring node=1 slots=10"
TENSOR = "channel c3 a0.comm -> a1 tensor @g0 node=2 slots=3"
GROUP = "group g0 nccl a0.comm a1"
HERE = "node n0 'cafe' driver a0"
THERE = "node n1 'beef' a1 a2"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("lane a0.comm of a0", "", "the programs are those of"),
        ("lane a0.comm of a0", "lane a0.comm of a1", "a0.comm is not named as a lane of a1"),
        ("lane a0.comm of a0", "lane a0.comm of a7", "lane of a7, which is no actor of the plan"),
        (
            "lane a0.comm of a0",
            "lane a0.comm of a0\nlane a0.comm of a0",
            "2 processes have the id a0.comm",
        ),
        ("lane a0.comm of a0", "lane a0.io of a0\nlane a0.comm of a0", "the programs are those of"),
        ("gate n1 in a1", "gate n1 in a7", "n1 is in a7, but the host of that node is a1"),
        ("gate n1 in a1", "gate n1 in a0.comm", "n1 is in a0.comm, but the host"),
        ("gate n1 in a1", "gate n1 in a2", "n1 is in a2, but the host of that node is a1"),
        ("gate n1 in a1", "gate n1 in driver", "n1 is in driver, but the host of that node is a1"),
        ("gate n1 in a1", "gate n0 in a1", "2 processes have the id n0"),
        ("gate n1 in a1", "gate n2 in a1", "the programs are those of"),
        ("gate n1 in a1", "", "the programs are those of"),
        (THERE, "", "a plan on one node names none"),
        (THERE, "node n2 'beef' a1 a2", "node 1 has the id 'n2'"),
        (THERE, "node n1 'cafe' a1 a2", "2 nodes have the key cafe"),
        (THERE, "node n1 'beef' a1", "a2 is on no node"),
        (THERE, "node n1 'beef' a0 a1 a2", "2 nodes have a0"),
        (THERE, "node n1 'beef' a1 a1 a2", "2 nodes have a1"),
        (THERE, "node n1 'beef' a2 a1", r"n1 must have processes, in the order \['a1', 'a2'\]"),
        (THERE, "node n1 'beef' a1 a2\nnode n2 'f00d'", "n2 must have processes"),
        (THERE, "node n1 'beef' a1 a2 a3", "n1 has a3, which is neither an actor nor the driver"),
        (THERE, "node n1 'beef' a0.comm a1 a2", "n1 has a0.comm, which is neither"),
        (THERE, "node n1 'beef' a1 a2 n1", "n1 has n1, which is neither an actor nor the driver"),
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
        ("  Pass c1", "  Pass c1\n  Pass c1", "n1 must do exactly this: Pass c1, Pass c3"),
        ("  Pass c1\n  Pass c3", "  Pass c3\n  Pass c1", "n1 must do exactly this: Pass c1, Pass"),
        ("  Pass c1", "  Read c1 -> s0\n  Pass c1", "n1 must do exactly this: Pass c1, Pass c3"),
        ("  Pass c1", "  Pass c1\n  Build k0() -> s1", "expected a slot"),
        ("  Pass c1", "  Pass c0\n  Pass c1", "n1 must do exactly this: Pass c1, Pass c3"),
        ("  Pass c1", "  Pass c9\n  Pass c1", "n1 must do exactly this: Pass c1, Pass c3"),
        ("  Write s1 -> c5", "  Write s1 -> c5\n  Pass c1", "only a gate passes channels on"),
        (GROUP, "group g1 nccl a0.comm a1", "2 groups have the id g1"),
        (GROUP, "group g0 nccl a0.comm a9", "g0 has the member a9, which is no actor or lane"),
        (GROUP, "group g0 nccl a0.comm driver", "g0 has the member driver, which is no actor"),
        (GROUP, "group g0 nccl a0.comm n1", "g0 has the member n1, which is no actor or lane"),
        (GROUP, "group g0 nccl a0.comm a1 a1", "2 ranks of g0 are in a1"),
        (GROUP, "group g0 nccl a0.comm a1 a0", "2 ranks of g0 are in a0"),
        (GROUP, "group g0 nccl", "g0 must have a backend and members"),
        (GROUP, "group g0 '' a0.comm a1", "g0 must have a backend and members"),
        (GROUP, "group g0 nccl a0 a1", "c3 has an end that is not in g0"),
        (GROUP, "", "c3 names g0: a tensor channel names a group"),
        (LOCAL, "channel c2 a0 -> a0.comm local @g0 node=2 slots=2", "c2 names g0"),
        (LOCAL, "channel c2 a1 -> a0.comm local node=2 slots=2", "c2 is a local channel: it must"),
        (LOCAL, "channel c2 driver -> a0.comm local node=2 slots=2", "c2 is a local channel"),
        (LOCAL, "channel c2 a0 -> a0.comm a2 local node=2 slots=2", "c2 is a local channel"),
        (
            LOCAL,
            "channel c2 a0 -> a0.io local node=2 slots=2",
            r"an end at \['a0.io'\], not a proc",
        ),
        (CROSSING, "channel c1 a0 -> driver a1 a2 n1 ring node=1 slots=10", "an end at a gate"),
        (CROSSING, "channel c1 n0 -> driver a1 a2 ring node=1 slots=10", "an end at a gate"),
        (
            CROSSING,
            "channel c1 a0 -> driver a1 a2 n2 ring node=1 slots=10",
            r"c1 has an end at \['n2'\], not a process",
        ),
        (
            CROSSING,
            "channel c1 a0 -> driver a1 a2 tcp node=1 slots=10",
            "unknown kind 'tcp', known are ring, tensor, status, local",
        ),
        (
            TENSOR,
            "channel c3 a0.comm -> driver tensor @g0 node=2 slots=3",
            "its ends must be actors",
        ),
        (TENSOR, "channel c3 a0.comm -> a2 tensor @g0 node=2 slots=3", "an end that is not in g0"),
        (TENSOR, "channel c3 a0.comm -> a1 tensor @g9 node=2 slots=3", "c3 names g9"),
        (TENSOR, "channel c3 a0.comm -> a1 ring @g0 node=2 slots=3", "c3 names g0: a tensor"),
        ("  Write s0 -> c3", "  Call a0.f(s0) -> s1 #9", "a call is in its own actor's program"),
        ("  Read c2 -> s0", "  Read c1 -> s0", "a0.comm is not a reader of c1"),
    ],
)
def test_a_plan_over_nodes_that_breaks_a_rule_is_refused(old: str, new: str, why: str):
    with pytest.raises((InternalError, ValueError), match=why):
        with_line(old, new)().check()


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
    with_line(old, new)().check()


@pytest.mark.parametrize(("on", "fits"), [(MAX_PROCESSES - 1, True), (MAX_PROCESSES, False)])
def test_a_node_has_a_most_of_processes_with_its_gate(on: int, fits: bool):
    """So many actors on a node that has a gate, and the driver alone on another one."""
    actors = [f"a{number}" for number in range(on)]
    channels = [ChannelSpec("c0", DRIVER, tuple(actors), "ring", (0,), 1)]
    channels += [
        ChannelSpec(f"c{number}", actor, (DRIVER,), "ring", (number,), 1)
        for number, actor in enumerate(actors, start=1)
    ]
    reads = [Read(channel.id, (number,)) for number, channel in enumerate(channels) if number]
    output = Output(tuple(range(1, on + 1)))
    passes = [Pass(channel.id) for channel in channels[1:]]
    plan = Plan(
        programs=(
            Program(DRIVER, (Input(None, 0), Write((0,), "c0"), *reads, output)),
            *[
                Program(actor, (Read("c0", (0,)), Write((0,), f"c{number}")))
                for number, actor in enumerate(actors, start=1)
            ],
            Program("n0", tuple(passes)),
            Program("n1", (Pass("c0"),)),
        ),
        channels=tuple(channels),
        actors=tuple(ActorSpec(actor, "Stage", "") for actor in actors),
        is_multi=True,
        num_positional=1,
        keywords=(),
        gates=(Gate("n0", DRIVER), Gate("n1", "a0")),
        nodes=(ClusterNode("n0", "here", (DRIVER,)), ClusterNode("n1", "there", tuple(actors))),
    )
    if fits:
        plan.check()
    else:
        with pytest.raises(InternalError, match="n1 has 65 processes, at most 64 fit on a node"):
            plan.check()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("lane a0 of a0", "expected a lane at column 6"),
        ("lane a0.comm of a0.io", "expected the end of the line"),
        ("lane a0.comm a0", "expected 'of'"),
        ("gate n1 in c0", "expected a process"),
        ("gate a1 in a1", "expected a gate"),
        ("node a1 'x' a1", "expected a node"),
        ("node n1 a1", "expected a quoted"),
        ("node n1 'x' c1", "expected the end of the line"),
        ("group g0", "expected a quoted"),
        ("group c0 nccl a0", "expected a group"),
        ("channel c0 a0 -> a1 tensor @a0 node=1 slots=1", "expected a group"),
    ],
)
def test_a_line_that_makes_no_sense_is_refused(line: str, why: str):
    with pytest.raises(ValueError, match=f"line 2 of the plan is not understood: {why}"):
        Plan.from_text(f"plan positional=1 keywords=[] returns=one\n{line}")


# --- any plan -----------------------------------------------------------------------------------


@st.composite
def placed(draw: st.DrawFn) -> Plan:
    """A plan over up to three nodes; calls follow each other.

    Every value goes to all of its users through one channel, wherever they are. Lanes send on what
    their actor gives them.
    """
    drawn = {f"a{number}": draw(st.integers(0, 2)) for number in range(draw(st.integers(1, 5)))}
    actors = list(drawn)
    there: dict[int, list[str]] = {0: [DRIVER]}
    for actor, number in drawn.items():
        there.setdefault(number, []).append(actor)
    lanes = {actor: f"{actor}.comm" for actor in actors if draw(st.booleans())}
    channels: list[ChannelSpec] = []
    ops: dict[str, list[Op]] = {each: [] for each in (DRIVER, *actors)}
    ops |= {lanes[actor]: [] for actor in actors if actor in lanes}
    slots = dict.fromkeys(ops, 0)

    def new_slot(process: str) -> int:
        slots[process] += 1
        return slots[process] - 1

    def send(writer: str, slot: int, readers: list[str], kind: str, value: int) -> list[int]:
        name = f"c{len(channels)}"
        many = draw(st.integers(1, 4))
        channels.append(ChannelSpec(name, writer, tuple(readers), kind, (value,), many))
        ops[writer].append(Write((slot,), name))
        taken = [new_slot(reader) for reader in readers]
        for reader, out in zip(readers, taken, strict=True):
            ops[reader].append(Read(name, (out,)))
        return taken

    def publish(writer: str, slot: int, users: list[str], value: int) -> dict[str, int]:
        """Bring a value to its users; return its slot at each."""
        at = {writer: slot}
        others = [each for each in users if each != writer]
        if others and writer in lanes and draw(st.booleans()):
            ((slot),) = send(writer, slot, [lanes[writer]], "local", value)
            writer = lanes[writer]
        if others:
            at |= dict(zip(others, send(writer, slot, others, "ring", value), strict=True))
        return at

    ops[DRIVER].append(Input(None, new_slot(DRIVER)))
    at = publish(DRIVER, 0, actors, 0)
    arrived = {actor: at[actor] for actor in actors}
    results = []
    for number, actor in enumerate(actors, start=1):
        out = new_slot(actor)
        ops[actor].append(Call(actor, "f", (Slot(arrived[actor]),), (), (out,), number))
        after = actors[number : number + draw(st.integers(0, 2))]
        at = publish(actor, out, [DRIVER, *after], number)
        results.append(at[DRIVER])
        arrived |= {each: at[each] for each in after}
    ops[DRIVER].append(Output(tuple(results)))
    used = {process for process, done in ops.items() if done}
    lanes = {actor: lane for actor, lane in lanes.items() if lane in used}
    members = [lanes.get(actor, actor) for actor in actors]
    plan = Plan(
        programs=tuple(Program(each, tuple(done)) for each, done in ops.items() if each in used),
        channels=tuple(channels),
        actors=tuple(ActorSpec(actor, "Stage", "") for actor in actors),
        is_multi=True,
        num_positional=1,
        keywords=(),
        lanes=tuple(Lane(lane, actor) for actor, lane in lanes.items()),
        groups=(Group("g0", draw(st.text(min_size=1)), tuple(draw(st.permutations(members)))),),
    )
    if len(there) == 1:
        return plan
    keys = draw(st.lists(st.text(), min_size=len(there), max_size=len(there), unique=True))
    nodes = tuple(
        ClusterNode(f"n{number}", key, tuple(processes))
        for number, (key, processes) in enumerate(zip(keys, there.values(), strict=True))
    )
    where = {process: node.id for node in nodes for process in node.processes}
    where |= {lane: where[actor] for actor, lane in lanes.items()}
    passes: dict[str, list[Op]] = {node.id: [] for node in nodes}
    for channel in channels:
        for node in {where[reader] for reader in channel.readers} - {where[channel.writer]}:
            passes[node].append(Pass(channel.id))
    gates = [Gate(node.id, node.processes[0]) for node in nodes if passes[node.id]]
    programs = [Program(gate.id, tuple(passes[gate.id])) for gate in gates]
    return replace(plan, programs=(*plan.programs, *programs), nodes=nodes, gates=tuple(gates))


@given(placed())
def test_any_plan_over_nodes_is_right_and_travels(plan: Plan):
    plan.check()
    assert Plan.from_text(str(plan)) == plan == Plan.from_json(plan.to_json())
    assert str(Plan.from_text(str(plan))) == str(plan)


@given(placed())
def test_shared_memory_stays_on_its_node(plan: Plan):
    gates = {gate.id for gate in plan.gates}
    for process, sources in plan.memory_sources.items():
        assert {plan.node_of(each) for each in sources} <= {plan.node_of(process)}
        arrives = any(process in c.readers for c in plan.channels if c.id in plan.crossings())
        assert not arrives or plan.node_of(process) in {*sources} & gates or process in sources


@given(placed(), st.data())
def test_a_plan_over_nodes_without_one_of_its_parts_is_refused(plan: Plan, data: st.DataObject):
    """Any line that declares or moves something is needed, but for the group that nothing names."""
    text = str(plan).split("\n")
    needed = ("actor", "node", "lane", "gate", "channel", "program", "Read", "Write", "Pass")
    lines = [number for number, line in enumerate(text) if line.split()[0] in needed]
    del text[data.draw(st.sampled_from(lines))]
    with pytest.raises((InternalError, ValueError)):
        Plan.from_text("\n".join(text)).check()
