# SPDX-License-Identifier: Apache-2.0
"""Values on their way through real actors: what arrives, whose memory it is, and for how long."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
import ray
import torch

import rcg
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import UnpicklableError
from tests.cluster.nodes import is_together
from tests.cluster.stage import compile_one, place_of
from tests.harness.circles import core_has

pytestmark = pytest.mark.usefixtures("ray_session")

MB = 1 << 20


def numbered(i, size=MB // 8):
    """An array with its number in every element."""
    return np.full(size, i, np.int64)


class BreaksOnLoad:
    """Pickles, and does not load."""

    def __reduce__(self):
        return _raise_on_load, ("cannot be loaded",)


def _raise_on_load(text):
    raise LookupError(text)


class Plain:
    def __init__(self):
        self.kept = []

    def echo(self, x):
        return x

    def new(self, x):
        return x + 1

    def place(self, x):
        return place_of(x)

    def type_name(self, x):
        return type(x).__name__

    def zeros(self, size):
        return np.zeros(size, np.uint8)

    def try_to_write(self, x):
        try:
            x[0] = 1
        except ValueError as error:
            return str(error)
        return "written"

    def add_in_place(self, x, amount):
        x += amount
        return x

    def keep(self, x):
        self.kept.append(x)
        return len(self.kept)

    def kept_now(self):
        return self.kept

    def kept_values(self):
        """The first and last element of everything kept, and whether all between are the same."""
        return [(x[0].item(), x[-1].item(), bool((x == x[0]).all())) for x in self.kept]

    def forget(self):
        self.kept.clear()

    def spoil_what_was_returned(self, x):
        """Return a tensor and write to it right after the last execution returned it."""
        for tensor in self.kept:
            tensor.fill_(-1)
        self.kept = [x.clone()]
        return self.kept[0]

    def lock_when(self, x, trigger):
        return {"in": [x, threading.Lock()]} if x == trigger else x

    def breaks_when(self, x, trigger):
        return BreaksOnLoad() if x == trigger else x

    def get_inside(self, refs):
        return [rcg.get(ref) for ref in refs]

    def put_inside(self, x):
        return [ray.put(x)]

    def call_inside(self, handles, x):
        return [rcg.get(handle.echo.remote(x)) for handle in handles]


Actor = rcg.remote(num_cpus=0)(Plain)


@pytest.fixture(scope="module")
def actors(ray_session):
    return [Actor.remote() for _ in range(3)]


# --- references and handles inside values


@pytest.mark.full
def test_object_refs_inside_values_work_and_stay_alive(actors):
    a, b = actors[:2]
    a.forget.remote()
    with compile_one(a, "keep") as keeping, compile_one(a, "get_inside") as getting:
        ref = ray.put(np.arange(MB))
        assert rcg.get(getting.execute([ref]))[0][-1] == MB - 1
        rcg.get(keeping.execute([ref]))
        del ref
        gc.collect()
        # Only the actor has it now.
        (kept,) = rcg.get(a.kept_now.remote())
        assert rcg.get(b.get_inside.remote(kept))[0][-1] == MB - 1
    rcg.get(a.forget.remote())


def test_object_refs_made_in_an_actor_arrive_alive(actors):
    a, b = actors[:2]
    with InputNode() as inp:
        made = a.put_inside.bind(inp)
        dag = MultiOutputNode([made, b.get_inside.bind(made)])
    with dag.experimental_compile() as graph:
        (ref,), values = rcg.get(graph.execute([1, 2]))
        assert values == [[1, 2]]
        gc.collect()
        assert rcg.get(ref) == [1, 2]


def test_actor_handles_inside_values_work(actors):
    a, b, c = actors
    with compile_one(a, "call_inside", "hello") as graph:
        handles = [b, {"of": rcg.unwrap(c)}["of"]]
        assert rcg.get(graph.execute(handles)) == ["hello", "hello"]
    with compile_one(a) as graph:
        back, plain = rcg.get(graph.execute([b, rcg.unwrap(c)]))
        assert isinstance(back, rcg.ActorHandle) and back == b
        assert not isinstance(plain, rcg.ActorHandle) and plain == rcg.unwrap(c)


def test_a_handle_inside_a_value_keeps_its_actor_alive(actors):
    a = actors[0]
    with compile_one(a, "keep") as graph:
        rcg.get(graph.execute([Actor.remote()]))
        gc.collect()
        ((handle,),) = rcg.get(a.kept_now.remote())
        assert rcg.get(handle.echo.remote(3)) == 3
    rcg.get(a.forget.remote())


# --- numpy


def test_arrays_are_read_only_and_no_copies(actors):
    a, b = actors[:2]
    with InputNode() as inp:
        first = a.new.bind(inp)
        dag = MultiOutputNode(
            [a.try_to_write.bind(inp), b.try_to_write.bind(first), b.place.bind(first), first]
        )
    with dag.experimental_compile() as graph:
        sent, middle, place, result = rcg.get(graph.execute(numbered(1)))
        assert "read-only" in sent and "read-only" in middle
        assert not result.flags.writeable
        # One block on each node, read in place by all who are there.
        here = place_of(result)
        assert here.inode != 0 != place.inode
        assert (here.inode == place.inode) == is_together(graph, "driver", "a1")
        assert "w" not in here.mode and "w" not in place.mode
        np.testing.assert_array_equal(result, numbered(2))


def test_an_array_that_is_passed_on_is_forwarded(actors):
    """By another claim on the block it came in: all the way and back it is the driver's."""
    a, b, c = actors
    with InputNode() as inp:
        there = c.echo.bind(b.echo.bind(a.echo.bind(inp)))
        dag = MultiOutputNode([a.place.bind(inp), there, c.place.bind(there)])
    with dag.experimental_compile() as graph:
        for i in range(20):
            first, result, last = rcg.get(graph.execute(numbered(i)))
            places = {place_of(result).inode, first.inode, last.inode}
            assert 0 not in places
            assert len(places) == 1 or not is_together(graph)
            np.testing.assert_array_equal(result, numbered(i))


