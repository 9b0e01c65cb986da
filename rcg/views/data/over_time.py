# SPDX-License-Identifier: Apache-2.0
"""What changes over the time of a trace: who does what, and how many bytes are on the way."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rcg.ir.channels import RING
from rcg.ir.index import reads_of, writes_of
from rcg.trace.analysis.events import NONE, TimeKind
from rcg.trace.measured import Measured

Floats = npt.NDArray[np.float64]

WORK: Final = (TimeKind.COMPUTE, TimeKind.COMMUNICATION, TimeKind.SERIALIZATION)
"""The kinds of time in which a process is busy."""


def shares_over_time(
    measured: Measured, kinds: Collection[TimeKind], start_ns: int, end_ns: int, slices: int
) -> tuple[Floats, Floats]:
    """Return for which share of each slice of a time each process does something of some kinds.

    Returns:
        The edges of the slices, in ns from the beginning of the trace [slices + 1]; the shares,
        from 0 to 1 [processes, slices].
    """
    edges = np.linspace(start_ns, max(end_ns, start_ns + 1), slices + 1)
    shares = []
    for parts in measured.parts:
        own = parts.where(np.isin(parts.kind, list(kinds)))
        # How much was done until each moment is a line that rises during each part.
        done = np.cumsum(own.duration_ns)
        moments = np.column_stack([own.start_ns, own.end_ns]).ravel()
        until = np.column_stack([done - own.duration_ns, done]).ravel()
        so_far = np.interp(edges, moments, until, left=0) if len(moments) else np.zeros(len(edges))
        shares.append(np.clip(np.diff(so_far) / np.diff(edges), 0, 1))
    return edges - measured.start_ns, np.array(shares)


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
