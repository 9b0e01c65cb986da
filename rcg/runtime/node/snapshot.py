# SPDX-License-Identifier: Apache-2.0
"""What the processes of another node do, as its host saw it at one moment.

A snapshot is read like a ``Node`` (see ``NodeView``), so reports and statistics need no second way
for other nodes. It travels as JSON, and the last one stays when the node is gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from rcg.checked import items, parse, record, texts, whole
from rcg.checked import text as text_of
from rcg.runtime.node.layout import Layout
from rcg.runtime.node.node import MemoryUse, Node
from rcg.trace.clocks import now_ns
from rcg.trace.recorder import Counters, Now, State

_MOST: Final = 1 << 63


class NodeView(Protocol):
    """What a report needs of a node: the node itself, or a snapshot of another one."""

    @property
    def layout(self) -> Layout:
        """The numbers of its processes and channels."""

    @property
    def age_s(self) -> float | None:
        """How long ago it was like this, in seconds; None if nothing is known of it yet."""

    def now(self, process: str, /) -> Now:
        """Return what a process does now."""

    def counters(self, process: str, /) -> Counters:
        """Return the counters of a process."""

    def unread(self, channel: str, /) -> list[int]:
        """Return how many frames of a channel each reader of its ring has not read yet."""

    def memory(self) -> MemoryUse:
        """Return how much shared memory the graph has there."""

    def queued(self) -> dict[str, tuple[int, int]]:
        """Return what its host sends to other nodes: (bytes so far, frames that wait), by node."""


def describe_node(node: Node, refused: str, senders: Iterable[Node] = ()) -> str:
    """Return what the processes of this process's node do, in JSON, for ``Snapshot.parse``.

    Args:
        node: The node.
        refused: The connections that this process has refused, as a text.
        senders: The places of this process's loops, which send frames to other nodes.
    """
    layout = node.layout
    queued: dict[str, tuple[int, int]] = {}
    for sender in senders:
        for to, (sent_bytes, waiting) in sender.queued().items():
            before = queued.get(to, (0, 0))
            queued[to] = before[0] + sent_bytes, before[1] + waiting
    return json.dumps(
        {
            "at_ns": now_ns(),
            "processes": [
                [*node.now(process), *node.counters(process)] for process in layout.members
            ],
            "rings": [node.unread(channel) for channel in layout.rings],
            "memory": list(node.memory()),
            "links": list(queued),
            "queued": [list(each) for each in queued.values()],
            "refused": refused,
        },
        separators=(",", ":"),
    )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the processes of a node did at one moment.

    Attributes:
        layout: The numbers of the node's processes and channels.
        taken_ns: When it arrived here, on this process's clock; 0 if none has arrived yet.
        refused: The connections that its host has refused so far, by reason.
    """

    layout: Layout
    taken_ns: int
    _processes: dict[str, tuple[Now, Counters]]
    _began: dict[str, int]
    _rings: dict[str, list[int]]
    _memory: MemoryUse
    _queued: dict[str, tuple[int, int]] = field(default_factory=dict)
    refused: str = ""

    @classmethod
    def parse(cls, text: str, layout: Layout) -> Snapshot:
        """Read what a host sent; times become those of this process's clock.

        Raises:
            ValueError: It is not what ``describe_node`` returns for this layout.
        """
        held = record(parse(text), "a snapshot")
        taken_ns = now_ns()
        at_ns = whole(held.get("at_ns"), "at_ns", 0, _MOST)
        rows, rings = items(held, "processes"), items(held, "rings")
        if len(rows) != len(layout.members) or len(rings) != len(layout.rings):
            raise ValueError("a snapshot must be of all processes and rings of its node")
        processes = {}
        began = {}
        for process, row in zip(layout.members, rows, strict=True):
            pid, op, execution, since_ns, state, ring, events, *counters = _numbers(row, 10)
            began[process] = since_ns
            if since_ns:
                since_ns = max(1, taken_ns - max(0, at_ns - since_ns))
            now = Now(pid, op, execution, since_ns, State(state), ring, events)
            processes[process] = now, Counters(*counters)
        unread = {
            channel: _numbers(row, len(layout.readers[channel]))
            for channel, row in zip(layout.rings, rings, strict=True)
        }
        memory = MemoryUse(*_numbers(held.get("memory"), len(MemoryUse._fields)))
        queues = (_numbers(row, 2) for row in items(held, "queued"))
        links = zip(texts(held, "links"), queues, strict=True)
        queued = {to: (sent_bytes, waiting) for to, (sent_bytes, waiting) in links}
        refused = text_of(held, "refused")
        return cls(layout, taken_ns, processes, began, unread, memory, queued, refused)

    @classmethod
    def unknown(cls, layout: Layout) -> Snapshot:
        """Return the snapshot of a node that has sent none yet."""
        nothing = Now(0, 0, 0, 0, State.IDLE, 0, 0), Counters(0, 0, 0)
        return cls(
            layout,
            0,
            dict.fromkeys(layout.members, nothing),
            dict.fromkeys(layout.members, 0),
            {channel: [0] * len(layout.readers[channel]) for channel in layout.rings},
            MemoryUse(0, 0, 0, 0),
        )

    @property
    def age_s(self) -> float | None:
        """See ``NodeView``."""
        return (now_ns() - self.taken_ns) / 1e9 if self.taken_ns else None

    def now(self, process: str, /) -> Now:
        """See ``NodeView``."""
        return self._processes[process][0]

    def began_ns(self, process: str, /) -> int:
        """Return when the op began that a process is in, on the clock of its node; 0 for none."""
        return self._began[process]

    def counters(self, process: str, /) -> Counters:
        """See ``NodeView``."""
        return self._processes[process][1]

    def unread(self, channel: str, /) -> list[int]:
        """See ``NodeView``."""
        return self._rings[channel]

    def memory(self) -> MemoryUse:
        """See ``NodeView``."""
        return self._memory

    def queued(self) -> dict[str, tuple[int, int]]:
        """See ``NodeView``."""
        return self._queued


def _numbers(value: Any, count: int) -> list[int]:
    if not isinstance(value, list) or len(value) != count:
        raise ValueError(f"a snapshot needs {count} numbers here")
    return [whole(each, "a number of a snapshot", 0, _MOST) for each in value]
