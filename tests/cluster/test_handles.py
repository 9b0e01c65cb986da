# SPDX-License-Identifier: Apache-2.0
"""A compiled graph that is used by processes other than the one that compiled it."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import pickle
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import ray

import rcg
from rcg.dag import InputNode, MultiOutputNode
from rcg.runtime.remote.client import ask_report
from tests.cluster.nodes import tells_last_op
from tests.cluster.stage import GUARD_S, Refusal, Stage, until
from tests.harness.circles import core_has
from tests.harness.peers import suspend

pytestmark = pytest.mark.usefixtures("ray_session")


class Bomb:
    """Raises in the second process that loads it: the graph's owner, on the way back."""

    def __init__(self, loads=0):
        self.loads = loads

    def __reduce__(self):
        return _load_bomb, (self.loads + 1,)


def _load_bomb(loads):
    return 1 // 0 if loads > 1 else Bomb(loads)


@rcg.remote(num_cpus=0)
class Caller:
    """Another process, which is given a graph."""

    def take(self, graph):
        self.graph = graph
        return type(graph).__name__

    def run(self, *inputs):
        return rcg.get([self.graph.execute(x) for x in inputs])

    def start(self, x):
        self.ref = self.graph.execute(x)
        return repr(self.ref)

    def finish(self, timeout=None):
        return self.ref.get(timeout)

    def try_finish(self, timeout=None):
        return outcome_of(lambda: self.ref.get(timeout))

    def try_run(self, x):
        return outcome_of(lambda: rcg.get(self.graph.execute(x)))

    def try_start(self, x):
        return outcome_of(lambda: self.start(x))

    def run_async(self, inputs):
        async def one(x):
            return await (await self.graph.execute_async(x))

        async def all_of_them():
            return await asyncio.gather(*map(one, inputs))

        return asyncio.run(all_of_them())

    def run_both(self, x, y):
        refs = self.graph.execute(x, extra=y)
        ready, others = rcg.wait(refs, num_returns=3)
        assert not others
        return [ref.get() for ref in ready], [repr(ref) for ref in refs]

    def arrays_come_mapped(self, size):
        given = np.arange(size, dtype="f8")
        ref = self.graph.execute(given)
        first, second = ref.get(), ref.get()
        return first is second, bool((first == given).all()), first.flags.writeable

    def drop_refs(self, count):
        for i in range(count):
            self.graph.execute(i)
        gc.collect()
        return rcg.get(self.graph.execute(-1))

    def report(self):
        return self.graph.report()

    def pass_on(self, other):
        return rcg.get(other.take.remote(self.graph))

    def report_text(self):
        """What a get that times out says while the owner is stopped."""
        return outcome_of(lambda: ask_report(self.graph._facts, 0.2))

    def hold(self, count):
        """How many more descriptors are open while so many large results are held."""
        self.held = []
        before = len(os.listdir("/proc/self/fd"))
        self.held = [rcg.get(self.graph.execute(np.arange(20_000))) for _ in range(count)]
        after = len(os.listdir("/proc/self/fd"))
        assert all(each[-1] == 19_999 for each in self.held)
        self.held = []
        return after - before

    def close_another(self, graph):
        assert graph is not self.graph
        assert rcg.get(graph.execute(1)) == 1
        graph.close()
        return outcome_of(lambda: graph.execute(2))

    def run_a_bomb(self):
        return outcome_of(lambda: rcg.get(self.graph.execute(Bomb())))

    def let_go(self):
        self.graph = self.ref = None
        gc.collect()

    def handle_threads(self):
        return len(threads_named("rcg-handle"))

    def pid(self):
        return os.getpid()


def threads_named(prefix):
    """The threads of this process whose name begins so."""
    return [t.name for t in threading.enumerate() if t.name.startswith(prefix)]


