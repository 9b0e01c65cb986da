# SPDX-License-Identifier: Apache-2.0
"""The groups that a process is a member of, and the connections through which tensors move.

Tensors move between two members, in one direction: the *pair* of a holder and a process that pulls
from it. A pair has a communicator of its own, of two ranks, which both open when they first need
it. So a group costs nothing until it is used, all of its pairs work at the same time, and an actor
that dies takes no other pair with it.

A pair belongs to the connection by which the one pulls from the other, and ends with it. So both
ends agree which pair they mean, and after a failure the next connection has a new one. The two meet
through a store at the holder's endpoint, under the number of the question that was the first to
need the pair.

One message is under way at a time, however large. The memory of a tensor that is sent may be freed:
then Gloo ends the process if other messages wait behind that one (seen with PyTorch 2.13).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from rcg import cluster
from rcg.comm.base import LOOPBACK, Communicator, Membership, Store
from rcg.comm.registry import find_communicator
from rcg.errors import CommError, GroupAborted, OutOfThreads, Unavailable
from rcg.log import Log
from rcg.rdt.runs import receive_in_runs, send_in_runs
from rcg.threads import LockTaken, held, start_thread
from rcg.wire.messages import JoinGroup

_T = TypeVar("_T")

_log = Log()

OPEN_TIMEOUT_S: Final = 30.0
_HOLDER: Final = 0
_PULLER: Final = 1
_MOST_ENDED: Final = 1000


class Reach(Protocol):
    """How a process reaches other members of its groups; a member is given by its ``Holder``."""

    def holder(self, key: str, secret: str) -> Any:
        """Return the member of a store's id."""

    def has_died(self, key: str, secret: str) -> bool:
        """Return whether a member has died."""

    def open_store(self, holder: Any, name: str, who: str = "") -> Any:
        """Return the store of this name at a member's endpoint.

        It is a context manager that closes it; unless this rank says who it is.
        """


@dataclass(slots=True)
class Known:
    """A group, as any process may know it.

    Attributes:
        name: Its name.
        backend: Its transport.
        keys: The id of each member's store.
        secrets: The secret of each.
    """

    name: str
    backend: str
    keys: tuple[str, ...]
    secrets: tuple[str, ...]


@dataclass(slots=True)
class Group(Known):
    """A group, as one of its members knows it.

    Attributes:
        token: Tells it from others that had or will have this name.
        rank: Of this member.
        labels: What errors call each member.
        pairs: Those that were needed so far, by their connections.
        all_members: This end of the communicator of all members, once it was needed.
        lost: Why other members are none any more, by the ids of their stores.
    """

    token: str
    rank: int
    labels: tuple[str, ...]
    pairs: dict[object, Pair] = field(default_factory=dict)
    all_members: End | None = None
    lost: dict[str, str] = field(default_factory=dict)


class End:
    """This process's end of a communicator that is opened when it is first used. Any thread.

    Args:
        membership: This rank.
        backend: The transport.
        open_store: Returns the store where the ranks meet, which is used as a context manager.
    """

    def __init__(
        self, membership: Callable[[Store], Membership], backend: str, open_store: Callable[[], Any]
    ) -> None:
        self._membership = membership
        self._backend = backend
        self._open_store = open_store
        self._communicator: Communicator | None = None
        self._using = threading.Lock()
        self._aborted = ""

    def abort(self, why: str) -> None:
        """End what runs, and refuse everything later; any thread.

        The communicator goes when what runs has ended.
        """
        self._aborted = self._aborted or why
        communicator = self._communicator
        if communicator is None:
            return
        try:
            communicator.abort(why)
        except Exception:  # noqa: BLE001 - it may be the user's
            _log.exception("rcg: a communicator of %s cannot be aborted", self._backend)
        thread = threading.Thread(target=self._close, name="rcg-group-end", daemon=True)
        try:
            start_thread(thread, "to close a communicator")  # which may take a while
        except OutOfThreads:
            self._close()

    def run(self, call: Callable[[Communicator], _T]) -> _T:
        """Use the communicator, which is opened if need be; the other threads wait."""
        try:
            with self._using:
                return call(self._open())
        finally:
            if self._aborted:
                self._close()

    def _close(self) -> None:
        """Close the communicator, unless a thread uses it: that one does so in the end."""
        communicator = None
        with contextlib.suppress(LockTaken), held(self._using, 0):
            communicator, self._communicator = self._communicator, None
        if communicator is not None:
            try:
                communicator.destroy()
            except Exception:  # noqa: BLE001 - it may be the user's
                _log.exception("rcg: a communicator of %s cannot be closed", self._backend)

    def _open(self) -> Communicator:
        if self._aborted:
            raise GroupAborted(self._aborted)
        if self._communicator is None:
            try:
                with self._open_store() as store:
                    registered = find_communicator(self._backend)
                    self._communicator = registered.open(self._membership(store))
            except GroupAborted:
                if not self._aborted:
                    raise
            if self._aborted:  # meanwhile
                raise GroupAborted(self._aborted)
        return self._communicator


class Pair(End):
    """One end of the way from a holder, which is rank 0, to a process that pulls."""

    def send(self, payloads: Sequence[Any], check: Callable[[], object] = bool) -> None:
        """Send the tensors of an object.

        Args:
            payloads: The tensors, of uint8 [n].
            check: Called before memory is read; what it raises is raised.
        """

        def send(_: int, take: Callable[[], Any]) -> None:
            self.run(lambda communicator: communicator.send([take()], _PULLER))

        send_in_runs(payloads, check, send)

    def recv(
        self, sizes: Sequence[int], device: str, into: Sequence[Any] | None = None
    ) -> list[Any]:
        """Receive the tensors of an object; returns tensors of uint8 [n] of these sizes.

        Args:
            sizes: The bytes of each.
            device: The type of the device of all, as where they were made: ``"cpu"``, ``"cuda"``.
            into: Where they are received, of these sizes; None for fresh memory. Small ones share
                that: it is free when none of them is needed any more.
        """

        def recv(memory: Any) -> None:
            self.run(lambda communicator: communicator.recv([memory], _HOLDER))

        return receive_in_runs(sizes, device, into, recv)


