# SPDX-License-Identifier: Apache-2.0
"""Writing DAGs; for each mistake, which error it raises and what the error names."""

from __future__ import annotations

import copy
import gc

import pytest

import rcg
from rcg.dag import InputNode, MultiOutputNode
from rcg.dag.lower import lower
from rcg.errors import (
    GraphError,
    SignatureError,
    UnsupportedNodeError,
)
from rcg.ir.nodes import NestedArg

pytestmark = pytest.mark.usefixtures("ray_session")


@rcg.remote(num_cpus=0)
class Stage:
    def fwd(self, x, y=0):
        return x

    def take(self, *args, **kwargs):
        return args, kwargs

    @rcg.method(num_returns=2)
    def split(self, x):
        return x, x

    def stream(self, x):
        yield x


@pytest.fixture(scope="module")
def a(ray_session):
    return Stage.remote()


@pytest.fixture(scope="module")
def b(ray_session):
    return Stage.remote()


def graph_of(node):
    """The graph of a DAG, and the objects that it names."""
    return lower(node._record)


def refused(error, kind, *words):
    """Checks an error: its kind, its words, and that it names this file."""
    assert isinstance(error, kind)
    text = str(error)
    for word in words:
        assert word in text, text
    assert "test_authoring.py:" in text, text


# --- what is written becomes the graph


def test_a_part_of_the_input_is_one_node():
    with InputNode() as inp:
        assert inp[0] is inp[0]
        assert inp.x is inp["x"]
        assert inp.x.key == "x"


def test_any_public_name_is_a_keyword_of_the_input(a):
    with InputNode() as inp:
        dag = a.take.bind(inp.key, inp.name, inp.args, inp["compile"], inp["_x"])
    assert graph_of(dag)[0].keywords == ("key", "name", "args", "compile", "_x")


def test_a_container_is_taken_as_it_was_bound(a):
    with InputNode() as inp:
        items = [inp, 1]
        dag = a.take.bind(items)
        items.append(2)
    _, bindings = graph_of(dag)
    assert bindings.constants["k0"].fill(["x"]) == ["x", 1]


def test_two_handles_of_one_actor_are_one_actor(a):
    again = rcg.wrap_actor(rcg.unwrap(a))
    with InputNode() as inp:
        dag = again.fwd.bind(a.fwd.bind(inp))
    graph, _ = graph_of(dag)
    assert [actor.key for actor in graph.actors] == [a._actor_id.hex()]


def test_the_same_program_gives_the_same_graph(a, b):
    def write():
        with InputNode() as inp:
            nodes = [actor.fwd.bind(inp[i], {"x": inp[1 - i]}) for i, actor in enumerate((a, b))]
            return graph_of(MultiOutputNode([*nodes, a.take.bind(*nodes)]))[0]

    assert write() == write()


def test_long_chains_need_no_deep_stack(a):
    with InputNode() as inp:
        node = a.fwd.bind(inp)
        for _ in range(3000):
            node = a.fwd.bind(node)
    assert len(graph_of(node)[0].nodes) == 3002


# --- the input


def test_an_input_takes_no_values():
    for make in (lambda: InputNode(1), lambda: InputNode(a=1)):
        with pytest.raises(ValueError, match="InputNode should not take any args") as caught:
            make()
        refused(caught.value, GraphError)
    InputNode(input_type=int)


@pytest.mark.parametrize("key", [b"x", 1.0, None, True, slice(2), (0, 1)])
def test_keys_of_the_input(key):
    with InputNode() as inp, pytest.raises(ValueError, match="only use int index or str") as caught:
        _ = inp[key]
    refused(caught.value, GraphError, repr(key))


def test_an_input_is_no_sequence():
    with InputNode() as inp:
        for take_apart in (list, tuple, lambda inp: [*inp]):
            with pytest.raises(TypeError, match="cannot be taken apart"):
                take_apart(inp)
        with pytest.raises(TypeError):
            _ = 3 in inp


def test_looking_at_an_input_touches_nothing(a):
    with InputNode() as inp:
        for name in ("_repr_html_", "_ipython_display_", "__deepcopy__", "_x"):
            assert not hasattr(inp, name)
        repr(inp)
        dag = a.fwd.bind(inp)
    assert len(graph_of(dag)[0].nodes) == 2


def test_nodes_of_two_inputs(a, b):
    with InputNode() as one:
        first = a.fwd.bind(one)
    with InputNode() as other:
        with pytest.raises(GraphError, match="different InputNodes") as caught:
            b.fwd.bind(first, other)
        refused(caught.value, GraphError, "Stage.fwd", "InputNode")
        with pytest.raises(GraphError, match="different InputNodes"):
            b.take.bind([{"x": first}, other["k"]])
        second = b.fwd.bind(other)
        with pytest.raises(GraphError, match="different InputNodes") as caught:
            MultiOutputNode([first, second])
        refused(caught.value, GraphError, "MultiOutputNode")


# --- arguments


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((), {}, "missing a required argument: 'x'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"z": 1}, "unexpected keyword argument 'z'"),
        ((1,), {"x": 1}, "multiple values for argument 'x'"),
    ],
)
def test_a_wrong_signature(a, args, kwargs, why):
    with InputNode() as inp, pytest.raises(TypeError, match="has a signature") as caught:
        a.fwd.bind(*args, **kwargs)
    refused(caught.value, SignatureError, why, "The function `fwd`", "`(x, y=0)`", "Stage.fwd")
    # Nothing of the failed attempt stays.
    graph_of(a.fwd.bind(inp))


