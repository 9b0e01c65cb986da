# SPDX-License-Identifier: Apache-2.0
"""Rendezvous: the events of several processes that exchange tensors over a communicator.

A transfer over a tensor channel is a Write and a Read for each reader. No end can begin to move
bytes before all of them arrived::

    Write        | encodes | waits for the slowest reader | sends            |
    Read          | waits for the frame |. . . . . . . . .| receives  | decodes |
    slow Read                                    | waits  | receives    | decodes |
                                                 ^ the last end arrives
                                                          ^ the transfer begins   ^ ends

The recorder of a reader sees only the wait for the frame. The rest, until the writer begins to
send, is waiting as well: ``with_waits`` adds it.

A collective is one event at each rank. A rank waits for the statuses of all others, so every rank
waits for the last to arrive. That is the rank that waited least::

    rank 0   | waits . . . . . . . . . . | moves and combines |
    rank 1                          | w. | moves and combines  |

This room must know neither paths nor how anything is shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rcg.ir.channels import TENSOR
from rcg.ir.ops import Collective
from rcg.ir.plan import Plan
from rcg.trace.analysis.intervals import MIN_INT64, Ints, Times
from rcg.trace.model import NO_PEER, Events, GraphTrace, LaneTrace

NONE = -1
"""The row of an event that is not in the trace."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Ops that go together in every execution.

    Attributes:
        name: The tensor channel, or the word of the collective: ``c3``, ``allreduce``.
        group: The group that carries the tensors.
        ends: The process of each op, and its index in the program: the writer and then the readers
            of a channel, or the ranks in their order.
        is_collective: Whether it is a collective.
    """

    name: str
    group: str | None
    ends: tuple[tuple[str, int], ...]
    is_collective: bool


@dataclass(frozen=True, eq=False)
class Exchange:
    """When the tensors of a rendezvous were exchanged, as columns by execution.

    For a transfer ``rows`` has two columns, the Write and one Read; for a collective one per rank.
    It contains the executions of which all these events are in the trace.

    Attributes:
        rendezvous: The rendezvous.
        ends: The ends that the columns of ``rows`` are about.
        execution: The execution of each.
        rows: The rows of the events in their lanes [n, number of ends].
        begin_ns: When it began: when the last end arrived and all others knew it.
        end_ns: When the reader had the tensors, or the last rank its result.
        bytes: Bytes of the frame and the tensors; of a collective, the largest of a rank.
    """

    rendezvous: Rendezvous
    ends: tuple[tuple[str, int], ...]
    execution: Ints
    rows: Ints
    begin_ns: Times
    end_ns: Times
    bytes: Ints


def rendezvous_of(plan: Plan) -> tuple[Rendezvous, ...]:
    """Return the rendezvous of a plan: its tensor channels, then its collectives."""
    ends: dict[str, dict[str, int]] = {}
    ranks: dict[frozenset[str], list[tuple[str, int, Collective]]] = {}
    for program in plan.programs:
        for at, op in enumerate(program.ops):
            for channel in (*op.values_in, *op.values_out):
                ends.setdefault(channel, {})[program.process] = at
            if isinstance(op, Collective):
                # A group of one tells nobody.
                known = frozenset((*op.tells, *op.hears)) or frozenset((f"{program.process} {at}",))
                ranks.setdefault(known, []).append((program.process, at, op))
    members = {group.id: group.members for group in plan.groups}
    found = []
    for spec in plan.channels:
        if spec.kind == TENSOR:
            processes = [each for each in (spec.writer, *spec.readers) if each in ends[spec.id]]
            places = tuple((process, ends[spec.id][process]) for process in processes)
            found.append(Rendezvous(spec.id, spec.group, places, is_collective=False))
    for collective in ranks.values():
        _, _, op = collective[0]
        order = members[op.group].index
        collective.sort(key=lambda each: order(each[0]))
        places = tuple((process, at) for process, at, _ in collective)
        found.append(Rendezvous(op.word, op.group, places, is_collective=True))
    return tuple(found)


def groups_of(plan: Plan, process: str) -> list[str | None]:
    """Return the group over which each op of a process exchanges tensors; None if it does not."""
    tensors = {each.id: each.group for each in plan.channels if each.kind == TENSOR}
    return [
        each.group
        if isinstance(each, Collective)
        else next((tensors[c] for c in (*each.values_in, *each.values_out) if c in tensors), None)
        for each in plan.program(process).ops
    ]


def rank_of(plan: Plan, process: str, group: str) -> int:
    """Return the rank of a member of a group."""
    return next(each for each in plan.groups if each.id == group).members.index(process)


def rows_of(lane: LaneTrace, op: int | Ints, execution: Ints) -> Ints:
    """Return the rows of an actor's op, or of one op each, in some executions, or ``NONE``."""
    rows = np.flatnonzero(np.isin(lane.events["op"], op))
    if not len(rows):
        return np.full(len(execution), NONE)
    events = lane.events[rows]
    size = max(int(events["execution"].max()), int(execution.max(initial=0))) + 1
    known = events["op"].astype(np.int64) * size + events["execution"]
    order = np.argsort(known, kind="stable")
    known, wanted = known[order], np.asarray(op, np.int64) * size + execution
    at = np.minimum(np.searchsorted(known, wanted), len(rows) - 1)
    found: Ints = np.where(known[at] == wanted, rows[order[at]], NONE)
    return found


