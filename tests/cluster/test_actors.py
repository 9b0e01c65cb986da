# SPDX-License-Identifier: Apache-2.0
"""Handles, classes and functions: what Ray's do, rcg's do, and they know each other."""

from __future__ import annotations

import pickle
import traceback

import pytest
import ray

import rcg
from rcg.dag import InputNode, MultiOutputNode
from rcg.dag.nodes import ClassMethodNode
from rcg.errors import PlacementError, RcgError, UnsupportedNodeError
from tests.harness.circles import core_has

pytestmark = pytest.mark.usefixtures("ray_session")


class Plain:
    """An undecorated class."""

    def __init__(self, start=0):
        self.total = start

    def add(self, amount=1, *, times=1):
        self.total += amount * times
        return self.total

    @rcg.method(num_returns=2)
    def pair(self, x):
        return x, -x

    @staticmethod
    def double(x):
        return 2 * x


def abs_of(x):
    return abs(x)


Counter = rcg.remote(Plain)


@pytest.fixture(scope="module")
def counter(ray_session):
    return Counter.options(num_cpus=0).remote(5)


def call_for_ever(handle):
    """Calls an actor that is about to die: a call may still get through before it is gone."""
    while True:
        rcg.get(handle.__ray_ready__.remote())


# --- what `remote` accepts


def test_remote_refuses_what_ray_refuses():
    with pytest.raises(TypeError, match="function or a class"):
        rcg.remote(num_cpus=1)(len)
    with pytest.raises(ValueError, match="no_such_option"):
        rcg.remote(no_such_option=1)(Plain)
    with pytest.raises(TypeError):
        Counter.remote(1, 2, 3)


def test_a_function_is_rays_own():
    @rcg.remote
    def triple(x):
        return 3 * x

    @rcg.remote(num_returns=2)
    def both(x):
        return x, triple.remote(x)

    assert type(triple) is type(ray.remote(lambda: None))
    assert rcg.get(triple.remote(2)) == 6
    assert rcg.get(triple.options(num_cpus=0).remote(3)) == 9
    # A worker that gets it by value calls it, too.
    first, second = rcg.get(both.remote(4))
    assert (first, rcg.get(second)) == (4, 12)


# --- actor classes


def test_a_class_is_not_called():
    with pytest.raises(TypeError, match=r"use 'Plain\.remote\(\)'"):
        Counter()


def test_a_class_is_not_inherited_from():
    with pytest.raises(TypeError, match="Inheriting from actor classes"):

        class Child(Counter):
            pass


def test_a_class_travels():
    @ray.remote
    def use():
        return ray.get(Counter.remote(7).add.remote())

    assert ray.get(use.remote()) == 8


def test_a_dag_that_makes_an_actor_is_not_compiled():
    with InputNode() as inp:
        for node in (Counter.bind(), Counter.options(num_cpus=0).bind()):
            text = r"already created with Actor\.remote\(\): write `actor = Plain\.remote"
            with pytest.raises(ValueError, match=text) as caught:
                node.add.bind(inp).compile()
            assert isinstance(caught.value, UnsupportedNodeError)
            assert caught.value.node == "Plain"
            assert "test_actors.py" in str(caught.value)


def test_names_and_namespaces():
    Named = Counter.options(name="one", lifetime="detached", num_cpus=0)
    handle = Named.remote(1)
    try:
        assert rcg.get_actor("one") == handle
        assert isinstance(rcg.get_actor("one"), rcg.ActorHandle)
        with pytest.raises(ValueError, match="taken"):
            Named.remote()
        again = Counter.options(name="one", get_if_exists=True).remote()
        assert again == handle
        with pytest.raises(ValueError, match="one"):
            rcg.get_actor("one", namespace="elsewhere")
    finally:
        rcg.kill(handle)
    other = Counter.options(name="one", namespace="elsewhere", num_cpus=0).remote(2)
    assert rcg.get_actor("one", "elsewhere") == other


# --- handles


