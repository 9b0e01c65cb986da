# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.errors import InternalError
from rcg.ir.channels import (
    CHANNEL_KINDS,
    ActorSpec,
    ChannelSpec,
    ClusterNode,
    Gate,
    Group,
    Lane,
    memory_sources,
    slots_for,
)
from rcg.ir.ids import Const, Slot
from rcg.ir.ops import Build, Call, Free, Input, Output, Pass, Read, Write
from rcg.ir.plan import Plan
from rcg.ir.programs import Program

TEXT = """
plan positional=2 keywords=['x'] returns=list
actor a0 'Stage' '0123abcd'
actor a1 "It's" ''
channel c0 driver -> a0 a1 ring node=0 slots=10
channel c1 driver -> a1 ring node=1 slots=10
channel c2 driver -> a0 ring node=2 slots=10
channel c3 a0 -> driver a1 ring node=4 slots=2
channel c4 a1 -> driver ring node=6 slots=1
program driver
  Input 0 -> s0
  Write s0 -> c0
  Input 1 -> s1
  Write s1 -> c1
  Input 'x' -> s2
  Write s2 -> c2
  Free s0, s1, s2
  Read c3 -> s3
  Read c4 -> s4
  Output s3, s4, s3
program a0
  Read c0 -> s0
  Read c2 -> s1
  Call a0.fwd(s0, k0, scale=s1, 'a b'=k1) -> s2, s3 #3
  Write s2 -> c3
  Free s0, s1, s2, s3
program a1
  Read c0 -> s0
  Read c1 -> s1
  Read c3 -> s2
  Build k2(s1, s2) -> s3
  Call a1.'odd name'(s0, s3) -> s4 #6
  Write s4 -> c4
  Free s0, s1, s2, s3, s4
"""


@pytest.fixture
def plan() -> Plan:
    return Plan.from_text(TEXT)


def test_a_plan_reads_as_text(plan: Plan):
    plan.check()
    assert str(plan) == TEXT.strip()
    assert plan.program("a1").ops[3:5] == (
        Build("k2", (1, 2), 3),
        Call("a1", "odd name", (Slot(0), Slot(3)), (), (4,), 6),
    )
    assert plan.program("a0").ops[2] == Call(
        "a0", "fwd", (Slot(0), Const("k0")), (("scale", Slot(1)), ("a b", Const("k1"))), (2, 3), 3
    )
    assert plan.channels[3] == ChannelSpec("c3", "a0", ("driver", "a1"), "ring", (4,), 2)
    assert plan.actors == (ActorSpec("a0", "Stage", "0123abcd"), ActorSpec("a1", "It's", ""))
    assert (plan.num_positional, plan.keywords, plan.is_multi) == (2, ("x",), True)
    assert (plan.lanes, plan.gates, plan.groups, plan.nodes) == ((), (), (), ())


def test_the_json_is_readable_by_others(plan: Plan):
    data = json.loads(plan.to_json())
    assert data["programs"][1]["ops"][2] == {
        "op": "Call",
        "actor": "a0",
        "method": "fwd",
        "args": ["s0", "k0"],
        "kwargs": [["scale", "s1"], ["a b", "k1"]],
        "outs": [2, 3],
        "node": 3,
    }


def test_a_plan_looks_things_up(plan: Plan):
    assert plan.processes_of("n0") == ("driver", "a0", "a1")
    assert (plan.node_of("a1"), plan.host_of_node("n0"), plan.crossings()) == ("n0", "driver", {})
    assert plan.channels_by_id()["c4"].writer == "a1"
    assert (plan.label("a0"), plan.label("driver")) == ("a0 (Stage)", "driver")
    with pytest.raises(KeyError):
        plan.program("a7")


