# SPDX-License-Identifier: Apache-2.0
"""Who wants to know of graphs that are compiled from now on: profiles of the whole process."""

from __future__ import annotations

import weakref
from typing import Final, Protocol

from rcg.runtime.session import Session

__all__ = ["Follower", "following", "graph_started"]


class Follower(Protocol):
    """What follows the graphs of a process."""

    def graph_started(self, session: Session) -> None:
        """Take note of a new graph; it must not raise."""


following: Final[weakref.WeakSet[Follower]] = weakref.WeakSet()


def graph_started(session: Session) -> None:
    """Tell all followers of a new graph."""
    for follower in list(following):
        follower.graph_started(session)
