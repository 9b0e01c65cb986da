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


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        name: The name for `--rows`.
        title: The displayed title.
        actors: Number of actors.
        payload: Makes the arguments, which are the same for all calls and contestants.
        limit: The limit of the machine.
        target: The targets of rcg.
        shape: `chain`: each actor calls `method` on the value of the previous one. `scatter`: all
            actors take the same input, and the results are gathered in a list. `arguments`: one
            actor, whose `method` takes all arguments of `payload`.
        method: The method of `rcg.bench.graphs.Worker` that each node calls.
        last: The method that the last node calls, if it is another one.
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
    actors: int = 1
    payload: Callable[[random.Random], Arguments] = one_byte
    limit: Limit = Limit()
    target: Target = Target()
    shape: Shape = "chain"
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


def with_work(actors: int, work_us: int, most_us: float | None = None) -> Row:
    """Return the row of a chain whose methods compute for a while, as real ones do."""
    return Row(
        f"work-{work_us}us-{actors}",
        f"chain of {actors}, {work_us} us of work each",
        actors,
        method=f"work_{work_us}us",
        limit=Limit(hops=actors + 1, work_us=actors * work_us),
        target=Target(us=most_us),
    )


def of_sixteen(kind: str, actors: int, most_us: float | None = None) -> Row:
    """Return the row of a chain through which an array or a tensor of 16 numbers goes."""
    return Row(
        f"{kind}-16-{actors}",
        f"{kind}[16], chain of {actors}",
        actors,
        payload=tensor_of(16) if kind == "torch" else array_of(16 * 8),
        limit=Limit(hops=actors + 1),
        target=Target(us=most_us),
        needs=(kind,),
    )


def of_array(
    name: str,
    title: str,
    size_bytes: int,
    target: Target,
    *,
    limit: Limit | None = None,
    method: str = "echo",
    lends: bool = False,
    nodes: tuple[int, ...] = (),
) -> Row:
    """Return the row of an actor that gets a large array and returns one.

    Its limit is one copy of the array if nothing else is said.
    """
    return Row(
        name,
        title,
        payload=array_of(size_bytes),
        method=method,
        limit=limit or Limit(copied_bytes=size_bytes),
        target=target,
        is_bulk=True,
        lends=lends,
        nodes=nodes,
    )


SMALL_P99 = 0.5  # for all rows that do not copy much