names = st.text(max_size=6)
numbers = st.integers(0, 99)
processes = st.sampled_from(["driver", "a0", "a17", "a1.comm", "a2.io_2", "n0", "n12"])
process_tuples = st.lists(processes, max_size=3).map(tuple)
group_ids = numbers.map("g{}".format)
slot_tuples = st.lists(numbers, min_size=1, max_size=3).map(tuple)
constants = numbers.map("k{}".format)
channel_ids = numbers.map("c{}".format)
arguments = st.one_of(numbers.map(Slot), constants.map(Const))
ops = st.one_of(
    st.builds(Input, st.one_of(st.none(), st.integers(-3, 9), names), numbers),
    st.builds(Read, channel_ids, slot_tuples),
    st.builds(Build, constants, slot_tuples, numbers),
    st.builds(
        Call,
        numbers.map("a{}".format),
        names,
        st.lists(arguments, max_size=3).map(tuple),
        st.lists(st.tuples(names, arguments), max_size=3).map(tuple),
        slot_tuples,
        numbers,
    ),
    st.builds(Write, slot_tuples, channel_ids),
    st.builds(Pass, channel_ids),
    st.builds(Output, slot_tuples),
    st.builds(Free, slot_tuples),
)
plans = st.builds(
    Plan,
    programs=st.lists(
        st.builds(Program, processes, st.lists(ops, max_size=5).map(tuple)), max_size=3
    ).map(tuple),
    channels=st.lists(
        st.builds(
            ChannelSpec,
            channel_ids,
            processes,
            process_tuples,
            st.sampled_from(CHANNEL_KINDS),
            slot_tuples,
            numbers,
            st.none() | group_ids,
        ),
        max_size=3,
    ).map(tuple),
    actors=st.lists(st.builds(ActorSpec, st.just("a3"), names, names), max_size=2).map(tuple),
    is_multi=st.booleans(),
    num_positional=numbers,
    keywords=st.lists(names, max_size=3).map(tuple),
    lanes=st.lists(
        st.builds(Lane, st.sampled_from(["a0.comm", "a7.b"]), numbers.map("a{}".format)), max_size=2
    ).map(tuple),
    gates=st.lists(st.builds(Gate, numbers.map("n{}".format), processes), max_size=2).map(tuple),
    groups=st.lists(st.builds(Group, group_ids, names, process_tuples), max_size=2).map(tuple),
    nodes=st.lists(
        st.builds(ClusterNode, numbers.map("n{}".format), names, process_tuples), max_size=2
    ).map(tuple),
)


@given(plans)
def test_any_plan_round_trips(plan: Plan):
    """Names with quotes, brackets, newlines or lone surrogates, and plans that make no sense."""
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert Plan.from_text(plan.to_text()) == plan
    assert Plan.from_json(plan.to_json()) == plan
    assert Plan.from_text(plan.to_text()).to_text() == plan.to_text()


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("  Reed c0 -> s0", "there is no op 'Reed'"),
        ("  Read c0 -> k0", "expected a slot at column 12"),
        ("  Read c0 -> s0 s1", "expected the end of the line"),
        ("  Call a0.f(x) -> s0 #1", "'x' is neither a slot nor a constant"),
        ("  Call a0.f(s1 s2) -> s0 #1", "expected ','"),
        ("  Call a0.f(s1", "expected ','"),
        ("  Call a0.f() -> s0", "expected '#'"),
        ("  Input 'x -> s0", "expected a quoted"),
        ("  Input '\\x' -> s0", "truncated"),
        ("  Free", "expected a slot"),
        ("program b0", "expected a process"),
        ("actor a0 'x'", "expected a quoted"),
        ("channel c0 driver -> a0 ring node=0", "expected 'slots='"),
        ("channel c0 a0 -> a1 tensor @a0 node=1 slots=1", "expected a group"),
        ("lane a0 of a0", "expected a lane at column 6"),
        ("lane a0.comm of a0.io", "expected the end of the line"),
        ("lane a0.comm a0", "expected 'of'"),
        ("gate n1 in c0", "expected a process"),
        ("gate a1 in a1", "expected a gate"),
        ("node a1 'x' a1", "expected a node"),
        ("node n1 'x' c1", "expected the end of the line"),
        ("group g0", "expected a quoted"),
        ("group c0 nccl a0", "expected a group"),
    ],
)
def test_a_line_that_makes_no_sense_is_named_by_number(line, text):
    lines = [*TEXT.strip().split("\n")[:14], line]
    with pytest.raises(ValueError, match="line 15 of the plan is not understood: ") as caught:
        Plan.from_text("\n".join(lines))
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no line that starts with 'plan'"),
        ("Read c0 -> s0", "line 1 .* before any program"),
        ("plan positional=1 keywords=[] returns=two", "must be 'one' or 'list'"),
    ],
)
def test_a_text_that_is_no_plan_is_refused(text, why):
    with pytest.raises(ValueError, match=why):
        Plan.from_text(text)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: data.update(version=True), "version 2: found version True"),
        (lambda data: data.update(version=1), "version 2: found version 1"),
        (lambda data: data.update(version=3), "version 2: found version 3"),
        (lambda data: data.pop("channels"), "plan without 'channels'"),
        (lambda data: data.update(reach=[]), "plan has no 'reach'"),
        (lambda data: data.update(keywords="x"), "'x' is no list of keywords"),
        (lambda data: data.update(is_multi=1), "1 is no is_multi"),
        (lambda data: data["channels"][0].update(speed=3), "channel has no 'speed'"),
        (lambda data: data["channels"][0].update(group="c0"), "'c0' is no id of a group"),
        (lambda data: data["programs"][0].update(process="b0"), "'b0' is no id of a process"),
        (lambda data: data["programs"][0]["ops"][0].update(op=["Read"]), "no op a list of 1"),
        (lambda data: data["programs"][0]["ops"][0].pop("op"), "there is no op None"),
        (lambda data: data["programs"][0]["ops"][0].pop("out"), "Input without 'out'"),
        (lambda data: data.update(lanes=[{"id": "a0", "actor": "a0"}]), "'a0' is no id of a lane"),
        (lambda data: data.update(gates=[{"id": "n1", "host": "c0"}]), "'c0' is no id of a proc"),
        (lambda data: data.update(nodes=[{"id": "n1", "key": ""}]), "node without 'processes'"),
        (
            lambda data: data.update(nodes=[{"id": "a1", "key": "", "processes": []}]),
            "'a1' is no id of a node",
        ),
    ],
)
def test_json_that_is_no_plan_is_refused(plan: Plan, change, why):
    data = json.loads(plan.to_json())
    change(data)
    with pytest.raises(ValueError, match=why):
        Plan.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["[]", "3", "nonsense"])
