# SPDX-License-Identifier: Apache-2.0
"""Turns on an actor: methods of different graphs do not overlap, so one graph may wait for another.

One actor lives in a process, so the lock is the process's. It is held for one Call, never while
something is waited for in shared memory. It is the only lock of ours under which users' code runs,
because that is what it is for; nothing but another graph's Call waits for it. Who waits for a turn
is known here, so that an error can say it.
"""

from __future__ import annotations

import threading
from typing import Final

__all__ = ["Turns", "turns"]


class Turns:
    """The lock of an actor, and the graphs whose loops wait for it. Any thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._waiting: dict[str, str] = {}

    def wait(self, graph_id: str, label: str) -> None:
        """Take the lock that another graph's method holds.

        Args:
            graph_id: Whose loop waits.
            label: The actor, for people.
        """
        self._waiting[graph_id] = label
        try:
            self.lock.acquire()
        finally:
            self._waiting.pop(graph_id, None)

    def why_waiting(self, graph_id: str) -> str:
        """Return why a graph does not go on, if its loop in this process waits for a turn."""
        label = self._waiting.get(graph_id)
        if label is None:
            return ""
        return (
            f" The graph waits for its turn on {label}, the actor of this process: methods of "
            "different graphs do not overlap there, and one of another graph is running, maybe the "
            "one that waits here. Compile with concurrent=True to let them overlap."
        )


turns: Final = Turns()
