# SPDX-License-Identifier: Apache-2.0
"""The window: which executions are in flight, and how many more the memory allows. Bookkeeping.

An execution is *submitted*, then *complete* when every output has arrived at the driver, and
*released* when every output was fetched or its ref dropped, which may be before it is complete.
Executions complete in order and are released in any.

By default an execution stops being in flight when it is complete: ``execute`` waits while the
window is full, and only the buffer of unfetched results has a hard limit. If the user set the
limit, ``execute`` raises at once, and unfetched executions count as in flight, as in Ray.

There is no lock, because users' code may run at any point and may execute again. The counts only
grow, so a result from stale counts allows too few executions, never too many, and only causes
another check. The native core compares the limit with the current number when it submits.

*Admission* is the limit that the memory cap sets. The native core keeps a ledger: how many bytes of
shared memory are claimed, and how many each execution has at its peak. Completed executions show
what the next one will need, and as many are admitted as fit beside the values that are held
(results, and arrays that actors keep). Of the first execution only the input is known; it runs
alone if that is large. An estimate that is too low only costs speed: a value without memory goes
through the writer's stash.

This room must not know how executions are submitted, nor how callers wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from rcg.errors import CapacityExceededError

# An input of more than this share of the cap has its execution go alone, until one is complete.
_LARGE_INPUT_SHARE: Final = 16
# What was learned from the largest execution fades by this share with each look at smaller ones.
_FADING: Final = 8
_NO_LIMIT: Final = 1 << 62


class Window:
    """Counts executions. Any thread may use it, also in the middle of another's use.

    Args:
        limit: Executions that may be in flight.
        buffered_limit: Complete executions whose results may wait to be fetched.
        outputs: Outputs per execution that are fetched or dropped one by one.
        is_strict: Whether unfetched executions count as in flight.
        capacity: The limit that the user set, if the channels hold fewer than that.

    Attributes:
        wanted: A bit for each output.
        left: Those that were neither fetched nor dropped, by execution. The native core enters
            executions (``submit``) and takes outputs out (``release``), each in one step.
        free_until: How many may be submitted before ``look`` has to be called again.
    """

    __slots__ = (
        "_buffered_limit",
        "_capacity",
        "_is_strict",
        "admitted",
        "free_until",
        "left",
        "limit",
        "wanted",
    )

    def __init__(
        self,
        *,
        limit: int,
        buffered_limit: int,
        outputs: int,
        is_strict: bool = False,
        capacity: int | None = None,
    ) -> None:
        self.limit = self.admitted = limit
        self._capacity = limit if capacity is None else capacity
        self._buffered_limit = buffered_limit
        self._is_strict = is_strict
        self.wanted = (1 << outputs) - 1
        self.left: dict[int, int] = {}
        self.free_until = 0

    def buffered(self, complete: int) -> int:
        """Return how many of the first ``complete`` executions were not released."""
        return sum(1 for execution in list(self.left) if execution < complete)

    def look(self, submitted: int, complete: int, room: int | None = None) -> None:
        """Compute how many more executions may be submitted before the next call.

        ``execute`` compares one number; what completed or was released since is counted only when
        that number is reached.

        Args:
            submitted: How many executions were submitted, or had been a moment ago.
            complete: How many of them are complete, asked after that.
            room: How many may be in flight by their memory; None means no limit.

        Raises:
            CapacityExceededError: Waiting would not help: the user has to fetch or drop a ref
                first. Nothing was changed.
        """
        unfetched = len(self.left)  # counted now, so that no execution is refused wrongly
        if self._is_strict and unfetched >= self._capacity:
            raise CapacityExceededError(
                f"The compiled graph can't have more than {self._capacity} in-flight executions, "
                f"and you currently have {unfetched} in-flight executions. Retrieve an output "
                "using ray.get before submitting more requests or increase "
                "`_max_inflight_executions`. "
                "`dag.experimental_compile(_max_inflight_executions=...)`",
                limit=self._capacity,
            )
        if not self._is_strict and unfetched >= self.limit + self._buffered_limit:
            raise CapacityExceededError(
                f"{unfetched} executions were submitted and their results never fetched, and the "
                f"compiled graph keeps at most {self._buffered_limit} (`_max_buffered_results`): "
                "fetch some with rcg.get, or drop their refs, before submitting more.",
                limit=self._buffered_limit,
            )
        most = self._capacity if self._is_strict else self.limit + self._buffered_limit
        self.admitted = self.limit if room is None else min(self.limit, room)
        self.free_until = min(complete + self.admitted, submitted - unfetched + most)


class Reading:
    """The limit that the user set for results that a ``get`` passes over, as Ray's raises at it.

    Args:
        limit: How many executions may be buffered.
        left: Those that were neither fetched nor dropped.
    """

    __slots__ = ("_left", "_limit", "_next")

    def __init__(self, limit: int, left: Mapping[int, int]) -> None:
        self._limit, self._left = limit, left
        self._next = 0  # the first that no get has read up to

    def look(self, execution: int) -> None:
        """Note that the result of an execution is read, unless too many before it wait.

        Raises:
            CapacityExceededError: They do. Nothing was changed.
        """
        if execution < self._next:
            return
        passed = sum(1 for each in list(self._left) if each < execution)
        if passed >= self._limit:
            raise CapacityExceededError(
                f"The compiled graph can't have more than {self._limit} buffered results, and you "
                f"currently have {passed} buffered results. Call `ray.get()` on CompiledDAGRef's "
                "(or await on CompiledDAGFuture's) to retrieve results, or increase "
                "`_max_buffered_results` if buffering is desired, note that this will increase "
                "driver memory usage.",
                limit=self._limit,
            )
        self._next = execution + 1


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
        self._ledger, self._cap_bytes = ledger, cap_bytes
        self._seen = self.need_bytes = 0

    def room(self, submitted: int, complete: int) -> int:
        """Return how many executions fit beside each other now; at least one.

        Args:
            submitted: How many executions were submitted so far.
            complete: How many of them are complete.
        """
        claimed, peak, live, most = self._ledger.survey(self._seen, complete, submitted)
        if complete > self._seen:
            self._seen = complete
            learned = max(peak, self.need_bytes - self.need_bytes // _FADING)
            if learned != self.need_bytes:
                self.need_bytes = learned
                self._ledger.expect(learned)
        if not complete and most * _LARGE_INPUT_SHARE > self._cap_bytes:
            return 1
        need = max(self.need_bytes, most)
        if not need:
            return _NO_LIMIT
        held = max(0, claimed - live)
        return max(1, (self._cap_bytes - held) // need)
