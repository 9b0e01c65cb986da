# SPDX-License-Identifier: Apache-2.0
"""What a reader reads from whom, in which steps, and the memory that it needs for that.

A route is made when the publishers change, and replayed for every version. It has lanes, which
read at the same time. A lane reads from one publisher after another, and from each in steps of a
bounded size: what is on its way, or waits to be copied into a tensor, is at most one step of each
lane. Where a step needs memory of its own depends on how the bytes come: none if they are read
from the publisher's memory into a tensor that is contiguous, as much as the step if they come in a
message or in runs that are scattered here, and as much again if the tensor cannot be written to in
place. So a step is half of what a lane may use.

A tensor that the reader has tied to another one is read when all others are there, and compared:
its publishers may have them tied, or not.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rcg.error_text import without_frames
from rcg.errors import ActorDiedError
from rcg.options import Deadline
from rcg.rdt.connection import Patience, Silent
from rcg.rdt.envelope import Holder
from rcg.rdt.pull import Got
from rcg.rdt.pull_slices import Slices
from rcg.rdt.runs import fresh_memory
from rcg.rdt.slices import Region, pieces_of, regions_of
from rcg.serialization.payloads import bytes_of
from rcg.serialization.tensors import lacking
from rcg.threads import run_together
from rcg.weights.client import TRANSPORT
from rcg.weights.planning import Copy
from rcg.weights.shards import Member, Shards, item_bytes

PullSlices = Callable[[Slices, str, Patience], int]

ALIGNMENT: Final = 64

# Without lookahead, for progress. 1 GB took 111 ms in one step, and 129 ms in steps of 128 MiB.
_STEP_BYTES: Final = 1 << 30
_LEAST_STEP_BYTES: Final = 1 << 20


def padded(size: int) -> int:
    """Return what a part of so many bytes takes in memory that it shares with others."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def least_lookahead(staged_bytes: int) -> int:
    """Return the smallest ``lookahead`` with which a reader can read.

    Args:
        staged_bytes: Of the largest of its tensors that cannot be written to in place.
    """
    return 2 * max(_LEAST_STEP_BYTES, padded(staged_bytes))


@dataclass(slots=True)
class _Step:
    """What is read at once from a publisher.

    Attributes:
        slices: Where it lies there, and where it goes.
        staged: What is copied from the lane's memory into tensors then, or compared with them: the
            name of the tensor, which part of it, and where its bytes lie in that memory.
    """

    slices: Slices
    staged: list[tuple[str, tuple[slice, ...], int, int]]


@dataclass(slots=True)
class _Lane:
    """Reads from some publishers, one after another.

    Attributes:
        steps: What is read from each publisher, by its id: at first, and of tied tensors then.
        memory: Of uint8 [n], for what cannot be written to tensors in place, and with
            ``lookahead`` for what comes in one piece and goes to several places.
    """

    memory: Any
    steps: tuple[dict[str, list[_Step]], dict[str, list[_Step]]] = field(
        default_factory=lambda: ({}, {})
    )


