# SPDX-License-Identifier: Apache-2.0
"""Running a DAG without compiling it: the same DAG, the same values, by ordinary Ray tasks."""

from __future__ import annotations

import os
import threading
import time
from collections import namedtuple
from types import SimpleNamespace

import pytest
import ray

import rcg
from rcg.dag import InputNode, MultiOutputNode
from tests.harness.peers import until

pytestmark = pytest.mark.usefixtures("ray_session")

Pair = namedtuple("Pair", "left right")


@rcg.remote(num_cpus=0)
class Stage:
    def __init__(self):
        self.seen = []
        self.is_open = threading.Event()

    def add(self, x, y=1):
        self.seen.append(x)
        return x + y

    def take(self, *args, **kwargs):
        return args, kwargs

    @rcg.method(num_returns=3)
    def spread(self, x):
        return x, x + 1, x + 2

    def history(self):
        seen, self.seen = self.seen, []
        return seen

    def fail(self, x):
        raise KeyError(x)

    def passed(self, x):
        self.is_open.wait()
        return x

    def open(self):
        self.is_open.set()


@pytest.fixture(scope="module")
def a(ray_session):
    return Stage.remote()


@pytest.fixture(scope="module")
def b(ray_session):
    return Stage.remote()


def test_several_outputs_come_as_a_list(a, b):
    with InputNode() as inp:
        first = a.add.bind(inp)
        dag = MultiOutputNode([first, b.add.bind(first), first])
    assert rcg.get(dag.execute(1)) == [2, 3, 2]
    single = MultiOutputNode([first]).execute(5)
    assert isinstance(single, list)
    assert rcg.get(single) == [6]


def test_one_object_is_taken_apart_for_several_inputs(a):
    with InputNode() as inp:
        by_position = a.take.bind(inp[0], inp[1])
    assert rcg.get(by_position.execute([1, 2])) == ((1, 2), {})
    with InputNode() as inp:
        by_key = a.take.bind(inp["m"], inp["n"])
    assert rcg.get(by_key.execute({"m": 1, "n": 2})) == ((1, 2), {})
    with InputNode() as inp:
        by_attribute = a.take.bind(inp.m, inp.n)
    assert rcg.get(by_attribute.execute(SimpleNamespace(m=1, n=2))) == ((1, 2), {})


def test_one_argument_for_one_position_is_that_argument(a):
    with InputNode() as inp:
        dag = a.take.bind(inp[0])
    assert rcg.get(dag.execute([1, 2])) == (([1, 2],), {})


def test_wrong_arguments(a):
    with InputNode() as inp:
        whole = a.add.bind(inp)
    for args in ((), (1, 2)):
        with pytest.raises(ValueError, match=f"with 1 positional args, got {len(args)}"):
            whole.execute(*args)
    with InputNode() as inp:
        several = a.take.bind(inp[0], inp[1], inp.x)
    with pytest.raises(ValueError, match="with 2 positional args, got 3"):
        several.execute(1, 2, 3, x=1)
    with pytest.raises(ValueError, match="with kwarg `x`"):
        several.execute(1, 2)


def test_nested_nodes_arrive_as_values(a, b):
    with InputNode() as inp:
        first = a.add.bind(inp)
        dag = b.take.bind([first, {"k": (inp, first)}], pair=Pair(first, [first]))
    args, kwargs = rcg.get(dag.execute(1))
    assert args == ([2, {"k": (1, 2)}],)
    assert kwargs == {"pair": Pair(2, [2])}
    assert type(kwargs["pair"]) is Pair


def test_calls_run_in_the_order_in_which_they_were_bound(a):
    rcg.get(a.history.remote())
    gate = Stage.options(max_concurrency=2).remote()
    with InputNode() as inp:
        # The first call on `a` needs a value that comes late; the second one is ready at once.
        first = a.add.bind(gate.passed.bind(inp), " and after it")
        second = a.add.bind("ready", "")
        dag = MultiOutputNode([second, first])
    refs = dag.execute("late")
    rcg.get(gate.open.remote())
    assert rcg.get(refs) == ["ready", "late and after it"]
    assert rcg.get(a.history.remote()) == ["late", "ready"]


def test_constants_only(a):
    assert rcg.get(a.add.bind(1, 2).execute()) == 3
    with pytest.raises(ValueError, match="with 0 positional args"):
        a.add.bind(1, 2).execute(5)


def test_only_what_the_root_needs_runs(a, b):
    rcg.get([a.history.remote(), b.history.remote()])
    with InputNode() as inp:
        first = a.add.bind(inp)
        b.add.bind(first)
    assert rcg.get(first.execute(1)) == 2
    assert rcg.get(b.history.remote()) == []


def test_options_of_a_call_reach_ray(a):
    with InputNode() as inp:
        left, right = a.take.options(num_returns=2).bind(inp)
        dag = MultiOutputNode([right, left])
    assert rcg.get(dag.execute(1)) == [{}, (1,)]


