# SPDX-License-Identifier: Apache-2.0
"""Those who use the graphs of a round: threads, coroutines, and ordinary calls beside them.

Each result is held against plain Python, and each ref ends in one account: it was right, a user's
exception, the death of an actor, a teardown, want of memory, or it was dropped.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import rcg
from rcg.errors import (
    ActorDiedError,
    CapacityExceededError,
    ChannelClosed,
    ChannelTimeout,
    MessageTooLarge,
    OutOfSharedMemory,
)
from tests.soak import values
from tests.soak.recipe import Failed, Recipe, Step, Trouble, perform

__all__ = ["AsyncCaller", "Caller", "Held", "OrdinaryCaller", "Scene", "SoakFailure", "SyncCaller"]

_MAX_PENDING = 30
_UNSET = object()


class SoakFailure(Exception):
    """A failure of the soak: a wrong value, an error without a reason, a hang."""


class Held:
    """Results that are kept while the soak goes on, and looked at again when they leave."""

    def __init__(self, rng: random.Random, most_bytes: int = 64 << 20) -> None:
        self._rng = rng
        self._most_bytes = most_bytes
        self._bytes = 0
        self._held: list[tuple[Any, Any, int]] = []
        self._lock = threading.Lock()
        self.looked_at = 0

    def add(self, value: Any, expected: Any) -> None:
        size = 64 + sum(getattr(each, "nbytes", 0) for each in (value, expected))
        with self._lock:
            self._held.append((value, expected, size))
            self._bytes += size
            while self._bytes > self._most_bytes or len(self._held) > 500:
                self._look_at(self._rng.randrange(len(self._held)))

    def clear(self) -> None:
        with self._lock:
            while self._held:
                self._look_at(-1)

    def _look_at(self, index: int) -> None:
        value, expected, size = self._held.pop(index)
        self._bytes -= size
        self.looked_at += 1
        if not values.is_same(value, expected):
            raise SoakFailure(f"a held result has changed: {_brief(expected)} is {_brief(value)}")


@dataclass
class Scene:
    """One compiled graph as its callers see it.

    Attributes:
        number: Which of the round's graphs.
        recipe: What it computes.
        graph: None once it is over.
        is_tight: Whether its memory is capped so low that a value may be larger.
        may_die: Whether an actor of it may be dead by now.
        may_close: Whether another thread may tear it down meanwhile.
    """

    number: int
    recipe: Recipe
    graph: Any = None
    is_tight: bool = False
    may_die: bool = False
    may_close: bool = False
    has_ended: bool = False


@dataclass
class Pending:
    ref: Any
    expected: Any
    scene: Scene


@dataclass
class Caller:
    """Submits a number of executions to a round's graphs and accounts for every ref.

    Attributes:
        rng: Decides everything.
        scenes: The graphs.
        executions: How many to submit.
        largest_bytes: Of the values.
        tensors: Whether torch's are among them.
        held: Where results are kept for later.
        on_submit: Called after each submission.
        accounts: What became of how many.
    """

    rng: random.Random
    scenes: list[Scene]
    executions: int
    largest_bytes: int
    tensors: bool
    held: Held
    on_submit: Callable[[], None]
    is_cancelled: threading.Event
    accounts: Counter[str] = field(default_factory=Counter)
    pending: list[Pending] = field(default_factory=list)

    # --- submitting

    def next_execution(self) -> tuple[Scene, list[Any], list[Any], dict[str, Any]] | None:
        """Return a graph, the expected outputs and the arguments of one execution."""
        running = [scene for scene in self.scenes if not scene.has_ended]
        if not running or self.is_cancelled.is_set():
            return None
        scene, rng = self.rng.choice(running), self.rng
        inputs = [
            values.draw(rng, self.largest_bytes, tensors=self.tensors) for _ in scene.recipe.keys
        ]
        keyed = list(zip(scene.recipe.keys, inputs, strict=True))
        args = [value for key, value in keyed if not isinstance(key, str)]
        named = {key: value for key, value in keyed if isinstance(key, str)}
        return scene, scene.recipe.evaluate(inputs), args, named

    def note_submitted(self, scene: Scene, refs: Any, expected: list[Any]) -> None:
        refs = refs if scene.recipe.is_multi else [refs]
        self.accounts["executions"] += 1
        self.accounts["submitted"] += len(refs)
        pairs = zip(refs, expected, strict=True)
        self.pending += [Pending(ref, wanted, scene) for ref, wanted in pairs]
        self.on_submit()

    def note_refused(self, scene: Scene, error: Exception) -> None:
        """Account for an ``execute`` that raised."""
        has_died = isinstance(error, ActorDiedError) and scene.may_die
        if has_died or (isinstance(error, ChannelClosed) and scene.may_close):
            scene.has_ended = True
        elif is_larger_than_the_cap(error) and scene.is_tight:
            self.accounts["refused for memory"] += 1
        else:
            raise SoakFailure(f"execute of graph {scene.number} raised {error!r}") from error

    def pop(self) -> Pending:
        return self.pending.pop(self.rng.randrange(len(self.pending)))

    # --- accounting

    def drop(self, pending: Pending) -> None:
        del pending.ref
        self.accounts["dropped"] += 1

    def note_value(self, pending: Pending, value: Any) -> None:
        expected = pending.expected
        if type(expected) is Failed:
            raise SoakFailure(f"a value where a user's exception was expected: {_brief(value)}")
        if not values.is_same(value, expected):
            raise SoakFailure(
                f"a wrong value of {pending.ref}: expected {_brief(expected)}, "
                f"found {_brief(value)}"
            )
        self.accounts["right"] += 1
        if self.rng.random() < 0.05:
            self.held.add(value, expected)

    def note_error(self, pending: Pending, error: BaseException) -> None:
        scene, expected = pending.scene, pending.expected
        if isinstance(error, Trouble) and type(expected) is Failed:
            if (error.node, error.digest) in expected.troubles:
                self.accounts["user errors"] += 1
                return
        elif isinstance(error, ActorDiedError) and scene.may_die:
            scene.has_ended = True
            self.accounts["died"] += 1
            return
        elif isinstance(error, ChannelClosed) and scene.may_close:
            scene.has_ended = True
            self.accounts["closed"] += 1
            return
        elif is_larger_than_the_cap(error) and scene.is_tight:
            self.accounts["out of memory"] += 1
            return
        raise SoakFailure(f"{pending.ref} of graph {scene.number} raised {error!r}") from error


def is_larger_than_the_cap(error: BaseException) -> bool:
    """Whether a single value could never fit: only then may memory be refused."""
    match error:
        case OutOfSharedMemory(size_bytes=int(size), cap_bytes=int(cap)):
            return size > cap
        case MessageTooLarge(size_bytes=int(size), limit_bytes=int(cap)):
            return size > cap
    return False


def _brief(value: Any) -> str:
    text = repr(value)
    return (
        f"{type(value).__name__} {text if len(text) < 300 else text[:200] + ' ... ' + text[-80:]}"
    )


class SyncCaller(Caller):
    """A thread that executes and gets."""

    def run(self) -> None:
        for _ in range(self.executions):
            chosen = self.next_execution()
            if chosen is None:
                break
            self._submit(*chosen)
            while self.pending and (len(self.pending) > _MAX_PENDING or self.rng.random() < 0.5):
                self._settle(self.pop())
        while self.pending:
            self._settle(self.pop())

    def _submit(
        self, scene: Scene, expected: list[Any], args: list[Any], named: dict[str, Any]
    ) -> None:
        while not self.is_cancelled.is_set():
            try:
                refs = scene.graph.execute(*args, **named)
            except CapacityExceededError:
                # As a user would: fetch a result. If only others have some, let them run.
                if self.pending:
                    self._settle(self.pop())
                else:
                    os.sched_yield()
            except Exception as error:  # noqa: BLE001 - judged there
                return self.note_refused(scene, error)
            else:
                return self.note_submitted(scene, refs, expected)

    def _settle(self, pending: Pending) -> None:
        """Get one result in one of many ways, or drop it."""
        ref, rng = pending.ref, self.rng
        others = [each.ref for each in self.pending[:3]]
        way = rng.random()
        if way < 0.1:
            del ref
            return self.drop(pending)
        value = _UNSET
        try:
            if way < 0.2:
                rcg.wait([ref, *others], num_returns=rng.randint(1, 1 + len(others)))
            elif way < 0.3:
                # One that fails fails the list; each of them can still be got.
                try:
                    value = rcg.get([ref, *others])[0]
                except Exception:  # noqa: BLE001 - judged when it is got alone
                    value = _UNSET
            elif way < 0.4:
                try:
                    value = ref.get(timeout=0)
                except ChannelTimeout:
                    value = _UNSET
            if value is _UNSET:
                value = ref.get() if way < 0.7 else rcg.get(ref)
            if rng.random() < 0.2 and ref.get() is not value:
                raise SoakFailure(f"{ref} gave two objects")
        except SoakFailure:
            raise
        except Exception as error:  # noqa: BLE001 - judged there
            self.note_error(pending, error)
        else:
            self.note_value(pending, value)
        finally:
            # The traceback of an exception that a ref keeps has this frame: here is where refs that
            # are dropped later would live on.
            del others


class AsyncCaller(Caller):
    """An event loop with several coroutines that execute and await."""

    TASKS = 4

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        share = self.executions // self.TASKS
        async with asyncio.TaskGroup() as group:
            for _ in range(self.TASKS):
                group.create_task(self._call(share))
        while self.pending:
            await self._settle(self.pop())

    async def _call(self, executions: int) -> None:
        for _ in range(executions):
            chosen = self.next_execution()
            if chosen is None:
                break
            await self._submit(*chosen)
            while self.pending and (len(self.pending) > _MAX_PENDING or self.rng.random() < 0.5):
                await self._settle(self.pop())

    async def _submit(
        self, scene: Scene, expected: list[Any], args: list[Any], named: dict[str, Any]
    ) -> None:
        while not self.is_cancelled.is_set():
            try:
                refs = await scene.graph.execute_async(*args, **named)
            except CapacityExceededError:
                if self.pending:
                    await self._settle(self.pop())
                else:
                    await asyncio.sleep(0)
            except Exception as error:  # noqa: BLE001 - judged there
                return self.note_refused(scene, error)
            else:
                return self.note_submitted(scene, refs, expected)

    async def _settle(self, pending: Pending) -> None:
        way = self.rng.random()
        if way < 0.1:
            return self.drop(pending)
        ref = pending.ref
        value = _UNSET
        try:
            if way < 0.2:  # given up, and awaited again
                try:
                    value = await asyncio.wait_for(_awaited(ref), 0)
                except TimeoutError:
                    value = _UNSET
            elif way < 0.4:
                others = [_awaited(each.ref) for each in self.pending[:3]]
                value, *_ = await asyncio.gather(_awaited(ref), *others, return_exceptions=True)
                if isinstance(value, BaseException):
                    value = _UNSET
            if value is _UNSET:
                value = await ref
            if self.rng.random() < 0.2 and (await ref) is not value:
                raise SoakFailure(f"{ref} gave two objects")
        except SoakFailure:
            raise
        except Exception as error:  # noqa: BLE001 - judged there
            self.note_error(pending, error)
        else:
            self.note_value(pending, value)


async def _awaited(ref: Any) -> Any:
    return await ref


@dataclass
class OrdinaryCaller:
    """A thread of ordinary calls to the actors of the graphs."""

    rng: random.Random
    actors: list[Any]
    calls: int
    may_die: Callable[[int], bool]
    is_cancelled: threading.Event
    accounts: Counter[str] = field(default_factory=Counter)

    def run(self) -> None:
        for _ in range(self.calls):
            if self.is_cancelled.is_set():
                return
            index = self.rng.randrange(len(self.actors))
            step = Step(self.rng.randrange(99), self.rng.choice(["forward", "fresh", "digest"]))
            value = values.draw(self.rng, 10_000)
            try:
                found = rcg.get(self.actors[index].perform.remote(step, value))
            except rcg.exceptions.RayActorError as error:
                if not self.may_die(index):
                    raise SoakFailure(f"an ordinary call raised {error!r}") from error
            else:
                if not values.is_same(found, perform(step, [value], {})):
                    raise SoakFailure(f"an ordinary call gave {_brief(found)}")
                self.accounts["ordinary calls"] += 1
