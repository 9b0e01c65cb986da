# SPDX-License-Identifier: Apache-2.0
"""Graphs with collectives and communicators, as data: which are right, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rcg.errors import GraphError
from rcg.ir.channels import ActorSpec
from rcg.ir.graph import Graph
from rcg.ir.nodes import (
    CollectiveCall,
    CommunicatorSpec,
    InputValue,
    MethodCall,
    NodeArg,
    Part,
    Site,
    TensorHint,
    driver_edges,
    group_members,
    remote_readers,
)


def site(line: int) -> Site:
    return Site("/home/me/pipeline.py", line)


def call(id: int, actor: str, *upstream: int, num_returns: int = 1) -> MethodCall:
    args = tuple(NodeArg(node) for node in upstream)
    return MethodCall(id, actor, "f", args, (), num_returns, site(id + 1))


def rank(id: int, rank: int, *args: int, **changes: Any) -> CollectiveCall:
    fields: dict[str, Any] = {
        "collective": 0,
        "actor": f"a{rank}",
        "kind": "allreduce",
        "num_returns": 1,
        "reduction": "sum",
        "root": None,
        "communicates": TensorHint("gloo", site(4)),
        "site": site(4),
    }
    return CollectiveCall(id=id, rank=rank, args=args, **{**fields, **changes})


ACTORS = tuple(ActorSpec(f"a{number}", "Stage", "") for number in range(2))
NODES = (
    InputValue(0, None, site(1)),
    call(1, "a0", 0),
    call(2, "a1", 0),
    rank(3, 0, 1),
    rank(4, 1, 2),
    call(5, "a1", 3, 4),
)


def graph(*nodes: Any, **changes: Any) -> Graph:
    fields: dict[str, Any] = {
        "nodes": nodes,
        "outputs": (len(nodes) - 1,),
        "is_multi": True,
        "actors": ACTORS,
        "num_positional": 1,
        "keywords": (),
    }
    return Graph(**{**fields, **changes})


def test_a_right_one() -> None:
    made = graph(*NODES)
    assert made.describe(3) == "allreduce of Stage (pipeline.py:4)"
    assert [made.actor_of(node.id) for node in made.nodes] == [None, "a0", "a1", "a0", "a1", "a1"]
    assert remote_readers(made) == [(), (), (), ("a1",), (), ()]


def test_all_ranks_are_reached_if_one_is_used() -> None:
    assert graph(*NODES, outputs=(3,), nodes=NODES[:5]).outputs == (3,)
    with pytest.raises(GraphError, match=r"allreduce of Stage .* does not reach an output"):
        graph(*NODES[:5], outputs=(1, 2))


def test_parts_of_a_rank() -> None:
    inputs = (InputValue(0, None, site(1)), *(call(n, f"a{(n - 1) // 2}", 0) for n in range(1, 5)))
    ranks = (rank(5, 0, 1, 2, num_returns=2), rank(6, 1, 3, 4, num_returns=2))
    made = graph(*inputs, *ranks, Part(7, 6, 1, site(4)))
    assert made.describe(7) == "allreduce of Stage[1] (pipeline.py:4)"
    assert made.actor_of(7) == "a1"
    with pytest.raises(GraphError, match="all 2 values of allreduce of Stage"):
        graph(*inputs, *ranks)
    with pytest.raises(GraphError, match="does not return several values"):
        graph(*NODES[:5], Part(5, 4, 0, site(4)))


def test_a_member_gives_one_value() -> None:
    several = replace(NODES[1], num_returns=2)
    with pytest.raises(GraphError, match=r"allreduce of Stage .* takes all 2 values of Stage.f"):
        graph(NODES[0], several, *NODES[2:])


def test_ranks_of_a_broadcast_may_only_receive() -> None:
    first = rank(2, 0, 1, kind="broadcast", reduction=None, root=0)
    second = rank(3, 1, kind="broadcast", reduction=None, root=0)
    assert graph(*NODES[:2], first, second).actors == ACTORS
    with pytest.raises(GraphError, match="gives 1 tensors and takes 0"):
        graph(*NODES[:2], *(replace(node, root=1) for node in (first, second)))


def changed(**changes: Any) -> Callable[[], Graph]:
    """The graph with both ranks changed."""
    return lambda: graph(
        *[replace(node, **changes) if node.id in (3, 4) else node for node in NODES]
    )


def one_changed(**changes: Any) -> Callable[[], Graph]:
    return lambda: graph(*[replace(node, **changes) if node.id == 4 else node for node in NODES])


MINE = TensorHint("Mine", site(4), communicator="k0")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (changed(kind="scan"), "there is no collective 'scan'"),
        (changed(kind="allgather"), "has the reduction 'sum'"),
        (changed(reduction=None), "has the reduction None"),
        (changed(root=0), "has 2 ranks and the root 0"),
        (changed(kind="reduce"), "has 2 ranks and the root None"),
        (changed(kind="reduce", root=2), "has 2 ranks and the root 2"),
        (changed(num_returns=0), "gives 0 tensors"),
        (changed(num_returns=2), "gives 2 tensors and takes 1"),
        (changed(collective=1), "numbered from 0 in creation order"),
        (changed(args=()), "gives 1 tensors and takes 0"),
        (one_changed(rank=0), r"must be 0 to 1 in the order of their nodes, found \[0, 0\]"),
        (one_changed(actor="a0"), "has an actor twice"),
        (one_changed(actor="a7"), "the actor 'a7', which the graph does not list"),
        (one_changed(args=(1,)), "takes Stage.f .*, which is not made by its actor"),
        (one_changed(args=(0,)), "takes InputNode .*, which is not made by its actor"),
        (one_changed(reduction="max"), "do not agree on its reduction: 'sum' and 'max'"),
        (one_changed(kind="scan"), "do not agree on its kind"),
        (one_changed(num_returns=2), "do not agree on its num_returns"),
        (one_changed(root=1), "do not agree on its root"),
        (one_changed(communicates=MINE), "do not agree on its communicates"),
        (changed(communicates=MINE), "uses the communicator k0, which the graph does not list"),
    ],
)
def test_wrong_collectives(make: Callable[[], Graph], why: str) -> None:
    with pytest.raises(GraphError, match=why) as caught:
        make()
    if caught.value.node is not None:
        assert re.search(r"pipeline\.py:\d", str(caught.value))


def with_communicator(*members: str, const: str = "k0") -> Graph:
    nodes = [replace(node, communicates=MINE) if node.id in (3, 4) else node for node in NODES]
    return graph(*nodes, communicators=(CommunicatorSpec(const, "Mine", members),))


def test_communicators() -> None:
    assert with_communicator("a0", "a1").communicators[0].const == "k0"
    with pytest.raises(GraphError, match=r"to match the custom communicator group: .* has 2 ranks"):
        with_communicator("a0")
    with pytest.raises(GraphError, match="is not rank 0 of the communicator k0"):
        with_communicator("a1", "a0")
    with pytest.raises(GraphError, match="each of its actors once, found a0, a0"):
        with_communicator("a0", "a0")
    with pytest.raises(GraphError, match="each of its actors once, found a0, a9"):
        with_communicator("a0", "a9")
    with pytest.raises(GraphError, match="does not list"):
        with_communicator("a0", "a1", const="k1")
    twice = (CommunicatorSpec("k0", "Mine", ("a0", "a1")),) * 2
    with pytest.raises(GraphError, match="k0 is listed twice"):
        graph(*NODES, communicators=twice)


def test_edges_of_the_driver() -> None:
    gloo = TensorHint("gloo", site(9))
    nodes = [replace(node, hint=gloo) for node in NODES]
    assert driver_edges(graph(*nodes)) == [0, 5]
    assert driver_edges(graph(*nodes, outputs=(3, 5, 3))) == [0, 3, 5]
    calm = [replace(node, hint=TensorHint("auto", site(9))) for node in NODES]
    assert driver_edges(graph(*calm)) == []


def test_members_of_groups() -> None:
    assert group_members(graph(*NODES)) == {"a0": 3, "a1": 4}
    calls = (NODES[0], call(1, "a0", 0), call(2, "a1", 1))
    for transport in ("auto", "shm"):
        hint = TensorHint(transport, site(9))
        assert group_members(graph(calls[0], replace(calls[1], hint=hint), calls[2])) == {}
    gloo = TensorHint("gloo", site(9))
    assert group_members(graph(calls[0], replace(calls[1], hint=gloo), calls[2])) == {
        "a0": 1,
        "a1": 1,
    }
    # The driver is no member, so neither its inputs nor outputs make one.
    assert group_members(graph(replace(calls[0], hint=gloo), *calls[1:])) == {}
    assert group_members(graph(*calls[:2], replace(calls[2], hint=gloo))) == {}
