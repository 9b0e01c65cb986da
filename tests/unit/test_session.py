# SPDX-License-Identifier: Apache-2.0
"""A session: running, broken by a death, and closed; the test reports the deaths."""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rcg import cluster
from rcg.channels.base import GraphEnded, NoMemory
from rcg.errors import (
    ActorDiedError,
    ChannelBroken,
    ChannelClosed,
    ChannelTimeout,
    OutOfSharedMemory,
    PlacementError,
    RcgError,
)
from rcg.ir.nodes import Site
from rcg.ir.plan import Bindings
from rcg.options import Deadline, Options
from rcg.runtime.by_reference import HeldResult
from rcg.runtime.control import registry
from rcg.runtime.control.lives import Left
from rcg.runtime.driver import answers, lifecycle
from rcg.runtime.driver.compiled_dag import CompiledDAG
from rcg.runtime.driver.engine import Engine
from rcg.runtime.driver.lifecycle import launch
from rcg.runtime.driver.session import Session
from rcg.runtime.refs import HELD
from rcg.trace.clocks import now_ns
from rcg.wire.liveness import Ending, How
from tests.harness.driven import ACTOR, Driven, plan_of, run_once
from tests.harness.peers import GUARD_S, ctrl_c_anywhere, descriptors, until
from tests.harness.served import control_threads

Drive = Callable[..., Driven]

MB = 1 << 20


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here asks Ray, also where a session of Ray's runs."""
    monkeypatch.setattr(cluster, "is_connected", lambda: False)


def die(session: Session, how: How = How.DIED, why: str = "", process: str = ACTOR) -> None:
    session.control._note(process, Left(Ending(how, why)))


def test_a_death_breaks_the_graph_and_is_its_error(driven: Drive) -> None:
    graph = driven()
    session = graph.session
    session.check_running()
    assert (session.is_over, session.is_broken, session.has_cause) == (False, False, True)
    graph.engine.execute(0)
    graph.take()
    die(session)
    assert (session.is_over, session.is_broken, session.is_closed) == (True, True, False)
    assert not session.has_cause
    with pytest.raises(GraphEnded):
        graph.take()  # every wait of every member has ended
    with pytest.raises(ActorDiedError) as raised:
        session.check_running()
    assert session.has_cause
    assert raised.value.actor == session.plan.label(ACTOR)
    assert raised.value.actor_id == bytes(16).hex()
    assert "its process ended" in str(raised.value)
    assert "It was last seen reading the input (execution 1). The other" in str(raised.value)
    assert (raised.value.node, raised.value.site) == (None, None)