def outcome_of(call):
    """The value, or the classes and the text of what was raised."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - it is asserted upon
        return [kind.__name__ for kind in type(error).__mro__], str(error)


def compile_chain(a, b):
    with InputNode() as inp:
        return b.echo.bind(a.fail_when.bind(inp, 13)).compile()


def compile_echo(a):
    with InputNode() as inp:
        return a.echo.bind(inp).compile()


def compile_gated(a, b, gate, **options):
    """An input of 0 stops at the gate, on the first actor."""
    with InputNode() as inp:
        return b.echo.bind(a.pass_gate_when.bind(inp, 0, gate)).compile(**options)


@pytest.fixture(scope="module")
def callers():
    return [Caller.remote() for _ in range(2)]


@pytest.fixture
def caller(callers):
    yield callers[0]
    rcg.get([each.let_go.remote() for each in callers])


def give(graph, *callers):
    assert rcg.get([each.take.remote(graph) for each in callers]) == ["CompiledDAGHandle"] * len(
        callers
    )


def test_another_actor_executes_and_gets(stages, caller):
    with compile_chain(*stages(2)) as graph:
        give(graph, caller)
        assert rcg.get(caller.run.remote(*range(12))) == list(range(12))
        assert rcg.get(graph.execute(99)) == 99
        assert rcg.get(caller.run_async.remote(list(range(20, 60)))) == list(range(20, 60))


def test_execution_indices_are_the_graphs(stages, caller):
    with compile_chain(*stages(2)) as graph:
        give(graph, caller)
        assert rcg.get(graph.execute(1)) == 1
        shown = rcg.get(caller.start.remote(2))
        assert shown == f"CompiledDAGRef({graph.get_id()}, execution_index=1, channel_index=None)"
        assert rcg.get(caller.finish.remote()) == 2


def test_several_callers_and_the_owner_at_once(stages, callers, caller):
    with compile_chain(*stages(2)) as graph:
        give(graph, *callers)
        given = [list(range(start, start + 60)) for start in (300, 400)]
        calls = [each.run.remote(*xs) for each, xs in zip(callers, given, strict=True)]
        own = [rcg.get(graph.execute(i)) for i in range(200, 260)]
        assert own == list(range(200, 260))
        assert rcg.get(calls) == given


def test_inputs_by_position_and_name_and_several_outputs(stages, caller):
    a, b = stages(2)
    with InputNode() as inp:
        total = a.add.bind(inp[0], inp.extra)
        dag = MultiOutputNode([total, b.echo.bind(inp.extra), total])
    with dag.compile() as graph:
        give(graph, caller)
        values, shown = rcg.get(caller.run_both.remote(3, 4))
        assert values == [7, 4, 7]
        assert [text.rpartition("=")[2] for text in shown] == ["0)", "1)", "2)"]
        kinds, text = rcg.get(caller.try_run.remote(1))
        assert "GraphError" in kinds and "kwarg `extra`" in text


@pytest.mark.parametrize("size", [10, 3_000, 1_000_000])
def test_arrays_of_any_size(stages, caller, size):
    with compile_echo(*stages(1)) as graph:
        give(graph, caller)
        assert rcg.get(caller.arrays_come_mapped.remote(size)) == (True, True, False)


def test_a_full_window_raises_at_the_caller_if_the_user_set_it(stages, caller, gate):
    with compile_gated(*stages(2), gate, _max_inflight_executions=1) as graph:
        give(graph, caller)
        rcg.get(caller.start.remote(0))
        kinds, text = rcg.get(caller.try_start.remote(1))
        assert "RayCgraphCapacityExceeded" in kinds and "more than 1" in text
        gate.open()
        assert rcg.get(caller.finish.remote()) == 0


def test_a_timeout_shows_the_owners_report_and_loses_nothing(stages, caller, gate):
    with compile_gated(*stages(2), gate) as graph:
        give(graph, caller)
        rcg.get(caller.start.remote(0))
        gate.wait_for()
        kinds, text = rcg.get(caller.try_finish.remote(1.0))
        assert "RayChannelTimeoutError" in kinds
        assert "in pass_through" in text
        assert "in pass_through" in rcg.get(caller.report.remote())
        gate.open()
        assert rcg.get(caller.finish.remote()) == 0


@pytest.mark.parametrize("limit_s", [0, 0.3])
def test_a_caller_hears_from_the_owner_that_there_is_no_room(stages, caller, gate, limit_s):
    """Also where it does not wait for room: the question itself takes a moment."""
    with compile_gated(*stages(2), gate, submit_timeout=limit_s) as graph:
        give(graph, caller)
        for _ in range(10):
            rcg.get(caller.start.remote(0))
        kinds, text = rcg.get(caller.try_run.remote(0))
        assert "RayChannelTimeoutError" in kinds
        assert "there was no room for another execution" in text and "pass_gate_when" in text
        gate.open()


def test_teardown_by_the_owner_is_an_error_at_each_caller(stages, callers, caller, gate):
    graph = compile_gated(*stages(2), gate)
    give(graph, *callers)
    waiting = [each.try_finish.remote() for each in callers if rcg.get(each.start.remote(0))]
    gate.wait_for()
    gate.open()
    graph.teardown()
    for outcome in rcg.get(waiting):
        assert outcome == 0 or "RayChannelError" in outcome[0]
    for kinds, text in rcg.get([each.try_run.remote(1) for each in callers]):
        assert "ChannelClosed" in kinds and "torn down" in text


def test_a_dead_actor_is_an_error_at_each_caller(stages, callers, caller, gate):
    (a,), mortal = stages(1), Stage.remote("mortal")
    with compile_gated(mortal, a, gate) as graph:
        give(graph, *callers)
        rcg.get(callers[0].start.remote(0))
        gate.wait_for()
        waiting = callers[0].try_finish.remote()
        rcg.kill(mortal)
        later = callers[1].try_run.remote(1)
        for kinds, text in rcg.get([waiting, later]):
            assert "ActorDiedError" in kinds
            assert tells_last_op(text, "pass_gate_when"), text


OWNER = """\
import os
a = ray.get_actor("handled", namespace="handles")
caller = ray.get_actor("caller", namespace="handles")
with InputNode() as inp:
    graph = a.echo.bind(inp).compile()
