# SPDX-License-Identifier: Apache-2.0
"""In which order a device does what threads have queued on it: torch's streams and events.

A device such as a GPU does its work later, stream by stream. torch gives each thread a current
stream for each device; all threads begin with the default stream, on which methods run. So two
threads that shall not wait for each other's work need streams of their own, and a thread that hands
a tensor to another records that for the device (an event) and for torch's allocator
(``record_stream``). Otherwise the allocator gives the memory of a dropped tensor to the next tensor
of the stream on which it was made, although another stream may still use it.

torch has these for every maker under the same names: ``torch.cuda``, ``torch.npu``. A device
without streams, such as the CPU, has finished what was called. See
https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-streams. Nothing here imports torch: where
it is not loaded there are no tensors to order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

_NEEDED: Final = (
    *("Stream", "current_stream", "default_stream", "set_stream"),
    *("current_device", "set_device", "is_available", "is_initialized"),
)
# What was found: to ask a device whether it is there takes microseconds.
_found: Final[dict[str, Any]] = {"cpu": None}


def of_type(device: str) -> Any:
    """Return torch's module for a type of devices, such as ``torch.cuda``; None without streams.

    None also if this machine has no such device.
    """
    if device in _found:
        return _found[device]
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    module: Any = getattr(torch, device, None)
    if not all(hasattr(module, name) for name in _NEEDED) or not module.is_available():
        module = None
    return _found.setdefault(device, module)


def devices_in_use() -> dict[str, int]:
    """Return the device that is current in this thread, for each type that the process uses.

    A thread that is started later begins with device 0, whatever this one has chosen. Types that no
    tensor has been put on yet are left out: to ask would initialize them.
    """
    module = of_type("cuda")
    if module is None or not module.is_initialized():
        return {}
    return {"cuda": int(module.current_device())}


def take_devices(devices: Mapping[str, int]) -> None:
    """Make devices current in this thread; see ``devices_in_use``."""
    for device, index in devices.items():
        module = of_type(device)
        if module is not None:
            module.set_device(index)


def enter_lane(devices: Iterable[str]) -> None:
    """Give this thread its own streams, so that it and methods do not wait for each other."""
    for device in devices:
        module = of_type(device)
        if module is not None:
            module.set_stream(module.Stream())


def keep_for_methods(tensor: Any) -> None:
    """Have torch keep the memory of a tensor for the default stream, where methods use it.

    It is called for each tensor that a lane makes and hands to methods.
    """
    module = None if tensor.is_cpu else of_type(tensor.device.type)
    if module is not None:
        default = module.default_stream(tensor.device)
        if module.current_stream(tensor.device) != default:
            tensor.record_stream(default)


def keep_for_this_thread(tensor: Any) -> None:
    """Have torch keep the memory of a tensor for the current stream of this thread.

    It is called for each tensor that a method made and a lane uses; see ``keep_for_methods``.
    """
    # Nothing to do on the default stream: a thread that uses another makes that one wait.
    module = None if tensor.is_cpu else of_type(tensor.device.type)
    if module is not None:
        current = module.current_stream(tensor.device)
        if current != module.default_stream(tensor.device):
            tensor.record_stream(current)


Marks = tuple[tuple[Any, Any], ...]
"""Events of streams, each with torch's module for its device."""


class SideStream:
    """A stream beside the current one, for work that others must not wait for one by one.

    What is queued on it comes after all that was queued on the current stream of the calling
    thread, and what is queued there next comes after it. ``module`` is torch's; see ``of_type``.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._device = module.current_device()
        self._stream = module.Stream(self._device)

    def run(self, queue: Callable[[int], None], tensors: Sequence[Any]) -> None:
        """Queue work between what the current stream has and what it gets next.

        ``queue`` gets the address of this stream. ``tensors`` are all that the work uses.
        """
        current = self._module.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            queue(int(self._stream.cuda_stream))
        finally:
            for tensor in tensors:
                tensor.record_stream(self._stream)
            current.wait_stream(self._stream)

    def is_done(self) -> bool:
        """Return whether all that was queued has been done."""
        return bool(self._stream.query())


class Handover:
    """The order of the device for values that go from one thread of a process to another.

    ``devices`` are the types of devices whose tensors may be in them.
    """

    __slots__ = ("_devices",)

    def __init__(self, devices: Collection[str]) -> None:
        self._devices = sorted(devices)

    def mark(self) -> Marks:
        """Return events of what the current streams of this thread have been given so far."""
        modules = map(of_type, self._devices)
        return tuple(
            (module, module.current_stream().record_event())
            for module in modules
            if module is not None and module.is_initialized()
        )

    def wait(self, marks: Marks) -> None:
        """Have the current streams of this thread go on after the events of another's."""
        for module, event in marks:
            module.current_stream().wait_event(event)
