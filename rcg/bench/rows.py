# SPDX-License-Identifier: Apache-2.0
"""The rows: topology, payload, limit and targets of each. Plain data.

A row does not know its contestants, nor how they run it: `contestants` does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from rcg.bench.graphs import Shape

Arguments = tuple[object, ...]
"""The arguments of one execution."""

MEGABYTE = 1_000_000
MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """The targets of rcg, as largest ratios to another contestant in the same run.

    The contestant is Ray's compiled graph where nothing else is said.

    Attributes:
        auto: For the median with `wait="auto"`.
        futex: For the median with `wait="futex"`.
        p99: For the 99th percentile with `wait="auto"`.
        raw: For the median with `wait="auto"`, to raw Gloo.
        hand: For the median with `wait="auto"`, to a loop on `torch.distributed`.
        limit: For the median with `wait="auto"`, to the limit of the machine.
        us: For the median with `wait="auto"`, in microseconds: not a ratio.
    """

    auto: float | None = None
    futex: float | None = None
    p99: float | None = None
    raw: float | None = None
    hand: float | None = None
    limit: float | None = None
    us: float | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """The work that a row cannot avoid.

    Attributes:
        hops: Number of consecutive wake-ups of another process from the call to its result.
        copied_bytes: Bytes of one copy if copies dominate the row, otherwise 0.
        copies: Number of consecutive copies.
        wire_bytes: Bytes that go to another process by TCP and back, if that dominates the row.
        work_us: What the methods compute beside the wake-ups, one after the other.
    """

    hops: int = 2
    copied_bytes: int = 0
    copies: int = 1
    wire_bytes: int = 0
    work_us: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        name: The name for `--rows`.
        title: The displayed title.
        shape: `chain`: each actor calls `method` on the value of the previous one. `scatter`: all
            actors take the same input, and the results are gathered in a list. `arguments`: one
            actor, whose `method` takes all arguments of `payload`.
        actors: Number of actors.
        method: The method of `rcg.bench.graphs.Worker` that each node calls.
        last: The method that the last node calls, if it is another one.
        payload: Makes the arguments, which are the same for all calls and contestants.
        limit: The limit of the machine.
        target: The targets of rcg.
        in_flight: Number of executions in flight. If it is above 1, a sample is the time per item.
        is_async: Whether it is called from an event loop.
        is_bulk: Whether copying bytes dominates, so that the limit is copies.
        lends: Whether the arrays of the payload are made in the graph's memory (`cdag.empty`), for
            contestants that can do so. They are filled before the calls, as every payload is, so
            only sending them is measured.
        needs: Modules that the row needs. Without them it is left out.
        transport: The tensor transport of the values between the actors, if they have a hint.
        nodes: The number of the Ray node of each actor, if it matters. The driver is on node 0.
    """

    name: str
    title: str
    shape: Shape
    actors: int
    limit: Limit
    target: Target
    payload: Callable[[random.Random], Arguments]
    method: str = "echo"
    last: str | None = None
    in_flight: int = 1
    is_async: bool = False
    is_bulk: bool = False
    lends: bool = False
    needs: tuple[str, ...] = ()
    transport: str | None = None
    nodes: tuple[int, ...] = ()

    @property
    def methods(self) -> tuple[str, ...]:
        """The method of each actor."""
        return (*[self.method] * (self.actors - 1), self.last or self.method)


def one_byte(_: random.Random) -> Arguments:
    """Return the smallest payload."""
    return (b"x",)


def eight_arguments(rng: random.Random) -> Arguments:
    """Return eight small values of common types."""
    numbers = [rng.randrange(1000) for _ in range(4)]
    return (*numbers, rng.random(), "name", b"bytes", None)


