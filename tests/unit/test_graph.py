# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pickle
import re
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcg.errors import GraphError
from rcg.ir.channels import ActorSpec
from rcg.ir.containers import Template
from rcg.ir.graph import Graph
from rcg.ir.nodes import (
    CommunicatorSpec,
    NodeArg,
    Part,
    Site,
    TensorHint,
    driver_edges,
    group_members,
    remote_readers,
)
from tests.unit.graphs_by_hand import call, graph, input_value, rank, site, stages

Point = namedtuple("Point", ["x", "y"])


def test_sites_print_short():
    assert str(site(12)) == "pipeline.py:12"
    assert str(Site("<ray.dag>", 0)) == "<ray.dag>"


def test_nodes_describe_themselves():
    built = graph(
        input_value(0, 0),
        input_value(1, "x"),
        call(2, "a0", 0, 1, num_returns=2),
        Part(3, 2, 1, site(9)),
    )
    assert [built.describe(node) for node in range(4)] == [
        "InputNode[0] (pipeline.py:1)",
        "InputNode['x'] (pipeline.py:2)",
        "Stage.fwd (pipeline.py:3)",
        "Stage.fwd[1] (pipeline.py:9)",
    ]
    assert graph(IN, ONE).describe(0) == "InputNode (pipeline.py:1)"


def test_a_positional_input_that_was_never_touched_is_taken_and_ignored():
    built = graph(input_value(0, 2), ONE, num_positional=3)
    assert built.num_positional == 3


IN = input_value(0)
ONE = call(1, "a0", 0)
PAIR = call(1, "a0", 0, num_returns=2)


def part(id: int, index: int, *, of: int = 1) -> Part:
    return Part(id, of, index, site(id + 1))


WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("No InputNode found in the DAG", (call(0, "a0"), ONE), {}),
    ("found for Stage.fwd (pipeline.py:2)", (call(0, "a0"), ONE), {}),
    (
        "Compiled DAGs require each task to take a ray.dag.InputNode or at least one other "
        "DAGNode as an input. Stage.fwd (pipeline.py:3)",
        (IN, ONE, call(2, "a0")),
        {"outputs": (1, 2)},
    ),
    (
        "Stage.fwd (pipeline.py:3) does not reach an output",
        (IN, ONE, call(2, "a0", 0)),
        {"outputs": (1,)},
    ),
    (
        "Compiled Graph expects input to be accessed using all of attributes 0, 1, but 1 is "
        "unused. Ensure all input attributes are used and contribute to the computation of the "
        "Compiled Graph output. Unused: InputNode[1] (pipeline.py:2)",
        (input_value(0, 0), input_value(1, 1), call(2, "a0", 0)),
        {},
    ),
    (
        "all of attributes 0, x, y, but x, y are unused",
        (input_value(0, 0), input_value(1, "x"), input_value(2, "y"), call(3, "a0", 0)),
        {},
    ),
    (
        "All tasks must either use InputNode() directly, or they must index to specific args or "
        "kwargs. The DAG does both, with InputNode (pipeline.py:2) and InputNode['x'] "
        "(pipeline.py:1)",
        (input_value(0, "x"), input_value(1), call(2, "a0", 0, 1)),
        {"num_positional": 1, "keywords": ()},
    ),
    ("InputNode (pipeline.py:1) is an output of the DAG", (IN, ONE), {"outputs": (1, 0)}),
    ("two nodes have the id 1", (IN, ONE, input_value(1)), {}),
    ("position 1 has the id 2", (IN, call(2, "a0", 0)), {}),
    (
        "takes the value of Stage.fwd (pipeline.py:3), which was made after it",
        (IN, call(1, "a0", 0, 2), call(2, "a0", 0)),
        {},
    ),
    (
        "the DAG has a cycle: Stage.fwd (pipeline.py:2) -> Stage.fwd (pipeline.py:3) -> "
        "Stage.fwd (pipeline.py:4) -> Stage.fwd (pipeline.py:2)",
        (IN, call(1, "a0", 0, 3), call(2, "a0", 1), call(3, "a0", 2)),
        {},
    ),
    ("cycle: node 1 (pipeline.py:2) -> node 1 (pipeline.py:2)", (IN, part(1, 0)), {}),
    (
        "Stage.fwd (pipeline.py:2) takes the value of node 7, which is not in the graph",
        (IN, call(1, "a0", 0, 7)),
        {},
    ),
    ("node 1 (pipeline.py:2) takes the value of node 7", (IN, part(1, 0, of=7)), {}),
    (
        "bound to the actor 'a1', which the graph does not list",
        (IN, call(1, "a1", 0)),
        {"actors": ()},
    ),
    ("actor at position 0 has the id 'a1'", (IN, ONE), {"actors": (ActorSpec("a1", "Stage", ""),)}),
    (
        "lists the actor a1 (Idle) but never calls it",
        (IN, ONE),
        {"actors": stages("Stage", "Idle")},
    ),
    ("has no output", (IN, ONE), {"outputs": ()}),
    ("one output, but 2 nodes", (IN, ONE), {"outputs": (1, 1), "is_multi": False}),
    ("returns node 9", (IN, ONE), {"outputs": (9,)}),
    ("the DAG returns all 2 values of Stage.fwd (pipeline.py:2) as one", (IN, PAIR), {}),
    (
        "Stage.fwd (pipeline.py:3) takes all 2 values of Stage.fwd (pipeline.py:2) as one",
        (IN, PAIR, call(2, "a0", 1)),
        {},
    ),
    ("num_returns=0", (IN, call(1, "a0", 0, num_returns=0)), {}),
    (
        "is a part of Stage.fwd (pipeline.py:2), which does not return several",
        (IN, ONE, part(2, 0)),
        {},
    ),
    ("is value 2 of Stage.fwd (pipeline.py:2): each of 0 to 1", (IN, PAIR, part(2, 2)), {}),
    ("is value 0 of Stage.fwd (pipeline.py:2)", (IN, PAIR, part(2, 0), part(3, 0)), {}),
    (
        "InputNode[0] (pipeline.py:2) and InputNode[0] (pipeline.py:1) are the same input",
        (input_value(0, 0), input_value(1, 0), call(2, "a0", 0, 1)),
        {},
    ),
    ("counted from 0", (input_value(0, -1), ONE), {}),
    ("Please only use int index or str as first-level key", (input_value(0, b"x"), ONE), {}),
    ("Please only use int index or str", (input_value(0, True), ONE), {}),
    ("is the whole input", (IN, ONE), {"num_positional": 2}),
    (
        "declared to take 1 positional arguments and keywords ['x'], but its inputs are",
        (input_value(0, 0), ONE),
        {"keywords": ("x",)},
    ),
    ("lists a keyword argument twice", (input_value(0, "x"), ONE), {"keywords": ("x", "x")}),
    (
        "Stage.fwd (pipeline.py:2) is given a keyword argument twice",
        (IN, replace(ONE, kwargs=(("u", NodeArg(0)), ("u", NodeArg(0))))),
        {},
    ),
]


@pytest.mark.parametrize(("text", "nodes", "changes"), WRONG)
def test_what_cannot_run_is_refused_by_name_and_place(text, nodes, changes):
    with pytest.raises(GraphError) as caught:
        graph(*nodes, **changes)
    assert text in str(caught.value)


def test_errors_carry_node_and_site():
    with pytest.raises(GraphError) as caught:
        graph(IN, ONE, call(2, "a0"), outputs=(1, 2))
    assert (caught.value.node, caught.value.site) == ("Stage.fwd", site(3))


# --- collectives and communicators ---------------------------------------------------------------


ACTORS = stages("Stage", "Stage")
NODES = (
    input_value(0),
    call(1, "a0", 0),
    call(2, "a1", 0),
    rank(3, 0, 1),
    rank(4, 1, 2),
    call(5, "a1", 3, 4),
)


