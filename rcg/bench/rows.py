# SPDX-License-Identifier: Apache-2.0
"""What is measured: each row's topology, payload, limit and targets. Plain data.

A row knows neither who takes part nor how to run it: `contestants` does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from rcg.bench.topologies import Shape

Payload = tuple[object, ...]
MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Target:
    """What rcg must reach, as ratios to Ray's compiled graph in the same run.

    Attributes:
        auto: The median, with `wait="auto"`.
        futex: The median, with `wait="futex"`.
        p99: The 99th percentile, with `wait="auto"`.
    """

    auto: float | None = None
    futex: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """What the machine leaves no way around.

    Attributes:
        hops: Wake-ups of another process on the way from the call to its result.
        copied_bytes: Bytes of one copy, where the time goes into copies; 0 elsewhere.
        copies: How many of them, one after the other.
    """

    hops: int = 2
    copied_bytes: int = 0
    copies: int = 1


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        name: What `--rows` matches.
        title: What a reader sees.
        shape: `chain`: each of `actors` calls `method` on what the one before returned.
            `scatter`: all of them on the same input, their results gathered in a list.
            `arguments`: one actor, `method` takes as many inputs as `payload` has.
        actors: How many.
        method: The method of `rcg.bench.workers.Worker` that every node calls.
        payload: Makes the arguments of one call; the same ones for every call and contestant.
        limit: What cannot be avoided.
        target: What rcg must reach.
        in_flight: Executions under way at a time; a sample is then the time per item.
        is_async: Called from an event loop.
        is_bulk: The time goes into bytes, so what cannot be avoided are copies.
        lends: The arrays of the payload lie in the graph's memory where the contestant's graph
            lends it (`cdag.empty`); for others they are ordinary. They are made and filled before
            the calls, as every payload is, so what is measured is sending them.
        needs: Modules without which the row is left out.
    """

    name: str
    title: str
    shape: Shape
    actors: int
    limit: Limit
    target: Target
    payload: Callable[[random.Random], Payload]
    method: str = "echo"
    in_flight: int = 1
    is_async: bool = False
    is_bulk: bool = False
    lends: bool = False
    needs: tuple[str, ...] = ()


def one_byte(_: random.Random) -> Payload:
    """Returns the smallest value there is to send."""
    return (b"x",)


def eight_arguments(rng: random.Random) -> Payload:
    """Returns eight small values of the kinds that methods take."""
    numbers = [rng.randrange(1000) for _ in range(4)]
    return (*numbers, rng.random(), "name", b"bytes", None)


