# SPDX-License-Identifier: Apache-2.0
"""Page-locked memory: blocks of shared memory from which a device copies by itself.

A copy from pageable memory goes through a buffer of the device's driver: one more copy, at a third
of the bandwidth or less. So a reader that moves tensors to a device locks the blocks in which they
arrive. Locking takes as long as several copies, so blocks, which are used again, stay locked.

A device copies from the pages that it locked. When memory is given back to the system and claimed
again, the same addresses have new pages, and the device would copy the old ones, without an error.
Three rules prevent that:

* What is locked lies in a mapping that serves nothing but these copies (``arena_map_movable`` in
  ``native/arena.h``). A tensor that a method copies to a device by itself lies in another mapping,
  where nothing is ever locked.
* An arena counts how often it gave memory back. Each buffer brings the newest count, and a block
  gives nothing back while a buffer is over it. When the count has changed, everything that was
  locked in this arena is unlocked before anything is copied, however small it is.
* After a failure nothing stays locked. If memory cannot be unlocked, copies are made from the heap.

See https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__MEMORY.html (cudaHostRegister).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from rcg.error_text import describe_error
from rcg.log import Log

_log = Log()

_PORTABLE: Final = 1  # cudaHostRegisterPortable: for all devices of the process
_NOT_REGISTERED: Final = 713  # cudaErrorHostMemoryNotRegistered
_LEAST_BYTES: Final = 64 << 10
"""Up to this size a copy takes some microseconds from wherever it comes, and locking a hundred or
more. CUDA stages copies of this size from pageable memory before it returns."""


class Registrar(Protocol):
    """Locks memory for a type of devices. Any exception of it means that it could not."""

    def register(self, address: int, size: int) -> None:
        """Lock pages: ``size`` bytes from an address, none of which are locked."""

    def unregister(self, address: int) -> None:
        """Unlock what was locked at an address, if anything was."""


class _Cuda:
    """``cudaHostRegister``, as torch has it; made when the first tensor arrives."""

    def __init__(self) -> None:
        import torch

        torch.cuda.init()
        self._torch: Any = torch
        self._cudart: Any = torch.cuda.cudart()

    def register(self, address: int, size: int) -> None:
        """See ``Registrar``."""
        self._check(self._cudart.cudaHostRegister(address, size, _PORTABLE))

    def unregister(self, address: int) -> None:
        """See ``Registrar``."""
        self._check(self._cudart.cudaHostUnregister(address), _NOT_REGISTERED)

    def _check(self, status: Any, allowed: int = 0) -> None:
        if not int(status):
            return
        self._clear_error()
        if int(status) != allowed:
            raise RuntimeError(f"status {int(status)} ({status})")

    def _clear_error(self) -> None:
        # CUDA returns the error to the next call that asks for the last one in this thread. torch
        # asks after each kernel launch, so the user's next operation would raise it.
        try:
            self._torch.empty(1, device="cuda").fill_(0)
        except RuntimeError as error:
            _log.debug("rcg: cleared an error of CUDA: %s", describe_error(error))


REGISTRARS: Final[dict[str, Callable[[], Registrar]]] = {"cuda": _Cuda}
"""What locks memory, by the type of the devices."""


@dataclass(slots=True)
class _Arena:
    """What is locked of one arena."""

    punches: int  # how often the arena had given memory back when all of this was locked
    sizes: dict[int, int] = field(default_factory=dict)  # the bytes of each block, by its address


class Pins:
    """What one loop has locked for a type of devices. Only the loop's thread uses it.

    Args:
        device: The type; for one without a registrar nothing is locked.
        lease_types: The types of buffers over blocks of shared memory.
    """

    def __init__(self, device: str, lease_types: tuple[type, ...]) -> None:
        self._device = device
        self._lease_types = lease_types
        self._registrar: Registrar | None = None
        self._is_off = device not in REGISTRARS
        self._is_stuck = False  # something is locked that could not be unlocked
        self._arenas: dict[int, _Arena] = {}  # by the number of the owner
        self._pid = os.getpid()

    def lock(self, buffers: Sequence[Any]) -> Sequence[Any]:
        """Return buffers from which a device may copy, in locked blocks where that pays.

        Where locking fails, copies are only slower; it is not tried again. What is not mapped to be
        moved is left as it is.
        """
        self._forget_if_forked()
        if not self._is_off:
            try:
                for buffer in buffers:
                    if type(buffer) in self._lease_types:
                        self._lock(buffer)
            except Exception as error:  # noqa: BLE001 - whatever it is, the copy works
                self._is_off = True
                _log.debug(
                    "rcg: memory is not locked for %s: %s", self._device, describe_error(error)
                )
                self.release()
        if self._is_stuck:
            return [bytearray(each) if self._is_moved(each) else each for each in buffers]
        return buffers

    def _is_moved(self, buffer: Any) -> bool:
        return type(buffer) in self._lease_types and buffer.block() is not None

    def _lock(self, buffer: Any) -> None:
        block = buffer.block()
        if block is None:
            return
        owner, address, size, punches = block
        arena = self._arenas.setdefault(owner, _Arena(punches))
        if arena.punches != punches:
            # Any of it may be out of date, and all of it would keep memory that was given back.
            if not self._unlock(arena):
                raise RuntimeError("memory that was given back stays locked")
            arena.punches = punches
        if memoryview(buffer).nbytes <= _LEAST_BYTES or arena.sizes.get(address) == size:
            return
        if self._registrar is None:
            self._registrar = REGISTRARS[self._device]()
        if address in arena.sizes:  # the block has more memory now
            self._registrar.unregister(address)
            del arena.sizes[address]
        # Noted first: an interrupt must not leave anything locked that is not noted here.
        arena.sizes[address] = size
        try:
            self._registrar.register(address, size)
        except Exception:
            del arena.sizes[address]
            raise

    def _unlock(self, arena: _Arena) -> bool:
        """Unlock what is locked of an arena; returns whether all of it could be."""
        for address in list(arena.sizes):
            try:
                if self._registrar is not None:
                    self._registrar.unregister(address)
                del arena.sizes[address]
            except Exception as error:  # noqa: BLE001 - the rest must be unlocked, too
                _log.debug("rcg: memory stays locked: %s", describe_error(error))
        return not arena.sizes

    def release(self) -> None:
        """Unlock everything, so that memory that was given back is free; it is locked again later.

        A forked child does nothing: what its parent locked is not the child's.
        """
        self._forget_if_forked()
        for arena in self._arenas.values():
            if not self._unlock(arena):
                self._is_off = self._is_stuck = True

    def _forget_if_forked(self) -> None:
        if os.getpid() != self._pid:
            self._is_off = True
            self._arenas.clear()

    def close(self) -> None:
        """Unlock everything for good; before the memory is unmapped. Idempotent."""
        self._is_off = True
        self.release()
