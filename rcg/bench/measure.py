# SPDX-License-Identifier: Apache-2.0
"""Turns and rounds: the order of the contestants, and the samples.

A *turn* is the part of one contestant in one round: a warm-up, then calls that count, until there
are enough of them or the time of the turn is over. In a *round* each contestant has one turn, in a
random order. Samples are in nanoseconds. This file must not know the contestants.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Clock = Callable[[], int]
Turn = Callable[["Pace"], "array[int]"]


@dataclass(frozen=True, slots=True)
class Pace:
    """The length of a turn: it ends after so many calls, or with fewer samples after a time.

    The current call is finished. The calls of the warm-up come before it and do not count.
    """

    calls: int
    time_ns: int
    warm_up: int

    def __post_init__(self) -> None:
        if self.calls < 1 or self.time_ns < 0 or self.warm_up < 0:
            raise ValueError(f"a turn needs at least one call and no negative time, found {self}")


def call_turn(call: Callable[[], object], clock: Clock = time.perf_counter_ns) -> Turn:
    """Return a turn whose samples are single calls."""

    def turn(pace: Pace) -> array[int]:
        samples = array("q")
        for _ in range(pace.warm_up):
            call()
        end = clock() + pace.time_ns
        for _ in range(pace.calls):
            start = clock()
            call()
            stop = clock()
            samples.append(stop - start)
            if stop >= end:
                break
        return samples

    return turn


def async_turn(
    call: Callable[[], Awaitable[object]],
    loop: asyncio.AbstractEventLoop,
    clock: Clock = time.perf_counter_ns,
) -> Turn:
    """Return a turn whose samples are single calls, awaited one by one in `loop`."""

    async def run(pace: Pace) -> array[int]:
        samples = array("q")
        for _ in range(pace.warm_up):
            await call()
        end = clock() + pace.time_ns
        for _ in range(pace.calls):
            start = clock()
            await call()
            stop = clock()
            samples.append(stop - start)
            if stop >= end:
                break
        return samples

    return lambda pace: loop.run_until_complete(run(pace))


def pipelined_turn(
    submit: Callable[[], Any],
    fetch: Callable[[Any], object],
    in_flight: int,
    clock: Clock = time.perf_counter_ns,
) -> Turn:
    """Return a turn that keeps `in_flight` executions in flight.

    A sample is the mean time per item over `in_flight` consecutive items: results may come in
    bursts, so the time between two of them is not representative.
    """

    def turn(pace: Pace) -> array[int]:
        pending = deque(submit() for _ in range(in_flight))

        def items() -> None:
            for _ in range(in_flight):
                fetch(pending.popleft())
                pending.append(submit())

        calls, warm_up = (-(-number // in_flight) for number in (pace.calls, pace.warm_up))
        samples = call_turn(items, clock)(Pace(calls, pace.time_ns, warm_up))
        while pending:
            fetch(pending.popleft())
        return array("q", [sample // in_flight for sample in samples])

    return turn


def batch_turn(
    submit: Callable[[], Any],
    fetch: Callable[[Any], object],
    batch: int,
    clock: Clock = time.perf_counter_ns,
) -> Turn:
    """Return a turn with one sample: the mean time of `batch` executions submitted at once.

    The executions of the warm-up are submitted at once as well.
    """

    def run(executions: int) -> None:
        for ref in [submit() for _ in range(executions)]:
            fetch(ref)

    def turn(pace: Pace) -> array[int]:
        run(pace.warm_up)
        start = clock()
        run(batch)
        return array("q", [(clock() - start) // batch])

    return turn


@contextmanager
def without_collector() -> Iterator[None]:
    """Switch the garbage collector off, after a collection."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def take_rounds(
    turns: Mapping[str, Turn],
    pace: Pace,
    rounds: int,
    rng: random.Random,
    after_round: Callable[[], None] = lambda: None,
) -> dict[str, array[int]]:
    """Take one turn of each contestant in each round, in a new random order per round.

    Returns:
        The samples of each contestant, in the order in which they were taken.
    """
    samples = {name: array("q") for name in turns}
    order = sorted(turns)
    for _ in range(rounds):
        rng.shuffle(order)
        for name in order:
            with without_collector():
                found = turns[name](pace)
            samples[name].extend(found)
        after_round()
    return samples
