# SPDX-License-Identifier: Apache-2.0
"""Which groups actors are members of, as their services say.

The process that has made a group may be gone, and an actor that runs again is in no group, though
it listens where it did before. So only the members themselves know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from rcg.errors import ActorDiedError, PlacementError, RcgError
from rcg.rdt.connection import JOIN_TIMEOUT_S, Connection
from rcg.rdt.envelope import Holder
from rcg.rdt.process import holder_of, holder_with
from rcg.wire.messages import AskGroups, GroupsHere

__all__ = ["Known", "groups_of", "usable_groups"]

_ANSWER_S: Final = 1.0  # an actor that takes longer is stopped


class Known(NamedTuple):
    """A group, as one of its members knows it.

    Attributes:
        name: Its name.
        backend: Its transport.
        keys: The ids of the stores of its members, by their ranks.
        secrets: The secrets of these.
    """

    name: str
    backend: str
    keys: tuple[str, ...]
    secrets: tuple[str, ...]


class _Members(Protocol):
    """A group, as ``Known`` or ``rcg.rdt.groups.Group`` has it."""

    @property
    def name(self) -> str: ...
    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def secrets(self) -> tuple[str, ...]: ...


_G = TypeVar("_G", bound=_Members)


def groups_of(handle: Any) -> list[Known] | None:
    """Return the groups of an actor; None if it is not reached.

    Args:
        handle: Ray's handle of the actor.

    Raises:
        Transfer, TimeoutError: It does not answer: it is stopped.
    """
    try:
        return _asked(holder_of(handle), JOIN_TIMEOUT_S)
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
        return frozenset(each.name for each in _asked(holder, _ANSWER_S))
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
        Known(name, backend, tuple(keys.split()), tuple(secrets.split()))
        for name, backend, keys, secrets in zip(
            found.names, found.backends, found.keys, found.secrets, strict=True
        )
    ]
