# SPDX-License-Identifier: Apache-2.0
"""Values that travel in one frame: inputs of an execution, and values of one call."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import ray

import rcg
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import MessageTooLarge, UnpicklableError
from tests.cluster.stage import GUARD_S, in_thread

pytestmark = pytest.mark.usefixtures("ray_session")

MEGABYTE = 1_000_000


class Undecodable:
    """It pickles, and unpickling it raises."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise LookupError("no such thing here")


class Sent:
    """Its pickle has a buffer."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer

    def __reduce_ex__(self, protocol: Any) -> Any:
        return bytes, (self.buffer,)


class Releasing:
    """Pickling it lets go of a buffer that is on its way already."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.buffer.release()
        return int, (5,)


class Maker:
    """Takes and returns several values."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def kinds(self, *args, **kwargs):
        return [type(each).__name__ for each in args], {k: repr(v) for k, v in kwargs.items()}

    def first(self, x):
        return x

    @rcg.method(num_returns=3)
    def three(self, kind):
        match kind:
            case "arrays":
                return tuple(np.full(MEGABYTE // 8, float(i)) for i in range(3))
            case "unpicklable":
                return "one", threading.Lock(), np.ones(10)
            case "undecodable":
                return "one", Undecodable(), np.ones(10)
            case "raises":
                raise KeyError(kind)
            case "released":
                gone = pickle.PickleBuffer(bytearray(100_000))
                return "one", [Sent(gone), Releasing(gone)], np.ones(10)
            case "huge":
                return "one", np.ones(40 * MEGABYTE // 8), np.ones(10)
        return kind, [kind], {"kind": kind}


@pytest.fixture(scope="module")
def makers() -> list[Any]:
    return [rcg.remote(Maker).remote() for _ in range(2)]


@pytest.fixture
def three(makers: list[Any]) -> Iterator[rcg.CompiledDAG]:
    """Three values of one call, each of them a result."""
    with InputNode() as kind:
        dag = MultiOutputNode(list(makers[0].three.bind(kind)))
    with rcg.compile(dag) as graph:
        yield graph


def refused(ref: Any, error_type: type[BaseException], text: str = "") -> None:
    with pytest.raises(error_type, match=text):
        ref.get(timeout=GUARD_S)


# --- inputs


def test_inputs_of_every_kind_reach_their_readers(makers):
    a, b = makers
    with InputNode() as inp:
        dag = MultiOutputNode(
            [a.kinds.bind(inp[0], inp[1], x=inp.x), b.kinds.bind(inp.x, inp[2], 7, y=inp.y)]
        )
    with rcg.compile(dag) as graph:
        inputs = [each for each in graph.plan.channels if each.writer == "driver"]
        assert [len(channel.nodes) for channel in inputs] == [2, 1, 2]
        for given in (1, "text", b"bytes", None, [1], np.ones(50_000), {"a": np.ones(5)}):
            one, two = rcg.get(graph.execute(given, 2, given, x=given, y=given), timeout=GUARD_S)
            name = type(given).__name__
            assert one == ([name, "int"], {"x": repr(given)})
            assert two == ([name, name, "int"], {"y": repr(given)})


def test_an_input_that_does_not_pickle_is_the_callers_error_and_nothing_is_submitted(makers):
    with InputNode() as inp:
        dag = makers[0].kinds.bind(inp[0], inp[1])
    with rcg.compile(dag) as graph:
        with pytest.raises(UnpicklableError, match="lock"):
            graph.execute(1, threading.Lock())
        large = np.empty(int(graph.statistics().cap_bytes * 0.6), np.uint8)
        with pytest.raises(MessageTooLarge):
            graph.execute(large, large)
        assert graph.statistics().executions == 0
        assert rcg.get(graph.execute(1, 2), timeout=GUARD_S) == (["int", "int"], {})


def test_an_input_that_does_not_unpickle_fails_only_the_calls_that_use_it(makers):
    a, _ = makers
    with InputNode() as inp:
        dag = MultiOutputNode([a.first.bind(inp[0]), a.first.bind(inp[1]), a.first.bind(inp.x)])
    with rcg.compile(dag) as graph:
        assert len(graph.plan.channels[0].nodes) == 3
        for _ in range(2):
            one, two, three = graph.execute(1, Undecodable(), x=[3])
            assert one.get(timeout=GUARD_S) == 1
            refused(two, LookupError, "no such thing here")
            assert three.get(timeout=GUARD_S) == [3]


# --- values of one call


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_values_of_one_call_are_got_in_any_order_and_again(three, order):
    assert three.plan.channels[1].nodes == (2, 3, 4)
    refs = [three.execute(i) for i in range(4)]
    for i in (3, 0, 2, 1):
        found = {at: refs[i][at].get(timeout=GUARD_S) for at in order}
        assert [found[at] for at in range(3)] == [i, [i], {"kind": i}]
        assert all(refs[i][at].get() is found[at] for at in range(3))
    assert rcg.get(three.execute("x"), timeout=GUARD_S) == ["x", ["x"], {"kind": "x"}]


@pytest.mark.parametrize(
    ("kind", "error_type", "text"),
    [
        ("unpicklable", UnpicklableError, "three.* execution 0|lock"),
        ("released", ValueError, "released"),
        ("undecodable", LookupError, "no such thing here"),
        ("huge", rcg.errors.OutOfSharedMemory, "memory_cap_bytes"),
    ],
)
def test_a_value_that_does_not_arrive_fails_alone(makers, kind, error_type, text):
    with InputNode() as inp:
        dag = MultiOutputNode(list(makers[0].three.bind(inp)))
    with rcg.compile(dag, memory_cap_bytes=16 * MEGABYTE) as graph:
        for _ in range(2):
            one, two, array = graph.execute(kind)
            assert one.get(timeout=GUARD_S) == "one"
            refused(two, error_type, text)
            assert array.get(timeout=GUARD_S).sum() == 10
        assert rcg.get(graph.execute(1), timeout=GUARD_S) == [1, [1], {"kind": 1}]


def test_a_dropped_value_is_let_go_of_and_leaves_the_others(three):
    def unfetched() -> list[int]:
        gc.collect()
        three.statistics()  # looks after what was dropped
        return [len(buffer.frames) for buffer in three._engine._buffers]

    one, two, array = three.execute("arrays")
    assert one.get(timeout=GUARD_S)[0] == 0.0
    assert unfetched() == [0, 1, 1]
    del two
    assert unfetched() == [0, 0, 1]
    assert array.get(timeout=GUARD_S)[0] == 2.0
    assert unfetched() == [0, 0, 0]
    del one, array
    three.execute("arrays")
    assert rcg.get(three.execute(1), timeout=GUARD_S) == [1, [1], {"kind": 1}]
    assert unfetched() == [0, 0, 0]
    assert three.statistics().buffered == 0


def test_a_dropped_failure_is_counted_once_for_each_value(three):
    refs = three.execute("unpicklable")
    assert refs[0].get(timeout=GUARD_S) == "one"
    del refs
    gc.collect()
    assert three.statistics().failures_dropped == 1
    rcg.wait(refs := three.execute("raises"), num_returns=3, timeout=GUARD_S)
    del refs
    gc.collect()
    assert three.statistics().failures_dropped == 4


# --- who fetches


def test_values_of_one_call_are_awaited_apart(three):
    async def run() -> None:
        refs = [await three.execute_async(i) for i in range(5)]
        for i in (4, 1, 0, 3, 2):
            assert await asyncio.wait_for(refs[i][2], GUARD_S) == {"kind": i}
        found = await asyncio.wait_for(
            asyncio.gather(*(ref for row in refs for ref in row[:2])), GUARD_S
        )
        assert found == [value for i in range(5) for value in (i, [i])]

    asyncio.run(run())


def test_a_thread_that_gets_one_value_wakes_who_awaits_another(three):
    async def run() -> None:
        for i in range(50):
            one, two, _ = await three.execute_async(i)
            getting = asyncio.get_running_loop().run_in_executor(None, one.get, GUARD_S)
            assert await asyncio.wait_for(two, GUARD_S) == [i]
            assert await getting == i

    asyncio.run(run())


def test_many_threads_fetch_the_values_of_one_call(three):
    for i in range(30):
        pairs = [*zip(three.execute(i), [i, [i], {"kind": i}], strict=True)] * 2
        found = [in_thread(lambda ref=ref: ref.get(timeout=GUARD_S)) for ref, _ in pairs]
        assert [result() for result in found] == [wanted for _, wanted in pairs]


@ray.remote(num_cpus=0)
class Caller:
    """Executes a graph through a handle."""

    def take(self, handle: Any) -> None:
        self.graph = handle

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return rcg.get(self.graph.execute(*args, **kwargs), timeout=GUARD_S)

    def one_of(self, at: int, *args: Any) -> Any:
        return self.graph.execute(*args)[at].get(timeout=GUARD_S)


def test_a_handle_elsewhere_sends_and_gets_parts(makers, three):
    caller = Caller.remote()
    with InputNode() as inp:
        dag = makers[1].kinds.bind(inp[0], inp[1], x=inp.x)
    with rcg.compile(dag) as graph:
        ray.get(caller.take.remote(graph))
        found = ray.get(caller.run.remote(np.ones(50_000), "text", x=b"bytes"))
        assert found == (["ndarray", "str"], {"x": "b'bytes'"})
    ray.get(caller.take.remote(three))
    assert ray.get(caller.run.remote(5)) == [5, [5], {"kind": 5}]
    assert ray.get(caller.one_of.remote(0, "unpicklable")) == "one"
    with pytest.raises(UnpicklableError):
        ray.get(caller.one_of.remote(1, "unpicklable"))
