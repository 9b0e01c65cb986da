# SPDX-License-Identifier: Apache-2.0
"""Rendezvous in a trace: when the processes that exchange tensors arrived, and began to move them.

No end of a transfer over a tensor channel can begin to move bytes before all of them arrived::

    Write        | encodes | waits for the slowest reader | sends            |
    Read          | waits . . . . . . . . . . . . . . . .| receives  | decodes |
    slow Read                                    | waits  | receives    | decodes |
                                                 ^ the last end arrives
                                                          ^ the transfer begins   ^ ends

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

from rcg.ir.index import Place, Rendezvous, rendezvous_of
from rcg.trace.analysis.events import NONE, EventTable
from rcg.trace.analysis.intervals import MIN_INT64, Ints, Times


@dataclass(frozen=True, eq=False)
class Exchange:
    """When the tensors of a rendezvous were exchanged, as columns by execution.

    For a transfer ``rows`` has two columns, the Write and one Read; for a collective one per rank.
    It contains the executions of which all these events are in the trace.

    Attributes:
        rendezvous: The rendezvous.
        ends: The ends that the columns of ``rows`` are about.
        execution: The execution of each.
        rows: The rows of the events in the table [n, number of ends].
        begin_ns: When it began: when the last end arrived and all others knew it.
        end_ns: When the reader had the tensors, or the last rank its result.
        bytes: Bytes of the frame and the tensors; of a collective, the largest of a rank.
    """

    rendezvous: Rendezvous
    ends: tuple[Place, ...]
    execution: Ints
    rows: Ints
    begin_ns: Times
    end_ns: Times
    bytes: Ints


def last_of(waited: Ints, start: Times) -> Ints:
    """Return the position of the rank that arrived last in each collective.

    Args:
        waited: How long each rank waited [number of ranks, n].
        start: When its event began [number of ranks, n].
    """
    least = waited == waited.min(axis=0)
    last: Ints = np.argmax(np.where(least, start, MIN_INT64), axis=0)
    return last


def exchanges_of(table: EventTable) -> Iterator[Exchange]:
    """Yield the exchanges of a graph: those of each reader of a channel, and of each collective."""
    for each in rendezvous_of(table.graph.plan):
        if each.is_collective:
            yield _exchange(table, each, each.ends)
            continue
        writer, *readers = each.ends
        for reader in readers:
            yield _exchange(table, each, (writer, reader))


def _exchange(table: EventTable, rendezvous: Rendezvous, ends: tuple[Place, ...]) -> Exchange:
    execution = np.unique(table.execution[table.rows(*ends[0])])
    rows = np.array([table.find(*end, execution) for end in ends]).T.reshape(-1, len(ends))
    whole = (rows != NONE).all(axis=1)
    execution, rows = execution[whole], rows[whole]
    begin = table.waits_until(rows.T)
    if rendezvous.is_collective:
        stops, size = table.end_ns[rows.T], table.bytes[rows].max(axis=1, initial=0)
    else:
        stops, size = table.bounds[rows[:, 1:].T, 2], table.bytes[rows[:, 0]]
    begin_ns = begin.max(axis=0, initial=MIN_INT64)
    end_ns = np.maximum(stops.max(axis=0, initial=MIN_INT64), begin_ns)
    return Exchange(rendezvous, ends, execution, rows, begin_ns, end_ns, size)
