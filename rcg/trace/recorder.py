# SPDX-License-Identifier: Apache-2.0
"""The flight recorder of one process of a graph, read from any other.

The native core writes one 64-byte event per op into a ring in shared memory, always. Reading takes
nothing from the writer: a reader remembers how far it came and learns how many it lost.
"""

from __future__ import annotations

import numpy as np

from rcg import _native
from rcg.trace.trace import EVENT, Events

__all__ = ["Recorder", "events_from"]


def events_from(records: bytes) -> Events:
    """Return the native core's records as rows of ``EVENT``, in the order they began."""
    events = np.frombuffer(records, EVENT)
    # A span is written when it ends, after what it holds; threads of a driver write as they come.
    order = np.argsort(events["start_ns"], kind="stable")
    return events[order]


class Recorder:
    """Reads the events of one member, from where the last ``drain`` ended.

    Args:
        member: This process in the graph.
        number: Whose events.
        first: Number of the first event to read.
    """

    def __init__(self, member: _native.Member, number: int, first: int = 0) -> None:
        self._member = member
        self._number = number
        self._next = first
        self.lost = 0

    def drain(self) -> Events:
        """Return the events since the last call; those overwritten meanwhile count as ``lost``."""
        self._next, lost, records = self._member.events(self._number, self._next)
        self.lost += lost
        return events_from(records)
