# SPDX-License-Identifier: Apache-2.0
"""The order of rendezvous: it cannot deadlock, and plans that can are refused."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.compiler import order
from rcg.compiler.place import place
from rcg.compiler.schedule import schedule, unordered
from rcg.compiler.simulate import Costs, simulate
from rcg.errors import DeadlockError
from rcg.ir.graph import Graph
from rcg.ir.ids import DRIVER
from rcg.ir.nodes import InputValue, MethodCall, Node, NodeArg, Part, TensorHint
from rcg.ir.ops import Build, Call, Collective, Copy, Free, Op, Read, Write
from rcg.ir.plan import Plan
from tests.unit.graphs_by_hand import HERE, call, graph, here, input_value, planned, rank, site
from tests.unit.random_graphs import Case, StuckError, cases, evaluate, interpret, is_meeting, swaps


def placed(graph: Graph, channel_slots: int = 4) -> Plan:
    return place(graph, here(graph), HERE, channel_slots)


def inputs_of(case: Case, executions: int) -> list[dict[Any, Any]]:
    keys = [node.key for node in case.graph.nodes if isinstance(node, InputValue)]
    return [{key: at * 100 + n for n, key in enumerate(keys)} for at in range(executions)]


@given(cases(max_actors=5, has_tensors=True), st.integers(1, 3), st.integers(1, 4))
def test_every_graph_runs_and_computes_what_it_says(case: Case, slots: int, executions: int):
    placed(case.graph, slots).check()
    plan = planned(case.graph, slots)
    plan.check()
    simulate(plan, executions=executions)
    inputs = inputs_of(case, executions)
    outputs, _ = interpret(plan, case.constants, inputs)
    assert outputs == [evaluate(case, each) for each in inputs]


@given(cases(max_actors=5, has_tensors=True))
def test_scheduling_is_idempotent_loses_nothing_and_keeps_calls_in_bind_order(case: Case):
    before = placed(case.graph)
    after = schedule(before)
    assert schedule(after) == after
    for old, new in zip(before.programs, unordered(after).programs, strict=True):
        assert sorted(map(str, new.ops)) == sorted(map(str, old.ops))
        called = [op.node for op in new.ops if isinstance(op, Call)]
        assert called == sorted(called)


@given(cases(max_actors=5, has_tensors=True))
def test_rings_are_read_late_and_written_early(case: Case):
    plan = planned(case.graph)
    for program in plan.programs[1:]:
        ops = [op for op in program.ops if not isinstance(op, Free)]
        for at, op in enumerate(ops):
            if is_meeting(plan, op):
                continue
            if isinstance(op, Read | Build):
                # Until something uses its value, nothing else runs.
                later = ops[at + 1 :]
                first = next(n for n, each in enumerate(later) if {*op.made()} & {*each.used()})
                assert all(
                    isinstance(each, Read | Build) and not is_meeting(plan, each)
                    for each in later[:first]
                )
            if isinstance(op, Write):
                earlier = [
                    each
                    for each in ops[:at]
                    if not isinstance(each, Write) or is_meeting(plan, each)
                ]
                assert {*earlier[-1].made()} & {*op.slots}


@given(cases(max_actors=5, has_tensors=True))
def test_no_value_outlives_its_last_use_while_its_process_is_in_a_rendezvous(case: Case):
    plan = planned(case.graph)
    for program in plan.programs[1:]:
        ops = program.ops
        last_use: dict[int, int] = {}
        for at, op in enumerate(ops):
            if not isinstance(op, Free):
                last_use.update(dict.fromkeys((*op.used(), *op.made()), at))
        for op in ops:  # a container holds what it is built of
            if isinstance(op, Build):
                for slot in op.slots:
                    last_use[slot] = max(last_use[slot], last_use[op.out])
        for at, op in enumerate(ops):
            if is_meeting(plan, op):
                dead = {slot for slot, used_at in last_use.items() if used_at < at}
                assert dead == {slot for each in ops[:at] for slot in each.freed()}


def is_refused(plan: Plan, executions: int) -> bool:
    try:
        simulate(plan, executions=executions)
    except DeadlockError as error:
        refusal = error
    else:
        return False
    assert "=>" in (refusal.programs or "")
    assert " waits for " in refusal.message
    return True


def is_stuck(case: Case, plan: Plan, executions: int) -> bool:
    try:
        interpret(plan, case.constants, inputs_of(case, executions))
    except StuckError:
        return True
    return False


@given(cases(max_calls=8, max_actors=3, has_tensors=True), st.data())
def test_a_plan_with_two_rendezvous_swapped_is_refused_exactly_when_it_hangs(
    case: Case, data: st.DataObject
):
    found = swaps(planned(case.graph))
    if found:
        plan = data.draw(st.sampled_from(found))
        expected = is_stuck(case, plan, 3)
        assert is_refused(plan, 1) == expected, "one execution decides"
        assert is_refused(plan, 4) == expected


# --- orders -------------------------------------------------------------------------------------

SITE = site(7)
GLOO = TensorHint("gloo", SITE)


def test_workers_with_the_same_calls_have_the_same_schedule():
    """Gradients of three layers, each reduced as soon as it has been computed."""
    workers, layers = 3, 3
    nodes: list[Node] = []
    last = [0] * workers
    reduced: list[list[int]] = [[] for _ in range(workers)]
    for layer in range(layers):
        for worker in range(workers):
            nodes.append(call(len(nodes) + 1, f"a{worker}", last[worker], hint=GLOO))
            last[worker] = len(nodes)
        for worker in range(workers):
            node = len(nodes) + 1
            nodes.append(rank(node, worker, last[worker], collective=layer))
            reduced[worker].append(node)
    for worker in range(workers):
        nodes.append(call(len(nodes) + 1, f"a{worker}", *reduced[worker], hint=GLOO))
    ends = tuple(range(len(nodes) - workers + 1, len(nodes) + 1))
    plan = planned(graph(input_value(0), *nodes, outputs=ends))
    words = [[op.word for op in program.ops] for program in plan.programs[1:]]
    assert words[0] == words[1] == words[2]
    assert [word for word in words[0] if word in ("call", "allreduce")] == [
        *["call", "allreduce"] * layers,
        "call",
    ]
    for at, program in enumerate(plan.programs[1:]):
        assert [op.node for op in program.ops if isinstance(op, Collective)] == reduced[at]


def test_a_rendezvous_goes_before_a_call_that_could_start_as_early():
    """Ray prefers transfers, too: a1 can begin while a0 runs its second call."""
    calls = call(1, "a0", 0, hint=GLOO), call(2, "a0", 0), call(3, "a1", 1)
    built = graph(input_value(0), *calls, outputs=(2, 3))
    ops = [op.word for op in planned(built).program("a0").ops if not isinstance(op, Free)]
    assert ops == ["read", "call", "write", "call", "write"]


def count_pushes(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> float:
    """How many entries the scheduler puts into its heaps, per node."""
    count = 0
    push = order.heappush

    def counted(heap: Any, entry: Any) -> None:
        nonlocal count
        count += 1
        push(heap, entry)

    with monkeypatch.context() as patched:
        patched.setattr(order, "heappush", counted)
        schedule(placed(graph))
    return count / len(graph.nodes)


def fan(size: int) -> Graph:
    """All values are ready at once, and travel one by one between the same two actors."""
    given = (NodeArg(0),)
    nodes: list[Node] = [MethodCall(1, "a0", "f", given, (), size, SITE)]
    nodes += [Part(2 + at, 1, at, SITE, GLOO) for at in range(size)]
    nodes += [call(2 + size + at, "a1", 2 + at) for at in range(size)]
    return graph(input_value(0), *nodes, outputs=tuple(range(2 + size, 2 + 2 * size)))


def test_scheduling_is_near_linear(monkeypatch: pytest.MonkeyPatch):
    few, many = (count_pushes(fan(size), monkeypatch) for size in (200, 1600))
    assert many < 1.2 * few


# --- simulation ---------------------------------------------------------------------------------

CROSSED = """
plan positional=1 keywords=[] returns=list
actor a0 'Left' ''
actor a1 'Right' ''
actor a2 'Sink' ''
group g0 gloo a0 a1
group g1 gloo a0 a1 a2
channel c0 driver -> a0 a1 ring node=0 slots=4
channel c1 a0 -> a1 status node=3 slots=4
channel c2 a1 -> a0 status node=4 slots=4
channel c3 a0 -> a1 a2 tensor @g1 node=1 slots=4
channel c4 a2 -> driver ring node=5 slots=4
channel c5 a1 -> driver ring node=4 slots=4
program driver
  Input * -> s0
  Write s0 -> c0
  Read c4 -> s1
  Read c5 -> s2
  Output s1, s2
