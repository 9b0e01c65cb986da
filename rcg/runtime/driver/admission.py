# SPDX-License-Identifier: Apache-2.0
"""Admission: how many executions in flight the memory cap allows.

The native core keeps a ledger: how many bytes of shared memory are claimed, and how many each
execution has at its peak. From completed executions this room learns what the next one will need,
and admits as many as fit beside the values that are held (results, and arrays that actors keep). Of
the first execution only the input is known; it runs alone if that is large. An estimate that is too
low only costs speed: a value without memory goes through the writer's stash.

It must not know how executions are submitted, nor how callers wait.
"""

from __future__ import annotations

from typing import Final, Protocol

# An input of more than this share of the cap has its execution go alone, until one is complete.
_LARGE_INPUT_SHARE: Final = 16
# What was learned from the largest execution fades by this share with each look at smaller ones.
_FADING: Final = 8
_NO_LIMIT: Final = 1 << 62


class Ledger(Protocol):
    """The counts of the native core; a ``Node`` has them."""

    def survey(self, seen: int, complete: int, submitted: int, /) -> tuple[int, int, int, int]:
        """Return bytes claimed, peak of those that are complete, live and peak of the others."""

    def expect(self, need_bytes: int, /) -> None:
        """Have readers leave room for an execution that needs this much."""


class Admission:
    """Learns what executions need. Any thread may use it: a stale answer is only a guess.

    Args:
        ledger: What the native core counts.
        cap_bytes: Most shared memory that the graph may hold.

    Attributes:
        need_bytes: What an execution is expected to have at its peak; 0 while nothing is known.
    """

    __slots__ = ("_cap_bytes", "_ledger", "_seen", "need_bytes")

    def __init__(self, ledger: Ledger, cap_bytes: int) -> None:
        self._ledger = ledger
        self._cap_bytes = cap_bytes
        self._seen = 0
        self.need_bytes = 0

    def room(self, submitted: int, complete: int) -> int:
        """Return how many executions fit beside each other now; at least one.

        Args:
            submitted: How many executions were submitted so far.
            complete: How many of them are complete.
        """
        claimed, peak, live, most = self._ledger.survey(self._seen, complete, submitted)
        if complete > self._seen:
            self._seen = complete
            self._learn(max(peak, self.need_bytes - self.need_bytes // _FADING))
        if not complete and most * _LARGE_INPUT_SHARE > self._cap_bytes:
            return 1
        need = max(self.need_bytes, most)
        if not need:
            return _NO_LIMIT
        held = max(0, claimed - live)
        return max(1, (self._cap_bytes - held) // need)

    def _learn(self, need_bytes: int) -> None:
        if need_bytes != self.need_bytes:
            self.need_bytes = need_bytes
            self._ledger.expect(need_bytes)
