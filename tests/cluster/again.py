# SPDX-License-Identifier: Apache-2.0
"""Actors that are used again in the next test, or case: the start of one takes seconds."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import ray

import rcg
from rcg.experimental.collective import destroy_all_collective_groups
from tests.cluster.stage import GUARD_S, eventually

__all__ = ["Pool", "Resting"]


class Resting:
    """Gives the tests of a module actors, of which those are used again that a test left idle.

    Args:
        cls: Their class. Its method ``begin_anew`` lets go of everything and returns how many
            objects are still held; -1 if the actor cannot be used again.
    """

    def __init__(self, cls: Any) -> None:
        self._cls = cls
        self._idle: list[Any] = []
        self._used: list[Any] = []
        self._others: list[Any] = []

    def take(self, count: int = 2, cls: Any = None, **options: Any) -> list[Any]:
        """Return so many actors; those of another class, or with options, are new."""
        if cls is not None or options:
            made = [(cls or self._cls).options(**options).remote() for _ in range(count)]
            self._others += made
        else:
            made = [self._idle.pop() if self._idle else self._cls.remote() for _ in range(count)]
            self._used += made
        return made

    def rest(self) -> None:
        """Keep what the test has left idle, and kill the others."""
        destroy_all_collective_groups()
        gc.collect()  # references that are left in the frames of errors
        for each in self._used:
            if is_as_new(each):
                self._idle.append(each)
            else:
                self._others.append(each)
        for each in self._others:
            rcg.kill(each)
        self._used, self._others = [], []

    def close(self) -> None:
        """Kill all."""
        for each in self._idle:
            rcg.kill(each)


def is_as_new(actor: Any) -> bool:
    """Whether a test has left an actor idle, and a moment later with nothing to hold."""
    held = [1]

    def is_known() -> bool:
        held.append(rcg.get(actor.begin_anew.remote(), timeout=1))
        return held[-1] <= 0

    try:
        eventually(is_known, 2)
    except (AssertionError, ray.exceptions.RayError):
        return False
    return held[-1] == 0


class Pool:
    """The actors of a state machine, which its next case uses again.

    Args:
        cls: Their class, with a method ``pid``.
        count: How many there are.
        spares: How many more have started when one of them dies.
    """

    def __init__(self, cls: Any, count: int, spares: int = 0) -> None:
        self._cls = cls
        self.actors = [cls.remote() for _ in range(count)]
        self._spares = [cls.remote() for _ in range(spares)]

    def kill(self, place: int) -> None:
        """Kill an actor, wait until its process has ended, and put another one in its place."""
        process = Path(f"/proc/{rcg.get(self.actors[place].pid.remote(), timeout=GUARD_S)}")
        rcg.kill(self.actors[place])
        eventually(lambda: not process.exists())
        self._spares.append(self._cls.remote())
        self.actors[place] = self._spares.pop(0)

    def close(self) -> None:
        """Kill all."""
        for each in (*self.actors, *self._spares):
            rcg.kill(each)
