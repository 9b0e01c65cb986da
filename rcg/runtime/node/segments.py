# SPDX-License-Identifier: Apache-2.0
"""Shared memory without names: the board and the arenas of one graph on one node.

Segments are files that no directory lists (``O_TMPFILE`` in /dev/shm, or ``memfd`` where that is
small), so nothing is left behind whoever dies, whenever. The driver makes them and hands their
descriptors to the members; see ``native/layout.h`` for what is in them.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rcg import _native
from rcg.descriptors import out_of_descriptors
from rcg.errors import OutOfSharedMemory
from rcg.ir.plan import DRIVER, ChannelSpec, Plan

__all__ = ["MAX_IN_FLIGHT", "MEMBER_LIMIT", "Layout", "Segments", "default_memory_cap"]

MEMBER_LIMIT: Final[int] = _native.MAX_MEMBERS
SHM: Final = "/dev/shm"
# Below this, /dev/shm is the 64 MB that container runtimes give; memfd has no such limit.
SMALLEST_USEFUL_SHM: Final = 1 << 30
EVENTS_PER_MEMBER: Final = 4096
# A ring takes 256 KiB: 16 slots of 16 KiB, or more and smaller ones. What does not fit its slot
# goes to a block, which costs some 100 ns more.
RING_BYTES: Final = 256 * 1024
SMALLEST_SLOT: Final = 1024
MAX_IN_FLIGHT: Final = 4096
# Blocks of all sizes share an arena's addresses, and neighbours that are free become one, so that
# little more than the cap is needed: twice that, for what lies scattered.
ADDRESSES_PER_BYTE: Final = 2
LEAST_ADDRESSES: Final = 16 << 20
_PAGE: Final = 4096


@dataclass(frozen=True, slots=True)
class Layout:
    """Which number each process and each channel of a plan has in shared memory."""

    members: dict[str, int]
    rings: dict[str, int]

    @classmethod
    def of(cls, plan: Plan) -> Layout:
        """Return the layout of a plan: the same plan gives the same numbers in every process."""
        processes = [program.process for program in plan.programs]
        ordered = [DRIVER, *(p for p in processes if p != DRIVER)]
        return cls(
            {process: i for i, process in enumerate(ordered)},
            {channel.id: i for i, channel in enumerate(plan.channels)},
        )

    def reach(self, plan: Plan, process: str) -> int:
        """Return whose blocks may arrive at a process: bit i for member i."""
        names = dict(plan.reach).get(process, ())
        return sum(1 << self.members[name] for name in {process, *names})

    def process(self, member: int) -> str:
        """Return the process with this number."""
        return next(name for name, number in self.members.items() if number == member)


def slots_for(frames: int) -> int:
    """Return how many slots a ring gets that must hold this many frames: a power of two."""
    return min(MAX_IN_FLIGHT, max(2, 1 << (frames - 1).bit_length()))


def _slot_bytes(slots: int) -> int:
    return max(SMALLEST_SLOT, RING_BYTES // slots // 64 * 64)


def default_memory_cap() -> int:
    """Return how many bytes of shared memory a graph may use: half of what is to be had.

    To be had is the least of the space in /dev/shm (unless it is so small that memfd is used), the
    memory that the control group still allows, the memory that is free on the machine, and a
    quarter of the addresses that RLIMIT_AS still allows this process.
    """
    limits = [_available_memory()]
    allowed = _allowed_addresses()
    if allowed is not None:
        limits.append(allowed // 4)
    if not _prefers_memfd():
        limits.append(_free_bytes(SHM))
    limits.extend(_cgroup_room())
    return max(64 << 20, min(limits) // 2)


def _free_bytes(path: str) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def _prefers_memfd() -> bool:
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
    """Return what the memory control group (version 2, then 1) leaves; nothing where there is none.

    The files are those of the group that a container sees as its root.
    """
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        root = Path("/sys/fs/cgroup")
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


def _addresses_for(cap_bytes: int, members: int) -> int:
    """Return how much address space to reserve for each arena, in whole pages.

    A process maps an arena when it first needs it, in the common case once: its own to write, one
    whose blocks arrive to read. Addresses are 47 bits wide or, on some kernels, 39, and a process
    may be allowed fewer. A graph keeps its own while it lives, and while a value of it is held. So
    each graph takes at most a twelfth of what this process has left, and a quarter of all is for
    others: for everything else, and for other drivers' graphs over the same actors. What finds no
    addresses goes through the stash.
    """
    mappings = Path("/proc/self/maps").read_text().splitlines()
    stack = next(line for line in mappings if line.endswith("[stack]"))
    width = int(stack.split("-")[0], 16).bit_length()
    taken = sum(int(end, 16) - int(start, 16) for start, end in map(_ends_of, mappings))
    most = max(0, 3 * (1 << width) // 4 - taken) // 12 // (2 * members)
    allowed = _allowed_addresses()
    if allowed is not None:
        most = min(most, allowed // 2 // members)
    wanted = ADDRESSES_PER_BYTE * cap_bytes + LEAST_ADDRESSES
    return max(LEAST_ADDRESSES, min(wanted, most)) // _PAGE * _PAGE


def _ends_of(mapping: str) -> list[str]:
    """Return the first address of a line of /proc/self/maps and the one behind the last."""
    return mapping.split(maxsplit=1)[0].split("-")


def _open_unnamed() -> int:
    """Return the descriptor of an empty file in memory that has no name, closed on exec."""
    if not _prefers_memfd():
        try:
            return os.open(SHM, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:
            pass  # a file system without O_TMPFILE
    return os.memfd_create("rcg", os.MFD_CLOEXEC)


class Segments:
    """The board and the arenas of one graph, as descriptors. Made and owned by the driver.

    Args:
        plan: Decides how many rings there are, of what size and between whom.
        cap_bytes: Most memory that the blocks of all arenas may take together.

    Raises:
        OutOfSharedMemory: There is no room for the rings themselves.
        OutOfDescriptors: There is no descriptor left for them.
    """

    def __init__(self, plan: Plan, *, cap_bytes: int) -> None:
        self.layout = Layout.of(plan)
        self.cap_bytes = cap_bytes
        self._boards: list[int] = []
        self.arenas: list[int] = []
        count = len(self.layout.members)
        reserve = _addresses_for(cap_bytes, count)
        try:
            self._boards.append(_open_unnamed())
            self.size_bytes: int = _native.format_board(
                self.board, count, self._rings(plan.channels), EVENTS_PER_MEMBER, cap_bytes
            )
            for member in range(count):
                self.arenas.append(_open_unnamed())
                _native.format_arena(self.arenas[-1], member, count, reserve)
        except OSError as error:
            self.close()
            told = out_of_descriptors(error, "for the shared memory of a compiled graph")
            raise told or OutOfSharedMemory(
                f"there is no room in shared memory for the channels of this graph "
                f"({error.strerror}): free some, or use fewer or smaller channels",
                cap_bytes=cap_bytes,
            ) from error

    def _rings(
        self, channels: Sequence[ChannelSpec]
    ) -> list[tuple[int, tuple[int, ...], int, int]]:
        members = self.layout.members
        rings = []
        for channel in channels:
            slots = slots_for(channel.slots)
            readers = tuple(members[reader] for reader in channel.readers)
            rings.append((members[channel.writer], readers, slots, _slot_bytes(slots)))
        return rings

    @property
    def board(self) -> int:
        """The board's descriptor; -1 once it is closed."""
        return next(iter(self._boards), -1)

    def seal(self) -> None:
        """Close the arenas' descriptors, once every member has them; what is mapped stays."""
        _close_each(self.arenas)

    def close(self) -> None:
        """Close the descriptors; what is mapped stays. Idempotent, also from several threads."""
        _close_each(self._boards)
        _close_each(self.arenas)


def _close_each(fds: list[int]) -> None:
    """Close what is in there, each once: a number that is closed twice may be another file's."""
    while fds:
        with contextlib.suppress(IndexError):
            os.close(fds.pop())
