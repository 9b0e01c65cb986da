# SPDX-License-Identifier: Apache-2.0
"""The steps of an actor's program, on real channels; the test runs them one after the other."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rcg.channels.base import GraphEnded, NoMemory
from rcg.errors import ExecutionError, OutOfSharedMemory, UnpicklableError
from rcg.ir.containers import Template
from rcg.ir.ops import Write
from rcg.runtime.actor import steps
from rcg.runtime.actor.loop import Loop
from rcg.runtime.actor.turns import turns
from rcg.runtime.failure import capture
from rcg.serialization import Failure
from tests.harness.driven import ACTOR, Driven, run_once
from tests.harness.peers import GUARD_S, ctrl_c_anywhere, until

Drive = Callable[..., Driven]

MB = 1 << 20
NOW = {"timeout": 0}

ONE = ("Read c0 -> s0", "Call a0.make(s0) -> s1 #1", "Write s1 -> c1")
# The other shapes of a call: with a keyword, and with several results.
NAMED = ("Read c0 -> s0", "Call a0.make(value=s0) -> s1 #1", "Write s1 -> c1")
TWO = ("Read c0 -> s0", "Call a0.make(s0) -> s1, s2 #1", "Write s1 -> c1", "Write s2 -> c2")
CALLS = pytest.mark.parametrize("program", [ONE, NAMED], ids=["one", "named"])


class Stage:
    """An actor whose method is the test's; ``calls`` are the values it got."""

    def __init__(self, make: Callable[[Any], Any] = lambda value: value) -> None:
        self._make = make
        self.calls: list[Any] = []

    def make(self, value: Any) -> Any:
        self.calls.append(value)
        return self._make(value)

    def fail(self, value: Any) -> Any:
        raise KeyError(f"fail {value}")

    def pair(self, first: Any, second: Any = None) -> Any:
        self.calls.append((first, second))
        return first, second


class Refuses:
    """Is pickled with a call that raises, on one side or the other."""

    def __init__(self, *, there: bool) -> None:
        self.there = there

    def __reduce__(self) -> Any:
        if not self.there:
            raise KeyboardInterrupt("not pickled")
        return int, ("not a number",)


def returns(value: Any) -> Stage:
    return Stage(lambda _: value)


def raises(error: BaseException) -> Stage:
    def make(_: Any) -> Any:
        raise error

    return Stage(make)


def ran(graph: Driven, loop: Loop, *values: Any) -> list[Any]:
    """Submit values, and let the loop run once for each; returns their refs."""
    refs = [graph.engine.execute(value) for value in values]
    for _ in refs:
        run_once(loop)
    return refs


def in_method(error: BaseException) -> str:
    """Where an error says that it was raised."""
    first: str = error._render_traceback_()[0]  # type: ignore[attr-defined]
    return first.removeprefix("in ").partition(", execution")[0]


# --- reading


def test_an_input_that_cannot_be_unpickled_fails_its_execution_alone(driven: Drive) -> None:
    graph = driven()
    stage = Stage()
    loop = graph.loop(stage)
    refs = ran(graph, loop, 1, Refuses(there=True), 3)
    assert refs[0].get(**NOW) == 1
    with pytest.raises(ValueError, match="not a number") as raised:
        refs[1].get(**NOW)
    assert in_method(raised.value) == "`Stage` of a0 (reading its input)"
    assert refs[2].get(**NOW) == 3
    assert stage.calls == [1, 3]


def test_the_end_of_a_graph_ends_the_loop(driven: Drive) -> None:
    graph = driven()
    loop = graph.loop(Stage())
    graph.engine.execute(0)
    run_once(loop)
    graph.session.close_nowait()
    with pytest.raises(GraphEnded):
        loop._steps[0]()
    with pytest.raises(GraphEnded):
        loop._steps[2]()


def test_no_method_is_called_with_what_an_earlier_execution_left(driven: Drive) -> None:
    program = (
        "Read c0 -> s0",
        "Read c9 -> s1, s2",
        "Call a0.pair(s1, s2) -> s3 #1",
        "Write s3 -> c1",
    )
    graph = driven(program=program)
    stage = Stage()
    loop = graph.loop(stage)
    graph.engine.execute(1)
    run_once(loop)
    graph.session.close_nowait()
    with pytest.raises(GraphEnded):
        loop._steps[1]()
    assert stage.calls == [(1, 1)]


