# SPDX-License-Identifier: Apache-2.0
"""Turns on an actor: methods of different graphs do not overlap, so one graph may wait for another.

A process has one actor, so the lock belongs to the process. A loop holds it during a Call, never
while it waits in shared memory. It is the only lock of rcg under which users' code runs, because it
exists to keep users' methods apart; only another graph's Call waits for it. The waiting graphs are
listed here, so that an error can name them.
"""

from __future__ import annotations

import threading
from typing import Final


class Turns:
    """The lock of an actor, and the graphs whose loops wait for it. Any thread.

    Attributes:
        lock: Held while a method runs.
        waiting: The id of each graph that waits, and the label of the actor, by a key of the step.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waiting: dict[object, tuple[str, str]] = {}

    def label_for(self, graph_id: str) -> str | None:
        """Return the label of the actor on which a graph waits for its turn; None if it does not.

        Every Call is listed for a moment, before it has its turn.
        """
        return dict(list(self.waiting.values())).get(graph_id)

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
