# SPDX-License-Identifier: Apache-2.0
"""The flight recorder of one process of a graph, read by any other process.

The native core always writes one 64-byte event per op into a ring in shared memory. Reading does
not affect the writer: a reader remembers its position and learns how many events it lost.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np

from rcg import _native
from rcg.trace.model import EVENT, Events


class State(enum.IntEnum):
    """The state of a process, according to its recorder."""

    IDLE = _native.NOW_IDLE
    RUNNING = _native.NOW_RUNNING
    WAITING = _native.NOW_WAITING


class Now(NamedTuple):
    """What a process does now.

    Attributes:
        pid: Its process id; 0 before it has started.
        op: Index in its program of the op that it is executing, or executed last.
        execution: Index of the execution of that op.
        since_ns: When that op began; 0 before the first one.
        state: Its state.
        ring: Number of the ring that it waits for, if it waits.
        events: Number of events that it has recorded.
    """

    pid: int
    op: int
    execution: int
    since_ns: int
    state: State
    ring: int
    events: int


class Counters(NamedTuple):
    """The counters of a process.

    Attributes:
        waits: Number of waits.
        waited_ns: Total time of waiting.
        shared_bytes: Shared memory that its arena uses.
    """

    waits: int
    waited_ns: int
    shared_bytes: int


def now_of(member: _native.Member, number: int) -> Now:
    """Return what the member with a number does now, also if it is stuck or dead."""
    pid, op, execution, since_ns, state, ring, events = member.now(number)
    return Now(pid, op, execution, since_ns, State(state), ring, events)


def counters_of(member: _native.Member, number: int) -> Counters:
    """Return the counters of the member with a number."""
    return Counters(*member.counters(number))


def events_from(records: bytes) -> Events:
    """Return the native core's records as rows of ``EVENT``, sorted by start."""
    events = np.frombuffer(records, EVENT)
    # A span is written when it ends, after the spans inside it, and threads of a driver interleave.
    order = np.argsort(events["start_ns"], kind="stable")
    return events[order]


class Recorder:
    """Reads the events of one member, from where the last ``drain`` ended."""

    def __init__(self, member: _native.Member, number: int, first: int = 0) -> None:
        self._member = member
        self._number = number
        self._next = first
        self.lost = 0

    def drain(self) -> Events:
        """Return the events since the last call. Events that were overwritten count as ``lost``."""
        self._next, lost, records = self._member.events(self._number, self._next)
        self.lost += lost
        return events_from(records)
