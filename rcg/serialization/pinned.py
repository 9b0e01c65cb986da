# SPDX-License-Identifier: Apache-2.0
"""Page-locked memory: blocks of shared memory from which a device copies by itself.

A copy from pageable memory goes through a buffer of the driver's: one more copy, at a third of the
bandwidth or less. So a reader that moves tensors to a device has the blocks locked in which they
arrive. That takes as long as several copies, and blocks are used again, so they stay locked.

Locked pages are held by the device, whatever happens to the file. If memory is given back to the
system, and later claimed again, the block has new pages, and the device would still copy the old
ones. A block says how often that has happened in its arena (``Lease.block``), and what was locked
before is locked anew. Whoever holds a block sees the newest count: its memory cannot be given back
meanwhile. See
https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__MEMORY.html (cudaHostRegister).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from rcg.error_text import describe_error
from rcg.log import Log

__all__ = ["REGISTRARS", "Pins", "Registrar"]

_log = Log()

_PORTABLE: Final = 1  # cudaHostRegisterPortable: for all devices of the process
_LEAST_BYTES: Final = 64 << 10
"""Smaller copies are done by the driver before the call returns, from wherever they come."""


class Registrar(Protocol):
    """Locks memory for a type of devices."""

    def register(self, address: int, size: int) -> None:
        """Lock pages: ``size`` bytes from an address.

        Raises:
            Exception: It cannot be.
        """

    def unregister(self, address: int) -> None:
        """Unlock what was locked at an address."""


class _Cuda:
    """``cudaHostRegister``, as torch has it."""

    def __init__(self) -> None:
        torch = sys.modules["torch"]
        torch.cuda.init()
        self._cudart = torch.cuda.cudart()

    def register(self, address: int, size: int) -> None:
        """See ``Registrar``."""
        self._check(self._cudart.cudaHostRegister(address, size, _PORTABLE))

    def unregister(self, address: int) -> None:
        """See ``Registrar``."""
        self._check(self._cudart.cudaHostUnregister(address))

    def _check(self, status: Any) -> None:
        if int(status):
            raise RuntimeError(f"status {int(status)} ({status})")


REGISTRARS: Final[dict[str, Callable[[], Registrar]]] = {"cuda": _Cuda}
"""What locks memory, by the type of the devices."""


class Pins:
    """What one loop has locked for a type of devices.

    Args:
        device: The type; one without a registrar needs nothing.
        lease_types: The types of buffers over blocks of shared memory.
    """

    def __init__(self, device: str, lease_types: tuple[type, ...]) -> None:
        self._device = device
        self._lease_types = lease_types
        self._registrar: Registrar | None = None
        self._is_off = device not in REGISTRARS
        # By address of the block: its bytes, and the count of its arena when it was locked.
        self._locked: dict[int, tuple[int, int]] = {}

    def lock(self, buffers: Iterable[Any]) -> None:
        """Lock the blocks of buffers, as far as they are in blocks and large.

        Where that fails, copies are slower, and nothing else is wrong; it is not tried again.
        """
        if self._is_off:
            return
        for buffer in buffers:
            if type(buffer) in self._lease_types and memoryview(buffer).nbytes > _LEAST_BYTES:
                try:
                    self._lock(*buffer.block())
                except Exception as error:  # noqa: BLE001 - whatever it is, the copy works
                    self._is_off = True
                    _log.debug(
                        "rcg: memory is not locked for %s: %s", self._device, describe_error(error)
                    )
                    return

    def _lock(self, address: int, size: int, punches: int) -> None:
        found = self._locked.get(address)
        if found == (size, punches) or not size:
            return
        if self._registrar is None:
            self._registrar = REGISTRARS[self._device]()
        # Blocks may have become others since; pages are locked once only.
        for other in [each for each in self._locked if self._overlaps(each, address, size)]:
            del self._locked[other]
            self._registrar.unregister(other)
        self._registrar.register(address, size)
        self._locked[address] = size, punches

    def _overlaps(self, locked: int, address: int, size: int) -> bool:
        return locked < address + size and address < locked + self._locked[locked][0]

    def close(self) -> None:
        """Unlock everything; before the memory is unmapped."""
        self._is_off = True
        while self._locked:
            address, _ = self._locked.popitem()
            try:
                if self._registrar is not None:
                    self._registrar.unregister(address)
            except Exception as error:  # noqa: BLE001 - the rest must be unlocked, too
                _log.debug("rcg: memory stays locked: %s", describe_error(error))
