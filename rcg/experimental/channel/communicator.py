# SPDX-License-Identifier: Apache-2.0
"""The base class of communicators that users write, with the methods of Ray's of this name.

rcg takes any object with these methods, whatever its class; this one stays where Ray's goes. A
class of rcg's own kind derives from ``rcg.comm.Communicator`` and is registered by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from rcg.experimental.behind import names_behind

__all__ = ["Communicator"]


class Communicator(ABC):
    """A group of actors that exchange tensors.

    The driver asks it for its actors. It is pickled and sent to each of them, where ``initialize``
    is called before anything else, and ``destroy`` at the end.
    """

    @abstractmethod
    def initialize(self, rank: int) -> None:
        """Connect this actor, as this rank, with the others."""

    @abstractmethod
    def get_actor_handles(self) -> list[Any]:
        """Return the handles of all its actors."""

    @abstractmethod
    def get_rank(self, actor: Any) -> int:
        """Return the rank of one of these handles."""

    @abstractmethod
    def get_self_rank(self) -> int | None:
        """Return the rank of this process; None in the driver."""

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
        allocator: Callable[[tuple[int, ...], Any], Any] | None = None,
    ) -> Any:
        """Receive a tensor from a rank and return it."""

    @property
    @abstractmethod
    def recv_stream(self) -> Any:
        """The stream that receives; None on a CPU."""

    @property
    @abstractmethod
    def send_stream(self) -> Any:
        """The stream that sends; None on a CPU."""

    @abstractmethod
    def allgather(self, send_buf: Any, recv_buf: Any) -> None:
        """Put the tensors of all ranks one after another into ``recv_buf``."""

    @abstractmethod
    def allreduce(self, send_buf: Any, recv_buf: Any, op: Any) -> None:
        """Combine the tensors of all ranks into ``recv_buf``."""

    @abstractmethod
    def reducescatter(self, send_buf: Any, recv_buf: Any, op: Any) -> None:
        """Combine the tensors of all ranks, and put this rank's part into ``recv_buf``."""

    @abstractmethod
    def destroy(self) -> None:
        """Disconnect."""

    @abstractmethod
    def get_transport_name(self) -> str:
        """Return ``accelerator``, or ``cpu`` if tensors between two actors use shared memory."""

    @classmethod
    @abstractmethod
    def generate_communicator_id(cls) -> str:
        """Return a name for a new group."""


__getattr__, __dir__ = names_behind(__name__, __all__)
