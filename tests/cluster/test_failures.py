# SPDX-License-Identifier: Apache-2.0
"""What fails and what goes on: users' exceptions, dying actors, graphs that cannot be compiled."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading

import pytest
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayChannelTimeoutError, RayTaskError

import rcg
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import ActorDiedError, ChannelTimeout, ExecutionError
from tests.cluster.faults import until_seen
from tests.cluster.nodes import tells_last_op
from tests.cluster.stage import GUARD_S, Gate, Refusal, Stage, in_thread, until
from tests.harness.circles import core_has

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("ray_session")

SOON_S = 0.05


class WithLock(Exception):
    """Does not pickle."""

    def __init__(self, text):
        super().__init__(text)
        self.lock = threading.Lock()


class WithArguments(Exception):
    """Pickles, and does not load: its constructor wants what the pickle does not have."""

    def __init__(self, code, reason):
        super().__init__(f"code {code} for {reason}")
        self.code = code


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
            case "lock":
                raise WithLock("cannot be pickled")
            case "arguments":
                raise WithArguments(7, "a reason")
            case "fields":
                raise WithFields(7)
            case "chain":
                try:
                    raise KeyError("the first")
                except KeyError as error:
                    raise ValueError("the second") from error
            case "exit":
                raise SystemExit(3)
            case "interrupt":
                raise KeyboardInterrupt
            case "cancel":
                raise asyncio.CancelledError
            case "group":
                raise ExceptionGroup("several", [ValueError("one"), Refusal("two")])
            case "long":
                raise ValueError("x" * 300_000)
        return kind

    @rcg.method(num_returns=2)
    def two(self, values):
        return values

    def fork(self, x):
        """Let a child of this process use what it inherited, and end."""
        child = os.fork()
        if not child:
            del x
            os._exit(0)
        os.waitpid(child, 0)
        return x

    def fork_and_stop(self, gate):
        """Leave a child behind that outlives this process."""
        child = os.fork()
        if not child:
            signal.pause()
            os._exit(0)
        gate.announce()
        return child

    def compile_and_run(self, handle, x):
        """Be the driver of a graph over another actor."""
        with InputNode() as inp:
            dag = handle.double.bind(inp)
        with dag.experimental_compile() as graph:
            return rcg.get([graph.execute(x + i) for i in range(3)])

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


def compile_one(actor, method="echo", *constants, **options):
    with InputNode() as inp:
        dag = getattr(actor, method).bind(inp, *constants)
    return dag.experimental_compile(**options)


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
    from IPython.core.interactiveshell import InteractiveShell

    (actor,) = stages(1)
    main, names = sys.modules["__main__"], dict(vars(sys.modules["__main__"]))
    shell = InteractiveShell.instance(colors="nocolor")
    try:
        with compile_one(actor, "fail") as graph:
            shell.user_ns.update(graph=graph, rcg=rcg)
            shell.run_cell("one = 1\nrcg.get(graph.execute(one))")
            shown = capsys.readouterr().out
            # It is an exception like any other all the same.
            again = shell.user_ns["graph"].execute(1)
            with pytest.raises(Refusal, match="no 1") as caught:
                rcg.get(again)
        copy = ray.cloudpickle.loads(ray.cloudpickle.dumps(caught.value))
        assert isinstance(copy, Refusal)
    finally:
        # What IPython and Python keep of the last error would keep the graph.
        shell.reset()  # also empties the module that it takes for the main one
        sys.modules["__main__"] = main
        vars(main).update(names)
        sys.last_type = sys.last_value = sys.last_traceback = None
        InteractiveShell.clear_instance()
    assert shown.startswith("in `Plain.fail` of a0, execution 0, stage.py:")
    assert 'raise Refusal(f"no {x}")' in shown.partition("\n")[0]
    assert "in fail" in shown and "Refusal: no 1" in shown
    assert "got at line 2:  rcg.get(graph.execute(one))" in shown
    assert "results.py" not in shown and "refs.py" not in shown


def test_the_graph_goes_on_after_an_exception(stages):
    a, b = stages(2)
    with InputNode() as inp:
        dag = b.note.bind(a.fail_when.bind(inp, 1))
    with dag.experimental_compile() as graph:
        refs = [graph.execute(i % 3) for i in range(30)]
        for i, ref in enumerate(refs):
            if i % 3 == 1:
                with pytest.raises(Refusal):
                    rcg.get(ref)
            else:
                assert rcg.get(ref) == i % 3
        # What comes after a failure does not run.
        assert 1 not in rcg.get(b.noted.remote())
        assert len(rcg.get(b.noted.remote())) == 20


def test_the_first_exception_travels_through_all_that_depends_on_it(stages):
    a, b, c = stages(3)
    with InputNode() as inp:
        failed = a.fail.bind(inp)
        one, two = b.split.bind(failed)
        nested = c.tell.bind({"deep": [failed, 1]})
        dag = MultiOutputNode([one, two, c.tell.bind(key=two), nested, a.note.bind(failed)])
    with dag.experimental_compile() as graph:
        for x in (1, 2):
            for ref in graph.execute(x):
                with pytest.raises(Refusal, match=f"no {x}") as raised:
                    rcg.get(ref)
                assert "Plain.fail" in str(raised.value)
        assert rcg.get(a.noted.remote()) == []


def test_each_output_tells_its_own_truth(stages):
    a, b = stages(2)
    with InputNode() as inp:
        dag = MultiOutputNode([a.fail_when.bind(inp, 1), b.echo.bind(inp), a.echo.bind(inp)])
    with dag.experimental_compile() as graph:
        runs = [graph.execute(i) for i in range(3)]
        with pytest.raises(Refusal):
            rcg.get(runs[1][0])
        assert rcg.get(runs[1][1:]) == [1, 1]
        with pytest.raises(Refusal):
            rcg.get(runs[1])
        assert rcg.get(runs[0]) == [0, 0, 0]
        assert rcg.get(runs[2]) == [2, 2, 2]


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


def test_exceptions_are_values_like_any_other(thrower):
    with InputNode() as inp:
        dag = thrower.echo.bind(thrower.throw.bind(inp))
    with dag.experimental_compile() as graph:
        value = rcg.get(graph.execute(ValueError("a value")))
        assert type(value) is ValueError and value.args == ("a value",)
        found = rcg.get(graph.execute([KeyError("k"), {"e": Refusal("r")}]))
        assert repr(found) == "[KeyError('k'), {'e': Refusal('r')}]"


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


@pytest.mark.parametrize(
    ("kind", "text"), [("lock", "cannot be pickled"), ("arguments", "code 7 for a reason")]
)
def test_an_exception_that_does_not_travel_arrives_as_its_text(thrower, kind, text):
    with compile_one(thrower, "throw") as graph:
        ref = graph.execute(kind)
        for _ in range(2):
            with pytest.raises(RayTaskError, match=text) as raised:
                rcg.get(ref)
            assert "in throw" in str(raised.value)
        assert rcg.get(graph.execute("fine")) == "fine"


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("exit", "SystemExit"),
        ("interrupt", "KeyboardInterrupt"),
        ("cancel", "CancelledError"),
    ],
)
def test_what_ends_a_program_ends_only_that_execution(thrower, kind, name):
    """In the actor it is a failure; the driver must not take it for Ctrl-C or an exit."""
    with compile_one(thrower, "throw") as graph:
        refs = [graph.execute(value) for value in ("before", kind, "after")]
        for _ in range(2):
            with pytest.raises(RayTaskError, match=name) as raised:
                rcg.get(refs[1])
            assert isinstance(raised.value, Exception)
            assert not isinstance(raised.value, (SystemExit, KeyboardInterrupt))
        assert (rcg.get(refs[0]), rcg.get(refs[2])) == ("before", "after")
    assert rcg.get(thrower.echo.remote("alive")) == "alive"


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
        return torch.ones(2), EndsWhenLoaded(kind)

    def give(self, kind):
        return EndsWhenLoaded(kind)

    def take(self, value):
        return value


class EndingLater:
    async def throw(self, kind):
        raise_end(kind)


async def awaited(ref):
    async def wait():
        return await ref

    return await asyncio.wait_for(asyncio.ensure_future(wait()), GUARD_S)


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
        lambda: asyncio.run(awaited(actor.throw.remote(kind))),
        lambda: asyncio.run(awaited(later.throw.remote(kind))),
        lambda: list(map(rcg.get, [actor.throw_tensor.remote(kind)])),
        lambda: asyncio.run(awaited(actor.throw_tensor.remote(kind))),
        lambda: list(map(rcg.get, [throw.execute(kind), throw.execute(kind)])),
        lambda: rcg.get([throw.execute(kind), throw.execute(kind)]),
        lambda: asyncio.run(awaited(throw.execute(kind))),
        lambda: asyncio.run(awaited(throw_later.execute(kind))),
        lambda: rcg.get(actor.give_tensor.remote(kind)),
        lambda: asyncio.run(awaited(actor.give_tensor.remote(kind))),
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
    ("kind", "thread"), [(Leaver, "own"), (Leaver, "main"), (LeavingCoroutine, "own")]
)
def test_exit_actor_ends_the_actor_at_once_and_for_good(kind, thread):
    actor = kind.remote()
    with InputNode() as inp:
        graph = actor.leave.bind(inp).compile(thread=thread)
    assert rcg.get(graph.execute(False)) == "here"
    refs = [graph.execute(value) for value in (True, False, False)]
    for ref in refs:
        with pytest.raises(ActorDiedError, match=r"its method leave called exit_actor\(\)"):
            rcg.get(ref)

    def is_dead() -> bool:
        try:
            return rcg.get(actor.leave.remote(False), timeout=60) != "here"
        except RayActorError:
            return True

    until(is_dead)
    graph.teardown()
    assert is_dead()


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1, 2, 3], "Expected 2 outputs, but got 3 outputs"),
        ((1,), "Expected 2 outputs, but got 1 outputs"),
        (5, "Expected a tuple of 2 outputs"),
        (None, "Expected a tuple of 2 outputs"),
    ],
)
def test_a_wrong_number_of_returns_fails_that_execution_only(thrower, stages, values, text):
    (a,) = stages(1)
    with InputNode() as inp:
        one, two = thrower.two.bind(inp)
        dag = MultiOutputNode([a.echo.bind(one), two])
    with dag.experimental_compile() as graph:
        assert rcg.get(graph.execute((1, 2))) == [1, 2]
        for ref in graph.execute(values):
            with pytest.raises(ExecutionError, match=text) as raised:
                rcg.get(ref)
            assert "Thrower.two" in str(raised.value)
        assert rcg.get(graph.execute([3, 4])) == [3, 4]


def test_a_method_may_fork(thrower):
    """The end of the child releases no memory of its parent and ends no graph."""
    import numpy as np

    with compile_one(thrower, "fork") as graph:
        held = [rcg.get(graph.execute(np.full(100_000, i))) for i in range(5)]
        for i, array in enumerate(held):
            assert (array == i).all()


# --- actors that die


def kill_by_ray(actor):
    rcg.kill(actor)


def kill_by_signal(actor):
    os.kill(rcg.get(actor.pid.remote()), signal.SIGKILL)


def died(error, method):
    """The error names the dead actor as the graph does, and has the class that programs catch."""
    assert isinstance(error, ray.exceptions.ActorDiedError)
    assert isinstance(error, RayActorError)
    text = str(error)
    assert "Plain" in text
    assert tells_last_op(text, method), text
    assert error.actor and error.actor_id


@pytest.mark.parametrize("kill", core_has(kill_by_ray, [kill_by_ray, kill_by_signal]))
def test_an_actor_dies_while_the_driver_waits(stages, gate, kill):
    """Get, get of a list, wait and execute all end; the survivors work on in a new graph."""
    (a, b), victim = stages(2), Stage.remote()
    with InputNode() as inp:
        held = victim.pass_gate_when.bind(a.echo.bind(inp), 0, gate)
        dag = MultiOutputNode([b.echo.bind(held), a.double.bind(inp)])
    graph = dag.experimental_compile()
    early = graph.execute(1)
    assert rcg.get(early) == [1, 2]
    refs = graph.execute(0)
    gate.wait_for()
    until_seen(graph, "a1 (Plain)", "pass_gate_when")
    waiting = [
        in_thread(lambda: rcg.get(refs[0])),
        in_thread(lambda: rcg.get(refs)),
        in_thread(lambda: [graph.execute(i) for i in range(1, 100)]),
        in_thread(lambda: asyncio.run(as_coroutine(refs[0]))),
        in_thread(lambda: asyncio.run(many_executions(graph))),
    ]
    waits = in_thread(lambda: rcg.wait(refs[:1]))
    kill(victim)
    for result in waiting:
        with pytest.raises(ActorDiedError) as raised:
            result()
        died(raised.value, "pass_gate_when")
    assert waits() == (refs[:1], [])
    # From now on at once.
    assert refs[0].done()
    for use in (lambda: graph.execute(1), lambda: rcg.get(refs[0]), refs[0].get):
        with pytest.raises(ActorDiedError):
            use()
    assert rcg.get(early) == [1, 2]
    assert "pass_gate_when" in str(graph.report())
    # The others are usable, before and after teardown.
    assert rcg.get([a.echo.remote(1), b.echo.remote(2)]) == [1, 2]
    graph.teardown()
    graph.teardown()
    assert rcg.get([each.join_threads.remote(graph.get_id()) for each in (a, b)]) == [[], []]
    replacement = Stage.remote()
    with InputNode() as inp:
        dag = b.echo.bind(replacement.double.bind(a.echo.bind(inp)))
    with dag.experimental_compile() as again:
        assert rcg.get(again.execute(3)) == 6
    rcg.kill(replacement)


async def as_coroutine(ref):
    return await ref


async def many_executions(graph):
    for i in range(1, 100):
        await graph.execute_async(i)


def test_an_actor_exits_in_a_method(stages):
    (a,), victim = stages(1), Stage.remote()
    with InputNode() as inp:
        dag = a.echo.bind(victim.die_when.bind(inp, 3))
    graph = dag.experimental_compile()
    refs = [graph.execute(i) for i in range(6)]
    assert rcg.get(refs[:3]) == [0, 1, 2]
    for ref in refs[3:]:
        with pytest.raises(ActorDiedError) as raised:
            rcg.get(ref)
        died(raised.value, "die_when")
    assert tells_last_op(raised.value, "execution 3")
    graph.teardown()
    assert rcg.get(a.echo.remote(1)) == 1


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


@pytest.mark.full
def test_an_actor_dies_while_nothing_runs(stages):
    (a,), victim = stages(1), Stage.remote()
    with InputNode() as inp:
        dag = a.echo.bind(victim.echo.bind(inp))
    graph = dag.experimental_compile()
    assert rcg.get(graph.execute(1)) == 1
    rcg.kill(victim)

    def go_on():
        while True:
            rcg.get(graph.execute(1))

    with pytest.raises(ActorDiedError):
        go_on()
    graph.teardown()


@pytest.mark.full
def test_a_graph_without_the_dead_actor_goes_on(stages):
    a, b = stages(2)
    victim = Stage.remote()
    with compile_one(victim, "die") as broken, compile_one(b) as other:
        with InputNode() as inp:
            both = b.echo.bind(a.echo.bind(inp)).experimental_compile()
        with pytest.raises(ActorDiedError):
            rcg.get(broken.execute(1))
        assert [rcg.get(graph.execute(2)) for graph in (other, both)] == [2, 2]
        both.teardown()


@pytest.mark.full
def test_a_graph_with_a_dead_actor_is_torn_down_from_several_threads(stages):
    (a,), victim = stages(1), Stage.remote()
    with InputNode() as inp:
        graph = a.echo.bind(victim.die.bind(inp)).experimental_compile()
    ref = graph.execute(1)
    gets = [in_thread(lambda: rcg.get(ref)) for _ in range(4)]
    for result in gets:
        with pytest.raises(ActorDiedError):
            result()
    for end in [in_thread(graph.teardown) for _ in range(4)]:
        end()


@pytest.mark.full
def test_a_restarted_actor_has_left_the_graph(stages):
    """The new process has no loop; a new graph can use the actor."""
    (a,) = stages(1)
    victim = Stage.options(max_restarts=1).remote()
    with InputNode() as inp:
        dag = a.echo.bind(victim.die_when.bind(inp, 0))
    graph = dag.experimental_compile()
    with pytest.raises(ActorDiedError):
        rcg.get(graph.execute(0))
    graph.teardown()
    with dag.experimental_compile() as again:
        assert rcg.get(again.execute(1)) == 1
    rcg.kill(victim)


@pytest.mark.full
def test_a_death_is_noticed_although_a_child_of_it_lives_on(gate):
    """The child has the sockets and the memory of its parent; the pidfd reports the death."""
    victim = Throwing.remote()
    with InputNode() as inp:
        dag = victim.echo.bind(victim.fork_and_stop.bind(inp))
    graph = dag.experimental_compile()
    child = rcg.get(graph.execute(gate))
    try:
        rcg.kill(victim)

        def go_on():
            while True:
                rcg.get(graph.execute(gate))

        with pytest.raises(ActorDiedError):
            go_on()
        graph.teardown()
    finally:
        os.kill(child, signal.SIGKILL)


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
    died(raised.value, "dead")
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
    assert repr(b) in str(raised.value)
    waiting = in_thread(dag.experimental_compile)
    gate.open()
    with waiting() as graph:
        assert rcg.get(graph.execute(1)) == 1
    assert rcg.get(call) == "passed"


def test_a_busy_actor_starts_with_what_it_missed(stages, gates):
    """A compile that timed out leaves nothing on the actor that answered too late."""
    a, b = stages(2)
    first = gates()
    call = b.hold_gate.remote(first)
    first.wait_for()
    with InputNode() as inp:
        dag = b.echo.bind(a.echo.bind(inp))
    for _ in range(3):
        with pytest.raises(ChannelTimeout):
            dag.experimental_compile(timeout=SOON_S)
    first.open()
    assert rcg.get(call) == "passed"
    with dag.experimental_compile() as graph:
        assert rcg.get(graph.execute(2)) == 2


# --- drivers that are actors or tasks


def test_the_driver_is_an_actor(thrower, stages):
    (a,) = stages(1)
    assert rcg.get(thrower.compile_and_run.remote(a, 5)) == [10, 12, 14]


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
    """Over several of its calls, until it drops it."""
    (a,), keeper = stages(1), Throwing.remote()
    graph_id = rcg.get(keeper.compile_and_keep.remote(keeper, a))
    assert rcg.get([keeper.run_kept.remote(i) for i in range(3)]) == [0, 2, 4]
    keeper.drop_kept.remote()
    assert rcg.get(keeper.echo.remote(1)) == 1
    assert rcg.get(a.join_threads.remote(graph_id)) == []


def test_loops_end_with_a_driver_that_was_an_actor(stages):
    (a,), keeper = stages(1), Throwing.remote()
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
