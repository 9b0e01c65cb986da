# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import textwrap
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.compiler import compile_graph
from rcg.compiler.place import place
from rcg.compiler.schedule import schedule
from rcg.compiler.simulate import Costs, Simulation, check_deadlock_free, simulate
from rcg.errors import DeadlockError, InternalError, PlacementError
from rcg.ir.ids import DRIVER
from rcg.ir.nodes import ConstArg, InputValue, MethodCall, NestedArg, Part
from rcg.ir.ops import Call, Op, Output, Read, Write
from rcg.ir.plan import Plan
from rcg.ir.programs import Program
from tests.unit.graphs_by_hand import HERE, call, graph, here, input_value, planned, site
from tests.unit.random_graphs import Case, StuckError, cases, evaluate, interpret


def body(plan: Plan, process: str) -> str:
    return "\n".join(map(str, plan.program(process).ops))


def lines(text: str) -> str:
    return textwrap.dedent(text).strip()


# --- place and schedule -------------------------------------------------------------------------


def test_only_what_goes_to_others_has_a_channel_and_what_calls_take_is_at_hand():
    plan = planned(
        graph(
            InputValue(0, 1, site(1)),
            InputValue(1, "x", site(1)),
            call(2, "a0", 0, ConstArg("k0")),
            call(3, "a0", 2, 0),
            call(4, "a0", 3),
            call(5, "a1", 4, ConstArg("k1"), u=NestedArg("k2", (2, 1, 2)), v=1),
            outputs=(5, 3, 5),
        )
    )
    # Values of two calls for the same reader travel apart.
    assert [(channel.nodes, channel.readers) for channel in plan.channels] == [
        ((0,), ("a0",)),
        ((1,), ("a1",)),
        ((2,), ("a1",)),
        ((3,), ("driver",)),
        ((4,), ("a1",)),
        ((5,), ("driver",)),
    ]
    assert body(plan, "a0") == lines("""
        Read c0 -> s0
        Call a0.fwd(s0, k0) -> s1 #2
        Write s1 -> c2
        Call a0.fwd(s1, s0) -> s2 #3
        Write s2 -> c3
        Free s0, s1
        Call a0.fwd(s2) -> s3 #4
        Write s3 -> c4
        Free s2, s3
    """)
    assert body(plan, "a1") == lines("""
        Read c4 -> s0
        Read c2 -> s1
        Read c1 -> s2
        Build k2(s1, s2, s1) -> s3
        Call a1.fwd(s0, k1, u=s3, v=s2) -> s4 #5
        Write s4 -> c5
        Free s0, s1, s2, s3, s4
    """)
    assert str(plan.program("driver").ops[-1]) == "Output s3, s2, s3"
    assert (plan.num_positional, plan.keywords) == (2, ("x",))


def test_inputs_for_the_same_readers_share_a_channel():
    plan = planned(
        graph(
            InputValue(0, 0, site(1)),
            InputValue(1, 1, site(1)),
            InputValue(2, "x", site(1)),
            InputValue(3, "y", site(1)),
            call(4, "a0", 0, 1),
            call(5, "a1", 1, 2),
            call(6, "a0", 3, 5),
            outputs=(4, 6),
        )
    )
    assert [(channel.nodes, channel.readers) for channel in plan.channels] == [
        ((0, 3), ("a0",)),
        ((1,), ("a0", "a1")),
        ((2,), ("a1",)),
        ((4,), ("driver",)),
        ((5,), ("a0",)),
        ((6,), ("driver",)),
    ]
    assert body(plan, "driver") == lines("""
        Input 0 -> s0
        Input 1 -> s1
        Write s1 -> c1
        Input 'x' -> s2
        Write s2 -> c2
        Input 'y' -> s3
        Write s0, s3 -> c0
        Free s0, s1, s2, s3
        Read c3 -> s4
        Read c5 -> s5
        Output s4, s5
    """)


