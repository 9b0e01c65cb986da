# SPDX-License-Identifier: Apache-2.0
"""Collectives as they are written: the graph they become, and everything that is wrong."""

from __future__ import annotations

import enum
import pickle
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rcg
from rcg.collective import ReduceOp, allgather, allreduce, broadcast, gather, reduce, reducescatter
from rcg.dag import CollectiveOutputNode, DAGNode, InputNode, MultiOutputNode
from rcg.dag.communicators import CREATE, DefaultCommunicator
from rcg.dag.lower import lower, unreached_calls
from rcg.errors import CommError, UnsupportedNodeError
from rcg.ir.graph import Graph
from rcg.ir.nodes import CollectiveCall, CommunicatorSpec, MethodCall, Part
from tests.unit.fake_actors import FakeActor, FakeCommunicator, Half, refusing

ALL = (allreduce, allgather, reducescatter, broadcast, reduce, gather)
A, B, C = (FakeActor(label, number) for number, label in enumerate(("Left", "Right", "Third")))


def graph_of(node: DAGNode, default: DefaultCommunicator = CREATE) -> Graph:
    return lower(node._record, default)[0]


def grads(*actors: FakeActor, inp: InputNode | None = None) -> list[Any]:
    """A node of each actor, under one input."""
    source = InputNode() if inp is None else inp
    return [actor.bind("grad", source) for actor in actors]


def ranks_of(graph: Graph) -> list[CollectiveCall]:
    return [node for node in graph.nodes if isinstance(node, CollectiveCall)]


# --- what is written becomes the graph


@pytest.mark.parametrize("collective", ALL, ids=repr)
def test_every_kind_has_a_node_for_each_actor_in_its_order(collective: Any) -> None:
    results = collective.bind(grads(B, A, C))
    assert all(type(node) is CollectiveOutputNode for node in results)
    graph = graph_of(MultiOutputNode(results))
    ranks = ranks_of(graph)
    assert [node.id for node in ranks] == list(graph.outputs)
    assert [graph.name(node.id) for node in ranks] == [
        f"{collective._kind} of {label}" for label in ("Right", "Left", "Third")
    ]
    assert [node.rank for node in ranks] == [0, 1, 2]
    assert {node.collective for node in ranks} == {0}
    assert {node.kind for node in ranks} == {collective._kind}
    assert [graph.nodes[node.args[0]].actor for node in ranks] == [node.actor for node in ranks]
    assert {node.communicates.transport for node in ranks} == {"auto"}
    has_op = collective in (allreduce, reducescatter, reduce)
    assert {node.reduction for node in ranks} == {"sum" if has_op else None}
    has_root = collective in (broadcast, reduce, gather)
    assert {node.root for node in ranks} == {0 if has_root else None}
    assert {node.num_returns for node in ranks} == {1}


class RaysReduceOp(enum.Enum):
    SUM = 0
    PRODUCT = 1
    MAX = 2
    MIN = 3
    AVG = 4


RaysReduceOp.__name__ = "ReduceOp"


@pytest.mark.parametrize("op", [*ReduceOp, *RaysReduceOp], ids=str)
@pytest.mark.parametrize("collective", [allreduce, reducescatter, reduce], ids=repr)
def test_operations_of_rcg_and_of_ray(collective: Any, op: Any) -> None:
    results = collective.bind(grads(A, B), op=op)
    assert ranks_of(graph_of(results[0]))[0].reduction == op.name.lower()


def test_one_result_that_is_used_brings_all_ranks_with_it() -> None:
    results = allreduce.bind(grads(A, B, C))
    dag = A.bind("step", results[0])
    graph = graph_of(dag)
    assert [node.actor for node in ranks_of(graph)] == ["a0", "a1", "a2"]
    assert [node.actor for node in graph.nodes if isinstance(node, MethodCall)] == [
        *("a0", "a1", "a2"),
        "a0",
    ]
    assert unreached_calls(dag._record) == []


def test_results_may_be_dropped() -> None:
    first, *_ = allreduce.bind(grads(A, B))
    del _
    assert len(ranks_of(graph_of(first))) == 2


def test_an_unreached_collective_is_reported() -> None:
    inp = InputNode()
    mine = grads(A, B, inp=inp)
    allreduce.bind(mine)
    (text,) = unreached_calls(mine[0]._record)[1:]
    assert text.startswith("allreduce (test_collectives.py:")


