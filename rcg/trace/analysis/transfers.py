# SPDX-License-Identifier: Apache-2.0
"""Transfers: time on the wire between nodes, and tensors by reference.

A channel carries one frame per execution, so a Write and a Read of the same execution belong
together. A value for another node of the cluster is on the wire from the end of the writer's Write
to the end of the gate's Pass, which publishes it there:

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

from rcg.ir.index import Crossing, crossings_of, writes_of
from rcg.ir.plan import Plan
from rcg.table import Cell, Table
from rcg.text import bytes_text, count_text, plural, short_label, speed_text, time_text
from rcg.trace.analysis.events import NONE, EventTable
from rcg.trace.analysis.highest import highest
from rcg.trace.analysis.intervals import Ints
from rcg.trace.model import TensorTransfer

# --- between nodes ------------------------------------------------------------------------------


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
        p99_ns: The 99th percentile of the same (``highest.py``).
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


def wire_text(plan: Plan, channel: str, node: str) -> str:
    """Return the displayed name of the time of a channel's values on the wire."""
    writer = plan.channels_by_id()[channel].writer
    return f"on the wire {channel}: {plan.label(writer)} -> {node}"


def carried(table: EventTable, crossing: Crossing) -> tuple[Ints, Ints]:
    """Return the rows of the Writes and the Passes of the frames that crossed, by execution."""
    wrote = writes_of(table.graph.plan)[crossing.channel]
    sent = table.moved(*wrote)
    came = table.find(*crossing.place, table.execution[sent])
    return sent[came != NONE], came[came != NONE]


def wires_of(table: EventTable) -> tuple[Wire, ...]:
    """Return what crossed between nodes, in the order of the channels."""
    found = []
    graph = table.graph
    for each in crossings_of(graph.plan).values():
        writer, gate = graph.lane(each.writer), graph.lane(each.node)
        sent, came = carried(table, each)
        if not len(sent):
            continue
        took = np.maximum(table.end_ns[came] - table.end_ns[sent], 0)
        sizes = np.maximum(table.bytes[came], table.bytes[sent])
        found.append(
            Wire(
                channel=each.channel,
                writer=writer.label,
                node=each.node,
                address=gate.node,
                frames=len(sent),
                bytes=int(sizes.sum()),
                median_ns=float(np.median(took)),
                p99_ns=highest(took),
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