say(ray.get(caller.take.remote(graph)))
if "fork" in sys.argv:
    child = os.fork()
    if not child:
        signal.pause()
    say(child)
say("given")
sys.stdin.read()
"""


@pytest.fixture
def owned(driver):
    """Starts an owner in another process; returns it, its caller and its actor."""
    named = {"lifetime": "detached", "namespace": "handles"}
    actor = Stage.options(name="handled", **named).remote()
    caller = Caller.options(name="caller", **named).remote()

    def start(*arguments):
        owner = driver(OWNER, *arguments, stdin=-1)
        owner.expect("CompiledDAGHandle")
        return owner, caller, actor

    yield start
    rcg.kill(actor)
    rcg.kill(caller)


@pytest.mark.parametrize("how", core_has("fork", ["alone", "fork"]))
def test_the_owners_death_is_an_error_at_each_caller(owned, how):
    """Also while a child of his has the connection open."""
    owner, caller, actor = owned(how)
    child = int(owner.line()) if how == "fork" else None
    owner.expect("given")
    assert rcg.get(caller.run.remote(5)) == [5]
    try:
        owner.kill()
        for _ in range(2):
            kinds, text = rcg.get(caller.try_run.remote(7))
            assert "ChannelBroken" in kinds and "is gone" in text
        # The actors are usable.
        with compile_echo(actor) as graph:
            assert rcg.get(graph.execute(1)) == 1
    finally:
        if child is not None:
            os.kill(child, signal.SIGKILL)


@pytest.mark.full
def test_a_stopped_owner_is_a_timeout_and_goes_on_later(owned):
    owner, caller, _ = owned()
    owner.expect("given")
    assert rcg.get(caller.run.remote(1)) == [1]
    suspend(owner.pid)
    try:
        kinds, text = rcg.get(caller.report_text.remote())
        assert "ChannelTimeout" in kinds and "does not answer" in text
    finally:
        os.kill(owner.pid, signal.SIGCONT)
    assert rcg.get(caller.run.remote(2)) == [2]


def test_a_value_of_thousands_of_arrays(stages, caller):
    with compile_echo(*stages(1)) as graph:
        give(graph, caller)
        (many,) = rcg.get(caller.run.remote([np.full(1, i) for i in range(6000)]))
        assert [int(each[0]) for each in many] == list(range(6000))
        assert rcg.get(caller.run.remote(1)) == [1]


def test_large_results_that_are_held_take_no_descriptors(stages, caller):
    with compile_echo(*stages(1)) as graph:
        give(graph, caller)
        assert rcg.get(caller.hold.remote(50)) <= 2


def test_a_closed_handle_says_so_and_leaves_the_others_of_its_process(stages, caller):
    with compile_chain(*stages(2)) as graph:
        give(graph, caller)
        another = rcg.get(caller.close_another.remote(graph))
        assert rcg.get(caller.run.remote(3)) == [3]
        rcg.get(caller.__ray_call__.remote(lambda self: self.graph.close()))
        for kinds, text in (another, rcg.get(caller.try_run.remote(1))):
            assert "ChannelClosed" in kinds and "handle was closed" in text
        assert rcg.get(graph.execute(2)) == 2


def test_a_result_that_the_owner_cannot_load_is_the_users_error(stages, caller):
    with compile_echo(*stages(1)) as graph:
        give(graph, caller)
        kinds, _ = rcg.get(caller.run_a_bomb.remote())
        assert "ZeroDivisionError" in kinds and "InternalError" not in kinds
        assert rcg.get(caller.run.remote(1)) == [1]


def test_ctrl_c_at_a_handle_loses_nothing(driver, stages):
    """At any moment and any number of times: later executions get their own results."""
    with compile_chain(*stages(2)) as graph:
        user = driver(INTERRUPTED, pickle.dumps(graph).hex())
        for _ in range(60):
            user.expect("going")
            os.kill(user.pid, signal.SIGINT)
            user.expect("interrupted")
        user.expect("done")
        user.finish()


INTERRUPTED = """\
import pickle
graph = pickle.loads(bytes.fromhex(sys.argv[1]))
ray.get(graph.execute(0))
hits, i = 0, 100
while hits < 60:
    try:
        say("going")
        while True:
            i += 1
            assert ray.get(graph.execute(i)) == i
    except KeyboardInterrupt:
        hits += 1
        say("interrupted")
