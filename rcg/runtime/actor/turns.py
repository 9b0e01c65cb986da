# SPDX-License-Identifier: Apache-2.0
"""Turns on an actor: methods of different graphs do not overlap, so one graph may wait for another.

A process has one actor, so the lock belongs to the process. A loop holds it during a Call, never
while it waits in shared memory. It is the only lock of rcg under which users' code runs, because it
exists to keep users' methods apart; only another graph's Call waits for it. The waiting graphs are
listed here, so that an error can name them.
"""

from __future__ import annotations

import threading
import weakref
from typing import Final


class Asker:
    """A Call of a loop, which asks for its turn again and again.

    Attributes:
        graph_id: The graph of the loop.
        label: The actor of this process.
        is_asking: Whether it waits for its turn now.
    """

    __slots__ = ("__weakref__", "graph_id", "is_asking", "label")

    def __init__(self, graph_id: str, label: str) -> None:
        self.graph_id = graph_id
        self.label = label
        self.is_asking = False


class Turns:
    """The lock of an actor, and the Calls that wait for it. Any thread.

    Attributes:
        lock: Held while a method runs.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._askers: weakref.WeakSet[Asker] = weakref.WeakSet()
        self._changing = threading.Lock()  # of the set, which no other thread may change meanwhile

    def asker(self, graph_id: str, label: str) -> Asker:
        """Return what notes that a Call waits, as long as the Call keeps it."""
        made = Asker(graph_id, label)
        with self._changing:
            self._askers.add(made)
        return made

    def label_for(self, graph_id: str) -> str | None:
        """Return the label of the actor on which a graph waits for its turn; None if it does not.

        Every Call waits for a moment, before it has its turn.
        """
        with self._changing:
            askers = list(self._askers)
        asking = (each for each in askers if each.is_asking)
        return next((each.label for each in asking if each.graph_id == graph_id), None)

    def why_waiting(self, graph_id: str) -> str:
        """Return why a graph does not go on, if its loop in this process waits for a turn."""
        label = self.label_for(graph_id)
        if label is None:
            return ""
        return (
            f" The graph waits for its turn on {label}, the actor of this process: methods of "
            "different graphs do not overlap there, and one of another graph is running, maybe the "
            "one that waits here. Compile with concurrent=True to let them overlap."
        )


turns: Final = Turns()
