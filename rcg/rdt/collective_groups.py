# SPDX-License-Identifier: Apache-2.0
"""Making groups of actors, so that tensors can go between them over a communicator.

The services of the actors make a group: it takes no call of the actors, so they may be busy, and it
outlives the process that made it. Any process that has the actors' handles can ask them which
groups they are in.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, TypeVar

from rcg import cluster
from rcg.callers import at_users_line
from rcg.comm.registry import find_communicator
from rcg.descriptors import out_of_descriptors
from rcg.error_text import describe_error, without_frames
from rcg.errors import ActorDiedError, CommError, PlacementError, RcgError, Unavailable
from rcg.options import Deadline
from rcg.rdt.connection import JOIN_TIMEOUT_S, Connection
from rcg.rdt.envelope import Holder
from rcg.rdt.groups import Known
from rcg.rdt.process import actor_of, check_reachable, holder_of, holder_with
from rcg.threads import run_together
from rcg.wire.messages import AskGroups, GroupChanged, GroupsHere, JoinGroup, LeaveGroup

_ANSWER_S: Final = 1.0  # an actor that takes longer is stopped


_G = TypeVar("_G", bound=Known)


def groups_of(handle: Any) -> list[Known] | None:
    """Return the groups of an actor; None if it is not reached.

    Raises:
        Transfer, TimeoutError: It does not answer: it is stopped.
    """
    try:
        return _ask(holder_of(handle), JOIN_TIMEOUT_S)
    except (ActorDiedError, PlacementError):
        return None


def usable_groups(groups: Sequence[_G]) -> Sequence[_G]:
    """Return those of several groups of the same actors that a transfer could use.

    One of which a member is gone, or runs again, has been replaced. If all have lost one, the
    newest is best.
    """
    if len(groups) < 2:
        return groups
    members = {pair for each in groups for pair in zip(each.keys, each.secrets, strict=True)}
    names = {key: _names_at(holder_with(key, secret)) for key, secret in members}

    def is_member(key: str, group: str) -> bool:
        found = names[key]
        return found is None or group in found

    return [each for each in groups if all(is_member(key, each.name) for key in each.keys)] or (
        groups[-1:]
    )


def _names_at(holder: Holder) -> frozenset[str] | None:
    """Return the names of an actor's groups; None if it does not answer, and may go on."""
    try:
        return frozenset(each.name for each in _ask(holder, _ANSWER_S))
    except (ActorDiedError, PlacementError):
        return frozenset()
    except (RcgError, OSError):
        return None


def _ask(holder: Holder, timeout_s: float) -> list[Known]:
    connection = Connection(holder, "", timeout_s)
    try:
        found = connection.ask(
            lambda number: AskGroups(number=number), GroupsHere, timeout_s=timeout_s
        )
    finally:
        connection.close()
    return list(map(Known, found.names, found.backends, found.keys, found.secrets))


_MOST_AT_ONCE: Final = 32  # actors that leave a group
_LEAVE_TIMEOUT_S: Final = 10.0  # until an actor that may be stopped answers
_READY_TIMEOUT_S: Final = 60.0  # for actors that are being created
_RETRY_S: Final = 0.02
_STOPPED_S: Final = 5.0  # an actor that takes so long is not asked again
_DEATH_S: Final = 0.5  # for Ray to tell of the death of an actor that it knows of
_BACKENDS: Final = {"torch_gloo": "gloo"}

_numbers: Final = itertools.count()
_made: Final[dict[str, CommunicatorHandle]] = {}


