# SPDX-License-Identifier: Apache-2.0
"""Which groups actors are members of, as their services say.

The process that has made a group may be gone, and an actor that runs again is in no group, though
it listens where it did before. So only the members themselves know.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple, TypeVar

from rcg import cluster
from rcg.errors import ActorDiedError, PlacementError, RcgError
from rcg.rdt.connection import JOIN_TIMEOUT_S, Connection
from rcg.rdt.envelope import Holder
from rcg.rdt.process import actor_holder, actor_of
from rcg.wire.messages import AskGroups, GroupsHere

__all__ = ["Known", "groups_of", "usable_groups"]

_ANSWER_S: Final = 1.0  # an actor that takes longer is stopped


class Known(NamedTuple):
    """A group, as one of its members knows it.

    Attributes:
        name: Its name.
        backend: Its transport.
        members: The ids of the stores of its members, by their ranks.
    """

    name: str
    backend: str
    members: tuple[str, ...]


_Keys = TypeVar("_Keys", bound=Iterable[str])


def groups_of(handle: Any) -> list[Known] | None:
    """Return the groups of an actor; None if it is not reached.

    Args:
        handle: Ray's handle of the actor.

    Raises:
        Transfer, TimeoutError: It does not answer: it is stopped.
    """
    try:
        return _asked(actor_holder(cluster.actor_id(handle), repr(handle)), JOIN_TIMEOUT_S)
    except (ActorDiedError, PlacementError):
        return None


def usable_groups(groups: list[tuple[str, _Keys]]) -> list[tuple[str, _Keys]]:
    """Return those of several groups of the same actors that a transfer could use.

    One of which a member is gone, or runs again, has been replaced. If all have lost one, the
    newest is best.

    Args:
        groups: For each its name, and the ids of the stores of its members.
    """
    if len(groups) < 2:
        return groups
    names = {key: _names_at(key) for key in {key for _, keys in groups for key in keys}}

    def is_member(key: str, group: str) -> bool:
        found = names[key]
        return found is None or group in found

    return [each for each in groups if all(is_member(key, each[0]) for key in each[1])] or (
        groups[-1:]
    )


def _names_at(key: str) -> frozenset[str] | None:
    """Return the names of an actor's groups; None if it does not answer, and may go on."""
    try:
        return frozenset(each.name for each in _asked(actor_holder(actor_of(key)), _ANSWER_S))
    except (ActorDiedError, PlacementError):
        return frozenset()
    except (RcgError, OSError):
        return None


def _asked(holder: Holder, timeout_s: float) -> list[Known]:
    connection = Connection(holder, "", timeout_s)
    try:
        found = connection.asked(
            lambda number: AskGroups(number=number), GroupsHere, timeout_s=timeout_s
        )
    finally:
        connection.close()
    return [
        Known(name, backend, tuple(members.split()))
        for name, backend, members in zip(found.names, found.backends, found.members, strict=True)
    ]
