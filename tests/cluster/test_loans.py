# SPDX-License-Identifier: Apache-2.0
"""``rcg.empty`` and ``CompiledDAG.empty`` with real actors: what is copied, and what comes back."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest
import torch

import rcg
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import ActorDiedError, ChannelClosed
from rcg.runtime.node.arrays import here
from tests.cluster.stage import compile_one, is_shared, place_of, until

pytestmark = pytest.mark.usefixtures("ray_session")

MB = 1 << 20


def numbered(i, size=MB // 8):
    """An array with its number in every element."""
    return np.full(size, i, np.int64)


class Plain:
    def __init__(self):
        self.kept = []

    def made(self, x):
        """A loan with the contents of an array."""
        out = rcg.empty(x.shape, x.dtype)
        np.copyto(out, x)
        return out

    async def made_async(self, x):
        return self.made(x)

    def inside(self, x):
        out = self.made(x)
        return {"deep": [out[10:], (out, "beside")]}

    def made_and_kept(self, x):
        self.kept.append(self.made(x))
        return self.kept[-1]

    def two(self, x):
        return [self.made(x), self.made(x + 1)]

    def tensor(self, x):
        return rcg.empty(x.shape, x.dtype).copy_(x)

    def segment(self, x):
        return place_of(rcg.empty(len(x))).inode

    def echo(self, x):
        return x

    def die(self, x):
        out = self.made(x)
        os.kill(os.getpid(), 9)
        return out

    def counts(self, x):
        """The counters of this process, as of now."""
        return self.memory()

    def memory(self):
        return here.get().__self__.statistics()

    def kept_now(self):
        return [(array.flags.writeable, int(array[0]), int(array[-1])) for array in self.kept]

    def forget(self):
        self.kept.clear()


Actor = rcg.remote(num_cpus=0)(Plain)


@pytest.fixture(scope="module")
def actors(ray_session):
    return [Actor.remote() for _ in range(2)]


def compile_counted(actor, method, **options):
    """A graph that also returns the counters of the actor before its value was sent."""
    with InputNode() as inp:
        dag = MultiOutputNode([getattr(actor, method).bind(inp), actor.counts.bind(inp)])
    return dag.experimental_compile(**options)


def memory(graph):
    """The counters of the driver."""
    return graph._engine.session.node.member.statistics()


@pytest.mark.full
@pytest.mark.parametrize("method", ["made", "made_async", "inside", "two", "made_and_kept"])
def test_what_a_method_makes_is_sent_without_a_copy(actors, method):
    a = actors[0]
    with compile_counted(a, method) as graph:
        counted = []
        for i in range(4):
            value, counts = rcg.get(graph.execute(numbered(i)))
            counted.append(counts["forwards"])
            assert counts["copies"] == 0
            if method == "inside":
                part, (value, _) = value["deep"]
                np.testing.assert_array_equal(part, numbered(i)[10:])
            if method == "two":
                value, other = value
                np.testing.assert_array_equal(other, numbered(i + 1))
            np.testing.assert_array_equal(value, numbered(i))
            assert is_shared(value) and not value.flags.writeable
        each = 2 if method in ("inside", "two") else 1
        assert counted[-1] - counted[-2] == each
        part = value = other = None
        if method == "made_and_kept":
            assert rcg.get(a.kept_now.remote()) == [(False, i, i) for i in range(4)]
            rcg.get(a.forget.remote())
        counts = rcg.get(graph.execute(numbered(9, 600)))[1]
        assert counts["claimed_bytes"] <= each * (2 << 20)  # its own two, not those before
    rcg.get(a.forget.remote())


@pytest.mark.parametrize("nested", [False, True])
def test_what_the_driver_makes_is_sent_without_a_copy(actors, nested):
    with compile_one(actors[0]) as graph:
        for i in range(3):
            batch = graph.empty(MB // 8, np.int64)
            batch[:] = i
            found = rcg.get(graph.execute({"x": [batch[5:]]} if nested else batch))
            found = found["x"][0] if nested else found
            np.testing.assert_array_equal(found, batch[5:] if nested else batch)
            assert not batch.flags.writeable
            again = rcg.get(graph.execute(batch))
            np.testing.assert_array_equal(again, batch)
        counts = memory(graph)
        assert (counts["copies"], counts["forwards"]) == (0, 6)
        assert counts["claimed_bytes"]
        del batch, found, again
        gc.collect()
        until(lambda: memory(graph)["claimed_bytes"] == 0)  # the actor has it a moment longer


def test_each_graph_of_an_actor_lends_its_own_memory(actors):
    a = actors[0]
    with compile_one(a, "segment") as first, compile_one(a, "segment") as second:
        found = [rcg.get(graph.execute(b"x" * MB)) for graph in (first, second, first, second)]
        assert found[0] == found[2] != found[1] == found[3]
        assert 0 not in found
        mine = first.empty(MB, np.uint8)
        mine[:] = 8
        assert rcg.get(second.execute(mine)) == found[1]  # it is copied
        assert mine.flags.writeable
        assert (memory(second)["copies"], memory(first)["forwards"]) == (1, 0)


@pytest.mark.full
def test_results_are_held_after_the_end_and_after_their_maker_died(actors):
    victim = Actor.remote()
    with compile_one(victim, "made") as graph:
        kept = [rcg.get(graph.execute(numbered(i))) for i in range(3)]
        mine = graph.empty(MB, np.uint8)
    mine[:] = 1
    with compile_one(victim, "die") as graph:
        array = graph.empty(MB // 8, np.int64)
        array[:] = 7
        ref = graph.execute(array)
        with pytest.raises(ActorDiedError):
            rcg.get(ref)
        with pytest.raises(ActorDiedError):
            graph.empty(10)
        assert (array == 7).all()
    gc.collect()
    for i, array in enumerate(kept):
        np.testing.assert_array_equal(array, numbered(i))
    assert (mine == 1).all()


def test_a_graph_that_ended_lends_nothing(actors):
    with compile_one(actors[0]) as graph:
        array = graph.empty(MB)
    with pytest.raises(ChannelClosed):
        graph.empty(MB)
    array[:] = 1
    with compile_one(actors[0]) as graph:
        assert rcg.get(graph.execute(array))[-1] == 1
        assert array.flags.writeable


def test_tensors(actors):
    a, b = actors
    with InputNode() as inp:
        dag = b.echo.bind(a.tensor.bind(inp))
    with dag.experimental_compile() as graph:
        for i in range(5):
            batch = graph.empty((300, 300), torch.float32)
            assert type(batch) is torch.Tensor and is_shared(batch)
            batch.fill_(i)
            found = rcg.get(graph.execute(batch))
            assert torch.equal(found, batch)
            found += 1
            assert batch.min() == batch.max() == i
        assert memory(graph)["copies"] == 0
