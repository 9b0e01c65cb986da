# SPDX-License-Identifier: Apache-2.0
"""Hosting a node: the process that makes its shared memory, and hands it to the other members."""

from __future__ import annotations

from collections.abc import Callable

from rcg import _native
from rcg.channels.base import NoMemory
from rcg.channels.crossing import Gate, Passage
from rcg.errors import OutOfSharedMemory
from rcg.ir.channels import STATUS, TENSOR
from rcg.ir.ops import Pass
from rcg.ir.plan import Plan
from rcg.ir.programs import FIRST_NODE
from rcg.options import Options
from rcg.runtime.node.memory import Segments, default_memory_cap
from rcg.runtime.node.node import Node
from rcg.serialization import Codec


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
        try:
            self.node = Node(
                self._segments.board,
                self._segments.arenas,
                self.layout,
                self.layout.host if node == FIRST_NODE else node,
                options,
                codec,
                is_looping=False,
            )
            self._options, self._codec = options, codec
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

    def descriptors(self) -> tuple[int, list[int]]:
        """Return the descriptors of the board and of each arena, for another member."""
        return self._segments.board, self._segments.arenas

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
        node = self.node
        if node.process != name:
            node = Node(
                self._segments.board,
                self._segments.arenas,
                self.layout,
                name,
                self._options,
                self._codec,
                is_looping=False,
            )
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
        """Return a drain, which copies the events of all members for a profile.

        Args:
            max_events: How many are kept; later ones are counted as lost.

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