class Route:
    """What a reader gets from whom, for one set of publishers.

    Args:
        publishers: The publishers.
        copies: What comes from whom.
        shards: What the reader wants.
        targets: Where each tensor goes: memory of uint8 [n]; None if it is copied part by part.
        tied: The names of those that are compared, because they are other tensors, too.
        lookahead: How many bytes may be on their way, or wait to be copied into tensors, at once;
            None for no limit but that of each step.

    Attributes:
        publishers: The publishers, by their ids.
        staged_bytes: The memory that it holds for tensors that cannot be written to in place.
    """

    def __init__(
        self,
        publishers: Sequence[Member],
        copies: Sequence[Copy],
        shards: Shards,
        targets: Sequence[Any],
        lookahead: int | None,
        tied: Collection[str] = (),
    ) -> None:
        self.publishers: Final = {each.id: each for each in publishers}
        self._shards = shards
        self._targets = targets
        self._tied = tied
        self._numbers = {name: number for number, name in enumerate(shards)}
        theirs = [{name: n for n, name in enumerate(each.shards)} for each in publishers]
        by_publisher: dict[int, list[Copy]] = {}
        for each in copies:
            by_publisher.setdefault(each.publisher, []).append(each)
        lanes, step_bytes = len(by_publisher), _STEP_BYTES
        if lookahead is not None and lanes:
            lanes = min(lanes, lookahead // least_lookahead(self._largest_staged()))
            step_bytes = lookahead // lanes // 2
        self._lanes: list[_Lane] = []
        for lane in range(lanes):
            ours = [
                (publishers[number], theirs[number], some)
                for place, (number, some) in enumerate(by_publisher.items())
                if place % lanes == lane
            ]
            self._lanes.append(self._make_lane(ours, step_bytes, lookahead is not None))
        self.staged_bytes: Final = sum(each.memory.numel() for each in self._lanes)

    def _largest_staged(self) -> int:
        sizes = [
            shard.nbytes
            for shard, target in zip(self._shards.values(), self._targets, strict=True)
            if target is None
        ]
        return max(sizes, default=0)

    def _make_lane(
        self,
        parts: Sequence[tuple[Member, Mapping[str, int], Sequence[Copy]]],
        step_bytes: int,
        is_bounded: bool,
    ) -> _Lane:
        planned: list[tuple[Member, int, list[_Planned]]] = []
        for publisher, numbers, copies in parts:
            for turn in (0, 1):
                some = [each for each in copies if (each.name in self._tied) == turn]
                found = (self._plan(publisher, numbers, each, step_bytes) for each in some)
                planned.append((publisher, turn, list(_steps(found, step_bytes))))
        needs = [each.memory_bytes(is_bounded) for _, _, steps in planned for each in steps]
        lane = _Lane(fresh_memory(max(needs, default=0), "cpu"))
        targets = [*(lane.memory if each is None else each for each in self._targets), lane.memory]
        for publisher, turn, steps in planned:
            holder = Holder(*publisher.address)
            made = lane.steps[turn].setdefault(publisher.id, [])
            for each in steps:
                # Fresh memory for every step would be more than that: malloc keeps what is freed.
                scratch = lane.memory[each.staged_bytes :] if is_bounded else None
                slices = Slices(holder, each.pairs, targets, scratch)
                made.append(_Step(slices, each.staged))
        return lane

    def _plan(
        self, publisher: Member, numbers: Mapping[str, int], copy: Copy, step_bytes: int
    ) -> Iterator[_Part]:
        """Yield the parts of a copy that fit into a step each."""
        shard, wanted = publisher.shards[copy.name], self._shards[copy.name]
        has = numbers[copy.name], shard.ranges
        number = self._numbers[copy.name]
        if self._targets[number] is not None:
            pair = regions_of(copy.box, has, (number, wanted.ranges), item_bytes(shard.dtype))
            for there, here in pieces_of(*pair, step_bytes):
                yield _Part(there, here, None)
            return
        stage = len(self._targets), copy.box
        inside = tuple(
            slice(each.start - all_of.start, each.stop - all_of.start)
            for each, all_of in zip(copy.box, wanted.ranges, strict=False)
        )
        there, here = regions_of(copy.box, has, stage, item_bytes(shard.dtype))
        yield _Part(there, here, (copy.name, inside))

    def read(
        self,
        pull_one: PullSlices,
        keys: Mapping[str, str],
        tensors: Mapping[str, Any],
        came: Callable[[int], object],
        deadline: Deadline,
    ) -> list[Pull]:
        """Read a version; returns what became of it at each publisher.

        Args:
            pull_one: Pulls slices of an object, as ``rcg.rdt.pull_slices``.
            keys: What each publisher calls the version, by its id.
            tensors: The reader's tensors by name, into which parts are copied that cannot be read
                in place.
            came: Called with the bytes of each step when it has come, by one thread at a time.
            deadline: Until when publishers may be silent.
        """
        pulls: list[Pull] = []
        lock = threading.Lock()

        def count(size: int) -> None:
            with lock:
                came(size)

        def run(lane: _Lane, ours: Sequence[Pull]) -> None:
            for pull in ours:
                if not any(each.problem for each in pulls):  # then the others are of no use
                    pull.run(lane, tensors, count)

        for turn in (0, 1):
            calls: list[Callable[[], object]] = []
            for lane in self._lanes:
                ours = [
                    Pull(
                        pull_one,
                        self.publishers[which],
                        keys[which],
                        steps,
                        Patience(deadline),
                        compares=bool(turn),
                    )
                    for which, steps in lane.steps[turn].items()
                    if steps or not turn
                ]
                pulls += ours
                calls.append(functools.partial(run, lane, ours))
            run_together(calls, "rcg-weights")
        return pulls


@dataclass(slots=True)
class _Part:
    """Bytes of a publisher, where they go, and which part of which tensor gets them then."""

    there: Region
    here: Region
    into: tuple[str, tuple[slice, ...]] | None


@dataclass(slots=True)
class _Planned:
    """A step before its lane has memory."""

    pairs: list[tuple[Region, Region]] = field(default_factory=list)
    staged: list[tuple[str, tuple[slice, ...], int, int]] = field(default_factory=list)
    bytes: int = 0
    staged_bytes: int = 0
    scattered_bytes: int = 0

    def memory_bytes(self, is_bounded: bool) -> int:
        """Return what it needs of its lane's memory."""
        return self.staged_bytes + (self.scattered_bytes if is_bounded else 0)


def _steps(copies: Iterator[Iterator[_Part]], step_bytes: int) -> Iterator[_Planned]:
    """Yield the steps in which parts are read, one or more in each."""
    step = _Planned()
    for parts in copies:
        for part in parts:
            size = part.there.size
            if step.pairs and step.bytes + padded(size) > step_bytes:
                yield step
                step = _Planned()
            step.bytes += padded(size)
            here = part.here
            if part.into is not None:
                start = step.staged_bytes
                step.staged.append((*part.into, start, start + size))
                step.staged_bytes += padded(size)
                here = here._replace(start=start)
            if not here.is_contiguous:
                step.scattered_bytes += size
            step.pairs.append((part.there, here))
    if step.pairs:
        yield step


class Pull:
    """What comes from one publisher.

    Attributes:
        member: The publisher.
        problem: The error, if there is one.
    """

    def __init__(
        self,
        pull_one: PullSlices,
        member: Member,
        key: str,
        steps: Sequence[_Step],
        patience: Patience,
        *,
        compares: bool,
    ) -> None:
        self.member = member
        self._patience = patience
        self._compares = compares
        self.problem: Exception | None = None
        self._work = pull_one, key, steps
        self._times: tuple[int, int, int] | None = None  # once it has run

    @property
    def has_died(self) -> bool:
        """Whether the publisher has died."""
        return isinstance(self.problem, ActorDiedError)

    @property
    def why_late(self) -> str:
        """Why it did not come in time; "" if that is not so."""
        if isinstance(self.problem, Silent):
            process = f"{self.member.label} (process {self.member.pid})"
            return f"{process}, which publishes them, does not answer: it may be stopped, or busy"
        return str(self.problem) if isinstance(self.problem, TimeoutError) else ""

    def run(self, lane: _Lane, tensors: Mapping[str, Any], came: Callable[[int], object]) -> None:
        """Read it; does not raise."""
        pull_one, key, steps = self._work
        start_ns, came_ns = time.monotonic_ns(), 0
        try:
            for step in steps:
                first_ns = pull_one(step.slices, key, self._patience)
                came_ns = came_ns or first_ns
                _use_staged(step, lane, tensors, compares=self._compares)
                came(sum(step.slices.sizes))
        except Exception as error:  # noqa: BLE001 - the result
            self.problem = without_frames(error)
        self._times = start_ns, (came_ns or start_ns) - start_ns, time.monotonic_ns()

    def got(self, what: str) -> Got | None:
        """Return what profiles show of it; None if it was not tried."""
        if self._times is None:
            return None
        start_ns, waited_ns, end_ns = self._times
        size = sum(sum(each.slices.sizes) for each in self._work[2])
        problem = "" if self.problem is None else str(self.problem)
        return Got(what, self.member.label, TRANSPORT, size, start_ns, waited_ns, end_ns, problem)


def _use_staged(step: _Step, lane: _Lane, tensors: Mapping[str, Any], *, compares: bool) -> None:
    """Copy what has come into the tensors that cannot be written to in place, or compare it."""
    import torch

    with torch.no_grad():
        for name, inside, start, stop in step.staged:
            if why := lacking(tensors[name]):
                raise ValueError(f"{name}: {why}")
            place, found = tensors[name][inside], lane.memory[start:stop]
            if compares:
                check_tied(name, bytes_of(place).cpu(), found)
            else:
                place.copy_(found.view(place.dtype).view(place.shape))


def check_tied(name: str, tensor: Any, found: Any) -> None:
    """Raise ValueError if what was read of a tied tensor is not what the other one has."""
    if not tensor.equal(found):
        raise ValueError(
            f"{name} is another tensor, too, in this process, and differs from it where it is "
            "published: untie them here, or leave one out of names="
        )
