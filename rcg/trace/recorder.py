# SPDX-License-Identifier: Apache-2.0
"""The flight recorder of one process of a graph, read from any other.

The native core writes one 64-byte event per op into a ring in shared memory, always. Reading takes
nothing from the writer: a reader remembers how far it came and learns how many it lost.
"""

from __future__ import annotations

from typing import NamedTuple

from rcg import _native

__all__ = ["Event", "Recorder"]


class Event(NamedTuple):
    """One op of one execution.

    Attributes:
        op: Index of the op in the program of its process.
        execution: Index of the execution.
        start_ns: When it began, on the monotonic clock.
        end_ns: When it ended, which is when the next one began in a loop.
        waited_ns: How much of it was waiting.
        bytes: Bytes that were read or written.
    """

    op: int
    execution: int
    start_ns: int
    end_ns: int
    waited_ns: int
    bytes: int


class Recorder:
    """Reads the events of one member, from where the last ``drain`` ended.

    Args:
        member: This process in the graph.
        number: Whose events.
    """

    def __init__(self, member: _native.Member, number: int) -> None:
        self._member = member
        self._number = number
        self._next = 0
        self.lost = 0

    def drain(self) -> list[Event]:
        """Return the events since the last call; those overwritten meanwhile count as ``lost``."""
        self._next, lost, events = self._member.events(self._number, self._next)
        self.lost += lost
        return [Event(*event) for event in events]
