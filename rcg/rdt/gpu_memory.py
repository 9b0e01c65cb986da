# SPDX-License-Identifier: Apache-2.0
"""Tensors on a GPU that two processes of a node use: one copies from the memory of the other.

The owner waits until its GPU has done what was queued (``Service``), and says where the tensors lie
(``rcg.comm.cuda_ipc``). The taker maps the allocations, copies, and waits until that is done before
it asks whether they lay there until then. So nothing has to be ordered across the processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from rcg.comm.cuda_ipc import PLACE, CudaMemory, Mappings, pack_place
from rcg.errors import CommError
from rcg.rdt.runs import fill
from rcg.streams import of_type

TRANSPORT: Final = "cuda_ipc"


class GpuMemory:
    """How this process reaches the memory of its GPU at others, and they at it. Any thread.

    Args:
        device: The type of the device.
        make: Returns the memory, where there is such a device.
    """

    def __init__(self, device: str = "cuda", make: Callable[[], Any] = CudaMemory) -> None:
        self.device: Final = device
        self._make = make
        self._made: tuple[Any, Mappings] | None = None
        self._lacks = False
        self._lock = threading.Lock()

    def gpu(self) -> str:
        """Return the id of the GPU of this process; "" if none can be read directly."""
        with self._lock:
            return "" if self._memory() is None else str(self._memory().gpu())

    def offer(self, gpu: str, tensors: Sequence[Any]) -> bytes | None:
        """Return where tensors lie; None if a process on that GPU cannot read them.

        Args:
            gpu: The GPU, as ``gpu`` returns it there.
            tensors: Their bytes: of uint8 [n].
        """
        with self._lock:
            memory = self._memory()
            if memory is None or memory.gpu() != gpu or not all(map(memory.has, tensors)):
                return None
            try:
                return b"".join(pack_place(memory, each) for each in tensors if each.numel())
            except CommError:  # the allocator's segments have no handles
                return None

    def read(self, places: bytes, targets: Sequence[Any]) -> None:
        """Copy tensors of another process.

        Args:
            places: What ``offer`` returned there.
            targets: Where they go: of uint8 [n], on the same GPU.

        Raises:
            Exception: They cannot be read.
        """
        kept = [each for each in targets if each.numel()]
        if len(places) != PLACE.size * len(kept):
            raise ValueError("the places are not those of these tensors")
        with self._lock:
            memory = self._memory()
            if memory is None or self._made is None:
                raise CommError(f"this process has no device {self.device}")
            for number, target in enumerate(kept):
                start = number * PLACE.size
                fill([target], [self._made[1].view(places[start : start + PLACE.size])])
            memory.finish()

    def _memory(self) -> Any:
        """Return the memory, which is made first if need be; None if there is none."""
        if self._made is None and not self._lacks:
            try:
                memory = None if of_type(self.device) is None else self._make()
            except Exception:  # noqa: BLE001 - no CuPy, no driver: then it comes another way
                memory = None
            self._lacks = memory is None
            self._made = None if memory is None else (memory, Mappings(memory))
        return None if self._made is None else self._made[0]


shared: Final = [GpuMemory()]
"""That of this process."""
