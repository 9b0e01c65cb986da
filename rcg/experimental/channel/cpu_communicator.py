# SPDX-License-Identifier: Apache-2.0
"""Ray's path of ``CPUCommunicator``; other names are Ray's."""

from __future__ import annotations

import uuid
from typing import Any

from rcg import cluster
from rcg.comm import Membership, ReduceOp
from rcg.comm.registry import find_communicator
from rcg.experimental import names_behind
from rcg.experimental.channel.communicator import Communicator, TorchTensorAllocator

__all__ = ["CPUCommunicator"]


class CPUCommunicator(Communicator):
    """A communicator for tensors on the CPU, over Gloo.

    Between two actors of a graph, tensors use shared memory instead, as in Ray.

    Args:
        world_size: The number of ranks.
        actor_handles: The actors in the order of their ranks.
    """

    _group: Any = None

    def __init__(self, world_size: int, actor_handles: list[Any]) -> None:
        self._world_size = world_size
        self._actor_handles = actor_handles

    def meet(self, membership: Membership) -> None:
        """Open this rank's end; rcg calls it before ``initialize``."""
        self._group = find_communicator("gloo").open(membership)

    def initialize(self, rank: int) -> None:
        """Do nothing: the ranks have met."""

    def get_actor_handles(self) -> list[Any]:
        """Return the handles in the order of ranks."""
        return self._actor_handles

    def get_rank(self, actor: Any) -> int:
        """Return the rank of an actor; raises ValueError if it has none."""
        keys = [cluster.actor_key(each) for each in self._actor_handles]
        if cluster.actor_key(actor) not in keys:
            raise ValueError("Actor is not in the CPUCommunicator group.")
        return keys.index(cluster.actor_key(actor))

    def get_self_rank(self) -> int | None:
        """Return the rank of this process; None before the ranks have met."""
        return None if self._group is None else int(self._group.rank)

    def get_world_size(self) -> int:
        """Return the number of ranks."""
        return self._world_size

    def send(self, value: Any, peer_rank: int) -> None:
        """Send a tensor to a rank."""
        self._group.send([value], peer_rank)

    def recv(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        peer_rank: int,
        allocator: TorchTensorAllocator | None = None,
    ) -> Any:
        """Receive a tensor from a rank."""
        import torch

        room = torch.empty(shape, dtype=dtype) if allocator is None else allocator(shape, dtype)
        self._group.recv([room], peer_rank)
        return room

    def allgather(self, send_buf: Any, recv_buf: Any) -> None:
        """Put the tensors of all ranks into ``recv_buf``, one after another."""
        self._group.allgather(recv_buf, send_buf)

    def allreduce(self, send_buf: Any, recv_buf: Any, op: ReduceOp = ReduceOp.SUM) -> None:
        """Combine the tensors of all ranks into ``recv_buf``."""
        recv_buf.copy_(send_buf)
        self._group.allreduce(recv_buf, ReduceOp[op.name])

    def reducescatter(self, send_buf: Any, recv_buf: Any, op: ReduceOp = ReduceOp.SUM) -> None:
        """Combine the tensors of all ranks, and give each its part in ``recv_buf``."""
        self._group.reducescatter(recv_buf, send_buf, ReduceOp[op.name])

    def destroy(self) -> None:
        """End the group, and what is pending in it."""
        if self._group is not None:
            self._group.abort("it was destroyed")
            self._group.destroy()

    def get_transport_name(self) -> str:
        """Return ``cpu``."""
        return "cpu"

    @classmethod
    def generate_communicator_id(cls) -> str:
        """Return a unique id."""
        return uuid.uuid4().hex


__getattr__, __dir__ = names_behind(__name__, __all__)
