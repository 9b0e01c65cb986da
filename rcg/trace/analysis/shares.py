# SPDX-License-Identifier: Apache-2.0
"""Where the time of each process went: figures that add up to the window, to the nanosecond.

```
lane    | read: waits . . . . . . | move | dec | call    | enc | wait | move | read: waits
flight                |------------------------------------------------------|
        `--- idle ----'- waiting -'
```

Idle is the time outside any event and that part of a Read's waiting in which no execution of the
graph is in flight: there is nothing to wait for. In flight is from submission to completion
(``executions.py``). Waiting is the rest of waiting: for a value, for room, or for another graph's
method on the actor. What the driver does between its ops is the user's code and is idle here.

This room must know neither paths nor how figures are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rcg.ir.channels import ChannelSpec
from rcg.ir.ids import DRIVER
from rcg.ir.ops import Op
from rcg.trace.analysis.executions import Executions, executions_of
from rcg.trace.analysis.intervals import Cover
from rcg.trace.analysis.parts import READ, Parts, TimeKind, events_of, parts_of, shapes_of
from rcg.trace.model import GraphTrace, LaneTrace

__all__ = ["ANOTHER_GRAPH", "LaneShares", "Shares", "shares_of"]

ANOTHER_GRAPH = "another graph"
"""Whom a Call waits for: its actor runs a method of another graph."""


@dataclass(frozen=True)
class LaneShares:
    """Where the time of one process went; the five add up to the window.

    Attributes:
        process: Its name in the plan.
        label: Its name for people.
        compute_ns: In methods.
        communication_ns: Moving bytes.
        serialization_ns: Encoding and decoding values.
        waiting_ns: Waiting while an execution was in flight, or for room, or for a method of
            another graph.
        idle_ns: With nothing to do; of the driver, in the user's code.
        waiting_for: ``waiting_ns`` by whom it waited for, longest first.
    """

    process: str
    label: str
    compute_ns: int
    communication_ns: int
    serialization_ns: int
    waiting_ns: int
    idle_ns: int
    waiting_for: Mapping[str, int]

    @property
    def busy_ns(self) -> int:
        """Neither waiting nor idle."""
        return self.compute_ns + self.communication_ns + self.serialization_ns

    @property
    def duration_ns(self) -> int:
        """The sum of the five."""
        return self.busy_ns + self.waiting_ns + self.idle_ns

    def of(self, kind: TimeKind) -> int:
        """Return one of the five in ns."""
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
        hidden: How much of the communication of all processes, from 0 to 1, took place while a
            process of the graph was computing; None if nothing was communicated.
        bubble: How much of the actors' time between the first submission and the last completion,
            from 0 to 1, they were not busy; None if the trace holds no such stretch.
    """

    lanes: tuple[LaneShares, ...]
    hidden: float | None
    bubble: float | None


def shares_of(
    graph: GraphTrace,
    start_ns: int,
    end_ns: int,
    executions: Executions | None = None,
    *,
    is_hung: bool = False,
) -> Shares:
    """Say where the time of a graph's processes went between two moments.

    Args:
        graph: The graph.
        start_ns: Where the window begins, usually where the trace does.
        end_ns: Where it ends.
        executions: Those of the graph, if they are at hand.
        is_hung: Whether the graph hung at the end; the bubble lasts until then.
    """
    executions = executions_of(graph) if executions is None else executions
    flight = executions.in_flight(start_ns, end_ns)
    parts = [parts_of(graph, lane, start_ns, end_ns) for lane in graph.lanes]
    lanes = tuple(
        _lane_shares(graph, lane, each, flight, start_ns, end_ns)
        for lane, each in zip(graph.lanes, parts, strict=True)
    )
    last = end_ns if is_hung else executions.last_completion_ns
    return Shares(lanes, _hidden(parts), _bubble(graph, parts, executions, last))


def _lane_shares(
    graph: GraphTrace, lane: LaneTrace, parts: Parts, flight: Cover, start_ns: int, end_ns: int
) -> LaneShares:
    length = parts.duration_ns
    compute, communication, serialization = (
        int(length[parts.kind == kind].sum())
        for kind in (TimeKind.COMPUTE, TimeKind.COMMUNICATION, TimeKind.SERIALIZATION)
    )
    at = np.flatnonzero(parts.kind == TimeKind.WAITING)
    events = events_of(lane, end_ns)
    row = parts.row[at]
    program = graph.program(lane)
    op = np.minimum(events["op"][row], len(program.ops)).astype(np.int64)
    waited = length[at]
    in_flight = flight.within(parts.start_ns[at], parts.end_ns[at])
    waited = np.where(shapes_of(program)[op] == READ, in_flight, waited)
    waiting_for = _by_peer(graph, lane, op, events["peer"][row], waited)
    waiting = int(waited.sum())
    return LaneShares(
        process=lane.process,
        label=lane.label,
        compute_ns=compute,
        communication_ns=communication,
        serialization_ns=serialization,
        waiting_ns=waiting,
        idle_ns=max(end_ns - start_ns, 0) - compute - communication - serialization - waiting,
        waiting_for=waiting_for,
    )


def _by_peer(
    graph: GraphTrace,
    lane: LaneTrace,
    op: npt.NDArray[np.int64],
    peer: npt.NDArray[np.uint32],
    waited: npt.NDArray[np.int64],
) -> dict[str, int]:
    """Add up what was waited by lane, or, where the event names none, by what the plan says."""
    names = [each.label for each in graph.lanes]
    count = len(names)
    channels = graph.plan.channels_by_id()
    names += [_peer_of(graph, lane, each, channels) for each in graph.program(lane).ops]
    names.append("unknown")
    who = np.where(peer < count, peer, count + op).astype(np.int64)
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
    peers = [channels[channel].writer for channel in op.channels_in]
    for channel in op.channels_out:
        peers += [reader for reader in channels[channel].readers if reader != lane.process]
    if not peers:
        return ANOTHER_GRAPH
    return " or ".join(graph.lane(peer).label for peer in peers)


def _hidden(parts: list[Parts]) -> float | None:
    start, end = (np.concatenate([getattr(each, name) for each in parts]) for name in _TIMES)
    kind = np.concatenate([each.kind for each in parts])
    moving = kind == TimeKind.COMMUNICATION
    total = int((end[moving] - start[moving]).sum())
    if not total:
        return None
    computing = Cover(start[kind == TimeKind.COMPUTE], end[kind == TimeKind.COMPUTE])
    return int(computing.within(start[moving], end[moving]).sum()) / total


_TIMES = ("start_ns", "end_ns")


def _bubble(
    graph: GraphTrace, parts: list[Parts], executions: Executions, last: int | None
) -> float | None:
    first = executions.first_submission_ns
    actors = [each for lane, each in zip(graph.lanes, parts, strict=True) if lane.process != DRIVER]
    if first is None or last is None or last <= first or not actors:
        return None
    busy = 0
    for each in actors:
        within = each.clipped(first, last)
        busy += int(within.duration_ns[within.kind != TimeKind.WAITING].sum())
    return 1 - busy / (len(actors) * (last - first))