@dataclass(frozen=True)
class CommunicatorHandle:
    """A group of actors.

    Attributes:
        name: Its name.
        backend: Its transport.
        actors: Its members; the position of each is its rank.
    """

    name: str
    backend: str
    actors: tuple[Any, ...]

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The ids of its members, in hex, by their ranks."""
        return tuple([cluster.actor_id(_plain(each)) for each in self.actors])

    def get_rank(self, actor: Any) -> int:
        """Return the rank of an actor; -1 if it is not a member."""
        found = cluster.actor_id(_plain(actor))
        return self.ids.index(found) if found in self.ids else -1


@at_users_line
def create_collective_group(
    actors: Sequence[Any], backend: str, name: str | None = None
) -> CommunicatorHandle:
    """Make a group of actors, whose tensors then go between them over a communicator.

    It returns when all of them know it, also while they are busy. An actor may be in several
    groups; two actors should be in one group of each backend.

    Args:
        actors: Handles of rcg's actors; the position of each is its rank.
        backend: ``gloo`` (or ``torch_gloo``), or the name of another communicator.
        name: The group's name; by default one that no other group has.

    Raises:
        ValueError: An actor appears twice or is not one of rcg's, the name is in use, or there is
            no such backend.
        ActorDiedError: An actor is dead.
        PlacementError: An actor is on another node, and cannot listen for this one.
        Unavailable: An actor lacks a package that the backend needs.
        OutOfDescriptors, OutOfThreads: An actor has none left to listen or to answer.
    """
    chosen = _backend_of(backend)
    handles = [_plain(each) for each in actors]
    if not handles:
        raise ValueError("a collective group needs actors")
    ids = [cluster.actor_id(each) for each in handles]
    if len(set(ids)) != len(ids):
        raise ValueError(f"All actors must be unique, got: {list(actors)}")
    if name is not None and name in _made and _has_members(_made[name]):
        raise ValueError(f"there is a group of the name {name!r} already")
    group = name or f"group-{os.getpid()}-{next(_numbers)}"
    token = secrets.token_hex(8)
    connections: list[Connection] = []
    joined: list[Connection] = []  # or perhaps: Ctrl-C may come before the answer is known
    made: CommunicatorHandle | None = None
    try:
        deadline = Deadline(_READY_TIMEOUT_S)
        for handle in handles:
            connections.append(_connect(handle, deadline))
        labels = tuple(map(repr, handles))
        keys = tuple(each.holder.key for each in connections)
        known = tuple(each.holder.secret for each in connections)
        registered = find_communicator(chosen)
        user_class = (chosen, registered.devices, registered.cls)
        body = cluster.dumps(user_class) if registered.is_users else b""
        for rank, connection in enumerate(connections):

            def question(number: int, rank: int = rank) -> JoinGroup:
                return JoinGroup(
                    number=number,
                    group=group,
                    token=token,
                    backend=chosen,
                    rank=rank,
                    labels=labels,
                    keys=keys,
                    secrets=known,
                )

            joined.append(connection)
            answer = connection.ask(question, GroupChanged, body)
            if answer.trouble:
                joined.pop()
                raise Unavailable(f"{labels[rank]}: {answer.trouble}", transport=chosen)
        made = _made[group] = CommunicatorHandle(group, chosen, tuple(actors))
        for connection in connections:
            connection.close()
        return made
    except BaseException:
        if made is not None:
            _made.pop(group, None)
        for connection in joined:
            with contextlib.suppress(RcgError, OSError):
                _undo(connection, group, token)
        for connection in connections:
            connection.close()
        raise


def _undo(connection: Connection, group: str, token: str) -> None:
    """Have an actor leave a group that is not made after all."""
    # On the same connection, because it may not have joined yet.
    usable = Connection(connection.holder, "") if connection.is_closed else connection
    try:
        _leave(usable, group, token, _STOPPED_S)
    finally:
        usable.close()


def get_collective_groups(
    actors: Sequence[Any], backend: str | None = None
) -> list[CommunicatorHandle]:
    """Return the groups that all of these actors are members of.

    Those that another process has made, which may be gone, are among them if these actors are all
    their members.

    Args:
        actors: Handles of actors.
        backend: Of which backend; None for all.

    Raises:
        Transfer, TimeoutError: An actor does not answer, because it is stopped.
    """
    chosen = None if backend is None else _backend_of(backend)
    by_id = {cluster.actor_id(_plain(each)): each for each in actors}
    made_here = groups_with([*by_id], chosen)
    known = {each.name for each in made_here}
    of_others: dict[str, CommunicatorHandle] = {}
    for actor in actors:
        for found in groups_of(_plain(actor)) or ():
            ids = list(map(actor_of, found.keys))
            is_wanted = chosen in (None, found.backend) and found.name not in known
            if is_wanted and set(ids) == set(by_id):
                members = tuple(by_id[each] for each in ids)
                of_others[found.name] = CommunicatorHandle(found.name, found.backend, members)
    return [*made_here, *of_others.values()]


def groups_with(ids: Sequence[str], backend: str | None) -> list[CommunicatorHandle]:
    """Return the groups of a backend that the actors of all these ids, in hex, are members of."""
    return [
        group
        for group in list(_made.values())
        if backend in (None, group.backend) and set(ids).issubset(group.ids)
    ]


def destroy_collective_group(group_or_name: CommunicatorHandle | str) -> None:
    """Close a group. Its actors can be put into others.

    Args:
        group_or_name: The group; or the name of one that this process has made.

    Raises:
        ValueError: There is no such group.
        Transfer: An actor does not answer, because it is stopped. The others have left the group;
            it can be destroyed again.
        OutOfThreads: An actor can start no thread that would answer; as before.
    """
    name = group_or_name if isinstance(group_or_name, str) else group_or_name.name
    group = _made.get(name)
    if isinstance(group_or_name, CommunicatorHandle) and group_or_name != group:
        group = group_or_name if _has_members(group_or_name) else None  # another process made it
    if group is None:
        raise ValueError(f"No group with name {name} found.")
    errors: list[Exception] = []

    def leave(actor: Any) -> None:
        try:
            _has_left(actor, name)
        except Exception as error:  # noqa: BLE001 - raised when all others have left
            errors.append(without_frames(error))

    run_together([partial(leave, each) for each in group.actors], "rcg-leave", _MOST_AT_ONCE)
    if errors:
        raise errors.pop()
    if _made.get(name) == group:
        del _made[name]


def destroy_all_collective_groups() -> None:
    """Close all groups that this process has made; raises as ``destroy_collective_group``."""
    errors: list[Exception] = []
    for name in list(_made):
        try:
            destroy_collective_group(name)
        except Exception as error:  # noqa: BLE001 - the next one can be closed
            errors.append(error)
    if errors:
        raise errors[0]


def _has_members(group: CommunicatorHandle) -> bool:
    """Return whether an actor is in a group; one that is stopped may be."""
    return any(_is_member(_plain(each), group.name) for each in group.actors)


def _is_member(handle: Any, group: str) -> bool:
    patience = Deadline(_STOPPED_S)
    if not _answers_for(handle, group):
        return False
    # A process that was killed may answer for a moment, also after Ray has reported its end.
    probe = cluster.probe(handle)
    ready, _ = cluster.wait([probe], timeout_s=_DEATH_S)
    if not ready:  # it is busy or stopped, or Ray does not know yet
        return patience.expired or _answers_for(handle, group)
    try:
        cluster.get(probe)
    except Exception as error:  # noqa: BLE001 - whatever Ray says of it
        return not cluster.is_actor_death(error)
    return True


def _answers_for(handle: Any, group: str) -> bool:
    """Return whether an actor says that it is in a group, or does not answer."""
    try:
        found = groups_of(handle) or ()
    except (RcgError, OSError):
        return True
    return any(each.name == group for each in found)


def _has_left(actor: Any, group: str) -> None:
    try:
        connection = Connection(holder_of(_plain(actor)), "", _LEAVE_TIMEOUT_S)
    except (ActorDiedError, PlacementError):
        return  # it took its part with it
    try:
        _leave(connection, group)
    finally:
        connection.close()


def _backend_of(backend: str) -> str:
    from rcg.rdt.transports import find_transport

    if not isinstance(backend, str):
        raise ValueError(f"the backend of a group is a name, found {backend!r}")
    plain = _BACKENDS.get(backend.lower(), backend.lower())
    found = find_transport(plain)
    if not found.needs_group:
        raise ValueError(f"the tensor transport {plain} needs no group")
    return found.name


def _plain(actor: Any) -> Any:
    """Return Ray's handle of an actor."""
    return getattr(actor, "_ray_handle", actor)


