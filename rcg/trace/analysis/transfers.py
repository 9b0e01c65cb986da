# SPDX-License-Identifier: Apache-2.0
"""Transfers: which Read received which Write, time on the wire between nodes, and by reference.

A channel carries one frame per execution, so a Write and a Read of the same execution belong
together. An op of a driver may have several events in an execution; one of them moves the frame:

```
Write   | encodes |   other ops, until there is room     | moves |
Read    | waits without getting a frame |  | waits | moves |       | decodes |
```

A value for another node of the cluster is on the wire from the end of the writer's Write to the end
of the gate's Pass, which publishes it there:

```
a0 on n0     | call | write c1 |
                               '. . . . . . .        on the wire
n1 gate                |  waits             | pass c1 |
a2 on n1                     | waits                  | read c1 | call
                               '. . . . . . . . . . . '
```

The two times are of two clocks, so a time on the wire is as exact as these are aligned. Of channels
for tensors only the rest of the value crosses like this; they are left out. Transfers of tensors
over a communicator are in ``rendezvous.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rcg.ir.channels import RING
from rcg.ir.ids import DRIVER
from rcg.ir.ops import Pass
from rcg.ir.plan import Plan
from rcg.table import Cell, Table
from rcg.text import bytes_text, count_text, plural, short_label, speed_text, time_text
from rcg.trace.analysis.intervals import Ints
from rcg.trace.analysis.parts import READ, WRITE
from rcg.trace.model import Events, GraphTrace, TensorTransfer


def write_of(plan: Plan, process: str, channel: str) -> int:
    """Return the index of the op of a process that writes a channel."""
    ops = plan.program(process).ops
    return next(at for at, op in enumerate(ops) if channel in op.values_out)


def read_of(plan: Plan, process: str, channel: str) -> int:
    """Return the index of the op of a process that reads a channel."""
    ops = plan.program(process).ops
    return next(at for at, op in enumerate(ops) if channel in op.values_in)


def is_coding(events: Events) -> npt.NDArray[np.bool_]:
    """Return which events of Reads or Writes only encoded or decoded."""
    took = events["end_ns"] - events["start_ns"]
    found: npt.NDArray[np.bool_] = (
        (events["bytes"] == 0) & (events["coded_ns"] > 0) & (events["coded_ns"] >= took)
    )
    return found


def is_waiting(events: Events) -> npt.NDArray[np.bool_]:
    """Return which events of a driver's Read ended without a frame.

    Such an event has no bytes, but a frame may be empty as well. If other events of the Read have
    bytes, an event without bytes that mostly waited had no frame. Otherwise only an event that
    waited until it ended had none.
    """
    took, waited = events["end_ns"] - events["start_ns"], events["waited_ns"]
    has_bytes = events["bytes"] > 0
    is_most = (waited >= took) | (bool(has_bytes.any()) & (2 * waited >= took))
    found: npt.NDArray[np.bool_] = ~has_bytes & (events["coded_ns"] == 0) & (waited > 0) & is_most
    return found


def movers(events: Events, shape: int) -> Ints:
    """Return the indexes of the events of a driver's op that moved its frames, by execution.

    An execution whose frame was not moved in the trace has none. If the trace contains only the
    decoding of a Read, the decoding event is returned.

    Args:
        events: All events of one op, in any order.
        shape: READ or WRITE.
    """
    execution, codes = events["execution"], is_coding(events)
    rank = np.where(events["bytes"] > 0, 3, 2)
    if shape == READ:
        rank = np.where(is_waiting(events), 0, np.where(codes, 1, rank))
    else:
        rank = np.where(codes, 0, rank)
    if rank.min(initial=2) >= 2 and (np.diff(execution) > 0).all():
        return np.arange(len(events))
    # Events that only wait or encode come before the one that moves, so the last of equals moved.
    order = np.lexsort((events["start_ns"], rank, execution))
    is_last = np.append(execution[order][1:] != execution[order][:-1], True)[: len(order)]
    found = order[is_last]
    chosen: Ints = found[rank[found] > 0]
    return chosen


def taken_ns(reads: Events) -> Ints:
    """Return when each Read got its frame: it waits first, then moves and decodes it."""
    taken: Ints = np.minimum(reads["start_ns"] + reads["waited_ns"], reads["end_ns"])
    return taken


def pairs(writes: Events, reads: Events) -> tuple[Ints, Ints]:
    """Return the indexes of the Writes and Reads that move the frames of the same executions."""
    _, sent, took = np.intersect1d(writes["execution"], reads["execution"], return_indices=True)
    return sent, took


def depth(writes: Events, reads: Sequence[Events], start_ns: int) -> tuple[Ints, Ints]:
    """Return the times at which the number of unread frames in a channel changed, and the numbers.

    A frame is unread from the end of its Write until the last reader has taken it. A frame that was
    taken but whose Write is not in the trace was there from the beginning.

    Args:
        writes: The Writes of the channel that move its frames.
        reads: The Reads that move them, one array per reader.
        start_ns: The first of the returned times.
    """
    executions, gone = reads[0]["execution"], taken_ns(reads[0])
    for others in reads[1:]:
        _, mine, theirs = np.intersect1d(executions, others["execution"], return_indices=True)
        executions, gone = executions[mine], np.maximum(gone[mine], taken_ns(others)[theirs])
    _, sent, took = np.intersect1d(writes["execution"], executions, return_indices=True)
    came = writes["end_ns"].copy()
    # The writer records the end of its Write after the frame has become readable.
    came[sent] = np.minimum(came[sent], gone[took])
    before = len(gone) - len(took)

    times = np.concatenate([came, gone])
    steps = np.concatenate([np.ones(len(came), np.int64), np.full(len(gone), -1, np.int64)])
    changed_at, which = np.unique(np.maximum(times, start_ns), return_inverse=True)
    changes = np.bincount(which, steps, len(changed_at)).astype(np.int64)
    kept = changes != 0
    times = np.concatenate([[start_ns], changed_at[kept]]).astype(np.int64)
    return times, before + np.concatenate([[0], np.cumsum(changes[kept])]).astype(np.int64)


# --- between nodes ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Crossing:
    """The way of a channel to another node.

    Attributes:
        channel: The channel.
        writer: The process that writes it.
        node: The node that it crosses to, whose id is also that of its gate.
        op: The index of the Pass in the program of the gate.
    """

    channel: str
    writer: str
    node: str
    op: int


@dataclass(frozen=True, slots=True)
class Wire:
    """What crossed to a node by one channel.

    Attributes:
        channel: The channel.
        writer: The displayed name of the process that writes it.
        node: The node that it crosses to.
        address: The address of that node; "" if it is not known.
        frames: How many frames are in the trace from their Write to their Pass.
        bytes: The bytes of these.
        median_ns: The median of their times on the wire.
        p99_ns: The 99th percentile of the same.
        error_ns: How wrong these may be, because the clocks are of two processes.
    """

    channel: str
    writer: str
    node: str
    address: str
    frames: int
    bytes: int
    median_ns: float
    p99_ns: float
    error_ns: int


def crossings_of(plan: Plan) -> tuple[Crossing, ...]:
    """Return the ways of values to other nodes, by channel; none in a plan on one node."""
    channels = plan.channels_by_id()
    gates = {gate.id for gate in plan.gates}
    return tuple(
        Crossing(channel, channels[channel].writer, node, plan.program(node).ops.index(passed))
        for channel, nodes in plan.crossings().items()
        for node in nodes
        if channels[channel].kind == RING
        and node in gates
        and (passed := Pass(channel)) in plan.program(node).ops
    )


def gate_for(plan: Plan, channel: str, reader: str) -> Crossing | None:
    """Return the way of a channel to the node of a reader; None if that is the writer's node."""
    if not plan.nodes:
        return None
    wanted = (channel, plan.node_of(reader))
    return next((each for each in crossings_of(plan) if (each.channel, each.node) == wanted), None)


