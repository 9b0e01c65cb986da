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

from rcg.comm.sideline import LeftBehind, Sideline
from tests.board import until

GUARD_S = 20


class Scene:
    """A sideline, and what a communicator would tell it."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.is_lost = False
        self.moves: Iterator[int] = iter(())
        self.sideline = Sideline(
            "test-sideline",
            0.3,
            self.ended.set,
            lambda: next(self.moves, 0),
            lambda: self.is_lost,
        )

    def threads(self) -> int:
        return sum(each.name == "test-sideline" for each in threading.enumerate())

    def started(self, operation: Callable[[], Any]) -> threading.Event:
        """Run an operation on a thread; is set when the wait for it ended."""
        over = threading.Event()
        self.error: BaseException | None = None

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


def test_what_moves_is_waited_for_and_then_ends_by_itself(scene):
    goes_on, is_in = threading.Event(), threading.Event()
    scene.moves = iter(range(1, 100))

    def operation() -> None:
        is_in.set()
        goes_on.wait(GUARD_S)

    over = scene.started(operation)
    assert is_in.wait(GUARD_S)
    for _ in range(10):
        scene.sideline.hurry()
    assert not over.wait(0.2)
    goes_on.set()
    assert over.wait(GUARD_S)
    assert scene.error is None and not scene.ended.is_set()


def test_what_does_not_move_is_ended(scene):
    over = scene.started(lambda: scene.ended.wait(GUARD_S))
    scene.sideline.hurry()
    assert over.wait(GUARD_S)
    assert scene.error is None and scene.ended.is_set()


@pytest.mark.parametrize("why", ["hurry", "lost"])
def test_what_does_not_end_is_left_behind(scene, why):
    goes_on = threading.Event()
    scene.moves = iter(range(1, 1_000_000))  # however long something moves
    over = scene.started(lambda: goes_on.wait(GUARD_S))
    if why == "lost":
        assert not over.wait(0.5)  # nobody is in a hurry
        scene.is_lost = True
    else:
        scene.sideline.hurry()
        scene.sideline.hurry()
    assert over.wait(GUARD_S)
    assert isinstance(scene.error, LeftBehind) and scene.ended.is_set()
    scene.sideline.close()  # does not wait for it
    assert scene.threads() == 1
    goes_on.set()
    until(lambda: scene.threads() == 0)


def test_an_interrupt_is_raised_when_the_operation_has_ended(scene):
    goes_on, seen = threading.Event(), []

    def operation() -> None:
        _thread.interrupt_main()
        goes_on.wait(0.3)
        seen.append("the end")

    with pytest.raises(KeyboardInterrupt):
        scene.sideline.run(operation)
    assert seen == ["the end"]
    scene.sideline.run(lambda: None)