def _connect(handle: Any, deadline: Deadline) -> Connection:
    """Connect to an actor, which may be being created, or started again."""
    if not cluster.is_actor_handle(handle):
        raise ValueError(f"a collective group is made of actors, found {handle!r}")
    holder = holder_of(handle)
    probe: Any = None
    while True:
        try:
            return Connection(holder, "")
        except ActorDiedError:
            if probe is None:
                probe = cluster.probe(handle)
        ready, _ = cluster.wait([probe], timeout_s=_RETRY_S)
        if ready and not _has_started(probe, holder):
            probe = None
            time.sleep(_RETRY_S)
        elif ready:
            return _reach(handle, holder, deadline)
        if deadline.expired:
            raise CommError(f"{holder.label} did not start within {_READY_TIMEOUT_S:.0f} s")


def _reach(handle: Any, holder: Holder, deadline: Deadline) -> Connection:
    """Connect to an actor that runs; one of rcg's that does not listen tries to, or says why not.

    Raises:
        ValueError: It is not one of rcg's.
        OutOfDescriptors, OutOfThreads, Unavailable: It cannot listen.
    """
    with contextlib.suppress(ActorDiedError):
        return Connection(holder, "")
    try:
        asked = cluster.submit(handle, check_reachable)
        cluster.get(asked, timeout_s=deadline.remaining_s())
        return Connection(holder, "")
    except ActorDiedError:
        raise ValueError(
            f"{holder.label} cannot be a member of a collective group: it was not made by "
            "rcg.remote"
        ) from None
    except Exception as error:
        raise out_of_descriptors(error, "to ask an actor of a group") or Unavailable(
            f"{holder.label} cannot be a member of a collective group, because nobody can connect "
            f"to it: {describe_error(error)}"
        ) from error


def _has_started(probe: Any, holder: Holder) -> bool:
    """Return whether an actor has answered; False if it is being started again."""
    try:
        cluster.get(probe)
    except Exception as error:
        if cluster.is_actor_unavailable(error):
            return False
        raise ActorDiedError(f"{holder.label} is dead: {error}") from error
    return True


def _leave(
    connection: Connection, group: str, token: str = "", timeout_s: float | None = None
) -> None:
    def question(number: int) -> LeaveGroup:
        return LeaveGroup(number=number, group=group, token=token)

    try:
        connection.ask(question, GroupChanged, timeout_s=timeout_s)
    except ActorDiedError:
        pass  # it took its part with it