signal.signal(signal.SIGINT, signal.SIG_IGN)
for i in range(20):
    assert ray.get(graph.execute(i + 1000000)) == i + 1000000
say("done")
"""


def connections_to(graph):
    """How many sockets of this machine are connected to the endpoint of the graph's process."""
    control = graph._engine.session.control
    count = Path("/proc/net/unix").read_text().count(f"@{control.address[1:]}")
    if control.tcp_address is not None:
        rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()]
        port = f":{control.tcp_address.port:04X}"
        count += sum(row[1].endswith(port) and row[3] == "01" for row in rows)  # established
    return count


def test_a_dead_caller_leaves_nothing_behind(stages):
    with compile_chain(*stages(2)) as graph:
        assert rcg.get(graph.execute(0)) == 0
        before = connections_to(graph)
        assert before > 0
        for _ in range(2):
            mortal = Caller.remote()
            give(graph, mortal)
            assert rcg.get(mortal.run.remote(1, 2)) == [1, 2]
            assert connections_to(graph) == before + 1
            rcg.kill(mortal)
            until(lambda: not threads_named("rcg-serve") + threads_named("rcg-results"))
            until(lambda: connections_to(graph) == before)
        assert rcg.get(graph.execute(3)) == 3


def test_handles_that_are_let_go_leave_nothing_behind(stages, caller):
    with compile_chain(*stages(2)) as graph:
        before = connections_to(graph)
        for _ in range(5):
            give(graph, caller)
            rcg.get(caller.run.remote(1))
            assert rcg.get(caller.handle_threads.remote()) == 1
            rcg.get(caller.let_go.remote())
            until(lambda: rcg.get(caller.handle_threads.remote()) == 0)
            # Fewer, if one of an earlier test was still counted.
            until(lambda: connections_to(graph) <= before)


def test_refs_dropped_unread_hold_nothing_up(stages, caller):
    with compile_chain(*stages(2)) as graph:
        give(graph, caller)
        assert rcg.get(caller.drop_refs.remote(200)) == -1
        until(lambda: graph.statistics().buffered == 0)


def test_a_handle_can_be_passed_on(stages, callers, caller):
    with compile_chain(*stages(2)) as graph:
        give(graph, callers[0])
        assert rcg.get(callers[0].pass_on.remote(callers[1])) == "CompiledDAGHandle"
        assert rcg.get(callers[1].run.remote(4)) == [4]


def test_in_its_own_process_it_is_the_graph_itself(stages):
    with compile_chain(*stages(2)) as graph:
        assert pickle.loads(pickle.dumps(graph)) is graph
        assert ray.cloudpickle.loads(ray.cloudpickle.dumps({"graph": graph}))["graph"] is graph
        pickled = pickle.dumps(graph)
    assert pickle.loads(pickled) is graph  # also when it was torn down


def _use(graph, results):
    try:
        results.put([rcg.get(graph.execute(i)) for i in range(5)])
        try:
            rcg.get(graph.execute(13))
        except Refusal as refusal:
            results.put(str(refusal).splitlines()[-1])
    except BaseException as error:  # noqa: BLE001 - it is asserted upon
        results.put(repr(error))


@pytest.mark.full
def test_a_process_that_is_none_of_rays(stages):
    with compile_chain(*stages(2)) as graph:
        context = multiprocessing.get_context("spawn")
        results = context.SimpleQueue()
        process = context.Process(target=_use, args=(graph, results))
        process.start()
        assert results.get() == [0, 1, 2, 3, 4]
        assert "no 13" in results.get()
        process.join(GUARD_S)
        assert process.exitcode == 0


def test_only_the_owner_tears_down(stages, caller):
    with compile_chain(*stages(2)) as graph:
        give(graph, caller)
        handle_kinds, text = rcg.get(
            caller.__ray_call__.remote(lambda self: outcome_of(self.graph.teardown))
        )
        assert "GraphError" in handle_kinds and "only the process that compiled" in text
        assert rcg.get(caller.run.remote(1)) == [1]
