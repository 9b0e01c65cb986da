# SPDX-License-Identifier: Apache-2.0
"""Exceptions and values that raise when code looks at them: one execution fails, nothing else.

However a loop ends, no call waits for it for ever.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from typing import Any

import pytest
from ray.exceptions import RayTaskError

import rcg
from rcg.channels.base import GraphEnded
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import ChannelBroken, ChannelTimeout, ExecutionError
from rcg.ir.ops import Call
from rcg.runtime.actor import failpoints
from tests.cluster.stage import GUARD_S, awaited, compile_one, in_thread
from tests.harness.circles import core_has, core_where
from tests.harness.hostile import (
    ENDS,
    ERRORS,
    MARK,
    SILENT,
    WAYS,
    RaisesWhenDumped,
    RaisesWhenLoaded,
    make_error,
)
from tests.harness.peers import noted

pytestmark = pytest.mark.usefixtures("ray_session")


class RaisingHandler(logging.Handler):
    def emit(self, record):
        raise SystemExit("the handler raises")


class Raiser:
    def echo(self, x):
        return x

    def throw(self, name):
        """Raise the exception of this name; other values pass."""
        if name in ERRORS:
            raise make_error(name)
        return name

    def give(self, x):
        """Return what cannot be pickled, or not be unpickled, if it is named."""
        if type(x) is tuple and x[0] == "dumped":
            return RaisesWhenDumped(*x[1:])
        return x

    @rcg.method(num_returns=2)
    def two(self, x):
        return StrangeTuple((1, 2)) if x == "strange" else (x, x)

    def run(self, handles, x):
        """Use a graph of another process; says what was raised, which Ray might not survive."""
        try:
            return rcg.get(handles[0].execute(x), timeout=GUARD_S)
        except BaseException as error:  # noqa: BLE001 - it is what the test is about
            return f"raised {[kind.__name__ for kind in type.mro(type(error))]}"

    def get_soon(self, handle_and_timeout):
        """Get from another graph; returns what came of it."""
        handle, timeout = handle_and_timeout
        try:
            return f"got {handle.execute(1).get(timeout=timeout)}"
        except ChannelTimeout as error:
            return str(error)

    def on_failpoint(self, call):
        """Have the loops of the next graphs call this."""
        failpoints.on_failpoint = call

    def break_logging(self, is_broken):
        log = logging.getLogger("rcg")
        for handler in [h for h in log.handlers if isinstance(h, RaisingHandler)]:
            log.removeHandler(handler)
        if is_broken:
            log.addHandler(RaisingHandler())


class AsyncRaiser(Raiser):
    async def throw_later(self, name):
        await asyncio.sleep(0)
        if name in ERRORS:
            raise make_error(name)
        return name


class StrangeTuple(tuple):
    """Says that it is longer than it is."""

    __slots__ = ()

    def __len__(self):
        raise SystemExit("hostile")

    def __iter__(self):
        raise SystemExit("hostile")


Sync = rcg.remote(num_cpus=0)(Raiser)
Async = rcg.remote(num_cpus=0)(AsyncRaiser)


@pytest.fixture(scope="module")
def raiser(ray_session):
    return Async.remote()


@pytest.fixture(scope="module")
def others(ray_session):
    return [Sync.remote(), Sync.remote()]


@pytest.fixture(scope="module")
def victim(ray_session):
    """An actor whose loops end."""
    return Sync.remote()


def get(ref):
    return rcg.get(ref, timeout=GUARD_S)


# --- exceptions that cannot be shown


@pytest.mark.parametrize(
    ("kind", "method", "thread"),
    core_where(
        lambda case: case[2] == "own",
        [(Sync, "throw", "own"), (Sync, "throw", "main"), (Async, "throw_later", "own")],
    ),
)
def test_an_exception_that_cannot_be_shown_fails_its_execution(kind, method, thread):
    actor = kind.remote()
    graph = compile_one(actor, method, thread=thread)
    for name in ERRORS:
        with noted(name):
            ref = graph.execute(name)
            for _ in range(2):
                with pytest.raises(RayTaskError) as raised:
                    get(ref)
                assert MARK in str(raised.value) or name in SILENT
                assert f"in {method}" in str(raised.value)
    assert get(graph.execute("fine")) == "fine"
    assert "running" in str(graph.report())
    graph.teardown()
    assert rcg.get(actor.echo.remote("alive")) == "alive"
    rcg.kill(actor)


def test_such_an_exception_can_be_awaited(raiser):
    async def run(graph):
        for name in ERRORS:
            with noted(name), pytest.raises(RayTaskError):
                await asyncio.wait_for(await graph.execute_async(name), GUARD_S)
        return await asyncio.wait_for(await graph.execute_async("fine"), GUARD_S)

    with compile_one(raiser, "throw") as graph:
        assert asyncio.run(run(graph)) == "fine"


def test_such_an_exception_may_be_raised_while_an_input_is_unpickled(others):
    with compile_one(others[0]) as graph:
        for name in ERRORS:
            with noted(name), pytest.raises(RayTaskError) as raised:
                get(graph.execute(RaisesWhenLoaded(name)))
            assert "reading its input" in str(raised.value)
        assert get(graph.execute("fine")) == "fine"


def test_a_result_that_lies_about_its_length_fails_that_execution(others):
    with InputNode() as inp:
        dag = MultiOutputNode(list(others[0].two.bind(inp)))
    with dag.experimental_compile() as graph:
        for ref in graph.execute("strange"):
            with pytest.raises(RayTaskError, match="hostile"):
                get(ref)
        assert rcg.get(graph.execute("fine"), timeout=GUARD_S) == ["fine", "fine"]


# --- a loop that ends


class Raises:
    """What happens at a moment: the loop itself raises."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, moment: failpoints.Failpoint) -> None:
        if type(moment.op) is Call and moment.execution == 1:
            if self.name == "poisoned":
                raise GraphEnded(True)
            raise make_error(self.name)