def wire_text(plan: Plan, channel: str, node: str) -> str:
    """Return the displayed name of the time of a channel's values on the wire."""
    writer = plan.channels_by_id()[channel].writer
    return f"on the wire {channel}: {plan.label(writer)} -> {node}"


def carried(graph: GraphTrace, crossing: Crossing) -> tuple[Events, Events]:
    """Return the Writes and the Passes of the frames that crossed, by execution."""
    writer, gate = graph.lane(crossing.writer), graph.lane(crossing.node)
    op = write_of(graph.plan, crossing.writer, crossing.channel)
    writes = writer.events[writer.events["op"] == op]
    if crossing.writer == DRIVER:
        writes = writes[movers(writes, WRITE)]
    passes = gate.events[gate.events["op"] == crossing.op]
    sent, came = pairs(writes, passes)
    return writes[sent], passes[came]


def wires_of(graph: GraphTrace) -> tuple[Wire, ...]:
    """Return what crossed between nodes, in the order of the channels."""
    found = []
    for each in crossings_of(graph.plan):
        writer, gate = graph.lane(each.writer), graph.lane(each.node)
        writes, passes = carried(graph, each)
        if not len(writes):
            continue
        took = np.maximum(passes["end_ns"] - writes["end_ns"], 0)
        sizes = np.maximum(passes["bytes"], writes["bytes"])
        found.append(
            Wire(
                channel=each.channel,
                writer=writer.label,
                node=each.node,
                address=gate.node,
                frames=len(writes),
                bytes=int(sizes.sum()),
                median_ns=float(np.median(took)),
                p99_ns=float(np.percentile(took, 99)),
                error_ns=writer.clock.error_ns + gate.clock.error_ns,
            )
        )
    return tuple(found)


