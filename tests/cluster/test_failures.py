# SPDX-License-Identifier: Apache-2.0
"""What fails and what goes on: users' exceptions, dying actors, graphs that cannot be compiled."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time

import pytest
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayChannelTimeoutError, RayTaskError

import rcg
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import ActorDiedError, ChannelTimeout, ExecutionError
from tests.cluster.nodes import tells_last_op
from tests.cluster.stage import (
    GUARD_S,
    Gate,
    Refusal,
    Stage,
    awaited,
    compile_one,
    in_thread,
    until,
)
from tests.harness.shell import interactive_shell

pytestmark = pytest.mark.usefixtures("ray_session")

SOON_S = 0.05


class WithFields(Exception):
    """Pickles with what it carries."""

    def __init__(self, code=0):
        super().__init__(code)
        self.code = code
        self.detail = {"code": code}


class Thrower:
    def echo(self, x):
        return x

    def throw(self, kind):
        """Raise what the kind names; other values pass."""
        match kind:
            case "fields":
                raise WithFields(7)
            case "chain":
                try:
                    raise KeyError("the first")
                except KeyError as error:
                    raise ValueError("the second") from error
            case "group":
                raise ExceptionGroup("several", [ValueError("one"), Refusal("two")])
            case "long":
                raise ValueError("x" * 300_000)
        return kind

    def compile_with_myself(self, me, other, x):
        """Be the driver of a graph and part of it."""
        with InputNode() as inp:
            there = me.echo.bind(other.double.bind(me.echo.bind(inp)))
            dag = MultiOutputNode([there, me.echo.bind(inp)])
        graph = dag.experimental_compile()
        found = [rcg.get(graph.execute(x + i)) for i in range(3)]
        try:
            rcg.get(graph.execute([]), timeout=60)
            graph.teardown()
        finally:
            graph.teardown()
        return found

    def compile_and_keep(self, me, other):
        with InputNode() as inp:
            self.graph = other.double.bind(me.echo.bind(inp)).experimental_compile()
        return self.graph.get_id()

    def run_kept(self, x):
        return rcg.get(self.graph.execute(x))

    def drop_kept(self):
        del self.graph


Throwing = rcg.remote(num_cpus=0)(Thrower)


@pytest.fixture(scope="module")
def thrower(ray_session):
    return Throwing.remote()


# --- users' exceptions


def test_an_exception_comes_as_the_users_own_and_as_rays(stages):
    (a,) = stages(1)
    with compile_one(a, "fail") as graph:
        ref = graph.execute("thanks")
        for kind in (Refusal, RayTaskError, Refusal):
            with pytest.raises(kind, match="no thanks"):
                rcg.get(ref)
        with pytest.raises(Refusal) as raised:
            ref.get()
        # Where it happened, in the user's source, in the other process.
        text = str(raised.value)
        assert 'raise Refusal(f"no {x}")' in text
        assert "stage.py" in text and "in fail" in text
        assert f"pid={rcg.get(a.pid.remote())}" in text
        assert "Plain.fail" in text


def test_an_exception_does_not_grow_when_it_is_raised_again(stages):
    (a,) = stages(1)
    with compile_one(a, "fail") as graph:
        ref = graph.execute(1)

        def depth():
            with pytest.raises(Refusal) as raised:
                rcg.get(ref)
            return len(raised.traceback)

        assert len({depth() for _ in range(5)}) == 1


def test_ipython_shows_the_actors_traceback_and_the_users_line(stages, capsys):
    (actor,) = stages(1)
    with interactive_shell() as shell, compile_one(actor, "fail") as graph:
        shell.user_ns.update(graph=graph, rcg=rcg)
        shell.run_cell("one = 1\nrcg.get(graph.execute(one))")
        shown = capsys.readouterr().out
        # It is an exception like any other all the same.
        again = shell.user_ns["graph"].execute(1)
        with pytest.raises(Refusal, match="no 1") as caught:
            rcg.get(again)
        copy = ray.cloudpickle.loads(ray.cloudpickle.dumps(caught.value))
        assert isinstance(copy, Refusal)
    # What Python keeps of the last error would keep the graph.
    sys.last_type = sys.last_value = sys.last_traceback = None
    assert shown.startswith("in `Plain.fail` of a0, execution 0, stage.py:")
    assert 'raise Refusal(f"no {x}")' in shown.partition("\n")[0]
    assert "in fail" in shown and "Refusal: no 1" in shown
    assert "got at line 2:  rcg.get(graph.execute(one))" in shown
    assert "results.py" not in shown and "refs.py" not in shown


@pytest.mark.parametrize("last", [False, True])
def test_a_list_raises_at_once_when_one_failed_while_another_is_slow(stages, gate, last):
    a, b = stages(2)
    with InputNode() as inp:
        slow, failing = a.pass_gate_when.bind(inp, 0, gate), b.fail.bind(inp)
        dag = MultiOutputNode([slow, failing] if last else [failing, slow])
    with dag.experimental_compile() as graph:
        refs = graph.execute(0)
        gate.wait_for()
        # The gate is closed: this would hang if it waited for the slow one.
        with pytest.raises(Refusal):
            rcg.get(refs)
        slow_ref = refs[0 if last else 1]
        assert not slow_ref.done()
        gate.open()
        assert rcg.get(slow_ref) == 0


def test_a_list_of_both_kinds_raises_at_once_too(stages, gate):
    a, b = stages(2)
    with compile_one(a, "pass_gate_when", 0, gate) as graph, compile_one(b, "fail") as failing:
        slow = graph.execute(0)
        gate.wait_for()
        with pytest.raises(Refusal):
            rcg.get([slow, b.fail.remote(1)])
        with pytest.raises(Refusal):
            rcg.get([slow, rcg.put(1), failing.execute(1)])
        with pytest.raises(Refusal):
            rcg.get([slow, failing.execute(1)])
        held = b.hold_gate.remote(gate)
        gate.wait_for()
        with pytest.raises(Refusal):
            rcg.get([held, failing.execute(1)])
        gate.open()
        assert rcg.get([slow, held]) == [0, "passed"]


def test_what_an_exception_carries_arrives(thrower):
    with compile_one(thrower, "throw") as graph:
        with pytest.raises(WithFields) as raised:
            rcg.get(graph.execute("fields"))
        assert (raised.value.code, raised.value.detail) == (7, {"code": 7})
        with pytest.raises(ValueError, match="the second") as raised:
            rcg.get(graph.execute("chain"))
        assert "the first" in str(raised.value)
        with pytest.raises(ValueError) as raised:
            rcg.get(graph.execute("long"))
        assert len(str(raised.value)) > 300_000
        with pytest.raises(ExceptionGroup) as raised:
            rcg.get(graph.execute("group"))
        assert [type(error) for error in raised.value.exceptions] == [ValueError, Refusal]
        assert rcg.get(graph.execute("fine")) == "fine"


class Over(StopIteration):
    """An end of the user's own."""