class EndsWithoutAWord(Raises):
    """The loop ends, and fails to report why."""

    def __call__(self, moment: failpoints.Failpoint) -> None:
        super().__call__(moment)
        if moment.kind == "stop":
            raise SystemExit("hostile")


@pytest.mark.parametrize("is_logging_broken", core_has(True, [False, True]))
@pytest.mark.parametrize(
    "ending",
    [
        Raises("poisoned"),  # the loop reports a regular end, as after a stop
        Raises("huge"),
        Raises("a lone surrogate"),
        Raises("__bool__ raises"),
        Raises("__str__ and __repr__ raise SystemExit"),
        EndsWithoutAWord("poisoned"),
        EndsWithoutAWord("__bool__ raises"),
    ],
    ids=lambda ending: f"{type(ending).__name__} {ending.name}",
)
def test_a_loop_that_ends_unasked_breaks_the_graph(others, victim, ending, is_logging_broken):
    rcg.get([victim.on_failpoint.remote(ending), victim.break_logging.remote(is_logging_broken)])
    with InputNode() as inp:
        dag = others[0].echo.bind(victim.echo.bind(inp))
    graph = dag.experimental_compile()
    assert get(graph.execute(0)) == 0
    ref = graph.execute(1)
    awaiting = in_thread(lambda: asyncio.run(awaited(ref)))
    with pytest.raises(ChannelBroken, match="its loop failed") as raised:
        get(ref)
    assert "Raiser" in str(raised.value)
    if ending.name == "huge":
        assert MARK in str(raised.value)  # the beginning of it, not only its end
    with pytest.raises(ChannelBroken):
        awaiting()
    with pytest.raises(ChannelBroken):
        graph.execute(2)
    assert "broken" in str(graph.report())
    graph.teardown()
    assert rcg.get(victim.echo.remote("alive")) == "alive"


def test_a_loop_that_the_driver_stops_has_not_failed(others):
    """A teardown is no failure, in whatever order its messages arrive."""
    for _ in range(20):
        graph = compile_one(others[0])
        assert get(graph.execute(1)) == 1
        graph.teardown()
        assert not graph._engine.session.control.lives.gone
        assert not graph._engine.session.is_broken


