# SPDX-License-Identifier: Apache-2.0
"""Time on the wire: how long values take from one node of the cluster to another.

```
a0 on n0     | call | write c1 |
                               '. . . . . . .        on the wire
n1 gate                |  waits             | pass c1 |
a2 on n1                     | waits                  | read c1 | call
                               '. . . . . . . . . . . '
```

A value is on the wire from the end of the writer's Write to the end of the gate's Pass, which
publishes it on the other node. The two times are of two clocks, so a time on the wire is as exact
as these are aligned. Of channels for tensors only the rest of the value crosses like this; they are
left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rcg.ir.channels import RING
from rcg.ir.ids import DRIVER
from rcg.ir.ops import Pass
from rcg.ir.plan import Plan
from rcg.trace.analysis.parts import WRITE
from rcg.trace.analysis.transfers import movers, pairs, write_of
from rcg.trace.model import GraphTrace


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
    node = plan.node_of(reader)
    return next(
        (each for each in crossings_of(plan) if each.channel == channel and each.node == node), None
    )


def wire_text(plan: Plan, channel: str, node: str) -> str:
    """Return the displayed name of the time of a channel's values on the wire."""
    writer = plan.channels_by_id()[channel].writer
    return f"on the wire {channel}: {plan.label(writer)} -> {node}"


def wires_of(graph: GraphTrace) -> tuple[Wire, ...]:
    """Return what crossed between nodes, in the order of the channels."""
    found = []
    for each in crossings_of(graph.plan):
        writer, gate = graph.lane(each.writer), graph.lane(each.node)
        op = write_of(graph.plan, each.writer, each.channel)
        writes = writer.events[writer.events["op"] == op]
        if each.writer == DRIVER:
            writes = writes[movers(writes, WRITE)]
        passes = gate.events[gate.events["op"] == each.op]
        sent, came = pairs(writes, passes)
        if not len(sent):
            continue
        took: npt.NDArray[np.int64] = passes["end_ns"][came] - writes["end_ns"][sent]
        took = np.maximum(took, 0)
        sizes = np.maximum(passes["bytes"][came], writes["bytes"][sent])
        found.append(
            Wire(
                channel=each.channel,
                writer=writer.label,
                node=each.node,
                address=gate.node,
                frames=len(sent),
                bytes=int(sizes.sum()),
                median_ns=float(np.median(took)),
                p99_ns=float(np.percentile(took, 99)),
                error_ns=writer.clock.error_ns + gate.clock.error_ns,
            )
        )
    return tuple(found)
