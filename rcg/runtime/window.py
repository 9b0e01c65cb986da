# SPDX-License-Identifier: Apache-2.0
"""The window: which executions are under way, and whose results still wait. Pure bookkeeping.

An execution is *submitted*, then *complete* when every output has arrived at the driver, and
*released* when every output was fetched or its ref dropped, which may be before it is complete.
Executions complete in order and are released in any.

By default an execution stops being in flight when it is complete: a full window means waiting, and
only the buffer of unfetched results has a hard limit. A user who set the limit himself is told at
once instead, and then unfetched executions count as in flight, as in Ray.
"""

from __future__ import annotations

from rcg.errors import CapacityExceededError

__all__ = ["Window"]


class Window:
    """Counts executions. Not thread-safe: the caller holds its lock.

    Args:
        limit: Executions that may be in flight.
        buffered_limit: Complete executions whose results may wait to be fetched.
        outputs: Outputs per execution that are fetched or dropped one by one.
        is_strict: Whether unfetched executions count as in flight.
        capacity: The limit that the user set, if the channels hold fewer than that.
    """

    __slots__ = (
        "_buffered_limit",
        "_capacity",
        "_is_strict",
        "_left",
        "_outputs",
        "complete",
        "free_until",
        "limit",
        "submitted",
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
        self.limit = limit
        self._capacity = limit if capacity is None else capacity
        self._buffered_limit = buffered_limit
        self._outputs = (1 << outputs) - 1  # a bit for each
        self._is_strict = is_strict
        self._left: dict[int, int] = {}
        self.submitted = 0
        self.complete = 0
        # So many may be submitted before anybody has to look again; see `look`.
        self.free_until = 0

    @property
    def released(self) -> int:
        """Executions whose every output was fetched or dropped."""
        return self.submitted - len(self._left)

    def buffered(self, complete: int) -> int:
        """Return how many of the first ``complete`` executions were not released."""
        return sum(1 for execution in list(self._left) if execution < complete)

    @property
    def is_full(self) -> bool:
        """Whether the next execution has to wait for one to complete."""
        return self.submitted - self.complete >= self.limit

    def look(self) -> None:
        """Work out how many more may be submitted before the next look.

        ``execute`` compares one number; what completed or was released since is counted only when
        that number is reached.

        Raises:
            CapacityExceededError: Waiting would not help: the user has to fetch or drop a ref
                first. Nothing was changed.
        """
        unfetched = self.submitted - self.released
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
        self.free_until = min(self.complete + self.limit, self.released + most)

    def submit(self) -> int:
        """Count a new execution and return its index."""
        index = self.submitted
        self._left[index] = self._outputs
        self.submitted = index + 1
        return index

    def arrive(self, complete: int) -> None:
        """Note that the first ``complete`` executions are complete."""
        if complete > self.complete:
            self.complete = complete

    def release(self, execution: int, output: int = 0) -> None:
        """Note that an output of an execution was fetched or dropped; once is as good as twice."""
        left = self._left.get(execution)
        if left is None:
            return
        left &= ~(1 << output)
        if left:
            self._left[execution] = left
        else:
            del self._left[execution]
