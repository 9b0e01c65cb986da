# SPDX-License-Identifier: Apache-2.0
"""The interface of tensor transports that users write, with the names that Ray gave it.

A class that was written for ``ray.experimental.register_tensor_transport`` works unchanged. When
its methods are called, for an object that ``src`` makes and ``dst`` takes::

    src                                     dst
    extract_tensor_transport_metadata
                                            get_communicator_metadata
    send_multiple_tensors                   recv_multiple_tensors       two-sided
                                            fetch_multiple_tensors
                                            wait_fetch_complete         one-sided
    garbage_collect

Each process has one instance of the class. Its methods are called on threads of rcg's, several at
the same time for different objects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

__all__ = [
    "CommunicatorMetadata",
    "FetchRequest",
    "TensorTransportManager",
    "TensorTransportMetadata",
]


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
