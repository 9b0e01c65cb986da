# SPDX-License-Identifier: Apache-2.0
"""Profiles of real actors: nothing is lost, nothing is invented, and it shows who is stuck."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
import weakref

import numpy as np
import pytest
import ray

import rcg
from rcg import _native
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import ActorDiedError, ChannelClosed, OutOfSharedMemory, TraceError
from rcg.ir.ops import Call, Read, Write
from rcg.runtime.observe import profiler as profiling
from rcg.trace import spans
from rcg.trace.model import NO_PEER, SPAN_BASE, Clock, stream_number
from tests.cluster.nodes import is_together
from tests.cluster.stage import in_thread, until

pytestmark = pytest.mark.usefixtures("ray_session")


CALL = 1  # of an actor that calls one method on one input


@ray.remote
class Traced:
    """An actor whose methods have spans."""

    def spin(self, cpu_s):
        end = time.thread_time() + cpu_s
        while time.thread_time() < end:
            pass

    def work(self, x):
        with rcg.span("outer"):
            for _ in range(2):
                with rcg.span("inner"):
                    pass
        return x

    def fork(self, x):
        child = os.fork()
        if not child:
            with rcg.span("child"):
                pass
            os._exit(x)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def on_streams(self, x):
        """Record what a device would have done, on two streams, and too many names."""
        writer = spans.here.get()
        writer.write("gemm", x, 1000, 3000, stream_number(0, 7))
        writer.write("copy", x, 2000, 2500, stream_number(1, 1 << 15))
        for number in range(_native.MAX_SPANS):
            with rcg.span(f"span {number}"):
                pass
        writer.write("late", x, 3000, 4000, stream_number(0, 7))
        return x

    def fail(self, x):
        with rcg.span("failing"):
            raise ValueError(x)

    def in_thread(self, x):
        with rcg.span("before"):
            pass
        thread = threading.Thread(target=self.work, args=(x,))
        thread.start()
        thread.join()
        return x


@ray.remote
class Coroutine:
    """An actor with an event loop."""

    async def work(self, x):
        with rcg.span("awaiting"):
            await asyncio.sleep(0)
            await asyncio.to_thread(self.elsewhere)
        return x

    async def leave_behind(self, x):
        if x == 0:
            self.left, self.done = asyncio.Event(), asyncio.create_task(self.background())
            await asyncio.sleep(0)
        if x == 2:
            self.left.set()
            await self.done
        return x

    async def background(self):
        with rcg.span("background"):
            await self.left.wait()

    def elsewhere(self):
        with rcg.span("thread"):
            pass


@pytest.fixture(scope="module")
def traced(ray_session):
    return rcg.wrap_actor(Traced.remote())


@pytest.fixture(scope="module")
def coroutine(ray_session):
    return rcg.wrap_actor(Coroutine.remote())


def compile_one(method):
    with InputNode() as inp:
        return method.bind(inp).compile()


def chain(a, b, **options):
    with InputNode() as inp:
        return b.double.bind(a.echo.bind(inp)).compile(**options)


def ops_of(graph, lane):
    """The events of a lane that are ops, as (op, execution)."""
    ops = graph.program(lane).ops
    return [(ops[e["op"]], int(e["execution"])) for e in lane.events if e["op"] < SPAN_BASE]


def complete(profile, graph=None):
    """How many executions a profile holds from their submission on; of others it may have ends."""
    return int(profile.executions(graph).is_complete.sum())


# --- what is recorded


def actors_in(recorded):
    """The lanes of the actors, without the driver and gates."""
    return [lane for lane in recorded.lanes if lane.process.startswith("a")]


def test_every_op_of_every_execution_is_one_event(stages):
    a, b = stages(2)
    count = 6_000  # the flight recorder alone holds 4096 events
    with chain(a, b) as graph:
        with graph.profile() as profile:
            for i in range(count):
                assert rcg.get(graph.execute(i)) == 2 * i
        trace = profile.trace
    assert trace.lost == 0
    (recorded,) = trace.graphs
    assert recorded.graph_id == graph.get_id()
    assert recorded.plan == graph.plan
    assert [lane.label for lane in actors_in(recorded)] == ["a0 (Plain)", "a1 (Plain)"]
    for lane in actors_in(recorded):
        found = ops_of(recorded, lane)
        for kind in (Read, Call, Write):
            executions = [execution for op, execution in found if isinstance(op, kind)]
            assert executions == list(range(count))
        events = lane.events
        assert (events["start_ns"][1:] == events["end_ns"][:-1]).all()
        assert (
            events["waited_ns"] + events["coded_ns"] <= events["end_ns"] - events["start_ns"]
        ).all()
    driver = ops_of(recorded, recorded.driver)
    assert {execution for op, execution in driver if isinstance(op, Write)} == set(range(count))
    assert {execution for op, execution in driver if isinstance(op, Read)} == set(range(count))


def test_a_wait_says_for_whom_and_bytes_and_coding_are_known(stages, gate):
    a, b = stages(2)
    array = np.arange(100_000.0)
    with InputNode() as inp:
        held = a.pass_gate.bind(inp, gate)
        dag = MultiOutputNode([held, b.echo.bind(held)])
    with dag.compile() as graph, graph.profile() as profile:
        refs = graph.execute(array)
        gate.wait_for()
        gate.open()
        rcg.get(refs)
    recorded = profile.graph()
    first, second = actors_in(recorded)
    numbers = {lane.process: number for number, lane in enumerate(recorded.lanes)}
    (read,) = [e for e in second.events if e["execution"] == 0 and e["op"] == 0]
    assert read["peer"] == numbers["a0"]
    assert read["waited_ns"] > 0
    assert read["bytes"] >= array.nbytes
    assert read["coded_ns"] > 0
    (write,) = [e for e in first.events if isinstance(recorded.op(first, int(e["op"])), Write)]
    assert write["bytes"] >= array.nbytes
    assert write["coded_ns"] > 0
    calls = [e for e in first.events if isinstance(recorded.op(first, int(e["op"])), Call)]
    assert [(e["peer"], e["bytes"]) for e in calls] == [(NO_PEER, 0)]
    submitted, *_ = recorded.driver.events
    assert submitted["coded_ns"] > 0


# --- spans


def test_spans_lie_inside_the_calls_they_belong_to(traced):
    graph = compile_one(traced.work)
    with graph, graph.profile() as profile:
        for i in range(3):
            rcg.get(graph.execute(i))
    recorded = profile.graph()
    lane = recorded.lane("a0")
    assert set(lane.spans) == {"outer", "inner"}
    for execution in range(3):
        mine = lane.events[lane.events["execution"] == execution]
        (call,) = [e for e in mine if e["op"] == CALL]
        names = [lane.span_name(int(e["op"])) for e in mine if e["op"] >= SPAN_BASE]
        assert names == ["outer", "inner", "inner"]
        outer, *inner = [e for e in mine if e["op"] >= SPAN_BASE]
        assert call["start_ns"] <= outer["start_ns"] <= outer["end_ns"] <= call["end_ns"]
        for each in inner:
            assert outer["start_ns"] <= each["start_ns"] <= each["end_ns"] <= outer["end_ns"]


def test_a_graph_is_called_as_given_or_as_it_is_assigned_or_by_its_last_method(traced, monkeypatch):
    with InputNode() as inp:
        dag = traced.work.bind(inp)
    with dag.compile() as graph:
        assert graph.name == graph.report().name == "Traced.work"
        monkeypatch.setattr(sys.modules["__main__"], "_7", graph, raising=False)
        monkeypatch.setattr(sys.modules["__main__"], "pipeline", graph, raising=False)
        with graph.profile() as profile:
            rcg.get(graph.execute(1))
        assert graph.name == "pipeline"
        assert profile.graph().title == f"pipeline ({graph.get_id()[:8]})"
    with dag.compile(name="my graph") as graph:
        monkeypatch.setattr(sys.modules["__main__"], "pipeline", graph)
        assert graph.name == "my graph"
    for wrong, error in (
        (3, TypeError),
        ("", ValueError),
        ("a\nb", ValueError),
        ("x" * 61, ValueError),
    ):
        with pytest.raises(error, match="`name` must"):
            dag.compile(name=wrong)


def test_what_a_device_did_stands_beside_what_its_actor_did(traced, tmp_path):
    graph = compile_one(traced.on_streams)
    with graph, graph.profile() as profile:
        rcg.get(graph.execute(0))
    profile.trace.save(tmp_path / "trace")  # a file with so many names can be read
    lane = rcg.Trace.load(tmp_path / "trace").graphs[0].lane("a0")
    assert lane.streams == ("GPU 0, stream 7", "GPU 1, stream 32768")
    kernels = [
        (lane.span_name(int(each["op"])), int(each["start_ns"]), lane.streams[each["peer"]])
        for each in lane.kernels
    ]
    assert kernels == [
        ("gemm", 1000, lane.streams[0]),
        ("copy", 2000, lane.streams[1]),
        ("(another name)", 3000, lane.streams[0]),
    ]
    names = [lane.span_name(int(op)) for op in lane.events["op"] if op >= SPAN_BASE]
    assert names[0] == "span 0" and names[-1] == "(another name)"
    assert len(names) == _native.MAX_SPANS


def test_spans_of_coroutines_and_their_threads_are_recorded(coroutine):
    graph = compile_one(coroutine.work)
    with graph, graph.profile() as profile:
        rcg.get(graph.execute(1))
    assert profile.graph().lane("a0").spans == ("thread", "awaiting")


def test_it_says_how_long_methods_were_on_a_processor(traced):
    """Each of four methods runs until its thread has had 20 ms of a processor."""
    graph = compile_one(traced.spin)
    with graph:
        graph.execute(0.001).get()
        with graph.profile() as profile:
            rcg.get([graph.execute(0.02) for _ in range(4)])
    graph = profile.graph()
    assert graph.lane("driver").processor_ns is None
    thread_ns, process_ns = graph.lane("a0").processor_ns
    assert 80_000_000 <= thread_ns <= process_ns


def test_a_span_belongs_to_the_execution_that_began_it(coroutine):
    graph = compile_one(coroutine.leave_behind)
    with graph, graph.profile() as profile:
        for i in range(3):
            rcg.get(graph.execute(i))
    (span,) = [e for e in profile.graph().lane("a0").events if e["op"] >= SPAN_BASE]
    assert span["execution"] == 0


def test_a_span_in_a_forked_child_does_nothing(traced):
    graph = compile_one(traced.fork)
    with graph:
        assert rcg.get(graph.execute(5)) == 5


def test_a_span_elsewhere_does_nothing_and_an_exception_ends_one(traced):
    assert ray.get(traced.work.remote(5)) == 5  # an ordinary call
    with rcg.span("driver"):
        pass
    with pytest.raises(TypeError, match=r"rcg\.span\(\) takes the span's name as a str, found 3"):
        rcg.span(3)
    with InputNode() as inp:
        graph = MultiOutputNode([traced.fail.bind(inp), traced.in_thread.bind(inp)]).compile()
    with graph, graph.profile() as profile:
        failed, fine = graph.execute(7)
        with pytest.raises(ValueError, match="7"):
            rcg.get(failed)
        assert rcg.get(fine) == 7
    # A thread that the method starts by itself has no context of its own.
    assert profile.graph().lane("a0").spans == ("failing", "before")


# --- on, off, and on what


def test_all_graphs_of_the_process_are_recorded_also_new_ones_and_those_torn_down(stages):
    a, b = stages(2)
    first = chain(a, b)
    with rcg.profile() as profile:
        rcg.get(first.execute(1))
        second = chain(b, a)
        rcg.get([second.execute(i) for i in range(3)])
        second.teardown()
    assert profile.is_complete
    assert [graph.graph_id for graph in profile.trace.graphs] == [first.get_id(), second.get_id()]
    assert [complete(profile, number) for number in range(2)] == [1, 3]
    assert profile.graph(second.get_id()[:6]).graph_id == second.get_id()
    with pytest.raises(TraceError, match="choose one by its number, id or name, as in `graph=0`"):
        profile.graph()
    with pytest.raises(TraceError, match="no graph 'x'"):
        profile.graph("x")
    first.teardown()


def test_it_can_be_switched_on_and_off_again_and_again(stages):
    a, b = stages(2)
    with chain(a, b) as graph:
        profiler = graph.profile()
        for turn in range(3):
            profile = profiler.start()
            with pytest.raises(TraceError, match="recorded already"):
                profiler.start()
            with pytest.raises(TraceError, match="still being recorded"):
                profile.trace  # noqa: B018
            assert str(profile) == "a profile that is being recorded"
            rcg.get([graph.execute(i) for i in range(turn + 1)])
            assert profiler.stop() is profile
            rcg.get(graph.execute(0))  # between profiles
            assert complete(profile) == turn + 1
        with pytest.raises(TraceError, match="start"):
            profiler.stop()
        with graph.profile() as outer, graph.profile() as inner:
            rcg.get(graph.execute(0))
        assert outer.trace.num_events >= inner.trace.num_events > 0


def test_what_it_refuses(stages):
    a, b = stages(2)
    silent = chain(a, b, record=False)
    with silent, pytest.raises(TraceError, match="no flight recorder"):
        silent.profile().start()
    with pytest.raises(ChannelClosed), silent.profile():
        pass
    for wrong in (0, -1, 2.5, True, "many"):
        with pytest.raises(ValueError, match="`max_events` must be a positive integer"):
            silent.profile(max_events=wrong)


def test_a_limit_on_events_counts_what_it_leaves_out(stages):
    a, b = stages(2)
    with chain(a, b) as graph, graph.profile(max_events=100) as profile:
        for i in range(100):
            rcg.get(graph.execute(i))
    if is_together(graph):
        assert profile.trace.num_events == 3 * 34  # each process may fill its part of it
    else:
        assert 100 < profile.trace.num_events <= 2 * 3 * 34  # each node has so many
    assert profile.trace.lost > 500


def test_without_room_for_it_the_graph_goes_on(stages, monkeypatch):
    a, b = stages(2)
    with chain(a, b) as graph:
        segments = type(graph._engine.session.host._segments)
        monkeypatch.setattr(segments, "board", property(lambda _: -1))
        with pytest.raises(OutOfSharedMemory, match="no shared memory to record a profile in"):
            graph.profile().start()
        monkeypatch.undo()
        assert rcg.get(graph.execute(1)) == 2
        with graph.profile() as profile:
            rcg.get(graph.execute(1))
        assert profile.trace.num_events > 0


def test_a_profiler_keeps_no_graph_alive(stages):
    a, b = stages(2)
    graph = chain(a, b)
    profiler = graph.profile()
    gone = weakref.ref(graph)
    del graph
    gc.collect()
    assert gone() is None
    with profiler as profile:
        pass
    assert profile.trace.graphs == ()


def test_it_leaves_no_thread_and_no_descriptor_behind(stages):
    a, b = stages(2)

    def held():
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    gc.collect()
    with chain(a, b) as graph:
        with graph.profile():
            pass
        before = held()
        for _ in range(5):
            with graph.profile():
                rcg.get(graph.execute(1))
        graph.profile().start()  # dropped while it records
        gc.collect()
        until(lambda: held() == before)


def test_a_profiler_records_what_is_alive_when_it_starts(stages):
    a, b = stages(2)
    early = chain(a, b)
    profiler = rcg.profile()
    late = chain(b, a)
    early.teardown()
    with profiler as profile:
        rcg.get(late.execute(1))
    recorded = {graph.graph_id for graph in profile.trace.graphs}
    assert late.get_id() in recorded
    assert early.get_id() not in recorded
    late.teardown()


def test_a_profile_of_all_says_which_graph_it_leaves_out(stages):
    a, b = stages(2)
    with chain(a, b, record=False) as silent:
        with pytest.warns(RuntimeWarning, match="has no flight recorder"), rcg.profile():
            pass
        assert rcg.get(silent.execute(1)) == 2


@pytest.mark.parametrize("at", range(5))
def test_ctrl_c_while_it_stops_loses_nothing(stages, monkeypatch, at):
    a, b = stages(2)
    steps = iter(range(100))

    def interrupted(call):
        def step(*args):
            value = call(*args)
            if next(steps) == at:
                raise KeyboardInterrupt
            return value

        return step

    with chain(a, b) as graph:
        profiler = graph.profile()
        profile = profiler.start()
        for i in range(50):
            rcg.get(graph.execute(i))
        for name in ("_open_ops", "_settle", "now_ns", "_graph_trace", "_info"):
            monkeypatch.setattr(
                f"rcg.runtime.observe.profiler.{name}", interrupted(getattr(profiling, name))
            )
        with pytest.raises(KeyboardInterrupt):
            profiler.stop()
        monkeypatch.undo()
        assert complete(profile) == 50
        assert profile.trace.lost == 0


def test_ctrl_c_when_all_is_done_is_ctrl_c(stages, monkeypatch):
    a, b = stages(2)
    with chain(a, b) as graph:
        profiler = graph.profile()
        profile = profiler.start()
        rcg.get(graph.execute(1))
        stop, presses = profiler._stop, iter([KeyboardInterrupt])

        def stopped(*args):
            stop(*args)
            for pressed in presses:
                raise pressed

        monkeypatch.setattr(profiler, "_stop", stopped)
        with pytest.raises(KeyboardInterrupt):
            profiler.stop()
        monkeypatch.undo()
        assert complete(profile) == 1
        with profiler as again:  # it can be used on
            rcg.get(graph.execute(1))
        assert complete(again) == 1


# --- what the times are


def waits_in(graph, process, execution):
    """Whether a process waits, in this execution."""
    (found,) = (each for each in graph.report().processes if each.process == process)
    return (found.state, found.execution) == ("waiting", execution)


def test_times_of_another_clock_are_converted_to_ours(stages, gate, monkeypatch):
    a, b = stages(2)
    behind = 10**12  # a clock that was started later
    with InputNode() as inp:
        graph = b.echo.bind(a.pass_gate_when.bind(inp, 1, gate)).compile()
    with graph:
        refs = [graph.execute(i) for i in range(2)]
        gate.wait_for()
        until(lambda: waits_in(graph, "a1", 1))  # what it did before is written down
        ours = graph.trace().graphs[0]
        monkeypatch.setattr(
            graph._engine.session.control.questions, "clocks", lambda _: {"a0": Clock(-behind, 50)}
        )
        moved = graph.trace().graphs[0]
        monkeypatch.undo()
        for field in ("start_ns", "end_ns"):
            before, after = (each.lane("a0").events[field] for each in (ours, moved))
            assert np.array_equal(before - behind, after)
        assert moved.lane("a0").clock.error_ns == 50
        assert moved.lane("a0").open.since_ns == ours.lane("a0").open.since_ns - behind
        assert np.array_equal(ours.lane("a1").events, moved.lane("a1").events)
        gate.open()
        rcg.get(refs)


def test_who_has_a_result_can_be_sure_that_its_writing_is_recorded(stages):
    a, b = stages(2)
    with chain(a, b) as graph:
        for _ in range(30):
            with graph.profile() as profile:
                rcg.get([graph.execute(i) for i in range(5)])
            executions = profile.executions()
            assert executions.is_complete.sum() == 5
            whole = executions.is_complete
            assert (executions.completed_ns <= executions.fetched_ns)[whole].all()
            assert profile.summary.graphs[0].critical.is_whole


def test_a_turn_on_an_actor_is_waited_for_and_not_computed(stages, gate):
    (actor,) = stages(1)
    with InputNode() as inp:
        holding = actor.pass_gate.bind(inp, gate).compile()
    with InputNode() as inp:
        kept_out = actor.echo.bind(inp).compile()
    with holding, kept_out, kept_out.profile() as profile:
        held = holding.execute(1)
        gate.wait_for()
        ref = kept_out.execute(2)
        until(lambda: "not in the method yet" in str(kept_out.report()))
        until_ns = time.monotonic_ns() + 20_000_000
        until(lambda: time.monotonic_ns() > until_ns)
        gate.open()
        rcg.get([held, ref])
    lane = profile.graph().lane("a0")
    (call,) = [e for e in lane.events if e["op"] == CALL]
    assert 15e6 < call["waited_ns"] <= call["end_ns"] - call["start_ns"]


def test_a_value_that_cannot_be_sent_takes_no_time_of_the_next(stages):
    (actor,) = stages(1)
    with InputNode() as inp:
        graph = actor.echo.bind(inp).compile()
    with graph, graph.profile() as profile:
        with pytest.raises(TypeError):
            graph.execute(threading.Lock())
        until_ns = time.monotonic_ns() + 50_000_000
        until(lambda: time.monotonic_ns() > until_ns)
        rcg.get(graph.execute([1]))
    driver = profile.graph().driver
    assert driver.events["start_ns"].min() >= until_ns  # nothing of it belongs to the first


def test_a_wait_in_vain_is_the_drivers_waiting(stages, gate):
    (actor,) = stages(1)
    with InputNode() as inp:
        graph = actor.pass_gate.bind(inp, gate).compile()
    with graph, graph.profile() as profile:
        ref = graph.execute(1)
        gate.wait_for()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                ref.get(timeout=0.03)
        rcg.wait([ref], timeout=0.03)
        gate.open()
        assert ref.get() == 1
    (driver, *_) = profile.summary.graphs[0].shares.lanes
    assert driver.waiting_ns > 100_000_000


# --- the stuck and the dead


def test_it_shows_what_a_stuck_actor_is_in(stages, gate):
    a, b = stages(2)
    with InputNode() as inp:
        graph = b.echo.bind(a.pass_gate.bind(inp, gate)).compile()
    with graph:
        with graph.profile() as profile:
            ref = graph.execute(1)
            gate.wait_for()
            getting = in_thread(ref.get)
            until(lambda: [each.state for each in graph.report().processes].count("waiting") == 2)
        recorded = profile.graph()
        stuck, waiting = recorded.lane("a0"), recorded.lane("a1")
        assert isinstance(recorded.op(stuck, stuck.open.op), Call)
        assert stuck.open.waiting_since_ns == 0
        assert isinstance(recorded.op(waiting, waiting.open.op), Read)
        assert waiting.open.waiting_since_ns > 0
        assert recorded.lanes[waiting.open.peer] is stuck
        assert recorded.lanes[recorded.driver.open.peer] is waiting
        now = graph.trace()  # without a profile
        assert now.graphs[0].lane("a0").open.op == stuck.open.op
        gate.open()
        assert getting() == 1


def test_it_holds_what_the_dead_did(victims):
    a, b = victims.take(), victims.take()
    graph = chain(a, b)
    pid = rcg.get(b.pid.remote())
    with pytest.raises(ActorDiedError), graph.profile() as profile:  # noqa: PT012
        for i in range(10):
            rcg.get(graph.execute(i))
        os.kill(pid, signal.SIGKILL)
        rcg.get(graph.execute(10))
    dead = profile.graph().lane("a1")
    found = {int(e["execution"]) for e in dead.events}
    # A host sends its node's events ten times a second: what it had not sent is lost with it.
    if is_together(graph, "driver", "a1"):
        assert found >= set(range(10))
    else:
        assert found <= set(range(11))
    assert dead.open is None  # it does nothing any more
    assert graph.trace().num_events > 0
    graph.teardown()
    assert graph.trace().num_events > 0


def test_the_flight_recorder_without_a_profile_is_the_newest_events(stages):
    a, b = stages(2)
    with chain(a, b) as graph:
        for i in range(3000):
            rcg.get(graph.execute(i))
        trace = graph.trace()
        (recorded,) = trace.graphs
        assert trace.lost == 0
        for lane in actors_in(recorded):
            assert len(lane.events) in (4095, 4096)
        assert trace.start_ns == max(lane.events["start_ns"][0] for lane in recorded.lanes)
        assert int(recorded.lane("a0").events["execution"][-1]) == 2999