# --- pickling code that raises what ends programs


@pytest.mark.parametrize("kind", [kind for kind in ENDS if kind != "KeyboardInterrupt"])
def test_a_result_whose_unpickling_ends_programs_is_an_error_of_its_get(others, kind):
    with compile_one(others[0], "give") as graph:
        ref = graph.execute(("dumped", kind, "__setstate__"))
        for _ in range(2):
            with pytest.raises(ExecutionError, match=kind):
                get(ref)
        with pytest.raises(ExecutionError, match=kind):
            asyncio.run(awaited(graph.execute(("dumped", kind, "__setstate__"))))
        assert get(graph.execute("fine")) == "fine"


class Interrupted:
    """Ctrl-C is pressed, or a signal's handler exits, while it is pickled or unpickled: once."""

    times = 0

    def __init__(self, number: int, way: str) -> None:
        self.number, self.way = number, way

    def __getstate__(self):
        if self.way == "__getstate__":
            self.interrupt()
        return dict(self.__dict__)

    def __setstate__(self, state):
        self.__dict__.update(state)
        if self.way == "__setstate__":
            self.interrupt()

    def interrupt(self):
        if not Interrupted.times and threading.current_thread() is threading.main_thread():
            Interrupted.times += 1
            signal.raise_signal(self.number)


def exit_by_signal(*_: Any) -> None:
    raise SystemExit("a signal")


@pytest.mark.parametrize(
    ("number", "handler", "kind"),
    [
        (signal.SIGINT, signal.default_int_handler, KeyboardInterrupt),
        (signal.SIGTERM, exit_by_signal, SystemExit),
    ],
)
@pytest.mark.parametrize("way", ["__getstate__", "__setstate__"])
def test_a_signal_that_comes_while_values_are_pickled_is_what_it_is(
    others, number, handler, kind, way
):
    """It raises in the driver as anywhere else, and nothing else changes."""
    before = signal.signal(number, handler)
    Interrupted.times = 0
    value = Interrupted(number, way)
    try:
        with compile_one(others[0]) as graph:
            if way == "__getstate__":
                with pytest.raises(kind):
                    graph.execute(value)
                ref = graph.execute(value)
            else:
                ref = graph.execute(value)
                with pytest.raises(kind):
                    get(ref)
            assert type(get(ref)) is Interrupted
            assert graph.statistics().executions == 1
    finally:
        signal.signal(number, before)


# --- a method that waits for its own turn


def test_the_timeout_of_a_get_over_ones_own_actor_says_why(others):
    """The method holds the actor's turn, for which the other graph waits."""
    actor, _ = others
    with compile_one(actor) as wanted, compile_one(actor, "get_soon") as asking:
        said = get(asking.execute([wanted, 0.2]))
        assert "no result yet after 0.2 s" in said
        assert "waits for its turn" in said and "Raiser" in said and "concurrent=True" in said
    with compile_one(others[1]) as elsewhere, compile_one(actor, "get_soon") as asking:
        assert get(asking.execute([elsewhere, GUARD_S])) == "got 1"


# --- through a handle


def test_all_of_this_through_a_handle(raiser, others):
    """The process that has only a handle gets the same errors, and the connection goes on."""
    user, _ = others
    with compile_one(raiser, "throw") as throw, compile_one(raiser, "give") as give:
        for name in ERRORS:
            with noted(name):
                assert "RayTaskError" in rcg.get(user.run.remote([throw], name), timeout=GUARD_S)
        for kind in ENDS:
            for way in WAYS:
                said = rcg.get(user.run.remote([give], ("dumped", kind, way)), timeout=GUARD_S)
                with noted(f"{kind} {way}"):
                    assert said.startswith("raised") and "'Exception'" in said
        assert rcg.get(user.run.remote([throw], "fine")) == "fine"
        assert rcg.get(user.run.remote([give], "fine")) == "fine"