def test_other_json_is_no_plan(text):
    with pytest.raises(ValueError, match=r"not a plan|Expecting value"):
        Plan.from_json(text)


# --- check --------------------------------------------------------------------------------------


HEAD = "plan positional=2 keywords=['x'] returns=list"
A0 = "actor a0 'Stage' '0123abcd'"
C1 = "channel c1 driver -> a1 ring node=1 slots=10"
END = "  Free s0, s1, s2, s3, s4"


def with_line(old: str, new: str) -> Plan:
    assert TEXT.count(f"{old}\n") == 1
    return Plan.from_text(TEXT.replace(f"{old}\n", f"{new}\n" if new else ""))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("  Build k2(s1, s2) -> s3", "", "s3 is used before it is filled"),
        ("  Build k2(s1, s2) -> s3", "  Build k2(s1, s2) -> s2", "s2 is filled twice"),
        (
            "  Build k2(s1, s2) -> s3",
            "  Free s0\n  Build k2(s1, s2) -> s3",
            "s0 is used after it was freed",
        ),
        (END, "  Free s0, s0", "a slot is freed twice"),
        (END, "  Write s4 -> c4", "c4 is written twice in one execution"),
        (END, "  Write s4 -> c3", "a1 is not the writer of c3"),
        (END, "  Read c2 -> s9", "a1 is not a reader of c2"),
        (END, "  Read c1 -> s9", "c1 is read twice"),
        (END, "  Read c7 -> s9", "there is no channel c7"),
        (END, "  Output s4", "last op of the driver"),
        (END, "  Input 3 -> s9", "only the driver takes inputs"),
        (END, "  Call a0.f(s4) -> s9 #9", "in its own actor's program, once"),
        (END, "  Call a1.f(s4) -> s9 #3", "in its own actor's program, once"),
        ("  Write s4 -> c4", "", "a1 never writes c4"),
        ("  Write s4 -> c4", "  Write s3, s4 -> c4", "c4 carries 1 value, not 2"),
        ("  Read c0 -> s0\n  Read c2 -> s1", "  Read c0 -> s0, s1", "c0 carries 1 value, not 2"),
        (
            "channel c4 a1 -> driver ring node=6 slots=1",
            "channel c4 a1 -> driver ring node=6, 6 slots=1",
            "c4 must carry one node or more, each once",
        ),
        ("  Output s3, s4, s3", "  Output s3, s4, s3\n  Free s4", "last op"),
        ("  Output s3, s4, s3", "", "driver's last op must be its output"),
        ("  Input 1 -> s1", "  Input 3 -> s1", r"takes the inputs \[0, 3, 'x'\], declared are 2"),
        ("  Input 1 -> s1", "  Input * -> s1", r"takes the inputs \[0, None, 'x'\]"),
        ("  Input 1 -> s1", "  Input 0 -> s1", "inputs, each once"),
        (HEAD, HEAD.replace("list", "one"), "3 outputs are listed"),
        (C1, "channel c1 driver -> a1 ring node=1 slots=0", "c1 has 0 slots"),
        (C1, "channel c1 driver -> a1 ring node=1 slots=4097", "c1 has 4097 slots, not 1 to 4096"),
        (C1, "channel c1 driver -> a1 pigeon node=1 slots=1", "unknown kind 'pigeon'"),
        (C1, "channel c0 driver -> a1 ring node=1 slots=10", "two channels have the same id"),
        (C1, "channel c1 driver -> a1 a1 ring node=1 slots=10", "c1 must have readers, each once"),
        (
            C1,
            "channel c1 driver -> a0 a1 ring node=1 slots=10",
            "a0 is a reader of c1 but never reads it",
        ),
        (
            C1,
            "channel c1 driver -> a9 ring node=1 slots=10",
            r"c1 has an end at \['a9'\], not a process",
        ),
        (A0, "actor a2 'Stage' ''", "actor 0 has the id 'a2'"),
    ],
)
def test_a_plan_that_breaks_a_rule_is_refused(old, new, why):
    with pytest.raises(InternalError, match=why):
        with_line(old, new).check()


