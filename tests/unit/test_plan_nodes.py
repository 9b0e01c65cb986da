# SPDX-License-Identifier: Apache-2.0
"""Plans over several nodes, with lanes and groups: data that prints, parses and is checked."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.compiler.simulate import check_deadlock_free, simulate
from rcg.errors import InternalError
from rcg.ir.channels import ActorSpec, ChannelSpec, Gate, Group, Lane
from rcg.ir.ids import DRIVER
from rcg.ir.operands import Slot
from rcg.ir.ops import Call, Input, Op, Output, Read, Write
from rcg.ir.plan import Plan
from rcg.ir.programs import Program

TEXT = """
plan positional=1 keywords=[] returns=list
actor a0 'Stage' ''
actor a1 'Stage' ''
actor a2 'Stage' ''
lane a0.comm of a0
gate n0 in driver
gate n1 in a1
group g0 nccl a0.comm a1
group g1 'my own' a2 a1
channel c0 driver -> a0 ring node=0 slots=10
channel c1 a0 -> n1 tcp node=1 slots=10
channel c2 n1 -> a1 a2 ring node=1 slots=10
channel c3 a0 -> a0.comm local node=2 slots=2
channel c4 a0.comm -> a1 tensor @g0 node=2 slots=3
channel c5 a1 -> n0 tcp node=3 slots=10
channel c6 n0 -> driver ring node=3 slots=10
channel c7 a2 -> n0 tcp node=4 slots=10
channel c8 n0 -> driver ring node=4 slots=10
program driver
  Input * -> s0
  Write s0 -> c0
  Free s0
  Read c6 -> s1
  Read c8 -> s2
  Output s1, s2
program a0
  Read c0 -> s0
  Call a0.split(s0) -> s1, s2 #1
  Write s1 -> c1
  Write s2 -> c3
  Free s0, s1, s2
program a1
  Read c2 -> s0
  Read c4 -> s1
  Call a1.join(s0, s1) -> s2 #3
  Write s2 -> c5
  Free s0, s1, s2
program a2
  Read c2 -> s0
  Call a2.fwd(s0) -> s1 #4
  Write s1 -> c7
  Free s0, s1
program a0.comm
  Read c3 -> s0
  Write s0 -> c4
  Free s0
program n0
  Read c5 -> s0
  Write s0 -> c6
  Free s0
  Read c7 -> s1
  Write s1 -> c8
  Free s1
program n1
  Read c1 -> s0
  Write s0 -> c2
  Free s0