ROWS: tuple[Row, ...] = (
    Row("echo", "echo, 1 actor", target=Target(auto=0.15, futex=0.35, p99=SMALL_P99)),
    Row("chain-2", "chain of 2", 2, limit=Limit(hops=3), target=Target(auto=0.2, p99=SMALL_P99)),
    Row("chain-4", "chain of 4", 4, limit=Limit(hops=5), target=Target(p99=SMALL_P99)),
    # 15 us beside the work: three processes share two cores there, and each has to be woken up.
    with_work(2, 10, most_us=2 * 10 + 15),
    with_work(2, 50, most_us=2 * 50 + 15),
    with_work(2, 200),
    *(with_work(4, work_us) for work_us in (10, 50, 200)),
    of_sixteen("numpy", 2, most_us=25),
    of_sixteen("numpy", 4),
    of_sixteen("torch", 2),
    of_sixteen("torch", 4),
    *(
        Row(
            f"scatter-{actors}",
            f"scatter-gather, {actors} actors",
            actors,
            shape="scatter",
            target=Target(auto=0.1, p99=SMALL_P99),
        )
        for actors in (2, 4)
    ),
    Row(
        "pipeline-4",
        "chain of 4, 8 in flight, per item",
        4,
        in_flight=8,
        limit=Limit(hops=1),
        target=Target(auto=0.15, p99=SMALL_P99),
    ),
    Row(
        "arguments-8",
        "8 arguments, 1 actor",
        shape="arguments",
        method="count",
        payload=eight_arguments,
        target=Target(auto=0.2, p99=SMALL_P99),
    ),
    Row(
        "asyncio",
        "asyncio echo, 1 actor",
        is_async=True,
        target=Target(auto=0.5, p99=SMALL_P99),
    ),
    of_array("numpy-1mb", "numpy echo, 1 MB", MEGABYTE, Target(auto=0.35)),
    of_array("numpy-10mb", "numpy echo, 10 MB", 10 * MEGABYTE, Target(auto=0.25)),
    of_array("numpy-64mb", "numpy echo, 64 MB", 64 * MEGABYTE, Target(auto=0.5)),
    of_array(
        "numpy-10mb-new",
        "numpy 10 MB, a new array back",
        10 * MEGABYTE,
        Target(auto=0.7),
        method="fresh",
        limit=Limit(copied_bytes=10 * MEGABYTE, copies=3),  # in, the method's own, out
    ),
    # The calls send the same loan each time: sending one again is a claim, as it is at first.
    *(
        of_array(
            f"numpy-{size}mb-loan",
            f"numpy echo {size} MB, loan",
            size * MEGABYTE,
            Target(auto=0.05),
            limit=Limit(hops=2),
            lends=True,
        )
        for size in (10, 64)
    ),
    # The method of every contestant fills its result by one copy of the input, which nothing
    # avoids; where it lends memory, this copy is the only one.
    of_array(
        "numpy-10mb-new-loan",
        "numpy 10 MB, new array back, loan",
        10 * MEGABYTE,
        Target(limit=1.25),
        method="filled",
        lends=True,
    ),
    Row(
        "tensors",
        "two torch tensors in a dict",
        payload=two_tensors,
        is_bulk=True,
        limit=Limit(copied_bytes=4 * 2 * 256 * 256),
        target=Target(auto=0.5),
        needs=("torch",),
    ),
    Row(
        "tensor-1mib",
        "annotated tensor 1 MiB, chain of 2",
        2,
        payload=tensor_of(MEBIBYTE // 4),
        is_bulk=True,
        limit=Limit(copied_bytes=MEBIBYTE, copies=3),  # each edge
        target=Target(auto=0.1),
        needs=("torch",),
        transport="auto",
    ),
    Row(
        "tensor-chain-3",
        "annotated tensor [16], chain of 3",
        3,
        payload=tensor_of(16),
        limit=Limit(hops=4),
        target=Target(auto=0.25),
        needs=("torch",),
        transport="auto",
    ),
    # Only the edge between the actors has a tensor, and it is the same one each time.
    *(
        Row(
            f"tensor-shm-{size}mb",
            f"tensor edge, shared memory, {size} MB",
            2,
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

MAX_OF_RAW = 1 / 0.75  # 75 % of the throughput of raw sockets
_ROUND_TRIP = Limit(wire_bytes=1)

ACROSS: tuple[Row, ...] = (
    Row(
        "echo",
        "echo, an actor on the other node",
        nodes=(1,),
        limit=_ROUND_TRIP,
        target=Target(auto=0.12, limit=2.5),
    ),
    Row(
        "chain-2",
        "chain of 2, an actor on each node",
        2,
        nodes=(0, 1),
        limit=_ROUND_TRIP,
        target=Target(auto=0.2),
    ),
    Row("chain-4", "chain of 4, two actors on each node", 4, nodes=(0, 0, 1, 1), limit=_ROUND_TRIP),
    Row(
        "pipeline-4",
        "chain of 4 on two nodes, 8 in flight, per item",
        4,
        nodes=(0, 0, 1, 1),
        in_flight=8,
        limit=Limit(hops=1),
        target=Target(auto=0.2),
    ),
    *(
        of_array(
            f"numpy-{size}mb",
            f"numpy echo on the other node, {size} MB",
            size * MEGABYTE,
            target,
            limit=Limit(wire_bytes=size * MEGABYTE),
            nodes=(1,),
        )
        for size, target in ((1, Target(auto=0.4)), (64, Target(auto=0.2, limit=MAX_OF_RAW)))
    ),
)
"""The rows of graphs that cross Ray nodes."""


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
