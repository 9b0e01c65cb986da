# SPDX-License-Identifier: Apache-2.0
"""Where tensors travel: channels of hinted values, groups, and the ops of collectives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.compiler.place import place
from rcg.errors import PlacementError
from rcg.ir.channels import STATUS, TENSOR, ChannelSpec, memory_sources
from rcg.ir.graph import Graph
from rcg.ir.nodes import (
    CollectiveCall,
    CommunicatorSpec,
    InputValue,
    Part,
    TensorHint,
    upstream_of,
)
from rcg.ir.ops import Collective
from rcg.ir.plan import Plan
from tests.unit.graphs_by_hand import call, graph, rank, site
from tests.unit.random_graphs import Case, cases

HERE = "node-1"
SITE = site(7)


def hint(transport: str = "gloo", **more: Any) -> TensorHint:
    return TensorHint(transport, SITE, **more)


def ranks(first: int, number: int, *of: tuple[str, Any], **more: Any) -> list[CollectiveCall]:
    """The ranks of a collective: the actor and the nodes of the tensors of each."""
    return [
        rank(
            first + at,
            at,
            *(args if isinstance(args, tuple) else (args,)),
            collective=number,
            actor=actor,
            **more,
        )
        for at, (actor, args) in enumerate(of)
    ]


def placed(graph: Graph) -> Plan:
    plan = place(graph, {actor.id: HERE for actor in graph.actors}, HERE, 4)
    plan.check()
    return plan


def planned(*nodes: Any, communicators: Any = ()) -> Plan:
    """The plan of a graph that returns what none of its nodes takes."""
    taken = {each for node in nodes for each in upstream_of(node)}
    returned = tuple(
        node.id for node in nodes if node.id not in taken and getattr(node, "num_returns", 1) == 1
    )
    return placed(graph(INPUT, *nodes, outputs=returned, communicators=communicators))


def channels(plan: Plan) -> list[str]:
    """The channels that do not come from the driver, without their ids and slots."""
    return [
        str(channel).replace(" slots=4", "").split(" ", 2)[2]
        for channel in plan.channels
        if channel.writer != "driver"
    ]


def groups(plan: Plan) -> list[str]:
    return [str(group).removeprefix("group ") for group in plan.groups]


INPUT = InputValue(0, None, SITE)


# --- edges --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, "a0 -> a1 ring node=1"),
        (hint("auto"), "a0 -> a1 ring node=1"),
        (hint("shm"), "a0 -> a1 ring node=1"),
        (hint("shm", device="cuda"), "a0 -> a1 ring node=1 device=cuda"),
        # What these two say is about tensors that a communicator carries.
        (hint("shm", is_static_shape=True, is_direct_return=True), "a0 -> a1 ring node=1"),
        (hint("gloo"), "a0 -> a1 tensor @g0 node=1"),
        (hint("mine", device="cuda"), "a0 -> a1 tensor @g0 node=1 device=cuda"),
        (
            hint("gloo", is_static_shape=True, is_direct_return=True),
            "a0 -> a1 tensor @g0 node=1 static direct",
        ),
    ],
)
def test_a_hint_decides_how_a_value_travels(given: TensorHint | None, expected: str):
    plan = placed(graph(INPUT, call(1, "a0", 0, hint=given), call(2, "a1", 1), outputs=(2,)))
    assert channels(plan) == [expected, "a1 -> driver ring node=2"]
    assert [group.backend for group in plan.groups] == (
        [given.transport] if given is not None and "tensor" in expected else []
    )


@given(cases(), st.data())
def test_a_hint_that_changes_nothing_changes_no_plan(case: Case, data: st.DataObject):
    same = st.sampled_from([None, hint("auto"), hint("shm"), hint("auto", is_static_shape=True)])
    nodes = tuple(replace(node, hint=data.draw(same)) for node in case.graph.nodes)
    assert placed(replace(case.graph, nodes=nodes)) == placed(case.graph)


def test_the_driver_reads_and_writes_rings_beside_the_tensor_channel():
    built = graph(
        InputValue(0, None, SITE, hint=hint()),
        call(1, "a0", 0, hint=hint(device="cpu")),
        call(2, "a1", 1, 0),
        outputs=(1, 2),
    )
    plan = placed(built)
    assert [str(each) for each in plan.channels] == [
        "channel c0 driver -> a0 a1 ring node=0 slots=4",
        "channel c1 a0 -> driver ring node=1 slots=4 device=cpu",
        "channel c2 a0 -> a1 tensor @g0 node=1 slots=4 device=cpu",
        "channel c3 a1 -> driver ring node=2 slots=4",
    ]
    assert [str(op) for op in plan.program("a0").ops if op.word == "write"] == [
        "Write s1 -> c1",
        "Write s1 -> c2",
    ]


def test_values_whose_tensors_arrive_on_other_devices_travel_apart():
    hints = [hint("shm", device="cpu"), None, hint("auto", device="cpu"), hint("shm")]
    parts = [Part(2 + at, 1, at, SITE, hint=each) for at, each in enumerate(hints)]
    plan = planned(call(1, "a0", 0, num_returns=4), *parts, call(6, "a1", 2, 3, 4, 5))
    assert channels(plan)[:2] == ["a0 -> a1 ring node=2, 4 device=cpu", "a0 -> a1 ring node=3, 5"]


def test_each_part_of_a_call_has_a_tensor_channel_of_its_own():
    parts = [Part(2 + at, 1, at, SITE, hint=hint()) for at in range(2)]
    made = call(1, "a0", 0, num_returns=2, hint=hint("shm"))
    plan = planned(made, *parts, call(4, "a1", 2, 3))
    assert channels(plan)[:2] == ["a0 -> a1 tensor @g0 node=2", "a0 -> a1 tensor @g0 node=3"]


# --- groups -------------------------------------------------------------------------------------

MINE = CommunicatorSpec("k5", "mine", ("a2", "a0", "a1"))
CHOSEN = hint("mine", communicator="k5")
MADE = [call(1 + at, f"a{at}", 0) for at in range(2)]

GROUPS = {
    "readers of one tensor form a group": (
        [call(1, "a1", 0, hint=hint()), call(2, "a0", 1), *(call(at, "a2", 1) for at in (3, 4))],
        ["g0 gloo a0 a1 a2"],
        ["a1 -> a0 a2 @g0"],
    ),
    "edges share one of all their actors": (
        [
            *(call(1 + at, f"a{at}", at, hint=hint()) for at in range(2)),
            call(3, "a2", 2, hint=hint("mine")),
            call(4, "a3", 3),
        ],
        ["g0 gloo a0 a1 a2", "g1 mine a2 a3"],
        ["a0 -> a1 @g0", "a1 -> a2 @g0", "a2 -> a3 @g1"],
    ),
    # As in Ray, an edge uses the communicator of a collective that has both of its actors.
    "an edge uses one that includes both ends": (
        [
            *(call(1 + at, f"a{at}", at, hint=hint()) for at in range(2)),
            *ranks(3, 0, ("a1", 2), ("a0", 1)),
            call(5, "a2", 2),
        ],
        ["g0 gloo a1 a0", "g1 gloo a1 a2"],
        ["a0 -> a1 @g0", "a1 -> a2 @g1", "#3 @g0", "#4 @g0"],
    ),
    "collectives over the same actors in the same order share one": (
        [
            *MADE,
            *ranks(3, 0, ("a0", 1), ("a1", 2)),
            *ranks(5, 1, ("a1", 2), ("a0", 1)),
            *ranks(7, 2, ("a0", 3), ("a1", 4)),
            *ranks(9, 3, ("a0", 3), ("a1", 4), communicates=hint("mine")),
        ],
        ["g0 gloo a0 a1", "g1 gloo a1 a0", "g2 mine a0 a1"],
        [f"#{3 + at} @{group}" for at, group in enumerate(("g0", "g0", "g1", "g1", "g0", "g0"))]
        + ["#9 @g2", "#10 @g2"],
    ),
    "a broadcast uses one of exactly its ends in any order": (
        [
            call(1, "a0", 0, hint=hint()),
            *(call(2 + at, f"a{1 + at}", 1) for at in range(2)),
            call(4, "a3", 0),
            *ranks(5, 0, ("a3", 4), ("a2", 3), ("a1", 2), ("a0", 1)),
            *ranks(9, 1, ("a2", 3), ("a0", 1), ("a1", 2)),
        ],
        ["g0 gloo a3 a2 a1 a0", "g1 gloo a2 a0 a1"],
        ["a0 -> a1 a2 @g1", *(f"#{5 + at} @g{int(at > 3)}" for at in range(7))],
    ),
    "a user's communicator is one with its ranks": (
        [
            *(call(1 + at, f"a{at}", at, hint=CHOSEN) for at in range(2)),
            call(3, "a2", 2),
            call(4, "a1", 0, hint=hint("mine")),  # of the same backend, but not chosen for it
            call(5, "a2", 4),
            *ranks(6, 0, ("a2", 3), ("a0", 1), ("a1", 2), communicates=CHOSEN),
        ],
        ["g0 mine a2 a0 a1 by k5", "g1 mine a1 a2"],
        ["a0 -> a1 @g0", "a1 -> a2 @g0", "a1 -> a2 @g1", "#6 @g0", "#7 @g0", "#8 @g0"],
    ),
    "a user's communicator broadcasts to all its members": (
        [call(1, "a0", 0, hint=CHOSEN), call(2, "a1", 1), call(3, "a2", 1)],
        ["g0 mine a2 a0 a1 by k5"],
        ["a0 -> a1 a2 @g0"],
    ),
    "a user's communicator does not broadcast to some of them": (
        [call(1, "a0", 0, hint=CHOSEN), call(2, "a1", 1), call(3, "a2", 0)],
        ["g0 mine a2 a0 a1 by k5"],
        ["a0 -> a1 @g0"],
    ),
}


def users_of(plan: Plan) -> list[str]:
    """The group of each tensor channel, and of each rank of a collective."""
    edges = [
        f"{each.writer} -> {' '.join(each.readers)} @{each.group}"
        for each in plan.channels
        if each.kind == TENSOR
    ]
    ops = [op for program in plan.programs for op in program.ops if isinstance(op, Collective)]
    return edges + [f"#{op.node} @{op.group}" for op in sorted(ops, key=lambda op: op.node)]


@pytest.mark.parametrize(("nodes", "expected", "users"), GROUPS.values(), ids=GROUPS)
def test_groups(nodes: list[Any], expected: list[str], users: list[str]):
    is_mine = any(each.endswith("by k5") for each in expected)
    plan = planned(*nodes, communicators=(MINE,) if is_mine else ())
    assert groups(plan) == expected
    assert users_of(plan) == users


# --- collectives --------------------------------------------------------------------------------


def body(plan: Plan, process: str) -> list[str]:
    return [str(op) for op in plan.program(process).ops]


def test_each_rank_has_an_op_and_a_channel_for_its_status():
    plan = planned(
        *(call(1 + at, f"a{at}", 0) for at in range(3)),
        *ranks(4, 0, ("a2", 3), ("a0", 1), ("a1", 2)),
        call(7, "a1", 4, 6),
    )
    assert channels(plan) == [
        "a2 -> a0 a1 status node=4",
        "a2 -> a1 ring node=4",
        "a0 -> a1 a2 status node=5",
        "a0 -> driver ring node=5",
        "a1 -> a0 a2 status node=6",
        "a1 -> driver ring node=7",
    ]
    assert groups(plan) == ["g0 gloo a2 a0 a1"]
    ops = [next(op for op in body(plan, each) if "@" in op) for each in ("a0", "a1", "a2")]
    assert ops == [
        "AllReduce s1 (sum) @g0 tells c3 hears c1 c5 -> s2 #5",
        "AllReduce s1 (sum) @g0 tells c5 hears c1 c3 -> s2 #6",
        "AllReduce s1 (sum) @g0 tells c1 hears c3 c5 -> s2 #4",
    ]


def test_one_rank_alone_tells_nobody():
    plan = planned(call(1, "a0", 0), *ranks(2, 0, ("a0", 1)))
    assert body(plan, "a0")[2] == "AllReduce s1 (sum) @g0 -> s2 #2"
    assert channels(plan) == ["a0 -> driver ring node=2"]


def test_several_tensors_of_a_rank_are_several_results():
    plan = planned(
        *(call(1 + at, "a0", 0) for at in range(2)),
        call(3, "a1", 0, num_returns=2),
        *(Part(4 + at, 3, at, SITE) for at in range(2)),
        *ranks(6, 0, ("a0", (1, 2)), ("a1", (5, 4)), num_returns=2),
        Part(8, 6, 1, SITE, hint=hint()),
        call(9, "a1", 8),
    )
    assert "AllReduce s1, s2 (sum) @g0 tells c1 hears c2 -> s3, s4 #6" in body(plan, "a0")
    assert "AllReduce s2, s1 (sum) @g0 tells c2 hears c1 -> s3, s4 #7" in body(plan, "a1")
    assert "a0 -> a1 tensor @g0 node=8" in channels(plan)


def test_an_actor_may_do_nothing_but_receive():
    built = graph(
        INPUT,
        call(1, "a0", 0),
        *ranks(
            2, 0, ("a0", 1), ("a1", ()), kind="broadcast", reduction=None, root=0, hint=hint("shm")
        ),
        outputs=(3,),
    )
    plan = placed(built)
    assert body(plan, "a1") == ["Broadcast root 0 @g0 tells c2 hears c1 -> s0 #3", "Write s0 -> c3"]
    with pytest.raises(PlacementError, match=r"broadcast of Stage \(pipeline\.py:4\) runs on an"):
        place(built, {"a0": HERE}, HERE, 4)


def test_statuses_and_tensor_channels_bring_shared_memory():
    """A frame of either may hold buffers of its writer, or those that its writer was given."""
    specs = [
        ChannelSpec("c0", "a0", ("a1",), TENSOR, (1,), 4, "g0"),
        ChannelSpec("c1", "a1", ("a2",), STATUS, (2,), 4),
    ]
    assert memory_sources(["a0", "a1", "a2"], specs) == {
        "a0": (),
        "a1": ("a0",),
        "a2": ("a0", "a1"),
    }
    nodes = {"a0": "n1", "a1": "n0", "n0": "n0", "a2": "n0"}
    assert memory_sources(list(nodes), specs, nodes) == {
        "a0": (),
        "a1": ("n0",),
        "n0": (),
        "a2": ("a1", "n0"),
    }
