# SPDX-License-Identifier: Apache-2.0
"""Ray's abstract ``Communicator``, for classes that users write, whether this Ray has it or not.

rcg accepts any object with these methods (``rcg.comm.rays``), so a class may inherit from Ray's
``Communicator`` just as well.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from rcg.comm import ReduceOp
from rcg.experimental import names_behind

__all__ = ["Communicator", "ReduceOp", "TorchTensorAllocator"]

# (shape, dtype) -> tensor
TorchTensorAllocator = Callable[[tuple[int, ...], Any], Any]


class Communicator(ABC):
    """A user's communicator, for a fixed list of actors.

    It is pickled for each actor and initialized there. Messages between two ranks are matched by
    their order.
    """

    @abstractmethod
    def initialize(self, rank: int) -> None:
        """Begin, in the actor that has this rank; called before any other method."""

    @abstractmethod
    def get_actor_handles(self) -> list[Any]:
        """Return the handles of all actors of the group."""

    @abstractmethod
    def get_rank(self, actor: Any) -> int:
        """Return the rank of an actor.

        Raises:
            ValueError: It does not belong to the group.
        """

    @abstractmethod
    def get_self_rank(self) -> int | None:
        """Return the rank of this process; None before ``initialize``."""

    def get_world_size(self) -> int:
        """Return the number of ranks."""
        return len(self.get_actor_handles())

    @abstractmethod
    def send(self, value: Any, peer_rank: int) -> None:
        """Send a tensor to a rank."""

    @abstractmethod
    def recv(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        peer_rank: int,
        allocator: TorchTensorAllocator | None = None,
    ) -> Any:
        """Receive a tensor from a rank, into a tensor of the allocator's, and return it."""

    @property
    def recv_stream(self) -> Any:
        """The stream that receives; rcg does not use it."""
        return None

    @property
    def send_stream(self) -> Any:
        """The stream that sends; rcg does not use it."""
        return None

    @abstractmethod
    def allgather(self, send_buf: Any, recv_buf: Any) -> None:
        """Put the tensors of all ranks into ``recv_buf``, one after another."""

    @abstractmethod
    def allreduce(self, send_buf: Any, recv_buf: Any, op: ReduceOp) -> None:
        """Combine the tensors of all ranks into ``recv_buf``."""

    @abstractmethod
    def reducescatter(self, send_buf: Any, recv_buf: Any, op: ReduceOp) -> None:
        """Combine the tensors of all ranks, and give each its part in ``recv_buf``."""

    @abstractmethod
    def destroy(self) -> None:
        """End the group; pending operations should fail."""

    @abstractmethod
    def get_transport_name(self) -> str:
        """Return the name of the transport: ``cpu`` and ``gloo`` take tensors on the CPU."""

    @classmethod
    @abstractmethod
    def generate_communicator_id(cls) -> str:
        """Return a unique id."""


__getattr__, __dir__ = names_behind(__name__, __all__)
