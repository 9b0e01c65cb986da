# SPDX-License-Identifier: Apache-2.0
"""What changes over the time of a trace: who is busy, and how many bytes are on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rcg.ir.channels import RING
from rcg.ir.index import reads_of, writes_of
from rcg.trace.analysis.events import NONE, TimeKind
from rcg.trace.measured import Measured

Floats = npt.NDArray[np.float64]
_BINS = 200
_WORK = (TimeKind.COMPUTE, TimeKind.COMMUNICATION, TimeKind.SERIALIZATION)


def busy_share(measured: Measured) -> tuple[list[str], Floats, Floats]:
    """Return the share of the time in which each process works, in parts of the trace.

    Returns:
        The names of the processes [n]; the middles of the parts, in ns from the beginning [bins];
        the shares, from 0 to 1 [n, bins].
    """
    edges = np.linspace(0, max(measured.end_ns - measured.start_ns, 1), _BINS + 1)
    shares = []
    for parts in measured.parts:
        work = parts.where(np.isin(parts.kind, _WORK))
        start, end = (each - measured.start_ns for each in (work.start_ns, work.end_ns))
        # How much work was done until each moment is a line that rises during each part.
        done = np.cumsum(end - start)
        moments = np.column_stack([start, end]).ravel()
        until = np.column_stack([done - (end - start), done]).ravel()
        worked = np.interp(edges, moments, until, left=0) if len(moments) else np.zeros(len(edges))
        shares.append(np.clip(np.diff(worked) / np.diff(edges), 0, 1))
    labels = [lane.label for lane in measured.graph.lanes]
    return labels, (edges[1:] + edges[:-1]) / 2, np.array(shares)


def bytes_on_the_way(measured: Measured) -> tuple[Floats, Floats]:
    """Return how many bytes were written to channels and not read by all readers yet.

    Returns:
        When that changes, in ns from the beginning of the trace, ascending; the bytes from then on.
    """
    table, plan = measured.table, measured.graph.plan
    writes, reads = writes_of(plan), reads_of(plan)
    times: list[npt.NDArray[Any]] = [np.zeros(1)]
    changes: list[npt.NDArray[Any]] = [np.zeros(1)]
    for channel in plan.channels:
        if channel.kind != RING or channel.id not in writes:
            continue
        sent = table.moved(*writes[channel.id])
        sent = sent[table.bytes[sent] > 0]
        taken = np.zeros(len(sent), np.int64)
        for reader in channel.readers:
            if (channel.id, reader) in reads:
                came = table.find(*reads[channel.id, reader], table.execution[sent])
                end = np.where(came == NONE, measured.end_ns, table.end_ns[came])
                taken = np.maximum(taken, end)
        times += [table.end_ns[sent], np.maximum(taken, table.end_ns[sent])]
        changes += [table.bytes[sent], -table.bytes[sent]]
    when, change = np.concatenate(times), np.concatenate(changes)
    when[1:] -= measured.start_ns
    order = np.lexsort((-change, when))
    return when[order].astype(float), np.cumsum(change[order])