def test_a_right_one():
    made = graph(*NODES)
    assert made.describe(3) == "allreduce of Stage (pipeline.py:4)"
    assert [made.actor_of(node.id) for node in made.nodes] == [None, "a0", "a1", "a0", "a1", "a1"]
    assert remote_readers(made) == [(), (), (), ("a1",), (), ()]


def test_all_ranks_are_reached_if_one_is_used():
    assert graph(*NODES, outputs=(3,), nodes=NODES[:5]).outputs == (3,)
    with pytest.raises(GraphError, match=r"allreduce of Stage .* does not reach an output"):
        graph(*NODES[:5], outputs=(1, 2))


def test_parts_of_a_rank():
    inputs = [input_value(0), *(call(n, f"a{(n - 1) // 2}", 0) for n in range(1, 5))]
    ranks = (rank(5, 0, 1, 2, num_returns=2), rank(6, 1, 3, 4, num_returns=2))
    made = graph(*inputs, *ranks, Part(7, 6, 1, site(4)))
    assert made.describe(7) == "allreduce of Stage[1] (pipeline.py:4)"
    assert made.actor_of(7) == "a1"
    with pytest.raises(GraphError, match="all 2 values of allreduce of Stage"):
        graph(*inputs, *ranks)
    with pytest.raises(GraphError, match="does not return several values"):
        graph(*NODES[:5], Part(5, 4, 0, site(4)))


def test_a_member_gives_one_value():
    several = replace(NODES[1], num_returns=2)
    with pytest.raises(GraphError, match=r"allreduce of Stage .* takes all 2 values of Stage.fwd"):
        graph(NODES[0], several, *NODES[2:])


def test_ranks_of_a_broadcast_may_only_receive():
    first = rank(2, 0, 1, kind="broadcast", reduction=None, root=0)
    second = rank(3, 1, kind="broadcast", reduction=None, root=0)
    assert graph(*NODES[:2], first, second).actors == ACTORS
    with pytest.raises(GraphError, match="gives 1 tensors and takes 0"):
        graph(*NODES[:2], *(replace(node, root=1) for node in (first, second)))


def changed(**changes: Any) -> Callable[[], Graph]:
    """The graph with both ranks changed."""
    nodes = [replace(node, **changes) if node.id in (3, 4) else node for node in NODES]
    return lambda: graph(*nodes, actors=ACTORS)


def one_changed(**changes: Any) -> Callable[[], Graph]:
    nodes = [replace(node, **changes) if node.id == 4 else node for node in NODES]
    return lambda: graph(*nodes, actors=ACTORS)


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
        (one_changed(args=(1,)), "takes Stage.fwd .*, which is not made by its actor"),
        (one_changed(args=(0,)), "takes InputNode .*, which is not made by its actor"),
        (one_changed(reduction="max"), "do not agree on its reduction: 'sum' and 'max'"),
        (one_changed(kind="scan"), "do not agree on its kind"),
        (one_changed(num_returns=2), "do not agree on its num_returns"),
        (one_changed(root=1), "do not agree on its root"),
        (one_changed(communicates=MINE), "do not agree on its communicates"),
        (changed(communicates=MINE), "uses the communicator k0, which the graph does not list"),
    ],
)
def test_wrong_collectives(make: Callable[[], Graph], why: str):
    with pytest.raises(GraphError, match=why) as caught:
        make()
    if caught.value.node is not None:
        assert re.search(r"pipeline\.py:\d", str(caught.value))


def with_communicator(*members: str, const: str = "k0") -> Graph:
    nodes = [replace(node, communicates=MINE) if node.id in (3, 4) else node for node in NODES]
    return graph(*nodes, communicators=(CommunicatorSpec(const, "Mine", members),))


def test_communicators():
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