class EndsWhenLoaded:
    def __init__(self, kind):
        self.kind = kind

    def __reduce__(self):
        return raise_end, (self.kind,)


class EndsWhenDumped(EndsWhenLoaded):
    def __reduce__(self):
        raise_end(self.kind)


def raise_end(kind):
    raise kind("the user's")


class Ending:
    def throw(self, kind):
        raise_end(kind)

    @rcg.method(tensor_transport="object_store")
    def throw_tensor(self, kind):
        raise_end(kind)

    @rcg.method(tensor_transport="object_store")
    def give_tensor(self, kind):
        import torch  # here, or the actors of all other tests import it too

        return torch.ones(2), EndsWhenLoaded(kind)

    def give(self, kind):
        return EndsWhenLoaded(kind)

    def take(self, value):
        return value


class EndingLater:
    async def throw(self, kind):
        raise_end(kind)


def in_loop(ref):
    async def wait():
        return await asyncio.wait_for(asyncio.ensure_future(awaited(ref)), GUARD_S)

    return asyncio.run(wait())


@pytest.fixture(scope="module")
def ending(ray_session):
    """An actor, and graphs of its methods and of a coroutine."""
    actor, later = (rcg.remote(num_cpus=0)(each).remote() for each in (Ending, EndingLater))
    methods = (actor, "throw"), (actor, "give"), (actor, "take"), (later, "throw")
    with contextlib.ExitStack() as stack:
        graphs = [stack.enter_context(compile_one(*each)) for each in methods]
        yield actor, later, *graphs