class _Ended(NamedTuple):
    """A group that this process is no member of any more."""

    name: str
    why: str
    backend: str
    keys: tuple[str, ...]


class MemberGroups:
    """The groups of this process. Any thread."""

    def __init__(self, key: str, reach: Reach) -> None:
        self._key = key
        self._reach = reach
        self._groups: dict[str, Group] = {}
        # Why groups ended, for those who ask for one: the newest.
        self._ended: dict[str, _Ended] = {}
        self._lock = threading.Lock()

    def all(self) -> list[Group]:
        """Return the groups, the oldest first."""
        with self._lock:
            return list(self._groups.values())

    def join(self, message: JoinGroup) -> str:
        """Become a member; returns why that is not possible, or ''."""
        try:
            find_communicator(message.backend)
            if message.backend == "gloo":
                from rcg.comm.gloo_group import distributed

                distributed()
        except (Unavailable, ValueError) as error:
            return str(error)
        with self._lock:
            if message.group in self._groups:
                return f"there is a group of the name {message.group!r} already"
            self._groups[message.group] = Group(
                *(message.group, message.backend, message.keys, message.secrets),
                *(message.token, message.rank, message.labels),
            )
        return ""

    def leave(self, name: str, why: str = "it was destroyed", token: str = "") -> None:
        """Close a group; without effect if there is none of that name, and of that token if any."""
        with self._lock:
            group = self._groups.get(name)
            if group is not None and token not in ("", group.token):
                return
            if group is not None:
                del self._groups[name]
                self._ended[name] = _Ended(name, why, group.backend, group.keys)
            while len(self._ended) > _MOST_ENDED:
                del self._ended[next(iter(self._ended))]
        if group is not None:
            for end in [*group.pairs.values(), *filter(None, [group.all_members])]:
                end.abort(f"group {name}: {why}")

    def with_member(self, key: str, backend: str) -> list[Group]:
        """Return the groups of this transport that a store's process is a member of, too."""
        return [
            each
            for each in self.all()
            if each.backend == backend and key in each.keys and key not in each.lost
        ]

    def lose(self, name: str, key: str, why: str) -> None:
        """Note that another process is no member of a group any more; it goes on without."""
        with self._lock:
            group = self._groups.get(name)
            if group is not None:
                group.lost[key] = why

    def why_ended(self, key: str, backend: str) -> str:
        """Return what became of the newest group with a store's process; "" if there was none."""
        with self._lock:
            lost = [
                each.lost[key]
                for each in self._groups.values()
                if each.backend == backend and key in each.lost
            ]
            if lost:
                return lost[-1]
            found = [
                each
                for each in self._ended.values()
                if each.backend == backend and key in each.keys
            ]
        return f"group {found[-1].name} was closed: {found[-1].why}" if found else ""

    def end_pairs(self, connection: object, why: str) -> None:
        """End the pairs of a connection, which has ended."""
        with self._lock:
            found = [group.pairs.pop(connection, None) for group in self._groups.values()]
        for pair in found:
            if pair is not None:
                pair.abort(why)

    def pair_for(
        self,
        name: str,
        holder: Any,
        other: str,
        connection: object,
        number: int,
        *,
        is_holder: bool,
        is_across_nodes: bool,
    ) -> Pair:
        """Return one end of a pair.

        Args:
            name: The group.
            holder: The process that holds the tensors; the pair's ends meet there.
            other: The id of the other process's store.
            connection: The connection by which tensors are asked for.
            number: Of the question.
            is_holder: Whether this process holds them.
            is_across_nodes: Whether the other process is on another node.

        Raises:
            CommError: This process is not a member of the group, or the other one is not.
        """
        with self._lock:
            group = self._group(name)
            if other not in group.keys:
                raise CommError(f"group {name}: the other process is not a member", group=name)
            pair = group.pairs.get(connection)
            if pair is None:
                rank = _HOLDER if is_holder else _PULLER
                here, there = group.labels[group.rank], group.labels[group.keys.index(other)]
                labels = (here, there) if is_holder else (there, here)
                puller = other if is_holder else self._key
                meeting = f"{name}/{group.token}/{puller}/{number}"

                def membership(store: Store) -> Membership:
                    host = cluster.node_ip() if is_across_nodes else LOOPBACK
                    return Membership(meeting, rank, labels, store, OPEN_TIMEOUT_S, host)

                pair = group.pairs[connection] = Pair(
                    membership, group.backend, lambda: self._reach.open_store(holder, meeting)
                )
            return pair

    def all_members(self, name: str, make: Callable[[Group, Reach], End]) -> End:
        """Return this process's end of the communicator of all members; ``make`` makes it once.

        Raises:
            CommError: This process is not a member of the group.
        """
        with self._lock:
            group = self._group(name)
            if group.all_members is None:
                group.all_members = make(group, self._reach)
            return group.all_members

    def _group(self, name: str) -> Group:
        """Return the group of a name. The caller has the lock."""
        group = self._groups.get(name)
        if group is None and name in self._ended:
            raise CommError(f"group {name} was closed: {self._ended[name].why}", group=name)
        if group is None:
            raise CommError(
                f"group {name}: this process is not a member, or not any more since it has "
                "started again. create_collective_group makes a new group",
                group=name,
            )
        return group
