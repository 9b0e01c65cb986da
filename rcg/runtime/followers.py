# SPDX-License-Identifier: Apache-2.0
"""Who wants to know of graphs that are compiled from now on: profiles of the whole process."""

from __future__ import annotations

import threading
import weakref
from typing import Final, Protocol

from rcg.runtime.session import Session

__all__ = ["Follower", "follow", "graph_started", "unfollow"]


class Follower(Protocol):
    """What follows the graphs of a process."""

    def graph_started(self, session: Session) -> None:
        """Take note of a new graph."""


_following: Final[weakref.WeakSet[Follower]] = weakref.WeakSet()
_lock: Final = threading.Lock()


def follow(follower: Follower) -> None:
    """Have a follower told of new graphs; it is not kept alive."""
    with _lock:
        _following.add(follower)


def unfollow(follower: Follower) -> None:
    """Undo ``follow``; also if it was not called."""
    with _lock:
        _following.discard(follower)


def graph_started(session: Session) -> None:
    """Tell all followers of a new graph."""
    with _lock:
        followers = list(_following)
    for follower in followers:
        follower.graph_started(session)