def test_a_handle_prints_compares_and_hashes_as_rays(counter):
    rays = rcg.unwrap(counter)
    assert type(rays) is ray.actor.ActorHandle
    assert repr(counter) == repr(rays)
    assert str(counter) == str(rays)
    assert hash(counter) == hash(rays)
    assert counter == rays
    assert rays == counter
    assert counter == rcg.wrap_actor(rays)
    assert {counter: 1}[rcg.wrap_actor(rays)] == 1
    assert counter != Counter.options(num_cpus=0).remote()
    assert counter != "counter"


def test_wrapping_and_unwrapping(counter):
    rays = rcg.unwrap(counter)
    assert rcg.wrap_actor(counter) is counter
    assert rcg.unwrap(rays) is rays
    for function in (rcg.wrap_actor, rcg.unwrap):
        with pytest.raises(TypeError, match="handle of an actor, got str"):
            function("actor")


def test_a_handle_lists_its_methods(counter):
    assert {"add", "pair", "__ray_call__"} <= set(dir(counter))


def test_a_method_that_is_not_there(counter):
    with pytest.raises(AttributeError, match="no method 'subtract': it has 'add', 'double', 'pa"):
        _ = counter.subtract
    with pytest.raises(AttributeError, match=r"no method 'ad': did you mean 'add'\?$") as raised:
        _ = counter.ad
    assert raised.value.__traceback__.tb_next is None  # it ends at the user's line
    with pytest.raises(AttributeError, match="__wrapped__"):
        _ = counter.__wrapped__


def test_a_method_that_is_called_says_remote_and_in_a_dag_bind(counter):
    with pytest.raises(
        TypeError, match=r"try 'object.add.remote\(\)', or 'object.add.bind\(\)' in"
    ):
        counter.add(1)
    with InputNode() as inp, pytest.raises(TypeError, match=r"try 'object.pair.bind\(\)': an arg"):
        counter.add.bind(counter.pair(inp))
    with InputNode() as inp, pytest.raises(TypeError, match=r"try 'object.add.bind\(\)': an arg"):
        counter.add(1, times=inp.times)


def test_errors_of_bind_end_at_the_users_line(counter):
    with InputNode() as inp:
        dag = counter.add.bind(inp)
        with dag.experimental_compile() as graph:
            wrong = (
                lambda: counter.add.bind(1, 2),
                lambda: counter.add.options(num_returns=0).bind(inp),
                lambda: counter.add.bind(graph.execute(1)),
                lambda: Counter.bind(inp),
                lambda: Counter.options(num_cpus=0).bind([inp]),
                lambda: Counter.bind().add.bind(graph.execute(1)),
                lambda: rcg.remote(abs_of).bind({inp: 1}),
                lambda: rcg.remote(abs_of).bind(inp).compile(),
                lambda: Counter.bind().add.bind(inp).compile(),
                lambda: MultiOutputNode([1]),
                lambda: rcg.collective.allreduce.bind([1]),
                lambda: dag.with_tensor_transport("nothing"),
                lambda: InputNode(1),
            )
            for bind in wrong:
                with pytest.raises(RcgError) as raised:
                    bind()
                frames = [frame for frame, _ in traceback.walk_tb(raised.value.__traceback__)]
                assert [each.f_code for each in frames[1:]] == [bind.__code__], bind
                assert raised.value.__context__ is None or raised.value.__suppress_context__


def test_methods_are_not_called(counter):
    with pytest.raises(TypeError, match=r"try 'object\.add\.remote\(\)'"):
        counter.add()


def test_calls_and_options(counter):
    before = rcg.get(counter.add.remote(0))
    assert rcg.get(counter.add.remote(2, times=3)) == before + 6
    assert rcg.get(counter.pair.remote(4)) == [4, -4]
    assert rcg.get(counter.pair.options(num_returns=1).remote(4)) == (4, -4)
    assert rcg.get(counter.add.options(name="my_task").remote(0)) == before + 6
    with pytest.raises(TypeError):
        counter.add.remote(1, 2, 3)