def test_chains_and_overlapping_groups() -> None:
    inp = InputNode()
    a, b, c = grads(A, B, C, inp=inp)
    left = allreduce.bind([a, b])
    right = reduce.bind([left[1], c], op=ReduceOp.MAX, root=1)
    graph = graph_of(MultiOutputNode([left[0], *right]))
    assert [(node.collective, node.kind, node.actor) for node in ranks_of(graph)] == [
        (0, "allreduce", "a0"),
        (0, "allreduce", "a1"),
        (1, "reduce", "a1"),
        (1, "reduce", "a2"),
    ]
    assert ranks_of(graph)[2].args == (ranks_of(graph)[1].id,)


def test_a_value_of_several_may_be_a_member() -> None:
    inp = InputNode()
    pair = A.bind("split", inp, num_returns=2)
    graph = graph_of(allreduce.bind([pair[1], *grads(B, inp=inp)])[0])
    assert isinstance(graph.nodes[ranks_of(graph)[0].args[0]], Part)


def test_several_tensors_of_an_actor() -> None:
    inp = InputNode()
    weights, biases = grads(A, B, inp=inp), grads(A, B, inp=inp)
    results = allreduce.bind([weights, biases])
    assert [[str(node)[:19] for node in of_actor] for of_actor in results] == [
        ["allreduce of Left[0", "allreduce of Left[1"],
        ["allreduce of Right[", "allreduce of Right["],
    ]
    graph = graph_of(MultiOutputNode([results[1][0], results[0][1]]))
    left, right = ranks_of(graph)
    assert (left.num_returns, right.num_returns) == (2, 2)
    assert [graph.nodes[value].actor for value in (*left.args, *right.args)] == [
        *("a0", "a0"),
        *("a1", "a1"),
    ]
    assert [(graph.nodes[node].call, graph.nodes[node].index) for node in graph.outputs] == [
        (right.id, 0),
        (left.id, 1),
    ]


def test_a_list_of_one_list_gives_a_list_as_in_ray() -> None:
    results = allreduce.bind([grads(A, B)])
    assert all(isinstance(node, CollectiveOutputNode) for node in results)


def test_a_member_of_a_broadcast_may_only_receive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rcg.cluster.is_actor_handle", lambda thing: isinstance(thing, FakeActor))
    (own,) = grads(B)
    results = broadcast.bind([A, own, C], root=1)
    graph = graph_of(MultiOutputNode(results))
    assert [(node.args, node.root) for node in ranks_of(graph)] == [((), 1), ((1,), 1), ((), 1)]
    assert [actor.label for actor in graph.actors] == ["Right", "Left", "Third"]


def test_hints_of_results() -> None:
    results = allreduce.bind(grads(A, B))
    results[1].with_tensor_transport("gloo", _static_shape=True)
    ranks = ranks_of(graph_of(MultiOutputNode(results)))
    assert ranks[0].hint is None
    assert (ranks[1].hint.transport, ranks[1].hint.is_static_shape) == ("gloo", True)


def test_a_collective_is_found_by_pickle() -> None:
    assert pickle.loads(pickle.dumps(allreduce)) is allreduce
    assert rcg.collective.allreduce is allreduce


# --- communicators


def test_a_communicator_of_the_users_gives_its_ranks() -> None:
    communicator = FakeCommunicator([A, B, C], ranks=[2, 0, 1])
    results = gather.bind(grads(A, B, C), root=0, transport=communicator)
    graph, bindings = lower(MultiOutputNode(results)._record)
    (spec,) = graph.communicators
    by_label = {actor.label: actor.id for actor in graph.actors}
    assert spec == CommunicatorSpec(
        spec.const, "FakeCommunicator", (by_label["Right"], by_label["Third"], by_label["Left"])
    )
    assert bindings.constants[spec.const] is communicator
    assert {node.communicates.communicator for node in ranks_of(graph)} == {spec.const}


def test_a_communicator_is_listed_once_however_often_it_is_used() -> None:
    inp = InputNode()
    communicator = FakeCommunicator([A, B])
    a, b = grads(A, B, inp=inp)
    a.with_tensor_transport(communicator)
    first = allreduce.bind([a, b], transport=communicator)
    second = allreduce.bind(first, transport=communicator)
    graph = graph_of(MultiOutputNode([*second, B.bind("take", a)]))
    assert len(graph.communicators) == 1