def test_a_loop_that_is_idle_gives_its_free_memory_back_once_and_goes_on(
    driven: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = driven()
    trims: list[Any] = []
    # The next input comes at that moment.
    monkeypatch.setattr(graph.node, "trim", lambda: trims.append(graph.engine.execute(7)))
    monkeypatch.setattr(steps, "_IDLE_TRIM_NS", 1)
    loop = graph.loop(Stage())
    run_once(loop)
    assert [ref.get(**NOW) for ref in trims] == [7]
    graph.engine.execute(8)
    run_once(loop)
    assert len(trims) == 1  # it was not idle


# --- calling


@CALLS
@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_whatever_a_method_raises_fails_its_execution_alone(
    driven: Drive, program: tuple[str, ...], kind: type[BaseException]
) -> None:
    graph = driven(program=program)
    loop = graph.loop(raises(kind("the text")))
    found: list[BaseException] = []

    def run() -> None:
        run_once(loop)

    # Ctrl-C is Ctrl-C on the main thread alone.
    thread = threading.Thread(target=run)
    ref = graph.engine.execute(0)
    thread.start()
    thread.join()
    try:
        ref.get(**NOW)
    except Exception as error:  # noqa: BLE001 - in no case another kind
        found.append(error)
    (error,) = found
    assert "the text" in str(error)
    assert in_method(error) == "`Stage.make` of a0"
    assert error.execution == 0  # type: ignore[attr-defined]
    assert isinstance(error, kind) == (kind is ValueError)
    assert "actor/steps.py" not in str(error)  # the traceback begins in the method
    assert not turns.lock.locked()
    again = graph.engine.execute(1)
    loop._steps = graph.loop(Stage())._steps
    run_once(loop)
    assert again.get(**NOW) == 1


@pytest.mark.parametrize(
    ("call", "first"),
    [
        ("Call a0.pair(s1, s2) -> s3 #3", "fail 1"),
        ("Call a0.pair(s2, s1) -> s3 #3", "fail 2"),
        ("Call a0.pair(s0, s2) -> s3 #3", "fail 2"),
        ("Call a0.pair(s0, second=s1) -> s3 #3", "fail 1"),
        ("Call a0.pair(s2, second=s1) -> s3 #3", "fail 2"),
        ("Call a0.pair(first=s1, second=s0) -> s3 #3", "fail 1"),
    ],
)
def test_a_call_with_failed_values_is_not_made_and_fails_as_the_first_of_them(
    driven: Drive, call: str, first: str
) -> None:
    program = (
        "Read c0 -> s0",
        "Call a0.fail(s0) -> s1 #1",
        "Call a0.other(s0) -> s2 #2",
        call,
        "Write s3 -> c1",
    )
    graph = driven(program=program)
    stage = Stage()
    stage.other = lambda value: stage.fail(value + 1)  # type: ignore[attr-defined]
    loop = graph.loop(stage)
    ref = graph.engine.execute(1)
    run_once(loop)
    with pytest.raises(KeyError, match=first):
        ref.get(**NOW)
    assert not stage.calls


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (7, "Expected a tuple of 2 outputs, but got int"),
        ("ab", "Expected a tuple of 2 outputs, but got str"),
        ((1,), "Expected 2 outputs, but got 1 outputs"),
        ([1, 2, 3], "Expected 2 outputs, but got 3 outputs"),
    ],
)
def test_a_method_with_several_outputs_fails_all_of_them(
    driven: Drive, result: Any, text: str
) -> None:
    graph = driven(outputs=2, program=TWO)
    refs = graph.engine.execute(0)
    run_once(graph.loop(returns(result)))
    for ref in refs:
        with pytest.raises(ExecutionError, match=text) as raised:
            ref.get(**NOW)
        assert (raised.value.execution, raised.value.actor) == (0, "Stage")
    refs = graph.engine.execute(1)
    loop = graph.loop(raises(ValueError("both")))
    run_once(loop)
    for ref in refs:
        with pytest.raises(ValueError, match="both"):
            ref.get(**NOW)
    refs = graph.engine.execute(2)
    run_once(graph.loop(returns([1, 2])))
    assert [ref.get(**NOW) for ref in refs] == [1, 2]