program a0
  Read c0 -> s0
  Call a0.grad(s0) -> s1 #1
  Write s1 -> c3
  AllReduce s1 (sum) @g0 tells c1 hears c2 -> s2 #3
program a1
  Read c0 -> s0
  Call a1.grad(s0) -> s1 #2
  AllReduce s1 (sum) @g0 tells c2 hears c1 -> s2 #4
  Read c3 -> s3
  Write s2 -> c5
program a2
  Read c3 -> s0
  Call a2.f(s0) -> s1 #5
  Write s1 -> c4
"""


def test_a_deadlock_says_who_waits_for_whom_to_do_what():
    with pytest.raises(DeadlockError) as refused:
        simulate(Plan.from_text(CROSSED), describe=lambda node: f"node {node}")
    text = refused.value.programs or ""
    assert "   => Write s1 -> c3    waits for a1 (Right) to receive c3 (node 1)" in text
    # The reader that came waits for the one that did not.
    assert "   => Read c3 -> s0     waits for a1 (Right) to receive c3 (node 1)" in text
    assert (
        "   => AllReduce s1 (sum) @g0 tells c2 hears c1 -> s2 #4  waits for a0 (Left) to enter "
        "allreduce @g0 (node 4)" in text
    )
    assert refused.value.message.startswith(
        "the programs would wait for each other for ever: a0 (Left) waits for a1 (Right) at "
        "`Write s1 -> c3`, a1 (Right) waits for a0 (Left) at `AllReduce s1"
    )


def test_all_processes_of_a_rendezvous_are_in_it_at_once():
    lines = CROSSED.split("\n")
    at = lines.index("  Read c3 -> s3")
    lines[at], lines[at - 1] = lines[at - 1], lines[at]
    plan = Plan.from_text("\n".join(lines))
    each = {("a0", 1): 5.0, ("a1", 1): 30.0, ("a0", 2): 2.0, ("a1", 2): 2.0, ("a2", 0): 2.0}
    each |= {("a0", 3): 7.0, ("a1", 3): 7.0}
    found = simulate(plan, Costs(each), executions=2)
    spans = {(each.process, each.op): each for each in found.timeline if each.execution == 0}
    for end in (("a0", 2), ("a1", 2), ("a2", 0)):
        assert (spans[end].start, spans[end].end) == (30.0, 32.0)
    for end in (("a0", 3), ("a1", 3)):
        assert (spans[end].start, spans[end].end) == (32.0, 39.0)
    # A reader that waited wakes up later, by what was measured there.
    waking = simulate(plan, Costs(each, {("a2", 0): 3.0, ("a1", 2): 9.0}), executions=1)
    starts = {(span.process, span.op): span.start for span in waking.timeline}
    assert [starts[end] for end in (("a0", 2), ("a1", 2), ("a2", 0))] == [30.0, 30.0, 33.0]


@given(cases(max_actors=5, has_tensors=True), st.integers(1, 3), st.integers(1, 4))
def test_the_timeline_has_one_span_per_op_and_holds_all_sides(
    case: Case, slots: int, executions: int
):
    plan = planned(case.graph, slots)
    ops = {program.process: program.ops for program in plan.programs}
    found = simulate(plan, executions=executions)
    spans = {(each.process, each.op, each.execution): each for each in found.timeline}
    assert len(spans) == len(found.timeline) == executions * sum(map(len, ops.values()))
    meetings: dict[Any, list[Any]] = defaultdict(list)
    before: dict[str, float] = defaultdict(float)
    for span in found.timeline:
        op = ops[span.process][span.op]
        if is_meeting(plan, op):
            meetings[_name(op), span.execution].append((span, before[span.process]))
        if span.process != DRIVER:
            assert span.start >= before[span.process]
            before[span.process] = span.end
    for sides in meetings.values():
        came = max(at for _, at in sides)
        assert {span.start for span, _ in sides} == {came}
        assert len({span.process for span, _ in sides}) == len(sides) > 1


def _name(op: Op) -> Any:
    if isinstance(op, Collective):
        return frozenset((*op.tells, *op.hears))
    return (*op.channels_in, *op.channels_out)[0]


@given(cases(max_actors=5, has_tensors=True))
def test_what_is_sent_after_another_call_was_copied_before_it(case: Case):
    """A method may return what it keeps, and the next call change that."""
    plan = planned(case.graph)
    for program in plan.programs[1:]:
        made_at = {slot: at for at, op in enumerate(program.ops) for slot in op.made()}
        calls = [at for at, op in enumerate(program.ops) if op.is_call]
        for at, op in enumerate(program.ops):
            if isinstance(op, Write | Collective):
                for slot in op.slots:
                    is_late = any(made_at[slot] < call < at for call in calls)
                    assert is_late == isinstance(program.ops[made_at[slot]], Copy)
            if isinstance(op, Copy):
                assert not any(made_at[op.slot] < call < at for call in calls)
                users = [each for each in program.ops if op.out in each.used()]
                assert any(isinstance(each, Write | Collective) for each in users)