def test_the_default_communicator_serves_where_none_is_chosen() -> None:
    communicator = FakeCommunicator([A, B], ranks=[1, 0])
    default = DefaultCommunicator.of(communicator)
    results = allreduce.bind(grads(A, B))
    graph = graph_of(MultiOutputNode(results), default)
    assert [graph.name(node.id) for node in ranks_of(graph)] == [
        "allreduce of Right",
        "allreduce of Left",
    ]
    assert graph.communicators[0].backend == "FakeCommunicator"
    named = allreduce.bind(grads(A, B), transport="gloo")
    assert graph_of(named[0], default).communicators == ()


def test_the_default_communicator_must_have_the_actors() -> None:
    default = DefaultCommunicator.of(FakeCommunicator([A, B, C]))
    results = allreduce.bind(grads(A, B))
    with refusing("allreduce", "same set of actors as the collective", repr(C)):
        graph_of(results[0], default)


@pytest.mark.parametrize("transport", [None, "auto", "gloo"])
def test_without_a_default_communicator_one_must_be_chosen(transport: str | None) -> None:
    results = allreduce.bind(grads(A, B), transport=transport)
    words = "has no custom communicator specified", "_default_communicator when calling"
    with refusing("allreduce", *words):
        graph_of(results[0], DefaultCommunicator.of(None))
    chosen = allreduce.bind(grads(A, B), transport=FakeCommunicator([A, B]))
    graph_of(chosen[0], DefaultCommunicator.of(None))


def test_what_a_default_communicator_can_be() -> None:
    assert DefaultCommunicator.of("create") is CREATE
    with pytest.raises(ValueError, match="The only allowed string for default_communicator is"):
        DefaultCommunicator.of("gloo")
    with pytest.raises(ValueError, match="must be None, a string, or a Communicator") as caught:
        DefaultCommunicator.of(Half())
    assert "lacks allreduce, reducescatter, destroy" in str(caught.value)
    with pytest.raises(ValueError, match="ranks from 0 to 1"):
        DefaultCommunicator.of(FakeCommunicator([A, B], ranks=[1, 2]))


ACTORS = [FakeActor("Stage", number) for number in range(5)]


@given(st.data())
def test_whatever_the_order_of_lists_and_ranks(data: st.DataObject) -> None:
    """Results are in the user's order, nodes in that of ranks, and the root stays the user's."""
    members = data.draw(st.lists(st.sampled_from(ACTORS), min_size=1, unique=True))
    ranks = data.draw(st.permutations(range(len(members))))
    has_own = data.draw(st.booleans())
    position = data.draw(st.integers(0, len(members) - 1))
    used = data.draw(st.lists(st.sampled_from(range(len(members))), min_size=1, unique=True))
    communicator = FakeCommunicator(members, ranks) if has_own else None
    results = reduce.bind(grads(*members), root=position, transport=communicator)
    graph, bindings = lower(MultiOutputNode([results[each] for each in used])._record)
    nodes = ranks_of(graph)
    assert [node.rank for node in nodes] == list(range(len(members)))
    assert bindings.actors[nodes[nodes[0].root].actor] is members[position]
    assert [bindings.actors[graph.actor_of(node)] for node in graph.outputs] == [
        members[each] for each in used
    ]
    if has_own:
        assert [ranks[members.index(bindings.actors[node.actor])] for node in nodes] == list(
            range(len(members))
        )
    else:
        assert [bindings.actors[node.actor] for node in nodes] == members


# --- what is wrong


def duplicate(actor: FakeActor) -> list[Any]:
    (node,) = grads(actor)
    return [node, node]


def of_input(*, key: int | None) -> list[Any]:
    inp = InputNode()
    return [*grads(A, inp=inp), inp if key is None else inp[key]]


