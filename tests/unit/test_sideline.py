# SPDX-License-Identifier: Apache-2.0
"""Operations on a thread that can be left behind."""

from __future__ import annotations

import _thread
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rcg.comm import sideline
from rcg.comm.sideline import LeftBehind, Sideline
from tests.harness.board import until
from tests.harness.peers import ctrl_c_anywhere

GUARD_S = 20


class Scene:
    """A sideline, and how often it looked at what runs."""

    def __init__(self) -> None:
        self.glances = 0
        self.sideline = Sideline("test-sideline", self.glance)
        self.error: BaseException | None = None

    def glance(self) -> None:
        self.glances += 1

    def threads(self) -> int:
        return sum(each.name == "test-sideline" for each in threading.enumerate())

    def started(self, operation: Callable[[], Any]) -> threading.Event:
        """Run an operation on a thread; is set when the wait for it ended."""
        over = threading.Event()

        def run() -> None:
            try:
                self.sideline.run(operation)
            except BaseException as error:  # noqa: BLE001 - the test has it
                self.error = error
            over.set()

        threading.Thread(target=run, daemon=True).start()
        return over


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.sideline.close()


def test_operations_run_one_after_the_other_on_one_thread_which_close_ends(scene):
    seen = []
    assert scene.threads() == 0
    for number in range(3):
        scene.sideline.run(lambda number=number: seen.append((number, threading.get_ident())))
    assert [number for number, _ in seen] == [0, 1, 2]
    assert len({thread for _, thread in seen}) == 1 and seen[0][1] != threading.get_ident()
    scene.sideline.close()
    scene.sideline.close()
    assert scene.threads() == 0


def test_what_an_operation_raises_is_raised_here_and_kept_by_nothing(scene):
    class Held:
        pass

    def fail() -> None:
        held = Held()
        references.append(weakref.ref(held))
        raise LookupError("in the operation")

    references: list[Any] = []
    gc.disable()
    try:
        with pytest.raises(LookupError, match="in the operation"):
            scene.sideline.run(fail)
        assert references[0]() is None
    finally:
        gc.enable()
    scene.sideline.run(lambda: None)


def test_what_takes_long_is_looked_at_until_it_shall_be_left_behind(scene):
    goes_on = threading.Event()
    over = scene.started(lambda: goes_on.wait(GUARD_S))
    until(lambda: scene.glances >= 2)
    scene.sideline.leave()
    scene.sideline.leave()
    assert over.wait(GUARD_S)
    assert isinstance(scene.error, LeftBehind)
    scene.sideline.close()  # does not wait for it
    assert scene.threads() == 1
    goes_on.set()
    until(lambda: scene.threads() == 0)


def test_what_ends_in_a_moment_is_not_left_behind(scene, monkeypatch):
    monkeypatch.setattr(sideline, "_LAST_S", GUARD_S)
    goes_on = threading.Event()
    over = scene.started(lambda: goes_on.wait(GUARD_S))
    scene.sideline.leave()
    assert not over.wait(0.2)
    goes_on.set()
    assert over.wait(GUARD_S) and scene.error is None
    scene.sideline.run(lambda: None)


def test_what_was_left_behind_is_kept_by_nothing_once_it_has_ended(scene):
    class Held:
        pass

    goes_on, references = threading.Event(), []

    def operation() -> None:
        held = Held()
        references.append(weakref.ref(held))
        goes_on.wait(GUARD_S)
        raise LookupError("too late")

    gc.disable()
    try:
        over = scene.started(operation)
        scene.sideline.leave()
        assert over.wait(GUARD_S) and isinstance(scene.error, LeftBehind)
        goes_on.set()
        until(lambda: references[0]() is None)
    finally:
        gc.enable()


def test_an_interrupt_is_raised_also_if_the_operation_is_left_behind(scene):
    goes_on = threading.Event()

    def operation() -> None:
        _thread.interrupt_main()
        goes_on.wait(GUARD_S)

    scene.sideline.leave()
    with pytest.raises(KeyboardInterrupt):
        scene.sideline.run(operation)
    goes_on.set()


def test_ctrl_c_while_the_thread_is_started_leaves_one_which_close_ends(scene):
    for _ in ctrl_c_anywhere(lambda: scene.sideline.run(lambda: None), "rcg.comm.sideline"):
        scene.sideline.run(lambda: None)
        until(lambda: scene.threads() == 1)
        scene.sideline.close()
        until(lambda: not scene.threads())
        scene.sideline = Sideline("test-sideline", scene.glance)


@pytest.mark.parametrize("where", ["operation", "glance"])
def test_an_interrupt_is_raised_when_the_operation_has_ended(scene, where):
    goes_on, seen = threading.Event(), []

    def operation() -> None:
        if where == "operation":
            _thread.interrupt_main()
        goes_on.wait(0.5)
        seen.append("the end")

    def interrupted() -> None:
        raise KeyboardInterrupt

    if where == "glance":
        scene.sideline = Sideline("test-sideline", interrupted)
    with pytest.raises(KeyboardInterrupt):
        scene.sideline.run(operation)
    assert seen == ["the end"]
    scene.sideline.run(lambda: None)
