# SPDX-License-Identifier: Apache-2.0
"""Tensor transports by name, and the interface of those that users write.

There are rcg's communicators, the direct ways without a group, and what users register. A
registered transport takes its own class with it, in calls, envelopes and handles. So actors that
were made before, actors that run again and other drivers know it, too.

``TensorTransportManager`` has the names that Ray gave it: a class that was written for
``ray.experimental.register_tensor_transport`` works unchanged. When its methods are called, for an
object that ``src`` makes and ``dst`` takes::

    src                                     dst
    extract_tensor_transport_metadata
                                            get_communicator_metadata
    send_multiple_tensors                   recv_multiple_tensors       two-sided
                                            fetch_multiple_tensors
                                            wait_fetch_complete         one-sided
    garbage_collect

Each process has one instance of the class. Its methods are called on threads of rcg, several at
the same time for different objects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from rcg.callers import at_users_line
from rcg.comm.base import Communicator
from rcg.comm.registry import communicator_names, find_communicator, register_communicator
from rcg.errors import TensorMismatch
from rcg.rdt.parts import device_of, place_of


@dataclass
class CommunicatorMetadata:
    """What both ends of a transfer must know of each other; a base class."""


@dataclass
class TensorTransportMetadata:
    """What ``dst`` must know of the tensors of an object.

    Attributes:
        tensor_meta: The shape and dtype of each.
        tensor_device: The type of the device that all are on.
    """

    tensor_meta: list[tuple[Any, Any]]
    tensor_device: str | None = None


@dataclass
class FetchRequest:
    """A fetch that was started; a subclass may keep more, and clean it up in ``__del__``.

    Attributes:
        obj_id: The object.
        tensors: What has been fetched.
    """

    obj_id: str
    tensors: list[Any]


class TensorTransportManager(ABC):
    """Moves tensors, or arrays of another type, from one process to another."""

    @abstractmethod
    def tensor_transport_backend(self) -> str:
        """Return the name of the transport, in upper case."""

    @staticmethod
    @abstractmethod
    def is_one_sided() -> bool:
        """Return whether ``dst`` moves the tensors alone; ``send_multiple_tensors`` is not called.

        A one-sided transport also serves drivers and tasks.
        """

    @staticmethod
    @abstractmethod
    def can_abort_transport() -> bool:
        """Return whether ``abort_transport`` ends a transfer.

        Where it does not, a thread that is left in a transfer stays there; the actor is not killed.
        """

    @abstractmethod
    def actor_has_tensor_transport(self, actor: Any) -> bool:
        """Return whether an actor can use the transport.

        It is asked where a call is made, once for each actor, of the actor that makes the tensors
        and of the one that takes them.

        Args:
            actor: Ray's handle of the actor.
        """

    @abstractmethod
    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> Any:
        """Return the ``TensorTransportMetadata`` of an object that has been made.

        Args:
            obj_id: The object.
            rdt_object: Its tensors.
        """

    @abstractmethod
    def get_communicator_metadata(
        self, src_actor: Any, dst_actor: Any, backend: str | None = None
    ) -> Any:
        """Return the ``CommunicatorMetadata`` of a transfer.

        Args:
            src_actor: Ray's handle of the actor that has the tensors; None for another process.
            dst_actor: Ray's handle of the actor that takes them; None for another process.
            backend: The name of the transport, in upper case.
        """

    @abstractmethod
    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: Any,
        communicator_metadata: Any,
        target_buffers: list[Any] | None = None,
    ) -> list[Any]:
        """Return the tensors of an object, in the order of the metadata.

        Args:
            obj_id: The object.
            tensor_transport_metadata: Of the object.
            communicator_metadata: Of the transfer.
            target_buffers: Where to put them; rcg gives none.
        """

    def fetch_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: Any,
        communicator_metadata: Any,
        target_buffers: list[Any] | None = None,
    ) -> Any:
        """Start to fetch an object; returns a ``FetchRequest``. One-sided transports only."""
        tensors = self.recv_multiple_tensors(
            obj_id, tensor_transport_metadata, communicator_metadata, target_buffers
        )
        return FetchRequest(obj_id, tensors)

    def wait_fetch_complete(self, fetch_request: Any, timeout: float = -1) -> list[Any]:
        """Return the tensors of a fetch that was started.

        Args:
            fetch_request: What ``fetch_multiple_tensors`` returned.
            timeout: Seconds; -1 sets no limit.
        """
        found: list[Any] = fetch_request.tensors
        return found

    @abstractmethod
    def send_multiple_tensors(
        self, tensors: list[Any], tensor_transport_metadata: Any, communicator_metadata: Any
    ) -> None:
        """Send the tensors of an object; ``dst`` receives at the same time."""

    @abstractmethod
    def garbage_collect(self, obj_id: str, tensor_transport_meta: Any, tensors: list[Any]) -> None:
        """Clean up after an object that nobody needs any more."""

    @abstractmethod
    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:
        """End a transfer of which one end has failed or is gone; any thread."""


AUTO: Final = "auto"
"""Tensors come straight from the process that holds them, by ``SHM`` or ``TCP``."""

OBJECT_STORE: Final = "object_store"
"""The same, by the name that Ray has for what needs no group."""

SHM: Final = "shm"
"""On one node: read where they lie, or copied through memory that both processes have."""

TCP: Final = "tcp"
"""From another node: over a connection. On one node, as ``SHM``."""

NIXL: Final = "nixl"
"""Read where they lie by NIXL, also from another node: by RDMA, where there is any."""

_METHODS: Final = (
    "tensor_transport_backend",
    "is_one_sided",
    "can_abort_transport",
    "actor_has_tensor_transport",
    "extract_tensor_transport_metadata",
    "get_communicator_metadata",
    "recv_multiple_tensors",
    "send_multiple_tensors",
    "garbage_collect",
    "abort_transport",
)
_RESERVED: Final = frozenset({"torch_gloo"})


@dataclass(frozen=True, slots=True)
class Transport:
    """A tensor transport.

    Attributes:
        name: Its name, in lower case.
        devices: The types of devices whose tensors it takes; None for all.
        needs_group: Whether both processes must be members of a group.
        manager: The class that moves the tensors, of a user's transport; see
            ``TensorTransportManager``.
        data_type: What that class moves; None for ``torch.Tensor``.
    """

    name: str
    devices: frozenset[str] | None
    needs_group: bool
    manager: type | None = None
    data_type: type | None = None

    @property
    def is_direct(self) -> bool:
        """Whether tensors come by no group, no class of a user's, and no registered memory."""
        return not self.needs_group and self.manager is None and self.name != NIXL

    def check_devices(self, devices: Iterable[str], where: str, value: Any) -> None:
        """Check that tensors can travel.

        Args:
            devices: The type of the device of each.
            where: What errors call the value that they are in.
            value: The value, in which errors name the place of a tensor.

        Raises:
            TensorMismatch: They are on a device that it does not serve, or on several.
        """
        found = sorted(set(devices))
        if len(found) > 1:
            raise TensorMismatch(
                "All tensors in an RDT object must have the same device type. "
                f"{where} has tensors on "
                f"{', '.join(each + self._place(value, each) for each in found)}",
                expected="one type of device",
                found=", ".join(found),
            )
        if self.devices is not None and found[0] not in self.devices:
            raise TensorMismatch(
                f"Tensor transport backend {self.name.upper()} does not support tensor transfer "
                f"on device {found[0]}. {where} has tensors there"
                f"{self._place(value, found[0])}: move them to "
                f"{' or '.join(sorted(self.devices))}, or choose another tensor_transport",
                expected=", ".join(sorted(self.devices)),
                found=found[0],
            )

    def _place(self, value: Any, device: str) -> str:
        """Return where a value has a tensor on a device, for an error: `` (value['a'])``."""
        kind = self.data_type

        def is_wanted(part: Any) -> bool:
            is_tensor = (
                hasattr(type(part), "untyped_storage") if kind is None else (isinstance(part, kind))
            )
            return is_tensor and device_of(part) == device

        found = place_of(value, is_wanted)
        return f" ({found})" if found else ""

    def __reduce__(self) -> tuple[Any, ...]:
        if self.manager is None:
            return find_transport, (self.name,)
        return _load, (self.name, self.devices, self.manager, self.data_type)