# --- by reference -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReferenceSums:
    """The transfers from one process to another over one transport.

    Attributes:
        source: The process that held the tensors.
        target: The process that got them.
        transport: How they travelled.
        transfers: How many values there were.
        bytes: The bytes of their tensors.
        waited_ns: How long the target waited before the first byte came.
        moved_ns: How long they moved.
        failed: How many did not arrive.
    """

    source: str
    target: str
    transport: str
    transfers: int
    bytes: int
    waited_ns: int
    moved_ns: int
    failed: int


def reference_sums(transfers: Iterable[TensorTransfer]) -> list[ReferenceSums]:
    """Return the sums, those that took longest first."""
    groups: dict[tuple[str, str, str], list[TensorTransfer]] = {}
    for each in transfers:
        groups.setdefault((each.source, each.target, each.transport), []).append(each)
    found = [
        ReferenceSums(
            *key,
            transfers=len(group),
            bytes=sum(each.bytes for each in group),
            waited_ns=sum(each.waited_ns for each in group),
            moved_ns=sum(each.moved_ns for each in group),
            failed=sum(bool(each.error) for each in group),
        )
        for key, group in groups.items()
    ]
    return sorted(found, key=lambda each: -(each.waited_ns + each.moved_ns))


def references_table(sums: Sequence[ReferenceSums]) -> Table:
    """Return the sums as a table; those of which some did not arrive are marked."""
    head = ("from", "to", "transport", "values", "size", "waited", "moved", "rate", "failed")
    rows = [
        (
            Cell(short_label(each.source), "strong", each.source),
            Cell(short_label(each.target), "strong", each.target),
            each.transport,
            count_text(each.transfers),
            bytes_text(each.bytes),
            time_text(each.waited_ns),
            time_text(each.moved_ns),
            speed_text(each.bytes / each.moved_ns) if each.moved_ns else "",
            Cell(count_text(each.failed), "bad") if each.failed else "",
        )
        for each in sums
    ]
    return Table(head, rows, "nnwffffff", [at for at, each in enumerate(sums) if each.failed])


def references_about(sums: Sequence[ReferenceSums]) -> str:
    """Return how much was transferred."""
    count, size = sum(each.transfers for each in sums), sum(each.bytes for each in sums)
    return f"{plural(count, 'transfer')} of {bytes_text(size)}"
