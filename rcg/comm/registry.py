# SPDX-License-Identifier: Apache-2.0
"""The names of communicators: rcg's own, and those that users register.

A name is looked up on the driver. The class itself goes to the actors, so registering it there is
not needed.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from rcg.comm.base import Communicator, Membership
from rcg.comm.rays import RaysClass

_TORCHS: Final = ("cpu", "cuda")
# What else a hint may say about a device: no device may have such a name.
_OTHER_WORDS: Final = frozenset({"default", "gpu"})
_LAZY: Final = {
    "gloo": ("rcg.comm.gloo", "GlooCommunicator"),
    "nccl": ("rcg.comm.nccl", "NcclCommunicator"),
    "cuda_ipc": ("rcg.comm.cuda_ipc", "CudaIpcCommunicator"),
}
ACCELERATOR: Final = "accelerator"
"""Ray's word for ``nccl``."""
# Names that mean something else wherever a transport is named.
_RESERVED: Final = frozenset({"auto", "shm", "create", ACCELERATOR})


@dataclass(frozen=True, slots=True)
class Registered:
    """A communicator that has a name."""

    name: str
    devices: frozenset[str]  # the types of devices whose tensors it takes
    cls: type[Communicator]

    @property
    def is_users(self) -> bool:
        """Whether other processes know it only if they are sent its class."""
        return self.name not in _LAZY

    @property
    def is_tagged(self) -> bool:
        """Whether its messages are matched by tags."""
        return self.cls.is_tagged

    @property
    def is_queued(self) -> bool:
        """Whether its operations may return when they are queued on a device."""
        return self.cls.is_queued

    def open(self, membership: Membership) -> Communicator:
        """Open one rank's end of a group; see ``Communicator.open``."""
        return self.cls.open(membership)


_registered: Final[dict[str, Registered]] = {}
_accelerators: Final[list[RaysClass]] = []  # at most one


def register_communicator(name: str, devices: Iterable[str], cls: type[Communicator]) -> None:
    """Register a class of communicators, so that ``transport=name`` uses it.

    It is called in the process that compiles the graph; the class is pickled for the actors.
    Registering the same class again has no effect. A class of the same module and name replaces the
    earlier one: a notebook cell that was run again.

    Args:
        name: The name; no other communicator may have it.
        devices: The types of devices whose tensors it takes, as torch names them: ``cpu``,
            ``cuda``, ``npu``. The class must declare them, too. After that they may be named in
            ``with_tensor_transport(device=...)``.
        cls: A subclass of ``rcg.comm.Communicator``. An object with the methods of Ray's
            ``Communicator`` needs no name: pass the object itself as ``transport``.

    Raises:
        TypeError: An argument has the wrong type, or the class is abstract.
        ValueError: The name is in use, or a device is not the type of one or not served by the
            class.
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a communicator must be a string, found {name!r}")
    if not name.isidentifier():
        raise ValueError(f"the name of a communicator must be an identifier, found {name!r}")
    _check_class(name, cls)
    found = _checked_devices(devices, cls)
    if name in _LAZY or name in _RESERVED:
        raise ValueError(f"{name!r} is a transport of rcg: choose another name")
    earlier = _registered.get(name)
    if earlier is not None and _origin(earlier.cls) != _origin(cls):
        raise ValueError(
            f"{name!r} is already the name of {earlier.cls.__module__}.{earlier.cls.__qualname__}"
        )
    _registered[name] = Registered(name, found, cls)


def register_accelerator(device: str, cls: type) -> None:
    """Register what serves ``accelerator`` and ``nccl`` in place of NCCL, for a type of devices.

    Args:
        device: The type of devices, as torch names it.
        cls: A class with the methods of Ray's ``Communicator``, and the arguments of those of Ray.

    Raises:
        TypeError: It lacks one of the methods.
    """
    _accelerators[:] = [RaysClass(ACCELERATOR, device, cls)]


def accelerator() -> RaysClass | None:
    """Return what ``register_accelerator`` was given last; None if it was not called."""
    return _accelerators[0] if _accelerators else None


def find_communicator(name: str) -> Registered | RaysClass:
    """Return the communicator of a name; raises ValueError if it is not registered."""
    if name == ACCELERATOR and _accelerators:
        return _accelerators[0]
    name = "nccl" if name == ACCELERATOR else name
    if name in _registered:
        return _registered[name]
    if name in _LAZY:
        module, attribute = _LAZY[name]
        cls: type[Communicator] = getattr(importlib.import_module(module), attribute)
        return Registered(name, cls.devices, cls)
    raise ValueError(
        f"there is no communicator {name!r}: known are {', '.join(communicator_names())}; "
        "rcg.register_communicator adds others"
    )


def communicator_names() -> list[str]:
    """Return the names that ``find_communicator`` knows and supports."""
    return sorted({*_LAZY, *_registered})


def device_types() -> list[str]:
    """Return the types of devices that rcg knows: torch's, and those that were registered."""
    others = {device for each in _registered.values() for device in each.devices}
    return [*_TORCHS, *sorted(others.difference(_TORCHS))]


def _check_class(name: str, cls: Any) -> None:
    if not isinstance(cls, type):
        raise TypeError(f"the communicator {name!r} must be a class, found {cls!r}")
    if not issubclass(cls, Communicator):
        raise TypeError(
            f"{cls.__name__} is no subclass of rcg.comm.Communicator; an object with the methods "
            "of Ray's Communicator is passed as transport=, without a name"
        )
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise TypeError(f"{cls.__name__} is abstract: it lacks {missing}")
    for attribute in ("is_tagged", "devices"):
        if not hasattr(cls, attribute):
            raise TypeError(f"{cls.__name__} lacks the attribute {attribute}")


def _checked_devices(devices: Iterable[str], cls: type[Communicator]) -> frozenset[str]:
    if isinstance(devices, str):
        raise TypeError(f"devices must be a collection of names, such as [{devices!r}]")
    found = frozenset(devices)
    wrong = sorted(repr(device) for device in found if not _is_type(device))
    if wrong or not found:
        raise ValueError(
            "devices must be types of devices as torch names them, without a number: cpu, cuda, "
            f"npu; found {', '.join(wrong) or 'none'}"
        )
    surplus = sorted(found - cls.devices)
    if surplus:
        raise ValueError(f"{cls.__name__} does not serve {', '.join(surplus)}")
    return found


def _is_type(device: object) -> bool:
    """Return whether something may be the type of a device."""
    is_name = isinstance(device, str) and device.isidentifier() and device == device.lower()
    return is_name and device not in _OTHER_WORDS


def _origin(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__
