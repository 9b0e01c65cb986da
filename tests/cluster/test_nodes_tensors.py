# SPDX-License-Identifier: Apache-2.0
"""Tensors and large values of graphs whose actors are on two nodes for certain.

The tests of tensors run on two nodes as well (``--nodes 2``), where Ray spreads their actors. These
are about what only an edge between nodes can do wrong.
"""

from __future__ import annotations

import gc
import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rcg
from rcg import collective
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import ActorDiedError, OutOfSharedMemory
from rcg.runtime.node.node import Node
from tests.cluster.faults import NOTHING, Mortal, does, settled
from tests.cluster.nodes import on_node
from tests.cluster.stage import GUARD_S, is_shared, until
from tests.harness.circles import core_has
from tests.harness.peers import suspend

torch = pytest.importorskip("torch")

MB = 1 << 20


class Worker(Mortal):
    """Makes tensors and arrays, and looks at them."""

    def ones(self, n):
        return torch.ones(n)

    def total(self, *tensors):
        return float(sum(each.sum() for each in tensors))

    def numbered(self, i, size_bytes=MB):
        return np.full(size_bytes // 8, i, np.int64)

    def with_arrays(self, n, sizes):
        """A tensor of ones, and arrays of bytes beside it."""
        return torch.ones(n), [np.ones(size, np.uint8) for size in sizes]

    def total_of(self, value):
        tensor, arrays = value
        return float(tensor.sum()), sum(int(each.sum()) for each in arrays if each.size > 10)

    def node(self):
        return rcg.cluster.node_id()

    def limit_memory(self, cap_bytes):
        """Give the graphs whose node this process hosts so much memory, as on a small machine."""
        import rcg.runtime.node.host as host

        host.default_memory_cap = lambda: cap_bytes

    def copies_and_forwards(self):
        """How many large buffers each member in this process has copied, and sent on."""
        found = [each for each in gc.get_objects() if type(each) is Node]
        counts = {each.process: each.member.statistics() for each in found if not each.is_over}
        return {name: (each["copies"], each["forwards"]) for name, each in counts.items()}

    def settle(self):
        return settled()


Actor = rcg.remote(num_cpus=0)(Worker)


def on(number: int) -> Any:
    """Return a new actor on a node."""
    return on_node(Actor, number).remote()


@pytest.fixture(scope="module")
def workers(request: pytest.FixtureRequest) -> Iterator[list[Any]]:
    """Four actors, by turns on the driver's node and on the other one."""
    if request.config.getoption("--nodes") < 2:
        pytest.skip("Ray has one node here: run the tests with --nodes 2")
    request.getfixturevalue("ray_session")
    made = [on(number % 2) for number in range(4)]
    places = rcg.get([each.node.remote() for each in made])
    assert places[:2] == places[2:] and places[0] != places[1]
    yield made
    assert rcg.get([each.settle.remote() for each in made]) == [NOTHING] * 4
    for each in made:
        rcg.kill(each)


def over_gloo(node: Any, **hints: Any) -> Any:
    return node.with_tensor_transport(transport="gloo", **hints)


def get(ref: Any) -> Any:
    return rcg.get(ref, timeout=GUARD_S)


# --- memory: each node has a cap of its own


def cap_that_is_named(error: OutOfSharedMemory) -> int:
    found = re.search(r"raise `memory_cap_bytes` to ([\d,]+)", str(error))
    assert found is not None, error
    return int(found[1].replace(",", ""))


def test_a_value_that_is_too_large_for_the_node_that_receives_it(workers):
    """It fails its execution alone, and says how much would do."""
    there = on(1)
    rcg.get(there.limit_memory.remote(8 * MB))
    with InputNode() as inp:
        dag = there.echo.bind(inp)
    with rcg.compile(dag) as graph:
        small = np.arange(MB)
        refs = [graph.execute(x) for x in (small[:10], np.zeros(2 * MB), small[: MB // 2])]
        assert get(refs[0]).sum() == 45
        with pytest.raises(OutOfSharedMemory) as caught:
            get(refs[1])
        np.testing.assert_array_equal(get(refs[2]), small[: MB // 2])
        del refs
    rcg.get(there.limit_memory.remote(cap_that_is_named(caught.value)))
    with rcg.compile(dag) as graph:
        assert get(graph.execute(np.ones(2 * MB))).sum() == 2 * MB
    rcg.kill(there)


def test_a_result_that_is_too_large_for_the_drivers_node(workers, monkeypatch):
    there = workers[1]
    monkeypatch.setattr("rcg.runtime.node.host.default_memory_cap", lambda: 8 * MB)
    with InputNode() as inp:
        dag = there.numbered.bind(inp[0], inp[1])
    with rcg.compile(dag) as graph:
        refs = [graph.execute(i, size) for i, size in enumerate((MB, 16 * MB, MB))]
        with pytest.raises(OutOfSharedMemory) as caught:
            get(refs[1])
        assert [get(refs[i])[0] for i in (0, 2)] == [0, 2]
        del refs
    cap = cap_that_is_named(caught.value)
    monkeypatch.setattr("rcg.runtime.node.host.default_memory_cap", lambda: cap)
    with rcg.compile(dag) as graph:
        assert get(graph.execute(3, 16 * MB))[0] == 3


def test_a_large_array_is_received_into_blocks_and_sent_on_from_there(workers):
    """No process copies it but the driver, from its own memory; the actor forwards the block."""
    there = on(1)
    with InputNode() as inp:
        dag = there.echo.bind(inp)
    with rcg.compile(dag) as graph:
        for i in range(10):
            found = get(graph.execute(np.full(MB, i)))
            assert is_shared(found)
            assert found[0] == found[-1] == i
        assert rcg.get(there.copies_and_forwards.remote()) == {"n1": (0, 0), "a0": (0, 10)}
    rcg.kill(there)


@pytest.mark.parametrize("sizes", core_has((16 * MB,), [(16 * MB, 16 * MB), (16 * MB,)]))
def test_what_comes_with_tensors_needs_no_shared_memory(workers, sizes):
    """The writer sends the tensors in any case, so the frame before them has to arrive."""
    there = on(1)
    rcg.get(there.limit_memory.remote(8 * MB))
    with InputNode() as inp:
        dag = there.total_of.bind(over_gloo(workers[0].with_arrays.bind(inp[0], inp[1])))
    with rcg.compile(dag) as graph:
        refs = [graph.execute(1000, sizes if i == 1 else (10,)) for i in range(4)]
        assert get(refs) == [(1000.0, 0), (1000.0, sum(sizes)), (1000.0, 0), (1000.0, 0)]
    rcg.kill(there)


# --- deaths


def allreduce_of(ranks: list[Any]) -> Any:
    with InputNode() as inp:
        found = collective.allreduce.bind([each.ones.bind(inp) for each in ranks])
        return MultiOutputNode(
            [each.total.bind(value) for each, value in zip(ranks, found, strict=True)]
        )


def edge_of(ranks: list[Any]) -> Any:
    with InputNode() as inp:
        return ranks[1].total.bind(over_gloo(ranks[0].ones.bind(inp)))


def check_usable(survivors: list[Any]) -> None:
    """They make another graph at once, with tensors across nodes."""
    with rcg.compile(allreduce_of(survivors)) as graph:
        assert get(graph.execute(10)) == [10.0 * len(survivors)] * len(survivors)


@pytest.mark.parametrize("is_writer", core_has(True, [False, True]))
def test_an_end_of_the_other_node_dies_in_the_middle_of_a_tensor(workers, is_writer):
    """It is stopped before, so its peer has begun a transfer that cannot end."""
    victim = on(1)
    pid = rcg.get(victim.pid.remote())
    ranks = [victim, workers[0]] if is_writer else [workers[0], victim]
    graph = edge_of(ranks).experimental_compile()
    assert get(graph.execute(10)) == 10.0
    suspend(pid)
    ref = graph.execute(16 * MB)
    if not is_writer:
        until(lambda: [each.op.split()[0] for each in does(graph, "a0")] == ["Write"])
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ActorDiedError, match=rf"The actor a{1 - is_writer} \(Worker\) died"):
        get(ref)
    graph.teardown()
    check_usable([workers[0], workers[1]])