def array_of(size_bytes: int) -> Callable[[random.Random], Payload]:
    """Returns a maker of one array of float64 of this size, other in each run, same by seed."""

    def make(rng: random.Random) -> Payload:
        generator = np.random.default_rng(rng.getrandbits(64))
        return (generator.random(size_bytes // 8),)

    return make


def two_tensors(rng: random.Random) -> Payload:
    """Returns a dict of two float32 tensors [256, 256], 256 KiB each."""
    import torch  # optional: the row is left out where torch is not installed

    generator = torch.Generator().manual_seed(rng.getrandbits(63))
    return ({name: torch.rand(256, 256, generator=generator) for name in ("query", "key")},)


SMALL_P99 = 0.5  # of every row whose time is not spent on copying

ROWS: tuple[Row, ...] = (
    Row(
        name="echo",
        title="echo, 1 actor",
        shape="chain",
        actors=1,
        payload=one_byte,
        limit=Limit(hops=2),
        target=Target(auto=0.15, futex=0.35, p99=SMALL_P99),
    ),
    Row(
        name="chain-2",
        title="chain of 2",
        shape="chain",
        actors=2,
        payload=one_byte,
        limit=Limit(hops=3),
        target=Target(auto=0.2, p99=SMALL_P99),
    ),
    Row(
        name="chain-4",
        title="chain of 4",
        shape="chain",
        actors=4,
        payload=one_byte,
        limit=Limit(hops=5),
        target=Target(p99=SMALL_P99),
    ),
    Row(
        name="scatter-2",
        title="scatter-gather, 2 actors",
        shape="scatter",
        actors=2,
        payload=one_byte,
        limit=Limit(hops=2),
        target=Target(auto=0.1, p99=SMALL_P99),
    ),
    Row(
        name="scatter-4",
        title="scatter-gather, 4 actors",
        shape="scatter",
        actors=4,
        payload=one_byte,
        limit=Limit(hops=2),
        target=Target(auto=0.1, p99=SMALL_P99),
    ),
    Row(
        name="pipeline-4",
        title="chain of 4, 8 in flight, per item",
        shape="chain",
        actors=4,
        payload=one_byte,
        in_flight=8,
        limit=Limit(hops=1),
        target=Target(auto=0.15, p99=SMALL_P99),
    ),
    Row(
        name="arguments-8",
        title="8 arguments, 1 actor",
        shape="arguments",
        actors=1,
        method="count",
        payload=eight_arguments,
        limit=Limit(hops=2),
        target=Target(auto=0.2, p99=SMALL_P99),
    ),
    Row(
        name="asyncio",
        title="asyncio echo, 1 actor",
        shape="chain",
        actors=1,
        payload=one_byte,
        is_async=True,
        limit=Limit(hops=2),
        target=Target(auto=0.5, p99=SMALL_P99),
    ),
    Row(
        name="numpy-1mb",
        title="numpy echo, 1 MB",
        shape="chain",
        actors=1,
        payload=array_of(MEGABYTE),
        is_bulk=True,
        limit=Limit(copied_bytes=MEGABYTE),
        target=Target(auto=0.35),
    ),
    Row(
        name="numpy-10mb",
        title="numpy echo, 10 MB",
        shape="chain",
        actors=1,
        payload=array_of(10 * MEGABYTE),
        is_bulk=True,
        limit=Limit(copied_bytes=10 * MEGABYTE),
        target=Target(auto=0.25),
    ),
    Row(
        name="numpy-64mb",
        title="numpy echo, 64 MB",
        shape="chain",
        actors=1,
        payload=array_of(64 * MEGABYTE),
        is_bulk=True,
        limit=Limit(copied_bytes=64 * MEGABYTE),
        target=Target(auto=0.5),
    ),
    Row(
        name="numpy-10mb-new",
        title="numpy 10 MB, a new array back",
        shape="chain",
        actors=1,
        method="fresh",
        payload=array_of(10 * MEGABYTE),
        is_bulk=True,
        limit=Limit(copied_bytes=10 * MEGABYTE, copies=3),  # in, the method's own, out
        target=Target(auto=0.7),
    ),
    # The calls send the same loan each time: sending one again is a claim, as it is at first.
    Row(
        name="numpy-10mb-loan",
        title="numpy echo 10 MB, loan",
        shape="chain",
        actors=1,
        payload=array_of(10 * MEGABYTE),
        is_bulk=True,
        lends=True,
        limit=Limit(hops=2),
        target=Target(auto=0.05),
    ),
    Row(
        name="numpy-64mb-loan",
        title="numpy echo 64 MB, loan",
        shape="chain",
        actors=1,
        payload=array_of(64 * MEGABYTE),
        is_bulk=True,
        lends=True,
        limit=Limit(hops=2),
        target=Target(auto=0.05),
    ),
    # The method of every contestant fills its result by one copy of the input, which nothing
    # avoids; where it lends memory, this copy is the only one.
    Row(
        name="numpy-10mb-new-loan",
        title="numpy 10 MB, new array back, loan",
        shape="chain",
        actors=1,
        method="filled",
        payload=array_of(10 * MEGABYTE),
        is_bulk=True,
        lends=True,
        limit=Limit(copied_bytes=10 * MEGABYTE),
        target=Target(auto=0.05),
    ),
    Row(
        name="tensors",
        title="two torch tensors in a dict",
        shape="chain",
        actors=1,
        payload=two_tensors,
        is_bulk=True,
        limit=Limit(copied_bytes=4 * 2 * 256 * 256),
        target=Target(auto=0.5),
        needs=("torch",),
    ),
)


def select(patterns: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names that any of the patterns matches, in the order of `names`.

    Args:
        patterns: Shell patterns such as `numpy-*`; none selects everything.
        names: What there is.

    Raises:
        ValueError: A pattern matches nothing.

    >>> select(["chain-*", "echo"], ["echo", "chain-2", "chain-4", "tensors"])
    ('echo', 'chain-2', 'chain-4')
    """
    if not patterns:
        return tuple(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"no row is called {pattern!r}; there are: {', '.join(names)}")
    return tuple(n for n in names if any(fnmatchcase(n, pattern) for pattern in patterns))
