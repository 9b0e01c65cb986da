# SPDX-License-Identifier: Apache-2.0
"""Executing a compiled graph from one process: refs, outputs, order, backpressure, its end."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest
import ray
from ray.exceptions import (
    RayCgraphCapacityExceeded,
    RayChannelError,
    RayChannelTimeoutError,
)

import rcg
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import (
    CapacityExceededError,
    ChannelClosed,
    ChannelTimeout,
    CompileError,
    GraphError,
)
from tests.cluster.stage import GUARD_S, Stage, compile_echo, compile_gated, in_thread

pytestmark = pytest.mark.usefixtures("ray_session")

# Long enough for a result that is there, and over soon where there is none.
SOON_S = 0.05


def submit_into(refs, graph, count):
    """Execute so many times, or until it raises."""
    for i in range(count):
        refs.append(graph.execute(i))


@pytest.fixture
def echo(stages) -> Iterator[rcg.CompiledDAG]:
    (actor,) = stages(1)
    with compile_echo(actor) as graph:
        yield graph


# --- refs


def test_a_ref_can_be_got_again_and_is_the_same_object_each_time(echo):
    ref = echo.execute([1, 2])
    first = rcg.get(ref)
    assert first == [1, 2]
    assert rcg.get(ref) is first
    assert ref.get() is first
    assert rcg.get([ref, ref]) == [first, first]
    assert rcg.get([]) == []


def test_a_subclass_that_overrides_execute_is_asked(echo):
    class Counting(rcg.CompiledDAG):
        count = 0

        def execute(self, *args):
            self.count += 1
            return super().execute(*args)

    graph = Counting(echo._engine)
    assert rcg.get(graph.execute("x")) == "x"
    assert graph.count == 1


def test_a_timeout_of_get_is_all_the_timeouts_that_people_catch(stages, gate):
    (actor,) = stages(1)
    with compile_gated(actor, gate) as graph:
        ref = graph.execute(0)
        gate.wait_for()
        for kind in (RayChannelTimeoutError, TimeoutError, ChannelTimeout, RayChannelError):
            with pytest.raises(kind):
                rcg.get(ref, timeout=SOON_S)
        with pytest.raises(ChannelTimeout) as raised:
            ref.get(timeout=0)
        # It names the actor and the method that runs.
        assert "pass_gate_when" in raised.value.report
        assert "Plain" in raised.value.report
        gate.open()
        assert rcg.get(ref, timeout=GUARD_S) == 0
        assert rcg.get(ref, timeout=0) == 0


def test_a_long_get_of_rcgs_and_rays_refs_says_what_it_waits_for(stages, gate, monkeypatch):
    (actor,) = stages(1)
    written: list[str] = []

    class Stream:
        write = written.append
        flush = gate.open

    monkeypatch.setattr(sys, "stderr", Stream)
    with compile_gated(actor, gate, report_after=SOON_S) as graph:
        assert rcg.get([rcg.put(5), graph.execute(0)]) == [5, 0]
    (line,) = "".join(written).splitlines()
    assert line.startswith("rcg: get() has waited ") and "in pass_gate_when" in line


def test_the_graphs_own_timeout_is_the_default_of_get(stages, gate):
    (actor,) = stages(1)
    with compile_gated(actor, gate, get_timeout=SOON_S) as graph:
        ref = graph.execute(0)
        with pytest.raises(ChannelTimeout):
            rcg.get(ref)
        with pytest.raises(ChannelTimeout):
            ref.get()
        gate.open()
        assert ref.get(timeout=GUARD_S) == 0


def test_wait_tells_the_ready_from_the_others(stages, gate):
    (actor,) = stages(1)
    with compile_gated(actor, gate) as graph:
        refs = [graph.execute(i) for i in (2, 1, 0, 3)]
        assert rcg.wait(refs, num_returns=2) == (refs[:2], refs[2:])
        assert rcg.wait(refs) == (refs[:1], refs[1:])
        ready, others = rcg.wait(refs, num_returns=3, timeout=SOON_S)
        assert (ready, others) == (refs[:2], refs[2:])
        assert rcg.wait(refs[2:], timeout=0) == ([], refs[2:])
        gate.open()
        assert rcg.wait(refs, num_returns=4) == (refs, [])
        assert rcg.get(refs) == [2, 1, 0, 3]


def test_wait_on_several_graphs_and_on_ray(stages, gates):
    a, b, c = stages(3)
    first, second, third = gates(), gates(), gates()
    with compile_gated(a, first) as one, compile_gated(b, second) as two:
        refs = [one.execute(0), two.execute(0), c.hold_gate.remote(third)]
        for each in (first, second, third):
            each.wait_for()
        assert rcg.wait(refs, timeout=0) == ([], refs)
        second.open()
        assert rcg.wait(refs) == ([refs[1]], [refs[0], refs[2]])
        third.open()
        assert rcg.wait(refs, num_returns=2) == (refs[1:], refs[:1])
        first.open()
        assert rcg.get(refs) == [0, 0, "passed"]


def test_wait_wakes_for_what_another_thread_takes_in(stages, gate):
    """One thread reads the output while another waits on a later result of it."""
    (actor,) = stages(1)
    with compile_gated(actor, gate) as graph:
        first, second = graph.execute(0), graph.execute(1)
        gate.wait_for()
        got = in_thread(lambda: rcg.get(first))
        waited = in_thread(lambda: rcg.wait([second]))
        gate.open()
        assert got() == 0
        assert waited() == ([second], [])


def test_wait_refuses_what_ray_refuses(echo):
    ref = echo.execute(1)
    with pytest.raises(TypeError, match="list"):
        rcg.wait(ref)
    with pytest.raises(ValueError, match="unique"):
        rcg.wait([ref, ref])
    with pytest.raises(ValueError, match="num_returns"):
        rcg.wait([ref], num_returns=2)
    assert rcg.get(ref) == 1


# --- what runs, and in which order


def test_actors_work_at_different_executions_at_the_same_time(stages, gates):
    """The first goes on with later executions while the second is held in an early one."""
    a, b = stages(2)
    came, held = gates(), gates()
    came.open()
    with InputNode() as inp:
        dag = b.pass_gate_when.bind(a.pass_gate.bind(inp, came), 0, held)
    with dag.experimental_compile() as graph:
        refs = [graph.execute(i) for i in range(3)]
        held.wait_for()
        came.wait_for(3)
        assert not refs[0].done()
        held.open()
        assert rcg.get(refs) == [0, 1, 2]


def test_a_method_of_the_same_actor_sees_the_very_object(stages):
    """No copy within a process, as in Ray."""
    (actor,) = stages(1)
    with InputNode() as inp:
        passed = actor.note.bind(inp)
        again = actor.note.bind(passed)
        dag = actor.tell.bind(passed, again)
    with dag.experimental_compile() as graph:
        _, (x, y), _ = rcg.get(graph.execute([1]))
        assert x is y


def test_the_same_node_twice_among_the_outputs(stages):
    a, b = stages(2)
    with InputNode() as inp:
        node = a.note.bind(inp)
        dag = MultiOutputNode([node, b.double.bind(node), node])
    with dag.experimental_compile() as graph:
        first, doubled, second = graph.execute([1])
        assert rcg.get([first, doubled, second]) == [[1], [1, 1], [1]]
        assert rcg.get(first) is rcg.get(second)
        # In any order, one of them dropped, and for more executions than fit a window.
        for i in range(30):
            first, doubled, second = graph.execute([i])
            del first
            assert rcg.get([second, doubled]) == [[i], [i, i]]
            assert second.done()
        assert rcg.get(a.noted.remote()) == [[1], *([i] for i in range(30))]


def test_the_actors_main_thread_on_request(stages):
    """With ``thread="main"`` ordinary calls wait until teardown, and then run."""
    actor = Stage.remote()
    with InputNode() as inp:
        dag = actor.thread.bind(inp)
    own = dag.experimental_compile()
    assert rcg.get(own.execute(1)) != "MainThread"
    own.teardown()
    graph = dag.experimental_compile(thread="main")
    assert rcg.get(graph.execute(1)) == "MainThread"
    waiting = actor.echo.remote("after")
    assert rcg.get(graph.execute(1)) == "MainThread"
    assert ray.wait([waiting], timeout=0) == ([], [waiting])
    graph.teardown()
    assert rcg.get(waiting) == "after"
    rcg.kill(actor)


# --- ordinary calls, several graphs, compiling again


def test_a_second_graph_on_a_main_thread_that_is_taken_is_refused():
    """The actor could not answer: the error names the first graph, and compile does not hang."""
    actor = Stage.remote()
    with InputNode() as inp:
        dag = actor.echo.bind(inp)
    with dag.compile(thread="main") as first:
        with pytest.raises(CompileError, match=first.get_id()[:8]):
            dag.compile()
        assert rcg.get(first.execute(1)) == 1
    with dag.compile() as second:
        assert rcg.get(second.execute(2)) == 2


# --- bad input at run time


def test_a_wrong_number_of_arguments_submits_nothing(stages):
    (actor,) = stages(1)
    with InputNode() as inp:
        dag = actor.note.bind(inp)
    with dag.experimental_compile() as graph:
        for args in ((), (1, 2)):
            with pytest.raises(ValueError, match=f"1 positional args, got {len(args)}"):
                graph.execute(*args)
        with pytest.raises(GraphError):
            graph.execute(inp=1)
        assert rcg.get(graph.execute(5)) == 5
        assert rcg.get(actor.noted.remote()) == [5]


# --- backpressure and limits


def test_a_thousand_executions_without_a_get_do_not_deadlock(stages):
    a, b = stages(2)
    with InputNode() as inp:
        dag = MultiOutputNode([b.double.bind(a.double.bind(inp)), a.echo.bind(inp)])
    with dag.experimental_compile() as graph:
        refs = [graph.execute(i) for i in range(1000)]
        assert [rcg.get(pair) for pair in refs] == [[4 * i, i] for i in range(1000)]


def test_unfetched_results_have_a_limit(stages):
    (actor,) = stages(1)
    with InputNode() as inp:
        dag = actor.note.bind(inp)
    with dag.experimental_compile(max_buffered_results=5) as graph:
        refs = []
        with pytest.raises(RayCgraphCapacityExceeded) as raised:
            submit_into(refs, graph, 1000)
        assert isinstance(raised.value, CapacityExceededError)
        assert raised.value.limit == 5
        assert 5 <= len(refs) < 1000
        with pytest.raises(RayCgraphCapacityExceeded):
            graph.execute("again")
        # Nothing was submitted, and nothing was lost.
        assert rcg.get(refs[0]) == 0
        refs.append(graph.execute(len(refs)))
        assert rcg.get(refs) == list(range(len(refs)))
        assert rcg.get(actor.noted.remote()) == list(range(len(refs)))


def test_execute_waits_for_room_no_longer_than_submit_timeout(stages, gate):
    (actor,) = stages(1)
    with compile_gated(actor, gate, submit_timeout=SOON_S) as graph:
        refs = []
        with pytest.raises(RayChannelTimeoutError):
            submit_into(refs, graph, 1000)
        gate.open()
        assert rcg.get(refs) == list(range(len(refs)))
        assert rcg.get(graph.execute(5)) == 5


# --- threads


def test_many_threads_on_one_graph(stages):
    a, b = stages(2)
    with InputNode() as inp:
        dag = MultiOutputNode([b.echo.bind(a.echo.bind(inp)), a.double.bind(inp)])
    with dag.experimental_compile() as graph:

        def work(thread: int) -> bool:
            kept = []
            for i in range(100):
                value = 1000 * thread + i
                refs = graph.execute(value)
                if i % 3 == 0:
                    kept.append((value, refs))
                elif i % 3 == 1:
                    assert rcg.get(refs[::-1]) == [2 * value, value]
                else:
                    rcg.wait(refs, num_returns=2)
                    assert rcg.get(refs[1]) == 2 * value
            return all(rcg.get(refs) == [value, 2 * value] for value, refs in kept)

        results = [in_thread(lambda n=n: work(n)) for n in range(8)]
        assert all(result() for result in results)


def test_a_thread_that_times_out_leaves_the_others_waiting(stages, gate):
    """The thread that reads times out; one of the others has to read then."""
    (actor,) = stages(1)
    with compile_gated(actor, gate) as graph:
        refs = [graph.execute(0), graph.execute(1)]
        gate.wait_for()
        impatient = in_thread(lambda: rcg.get(refs[0], timeout=SOON_S))
        patient = [in_thread(lambda ref=ref: rcg.get(ref)) for ref in refs]
        with pytest.raises(ChannelTimeout):
            impatient()
        gate.open()
        assert [result() for result in patient] == [0, 1]


# --- the end


def test_teardown_is_idempotent_and_leaves_the_actors_usable(stages):
    a, b = stages(2)
    with InputNode() as inp:
        dag = b.echo.bind(a.echo.bind(inp))
    graph = dag.experimental_compile()
    assert rcg.get(graph.execute(1)) == 1
    assert not graph.is_teardown
    broken = []
    graph.on_broken(lambda: broken.append(True))
    graph.check_health()
    graph.teardown()
    graph.teardown()
    assert graph.is_teardown
    assert not broken
    with pytest.raises(ChannelClosed):
        graph.check_health()
    assert rcg.get([a.echo.remote(2), b.echo.remote(3)]) == [2, 3]
    left = [actor.join_threads.remote(graph.get_id()) for actor in (a, b)]
    assert rcg.get(left) == [[], []]


def test_teardown_from_several_threads(stages):
    (actor,) = stages(1)
    graph = compile_echo(actor)
    ref = graph.execute(1)
    for end in [in_thread(graph.teardown) for _ in range(8)]:
        end()
    with pytest.raises(ChannelClosed):
        graph.execute(2)
    with pytest.raises(ChannelClosed):
        rcg.get(ref)


def test_after_teardown_everything_raises_at_once(stages, gate):
    (actor,) = stages(1)
    graph = compile_gated(actor, gate)
    fetched, unfetched, pending = graph.execute(1), graph.execute(2), graph.execute(0)
    assert rcg.get(fetched) == 1
    gate.wait_for()
    gate.open()
    graph.teardown()
    for kind in (RayChannelError, ChannelClosed):
        with pytest.raises(kind, match="Channel closed"):
            graph.execute(3)
        with pytest.raises(kind, match="Channel closed"):
            rcg.get(pending)
        with pytest.raises(kind, match="Channel closed"):
            rcg.get([unfetched])
    assert pending.done()
    assert rcg.wait([pending]) == ([pending], [])
    # What was fetched before stays.
    assert rcg.get(fetched) == 1


def test_teardown_wakes_who_waits(stages, gates):
    """In get, in wait and in execute, whatever the actor does."""
    a, b = stages(2)
    held = gates()
    with InputNode() as inp:
        dag = b.echo.bind(a.pass_gate_when.bind(inp, 0, held))
    graph = dag.experimental_compile(teardown_timeout=GUARD_S)
    ref = graph.execute(0)
    held.wait_for()
    gets = [in_thread(lambda: rcg.get(ref)) for _ in range(2)]
    many = in_thread(lambda: [graph.execute(i) for i in range(1, 100)])
    waits = in_thread(lambda: rcg.wait([ref]))
    ending = in_thread(graph.teardown)
    for waiting in (*gets, many):
        with pytest.raises(ChannelClosed):
            waiting()
    assert waits() == ([ref], [])
    held.open()
    ending()
    assert rcg.get(a.echo.remote(1)) == 1


def test_teardown_does_not_wait_for_ever_for_a_method(stages, gate):
    """After its timeout, teardown raises, with the line of the method; it may be called again."""
    (actor,) = stages(1)
    graph = compile_gated(actor, gate, teardown_timeout=SOON_S)
    graph.execute(0)
    gate.wait_for()
    for timeout in ({}, {"timeout": SOON_S}):
        with pytest.raises(ray.exceptions.RayChannelTimeoutError, match="in pass_through") as late:
            graph.teardown(**timeout)
        assert "Plain" in late.value.message
    assert graph.is_teardown
    gate.open()
    graph.teardown(timeout=None)
    assert rcg.get(actor.join_threads.remote(graph.get_id())) == []
    with compile_echo(actor) as again:
        assert rcg.get(again.execute(1)) == 1


def test_kill_actors_on_request(gate):
    a, b = Stage.remote(), Stage.remote()
    with InputNode() as inp:
        dag = b.pass_gate_when.bind(a.echo.bind(inp), 0, gate)
    graph = dag.experimental_compile(teardown_timeout=SOON_S)
    graph.execute(0)
    gate.wait_for()
    graph.teardown(kill_actors=True)
    for actor in (a, b):
        with pytest.raises(ray.exceptions.RayActorError):
            rcg.get(actor.echo.remote(1))


def test_a_graph_that_is_torn_down_can_still_kill_its_actors():
    actor = Stage.remote()
    graph = compile_echo(actor)
    graph.teardown()
    assert rcg.get(actor.echo.remote(1)) == 1
    graph.teardown(kill_actors=True)
    with pytest.raises(ray.exceptions.RayActorError):
        rcg.get(actor.echo.remote(1))


def test_with_raises_what_happened_in_its_body_and_not_that_teardown_was_late(stages, gate, caplog):
    (actor,) = stages(1)
    graph = compile_gated(actor, gate, teardown_timeout=SOON_S)

    def fail_inside():
        with graph:
            graph.execute(0)
            gate.wait_for()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail_inside()
    assert any("pass_gate_when" in record.getMessage() for record in caplog.records)
    assert graph.is_teardown
    gate.open()
    graph.teardown(timeout=None)


def test_minus_one_for_no_limit_is_one_warning_at_the_users_line(stages):
    (actor,) = stages(1)
    with compile_echo(actor) as graph:
        refs = [graph.execute(i) for i in range(2)]
        for call in (
            lambda: rcg.get(refs[0], timeout=-1),
            lambda: refs[1].get(timeout=-1),
            lambda: rcg.get(refs, timeout=-1),
            lambda: graph.teardown(timeout=-1),
        ):
            with pytest.warns(DeprecationWarning, match="None") as caught:
                call()
            assert [warning.filename for warning in caught] == [__file__]


def test_binding_the_name_again_tears_the_old_graph_down(stages):
    """As in a notebook: no reference, no graph. Reference counting is enough, no collector.

    The session keeps handles of the actors, which may end with it.
    """
    a, b = stages(2)
    gc.disable()
    try:
        cdag = compile_echo(a)
        assert rcg.get(cdag.execute(1)) == 1
        old, seen = cdag.get_id(), [weakref.ref(cdag), weakref.ref(cdag._engine.session)]
        cdag = compile_echo(b)
        assert [each() for each in seen] == [None, None]
    finally:
        gc.enable()
    assert rcg.get(a.join_threads.remote(old)) == []
    assert rcg.get(cdag.execute(2)) == 2
    cdag.teardown()


def test_an_awaited_graph_is_collected_too(stages):
    """The thread that waits for asyncio must not keep the graph."""
    import asyncio

    (actor,) = stages(1)
    graph = compile_echo(actor)

    async def use(graph) -> None:
        for i in range(50):
            assert await (await graph.execute_async(i)) == i

    asyncio.run(use(graph))
    seen, old = weakref.ref(graph), graph.get_id()
    del graph
    gc.collect()
    assert seen() is None
    assert rcg.get(actor.join_threads.remote(old)) == []
    left = [t for t in threading.enumerate() if t.name.endswith(old[:6])]
    for thread in left:
        thread.join(GUARD_S)
        assert not thread.is_alive()
