# SPDX-License-Identifier: Apache-2.0
"""The window: which executions are in flight, and which results are not fetched. Pure bookkeeping.

An execution is *submitted*, then *complete* when every output has arrived at the driver, and
*released* when every output was fetched or its ref dropped, which may be before it is complete.
Executions complete in order and are released in any.

By default an execution stops being in flight when it is complete: ``execute`` waits while the
window is full, and only the buffer of unfetched results has a hard limit. If the user set the
limit, ``execute`` raises at once, and unfetched executions count as in flight, as in Ray.

There is no lock, because users' code may run at any point and may execute again. The counts only
grow, so a result from stale counts allows too few executions, never too many, and only causes
another check. The native core compares the limit with the current number when it submits.
"""

from __future__ import annotations

from rcg.errors import CapacityExceededError


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
                "using rcg.get before submitting more requests or increase "
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
