# SPDX-License-Identifier: Apache-2.0
"""Event loops that wait for results of a graph: all are woken, and nothing is left of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rcg.runtime.driver import asyncio_bridge
from rcg.runtime.driver.asyncio_bridge import AsyncioBridge
from tests.harness.driven import Driven
from tests.harness.peers import GUARD_S, descriptors


async def value_of(ref: Any) -> Any:
    return await asyncio.wait_for(ref, GUARD_S)


@pytest.mark.parametrize("longest_ns", [0, 10**9], ids=["woken", "looking"])
def test_results_for_loops_of_several_threads_wake_each_of_them(
    driven: Callable[..., Driven], monkeypatch: pytest.MonkeyPatch, longest_ns: int
):
    monkeypatch.setattr(asyncio_bridge, "_LONGEST_NS", longest_ns)
    graph, rounds, loops = driven(limit=8), 50, 3
    meeting = threading.Barrier(loops + 1, timeout=GUARD_S)

    def run_loop(number: int) -> list[int]:
        async def run() -> list[int]:
            found = []
            for each in range(rounds):
                ref = await graph.engine.execute_async(each * loops + number)
                waiting = asyncio.ensure_future(value_of(ref))
                await asyncio.sleep(0.001)  # it has begun to wait
                meeting.wait()
                found.append(await waiting)
                meeting.wait()
            return found

        return asyncio.run(run())

    with ThreadPoolExecutor(loops) as pool:
        found = [pool.submit(run_loop, number) for number in range(loops)]
        for _ in range(rounds):
            meeting.wait()
            time.sleep(0.001)  # they sleep
            for _ in range(loops):
                graph.echo()
            meeting.wait()
        assert [each.result(GUARD_S) for each in found] == [
            [each * loops + number for each in range(rounds)] for number in range(loops)
        ]


def test_the_end_of_a_graph_leaves_no_reader_in_a_loop_and_no_descriptor(
    driven: Callable[..., Driven],
):
    async def run() -> None:
        before = descriptors()
        graph = driven()
        bell = graph.session.host.bell.fd
        ref = await graph.engine.execute_async(5)
        waiting = asyncio.ensure_future(value_of(ref))
        await asyncio.sleep(0.01)
        assert not waiting.done() and graph.engine._bridge._listeners
        graph.close()
        with pytest.raises(Exception, match="torn down"):
            await waiting
        await asyncio.sleep(0)
        assert not asyncio.get_running_loop().remove_reader(bell)
        assert not graph.engine._bridge._listeners
        graph.session.host.close()
        left = {name for _, name in descriptors() - before if "eventfd" in name}
        assert len(left) <= 1, left  # that of the actor, in this process

    asyncio.run(run())


@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
def test_a_result_that_comes_while_the_wait_is_announced_is_seen(
    driven: Callable[..., Driven], monkeypatch: pytest.MonkeyPatch, is_before: bool
):
    graph = driven()
    announce, is_made = AsyncioBridge._announce, []

    def make_meanwhile(bridge: AsyncioBridge, listener: Any, readers: set[Any]) -> bool:
        makes = bool(readers) and not is_made
        if makes and is_before:
            graph.echo()
        found = announce(bridge, listener, readers)
        if makes and not is_before:
            graph.echo()
        is_made.extend([True] * makes)
        return found

    async def run() -> Any:
        return await value_of(await graph.engine.execute_async(5))

    monkeypatch.setattr(asyncio_bridge, "_LONGEST_NS", 0)
    monkeypatch.setattr(AsyncioBridge, "_announce", make_meanwhile)
    assert asyncio.run(run()) == 5 and is_made


def test_loops_that_are_closed_while_they_wait_are_forgotten(driven: Callable[..., Driven]):
    graph = driven(limit=8)

    async def give_up(value: int) -> None:
        ref = await graph.engine.execute_async(value)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ref, 0.002)

    for value in range(5):
        asyncio.run(give_up(value))
        assert len(graph.engine._bridge._listeners) == 1
    graph.echo()

    async def run() -> Any:
        ref = await graph.engine.execute_async(5)
        waiting = asyncio.ensure_future(value_of(ref))
        await asyncio.sleep(0.001)
        for _ in range(5):
            graph.echo()
        return await waiting

    assert asyncio.run(run()) == 5 and not graph.buffers[0].awaited