def last_of(waited: Ints, start: Times) -> Ints:
    """Return the position of the rank that arrived last in each collective.

    Args:
        waited: How long each rank waited [number of ranks, n].
        start: When its event began [number of ranks, n].
    """
    least = waited == waited.min(axis=0)
    last: Ints = np.argmax(np.where(least, start, MIN_INT64), axis=0)
    return last


def with_waits(graph: GraphTrace, lane: LaneTrace) -> Events:
    """Return a lane's events. A Read of tensors waits until its writer begins to send.

    Without such Reads, the result is ``lane.events`` itself.
    """
    writers = {each.id: each.writer for each in graph.plan.channels if each.kind == TENSOR}
    ops = graph.program(lane).ops
    read = {name: at for at, op in enumerate(ops) for name in op.values_in if name in writers}
    senders = {writers[name] for name in read}
    events = lane.events
    for number, sender in enumerate(graph.lanes if read else ()):
        if sender.process in senders:
            sends = np.full(len(ops), NONE)  # the op of the sender that each op receives from
            for at, op in enumerate(graph.program(sender).ops):
                for name in op.values_out:
                    if name in read:
                        sends[read[name]] = at
            events = _with_waits_for(lane, events, sender, number, sends)
    return events


def _with_waits_for(
    lane: LaneTrace, events: Events, sender: LaneTrace, number: int, sends: Ints
) -> Events:
    rows = np.flatnonzero(lane.events["op"] < len(sends))
    rows = rows[sends[lane.events["op"][rows]] != NONE]
    reads = events[rows]
    sent = rows_of(sender, sends[reads["op"]], reads["execution"].astype(np.int64))
    is_known = sent != NONE
    rows, reads, sent = rows[is_known], reads[is_known], sent[is_known]
    length = np.maximum(reads["end_ns"] - reads["start_ns"], 0)
    until = _sending_ns(sender.events[sent]) - reads["start_ns"]
    most = np.maximum(length - np.clip(reads["coded_ns"], 0, length), 0)
    longer = np.minimum(until, most) > reads["waited_ns"]
    if not longer.any():
        return events
    changed = events.copy() if events is lane.events else events
    rows = rows[longer]
    changed["waited_ns"][rows] = np.minimum(until, most)[longer]
    is_named = changed["peer"][rows] != NO_PEER
    changed["peer"][rows] = np.where(is_named, changed["peer"][rows], number)
    return changed


def _sending_ns(writes: Events) -> Times:
    """Return when each Write of tensors began to send: it encodes and waits before."""
    sending: Times = np.minimum(
        writes["start_ns"] + np.maximum(writes["coded_ns"], 0) + np.maximum(writes["waited_ns"], 0),
        writes["end_ns"],
    )
    return sending


def exchanges_of(graph: GraphTrace) -> Iterator[Exchange]:
    """Yield the exchanges of a graph: those of each reader of a channel, and of each collective."""
    lanes = {lane.process: lane for lane in graph.lanes}
    for each in rendezvous_of(graph.plan):
        if each.is_collective:
            yield _exchange(lanes, each, each.ends)
            continue
        writer, *readers = each.ends
        for reader in readers:
            yield _exchange(lanes, each, (writer, reader))


def _exchange(
    lanes: dict[str, LaneTrace], rendezvous: Rendezvous, ends: tuple[tuple[str, int], ...]
) -> Exchange:
    first, op = ends[0]
    own = lanes[first].events
    execution = np.unique(own["execution"][own["op"] == op]).astype(np.int64)
    rows = np.array([rows_of(lanes[process], at, execution) for process, at in ends]).T
    whole = (rows.reshape(len(execution), len(ends)) != NONE).all(axis=1)
    execution, rows = execution[whole], rows.reshape(-1, len(ends))[whole]
    events = [lanes[process].events[rows[:, at]] for at, (process, _) in enumerate(ends)]
    starts = [each["start_ns"] + np.maximum(each["waited_ns"], 0) for each in events]
    stops = [each["end_ns"] for each in events]
    if not rendezvous.is_collective:
        write, read = events
        starts[0] = _sending_ns(write)
        stops = [read["end_ns"] - np.maximum(read["coded_ns"], 0)]
        size = write["bytes"]
    else:
        size = np.max([each["bytes"] for each in events], axis=0)
    begin = np.max(starts, axis=0)
    end = np.maximum(np.max(stops, axis=0), begin)
    return Exchange(rendezvous, ends, execution, rows, begin, end, size)