@CALLS
def test_a_method_runs_in_the_turn_of_its_graph(driven: Drive, program: tuple[str, ...]) -> None:
    graph = driven(program=program)
    loop = graph.loop(Stage(lambda _: turns.lock.locked()))
    ref = graph.engine.execute(0)
    thread = threading.Thread(target=run_once, args=(loop,), daemon=True)
    with turns.lock:  # another graph's method
        thread.start()
        until(lambda: turns.why_waiting(graph.engine.get_id()))
        assert "of another graph" in loop.where()[0]
    assert ref.get(GUARD_S) is True
    thread.join(GUARD_S)
    assert not turns.lock.locked() and not turns.why_waiting(graph.engine.get_id())


@CALLS
def test_an_exception_at_any_place_of_a_call_leaves_the_turn_free(
    driven: Drive, program: tuple[str, ...]
) -> None:
    graph = driven(program=program)
    loop = graph.loop(Stage())
    step = loop._steps[1]
    for _ in ctrl_c_anywhere(step, f"{step.__module__}.{step.__qualname__}"):
        assert not turns.lock.locked()


@CALLS
def test_methods_of_a_concurrent_graph_need_no_turn(
    driven: Drive, program: tuple[str, ...]
) -> None:
    graph = driven(program=program, concurrent=True)
    ref = graph.engine.execute(0)
    run_once(graph.loop(Stage(lambda _: turns.lock.locked())))
    assert ref.get(**NOW) is False


@CALLS
def test_each_op_of_an_execution_is_recorded(driven: Drive, program: tuple[str, ...]) -> None:
    graph = driven(program=program)
    loop = graph.loop(Stage())
    for value in range(2):
        graph.engine.execute(value)
        run_once(loop)
    events = graph.session.node.newest_events(ACTOR)
    assert [(int(event["op"]), int(event["execution"])) for event in events] == [
        (op, execution) for execution in range(2) for op in range(3)
    ]


# --- writing


def test_a_result_that_cannot_be_pickled_says_who_returned_it(driven: Drive) -> None:
    graph = driven()
    stage = Stage(lambda value: threading.Lock() if value else value)
    loop = graph.loop(stage)
    refs = ran(graph, loop, 0, 1, 0)
    assert [refs[i].get(**NOW) for i in (0, 2)] == [0, 0]
    with pytest.raises(UnpicklableError) as raised:
        refs[1].get(**NOW)
    assert (raised.value.actor, raised.value.execution) == ("Stage", 1)


def test_what_pickling_a_result_raises_is_its_error(driven: Drive) -> None:
    graph = driven()
    ref = graph.engine.execute(0)
    run_once(graph.loop(returns(Refuses(there=False))))
    with pytest.raises(Exception, match="not pickled") as raised:
        ref.get(**NOW)
    assert in_method(raised.value) == "`Stage` of a0 (sending its result)"


def test_a_result_without_memory_fails_its_execution_and_names_its_channel(driven: Drive) -> None:
    graph = driven(memory_cap_bytes=MB)
    loop = graph.loop(Stage(lambda value: bytes(value)))
    refs = ran(graph, loop, 1, 2 * MB, 1)
    assert [refs[i].get(**NOW) for i in (0, 2)] == [b"\0", b"\0"]
    with pytest.raises(OutOfSharedMemory) as raised:
        refs[1].get(**NOW)
    assert raised.value.channel == "c1"


def test_a_failure_without_memory_arrives_with_less_text(driven: Drive) -> None:
    graph = driven(memory_cap_bytes=MB)

    def make(value: int) -> int:
        if value:
            raise ValueError("begin " + "x" * value + " end")
        return value

    loop = graph.loop(Stage(make))
    refs = ran(graph, loop, 0, 2 * MB, 0)
    assert [refs[i].get(**NOW) for i in (0, 2)] == [0, 0]
    with pytest.raises(Exception, match=r"(?s)ValueError: begin.*characters left out.*end"):
        refs[1].get(**NOW)


