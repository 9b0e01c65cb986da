# SPDX-License-Identifier: Apache-2.0
"""Recording the events of a node for a profile: what a drain copies, and the newest of all.

A drain runs on a thread of its own that never waits for Python's lock, so it also records
processes that hang or die. The driver's profile uses one on each node.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Final, NamedTuple

from rcg.runtime.node.host import NodeHost
from rcg.runtime.node.node import Node
from rcg.threads import start_thread
from rcg.trace.model import Events
from rcg.trace.recorder import events_from

# The larger rings of the native core hold the events of the fastest graphs for 80 ms.
DRAIN_PERIOD_NS: Final = 5_000_000


class Recorded(NamedTuple):
    """The events of one process.

    Attributes:
        process: Its name in the plan.
        lost: How many are missing.
        events: Those that are there, by start.
        spans: The names of its spans.
    """

    process: str
    lost: int
    events: Events
    spans: tuple[str, ...]


class Recording:
    """All events of a node's processes from now on, until ``stop``.

    Args:
        host: The node.
        most: How many are kept.

    Raises:
        OSError: There is no memory to record in, or the graph has ended.
        OutOfThreads: No more threads can be started.
    """

    def __init__(self, host: NodeHost, most: int) -> None:
        self._node = host.node
        drain = self._drain = host.drain(most)
        # No code waits for a drain without references.
        weakref.finalize(self, drain.stop)
        self._thread = threading.Thread(
            target=drain.run, args=(DRAIN_PERIOD_NS,), name="rcg-profile", daemon=True
        )
        start_thread(self._thread, "to record the events of a profile")

    def stop(self) -> None:
        """Record nothing more. Idempotent, any thread."""
        self._drain.stop()

    def recorded(self) -> Iterator[Recorded]:
        """Yield what was recorded, by process, once it is stopped; the same each time."""
        self._thread.join()
        for process, number in self._node.layout.members.items():
            lost, records = self._drain.take(number)
            yield Recorded(process, lost, events_from(records), self._node.spans(process))

    def news(self) -> Iterator[Recorded]:
        """Yield what was recorded since the last call, at any time; it is not yielded again."""
        for process, number in self._node.layout.members.items():
            lost, records = self._drain.take_new(number)
            if lost or records:
                yield Recorded(process, lost, events_from(records), self._node.spans(process))


def newest_events(node: Node) -> Iterator[Recorded]:
    """Yield the newest events of each process of a node, which its recorder still has."""
    for process in node.layout.members:
        yield Recorded(process, 0, node.newest_events(process), node.spans(process))