def test_rays_own_methods_of_every_actor():
    counter = Counter.remote(2)
    assert rcg.get(counter.__ray_ready__.remote())
    assert rcg.get(counter.__ray_call__.remote(lambda self, x: self.total + x, 10)) == 12
    counter.__ray_terminate__.remote()
    with pytest.raises(ray.exceptions.ActorDiedError):
        call_for_ever(counter)


def test_a_method_pickles(counter):
    method = pickle.loads(ray.cloudpickle.dumps(counter.pair))
    assert rcg.get(method.remote(3)) == [3, -3]
    assert repr(method) == f"ActorMethod({counter!r}.pair)"


@ray.remote
def call_in_task(handle, nested):
    kinds = [type(h).__name__ for h in (handle, nested["deep"][0])]
    return kinds, ray.get(handle.add.remote(0)), ray.get(nested["deep"][0].add.remote(0))


def test_a_handle_works_in_plain_tasks(counter):
    expected = rcg.get(counter.add.remote(0))
    kinds, top, nested = ray.get(call_in_task.remote(counter, {"deep": [counter]}))
    assert kinds == ["ActorHandle", "ActorHandle"]
    assert top == nested == expected


def test_an_actor_lives_as_long_as_its_last_handle():
    handle = Counter.remote(1)
    boxed = ray.put([handle])
    del handle
    (handle,) = ray.get(boxed)
    assert rcg.get(handle.add.remote()) == 2


def test_a_node_keeps_its_actor_alive():
    with InputNode() as inp:
        dag = Counter.remote(1).add.bind(inp)
    assert rcg.get(dag.execute(3)) == 4


@pytest.mark.parametrize("of", core_has(rcg.unwrap, [rcg.wrap_actor, rcg.unwrap]))
def test_kill_takes_either_handle(of):
    counter = Counter.remote()
    rcg.get(counter.__ray_ready__.remote())
    rcg.kill(of(counter))
    with pytest.raises(ray.exceptions.ActorDiedError):
        call_for_ever(counter)


def test_kill_refuses_other_things():
    with pytest.raises(ValueError, match="actors"):
        rcg.kill("counter")


def test_ray_client_handles_are_refused():
    from ray.util.client.common import ClientActorHandle

    from rcg.dag.authoring import bind_method

    handle = object.__new__(ClientActorHandle)  # a real one needs a server
    for use in (rcg.wrap_actor, lambda handle: bind_method(handle, "fwd", (1,), {}, {})):
        with pytest.raises(PlacementError, match="ray://"):
            use(handle)


# --- binding


def test_bind_makes_one_node_or_a_tuple(counter):
    with InputNode() as inp:
        node = counter.add.bind(inp)
        pair = counter.pair.bind(inp)
        as_one = counter.pair.options(num_returns=1).bind(inp)
        three = counter.add.options(num_returns=3).bind(inp)
    assert isinstance(node, ClassMethodNode)
    assert node.is_class_method_call
    assert (node.num_returns, node.output_idx, node.get_method_name()) == (1, None, "add")
    assert [part.output_idx for part in pair] == [0, 1]
    assert all(part.is_class_method_output for part in pair)
    assert isinstance(as_one, ClassMethodNode)
    assert len(three) == 3


def test_rays_node_in_a_bind(counter):
    ray_dag = pytest.importorskip("ray.dag")
    with (
        ray_dag.InputNode() as inp,
        pytest.raises(UnsupportedNodeError, match=r"import InputNode from rcg\.dag") as caught,
    ):
        counter.add.bind(inp)
    assert caught.value.site.file == __file__


def test_rays_other_nodes_in_a_bind(counter):
    pytest.importorskip("ray.dag")
    for node in (ray.remote(lambda x: x).bind(1), ray.remote(Plain).bind()):
        with pytest.raises(UnsupportedNodeError, match=r"classes that rcg\.remote made"):
            counter.add.bind(node)


def test_a_node_bound_to_a_plain_handle(counter):
    with InputNode() as inp, pytest.raises(ValueError, match=r"rcg\.wrap_actor"):
        rcg.unwrap(counter).add.bind(inp)