# --- building and freeing

BUILD = (
    "Read c0 -> s0",
    "Call a0.make(s0) -> s1 #1",
    "Build k0(s0, s1) -> s2",
    "Call a0.pair(s2) -> s3 #2",
    "Write s3 -> c1",
)


def test_a_container_is_made_of_values_and_fails_with_them(driven: Drive) -> None:
    graph = driven(program=BUILD)
    template, _ = Template.of({"a": [1j, 2j]}, lambda item: isinstance(item, complex))

    def make(value: int) -> int:
        if value == 2:
            raise ValueError("two")
        return -value

    stage = Stage(make)
    loop = graph.loop(stage, {"k0": template})
    refs = ran(graph, loop, 1, 2, 3)
    assert refs[0].get(**NOW) == ({"a": [1, -1]}, None)
    assert refs[2].get(**NOW) == ({"a": [3, -3]}, None)
    with pytest.raises(ValueError, match="two"):
        refs[1].get(**NOW)


def test_a_container_that_cannot_be_made_fails_its_execution_alone(driven: Drive) -> None:
    graph = driven(program=BUILD)

    def fill(values: list[int]) -> list[int]:
        if values[0] == 2:
            raise SystemExit("two")
        return values

    loop = graph.loop(Stage(), {"k0": SimpleNamespace(fill=fill)})
    refs = ran(graph, loop, 1, 2, 3)
    assert refs[0].get(**NOW) == ([1, 1], None)
    assert refs[2].get(**NOW) == ([3, 3], None)
    with pytest.raises(Exception, match="two") as raised:
        refs[1].get(**NOW)
    assert in_method(raised.value) == "`Stage` of a0 (making an argument)"


class Value:
    """What a weak reference can be made to."""


@pytest.mark.parametrize("free", [("Free s1", "Free s2"), ("Free s1, s2",)], ids=["each", "many"])
def test_a_freed_value_lives_no_longer(driven: Drive, free: tuple[str, ...]) -> None:
    program = (
        "Read c0 -> s0",
        "Call a0.new(s0) -> s1 #1",
        "Call a0.new(s0) -> s2 #2",
        "Call a0.alive(s1, s2) -> s3 #3",
        *free,
        "Write s3 -> c1",
    )
    made: list[weakref.ref[Value]] = []

    def new(_: Any) -> Value:
        value = Value()
        made.append(weakref.ref(value))
        return value

    def alive(*_: Any) -> int:
        return sum(each() is not None for each in made)

    graph = driven(program=program)
    ref = graph.engine.execute(0)
    loop = graph.loop(SimpleNamespace(new=new, alive=alive))
    run_once(loop)
    assert ref.get(**NOW) == 2
    assert alive() == 0


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("attempts", [3, 1000])
def test_a_failure_is_shortened_until_there_is_room_and_never_lost(
    driven: Drive, monkeypatch: pytest.MonkeyPatch, outputs: int, attempts: int
) -> None:
    """There is room for one failure, from some attempt on or never; silence would be a hang."""
    tried: list[Any] = []

    def write(*args: Any) -> None:
        value, *rest = args
        assert len(rest) == (outputs > 1)
        tried.append(value)
        is_one = type(value) is Failure if outputs == 1 else value[0] is value[1]
        if not is_one or len(tried) < attempts:
            raise NoMemory(1, 2, 3, 28)

    graph = driven()
    loop = graph.loop(raises(KeyError("too long")))
    monkeypatch.setattr(steps, "open_writer", lambda *_: SimpleNamespace(write=write))
    made = steps.Steps(loop, None, loop._spec, graph.node)
    made._slots[:outputs] = [
        capture(KeyError("too long " * 1000), loop.origin, "make", 0) for _ in range(outputs)
    ]
    step = made._write(0, Write(tuple(range(outputs)), "c1"))
    if attempts == 3:
        step()
    else:
        with pytest.raises(NoMemory):
            step()
    assert len(tried) >= 3
    last = tried[-1] if outputs == 1 else tried[-1][0]
    assert type(last) is Failure
    assert attempts == 3 or len(last.data) < 1000  # it says only that there was no room