def test_check_wants_the_programs_in_order(plan: Plan):
    with pytest.raises(InternalError, match=r"programs are those of \['a0', 'driver', 'a1'\]"):
        replace(plan, programs=(plan.programs[1], plan.programs[0], plan.programs[2])).check()


def test_check_refuses_a_loop_that_nothing_holds(plan: Plan):
    idle = replace(plan, actors=(*plan.actors, ActorSpec("a2", "Idle", "")))
    idle = replace(idle, programs=(*idle.programs, Program("a2", ())))
    with pytest.raises(InternalError, match="a2 reads nothing"):
        idle.check()


def test_check_refuses_a_driver_that_passes_results_on(plan: Plan):
    ops = list(plan.programs[0].ops)
    ops[1] = Write((3,), "c0")
    ops.insert(1, ops.pop(7))
    driver = Program("driver", tuple(ops))
    with pytest.raises(InternalError, match="the driver sends inputs only"):
        replace(plan, programs=(driver, *plan.programs[1:])).check()


def test_an_internal_error_names_process_and_op():
    with pytest.raises(InternalError) as caught:
        with_line("  Build k2(s1, s2) -> s3", "").check()
    assert (caught.value.process, str(caught.value.op)) == (
        "a1",
        "Call a1.'odd name'(s0, s3) -> s4 #6",
    )


def test_memory_sources_are_the_transitive_closure():
    def channel(number: int, writer: str, *readers: str) -> ChannelSpec:
        return ChannelSpec(f"c{number}", writer, readers, "ring", (number,), 1)

    sources = memory_sources(
        ["driver", "a0", "a1", "a2", "a3"],
        [
            channel(0, "driver", "a0", "a3"),
            channel(1, "a0", "a1"),
            channel(2, "a1", "a2"),
            channel(3, "a2", "driver", "a1"),
        ],
    )
    loop = ("driver", "a0", "a1", "a2")
    assert sources == dict.fromkeys(("driver", "a0", "a1", "a2", "a3"), loop)
    line = memory_sources(["a2", "a1", "a0"], [channel(0, "a0", "a1"), channel(1, "a1", "a2")])
    assert line == {"a2": ("a1", "a0"), "a1": ("a0",), "a0": ()}


@pytest.mark.parametrize(("executions", "slots"), [(1, 1), (10, 10), (4096, 4096), (10**6, 4096)])
def test_a_channel_holds_a_frame_for_each_execution_in_flight(executions: int, slots: int):
    assert slots_for(executions) == slots
