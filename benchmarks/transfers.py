# SPDX-License-Identifier: Apache-2.0
"""Transfers of tensors over Gloo, compared with raw Gloo between the same processes.

A sample of rcg is taken from the flight recorder. For an edge it lasts from the start of the Write
in the process of the writer to the end of the Read in the process of the reader: with encoding, the
frame, the rendezvous and decoding. For a collective it lasts from the moment when the last rank
begins until the last rank is done: the waiting of the others for it does not count.

A sample of raw Gloo is half a round trip of one tensor, or one allreduce in place from the moment
when the last rank begins until the last rank is done. Both sides reuse warm memory. A tensor that
its actor keeps must not be combined in place: there both sides copy it first. The group of raw Gloo
is built directly in the processes that the graph uses, so that both move the same bytes between the
same processes. Times are those of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import functools
import os
import tempfile
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import rcg
import rcg.dag
from rcg import collective
from rcg.bench.contestants import ACTOR_OPTIONS, ending
from rcg.bench.measure import Pace, Turn
from rcg.bench.record import RAW_GLOO, RCG, RowResult
from rcg.bench.rows import MEGABYTE, Target
from rcg.bench.runner import Setup, race, skip
from rcg.ir.ops import Collective, Op, Read, Write
from rcg.trace.model import Events, GraphTrace

FIRST_CALLS = 15  # before the first round, so that all buffers have been used
MAX_BULK = 1.15
MAX_SMALL = 2.0
TIMES = ("start_ns", "end_ns")
GUARD = timedelta(seconds=120)
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Transfer:
    """One row.

    Attributes:
        name: The name for `--rows`.
        title: The displayed title.
        ranks: Number of actors.
        size_bytes: Bytes of the tensor of each.
        calls: Number of samples of a turn.
        is_collective: Whether it is an allreduce, and not an edge from one actor to another.
        is_kept: Whether the actors keep the tensors that they return.
        most: The largest ratio of rcg's median to that of raw Gloo.
    """

    name: str
    title: str
    ranks: int
    size_bytes: int
    calls: int
    is_collective: bool = False
    is_kept: bool = True
    most: float | None = None


TRANSFERS: tuple[Transfer, ...] = (
    Transfer("gloo-edge-1kb", "Gloo edge, 1 KB", 2, 1_000, calls=200, most=MAX_SMALL),
    Transfer("gloo-edge-1mb", "Gloo edge, 1 MB", 2, MEGABYTE, calls=60),
    Transfer("gloo-edge-64mb", "Gloo edge, 64 MB", 2, 64 * MEGABYTE, calls=6, most=MAX_BULK),
    *(
        Transfer(
            f"allreduce-{ranks}{'-kept' * is_kept}",
            f"allreduce of {ranks} actors, 64 MB{', which they keep' * is_kept}",
            ranks,
            64 * MEGABYTE,
            calls=4,
            is_collective=True,
            is_kept=is_kept,
            most=MAX_BULK,
        )
        for is_kept in (False, True)
        for ranks in (2, 3)
    ),
)


class Peer:
    """One rank of the processes."""

    def __init__(self) -> None:
        self._tensor: Any = None
        self._group: Any = None
        self._rank = 0

    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    def meet(self, path: str, rank: int, size: int) -> None:
        """Build a process group of Gloo with the other ranks; they meet in a file."""
        import torch.distributed as dist

        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._timeout = GUARD
        options._devices = [gloo.create_device(hostname=HOST, lazy_init=False)]
        self._group = gloo(dist.FileStore(path, size), rank, size, options)
        self._rank = rank

    def hold(self, size_bytes: int) -> None:
        """Make the tensor that ``held`` returns, float32."""
        import torch

        self._tensor = torch.ones(size_bytes // 4)

    def held(self, _: object) -> Any:
        """Return the tensor."""
        return self._tensor

    def new(self, _: object) -> Any:
        """Return a tensor like it, which nothing else holds."""
        return self._tensor.clone()

    def take(self, tensor: Any) -> int:
        """Return how many numbers a tensor has, and forget it."""
        return int(tensor.numel())

    def ping_pong(self, calls: int, warm_up: int) -> list[int]:
        """Send a tensor as large as the held one to and fro; return half of each round trip."""
        import torch

        group, mine, other = self._group, [torch.ones_like(self._tensor)], 1 - self._rank
        steps = (group.send, group.recv) if self._rank == 0 else (group.recv, group.send)
        samples = []
        for _ in range(warm_up + calls):
            start = time.monotonic_ns()
            for step in steps:
                step(mine, other, 0).wait()
            samples.append((time.monotonic_ns() - start) // 2)
        return samples[warm_up:]

    def allreduce(self, calls: int, warm_up: int, is_kept: bool) -> list[tuple[int, int]]:
        """Combine tensors as large as the held one in place, or copies of it.

        Returns:
            When each call began and when it ended.
        """
        import torch

        group, mine = self._group, [torch.zeros_like(self._tensor).fill_(0.0)]
        found = []
        for _ in range(warm_up + calls):
            start = time.monotonic_ns()
            if is_kept:
                mine[0].copy_(self._tensor)
            group.allreduce(mine).wait()
            found.append((start, time.monotonic_ns()))
        return found[warm_up:]


def measure_transfer(transfer: Transfer, setup: Setup) -> tuple[RowResult]:
    """Measure one row on actors of its own, in turns."""
    result = RowResult(transfer.name, transfer.title, Target(raw=transfer.most), {})
    if find_spec("torch") is None:
        return (skip(result, dict.fromkeys((RCG, RAW_GLOO), "needs torch"), setup),)
    actors = [rcg.remote(Peer).options(**ACTOR_OPTIONS).remote() for _ in range(transfer.ranks)]
    with ending(actors), tempfile.TemporaryDirectory(prefix="rcg-bench-") as folder:
        store = str(Path(folder, "store"))
        meeting = [
            actor.meet.remote(store, rank, transfer.ranks) for rank, actor in enumerate(actors)
        ]
        rcg.get([*meeting, *(actor.hold.remote(transfer.size_bytes) for actor in actors)])
        with compiled(transfer, actors) as graph:
            for _ in range(FIRST_CALLS):
                rcg.get(graph.execute(0))
            turns = {RCG: _turn_of(transfer, graph), RAW_GLOO: _raw_turn(transfer, actors)}
            pace = Pace(transfer.calls, time_ns=0, warm_up=1 + transfer.calls // 20)
            return (race(result, turns, pace, setup),)


def compiled(transfer: Transfer, actors: Sequence[Any]) -> Any:
    """Return the graph of a row: only its tensors are large."""
    with rcg.dag.InputNode() as inp:
        if not transfer.is_collective:
            writer, reader = actors
            tensor = writer.held.bind(inp).with_tensor_transport("gloo")
            return rcg.compile(reader.take.bind(tensor))
        tensors = [(actor.held if transfer.is_kept else actor.new).bind(inp) for actor in actors]
        results = collective.allreduce.bind(tensors)
        taken = [actor.take.bind(value) for actor, value in zip(actors, results, strict=True)]
        return rcg.compile(rcg.dag.MultiOutputNode(taken))


def _turn_of(transfer: Transfer, graph: Any) -> Turn:
    def turn(pace: Pace) -> array[int]:
        for _ in range(pace.warm_up):
            rcg.get(graph.execute(0))
        with graph.profile() as profile:
            for _ in range(pace.calls):
                rcg.get(graph.execute(0))
        return array("q", recorded(transfer, profile.graph()))

    return turn


def _raw_turn(transfer: Transfer, actors: Sequence[Any]) -> Turn:
    def turn(pace: Pace) -> array[int]:
        if not transfer.is_collective:
            calls = [actor.ping_pong.remote(pace.calls, pace.warm_up) for actor in actors]
            return array("q", rcg.get(calls)[0])
        calls = [
            actor.allreduce.remote(pace.calls, pace.warm_up, transfer.is_kept) for actor in actors
        ]
        by_call = zip(*rcg.get(calls), strict=True)
        return array("q", [_after_the_last(*zip(*each, strict=True)) for each in by_call])

    return turn


def recorded(transfer: Transfer, trace: GraphTrace) -> list[int]:
    """Return the times of the transfers in a trace, in nanoseconds."""
    actors = [actor.id for actor in trace.plan.actors]
    if transfer.is_collective:
        events = [_events(trace, each, lambda op: isinstance(op, Collective)) for each in actors]
        starts, ends = (np.stack([each[key] for each in _of_all(events)]) for key in TIMES)
        return [_after_the_last(*each) for each in zip(starts.T, ends.T, strict=True)]
    channel = next(each.id for each in trace.plan.channels if each.group is not None)
    writes, reads = _of_all(
        [
            _events(trace, each, lambda op: isinstance(op, Read | Write) and op.channel == channel)
            for each in actors
        ]
    )
    found: list[int] = (reads["end_ns"] - writes["start_ns"]).tolist()
    return found


def _of_all(events: Sequence[Events]) -> list[Events]:
    """Return the events of executions that all processes have: a trace may begin within one."""
    complete = functools.reduce(np.intersect1d, [each["execution"] for each in events])
    return [each[np.isin(each["execution"], complete)] for each in events]


def _events(trace: GraphTrace, process: str, is_wanted: Callable[[Op], bool]) -> Events:
    """Return the events of the one op of a process that is wanted, by execution."""
    ops = trace.plan.program(process).ops
    index = next(number for number, op in enumerate(ops) if is_wanted(op))
    events = trace.lane(process).events
    return np.sort(events[events["op"] == index], order="execution")


def _after_the_last(starts: Iterable[int], ends: Iterable[int]) -> int:
    """Return the time from the last start to the last end."""
    return int(max(ends)) - int(max(starts))