def test_values_of_one_call_for_the_same_readers_share_a_channel():
    plan = planned(
        graph(
            input_value(0),
            call(1, "a0", 0, num_returns=5),
            *(Part(2 + i, 1, i, site(2)) for i in range(4)),
            call(6, "a1", 2, 4),
            outputs=(6, 3, 5),
        )
    )
    assert [(channel.nodes, channel.readers) for channel in plan.channels] == [
        ((0,), ("a0",)),
        ((2, 4), ("a1",)),
        ((3, 5), ("driver",)),
        ((6,), ("driver",)),
    ]
    assert body(plan, "a0") == lines("""
        Read c0 -> s0
        Call a0.fwd(s0) -> s1, s2, s3, s4, s5 #1
        Write s1, s3 -> c1
        Write s2, s4 -> c2
        Free s0, s1, s2, s3, s4, s5
    """)
    assert body(plan, "driver").splitlines()[3:] == [
        "Read c2 -> s1, s2",
        "Read c3 -> s3",
        "Output s3, s1, s2",
    ]


def test_an_actor_whose_node_nobody_knows_is_refused_by_name():
    built = graph(
        input_value(0), call(1, "a0", 0), call(2, "a1", 1), call(3, "a1", 2), outputs=(3,)
    )
    with pytest.raises(
        PlacementError, match=r"Stage\.fwd \(pipeline\.py:3\) .* on a node nobody knows"
    ) as caught:
        place(built, {"a0": HERE}, HERE, 10)
    error = caught.value
    assert (error.actor, error.location, error.node, error.site) == (
        "a1",
        None,
        "Stage.fwd",
        site(3),
    )


def test_channels_need_a_slot():
    built = graph(input_value(0), call(1, "a0", 0), outputs=(1,))
    with pytest.raises(ValueError, match="`channel_slots` must be a positive integer, found 0"):
        place(built, here(built), HERE, 0)


@given(cases(), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3))
def test_a_plan_computes_what_the_graph_says(
    case: Case, channel_slots: int, executions: int, window: int
):
    """Over bounded queues, pipelined, with nothing left over; calls in bind order."""
    plan = planned(case.graph, channel_slots)
    keys = [node.key for node in case.graph.nodes if isinstance(node, InputValue)]
    inputs = [{key: at * 100 + n for n, key in enumerate(keys)} for at in range(executions)]
    window = min(window, channel_slots)  # a driver that does not drain cannot run further ahead
    outputs, calls = interpret(plan, case.constants, inputs, window)
    assert outputs == [evaluate(case, each) for each in inputs]
    assert plan.is_multi == case.graph.is_multi
    for actor in case.graph.actors:
        bound = [
            node.id
            for node in case.graph.nodes
            if isinstance(node, MethodCall) and node.actor == actor.id
        ]
        assert calls[actor.id] == bound * executions


def test_scheduling_keeps_a_read_that_nothing_uses_and_frees_in_order_after_every_write():
    plan = Plan.from_text("""
        plan positional=2 keywords=[] returns=one
        actor a0 'A' ''
        channel c0 driver -> a0 ring node=0 slots=1
        channel c1 driver -> a0 ring node=1 slots=1
        channel c2 a0 -> driver ring node=0 slots=1
        channel c3 a0 -> driver ring node=2 slots=1
        program driver
          Input 0 -> s0
          Input 1 -> s1
          Write s1 -> c1
          Write s0 -> c0
          Read c2 -> s2
          Read c3 -> s3
          Output s3
        program a0
          Read c1 -> s1
          Read c0 -> s2
          Call a0.f(s2) -> s0 #2
          Write s0 -> c3
          Write s2 -> c2
    """)
    scheduled = schedule(plan)
    scheduled.check()
    assert body(scheduled, "a0") == lines("""
        Read c0 -> s2
        Write s2 -> c2
        Call a0.f(s2) -> s0 #2
        Write s0 -> c3
        Free s0, s2
        Read c1 -> s1
        Free s1
    """)


def test_passes_check_what_they_are_given():
    built = graph(input_value(0), call(1, "a0", 0), outputs=(1,))
    plan = planned(built)
    broken = replace(plan, channels=plan.channels[:1])
    with pytest.raises(InternalError):
        schedule(broken)
    with pytest.raises(InternalError):
        simulate(broken)


# --- simulate -----------------------------------------------------------------------------------

CROSSED = Plan.from_text("""
    plan positional=1 keywords=[] returns=one
    actor a0 'Left' ''
    actor a1 'Right' ''
    channel c0 driver -> a0 a1 ring node=0 slots=10
    channel c1 a0 -> a1 ring node=1 slots=10
    channel c2 a1 -> driver a0 ring node=2 slots=10
    program driver
      Input * -> s0
      Write s0 -> c0
      Read c2 -> s1
      Output s1
    program a0
      Read c0 -> s0
      Read c2 -> s1
      Call a0.f(s0, s1) -> s2 #1
      Write s2 -> c1
    program a1
      Read c0 -> s0
      Read c1 -> s1
      Call a1.g(s0, s1) -> s2 #2
      Write s2 -> c2
""")