"""


@pytest.fixture
def plan() -> Plan:
    return Plan.from_text(TEXT)


def test_a_plan_over_nodes_reads_as_text(plan: Plan):
    plan.check()
    assert str(plan) == TEXT.strip()
    assert plan.lanes == (Lane("a0.comm", "a0"),)
    assert plan.gates == (Gate("n0", DRIVER), Gate("n1", "a1"))
    assert plan.groups == (
        Group("g0", "nccl", ("a0.comm", "a1")),
        Group("g1", "my own", ("a2", "a1")),
    )
    assert plan.channels[1] == ChannelSpec("c1", "a0", ("n1",), "tcp", (1,), 10)
    assert plan.channels[4] == ChannelSpec("c4", "a0.comm", ("a1",), "tensor", (2,), 3, "g0")


def test_a_plan_over_nodes_travels(plan: Plan):
    assert Plan.from_text(str(plan)) == plan == Plan.from_json(plan.to_json())
    data = json.loads(plan.to_json())
    assert data["version"] == 2
    assert data["lanes"] == [{"id": "a0.comm", "actor": "a0"}]
    assert data["gates"] == [{"id": "n0", "host": "driver"}, {"id": "n1", "host": "a1"}]
    assert data["groups"][0] == {"id": "g0", "backend": "nccl", "members": ["a0.comm", "a1"]}
    assert data["channels"][4]["group"] == "g0"
    assert "group" not in data["channels"][0]


def test_a_plan_over_nodes_is_simulated(plan: Plan):
    check_deadlock_free(plan)
    timeline = simulate(plan, executions=1).timeline
    calls = [each for each in timeline if plan.program(each.process).ops[each.op].is_call]
    assert [each.process for each in calls] == ["a0", "a1", "a2"]
    # Through the lane: two Writes of a0, the lane's Read and Write, and the Read of a1.
    assert calls[1].start == pytest.approx(calls[0].end + 5 * 0.05)


def test_lanes_and_gates_are_told_to_people_with_where_they_run(plan: Plan):
    assert plan.label("a0.comm") == "a0.comm (Stage)"
    assert plan.label("n1") == "n1 (Stage)"
    assert plan.label("n0") == "n0"
    assert [plan.host_of(each) for each in ("driver", "a0", "a0.comm", "n0", "n1")] == [
        "driver",
        "a0",
        "a0",
        "driver",
        "a1",
    ]


def test_no_shared_memory_passes_a_gate(plan: Plan):
    assert plan.memory_sources == {
        "driver": ("n0",),
        "a0": ("driver", "n0"),
        "a1": ("driver", "a0", "a0.comm", "n0", "n1"),  # c4's frames carry what is no tensor
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


LOCAL = "channel c3 a0 -> a0.comm local node=2 slots=2"
TCP = "channel c1 a0 -> n1 tcp node=1 slots=10"
FROM_GATE = "channel c2 n1 -> a1 a2 ring node=1 slots=10"
TENSOR = "channel c4 a0.comm -> a1 tensor @g0 node=2 slots=3"
GROUP = "group g0 nccl a0.comm a1"


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
        ("gate n1 in a1", "gate n1 in a7", "n1 is in a7, which is neither an actor nor the driver"),
        ("gate n1 in a1", "gate n1 in a0.comm", "n1 is in a0.comm, which is neither"),
        ("gate n1 in a1", "gate n1 in n0", "n1 is in n0, which is neither"),
        ("gate n1 in a1", "gate n1 in driver", "2 gates are in driver"),
        ("gate n1 in a1", "gate n0 in a1", "2 processes have the id n0"),
        ("gate n1 in a1", "gate n1 in a0", "c1 is a tcp channel within the process a0"),
        (GROUP, "group g1 nccl a0.comm a1", "2 groups have the id g1"),
        (GROUP, "group g0 nccl a0.comm a9", "g0 has the member a9, which is no actor or lane"),
        (GROUP, "group g0 nccl a0.comm driver", "g0 has the member driver, which is no actor"),
        (GROUP, "group g0 nccl a0.comm n1", "g0 has the member n1, which is no actor or lane"),
        (GROUP, "group g0 nccl a0.comm a1 a1", "2 ranks of g0 are in a1"),
        (GROUP, "group g0 nccl a0.comm a1 a0", "2 ranks of g0 are in a0"),
        (GROUP, "group g0 nccl", "g0 must have a backend and members"),
        (GROUP, "group g0 '' a0.comm a1", "g0 must have a backend and members"),
        (GROUP, "group g0 nccl a0 a1", "c4 has an end that is not in g0"),
        (GROUP, "", "c4 names g0: a tensor channel names a group"),
        (LOCAL, "channel c3 a0 -> a0.comm local @g0 node=2 slots=2", "c3 names g0"),
        (LOCAL, "channel c3 a1 -> a0.comm local node=2 slots=2", "c3 is a local channel: it must"),
        (LOCAL, "channel c3 driver -> a0.comm local node=2 slots=2", "c3 is a local channel"),
        (LOCAL, "channel c3 a0 -> a0.comm a2 local node=2 slots=2", "c3 is a local channel"),
        (
            LOCAL,
            "channel c3 a0 -> a0.io local node=2 slots=2",
            r"an end at \['a0.io'\], not a proc",
        ),
        (TCP, "channel c1 a0 -> a1 tcp node=1 slots=10", "c1 is a tcp channel: it must end at one"),
        (TCP, "channel c1 a0 -> a0.comm tcp node=1 slots=10", "c1 is a tcp channel: it must end"),
        (TCP, "channel c1 a0 -> n0 n1 tcp node=1 slots=10", "c1 is a tcp channel: it must end"),
        (TCP, "channel c1 a1 -> n1 tcp node=1 slots=10", "a tcp channel within the process a1"),
        (TCP, "channel c1 n0 -> n1 tcp node=1 slots=10", "c1 is written by a gate: it must be a"),
        (TCP, "channel c1 a0 -> n1 ring node=1 slots=10", "c1 is read by a gate: it must be a tcp"),
        (
            TCP,
            "channel c1 a0 -> n2 tcp node=1 slots=10",
            r"c1 has an end at \['n2'\], not a process",
        ),
        (FROM_GATE, "channel c2 n1 -> a1 local node=1 slots=1", "c2 is written by a gate"),
        (
            FROM_GATE,
            "channel c2 n1 -> a1 tensor node=1 slots=1",
            "c2 is written by a gate: it must be a ring",
        ),
        (
            TENSOR,
            "channel c4 a0.comm -> driver tensor @g0 node=2 slots=3",
            "its ends must be actors",
        ),
        (TENSOR, "channel c4 a0.comm -> a2 tensor @g0 node=2 slots=3", "an end that is not in g0"),
        (TENSOR, "channel c4 a0.comm -> a1 tensor @g9 node=2 slots=3", "c4 names g9"),
        (TENSOR, "channel c4 a0.comm -> a1 ring @g0 node=2 slots=3", "c4 names g0: a tensor"),
        (
            TENSOR,
            "channel c4 a0.comm -> a1 pigeon node=2 slots=3",
            "unknown kind 'pigeon', known are ring, tcp, tensor, status, local",
        ),
        ("  Write s0 -> c2", "  Call n1.f(s0) -> s1 #9", "expected a actor"),
        ("  Write s0 -> c2", "  Call a1.f(s0) -> s1 #9", "a gate makes no values, it passes them"),
        ("  Write s0 -> c2", "  Build k0(s0) -> s1", "a gate makes no values, it passes them on"),
        ("  Write s0 -> c2", "", "n1 never writes c2"),
        ("  Write s0 -> c4", "  Call a0.f(s0) -> s1 #9", "a call is in its own actor's program"),
        ("  Read c3 -> s0", "  Read c1 -> s0", "a0.comm is not a reader of c1"),
    ],
)
def test_a_plan_over_nodes_that_breaks_a_rule_is_refused(old: str, new: str, why: str):
    with pytest.raises((InternalError, ValueError), match=why):
        with_line(old, new)().check()


def test_a_local_channel_has_one_reader():
    text = TEXT.replace("lane a0.comm of a0\n", "lane a0.comm of a0\nlane a0.io of a0\n")
    text = text.replace("a0 -> a0.comm local", "a0 -> a0.comm a0.io local")
    text = text.replace("program n0\n", "program a0.io\n  Read c3 -> s0\nprogram n0\n")
    with pytest.raises(InternalError, match="c3 is a local channel: it must join two lanes"):
        Plan.from_text(text).check()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (TENSOR, "channel c4 a0.comm -> a1 tensor node=2 slots=3"),
        (TENSOR, "channel c4 a0.comm -> a1 ring node=2 slots=3"),
        (LOCAL, "channel c3 a0 -> a0.comm ring node=2 slots=2"),
        (GROUP, "group g0 gloo a1 a0.comm"),
        (GROUP, "group g0 gloo a1 a0.comm a2"),
    ],
)
def test_a_plan_over_nodes_may_be_made_in_other_ways(old: str, new: str):
    with_line(old, new)().check()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("lane a0 of a0", "expected a lane at column 6"),
        ("lane a0.comm of a0.io", "expected the end of the line"),
        ("lane a0.comm a0", "expected 'of'"),
        ("gate n1 in c0", "expected a process"),
        ("gate a1 in a1", "expected a gate"),
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
def placed(draw: st.DrawFn) -> tuple[Plan, dict[str, int]]:
    """A plan over up to three nodes, and the node of each process; calls follow each other.

    Every value goes to what uses it on its own node through a ring, and to every other node once,
    through TCP and a ring of that node's gate. Lanes send on what their actor gives them.
    """
    node_of = {DRIVER: 0}
    for number in range(draw(st.integers(1, 5))):
        node_of[f"a{number}"] = draw(st.integers(0, 2))
    actors = [each for each in node_of if each != DRIVER]
    lanes = {actor: f"{actor}.comm" for actor in actors if draw(st.booleans())}
    hosts = {0: DRIVER} | {node_of[actor]: actor for actor in reversed(actors) if node_of[actor]}
    channels: list[ChannelSpec] = []
    ops: dict[str, list[Op]] = {each: [] for each in (DRIVER, *actors)}
    ops |= {lanes[actor]: [] for actor in actors if actor in lanes}
    ops |= {f"n{node}": [] for node in sorted(hosts)}
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
        near = [each for each in others if node_of[each] == node_of[writer]]
        if others and writer in lanes and draw(st.booleans()):
            ((slot),) = send(writer, slot, [lanes[writer]], "local", value)
            writer = lanes[writer]
        if near:
            at |= dict(zip(near, send(writer, slot, near, "ring", value), strict=True))
        for node in sorted({node_of[each] for each in others if each not in near}):
            far = [each for each in others if node_of[each] == node]
            (arrived,) = send(writer, slot, [f"n{node}"], "tcp", value)
            at |= dict(zip(far, send(f"n{node}", arrived, far, "ring", value), strict=True))
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
    used = {process for process, done in ops.items() if done or process in node_of}
    gates = [node for node in sorted(hosts) if f"n{node}" in used]
    members = [lanes.get(actor, actor) if lanes.get(actor) in used else actor for actor in actors]
    node_of |= {lanes[actor]: node_of[actor] for actor in lanes} | {f"n{n}": n for n in gates}
    made = Plan(
        programs=tuple(Program(each, tuple(done)) for each, done in ops.items() if each in used),
        channels=tuple(channels),
        actors=tuple(ActorSpec(actor, "Stage", "") for actor in actors),
        is_multi=True,
        num_positional=1,
        keywords=(),
        lanes=tuple(Lane(lanes[actor], actor) for actor in actors if lanes.get(actor) in used),
        gates=tuple(Gate(f"n{node}", hosts[node]) for node in gates),
        groups=(Group("g0", draw(st.text(min_size=1)), tuple(draw(st.permutations(members)))),),
    )
    return made, node_of


@given(placed())
def test_any_plan_over_nodes_is_right_and_travels(case: tuple[Plan, dict[str, int]]):
    plan, _ = case
    plan.check()
    assert Plan.from_text(str(plan)) == plan == Plan.from_json(plan.to_json())
    assert str(Plan.from_text(str(plan))) == str(plan)


@given(placed())
def test_shared_memory_stays_on_its_node(case: tuple[Plan, dict[str, int]]):
    plan, node_of = case
    for process, sources in plan.memory_sources.items():
        assert {node_of[each] for each in sources} <= {node_of[process]}


@given(placed(), st.data())
def test_a_plan_over_nodes_without_one_of_its_parts_is_refused(
    case: tuple[Plan, dict[str, int]], data: st.DataObject
):
    """Any line that declares or moves something is needed, but for the group that nothing names."""
    text = str(case[0]).split("\n")
    lines = [
        number
        for number, line in enumerate(text)
        if line.split()[0] in ("actor", "lane", "gate", "channel", "program", "Read", "Write")
    ]
    del text[data.draw(st.sampled_from(lines))]
    with pytest.raises((InternalError, ValueError)):
        Plan.from_text("\n".join(text)).check()
