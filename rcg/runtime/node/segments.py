# SPDX-License-Identifier: Apache-2.0
"""Shared memory without names: the board and the arenas of one graph on one node.

Segments are files that no directory lists (``O_TMPFILE`` in /dev/shm, or ``memfd`` if that is
small), so the kernel frees them when the processes end. The host of the node makes them and sends
their descriptors to the members. ``native/layout.h`` draws their content.
"""

from __future__ import annotations

import os
from typing import Final

from rcg import _native
from rcg.descriptors import Descriptor, out_of_descriptors
from rcg.errors import OutOfSharedMemory
from rcg.ir.channels import LOCAL, STATUS
from rcg.ir.plan import Plan
from rcg.ir.programs import FIRST_NODE
from rcg.runtime.node.layout import Layout
from rcg.runtime.node.memory import SHM, addresses_for, prefers_memfd

MAX_MEMBERS: Final[int] = _native.MAX_MEMBERS
EVENTS_PER_MEMBER: Final = 4096
# A ring takes 256 KiB: 16 slots of 16 KiB, or more and smaller ones. A value that does not fit
# its slot goes to a block, which costs some 100 ns more.
RING_BYTES: Final = 256 * 1024
SMALLEST_SLOT: Final = 1024


def _ring_slots(kind: str, frames: int) -> int:
    """Return how many slots a ring has that holds so many frames: the next power of two.

    Those of a local channel count values that a process holds, so there are not more than needed.
    """
    return max(1 if kind == LOCAL else 2, 1 << (frames - 1).bit_length())


def _slot_bytes(kind: str, slots: int) -> int:
    """Return how large a slot is; what ranks and lanes tell each other is small.

    A frame that does not fit lies in a block.
    """
    is_small = kind in (STATUS, LOCAL)
    return SMALLEST_SLOT if is_small else max(SMALLEST_SLOT, RING_BYTES // slots // 64 * 64)


def _open_unnamed() -> Descriptor:
    """Return the descriptor of an empty file in memory that has no name, closed on exec."""
    if not prefers_memfd():
        try:
            return Descriptor(os.open, SHM, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:
            pass  # a file system without O_TMPFILE
    return Descriptor(os.memfd_create, "rcg", os.MFD_CLOEXEC)


class Segments:
    """The board and the arenas of one graph, as descriptors. Made and owned by the host.

    Args:
        plan: Determines the rings: their number, sizes and ends.
        cap_bytes: How much memory the blocks of all arenas may take together.
        node: The node of the plan that they are for.

    Raises:
        OutOfSharedMemory: There is no room for the rings themselves.
        OutOfDescriptors: There is no descriptor left for them.
    """

    def __init__(self, plan: Plan, *, cap_bytes: int, node: str = FIRST_NODE) -> None:
        self.layout = Layout.of(plan, node)
        self.cap_bytes = cap_bytes
        self._board = Descriptor()
        self._arenas: list[Descriptor] = []
        count = len(self.layout.members)
        reserve = addresses_for(cap_bytes, count)
        try:
            self._board = _open_unnamed()
            self.size_bytes: int = _native.format_board(
                self.board, count, self._rings(plan), EVENTS_PER_MEMBER, cap_bytes
            )
            for member in range(count):
                self._arenas.append(_open_unnamed())
                _native.format_arena(self._arenas[-1].fd, member, count, reserve)
        except OSError as error:
            self.close()
            exhausted = out_of_descriptors(error, "for the shared memory of a compiled graph")
            raise exhausted or OutOfSharedMemory(
                f"there is no room in shared memory for the channels of this graph "
                f"({error.strerror}): free some, or use fewer or smaller channels",
                cap_bytes=cap_bytes,
            ) from error

    def _rings(self, plan: Plan) -> list[tuple[int, tuple[int, ...], int, int]]:
        layout, channels = self.layout, plan.channels_by_id()
        rings = []
        for name in layout.rings:
            channel = channels[name]
            slots = _ring_slots(channel.kind, channel.slots)
            size = _slot_bytes(channel.kind, slots)
            rings.append((layout.writers[name], layout.readers[name], slots, size))
        return rings

    @property
    def board(self) -> int:
        """The board's descriptor; -1 once it is closed."""
        return self._board.fd

    @property
    def arenas(self) -> list[int]:
        """The descriptors of the arenas; none once they are closed."""
        return [each.fd for each in self._arenas if each.fd >= 0]

    def seal(self) -> None:
        """Close the arenas' descriptors, once every member has them; mapped memory stays mapped."""
        for each in self._arenas:
            each.close()

    def close(self) -> None:
        """Close the descriptors; mapped memory stays mapped. Idempotent, any thread."""
        self._board.close()
        self.seal()
