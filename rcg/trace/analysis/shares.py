# SPDX-License-Identifier: Apache-2.0
"""Where the time of each process went: shares that add up exactly to the window.

```
lane    | read: waits . . . . . . | move | dec | call    | enc | wait | move | read: waits
in flight             |------------------------------------------------------|
        `--- idle ----'- waiting -'
```

A process is idle outside its events, and while it waits in a Read and no execution of the graph is
in flight, that is between its submission and its completion (``executions.py``). All other waiting
counts as waiting: for a value, for room, or for another graph's method on the actor. The time
between the ops of the driver is the user's code and counts as idle.

This room must know neither paths nor how figures are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rcg.ir.channels import ChannelSpec
from rcg.ir.ops import Collective, Op, Pass
from rcg.trace.analysis.events import READ, EventTable, TimeKind
from rcg.trace.analysis.executions import Executions
from rcg.trace.analysis.intervals import Cover, Ints, Times, disjoint
from rcg.trace.analysis.parts import Parts
from rcg.trace.model import GraphTrace, LaneTrace

ANOTHER_GRAPH = "another graph"
"""The name of the peer of a Call that waits while its actor runs a method of another graph."""


@dataclass(frozen=True)
class LaneShares:
    """Where the time of one process went. The five times add up to the window.

    Attributes:
        process: Its name in the plan.
        label: Its displayed name.
        compute_ns: Time in methods.
        communication_ns: Time of moving bytes.
        serialization_ns: Time of encoding and decoding values.
        waiting_ns: Time of waiting for a value while an execution was in flight, for room, for
            the others of a rendezvous, or for a method of another graph.
        idle_ns: Time with nothing to do; in the driver, the time of the user's code.
        waiting_for: ``waiting_ns`` by the process that it waited for, longest first.
        hidden: For a lane, the share, from 0 to 1, of its communication during which methods of
            its actor ran; None without communication, and for a process.
        bubble: For an actor, the share of the window in which none of its methods ran; None for
            others, and if the trace has no submission or no completion.
        exposed: The part of ``bubble`` in which the actor or its lanes moved bytes: communication
            that no method hides.
        device: For an actor, the share of the window in which a device ran kernels or copies for it
            or its lanes; None for others, and if none were recorded.
    """

    process: str
    label: str
    compute_ns: int
    communication_ns: int
    serialization_ns: int
    waiting_ns: int
    idle_ns: int
    waiting_for: Mapping[str, int]
    hidden: float | None = None
    bubble: float | None = None
    exposed: float | None = None
    device: float | None = None

    @property
    def busy_ns(self) -> int:
        """The time that is neither waiting nor idle."""
        return self.compute_ns + self.communication_ns + self.serialization_ns

    @property
    def busy(self) -> float:
        """The share of the time, from 0 to 1, that it was busy."""
        return self.busy_ns / (self.duration_ns or 1)

    @property
    def duration_ns(self) -> int:
        """The sum of the five times."""
        return self.busy_ns + self.waiting_ns + self.idle_ns

    def of(self, kind: TimeKind) -> int:
        """Return one of the five times, in ns."""
        return (
            self.compute_ns,
            self.communication_ns,
            self.serialization_ns,
            self.waiting_ns,
            self.idle_ns,
        )[kind]


@dataclass(frozen=True)
class Shares:
    """Where the time of a graph's processes went.

    Attributes:
        lanes: One per process, the driver's first.
        hidden: The share, from 0 to 1, of all communication during which a method of the same
            actor ran; None without communication. What the lanes of an actor move is the actor's,
            and the driver has no methods. Transfers and collectives over communicators are
            communication, without the waiting for others.
        bubble: The mean of the actors' bubbles; None if they have none.
        exposed: The mean of the actors' exposed communication; None likewise.
        device: The mean of the shares of a device that actors with kernels have; None likewise.
    """

    lanes: tuple[LaneShares, ...]
    hidden: float | None
    bubble: float | None
    exposed: float | None
    device: float | None = None

    @property
    def devices(self) -> int:
        """How many actors have kernels."""
        return sum(each.device is not None for each in self.lanes)

    @property
    def busiest(self) -> float:
        """The share of the time, from 0 to 1, that the busiest process was busy."""
        return max((each.busy for each in self.lanes), default=0.0)


def shares_of(
    table: EventTable,
    parts: Sequence[Parts],
    executions: Executions,
    start_ns: int,
    end_ns: int,
    *,
    is_hung: bool = False,
) -> Shares:
    """Return where the time of a graph's processes went in a window.

    Args:
        table: The events of the graph.
        parts: Their parts, by lane.
        executions: The executions of the graph.
        start_ns: Beginning of the window, usually that of the trace.
        end_ns: End of the window.
        is_hung: Whether the graph hung at the end: then no execution need have completed.
    """
    graph = table.graph
    flight = executions.in_flight(start_ns, end_ns)
    parts = [each.clipped(start_ns, end_ns) for each in parts]
    of = {lane.process: each for lane, each in zip(graph.lanes, parts, strict=True)}
    calls = {each.id: calls_of(table, each.id, of[each.id]) for each in graph.plan.actors}
    actor_of = {lane.id: lane.actor for lane in graph.plan.lanes}
    moved = [
        _communication_ns(each, calls.get(actor_of.get(lane.process, lane.process)))
        for lane, each in zip(graph.lanes, parts, strict=True)
    ]
    has_run = executions.first_submission_ns is not None
    has_run = has_run and (is_hung or executions.last_completion_ns is not None)
    unused = {
        actor: _unused(
            each,
            [of[actor], *(of[lane] for lane, owner in actor_of.items() if owner == actor)],
            end_ns - start_ns if has_run else 0,
        )
        for actor, each in calls.items()
    }
    lanes = tuple(
        replace(
            _lane_shares(table, lane, each, flight, start_ns, end_ns),
            hidden=_share_of(*found) if lane.process in actor_of else None,
            bubble=unused.get(lane.process, (None, None))[0],
            exposed=unused.get(lane.process, (None, None))[1],
            device=_device_share(graph, lane.process, actor_of, start_ns, end_ns),
        )
        for lane, each, found in zip(graph.lanes, parts, moved, strict=True)
    )
    hidden = _share_of(*map(sum, zip(*moved, strict=True))) if moved else None
    means = (_mean(each) for each in zip(*unused.values(), strict=True))
    bubble, exposed = means if unused else (None, None)
    return Shares(lanes, hidden, bubble, exposed, _mean([each.device for each in lanes]))


def _lane_shares(
    table: EventTable, lane: LaneTrace, parts: Parts, flight: Cover, start_ns: int, end_ns: int
) -> LaneShares:
    length = parts.duration_ns
    compute, communication, serialization = (
        int(length[parts.kind == kind].sum())
        for kind in (TimeKind.COMPUTE, TimeKind.COMMUNICATION, TimeKind.SERIALIZATION)
    )
    waits = parts.where(parts.kind == TimeKind.WAITING)
    in_flight = flight.within(waits.start_ns, waits.end_ns)
    waited = np.where(table.shape[waits.row] == READ, in_flight, waits.duration_ns)
    waiting = int(waited.sum())
    return LaneShares(
        process=lane.process,
        label=lane.label,
        compute_ns=compute,
        communication_ns=communication,
        serialization_ns=serialization,
        waiting_ns=waiting,
        idle_ns=max(end_ns - start_ns, 0) - compute - communication - serialization - waiting,
        waiting_for=_by_peer(table.graph, lane, table.op[waits.row], table.peer[waits.row], waited),
    )


def _by_peer(
    graph: GraphTrace,
    lane: LaneTrace,
    op: Ints,
    peer: Ints,
    waited: Ints,
) -> dict[str, int]:
    """Return the sums of waiting by peer: the lane in the event, or else the peers in the plan."""
    names = [each.label for each in graph.lanes]
    count = len(names)
    channels = graph.plan.channels_by_id()
    names += [_peer_of(graph, lane, each, channels) for each in graph.program(lane).ops]
    names.append("unknown")
    who = np.where(peer < count, peer, count + op)
    # Sums of doubles are exact below 2**53 ns, which is 104 days.
    sums = np.bincount(who, weights=waited, minlength=len(names)).astype(np.int64)
    found: dict[str, int] = {}
    for name, total in zip(names, sums.tolist(), strict=True):
        if total:
            found[name] = found.get(name, 0) + total
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _peer_of(
    graph: GraphTrace, lane: LaneTrace, op: Op, channels: Mapping[str, ChannelSpec]
) -> str:
    passed = (op.channel,) if isinstance(op, Pass) else ()
    peers = [channels[channel].writer for channel in (*op.channels_in, *passed)]
    if not isinstance(op, Collective):
        for channel in op.channels_out:
            peers += [reader for reader in channels[channel].readers if reader != lane.process]
    if not peers:
        return ANOTHER_GRAPH
    return " or ".join(graph.lane(peer).label for peer in peers)


def _communication_ns(parts: Parts, calls: Parts | None) -> tuple[int, int]:
    """Return how long a process communicated, and how long of that these methods ran."""
    start_ns, end_ns = _times_of(parts, TimeKind.COMMUNICATION)
    total = int((end_ns - start_ns).sum())
    if calls is None:
        return total, 0
    computing = Cover(*_times_of(calls, TimeKind.COMPUTE))
    return total, int(computing.within(start_ns, end_ns).sum())


def _share_of(total_ns: int, hidden_ns: int) -> float | None:
    return hidden_ns / total_ns if total_ns else None


def _device_share(
    graph: GraphTrace, actor: str, actor_of: Mapping[str, str], start_ns: int, end_ns: int
) -> float | None:
    """Return the share of a window in which a device worked for an actor; None if unknown."""
    if actor in actor_of:  # a lane's kernels are its actor's
        return None
    own = [
        lane.kernels for lane in graph.lanes if actor_of.get(lane.process, lane.process) == actor
    ]
    kernels = np.concatenate(own)
    if not len(kernels) or end_ns <= start_ns:
        return None
    begun, ended = (
        np.clip(kernels[each].astype(np.int64), start_ns, end_ns) for each in ("start_ns", "end_ns")
    )
    return Cover(begun, ended).total_ns / (end_ns - start_ns)


def calls_of(table: EventTable, actor: str, parts: Parts) -> Parts:
    """Return the parts of an actor's methods."""
    ops = table.graph.plan.program(actor).ops
    is_call = np.array([*(op.is_call for op in ops), False])
    return parts.where(is_call[table.op[parts.row]])


def _times_of(parts: Parts, kind: TimeKind) -> tuple[Times, Times]:
    found = parts.where(parts.kind == kind)
    return found.start_ns, found.end_ns


def _unused(calls: Parts, own: list[Parts], span_ns: int) -> tuple[float | None, float | None]:
    """Return an actor's bubble and exposed communication, as shares of a window of this length."""
    if span_ns <= 0:
        return None, None
    computing = Cover(*_times_of(calls, TimeKind.COMPUTE))
    moving = [_times_of(each, TimeKind.COMMUNICATION) for each in own]
    start, end = (np.concatenate(each) for each in zip(*moving, strict=True))
    _, start, end = disjoint(start, end)
    exposed_ns = (end - start).sum() - computing.within(start, end).sum()
    return 1 - computing.total_ns / span_ns, float(exposed_ns / span_ns)


def _mean(shares: Sequence[float | None]) -> float | None:
    known = [each for each in shares if each is not None]
    return sum(known) / len(known) if known else None