# --- torch


@pytest.mark.parametrize("size", core_has(MB // 4, [10, MB // 4]))
def test_tensors_are_writable_and_nobody_elses(actors, size):
    a, b, c = actors
    with InputNode() as inp:
        mine = a.add_in_place.bind(inp, 1)
        dag = MultiOutputNode(
            [
                mine,
                b.add_in_place.bind(inp, 10),
                c.add_in_place.bind(mine, 100),
                b.add_in_place.bind(mine, 1000),
            ]
        )
    with dag.experimental_compile() as graph:
        kept = []
        for i in range(20):
            tensor = torch.full((size,), i)
            results = rcg.get(graph.execute(tensor))
            assert bool((tensor == i).all())
            for result in results:
                result.add_(1)  # ours to write to, and never a crash
            kept.append((i, results))
        for i, results in kept:
            for result, expected in zip(results, (1, 10, 101, 1001), strict=True):
                assert bool((result == i + expected + 1).all())


def test_a_tensor_that_was_returned_is_not_the_actors_any_more(actors):
    """The actor keeps what it returned and writes to it while the result is held."""
    a = actors[0]
    rcg.get(a.forget.remote())
    with compile_one(a, "spoil_what_was_returned") as graph:
        held = [rcg.get(graph.execute(torch.full((MB // 8,), i))) for i in range(20)]
        for i, tensor in enumerate(held):
            assert bool((tensor == i).all())
    rcg.get(a.forget.remote())


# --- holding values


def test_arguments_are_held_in_an_actor_for_ever(actors):
    a, b = actors[:2]
    rcg.get([a.forget.remote(), b.forget.remote()])
    with InputNode() as inp:
        dag = MultiOutputNode([a.keep.bind(inp), b.keep.bind(b.echo.bind(inp))])
    size = 8192
    with dag.experimental_compile() as graph, compile_one(a, "new") as other:
        for i in range(50):
            assert rcg.get(graph.execute(numbered(i, size))) == [i + 1, i + 1]
        for i in range(500):
            assert rcg.get(other.execute(numbered(i, size)))[0] == i + 1
    # And longer than the graph.
    expected = [(i, i, True) for i in range(50)]
    assert rcg.get([a.kept_values.remote(), b.kept_values.remote()]) == [expected] * 2
    rcg.get([a.forget.remote(), b.forget.remote()])


def test_results_are_held_longer_than_the_graph(actors):
    a = actors[0]
    graph = compile_one(a, "new")
    held = [rcg.get(graph.execute(numbered(i))) for i in range(5)]
    tensor = rcg.get(compile_one(a).execute(torch.arange(MB)))
    graph.teardown()
    seen = weakref.ref(graph)
    del graph
    gc.collect()
    assert seen() is None
    for i, array in enumerate(held):
        np.testing.assert_array_equal(array, numbered(i + 1))
    tensor += 1
    assert tensor[-1] == MB


# --- values that cannot be sent


def test_a_result_that_does_not_pickle_fails_that_execution_only(actors):
    a, b = actors[:2]
    with InputNode() as inp:
        bad = a.lock_when.bind(inp, 1)
        dag = MultiOutputNode([bad, b.type_name.bind(bad), a.echo.bind(inp), a.type_name.bind(bad)])
    with dag.experimental_compile() as graph:
        runs = [graph.execute(i) for i in range(3)]
        assert rcg.get(runs[0]) == [0, "int", 0, "int"]
        for ref in runs[1][:2]:
            for _ in range(2):
                with pytest.raises(TypeError, match=r"value\['in'\]\[1\].*lock") as raised:
                    rcg.get(ref)
                assert isinstance(raised.value, UnpicklableError)
        # Within the actor it is a value like any other.
        assert rcg.get(runs[1][2:]) == [1, "dict"]
        assert rcg.get(runs[2]) == [2, "int", 2, "int"]


def test_a_result_that_does_not_load_fails_that_execution_only(actors):
    """It pickles in the actor, and its loading raises here, whichever is got first."""
    a = actors[0]
    with compile_one(a, "breaks_when", 1) as graph:
        for first in (0, 3):
            refs = [graph.execute(i) for i in range(4)]
            assert rcg.get(refs[first]) == first
            for _ in range(2):
                with pytest.raises(LookupError, match="cannot be loaded"):
                    rcg.get(refs[1])
            assert rcg.get([refs[2], refs[3 - first]]) == [2, 3 - first]