WRONG: dict[str, tuple[Any, ...]] = {
    "no list": (lambda: 3, "takes a list of nodes, got int"),
    "a node": (lambda: grads(A)[0], "takes a list of nodes, got ClassMethodNode"),
    "empty": (list, "Expected non-empty input list."),
    "no node": (lambda: [*grads(A), 3], "Expected all input nodes to be DAGNode, but got", "3]"),
    "the end of a DAG": (lambda: [MultiOutputNode(grads(A))], "the end of a DAG and not a value"),
    "twice the node": (
        lambda: duplicate(A),
        "Expected unique input nodes, but found duplicates: Left.grad (fake_actors.py:",
    ),
    "twice the actor": (
        lambda: grads(A, B, A),
        "Expected unique actor handles, but found duplicate actor handles from input nodes: "
        "Left.grad (fake_actors.py:",
    ),
    "the input": (
        lambda: of_input(key=None),
        "Expected an actor handle from the input node: InputNode (test_collectives.py:",
    ),
    "a part of the input": (
        lambda: of_input(key=0),
        "Expected an actor handle from the input node: InputNode[0]",
    ),
    "two inputs": (lambda: [*grads(A), *grads(B)], "come from different InputNodes"),
}


@pytest.mark.parametrize("collective", ALL, ids=repr)
@pytest.mark.parametrize("case", WRONG)
def test_wrong_lists(collective: Any, case: str) -> None:
    make, *words = WRONG[case]
    inputs = make()
    node = "MultiOutputNode" if case == "the end of a DAG" else collective._kind
    with refusing(node, *words):
        collective.bind(inputs)


def nested(*lists: tuple[FakeActor, ...]) -> list[list[Any]]:
    inp = InputNode()
    return [grads(*actors, inp=inp) for actors in lists]


WRONG_NESTS: dict[str, tuple[Any, ...]] = {
    "a node among lists": (lambda: [*nested((A,)), 3], "to be lists of nodes, but at 1 got 3"),
    "an empty list": (lambda: [[]], "Expected non-empty input list."),
    "an empty list among others": (
        lambda: [*nested((A,)), []],
        "Expected non-empty input list at index 1.",
    ),
    "no node": (
        lambda: [*nested((A, B)), [1, 2]],
        "Expected all input nodes to be DAGNode at list at index 1, but got [1, 2]",
    ),
    "twice the node": (
        lambda: [*nested((A, B)), duplicate(A)],
        "Expected unique input nodes at list at index 1, but found duplicates: Left.grad",
    ),
    "twice the actor": (
        lambda: nested((A, B), (B, B)),
        "Expected unique actor handles at list at index 1, but found duplicate actor handles",
    ),
    "the input": (
        lambda: [*nested((A, B)), [InputNode()]],
        "Expected an actor handle from the input node at list at index 1",
    ),
    "other lengths": (
        lambda: nested((A, B), (A,)),
        "same number of nodes. List at index 0 has length 2, but list at index 1 has length 1.",
    ),
    "other actors": (
        lambda: nested((A, B), (A, C)),
        "same set of actor handles. List at index 0 has Left.grad",
        "Third.grad",
    ),
    "another order": (
        lambda: nested((A, B), (B, A)),
        "same order of actor handles. List at index 0 has Left.grad",
        "at position 0",
    ),
}


@pytest.mark.parametrize("case", WRONG_NESTS)
def test_wrong_lists_of_lists(case: str) -> None:
    make, *words = WRONG_NESTS[case]
    inputs = make()
    with refusing("allreduce", *words):
        allreduce.bind(inputs)


@pytest.mark.parametrize("collective", [each for each in ALL if each is not allreduce], ids=repr)
def test_only_allreduce_takes_lists_of_lists(collective: Any) -> None:
    words = "Currently binding a nested list of dag nodes is only supported for allreduce"
    with refusing(collective._kind, words):
        collective.bind(nested((A, B), (A, B)))


@pytest.mark.parametrize("collective", [allreduce, reducescatter, reduce], ids=repr)
@pytest.mark.parametrize("op", ["sum", 0, None, enum.Enum("ReduceOp", "BAND").BAND], ids=repr)
def test_unexpected_operations(collective: Any, op: Any) -> None:
    with refusing(collective._kind, "Unexpected operation: ", repr(op), "ReduceOp.AVG"):
        collective.bind(grads(A, B), op=op)


@pytest.mark.parametrize("collective", [broadcast, reduce, gather], ids=repr)
@pytest.mark.parametrize("root", [-1, 2, True, None, "0", 0.0], ids=repr)
def test_roots_that_are_no_position(collective: Any, root: Any) -> None:
    words = "must be a position in its list, from 0 to 1"
    with refusing(collective._kind, words, repr(root)):
        collective.bind(grads(A, B), root=root)


