# SPDX-License-Identifier: Apache-2.0
"""Who wants to know of graphs that are compiled from now on: profiles of the whole process."""

from __future__ import annotations

import weakref
from typing import Final, Protocol

from rcg.runtime.driver.session import Session

__all__ = ["Follower", "follow", "graph_started"]


class Follower(Protocol):
    """What follows the graphs of a process."""

    def graph_started(self, session: Session) -> None:
        """Take note of a new graph."""


# By the address of each, which is another's only after it is gone. Without a lock: a new graph may
# come from a signal handler or ``__del__`` in the middle of what is here.
_following: Final[dict[int, weakref.ref[Follower]]] = {}


def follow(follower: Follower) -> None:
    """Have a follower told of new graphs; it is not kept alive."""
    key = id(follower)
    _following[key] = weakref.ref(follower, lambda _: _following.pop(key, None))


def graph_started(session: Session) -> None:
    """Tell all followers of a new graph."""
    for reference in _following.copy().values():
        follower = reference()
        if follower is not None:
            follower.graph_started(session)