_found: Final = {
    name: Transport(name, None, needs_group=False) for name in (OBJECT_STORE, AUTO, SHM, TCP)
}
_found[NIXL] = Transport(NIXL, frozenset({"cpu", "cuda"}), needs_group=False)


def find_transport(name: object) -> Transport:
    """Return the transport of a name, in upper or lower case.

    Raises:
        ValueError: There is none of that name.
    """
    if isinstance(name, str):
        plain = name.lower()
        found = _found.get(plain)
        if found is not None:
            return found
        if plain in communicator_names():
            devices = find_communicator(plain).devices
            return _found.setdefault(plain, Transport(plain, devices, needs_group=True))
    known = ", ".join(sorted({*communicator_names(), *_found}))
    raise ValueError(
        f"Invalid tensor transport: {name}. Known are {known}; rcg.register_tensor_transport adds "
        "others"
    )


@at_users_line
def register_tensor_transport(
    name: str, devices: Iterable[str], cls: type, data_type: type | None = None
) -> None:
    """Register a tensor transport, so that ``tensor_transport=name`` uses it.

    Only the process that defines the methods needs to call it: the class is pickled for the others.
    Registering a class of the same module and name again replaces it: a notebook cell that was run
    again.

    Args:
        name: The name, in upper or lower case; no other transport may have it.
        devices: The types of devices whose tensors it takes: ``cpu``, ``cuda``.
        cls: A class with the methods of ``TensorTransportManager``, or a subclass of
            ``rcg.comm.Communicator``, which then needs a group.
        data_type: The class of the objects that it moves, such as ``numpy.ndarray``; None for
            ``torch.Tensor``. A communicator moves torch's tensors.

    Raises:
        TypeError: An argument has the wrong type, or the class is abstract.
        ValueError: The name is in use, or the class lacks a method.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"the name of a tensor transport must be an identifier, found {name!r}")
    plain = name.lower()
    if not isinstance(cls, type):
        raise TypeError(f"a tensor transport is a class, found {cls!r}")
    if isinstance(devices, str):
        raise TypeError(f"devices are given in a list: devices=[{devices!r}]")
    if issubclass(cls, Communicator):
        if data_type is not None and data_type.__module__.partition(".")[0] != "torch":
            raise ValueError(f"{cls.__name__} is a communicator: it moves torch's tensors only")
        register_communicator(plain, devices, cls)
        _found.pop(plain, None)
        return
    lacking = [each for each in _METHODS if not hasattr(cls, each)]
    if lacking:
        raise ValueError(
            f"transport_manager_class {cls.__name__} must be a subclass of TensorTransportManager, "
            f"or have its methods: it lacks {', '.join(lacking)}"
        )
    abstract = sorted(getattr(cls, "__abstractmethods__", ()))
    if abstract:
        raise TypeError(f"{cls.__name__} does not implement {', '.join(abstract)}")
    if data_type is not None and not isinstance(data_type, type):
        raise TypeError(f"data_type is a class, found {data_type!r}")
    earlier = _found.get(plain)
    is_same = earlier is not None and _origin(earlier.manager) == _origin(cls)
    if not is_same and (earlier or plain in communicator_names() or plain in _RESERVED):
        raise ValueError(f"Transport {name.upper()} already registered.")
    _load(plain, frozenset(devices), cls, data_type)


class WithTransport:
    """A text that begins with the name of a user's transport; it prints as the text.

    Args:
        text: The text.
        transport: The transport, which a process that unpickles this knows from then on.
    """

    __slots__ = ("text", "transport")

    def __init__(self, text: str, transport: Transport) -> None:
        self.text = text
        self.transport = transport

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[Any, ...]:
        return WithTransport, (self.text, self.transport)


def with_transport(text: str) -> str | WithTransport:
    """Return a text that begins with a transport's name; the user's class, if any, goes with it.

    Args:
        text: ``gloo`` alone, or what follows it in the hidden keyword: ``gloo*2:KEY``.
    """
    name = text.partition(":")[0].partition("*")[0]
    found = _found.get(name)
    return text if found is None or found.manager is None else WithTransport(text, found)


def _load(name: str, devices: frozenset[str], manager: type, data_type: type | None) -> Transport:
    made = Transport(name, devices, needs_group=False, manager=manager, data_type=data_type)
    if _found.get(name) != made:
        _found[name] = made
    return _found[name]


def _origin(cls: type | None) -> tuple[str, str] | None:
    return None if cls is None else (cls.__module__, cls.__qualname__)