def array_of(size_bytes: int) -> Callable[[random.Random], Arguments]:
    """Return a function that makes a float64 array of a size, which depends on the seed."""

    def make(rng: random.Random) -> Arguments:
        generator = np.random.default_rng(rng.getrandbits(64))
        return (generator.random(size_bytes // 8),)

    return make


def two_tensors(rng: random.Random) -> Arguments:
    """Return a dict of two float32 tensors [256, 256], 256 KiB each."""
    import torch  # optional: the row is left out without torch

    generator = torch.Generator().manual_seed(rng.getrandbits(63))
    return ({name: torch.rand(256, 256, generator=generator) for name in ("query", "key")},)


def tensor_of(numbers: int) -> Callable[[random.Random], Arguments]:
    """Return a function that makes a float32 tensor [numbers], which depends on the seed."""

    def make(rng: random.Random) -> Arguments:
        import torch

        generator = torch.Generator().manual_seed(rng.getrandbits(63))
        return (torch.rand(numbers, generator=generator),)

    return make


def size_of(size_bytes: int) -> Callable[[random.Random], Arguments]:
    """Return a function that returns the size of a tensor that an actor makes."""
    return lambda _: (size_bytes,)


def chain_with_work(actors: int, work_us: int, most_us: float | None = None) -> Row:
    """Return the row of a chain whose methods compute for a while, as real ones do."""
    return Row(
        name=f"work-{work_us}us-{actors}",
        title=f"chain of {actors}, {work_us} us of work each",
        shape="chain",
        actors=actors,
        method=f"work_{work_us}us",
        payload=one_byte,
        limit=Limit(hops=actors + 1, work_us=actors * work_us),
        target=Target(us=most_us),
    )


def chain_of_small(kind: str, actors: int, most_us: float | None = None) -> Row:
    """Return the row of a chain through which an array or a tensor of 16 numbers goes."""
    return Row(
        name=f"{kind}-16-{actors}",
        title=f"{kind}[16], chain of {actors}",
        shape="chain",
        actors=actors,
        payload=tensor_of(16) if kind == "torch" else array_of(16 * 8),
        limit=Limit(hops=actors + 1),
        target=Target(us=most_us),
        needs=(kind,),
    )


SMALL_P99 = 0.5  # for all rows that do not copy much

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
    # 15 us beside the work: three processes share two cores there, and each has to be woken up.
    chain_with_work(2, 10, most_us=2 * 10 + 15),
    chain_with_work(2, 50, most_us=2 * 50 + 15),
    chain_with_work(2, 200),
    chain_with_work(4, 10),
    chain_with_work(4, 50),
    chain_with_work(4, 200),
    chain_of_small("numpy", 2, most_us=25),
    chain_of_small("numpy", 4),
    chain_of_small("torch", 2),
    chain_of_small("torch", 4),
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
        target=Target(limit=1.25),
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
    Row(
        name="tensor-1mib",
        title="annotated tensor 1 MiB, chain of 2",
        shape="chain",
        actors=2,
        payload=tensor_of(MEBIBYTE // 4),
        is_bulk=True,
        limit=Limit(copied_bytes=MEBIBYTE, copies=3),  # each edge
        target=Target(auto=0.1),
        needs=("torch",),
        transport="auto",
    ),
    Row(
        name="tensor-chain-3",
        title="annotated tensor [16], chain of 3",
        shape="chain",
        actors=3,
        payload=tensor_of(16),
        limit=Limit(hops=4),
        target=Target(auto=0.25),
        needs=("torch",),
        transport="auto",
    ),
    # Only the edge between the actors has a tensor, and it is the same one each time.
    *(
        Row(
            name=f"tensor-shm-{size}mb",
            title=f"tensor edge, shared memory, {size} MB",
            shape="chain",
            actors=2,
            method="tensor",
            last="size",
            payload=size_of(size * MEGABYTE),
            is_bulk=True,
            limit=Limit(copied_bytes=size * MEGABYTE),
            target=Target(auto=0.6),
            needs=("torch",),
            transport="shm",
        )
        for size in (1, 10, 100)
    ),
)


def select(patterns: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Return the names that any of the patterns matches, in the order of `names`.

    Args:
        patterns: Shell patterns such as `numpy-*`; none selects everything.
        names: All names.

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
