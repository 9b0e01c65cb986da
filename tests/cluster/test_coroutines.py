# SPDX-License-Identifier: Apache-2.0
"""Async and threaded actors as members of a graph."""

from __future__ import annotations

import asyncio
import threading

import pytest

import rcg
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import ChannelClosed, UnsupportedNodeError
from tests.cluster.stage import Refusal, compile_one

pytestmark = pytest.mark.usefixtures("ray_session")


class Async:
    def __init__(self) -> None:
        self.turn = asyncio.Lock()  # belongs to the actor's loop from its first use on
        self.released = asyncio.Event()
        self.seen: list[str] = []

    async def increment(self, x):
        async with self.turn:
            await asyncio.sleep(0)
            return x + 1

    async def thread(self, _):
        await asyncio.sleep(0)
        return threading.current_thread().name, id(asyncio.get_running_loop())

    async def fail(self, x):
        await asyncio.sleep(0)
        raise Refusal(f"no {x}")

    async def wait(self, x, gate):
        gate.announce()
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.seen.append("cancelled")
            raise
        return x

    async def leave(self, kind):
        raise {"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt}[kind]

    async def block(self, x, gate):
        """Keep the event loop itself."""
        gate.pass_through()
        return x

    async def release(self):
        self.released.set()

    async def take_seen(self):
        seen, self.seen = self.seen, []
        self.released.clear()
        return seen

    async def cancel_itself(self, x):
        asyncio.current_task().cancel("of its own")
        await asyncio.sleep(0)

    @rcg.method(num_returns=2)
    async def split(self, x):
        await asyncio.sleep(0)
        return x, -x

    async def stream(self, x):
        yield x

    def plain(self, x):
        return 2 * x

    async def drive_itself(self, count):
        """Compile a graph over this very actor and use it."""
        own = rcg.wrap_actor(rcg.get_runtime_context().current_actor)
        with InputNode() as inp:
            dag = own.increment.bind(inp)
        graph = dag.compile()
        refs = [await graph.execute_async(i) for i in range(count)]
        values = [await ref for ref in refs]
        graph.teardown()
        return values


AsyncActor = rcg.remote(num_cpus=0)(Async)


@pytest.fixture(scope="module")
def actor(ray_session):
    return AsyncActor.remote()


def test_coroutine_methods_run_on_the_actors_loop(actor):
    with compile_one(actor, "thread") as graph:
        inside = rcg.get(graph.execute(0))
        assert inside == rcg.get(actor.thread.remote(0))
        assert rcg.get(graph.execute(0)) == inside


def test_they_mix_with_plain_methods_and_other_actors(actor, stages):
    (stage,) = stages(1)
    with InputNode() as inp:
        more = actor.increment.bind(inp)
        dag = MultiOutputNode([stage.double.bind(actor.plain.bind(more)), *actor.split.bind(more)])
    with dag.compile() as graph:
        refs = [graph.execute(i) for i in range(8)]
        assert [rcg.get(each) for each in refs] == [
            [4 * (i + 1), i + 1, -(i + 1)] for i in range(8)
        ]
        assert rcg.get(actor.increment.remote(1)) == 2


def test_other_coroutines_of_the_actor_run_meanwhile(actor, gate):
    with compile_one(actor, "wait", gate) as graph:
        ref = graph.execute(5)
        gate.wait_for()
        assert rcg.get(actor.increment.remote(1)) == 2
        rcg.get(actor.release.remote())
        assert rcg.get(ref) == 5
    rcg.get(actor.take_seen.remote())


def test_exceptions_come_with_the_users_lines_only(actor):
    with compile_one(actor, "fail") as graph:
        with pytest.raises(Refusal, match="no 3") as caught:
            rcg.get(graph.execute(3))
        text = str(caught.value)
        assert "in fail" in text
        assert "runtime/coroutines.py" not in text
        assert "concurrent/futures" not in text


def test_a_coroutine_that_is_cancelled_fails_its_execution_only(actor):
    with (
        compile_one(actor, "cancel_itself") as graph,
        pytest.raises(rcg.exceptions.RayTaskError, match="CancelledError: of its own") as raised,
    ):
        rcg.get(graph.execute(0))
    assert "in cancel_itself" in str(raised.value)
    with compile_one(actor, "increment") as graph:
        assert rcg.get(graph.execute(0)) == 1


def test_an_exit_in_a_coroutine_ends_neither_the_actor_nor_its_loop(actor):
    with compile_one(actor, "leave") as graph:
        for kind in ("SystemExit", "KeyboardInterrupt"):
            with pytest.raises(rcg.exceptions.RayTaskError, match=kind):
                rcg.get(graph.execute(kind))
    assert rcg.get(actor.increment.remote(1)) == 2


def test_the_report_says_where_a_coroutine_runs(actor, gate):
    with compile_one(actor, "block", gate) as graph:
        ref = graph.execute(5)
        gate.wait_for()
        text = str(graph.report())
        assert "in block" in text and "in pass_through" in text
        assert "tracing_helper" not in text
        gate.open()
        assert rcg.get(ref) == 5


def test_the_report_says_where_a_coroutine_is_suspended(actor, gate):
    with compile_one(actor, "wait", gate) as graph:
        ref = graph.execute(5)
        gate.wait_for()
        text = str(graph.report())
        assert "test_coroutines.py" in text and "in wait" in text
        rcg.get(actor.release.remote())
        assert rcg.get(ref) == 5
    rcg.get(actor.take_seen.remote())


def test_teardown_cancels_the_coroutine_that_runs(actor, gate):
    graph = compile_one(actor, "wait", gate)
    ref = graph.execute(5)
    gate.wait_for()
    graph.teardown(timeout=None)
    with pytest.raises(ChannelClosed):
        rcg.get(ref)
    assert rcg.get(actor.take_seen.remote()) == ["cancelled"]


def test_an_async_actor_drives_a_graph_that_it_is_part_of(actor):
    for _ in range(2):
        assert rcg.get(actor.drive_itself.remote(20)) == list(range(1, 21))


def test_an_asynchronous_generator_is_refused_by_name(actor):
    with InputNode() as inp, pytest.raises(UnsupportedNodeError, match=r"stream is a generator"):
        actor.stream.bind(inp)


def test_a_threaded_actor_is_a_member_like_any_other(gate):
    from tests.cluster.stage import Stage

    threaded = Stage.options(max_concurrency=3).remote("threaded")
    with InputNode() as inp:
        dag = threaded.double.bind(threaded.pass_gate_when.bind(inp, 1, gate))
    with dag.compile() as graph:
        ref = graph.execute(1)
        gate.wait_for()
        assert rcg.get(threaded.echo.remote("beside")) == "beside"
        gate.open()
        assert rcg.get(ref) == 2
        assert [rcg.get(graph.execute(i)) for i in range(5)] == [0, 2, 4, 6, 8]
