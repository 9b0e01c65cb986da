# SPDX-License-Identifier: Apache-2.0
"""The flight recorder of one process of a graph, read from any other.

The native core writes one 64-byte event per op into a ring in shared memory, always. Reading takes
nothing from the writer: a reader remembers how far it came and learns how many it lost.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np

from rcg import _native
from rcg.trace.model import EVENT, Events

__all__ = ["Counters", "Now", "Recorder", "State", "counters_of", "events_from", "now_of"]


class State(enum.IntEnum):
    """What a process does as far as its recorder knows."""

    IDLE = _native.NOW_IDLE
    RUNNING = _native.NOW_RUNNING
    WAITING = _native.NOW_WAITING


class Now(NamedTuple):
    """What a process does at this moment.

    Attributes:
        pid: Its process id; 0 before it has started.
        op: Index of the op in its program that it is in, or was in last.
        execution: Of which execution.
        since_ns: When that began; 0 before the first.
        state: What it does.
        ring: Number of the ring that it waits at, if it waits.
        events: How many it has recorded.
    """

    pid: int
    op: int
    execution: int
    since_ns: int
    state: State
    ring: int
    events: int


class Counters(NamedTuple):
    """What a process has counted so far.

    Attributes:
        waits: How often it waited.
        waited_ns: For how long.
        shared_bytes: Shared memory that its arena takes.
    """

    waits: int
    waited_ns: int
    shared_bytes: int


def now_of(member: _native.Member, number: int) -> Now:
    """Return what a member does now, also one that is stuck or dead.

    Args:
        member: This process in the graph.
        number: Whose.
    """
    pid, op, execution, since_ns, state, ring, events = member.now(number)
    return Now(pid, op, execution, since_ns, State(state), ring, events)


def counters_of(member: _native.Member, number: int) -> Counters:
    """Return what a member has counted; see ``now_of`` for the arguments."""
    return Counters(*member.counters(number))


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
