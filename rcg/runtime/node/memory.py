# SPDX-License-Identifier: Apache-2.0
"""How much memory and how many addresses a graph may take on this machine."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Final

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
    limits = [_available_memory()]
    allowed = _allowed_addresses()
    if allowed is not None:
        limits.append(allowed // 4)
    if not prefers_memfd():
        limits.append(_free_bytes(SHM))
    limits.extend(_cgroup_room())
    return max(64 << 20, min(limits) // 2)


def _free_bytes(path: str) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


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