def test_a_node_deep_in_an_object_is_noticed_when_the_argument_is_sent(a):
    class Box:
        def __init__(self, content):
            self.content = content

    with InputNode() as inp:
        dag = a.fwd.bind(inp, Box([[Box(inp)]]))
    with pytest.raises(ValueError, match="cannot be"):
        dag.compile()


def test_a_multi_output_node_is_no_argument(a):
    with InputNode() as inp:
        end = MultiOutputNode([a.fwd.bind(inp)])
        for wrong in (end, [end]):
            with pytest.raises(GraphError, match="end of a DAG") as caught:
                a.fwd.bind(wrong)
            refused(caught.value, GraphError, "Stage.fwd")
        with pytest.raises(GraphError, match="end of a DAG"):
            MultiOutputNode([end])


def test_a_generator(a):
    with InputNode() as inp, pytest.raises(NotImplementedError, match="generator") as caught:
        a.stream.bind(inp)
    refused(caught.value, UnsupportedNodeError, "Stage.stream")


def test_a_tuple_of_nodes_as_a_node(a):
    with InputNode() as inp:
        pair = a.split.bind(inp)
        with pytest.raises(GraphError, match="takes nodes, but found"):
            MultiOutputNode([pair])
        # As an argument it is a container with two nodes.
        dag = a.fwd.bind(pair)
    assert isinstance(graph_of(dag)[0].nodes[-1].args[0], NestedArg)


# --- outputs


def test_what_a_multi_output_node_takes(a):
    with InputNode() as inp:
        node = a.fwd.bind(inp)
        for wrong in (node, {"x": node}, "node", None):
            with pytest.raises(ValueError, match="Invalid input type for `args`") as caught:
                MultiOutputNode(wrong)
            refused(caught.value, GraphError)
        with pytest.raises(ValueError, match="at least one node") as caught:
            MultiOutputNode([])
        refused(caught.value, GraphError)
        with pytest.raises(ValueError, match=r"found 3 at position 1") as caught:
            MultiOutputNode([node, 3])
        refused(caught.value, GraphError)
        assert graph_of(MultiOutputNode((node,)))[0].is_multi


# --- nodes


def test_a_node_is_no_method(a):
    with InputNode() as inp:
        for node in (inp, inp[0], a.fwd.bind(inp), MultiOutputNode([a.fwd.bind(inp)])):
            with pytest.raises(AttributeError, match=r"\.bind\(\) cannot be used again on"):
                _ = node.bind
            with pytest.raises(AttributeError, match=r"\.remote\(\) cannot be used on"):
                _ = node.remote


def test_a_node_is_one_value(a):
    with InputNode() as inp, pytest.raises(TypeError, match="num_returns=k"):
        _, _ = a.fwd.bind(inp)


def test_a_node_is_not_copied(a):
    with InputNode() as inp:
        node = a.fwd.bind(inp)
    for copied in (copy.copy, copy.deepcopy):
        with pytest.raises(GraphError, match="cannot be pickled") as caught:
            copied(node)
        refused(caught.value, GraphError, "Stage.fwd")


# --- compiling


def test_nodes_that_are_not_reached_are_named_once(a, b):
    with InputNode() as inp:
        stray = b.fwd.bind(inp)
        other = a.take.bind(stray)
        dag = a.fwd.bind(inp)
    with pytest.warns(UserWarning, match="do not run") as warned:
        dag.compile().teardown()
    assert len(warned) == 1
    assert warned[0].filename == __file__
    text = str(warned[0].message)
    assert repr(stray) in text
    assert repr(other) in text
    assert repr(dag) not in text


def test_a_leaf_that_nobody_kept_is_named_too_and_a_bind_that_failed_is_not(a, b):
    with InputNode() as inp:
        b.fwd.bind(inp)
        with pytest.raises(TypeError):
            b.fwd.bind(inp, 1, 2)
        dag = a.fwd.bind(inp)
    gc.collect()
    with pytest.warns(UserWarning, match="do not run") as caught:
        dag.compile().teardown()
    (warning,) = caught
    assert str(warning.message).count("test_authoring.py") == 1


def test_what_compile_takes(a):
    with InputNode() as inp:
        node = a.fwd.bind(inp)
    with pytest.raises(TypeError, match="MultiOutputNode"):
        rcg.compile([node])
    with pytest.raises(TypeError, match="got ActorHandle"):
        rcg.compile(a)
    with pytest.raises(TypeError, match=r"plan\(\) takes the root of a DAG"):
        rcg.plan([node])


def test_a_root_may_be_compiled_again_and_so_may_other_nodes(a, b):
    with InputNode() as inp:
        first = a.fwd.bind(inp)
        dag = b.fwd.bind(first)
    with dag.compile() as one, dag.compile() as other:
        assert rcg.get([one.execute(1), other.execute(2)]) == [1, 2]
    with pytest.warns(UserWarning, match="do not run"), first.compile() as part:
        assert rcg.get(part.execute(3)) == 3
    with rcg.compile(dag) as again:
        assert rcg.get(again.execute(4)) == 4