def test_an_error_is_new_each_time_and_its_cause_is_found_once(
    driven: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = driven().session
    asked: list[str] = []
    find = session._error_of

    def counting(process: str, ending: Ending, deadline: Deadline) -> Any:
        asked.append(process)
        return find(process, ending, deadline)

    monkeypatch.setattr(session, "_error_of", counting)
    die(session)
    first, second = session.end_error(), session.end_error()
    assert first is not second
    assert (str(first), type(first), first.facts) == (str(second), type(second), second.facts)
    assert asked == [ACTOR]


def test_the_first_death_is_the_cause(driven: Drive) -> None:
    session = driven().session
    die(session, How.FAILED, "the first")
    die(session, How.FAILED, "the second")
    assert "the first" in str(session.end_error())


def test_a_loop_that_failed_is_no_death(driven: Drive) -> None:
    session = driven().session
    die(session, How.FAILED, "what it said")
    error = session.end_error()
    assert isinstance(error, ChannelBroken)
    assert not isinstance(error, ActorDiedError)
    assert "what it said" in str(error)
    assert error.peer == session.plan.label(ACTOR)


@pytest.mark.parametrize("how", How)
def test_what_a_dead_process_held_is_let_go_and_what_a_living_one_holds_is_not(
    driven: Drive, how: How
) -> None:
    graph = driven()
    graph.engine.execute(np.zeros(MB, np.uint8))
    kept = graph.take()
    assert graph.session.node.memory().claimed_bytes >= MB
    die(graph.session, how)
    claimed = graph.session.node.memory().claimed_bytes
    assert claimed >= MB if how in (How.FAILED, How.EXITED) else claimed == 0
    assert not kept.any()


def test_closed_comes_before_broken(driven: Drive) -> None:
    session = driven().session
    die(session)
    session.close_nowait()
    assert session.is_closed
    assert session.has_cause
    assert type(session.end_error()) is ChannelClosed
    with pytest.raises(ChannelClosed):
        session.check_running()


def test_a_member_that_leaves_a_closed_graph_breaks_nothing(driven: Drive) -> None:
    session = driven().session
    session.close_nowait()
    die(session)
    assert not session.is_broken
    assert session.report(None).state == "closed"


def test_what_channels_raise_becomes_the_error_of_the_graph(driven: Drive) -> None:
    session = driven().session
    session.close_nowait()
    assert type(session.public(GraphEnded(True))) is ChannelClosed
    assert "torn down" in str(session.public(GraphEnded(True)))
    assert type(session.public(NoMemory(1, 2, 3, 28))) is OutOfSharedMemory


ENDS: dict[str, Callable[[Session], None]] = {
    "death": die,
    "close": lambda session: session.close_nowait(),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_everybody_hears_of_the_end_once(driven: Drive, end: Callable[[Session], None]) -> None:
    session = driven().session
    heard: list[str] = []

    def bad() -> None:
        heard.append("bad")
        raise ValueError("a user's")

    session.on_end(bad)  # keeps no other from hearing of it
    session.on_end(lambda: heard.append("early"))
    session.on_close(bad)
    session.on_close(lambda: heard.append("close"))
    forgotten = lambda: heard.append("forgotten")  # noqa: E731 - it is compared
    session.on_close(forgotten)
    session.forget_close(forgotten)
    session.forget_close(forgotten)  # any number of times
    assert not heard
    end(session)
    assert heard[:2] == ["bad", "early"]
    session.on_end(lambda: heard.append("late"))
    closed = ["bad", "close"]
    assert heard == ["bad", "early", *(closed if session.is_closed else []), "late"]
    session.close_nowait()
    session.on_close(lambda: heard.append("late close"))
    assert heard.count("close") == heard.count("late close") == heard.count("early") == 1
    assert "forgotten" not in heard


def test_closing_ends_waits_and_gives_the_memory_back(
    driven: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = driven()
    stopped: list[bool] = []
    stop = graph.session.control.stop

    def noted_stop() -> None:
        stopped.append(graph.node.is_over)
        stop()

    monkeypatch.setattr(graph.session.control, "stop", noted_stop)
    graph.session.control.forget([ACTOR])  # its loop has never begun
    assert graph.session.close(Deadline(0)) == []
    assert stopped == [False]  # first, or a loop would seem to end unasked
    assert graph.node.is_over
    assert graph.session.host.descriptors()[1] == []


def test_a_loop_that_has_not_ended_keeps_the_graph_open_and_is_named(
    driven: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = driven()
    session = graph.session
    let_go: list[None] = []
    late = [ACTOR]
    monkeypatch.setattr(session, "_let_go", lambda: let_go.append(None))
    monkeypatch.setattr(session.control, "wait_stopped", lambda deadline: list(late))
    said: list[str] = []
    assert session.close(Deadline(60), warn=said.append) == [ACTOR]
    (text,) = said
    assert session.plan.label(ACTOR) in text and "kill_actors=True" in text
    assert not let_go
    late.clear()
    assert session.close(Deadline(60), warn=said.append) == []
    assert len(said) == 1 and let_go


def test_a_graph_is_live_until_its_teardown_is_over(
    driven: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = driven()
    registry.add(graph.engine)
    late = [ACTOR]
    monkeypatch.setattr(graph.session, "close", lambda *_, **__: list(late))
    with pytest.raises(ChannelTimeout, match="Call teardown"):
        graph.engine.teardown(timeout=0.0)
    assert graph.engine in registry.live(Engine)
    late.clear()
    graph.engine.teardown(timeout=0.0)
    assert graph.engine not in registry.live(Engine)


def test_a_forked_child_has_no_graph_to_close(
    driven: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = driven()
    heard: list[str] = []
    graph.session.on_close(lambda: heard.append("closed"))
    monkeypatch.setattr(graph.session, "pid", 0)
    graph.session.close_nowait()
    assert graph.session.close(Deadline(None)) == []
    assert graph.session.is_closed
    assert not graph.node.is_over and not heard
    monkeypatch.undo()


def test_where_a_process_was_seen_last_is_said_in_the_users_words(driven: Drive) -> None:
    graph = driven()
    graph.engine.execute(0)
    run_once(graph.loop(type("Stage", (), {"make": lambda self, value: value})()))
    sent = f"sending the result of {ACTOR}.make (execution 0)"
    assert graph.session.last_seen(ACTOR) == (sent, None, None)
    assert str(graph.session.last_seen("nobody")) == "nowhere"


def test_the_error_of_a_death_in_a_method_has_the_line_where_it_was_bound(driven: Drive) -> None:
    graph = driven()
    graph.engine.execute(0)
    graph.take()
    graph.node.member.mark(1, 0)  # the call
    die(graph.session)
    with pytest.raises(ActorDiedError) as raised:
        graph.session.check_running()
    label = graph.session.plan.actors[0].label
    seen = f"It was last seen in {label}.make (execution 0), bound at pipeline.py:12. The other"
    assert seen in str(raised.value)
    assert raised.value.node == f"{label}.make"
    assert raised.value.site == Site("pipeline.py", 12)


def test_a_closed_graph_is_reported_as_closed_also_if_it_broke_first(
    driven: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = driven().session
    assert session.report(None).state == "running"
    monkeypatch.setattr(session.control.lives, "gone", {ACTOR: Ending(How.DIED)})
    die(session)
    assert session.report(None).state == "broken"
    session.close_nowait()
    assert session.report(None).state == "closed"


@pytest.mark.parametrize("how", How)
def test_a_report_says_how_a_process_has_left(
    driven: Drive, monkeypatch: pytest.MonkeyPatch, how: How
) -> None:
    session = driven().session
    monkeypatch.setattr(session.control.lives, "gone", {ACTOR: Ending(how)})
    session.control.lives.forget([ACTOR])
    (state,) = [each.state for each in session.report(None).processes if each.process == ACTOR]
    left = {How.FAILED: "failed", How.UNREACHABLE: "unreachable"}
    assert state == left.get(how, "dead")
    said = {"dead": "died", "failed": "failed", "unreachable": "cannot be reached"}[state]
    assert said in str(session.report(None).verdict)


# --- Ctrl-C


def test_ctrl_c_while_a_graph_is_started_leaves_nothing_of_it() -> None:
    names = (
        "rcg.runtime.driver.lifecycle",
        "rcg.runtime.driver.session",
        "rcg.runtime.node.host",
        "rcg.runtime.node.memory.Segments",
        "rcg.runtime.control.graph_control",
    )
    graphs: list[CompiledDAG] = []
    gc.collect()
    before = held()
    for _ in ctrl_c_anywhere(lambda: graphs.append(launched()), *names):
        graphs.clear()
        until(lambda: nothing_beyond(before))


def test_ctrl_c_while_a_dropped_graph_is_closed_comes_after_that_or_before() -> None:
    names = "rcg.runtime.driver.session", "rcg.runtime.node"
    gc.collect()
    graphs = [launched()]
    graphs[-1]._engine.session.close_nowait()
    closed = held()
    graphs[-1] = launched()
    for at in ctrl_c_anywhere(lambda: graphs[-1]._engine.session.close_nowait(), *names):
        if at:
            until(lambda: nothing_beyond(closed))
        graphs[-1] = launched()


def test_ctrl_c_in_a_teardown_ends_the_wait_alone() -> None:
    def alone() -> CompiledDAG:
        graph = launched()
        graph._engine.session.control.forget([ACTOR])
        return graph

    gc.collect()
    graphs = [alone()]
    graphs[-1].teardown()
    closed = held()
    graphs[-1] = alone()
    names = "rcg.runtime.driver.engine.Engine.teardown", "rcg.threads.run_behind"
    for at in ctrl_c_anywhere(lambda: graphs[-1].teardown(), *names):
        if at:  # the first is before it has begun
            assert graphs[-1].is_teardown
            until(lambda: graphs[-1]._engine not in registry.live(Engine))
            until(lambda: nothing_beyond(closed))
        graphs[-1] = alone()


class Kept(HeldResult):
    """A result that stays with its actor, which is this process."""

    __slots__ = ()

    def keep(self) -> None:
        pass

    def discard(self) -> None:
        pass

    def reference(self) -> str:
        return "the reference"


@pytest.mark.parametrize("wrong", [-5, math.nan, True, "5", Decimal(5)])
def test_a_teardown_that_is_refused_does_nothing(driven: Drive, wrong: Any) -> None:
    graph = driven()
    graph.buffers[0].ready = HELD
    ref = graph.engine.execute(0)
    graph.answer(Kept())
    assert ref.done()
    with pytest.raises((ValueError, TypeError), match="`timeout` must be"):
        graph.engine.teardown(timeout=wrong)
    assert not graph.session.is_over
    assert ref.get(0) == "the reference"


def test_a_teardown_ends_a_get_that_was_about_to_take_its_result(
    driven: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = driven()
    (buffer,) = graph.buffers
    buffer.ready = HELD
    ref = graph.engine.execute(0)
    graph.answer(Kept())
    collect = buffer._collect

    def collect_slowly(*args: Any) -> None:
        collect(*args)
        graph.session.close_nowait()

    monkeypatch.setattr(buffer, "_collect", collect_slowly)
    errors: list[BaseException] = []

    def get() -> None:
        try:
            ref.get()
        except ChannelClosed as error:
            errors.append(error)

    thread = threading.Thread(target=get, daemon=True)
    thread.start()
    thread.join(GUARD_S)
    assert errors


def test_ctrl_c_while_a_profile_begins_leaves_no_thread_that_records() -> None:
    graph = launched()
    profiler, started = graph.profile(), []
    names = "rcg.runtime.observe.profiler", "rcg.runtime.node.host"
    for _ in ctrl_c_anywhere(lambda: started.append(profiler.start()), *names):
        if not started:
            until(lambda: not recorders())
    assert len(recorders()) == 1
    profiler.stop()
    until(lambda: not recorders())


def recorders() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "rcg-profile"]


def launched() -> CompiledDAG:
    """A graph whose actor does not exist."""
    return launch(plan_of(1, 4), Bindings(), Options(), Deadline(GUARD_S))


def held() -> tuple[int, int, int]:
    """How much this process has: shared memory, descriptors, and threads of the control."""
    maps = Path("/proc/self/maps").read_text().count("(deleted)")
    return maps, len(descriptors()), len(control_threads())


def nothing_beyond(before: tuple[int, int, int]) -> bool:
    """Whether this process has no more than it had."""
    return all(now <= then for now, then in zip(held(), before, strict=True))


class _Silent:
    """Calls of actors; nobody answers before the test has looked ``looks`` times."""

    def __init__(self, looks: int) -> None:
        self._left = 2 * looks

    def wait(self, refs: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        self._left -= 1
        return ([], refs) if self._left >= 0 else (refs, [])


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (40, "40 of 40 actors have not answered"),
        (2, "2 of 2 actors have not answered"),
        (1, "1 of 1 actor has not answered"),
    ],
)
def test_compiling_says_how_many_actors_have_not_answered(
    count: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    notices: list[str] = []
    monkeypatch.setattr(answers, "notice", notices.append)
    actors = {f"a{number}": f"Actor(Shard, {number:032x})" for number in range(count)}
    named = answers.Named(Bindings(actors={name: _Named(text) for name, text in actors.items()}))
    monkeypatch.setattr(answers, "_SILENT_WAIT_S", 0.0)
    monkeypatch.setattr(cluster, "get", lambda ref: ref)
    monkeypatch.setattr(cluster, "wait", _Silent(2).wait)
    assert answers.gather(actors, named, Deadline(None), "answered") == actors
    (text,) = notices  # once, although it looked twice
    assert text.startswith(f"rcg: compile() has waited 0 s, and {said} (still starting, or busy")
    assert text.count("(Shard)") == min(count, 3)
    assert text.endswith(" and 37 more") is (count == 40)
    monkeypatch.setattr(cluster, "wait", _Silent(2).wait)
    with pytest.raises(ChannelTimeout, match=f"compile.. waited 0 s, and {said}: ") as raised:
        answers.gather(actors, named, Deadline(0.0), "answered")
    assert str(raised.value).count("(Shard)") == min(count, 3)


@pytest.mark.parametrize(
    ("how", "raised"),
    [(How.LEFT, ActorDiedError), (How.UNREACHABLE, ActorDiedError), (How.FAILED, PlacementError)],
)
def test_what_cannot_join_a_node_whose_host_died_is_not_the_cause(
    monkeypatch: pytest.MonkeyPatch, how: How, raised: type[RcgError]
) -> None:
    """The death is heard of later than what another process says: nobody answers on its node."""

    def fail(session: Session, *_: object) -> None:
        gone = session.control.lives.on
        left = Left(Ending(how, "the host"))
        threading.Timer(0.02, lambda: gone(ACTOR, left, now_ns())).start()
        raise PlacementError("its graph has ended")

    monkeypatch.setattr(lifecycle, "_start_loops", fail)
    bindings = Bindings(actors={ACTOR: SimpleNamespace(_actor_id=bytes(16))})
    with pytest.raises(raised) as error:
        launch(plan_of(1, 4), bindings, Options(), Deadline(GUARD_S))
    assert ("the host" in str(error.value)) == (how is not How.FAILED)


class _Named:
    """A handle that prints as Ray's does."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text