def test_handles_where_they_mean_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rcg.cluster.is_actor_handle", lambda thing: isinstance(thing, FakeActor))
    with refusing("broadcast", "give a node of that actor", repr(A)):
        broadcast.bind([A, *grads(B)])
    with refusing("broadcast", "Expected unique actor handles", repr(A), "Left.grad"):
        broadcast.bind([*grads(A), A])
    words = "only in a broadcast", "to be DAGNode, but got", repr(B)
    for collective in ALL:
        if collective is not broadcast:
            with refusing(collective._kind, *words):
                collective.bind([*grads(A), B])


@pytest.mark.parametrize("collective", ALL, ids=repr)
def test_transports_that_cannot_be(collective: Any) -> None:
    names = "'auto', 'cuda_ipc', 'gloo', 'nccl' or an instance"
    for transport, words in (
        ("shm", ["'shm' is none: leave transport out, or give", "'gloo'"]),
        ("mpi", ["Invalid transport type: mpi", f"Transport must be one of {names}"]),
        (Half(), ["Invalid transport type", "Half lacks allreduce, reducescatter, destroy"]),
    ):
        with refusing(collective._kind, *words):
            collective.bind(grads(A, B), transport=transport)


@pytest.mark.parametrize("others", [(A,), (A, B, C), (A, C)], ids=repr)
def test_a_communicator_with_other_actors(others: tuple[FakeActor, ...]) -> None:
    words = "to match the custom communicator group", repr(A), repr(B), "FakeCommunicator"
    with refusing("allreduce", *words):
        allreduce.bind(grads(A, B), transport=FakeCommunicator(others))


def test_a_communicator_with_ranks_that_are_none() -> None:
    with refusing("allreduce", "the ranks from 0 to 1", "[0, 0]"):
        allreduce.bind(grads(A, B), transport=FakeCommunicator([A, B], ranks=[0, 0]))
    with refusing("allreduce", "lists an actor twice"):
        allreduce.bind(grads(A, B), transport=FakeCommunicator([A, FakeActor("Left", 0)], [0, 1]))


# The parameters of Ray's functions, in their order.
RAYS_PARAMETERS = {
    "allreduce": "tensor group_name op",
    "broadcast": "tensor src_rank group_name",
    "reduce": "tensor dst_rank group_name op",
    "allgather": "tensor_list tensor group_name",
    "reducescatter": "tensor tensor_list group_name op",
}


@pytest.mark.parametrize("collective", [each for each in ALL if each is not gather], ids=repr)
def test_a_group_of_rays_is_rays(collective: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[dict[str, Any]] = []
    takes = RAYS_PARAMETERS[collective._kind].split()

    def record(*args: Any, **kwargs: Any) -> None:
        called.append({**dict(zip(takes, args, strict=False)), **kwargs})

    rays = SimpleNamespace(is_group_initialized=lambda name: name == "rays")
    setattr(rays, collective._kind, record)
    monkeypatch.setitem(sys.modules, "ray.util.collective.collective", rays)
    takes_list = collective in (allgather, reducescatter)
    args = dict.fromkeys(takes[: 2 if takes_list else 1], "given")
    collective(*args.values(), group_name="rays")
    assert called == [{**args, "group_name": "rays"}]
    if collective in (allreduce, reducescatter, reduce):  # Ray's operations have numbers
        ops = SimpleNamespace(ReduceOp={"MAX": 3})
        monkeypatch.setitem(sys.modules, "ray.util.collective.types", ops)
        collective(*args.values(), group_name="rays", op=ReduceOp.MAX)
        assert called[1] == {**args, "group_name": "rays", "op": 3}
    with pytest.raises(CommError, match="not an actor of rcg's, so it is not in group 'ours'"):
        collective(*args.values(), group_name="ours")


def test_what_is_for_graphs_only_says_so() -> None:
    with pytest.raises(NotImplementedError, match=r"rcg\.collective\.gather\.bind") as caught:
        gather(object(), "group")
    assert isinstance(caught.value, UnsupportedNodeError) and caught.value.node == "gather"
    assert "test_collectives.py:" in str(caught.value)