def test_edges_of_the_driver():
    gloo = TensorHint("gloo", site(9))
    nodes = [replace(node, hint=gloo) for node in NODES]
    assert driver_edges(graph(*nodes)) == [0, 5]
    assert driver_edges(graph(*nodes, outputs=(3, 5, 3))) == [0, 3, 5]
    calm = [replace(node, hint=TensorHint("auto", site(9))) for node in NODES]
    assert driver_edges(graph(*calm)) == []


def test_members_of_groups():
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


# --- templates ----------------------------------------------------------------------------------


class Node:
    """Stands for a node."""


def is_node(value: object) -> bool:
    return isinstance(value, Node)


@dataclass
class Record:
    value: object


class OwnList(list):  # type: ignore[type-arg]
    pass


def test_templates_fill_every_kind_of_container_anew():
    a, b = Node(), Node()
    kept = {"constant": [1, 2]}
    value = [
        a,
        (1, b),
        Point(b, kept),
        {"k": [a], 3: "c"},
        OrderedDict(z=a, y=1),
        defaultdict(list, q=b),
        kept,
    ]
    template, nodes = Template.of(value, is_node)
    assert nodes == [a, b, b, a, a, b]
    assert template.num_holes == 6
    first = template.fill("123456")
    assert first == [
        "1",
        (1, "2"),
        Point("3", kept),
        {"k": ["4"], 3: "c"},
        OrderedDict(z="5", y=1),
        {"q": "6"},
        kept,
    ]
    assert list(first[4]) == ["z", "y"]
    assert first[5].default_factory is list
    assert type(first[2]) is Point
    second = template.fill("123456")
    assert second == first
    assert all(second[at] is not first[at] for at in range(1, 6))
    assert first[6] is second[6] is kept, "what holds no node is the user's own object"
    assert pickle.loads(pickle.dumps(template)).fill("123456") == first


@pytest.mark.parametrize("value", [3, "abc", [1, {2: 3}], {1, 2}, OwnList([1]), Record(1), Record])
def test_a_value_without_nodes_is_itself(value):
    template, nodes = Template.of(value, is_node)
    assert nodes == []
    assert template.fill([]) is value


def test_a_constant_that_contains_itself_is_a_constant():
    value: list[Any] = [1]
    value.append(value)
    template, nodes = Template.of(value, is_node)
    assert nodes == []
    assert template.fill([]) is value


def test_one_container_in_two_places_becomes_two():
    node = Node()
    shared = [node]
    template, nodes = Template.of((shared, shared), is_node)
    assert nodes == [node, node]
    first, second = template.fill([1, 1])
    assert first == second == [1]
    assert first is not second


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({Node()}, "a set"),
        ([frozenset([Node()])], "a frozenset"),
        ({Node(): 1}, "a key of a dict"),
        ({(1, Node()): 1}, "a key of a dict"),
        ([OwnList([Node()])], "a OwnList"),
        ((Record(Node()),), "a Record"),
        ([Record([Node()])], "a Record"),
    ],
)
def test_nodes_where_nobody_looks_are_refused(value, where):
    with pytest.raises(GraphError, match=f"of Stage.fwd has a DAG node inside {where}:") as caught:
        Template.of(value, is_node, node="Stage.fwd", site=site(4))
    assert "[site: pipeline.py:4]" in str(caught.value)


def test_a_container_that_contains_itself_and_a_node_is_refused():
    value: list[Any] = [Node()]
    value.append({"again": value})
    with pytest.raises(GraphError, match="inside a list that contains itself"):
        Template.of(value, is_node)


def test_fill_wants_one_value_per_hole():
    template, _ = Template.of([Node(), Node()], is_node)
    with pytest.raises(ValueError, match="2 holes, got 1 values"):
        template.fill([1])


nested = st.recursive(
    st.one_of(st.integers(), st.builds(Node)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.builds(Point, inner, inner),
    ),
    max_leaves=15,
)


@given(nested)
def test_filling_with_the_nodes_gives_the_value_back(value: Any):
    template, nodes = Template.of(value, is_node)
    assert template.num_holes == len(nodes)
    assert template.fill(nodes) == value
