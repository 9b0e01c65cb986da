# SPDX-License-Identifier: Apache-2.0
"""Shared memory of one graph on one node: how much it may take, and its board and arenas.

Segments are files that no directory lists (``O_TMPFILE`` in /dev/shm, or ``memfd`` if that is
small), so the kernel frees them when the processes end. The host of the node makes them and sends
their descriptors to the members. ``native/layout.h`` draws their content.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Final, NamedTuple

from rcg import _native
from rcg.descriptors import Descriptor, out_of_descriptors
from rcg.errors import OutOfSharedMemory
from rcg.ir.channels import LOCAL, STATUS
from rcg.ir.plan import Plan
from rcg.ir.programs import FIRST_NODE
from rcg.runtime.node.layout import Layout

MAX_MEMBERS: Final[int] = _native.MAX_MEMBERS
EVENTS_PER_MEMBER: Final = 4096
# A ring takes 256 KiB: 16 slots of 16 KiB, or more and smaller ones. A value that does not fit
# its slot goes to a block, which costs some 100 ns more.
RING_BYTES: Final = 256 * 1024
SMALLEST_SLOT: Final = 1024


def _open_unnamed() -> Descriptor:
    """Return the descriptor of an empty file in memory that has no name, closed on exec."""
    if not prefers_memfd():
        try:
            return Descriptor(os.open, SHM, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:
            pass  # a file system without O_TMPFILE
    return Descriptor(os.memfd_create, "rcg", os.MFD_CLOEXEC)


class Shared(NamedTuple):
    """The descriptors of a graph's shared memory on a node; whoever has opened them closes them.

    Attributes:
        board: Of the board.
        arenas: Of each member's arena; -1 for those that are not for this process.
        bell: The eventfd that wakes the driver's event loops; -1 on other nodes than the driver's.
    """

    board: int
    arenas: list[int]
    bell: int = -1


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
        self._board = Descriptor()
        self._arenas: list[Descriptor] = []
        count = len(self.layout.members)
        reserve = addresses_for(cap_bytes, count)
        try:
            self._board = _open_unnamed()
            _native.format_board(self.board, count, self._rings(plan), EVENTS_PER_MEMBER, cap_bytes)
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
        """Return the writer, the readers, the number of slots and their size of each ring."""
        layout, channels = self.layout, plan.channels_by_id()
        rings = []
        for name in layout.rings:
            kind, frames = channels[name].kind, channels[name].slots
            # A power of two. The slots of a local channel count values that a process holds.
            slots = max(1 if kind == LOCAL else 2, 1 << (frames - 1).bit_length())
            is_small = kind in (STATUS, LOCAL)  # what ranks and lanes send each other
            size = SMALLEST_SLOT if is_small else max(SMALLEST_SLOT, RING_BYTES // slots // 64 * 64)
            rings.append((layout.writers[name], layout.readers[name], slots, size))
        return rings

    @property
    def board(self) -> int:
        """The board's descriptor; -1 once it is closed."""
        return self._board.fd

    @property
    def arenas(self) -> list[int]:
        """The arenas' descriptors; none once they are closed."""
        return [each.fd for each in self._arenas if each.fd >= 0]

    def seal(self) -> None:
        """Close the arenas' descriptors, once every member has them; mapped memory stays mapped."""
        for each in self._arenas:
            each.close()

    def close(self) -> None:
        """Close the descriptors; mapped memory stays mapped. Idempotent, any thread."""
        self._board.close()
        self.seal()


SHM: Final = "/dev/shm"
# Below this, /dev/shm is the 64 MB that container runtimes give; memfd has no such limit.
SMALLEST_USEFUL_SHM: Final = 1 << 30
# Blocks of all sizes share an arena's addresses, and free neighbours are merged, so little more
# address space than the cap is needed: twice the cap, because of fragmentation.
ADDRESSES_PER_BYTE: Final = 2
LEAST_ADDRESSES: Final = 16 << 20
_PAGE: Final = 4096


def default_memory_cap() -> int:
    """Return how many bytes of shared memory a graph may use: half of what is available.

    Available is the least of the space in /dev/shm (unless it is so small that memfd is used), the
    memory that the control group still allows, the free memory of the machine, and a quarter of the
    addresses that RLIMIT_AS still allows this process.
    """
    limits = [_available_memory(), *_cgroup_room()]
    allowed = _allowed_addresses()
    if allowed is not None:
        limits.append(allowed // 4)
    if not prefers_memfd():
        found = os.statvfs(SHM)
        limits.append(found.f_bavail * found.f_frsize)
    return max(64 << 20, min(limits) // 2)


def prefers_memfd() -> bool:
    """Return whether /dev/shm is missing, or so small that ``memfd`` is the better place."""
    try:
        found = os.statvfs(SHM)
    except OSError:
        return True
    return found.f_blocks * found.f_frsize < SMALLEST_USEFUL_SHM


def _available_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * _PAGE // 2


def _cgroup_room() -> list[int]:
    """Return the memory that the control group (version 2, then 1) leaves; nothing without a limit.

    The files are those of the group that a container sees as its root.
    """
    root = Path("/sys/fs/cgroup")
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            allowed = (root / limit).read_text().strip()
            used = int((root / usage).read_text())
        except (OSError, ValueError):
            continue
        if allowed != "max" and int(allowed) < 1 << 60:
            return [max(0, int(allowed) - used)]
    return []


def _allowed_addresses() -> int | None:
    """Return how much address space RLIMIT_AS leaves this process; None where it sets no limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return max(0, limit - pages * resource.getpagesize())


def addresses_for(cap_bytes: int, members: int) -> int:
    """Return how much address space to reserve for each arena, in whole pages.

    A process maps an arena when it first needs it, usually once: its own to write, and another's to
    read its blocks. Addresses are 47 bits wide or, on some kernels, 39, and a limit may allow
    fewer. A graph keeps its addresses as long as it or one of its values lives. So each graph takes
    at most a twelfth of what this process has left, and a quarter of all addresses stays free for
    everything else, including other drivers' graphs over the same actors. A value without addresses
    goes through the stash.
    """
    mappings = Path("/proc/self/maps").read_text().splitlines()
    stack = next(line for line in mappings if line.endswith("[stack]"))
    width = int(stack.split("-")[0], 16).bit_length()
    ranges = (mapping.split(maxsplit=1)[0].split("-") for mapping in mappings)
    taken = sum(int(end, 16) - int(start, 16) for start, end in ranges)
    most = max(0, 3 * (1 << width) // 4 - taken) // 12 // (2 * members)
    allowed = _allowed_addresses()
    if allowed is not None:
        most = min(most, allowed // 2 // members)
    wanted = ADDRESSES_PER_BYTE * cap_bytes + LEAST_ADDRESSES
    return max(LEAST_ADDRESSES, min(wanted, most)) // _PAGE * _PAGE
