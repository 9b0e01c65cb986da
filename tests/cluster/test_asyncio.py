# SPDX-License-Identifier: Apache-2.0
"""The same graphs from asyncio: awaiting refs, mixing with sync code, cancelling, many loops."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Any

import numpy as np
import pytest
from ray.exceptions import RayCgraphCapacityExceeded

import rcg
from rcg import cluster
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import ActorDiedError, ChannelClosed, ChannelTimeout
from tests.cluster.nodes import near_driver
from tests.cluster.stage import (
    GUARD_S,
    Stage,
    awaited,
    compile_echo,
    compile_gated,
    in_thread,
    until,
)

pytestmark = pytest.mark.usefixtures("ray_session")

SOON_S = 0.05
MB = 1 << 20


def run(coroutine: Any) -> Any:
    """Run it in a loop of its own, and do not hang."""

    async def guarded() -> Any:
        return await asyncio.wait_for(coroutine, GUARD_S)

    return asyncio.run(guarded())


async def came(gate):
    """The gate has a visitor, and the loop goes on meanwhile."""
    await asyncio.get_running_loop().run_in_executor(None, gate.wait_for)


@pytest.fixture
def echo(stages):
    (actor,) = stages(1)
    with compile_echo(actor) as graph:
        yield graph


# --- awaiting


def test_await_gives_the_value_again_and_again(echo):
    async def main():
        ref = await echo.execute_async([1])
        assert isinstance(ref, rcg.CompiledDAGFuture)
        first = await ref
        assert first == [1]
        assert await ref is first
        assert rcg.get(ref) is first

    run(main())


def test_a_ref_of_execute_can_be_awaited_and_one_of_execute_async_got(echo):
    async def main():
        assert await echo.execute(1) == 1
        return await echo.execute_async(2)

    ref = run(main())
    # The loop is gone; the ref is not.
    assert rcg.get(ref) == 2


def test_awaiting_out_of_order(stages, gate):
    """The earlier results are not there yet when the last one is awaited."""
    (actor,) = stages(1)

    async def main(graph):
        refs = [await graph.execute_async(i) for i in range(6)]
        tasks = [asyncio.ensure_future(awaited(ref)) for ref in refs[::-1]]
        await came(gate)
        gate.open()
        assert await asyncio.gather(*tasks) == [5, 4, 3, 2, 1, 0]
        assert [await ref for ref in (refs[3], refs[0], refs[5])] == [3, 0, 5]

    with compile_gated(actor, gate) as graph:
        run(main(graph))


def test_cancelled_awaits_leave_the_others_alone(stages, gate):
    (actor,) = stages(1)

    async def main(graph):
        refs = [await graph.execute_async(i) for i in range(4)]
        tasks = [asyncio.ensure_future(awaited(ref)) for ref in (*refs, refs[0])]
        await came(gate)
        for task in (tasks[0], tasks[2]):
            task.cancel()
        done = await asyncio.gather(tasks[0], tasks[2], return_exceptions=True)
        assert all(isinstance(error, asyncio.CancelledError) for error in done)
        gate.open()
        assert await asyncio.gather(tasks[1], tasks[3], tasks[4]) == [1, 3, 0]
        # Cancelling an await is not cancelling the execution.
        assert [await ref for ref in refs] == [0, 1, 2, 3]

    with compile_gated(actor, gate) as graph:
        run(main(graph))


# --- sync and async on one graph


def test_threads_get_while_a_loop_awaits(echo):
    async def awaiting():
        for i in range(200):
            assert await (await echo.execute_async(("loop", i))) == ("loop", i)

    def getting(name):
        for i in range(200):
            assert rcg.get(echo.execute((name, i))) == (name, i)

    ends = [in_thread(lambda: run(awaiting()))]
    ends += [in_thread(lambda n=n: getting(n)) for n in range(3)]
    for end in ends:
        end()


def test_one_ref_awaited_and_got_at_once(stages, gate):
    (actor,) = stages(1)

    async def main(ref):
        return await asyncio.gather(awaited(ref), awaited(ref))

    with compile_gated(actor, gate) as graph:
        ref = graph.execute(0)
        gate.wait_for()
        ends = [in_thread(lambda: rcg.get(ref)) for _ in range(2)]
        loops = [in_thread(lambda: run(main(ref))) for _ in range(2)]
        gate.open()
        assert [end() for end in ends] == [0, 0]
        assert [end() for end in loops] == [[0, 0], [0, 0]]


def test_a_sync_get_that_gives_up_leaves_the_await(stages, gate):
    """The thread in get reads for both; when it stops, the await has to go on."""
    (actor,) = stages(1)

    async def main(graph):
        ref = await graph.execute_async(0)
        later = await graph.execute_async(1)
        task = asyncio.ensure_future(awaited(later))
        with pytest.raises(ChannelTimeout):
            rcg.get(ref, timeout=SOON_S)
        await came(gate)
        gate.open()
        assert await task == 1
        assert await ref == 0

    with compile_gated(actor, gate) as graph:
        run(main(graph))


def test_many_loops_in_many_threads(stages):
    actors = stages(3)
    with InputNode() as inp:
        dag = MultiOutputNode([actor.echo.bind(inp) for actor in actors])

    async def one(graph, value):
        refs = await graph.execute_async(value)
        return await asyncio.gather(*map(awaited, refs))

    async def main(graph, name):
        values = [(name, i) for i in range(60)]
        found = await asyncio.gather(*[one(graph, value) for value in values])
        assert found == [[value] * 3 for value in values]

    with dag.experimental_compile() as graph:
        ends = [in_thread(lambda n=n: run(main(graph, n))) for n in range(4)]
        for end in ends:
            end()


def test_a_loop_that_closes_while_it_awaits_disturbs_nobody(stages, gate):
    (actor,) = stages(1)

    with compile_gated(actor, gate) as graph:
        ref, later = graph.execute(0), graph.execute(1)
        gate.wait_for()
        loop = asyncio.new_event_loop()
        future = loop.create_task(awaited(ref))
        for _ in range(50):  # past the turns that an await gives away before it waits
            loop.run_until_complete(asyncio.sleep(0))
        future.cancel()
        loop.run_until_complete(asyncio.gather(future, return_exceptions=True))
        loop.close()
        end = in_thread(lambda: run(awaited(later)))
        gate.open()
        assert end() == 1
        assert rcg.get(ref) == 0


# --- backpressure


def test_a_thousand_at_once(echo):
    """Far more coroutines execute than there is room for, and each gets its own result."""

    async def one(i):
        return await (await echo.execute_async(i))

    async def main():
        return await asyncio.gather(*[one(i) for i in range(1000)])

    assert run(main()) == list(range(1000))


def test_waiting_for_room_can_be_cancelled_and_submits_nothing(stages, gate):
    (actor,) = stages(1)
    with InputNode() as inp:
        dag = actor.note.bind(actor.pass_gate_when.bind(inp, 0, gate))

    async def main(graph):
        refs = [await graph.execute_async(i) for i in range(10)]  # as many as there is room for
        waiting = [asyncio.ensure_future(graph.execute_async(i)) for i in range(10, 14)]
        await came(gate)
        assert not any(task.done() for task in waiting)
        for i in (0, 2):  # the next one to be submitted, and one behind it
            waiting[i].cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting[i]
        gate.open()
        refs += [await waiting[1], await waiting[3]]
        expected = [*range(10), 11, 13]
        assert await asyncio.gather(*map(awaited, refs)) == expected
        assert rcg.get(actor.noted.remote()) == expected

    with dag.experimental_compile() as graph:
        run(main(graph))


def test_coroutines_execute_in_the_order_in_which_they_came(stages):
    (actor,) = stages(1)
    with InputNode() as inp:
        dag = actor.note.bind(inp)

    async def main(graph):
        tasks = [asyncio.ensure_future(graph.execute_async(i)) for i in range(100)]
        refs = await asyncio.gather(*tasks)
        assert await asyncio.gather(*map(awaited, refs)) == list(range(100))
        assert rcg.get(actor.noted.remote()) == list(range(100))

    with dag.experimental_compile() as graph:
        run(main(graph))


def test_the_users_limit_raises_from_execute_async(stages, gate):
    (actor,) = stages(1)

    async def main(graph):
        ref = await graph.execute_async(0)
        with pytest.raises(RayCgraphCapacityExceeded):
            await graph.execute_async(1)
        gate.open()
        assert await ref == 0
        assert await (await graph.execute_async(2)) == 2

    with compile_gated(actor, gate, _max_inflight_executions=1) as graph:
        run(main(graph))


# --- the loop goes on


def compile_for_memory(actor, gate, **options):
    """A list stops at the gate; other values pass. The cap is 8 MB."""
    with InputNode() as inp:
        dag = actor.pass_gate_for.bind(inp, list, gate)
    # With the timeout a loop that is blocked fails instead of hanging.
    return dag.experimental_compile(memory_cap_bytes=8 * MB, submit_timeout=GUARD_S, **options)


def test_the_loop_goes_on_while_execute_async_waits_for_an_execution_that_has_the_memory(
    gate,
):
    """The executions in flight need so much that the next one is not admitted.

    It has the memory of the driver's node, which is all that admission looks at.
    """
    actor = near_driver(Stage).remote()

    async def main(graph):
        first = await graph.execute_async([np.zeros(7 * MB // 2, np.uint8)])
        await came(gate)
        await opened_while_waiting(graph, gate, 5 * MB)
        assert (await first)[0].nbytes == 7 * MB // 2

    with compile_for_memory(actor, gate) as graph:
        run(main(graph))


def test_the_loop_goes_on_while_execute_async_waits_beside_held_results(stages, gate):
    """The next one is admitted, because the last ones were small, and finds no memory."""
    (actor,) = stages(1)

    async def main(graph):
        held = await (await graph.execute_async(np.zeros(7 * MB // 2, np.uint8)))
        for i in range(60):
            await (await graph.execute_async(i))
        first = await graph.execute_async([1])
        await came(gate)
        assert graph._engine._submission.window.admitted > 1
        await opened_while_waiting(graph, gate, 5 * MB)
        assert await first == [1]
        assert held.nbytes == 7 * MB // 2

    with compile_for_memory(actor, gate) as graph:
        run(main(graph))


async def opened_while_waiting(graph, gate, size):
    """Execute while there is no memory; only the loop opens the gate, and that gives it back."""
    second = asyncio.ensure_future(graph.execute_async(np.full(size, 7, np.uint8)))
    while not graph._engine._bridge.has_queue() and not second.done():
        await asyncio.sleep(0)
    assert not second.done(), "there was memory"
    gate.open()
    array = await (await second)
    assert (array.nbytes, array[0], array[-1]) == (size, 7, 7)


def test_the_cause_of_a_death_is_not_asked_for_on_the_loop(monkeypatch):
    """The actor dies in the middle of ``execute_async``: while its argument is pickled."""
    askers = []
    probe = cluster.probe
    monkeypatch.setattr(
        cluster, "probe", lambda actor: askers.append(threading.current_thread()) or probe(actor)
    )
    actor = Stage.remote()
    graph = compile_echo(actor)
    pid = rcg.get(actor.pid.remote())

    class Killer:
        def __reduce__(self):
            os.kill(pid, signal.SIGKILL)
            until(lambda: graph._engine.session.is_over)
            return int, ()

    async def main():
        for argument in (Killer(), 1):
            with pytest.raises(ActorDiedError):
                await graph.execute_async(argument)

    with graph:
        run(main())
    assert len(askers) == 1
    assert askers[0] is not threading.main_thread()


def test_the_report_of_a_timeout_says_where_the_actors_are(stages, gate):
    """They are asked before the time is up, so neither the loop nor the timeout waits for them."""
    (actor,) = stages(1)

    async def main(graph):
        refs = [await graph.execute_async(i) for i in range(10)]
        while "pass_gate_when" not in str(await asyncio.to_thread(graph.report)):
            pass  # the actor has not begun yet
        with pytest.raises(ChannelTimeout) as raised:
            await graph.execute_async(10)
        assert "pass_gate_when" in raised.value.report
        gate.open()
        assert [await ref for ref in refs] == list(range(10))

    with compile_gated(actor, gate, submit_timeout=SOON_S) as graph:
        run(main(graph))


def test_teardown_while_awaiting_raises(stages, gate):
    (actor,) = stages(1)
    graph = compile_gated(actor, gate, teardown_timeout=GUARD_S)

    async def main():
        refs = [await graph.execute_async(i) for i in (0, 1)]
        tasks = [asyncio.ensure_future(awaited(ref)) for ref in refs]
        many = asyncio.ensure_future(submit())
        await came(gate)
        ending = in_thread(graph.teardown)
        found = await asyncio.gather(*tasks, many, return_exceptions=True)
        assert [type(error) for error in found] == [ChannelClosed] * 3
        with pytest.raises(ChannelClosed):
            await graph.execute_async(2)
        with pytest.raises(ChannelClosed):
            await refs[0]
        gate.open()
        ending()

    async def submit():
        for i in range(1, 1000):
            await graph.execute_async(i)

    run(main())
