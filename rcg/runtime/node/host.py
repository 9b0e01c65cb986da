# SPDX-License-Identifier: Apache-2.0
"""Hosting a node: the process that makes its shared memory, and hands it to the other members.

It also records the events of the node for profiles. A drain copies them on a thread of its own that
never waits for Python's lock, so it also records processes that hang or die.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from rcg import _native
from rcg.channels.base import NoMemory
from rcg.channels.crossing import Gate, Passage
from rcg.descriptors import Descriptor
from rcg.errors import OutOfSharedMemory
from rcg.ir.channels import STATUS, TENSOR
from rcg.ir.ops import Pass
from rcg.ir.plan import Plan
from rcg.ir.programs import FIRST_NODE
from rcg.options import Options
from rcg.runtime.node.memory import Segments, Shared, default_memory_cap
from rcg.runtime.node.node import Node
from rcg.serialization import Codec
from rcg.threads import start_thread
from rcg.trace.model import Events
from rcg.trace.recorder import events_from

# The larger rings of the native core hold the events of the fastest graphs for 80 ms.
DRAIN_PERIOD_NS: Final = 5_000_000


class NodeHost:
    """The memory of a graph on this process's node, made and owned by this process.

    Args:
        plan: The plan of the graph.
        options: The options of the graph.
        codec: Encodes this process's values.
        node: The node of the plan, whose host this process is.

    Attributes:
        node: This process's place there: the driver's on its node, elsewhere that of the gate,
            which looks at the other members.
        layout: The numbers of processes and channels.
        cap_bytes: How much memory values may take.
        bell: The eventfd that wakes event loops of this process. Closed with the last reference:
            a loop that listens has one.

    Raises:
        OutOfSharedMemory: There is no room for the channels, or no address space.
        OutOfDescriptors: There is no descriptor left.
    """

    def __init__(
        self, plan: Plan, options: Options, codec: Codec, *, node: str = FIRST_NODE
    ) -> None:
        self.cap_bytes = options.memory_cap_bytes or default_memory_cap()
        self._segments = Segments(plan, cap_bytes=self.cap_bytes, node=node)
        self.layout = self._segments.layout
        self._options, self._codec = options, codec
        self.bell = Descriptor()
        try:
            if node == FIRST_NODE:
                self.bell = Descriptor(os.eventfd, 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self.node = self._place_of(self.layout.host if node == FIRST_NODE else node)
        except OSError as error:
            self.close()
            raise OutOfSharedMemory(
                f"this process cannot map the shared memory of one more graph ({error.strerror}): "
                "tear other graphs down, drop their results, or lower `memory_cap_bytes`",
                cap_bytes=self.cap_bytes,
            ) from error
        except BaseException:
            self.close()
            raise

    def _place_of(self, process: str) -> Node:
        return Node(
            self.descriptors(),
            self.layout,
            process,
            self._options,
            self._codec,
            is_looping=False,
        )

    def descriptors(self) -> Shared:
        """Return what another member is given."""
        return Shared(self._segments.board, self._segments.arenas, self.bell.fd)

    def open_gate(
        self,
        plan: Plan,
        lost: Callable[[str, str], object],
        refusal: Callable[[str, NoMemory], bytes],
    ) -> Gate | None:
        """Return the gate of this node; None if nothing arrives here.

        Args:
            plan: The plan of the graph.
            lost: Called with the process that sent, and a text, when a connection has ended.
            refusal: Returns what a failure carries in place of a frame without memory.

        Raises:
            OSError: There is no memory, descriptor or thread for it.
        """
        name = self.layout.node
        if name not in self.layout.members:
            return None
        node = self.node if self.node.process == name else self._place_of(name)
        channels = plan.channels_by_id()
        passages = [
            Passage(
                op.channel,
                self.layout.passes[op.channel],
                self.layout.rings[op.channel],
                at,
                channels[op.channel].writer,
                channels[op.channel].kind in (TENSOR, STATUS),
            )
            for at, op in enumerate(plan.program(name).ops)
            if isinstance(op, Pass)
        ]
        return Gate(node.member, passages, lost, refusal)

    def drain(self, max_events: int) -> _native.Drain:
        """Return a drain that copies the events of all members, at most so many; see ``Recording``.

        Raises:
            OSError: There is no memory to record in, or the graph has ended.
        """
        return _native.Drain(self.node.member, self._segments.board, max_events)

    def seal(self) -> None:
        """Close the descriptors once every member has them, except those that a profile needs."""
        self._segments.seal()

    def close(self) -> None:
        """Close the descriptors; mapped memory stays mapped. Idempotent, any thread."""
        self._segments.close()
        self.bell = Descriptor()


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