@pytest.mark.parametrize("run", [simulate, check_deadlock_free])
def test_two_actors_that_read_from_each_other_first_are_refused(run):
    with pytest.raises(DeadlockError) as caught:
        run(CROSSED)
    assert caught.value.programs == lines("""
        driver, in execution 0
              Input * -> s0
              Write s0 -> c0
           => Read c2 -> s1     waits for a1 (Right) to write c2
              Output s1
        a0 (Left), in execution 0
              Read c0 -> s0
           => Read c2 -> s1     waits for a1 (Right) to write c2
              Call a0.f(s0, s1) -> s2 #1
              Write s2 -> c1
        a1 (Right), in execution 0
              Read c0 -> s0
           => Read c1 -> s1     waits for a0 (Left) to write c1
              Call a1.g(s0, s1) -> s2 #2
              Write s2 -> c2
    """)
    assert str(caught.value).startswith(
        "the programs would wait for each other for ever: a0 (Left) waits for a1 (Right) at "
        "`Read c2 -> s1`, a1 (Right) waits for a0 (Left) at `Read c1 -> s1`. Bind the calls in an "
        "order in which every value is made before it is needed.\nprograms:\n  driver, in"
    )


def test_a_deadlock_names_the_values_by_where_they_were_bound():
    with pytest.raises(DeadlockError) as caught:
        simulate(CROSSED, executions=1, describe=lambda node: f"Stage.fwd (pipeline.py:{node})")
    assert "to write c2 (Stage.fwd (pipeline.py:2))" in str(caught.value)


def test_of_a_long_program_only_the_part_around_the_blocked_op_is_shown():
    program = CROSSED.program("a0")
    padding = [Call("a0", "pad", (), (), (100 + at,), 100 + at) for at in range(200)]
    long = Program("a0", (*padding[:100], *program.ops, *padding[100:]))
    with pytest.raises(DeadlockError) as caught:
        simulate(replace(CROSSED, programs=(CROSSED.programs[0], long, CROSSED.programs[2])))
    shown = caught.value.programs.split("\n")
    assert len(shown) < 40
    # Six ops on either side, and how many are left out.
    start = shown.index("      ... 95 ops")
    around = [f"      {op}" for op in long.ops[95:108]]
    around[6] = "   => Read c2 -> s1     waits for a1 (Right) to write c2"
    assert shown[start : start + 15] == ["      ... 95 ops", *around, "      ... 96 ops"]


LINE = graph(input_value(0), call(1, "a0", 0), call(2, "a1", 1), outputs=(2,), is_multi=False)


def test_a_driver_that_cannot_drain_blocks_on_full_channels():
    """Two channels of one slot and two calls hold few executions; the window wants more."""
    plan = planned(LINE, channel_slots=1)
    with pytest.raises(DeadlockError) as caught:
        simulate(plan, window=8, is_driver_draining=False)
    text = str(caught.value)
    assert "driver waits for a0 (Stage) at `Write s0 -> c0`" in text
    assert "=> Write s0 -> c0    waits for a0 (Stage) to read c0: all its slots are full" in text
    assert "=> Write s1 -> c2    waits for driver to read c2: all its slots are full" in text
    assert "driver, in execution 5" in text
    assert "a1 (Stage), in execution 1" in text
    # The same plan, window and channels, with a driver that drains.
    assert simulate(plan, executions=20, window=8).duration > 0
    # What the channels hold can be submitted without draining: one in each of three channels,
    # and one in the hands of each of two actors.
    simulate(plan, executions=20, window=5, is_driver_draining=False)
    with pytest.raises(DeadlockError):
        simulate(plan, executions=20, window=6, is_driver_draining=False)


@st.composite
def ladders(draw: st.DrawFn) -> Case:
    """Calls that each take the one before, to and fro between few actors, and earlier ones too."""
    count = draw(st.integers(2, 7))
    nodes: list[Any] = [input_value(0)]
    actors: dict[str, str] = {}
    for at in range(1, count + 1):
        drawn = draw(st.sampled_from("xyz"))
        actor = actors.setdefault(drawn, f"a{len(actors)}")
        nodes.append(call(at, actor, at - 1, *draw(st.sets(st.integers(0, at - 1), max_size=2))))
    return Case(graph(*nodes, outputs=(count, draw(st.integers(1, count)))), {})


