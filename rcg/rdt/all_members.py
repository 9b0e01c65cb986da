# SPDX-License-Identifier: Apache-2.0
"""The communicator of all members of a group, which collectives called in methods use.

The members open it when each of them first calls a collective. Its store, at the first member's
endpoint, reports each member that dies or leaves, and that ends what waits for it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from rcg import cluster
from rcg.comm.base import LOOPBACK, Communicator, Membership, Store
from rcg.errors import ActorDiedError, CommError, GroupAborted
from rcg.log import Log
from rcg.options import Deadline
from rcg.rdt.groups import OPEN_TIMEOUT_S, End, Group, Reach
from rcg.runtime.control.stores import WHO_LEFT
from rcg.threads import start_thread

_T = TypeVar("_T")

_log = Log()

_ALL_TIMEOUT_S: Final = 600.0  # for all members to call their first collective
_NEWS_S: Final = 1.0  # for the report that a member is gone
_LOOK_S: Final = 2.0  # between two looks whether those that have not come are alive


class AllMembers(End):
    """One end of the communicator of all members. Any thread.

    Args:
        group: The group.
        reach: How the first member, which has the store, is reached.
    """

    def __init__(self, group: Group, reach: Reach) -> None:
        super().__init__(self._member, group.backend, self._open_store)
        self._group = group
        self._reach = reach
        self._meeting = f"{group.name}/{group.token}"
        self._store: Any = None  # while this end is open
        self._is_over = threading.Event()

    def abort(self, why: str) -> None:
        """End what runs, and refuse everything later; any thread."""
        super().abort(why)
        self._is_over.set()
        if self._store is not None:
            self._store.close()  # which ends the waits for other members, too

    def run(self, call: Callable[[Communicator], _T]) -> _T:
        """Use the communicator; see ``End``. If a member is gone, the error names it."""
        try:
            return super().run(call)
        except CommError as error:  # a connection may break before the report of the member comes
            if not self._is_over.wait(_NEWS_S):
                self.abort(str(error))
                raise
            raise GroupAborted(self._aborted) from None

    def _lose(self, who: str = "") -> None:
        """End because a member is gone; the first one, if its store is."""
        name = self._group.name
        self.abort(f"group {name}: {who or self._group.labels[0]} has died or left it")

    @contextlib.contextmanager
    def _open_store(self) -> Iterator[Any]:
        """Open the store, and leave it open for as long as this end is, unless opening fails."""
        group = self._group
        first = self._reach.holder(group.keys[0], group.secrets[0])
        try:
            store = self._reach.open_store(first, self._meeting, group.labels[group.rank])
        except (CommError, ActorDiedError):
            self._lose()
            raise GroupAborted(self._meeting) from None
        self._store = store
        try:
            if self._aborted:  # meanwhile
                store.close()
            thread = threading.Thread(
                target=self._watch, args=(store,), name="rcg-group-watch", daemon=True
            )
            start_thread(thread, "to watch the members of a group")
            yield store
        except BaseException as error:
            self._store = None
            if isinstance(error, GroupAborted):  # as the store says: it has gone
                self._lose()
            store.close()
            raise

    def _watch(self, store: Any) -> None:
        who = ""
        with contextlib.suppress(CommError):
            who = store.get([WHO_LEFT])[0].decode()
        if self._store is store:
            self._lose(who)  # first, since what waits for the store takes its end for news
        store.close()

    def _member(self, store: Store) -> Membership:
        """Wait for all members; return this rank.

        Raises:
            GroupAborted: A member has died before it came.
            TimeoutError: Some have not come.
        """
        group = self._group
        here = cluster.node_id().encode()
        keys = [f"node of {rank}" for rank in range(len(group.keys))]
        store.set(keys[group.rank], here)
        deadline = Deadline(_ALL_TIMEOUT_S)
        has_warned = False
        nodes = None
        while nodes is None:
            try:
                nodes = store.get(keys, min(_LOOK_S, deadline.remaining_s() or 0.0))
            except TimeoutError:
                missing = [rank for rank, key in enumerate(keys) if not store.has([key])]
                who = ", ".join(group.labels[rank] for rank in missing)
                if deadline.expired:
                    raise TimeoutError(
                        f"group {group.name}: {who} called no collective in {_ALL_TIMEOUT_S:g} s"
                    ) from None
                self._check_lives(missing, store)
                if missing and not has_warned:
                    has_warned = True
                    _log.warning("rcg: group %s waits for %s to call a collective", group.name, who)
        host = LOOPBACK if set(nodes) == {here} else cluster.node_ip()
        return Membership(self._meeting, group.rank, group.labels, store, OPEN_TIMEOUT_S, host)

    def _check_lives(self, ranks: list[int], store: Store) -> None:
        group = self._group
        for rank in ranks:
            if self._reach.has_died(group.keys[rank], group.secrets[rank]):
                # Before this one leaves, so that the others hear of that one: what has been
                # answered was also read, and not lost behind the end of a connection.
                store.set(WHO_LEFT, group.labels[rank].encode())
                store.has([WHO_LEFT])
                self._lose(group.labels[rank])
                raise GroupAborted(group.name) from None