def test_an_exception_is_the_users(a, b):
    with InputNode() as inp:
        dag = b.add.bind(a.fail.bind(inp))
    with pytest.raises(KeyError, match="nothing") as caught:
        rcg.get(dag.execute("nothing"))
    assert isinstance(caught.value, ray.exceptions.RayTaskError)


def test_an_output_that_is_the_input_is_its_value(a):
    with InputNode() as inp:
        dag = MultiOutputNode([inp, a.add.bind(inp)])
    value, ref = dag.execute(1)
    assert (value, rcg.get(ref)) == (1, 2)


def test_compiled_and_uncompiled_agree(a, b):
    with InputNode() as inp:
        x, _, z = a.spread.bind(inp[0])
        boxed = b.take.bind([x, {"k": z}], scale=inp.scale)
        dag = MultiOutputNode([boxed, b.add.bind(z, y=x), x])
    uncompiled = rcg.get(dag.execute(1, scale="s"))
    with dag.compile() as graph:
        assert rcg.get(graph.execute(1, scale="s")) == uncompiled


# --- remote functions and class nodes; tests/programs/tasks.py has the rest


@rcg.remote(num_cpus=0)
class Own:
    """An actor that a DAG makes."""

    def __init__(self, start=0):
        self.total = start

    def add(self, x):
        self.total += x
        return self.total

    @rcg.method(tensor_transport="object_store")
    def tensor(self, n):
        import torch  # here, or the actors of all other tests import it too

        return torch.full((n,), float(self.total))

    @rcg.method(num_returns=2)
    def both(self, x):
        return self.total, x

    def pid(self):
        return os.getpid()


@rcg.remote(num_cpus=0)
def summed(*values):
    return sum(map(float, values))


def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_actor_of_a_class_node_lives_for_one_run():
    node = Own.bind().pid.bind()
    first, second = rcg.get([node.execute(), node.execute()])
    assert first != second
    until(lambda: not is_there(first) and not is_there(second))


@pytest.mark.full
def test_the_actor_of_a_class_node_that_is_the_root_lives_with_its_handle():
    handle = Own.bind(summed.bind(3)).execute()
    assert isinstance(handle, rcg.ActorHandle)
    pid = rcg.get(handle.pid.remote())
    assert rcg.get(handle.add.remote(1)) == 4
    del handle
    until(lambda: not is_there(pid))


@pytest.mark.full
def test_actors_that_are_there_and_those_that_are_made_work_together(a):
    with InputNode() as inp:
        made = Own.bind(10)
        nested = a.take.bind([made.add.bind(inp), inp])
        dag = MultiOutputNode([summed.bind(a.add.bind(inp), made.add.bind(inp)), nested])
    total, ((taken,), _) = rcg.get(dag.execute(1))
    assert total == 14.0
    assert (rcg.get(taken[0]), taken[1]) == (11, 1)


@pytest.mark.full
def test_tensors_that_stay_with_an_actor_of_a_class_node_reach_a_function():
    node = Own.bind(2)
    assert rcg.get(summed.bind(node.tensor.bind(1), 1).execute()) == 3.0


def test_an_actor_lives_as_long_as_a_tensor_of_it_is_kept():
    actor = Own.remote(2)
    pid, ref = rcg.get(actor.pid.remote()), actor.tensor.remote(1)
    rcg.wait([ref])
    del actor
    time.sleep(1)  # it would take a tenth of that to end
    assert rcg.get(ref).tolist() == [2.0]
    del ref
    until(lambda: not is_there(pid))


@pytest.mark.full
def test_several_returns_of_a_class_nodes_method_are_one_node():
    call = Own.bind(5).both.bind(6)
    assert (call.num_returns, call.get_method_name(), call.class_method_call) == (2, "both", None)
    assert rcg.get(call.execute()) == [5, 6]
    one = Own.bind(5).both.options(num_returns=1).bind(6)
    assert rcg.get(one.execute()) == (5, 6)


def test_a_method_of_a_class_node_that_is_not_there():
    node = Own.bind()
    for attribute, text in (
        ("subtract", "has no attribute 'subtract'"),
        ("bind", r"\.bind\(\) cannot be used again on"),
        ("remote", r"\.remote\(\) cannot be used on"),
    ):
        with pytest.raises(AttributeError, match=text):
            getattr(node, attribute)
    with pytest.raises(AttributeError, match=r"Use \.bind\(\) instead to express"):
        node.add.remote(1)


def test_calls_of_a_class_node_depend_on_one_input():
    node = Own.bind()
    with InputNode() as one:
        node.add.bind(one)
    with InputNode() as other, pytest.raises(ValueError, match="one unique InputNode"):
        node.add.bind(other)


def test_parts_of_a_call_know_what_they_were_bound_with(a):
    with InputNode() as inp:
        first, *_ = a.spread.bind(inp)
    call = first.class_method_call
    assert (call.get_args(), call.get_kwargs(), first.get_args()) == ((inp,), {}, (call, 0))
    assert MultiOutputNode((first, call.get_args()[0])).get_args() == [first, inp]
    assert a.take.options(num_returns=2).bind(1)[0].class_method_call.get_options() == {
        "num_returns": 2
    }
