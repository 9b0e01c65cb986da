# SPDX-License-Identifier: Apache-2.0
"""Lanes: transfers in programs beside those of the calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.channels import open_reader, open_writer
from rcg.compiler import compile_graph, overlap_gain, without_overlap
from rcg.compiler.lanes import LOCAL_SLOTS
from rcg.compiler.schedule import schedule
from rcg.compiler.simulate import simulate
from rcg.ir.channels import LOCAL, TENSOR, ChannelSpec
from rcg.ir.costs import CALL, Cost, Predicted
from rcg.ir.graph import Graph
from rcg.ir.ids import DRIVER
from rcg.ir.ops import Call, Collective, Copy, Free, Read, Write
from rcg.ir.plan import Plan
from tests.conformance.test_channels import open_nodes
from tests.unit.graphs_by_hand import HERE, here, planned
from tests.unit.pipelines import Script
from tests.unit.random_graphs import Case, cases, evaluate, interpret
from tests.unit.test_rendezvous import inputs_of


def overlapped(graph: Graph, channel_slots: int = 4) -> Plan:
    return compile_graph(graph, here(graph), HERE, channel_slots, overlap=True).plan


def tensor_graphs() -> st.SearchStrategy[Case]:
    return cases(max_actors=5, has_tensors=True)


@given(tensor_graphs(), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3))
def test_every_graph_computes_the_same_with_lanes(
    case: Case, slots: int, executions: int, window: int
):
    plan = overlapped(case.graph, slots)
    simulate(plan, executions=executions)
    simulate(plan, executions=executions, window=min(window, slots), is_driver_draining=False)
    inputs = inputs_of(case, executions)
    outputs, _ = interpret(plan, case.constants, inputs, window=min(window, slots))
    assert outputs == [evaluate(case, each) for each in inputs]


@given(tensor_graphs())
def test_a_plan_whose_lanes_are_taken_away_computes_the_same(case: Case):
    plan = overlapped(case.graph)
    predicted = tuple(Predicted(lane.id, 1, 2) for lane in plan.lanes)
    plan = without_overlap(replace(plan, predicted=predicted), ())
    assert not plan.lanes
    assert LOCAL not in {channel.kind for channel in plan.channels}
    simulate(plan, executions=3)
    inputs = inputs_of(case, 2)
    outputs, _ = interpret(plan, case.constants, inputs, window=2)
    assert outputs == [evaluate(case, each) for each in inputs]


@given(tensor_graphs())
def test_what_overlap_gains_is_known_of_every_plan(case: Case):
    plan = planned(case.graph)
    gain = overlap_gain(plan, [Cost(CALL, 0, 1_000)], 4)
    assert (gain is None) == (not overlapped(case.graph).lanes)


@given(tensor_graphs())
def test_transfers_are_in_lanes_and_calls_are_not(case: Case):
    plan = overlapped(case.graph)
    channels = plan.channels_by_id()
    lanes = {lane.id for lane in plan.lanes}
    has_lanes = {lane.actor for lane in plan.lanes}
    for program in plan.programs:
        for op in program.ops:
            moves = isinstance(op, Collective) or (
                isinstance(op, Read | Write) and channels[op.channel].kind == TENSOR
            )
            if isinstance(op, Call):
                assert program.process not in lanes
            if moves and program.process in has_lanes:
                raise AssertionError(f"{op} is in the program of the calls")
    for actor in plan.actors:
        calls = any(op.is_call for op in plan.program(actor.id).ops)
        assert calls or actor.id not in has_lanes


@given(tensor_graphs())
def test_a_local_channel_joins_programs_of_one_actor(case: Case):
    plan = overlapped(case.graph)
    for channel in plan.channels:
        hosts = {plan.host_of(each) for each in (channel.writer, *channel.readers)}
        assert (channel.kind == LOCAL) == (len(hosts) == 1)
        if channel.kind == LOCAL:
            assert channel.slots == LOCAL_SLOTS


@given(tensor_graphs())
def test_the_ranks_of_a_users_own_communicator_stay_in_its_order(case: Case):
    plan = overlapped(case.graph)
    members = {each.const: each.members for each in case.graph.communicators}
    for group in plan.groups:
        if group.communicator is not None:
            hosts = tuple(plan.host_of(member) for member in group.members)
            assert hosts == members[group.communicator]


@given(tensor_graphs())
def test_a_value_that_is_used_on_is_copied_before_another_lane_gets_it(case: Case):
    plan = overlapped(case.graph)
    channels = plan.channels_by_id()
    for program in plan.programs:
        has_calls = any(op.is_call for op in program.ops)
        copies = {op.out for op in program.ops if isinstance(op, Copy)}
        for at, op in enumerate(program.ops):
            if isinstance(op, Write) and channels[op.channel].kind == LOCAL:
                later = {
                    slot
                    for each in program.ops[at + 1 :]
                    if not isinstance(each, Free)
                    for slot in each.used()
                }
                assert later.isdisjoint(op.slots)
                assert not has_calls or copies.issuperset(op.slots)


@given(tensor_graphs())
def test_the_plan_prints_parses_and_schedules_again(case: Case):
    plan = overlapped(case.graph)
    assert Plan.from_text(str(plan)) == plan == Plan.from_json(plan.to_json())
    assert schedule(plan) == plan
    assert plan.window == 4


def test_a_stage_in_the_middle_sends_and_receives_in_lanes_of_their_own():
    script = Script(3)
    value = script.bind(0, "first")
    value = script.bind(1, "second", value)
    script.bind(2, "third", value)
    plan = overlapped(script.graph())
    assert [lane.id for lane in plan.lanes] == ["a0.comm", "a1.comm", "a1.recv", "a2.comm"]
    assert str(plan.program("a1.recv")) == "\n".join(
        ["program a1.recv", "  Read c1 -> s0", "  Write s0 -> c5", "  Free s0"]
    )
    assert [group.members for group in plan.groups] == [
        ("a0.comm", "a1.recv"),
        ("a1.comm", "a2.comm"),
    ]


# --- local channels


def local_ends(slots: int = 1) -> tuple[Any, Any, Any]:
    """The ends of a local channel, and what closes them."""
    spec = ChannelSpec("c0", DRIVER, ("a0",), LOCAL, (0,), slots)
    segments, (writing, reading) = open_nodes([spec], 1 << 20)
    return open_writer(spec, 0, writing), open_reader(spec, 0, reading), segments.close


def test_an_interrupt_between_a_frame_and_its_value_shifts_no_other():
    writer, reader, close = local_ends(slots=4)
    for value in ("a", "b", "c"):
        writer.write(value)
    assert reader.read() == "a"
    reader._ring.read()  # and the interrupt comes here
    assert reader.read() == "c"
    close()


def test_a_value_that_could_not_be_published_is_not_in_the_way():
    writer, reader, close = local_ends()
    writer.write("a")

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    plain, writer._write = writer._write, interrupted
    slots = ["b"]
    with pytest.raises(KeyboardInterrupt):
        writer.hand_over(slots, 0)
    writer._write = plain
    assert reader.read() == "a"
    writer.write("a failure in its place")
    assert reader.read() == "a failure in its place"
    close()


@given(tensor_graphs())
def test_a_lane_holds_what_its_programs_say(case: Case):
    plan = overlapped(case.graph)
    for lane in plan.lanes:
        live: set[int] = set()
        most = 0
        for op in plan.program(lane.id).ops:
            live |= set(op.made())
            most = max(most, len(live))
            live -= set(op.freed())
        ends = [each for each in plan.channels if each.kind == LOCAL]
        local = sum(each.slots for each in ends if lane.id in (each.writer, *each.readers))
        assert plan.held_values[lane.id] == most + local