@st.composite
def shuffled(draw: st.DrawFn) -> tuple[Case, Plan]:
    """A plan whose actors run their ops in any order that their slots allow."""
    case = draw(st.one_of(ladders(), cases(max_calls=6, max_actors=3)))
    plan = place(case.graph, here(case.graph), HERE, draw(st.integers(1, 2)))
    programs = [plan.programs[0]]
    for program in plan.programs[1:]:
        # With all reads first, as placed, an actor that is visited twice often gets stuck.
        is_shuffled = draw(st.booleans())
        waiting = list(draw(st.permutations(program.ops)) if is_shuffled else program.ops)
        filled: set[int] = set()
        ops: list[Op] = []
        while waiting:
            op = next(op for op in waiting if filled.issuperset(op.used()))
            waiting.remove(op)
            filled.update(op.made())
            ops.append(op)
        programs.append(Program(program.process, tuple(ops)))
    return case, replace(plan, programs=tuple(programs))


def is_refused(plan: Plan, **options: Any) -> bool:
    try:
        simulate(plan, **options)
    except DeadlockError as error:
        refusal = error
    else:
        return False
    assert "=>" in (refusal.programs or "")
    assert " waits for " in refusal.message
    return True


def is_stuck(case: Case, plan: Plan, executions: int, window: int) -> bool:
    inputs: list[dict[Any, Any]] = [defaultdict(int) for _ in range(executions)]
    try:
        interpret(plan, case.constants, inputs, window)
    except StuckError:
        return True
    return False


@given(shuffled())
def test_simulate_says_no_exactly_when_the_programs_get_stuck(made: tuple[Case, Plan]):
    case, plan = made
    expected = is_stuck(case, plan, executions=6, window=1)
    assert is_refused(plan) == expected
    assert is_refused(plan, executions=1) == expected, "one execution decides"
    assert is_refused(plan, executions=12, window=3) == expected


@given(shuffled())
def test_scheduling_gives_one_order_whatever_it_is_given(made: tuple[Case, Plan]):
    case, plan = made
    slots = plan.channels[0].slots
    assert schedule(plan) == schedule(place(case.graph, here(case.graph), HERE, slots))
    check_deadlock_free(schedule(plan))


@given(shuffled(), st.integers(1, 8))
def test_so_it_does_with_a_driver_that_does_not_drain(made: tuple[Case, Plan], window: int):
    case, plan = made
    executions = 10
    refused = is_refused(plan, executions=executions, window=window, is_driver_draining=False)
    assert refused == is_stuck(case, plan, executions, window)


@given(cases(), st.integers(1, 3), st.integers(1, 5), st.sampled_from([None, 1, 2]))
def test_the_timeline_is_one_that_could_happen(
    case: Case, channel_slots: int, executions: int, window: int | None
):
    plan = planned(case.graph, channel_slots)
    simulation = simulate(plan, executions=executions, window=window)
    assert simulation.plan is plan
    assert simulation.executions == executions
    ops = {program.process: program.ops for program in plan.programs}
    spans = {(span.process, span.op, span.execution): span for span in simulation.timeline}
    assert len(spans) == len(simulation.timeline)
    assert set(spans) == {
        (process, op, execution)
        for process, each in ops.items()
        for op in range(len(each))
        for execution in range(executions)
    }
    written: dict[tuple[str, int], float] = {}
    read: dict[tuple[str, int], float] = defaultdict(float)
    for (process, op, execution), span in spans.items():
        at = ops[process][op]
        assert span.end - span.start == pytest.approx(at.cost)
        if isinstance(at, Write):
            written[at.channel, execution] = span.end
        if isinstance(at, Read):
            read[at.channel, execution] = max(read[at.channel, execution], span.end)
    done: dict[int, float] = {}
    for (process, op, execution), span in spans.items():
        at = ops[process][op]
        if isinstance(at, Read):
            assert span.start >= written[at.channel, execution]
        if isinstance(at, Write) and execution >= channel_slots:
            assert span.start >= read[at.channel, execution - channel_slots]
        if isinstance(at, Output):
            done[execution] = span.end
    if window is not None:
        for (process, _, execution), span in spans.items():
            if process == DRIVER and execution >= window:
                assert span.start >= done[execution - window]
    for program in plan.programs[1:]:
        own = [span for span in simulation.timeline if span.process == program.process]
        assert all(a.end <= b.start for a, b in pairwise(own))
        assert [(span.execution, span.op) for span in own] == sorted(
            (span.execution, span.op) for span in own
        )
    assert simulation.duration == max(span.end for span in simulation.timeline)