@pytest.mark.parametrize("kind", [StopIteration, Over, StopAsyncIteration, GeneratorExit])
def test_what_python_takes_for_an_end_is_an_error_wherever_it_arrives(ending, kind):
    actor, later, throw, give, take, throw_later = ending
    for arrive in (
        lambda: list(map(rcg.get, [actor.throw.remote(kind)])),
        lambda: ray.get(actor.throw.remote(kind)),
        lambda: in_loop(actor.throw.remote(kind)),
        lambda: in_loop(later.throw.remote(kind)),
        lambda: list(map(rcg.get, [actor.throw_tensor.remote(kind)])),
        lambda: in_loop(actor.throw_tensor.remote(kind)),
        lambda: list(map(rcg.get, [throw.execute(kind), throw.execute(kind)])),
        lambda: rcg.get([throw.execute(kind), throw.execute(kind)]),
        lambda: in_loop(throw.execute(kind)),
        lambda: in_loop(throw_later.execute(kind)),
        lambda: rcg.get(actor.give_tensor.remote(kind)),
        lambda: in_loop(actor.give_tensor.remote(kind)),
        lambda: rcg.get(actor.take.remote(actor.give_tensor.remote(kind))),
        lambda: list(map(rcg.get, [give.execute(kind)])),
        lambda: rcg.get(take.execute(EndsWhenLoaded(kind))),
        lambda: list(map(take.execute, [EndsWhenDumped(kind)])),
        lambda: list(map(actor.take.remote, [EndsWhenDumped(kind)])),
        lambda: list(map(rcg.put, [EndsWhenDumped(kind)])),
        lambda: rcg.get(rcg.remote(num_cpus=0)(raise_end).remote(kind)),
    ):
        with pytest.raises(Exception, match=kind.__name__) as raised:
            arrive()
        assert not isinstance(raised.value, (StopIteration, StopAsyncIteration, GeneratorExit))
    for ref in (actor.throw.remote(kind), throw.execute(kind)):
        with pytest.raises(ExecutionError, match=r"Ending\.throw raised .*the user's") as raised:
            rcg.get(ref)
        assert "in raise_end" in str(raised.value)
        assert type(raised.value.cause.__cause__) is kind


@rcg.remote(num_cpus=0, max_restarts=1)
class Leaver:
    def leave(self, is_leaving):
        if is_leaving:
            rcg.actor.exit_actor()
        return "here"


@rcg.remote(num_cpus=0, max_restarts=1)
class LeavingCoroutine:
    async def leave(self, is_leaving):
        if is_leaving:
            ray.actor.exit_actor()
        return "here"


@pytest.mark.parametrize(
    ("kind", "thread", "calls_too"),
    [
        pytest.param(Leaver, "own", False, marks=pytest.mark.full),
        (Leaver, "own", True),
        pytest.param(Leaver, "main", False, marks=pytest.mark.full),
        (LeavingCoroutine, "own", False),
    ],
)
def test_exit_actor_ends_the_actor_at_once_and_for_good(kind, thread, calls_too):
    actor = kind.remote()
    with InputNode() as inp:
        graph = actor.leave.bind(inp).compile(thread=thread)
    assert rcg.get(graph.execute(False)) == "here"
    refs = [graph.execute(value) for value in (True, False, False)]
    asked = []
    if calls_too:  # these are on their way to it when it exits
        for _ in range(300):
            asked.append(actor.leave.remote(False))
            time.sleep(0.0005)
    for ref in refs:
        with pytest.raises(ActorDiedError, match=r"its method leave called exit_actor\(\)"):
            rcg.get(ref)

    def is_lost(ref) -> bool:
        try:
            return rcg.get(ref, timeout=60) != "here"
        except RayActorError:
            return True

    def is_dead() -> bool:
        return is_lost(actor.leave.remote(False))

    until(is_dead)
    for each in asked:
        is_lost(each)
    graph.teardown()
    assert is_dead()


# --- actors that die


def test_results_that_came_before_the_death_can_be_got_after_it(stages):
    """Each single ref gives its own result or error."""
    (a,), victim = stages(1), Stage.remote()
    with InputNode() as inp:
        dag = MultiOutputNode([a.echo.bind(inp), victim.die_when.bind(inp, 3)])
    graph = dag.experimental_compile()
    runs = [graph.execute(i) for i in range(4)]
    firsts = [run[0] for run in runs]
    rcg.wait(firsts, num_returns=4)
    with pytest.raises(ActorDiedError):
        rcg.get(runs[3][1])
    assert rcg.get(firsts) == [0, 1, 2, 3]
    assert rcg.get([run[1] for run in runs[:3]]) == [0, 1, 2]
    graph.teardown()


