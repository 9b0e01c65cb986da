# SPDX-License-Identifier: Apache-2.0
"""The communicator groups of one process in one graph: opening, aborting and closing them.

The loop's thread opens the groups before its first execution, all processes in the order of the
plan, so nobody waits in a circle. The control socket's thread aborts them when the graph ends or a
member dies: poison cannot reach a thread inside a communicator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from rcg import cluster
from rcg.comm import Communicator, Membership, Store
from rcg.comm.base import LOOPBACK
from rcg.error_text import describe_error, shielding
from rcg.errors import CommError, GroupAborted, RcgError
from rcg.ir.channels import Group
from rcg.runtime.actor import failpoints
from rcg.serialization.foreign import import_torch

_OPERATIONS: Final = frozenset(
    ("send", "recv", "broadcast", "allreduce", "allgather", "reducescatter", "reduce", "gather")
)


class Opener(Protocol):
    """Opens one process's end of a group; it travels to the process."""

    @property
    def devices(self) -> frozenset[str]:
        """The types of devices whose tensors the group takes."""

    @property
    def is_queued(self) -> bool:
        """See ``Communicator.is_queued``."""

    def open(self, membership: Membership) -> Communicator:
        """See ``Communicator.open``."""


@dataclass(frozen=True, slots=True)
class GroupStart:
    """What a process needs to open a group that it is in."""

    group: Group
    labels: tuple[str, ...]  # what errors call each member
    opener: Opener  # a registered communicator, or a user's
    is_across_nodes: bool = False


class _Announced:
    """A communicator whose operations are failpoints."""

    def __init__(
        self, communicator: Communicator, process: str, execution_now: Callable[[], int]
    ) -> None:
        self._communicator = communicator
        self._process = process
        self._execution_now = execution_now

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._communicator, name)
        if name not in _OPERATIONS:
            return found

        def announced(*args: Any) -> Any:
            failpoints.reach(failpoints.Failpoint("transfer", self._process, self._execution_now()))
            return found(*args)

        return announced


# The graph, the process and the group of each group that queues on a device of this process. The
# threads of several loops make entries: adding one and removing it are single steps.
_queued: Final[set[tuple[str, str, str]]] = set()


def graphs_that_queue() -> list[str]:
    """Return the ids of the graphs whose open groups in this process queue on a device."""
    return sorted({graph_id for graph_id, _, _ in _queued.copy()})


class OpenGroups:
    """The groups of one process, in the order of the plan; see ``channels.base.Groups``."""

    def __init__(
        self,
        process: str,
        starts: Sequence[GroupStart],
        open_store: Callable[[str], Store],
        graph_id: str = "",
    ) -> None:
        self._process = process
        self._starts = {start.group.id: start for start in starts}
        self._open_store = open_store
        self._graph_id = graph_id
        self._open: dict[str, Communicator] = {}
        self._store: Store | None = None
        self._aborted: str | None = None

    def __bool__(self) -> bool:
        return bool(self._starts)

    @property
    def are_open(self) -> bool:
        """Whether there is something to close."""
        return bool(self._open)

    def members(self, group: str) -> tuple[str, ...]:
        """See ``channels.base.Groups``."""
        return self._starts[group].group.members

    def labels(self, group: str) -> tuple[str, ...]:
        """See ``channels.base.Groups``."""
        return self._starts[group].labels

    def communicator(self, group: str) -> Communicator:
        """See ``channels.base.Groups``."""
        return self._open[group]

    def devices(self, group: str) -> frozenset[str]:
        """See ``channels.base.Groups``."""
        return self._starts[group].opener.devices

    def open(self, timeout_s: float | None, execution_now: Callable[[], int] = int) -> None:
        """Open all groups; the loop's thread.

        Args:
            timeout_s: How long each may take.
            execution_now: Returns the execution that runs, for failpoints.

        Raises:
            TimeoutError, CommError: A group could not be built. What was built is closed.
        """
        try:
            if self._starts:
                import_torch()  # channels find it loaded, whatever the communicator imports
            for name, start in self._starts.items():
                opened = self._open_one(name, start, timeout_s)
                if failpoints.on_failpoint is not None:
                    announced = _Announced(opened, self._process, execution_now)
                    opened = cast("Communicator", announced)
                self._open[name] = opened
                if start.opener.is_queued:
                    _queued.add((self._graph_id, self._process, name))
                if self._aborted is not None:
                    raise GroupAborted(self._aborted, group=name)
        except BaseException:
            self.close()
            raise

    def _open_one(self, name: str, start: GroupStart, timeout_s: float | None) -> Communicator:
        rank = start.group.members.index(self._process)
        store = self._store = self._open_store(name)
        try:
            if self._aborted is not None:
                raise GroupAborted(self._aborted, group=name)
            host = cluster.node_ip() if start.is_across_nodes else LOOPBACK
            return start.opener.open(Membership(name, rank, start.labels, store, timeout_s, host))
        except (RcgError, TimeoutError):
            raise
        except Exception as error:
            raise CommError(
                f"the communicator of {name} could not be opened: {describe_error(error)}",
                group=name,
                rank=rank,
            ) from error
        finally:
            self._store = None
            store.close()

    def abort(self, why: str) -> None:
        """End every pending operation, and opening; any thread, idempotent."""
        self._aborted = why
        store = self._store
        if store is not None:
            store.close()
        for communicator in list(self._open.values()):
            with shielding():  # it may be the user's
                communicator.abort(why)

    def close(self) -> None:
        """Close all groups; the loop's thread, when no operation is pending."""
        while self._open:
            name, communicator = self._open.popitem()
            try:
                with shielding():  # it may be the user's
                    communicator.destroy()
            finally:  # until then something may still be queued
                _queued.discard((self._graph_id, self._process, name))