def spans_of(simulation: Simulation, process: str, op: int) -> list[tuple[float, float]]:
    return [
        (span.start, span.end)
        for span in simulation.timeline
        if (span.process, span.op) == (process, op)
    ]


@pytest.mark.parametrize("slow", ["a0", "a1"])
def test_a_write_waits_for_the_slowest_reader(slow: str):
    plan = planned(
        graph(input_value(0), call(1, "a0", 0), call(2, "a1", 0), outputs=(1, 2)), channel_slots=2
    )
    costs = Costs({("driver", 1): 1.0, (slow, 0): 1.0, (slow, 1): 10.0})
    simulation = simulate(plan, costs, executions=6)
    reads = spans_of(simulation, slow, 0)
    writes = spans_of(simulation, DRIVER, 1)
    assert [end for _, end in reads] == [2.0, 13.0, 24.0, 35.0, 46.0, 57.0]
    assert [start for start, _ in writes] == [0.0, 1.0, 2.0, 13.0, 24.0, 35.0]
    driver = [(span.execution, span.op) for span in simulation.timeline if span.process == DRIVER]
    assert driver == sorted(driver)


def test_waking_up_takes_time_after_a_wait_and_no_time_without():
    plan = planned(LINE, channel_slots=1)
    write, read = ("driver", 1), ("a0", 0)
    each = {write: 10.0}

    def reads(waking: float) -> list[tuple[float, float]]:
        costs = Costs({**each, ("a0", 1): 25.0}, {read: waking})
        return spans_of(simulate(plan, costs, executions=2), *read)

    assert reads(0.0) == [(10.0, 10.0), (35.0, 35.0)]
    assert reads(3.0) == [(13.0, 13.0), (38.0, 38.0)]  # the second did not wait
    assert reads(-4.0) == [(6.0, 6.0), (31.0, 31.0)]
    assert reads(-40.0)[0] == (0.0, 0.0)  # never before its own thread is there
    costs = Costs({**each, ("a0", 1): 25.0}, {write: 3.0})
    starts = [start for start, _ in spans_of(simulate(plan, costs, executions=3), *write)]
    assert starts == [0.0, 10.0, 38.0]  # the third waits for the second read, at 35


def test_a_full_channel_names_the_readers_that_are_late():
    """One reader has left the slot, the other never comes."""
    calls = call(1, "a0", 0), call(2, "a1", 0)
    text = str(planned(graph(input_value(0), *calls, outputs=(1, 2)), channel_slots=1))
    before, _, body = text.rpartition("  Read c0 -> s0\n")
    late = body.replace("fwd(s0)", "fwd()").replace("Free s0, s1", "Read c0 -> s0")
    plan = Plan.from_text(before + late)
    with pytest.raises(DeadlockError) as raised:
        simulate(plan, executions=9, window=9, is_driver_draining=False)
    (blocked,) = [line for line in raised.value.programs.split("\n") if "=> Write s0" in line]
    assert "a1 (Stage)" in blocked
    assert "a0 (Stage)" not in blocked


@pytest.mark.parametrize("wrong", [{"executions": 0}, {"window": 0}])
def test_simulate_wants_at_least_one(wrong):
    with pytest.raises(ValueError, match=f"`{next(iter(wrong))}` must be a positive integer"):
        simulate(planned(LINE), **wrong)


def test_a_large_graph_goes_through_all_passes():
    """Long, wide and with much on one actor; nothing here recurses or takes the square of it."""
    count = 5_000
    nodes = [input_value(0)]
    nodes += [call(at, f"a{at % 3}", at - 1, at // 2) for at in range(1, count)]
    built = graph(*nodes, outputs=(count - 1, count // 2))
    simulation = compile_graph(built, here(built), HERE, 2)
    assert sum(isinstance(op, Call) for p in simulation.plan.programs for op in p.ops) == count - 1
