# SPDX-License-Identifier: Apache-2.0
"""Latency in its two parts: queued, and in service; and how it is distributed.

```
driver   |write|                                       |read|
a0                |read|call|write|
a1                                  .  .  .  |read|call|write|
         ^ submitted                                    ^ completed
         |service|q|    service   |  queued  |  service |
```

An execution is in service while some process works for it: in a method, or coding or moving its
values; and while a value of it is on the wire between nodes. Otherwise it is queued: its values lie
in a channel until a process has time for them, or wakes up.

This room must know neither paths nor how figures are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rcg.ir.index import crossings_of
from rcg.trace.analysis.events import EventTable, TimeKind
from rcg.trace.analysis.executions import Executions
from rcg.trace.analysis.highest import high_word, highest
from rcg.trace.analysis.intervals import Cover, Ints
from rcg.trace.analysis.parts import Parts
from rcg.trace.analysis.transfers import carried

BINS: Final = 24
_LEAST: Final = 10  # executions that have a distribution
_MAX_NS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Latency:
    """The latencies of a graph.

    Attributes:
        queued_ns: The mean time that an execution was queued.
        service_ns: The mean time that it was in service. Both add up to the mean latency.
        first_ns: Where the first bin begins: the smallest latency.
        last_ns: Where the last bin ends (``highest.py``). See ``has_longer``.
        counts: How many executions each bin has; empty of few executions.
        queued: The share, from 0 to 1, of the latencies of each bin that was queued.
    """

    queued_ns: float
    service_ns: float
    first_ns: float = 0.0
    last_ns: float = 0.0
    counts: tuple[int, ...] = ()
    queued: tuple[float, ...] = ()

    @property
    def has_longer(self) -> bool:
        """Whether the last bin counts what is longer as well."""
        return high_word(sum(self.counts)) == "p99"


def latency_of(table: EventTable, parts: Sequence[Parts], executions: Executions) -> Latency | None:
    """Return the parts of a graph's latency; None if none is in the trace.

    Args:
        table: The events of the graph.
        parts: Their parts, by lane.
        executions: The executions of the graph.
    """
    timed = executions.is_timed
    index, submitted = executions.index[timed], executions.submitted_ns[timed]
    latency = executions.latency_ns
    # The executions are laid one after the other, each from its submission to its completion.
    begin = np.cumsum(latency.astype(np.float64)) - latency
    fits = begin + latency < _MAX_NS
    index, submitted, latency = index[fits], submitted[fits], latency[fits]
    if not len(index):
        return None
    ends = np.cumsum(latency)
    begins = ends - latency
    starts, stops = [], []

    def serve(execution: Ints, start_ns: Ints, end_ns: Ints) -> None:
        at = np.minimum(np.searchsorted(index, execution), len(index) - 1)
        known = index[at] == execution
        at = at[known]
        shift = begins[at] - submitted[at]
        starts.append(np.clip(start_ns[known] + shift, begins[at], ends[at]))
        stops.append(np.clip(np.maximum(start_ns, end_ns)[known] + shift, begins[at], ends[at]))

    for own in parts:
        served = own.where((own.kind != TimeKind.WAITING) & ~table.is_open[own.row])
        serve(table.execution[served.row], served.start_ns, served.end_ns)
    for crossing in crossings_of(table.graph.plan).values():
        sent, came = carried(table, crossing)
        serve(table.execution[sent], table.end_ns[sent], table.end_ns[came])
    service = Cover(np.concatenate(starts), np.concatenate(stops)).within(begins, ends)
    queued = latency - service
    means = float(queued.mean()), float(service.mean())
    first, last = float(latency.min()), highest(latency)
    if len(latency) < _LEAST or last <= first:
        return Latency(*means)
    scaled = (np.minimum(latency, last) - first) / (last - first) * BINS
    place = np.minimum(scaled.astype(np.int64), BINS - 1)
    counts, total, waited = (
        np.bincount(place, weights, BINS) for weights in (None, latency, queued)
    )
    shares = np.divide(waited, total, out=np.zeros(BINS), where=total > 0)
    return Latency(*means, first, last, tuple(counts.tolist()), tuple(shares.tolist()))