# --- compiling


def test_a_dead_actor_at_compile(stages):
    (a,), victim = stages(1), Stage.remote()
    rcg.get(victim.pid.remote())
    rcg.kill(victim)

    def is_dead() -> bool:
        """Ray kills with a delay: calls are answered until then."""
        try:
            rcg.get(victim.pid.remote())
        except RayActorError:
            return True
        return False

    until(is_dead)
    with InputNode() as inp:
        dag = a.echo.bind(victim.echo.bind(inp))
    with pytest.raises(ActorDiedError) as raised:
        dag.experimental_compile()
    error = raised.value
    assert isinstance(error, ray.exceptions.ActorDiedError)
    assert "Plain" in str(error)
    assert tells_last_op(str(error), "dead"), str(error)
    assert error.actor and error.actor_id
    with compile_one(a) as graph:
        assert rcg.get(graph.execute(1)) == 1


def test_an_actor_whose_constructor_raises_at_compile(stages):
    class Broken:
        def __init__(self):
            raise Refusal("cannot begin")

        def echo(self, x):
            return x

    with pytest.raises(ActorDiedError, match="cannot begin"):
        compile_one(rcg.remote(num_cpus=0)(Broken).remote())


def test_a_busy_actor_at_compile_times_out_by_name_and_can_be_compiled_later(stages, gate):
    a, b = stages(2)
    call = b.hold_gate.remote(gate)
    gate.wait_for()
    with InputNode() as inp:
        dag = b.echo.bind(a.echo.bind(inp))
    for kind in (ChannelTimeout, RayChannelTimeoutError, TimeoutError):
        with pytest.raises(kind) as raised:
            dag.experimental_compile(timeout=SOON_S)
    assert "a1 (Plain)" in str(raised.value)
    waiting = in_thread(dag.experimental_compile)
    gate.open()
    with waiting() as graph:
        assert rcg.get(graph.execute(1)) == 1
    assert rcg.get(call) == "passed"


# --- drivers that are actors or tasks


def test_the_driver_is_a_task(stages):
    (a,) = stages(1)

    @rcg.remote(num_cpus=0)
    def run(handle, x):
        with InputNode() as inp:
            dag = handle.double.bind(inp)
        with dag.experimental_compile() as graph:
            return rcg.get([graph.execute(x + i) for i in range(3)])

    assert rcg.get(run.remote(a, 5)) == [10, 12, 14]


def test_an_actor_compiles_a_graph_that_it_is_part_of(thrower, stages):
    (a,) = stages(1)
    found = rcg.get(thrower.compile_with_myself.remote(thrower, a, 5))
    assert found == [[10, 5], [12, 6], [14, 7]]
    assert rcg.get(thrower.echo.remote(1)) == 1


def test_an_actor_keeps_a_graph_that_it_is_part_of(stages):
    """Over several of its calls: loops end when it drops the graph, and when it ends itself."""
    (a,), keeper = stages(1), Throwing.remote()
    graph_id = rcg.get(keeper.compile_and_keep.remote(keeper, a))
    assert rcg.get([keeper.run_kept.remote(i) for i in range(3)]) == [0, 2, 4]
    keeper.drop_kept.remote()
    assert rcg.get(keeper.echo.remote(1)) == 1
    assert rcg.get(a.join_threads.remote(graph_id)) == []
    graph_id = rcg.get(keeper.compile_and_keep.remote(keeper, a))
    assert rcg.get(keeper.run_kept.remote(2)) == 4
    rcg.kill(keeper)
    assert rcg.get(a.join_threads.remote(graph_id)) == []
    with compile_one(a) as graph:
        assert rcg.get(graph.execute(1)) == 1


def test_a_timeout_of_ray_stays_rays(stages, gate: Gate):
    (a,) = stages(1)
    call = a.hold_gate.remote(gate)
    with pytest.raises(GetTimeoutError):
        rcg.get(call, timeout=SOON_S)
    gate.open()
    assert rcg.get(call) == "passed"
