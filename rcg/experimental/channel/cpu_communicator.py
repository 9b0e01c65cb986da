# SPDX-License-Identifier: Apache-2.0
"""Ray's path of ``CPUCommunicator``; other names are Ray's."""
# ruff: noqa: D102 - the methods are those of Communicator

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
        world_size: The number of ranks, one for each handle.
        actor_handles: The actors in the order of their ranks.
    """

    _group: Any = None

    def __init__(self, world_size: int, actor_handles: list[Any]) -> None:
        self._actor_handles = actor_handles

    def meet(self, membership: Membership) -> None:
        """Open this rank's end; rcg calls it before ``initialize``."""
        self._group = find_communicator("gloo").open(membership)

    def initialize(self, rank: int) -> None:
        pass  # the ranks have met

    def get_actor_handles(self) -> list[Any]:
        return self._actor_handles

    def get_rank(self, actor: Any) -> int:
        keys = [cluster.actor_key(each) for each in self._actor_handles]
        if cluster.actor_key(actor) not in keys:
            raise ValueError("Actor is not in the CPUCommunicator group.")
        return keys.index(cluster.actor_key(actor))

    def get_self_rank(self) -> int | None:
        return None if self._group is None else int(self._group.rank)

    def send(self, value: Any, peer_rank: int) -> None:
        self._group.send([value], peer_rank)

    def recv(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        peer_rank: int,
        allocator: TorchTensorAllocator | None = None,
    ) -> Any:
        import torch

        room = torch.empty(shape, dtype=dtype) if allocator is None else allocator(shape, dtype)
        self._group.recv([room], peer_rank)
        return room

    def allgather(self, send_buf: Any, recv_buf: Any) -> None:
        self._group.allgather(recv_buf, send_buf)

    def allreduce(self, send_buf: Any, recv_buf: Any, op: ReduceOp = ReduceOp.SUM) -> None:
        recv_buf.copy_(send_buf)
        self._group.allreduce(recv_buf, ReduceOp[op.name])

    def reducescatter(self, send_buf: Any, recv_buf: Any, op: ReduceOp = ReduceOp.SUM) -> None:
        self._group.reducescatter(recv_buf, send_buf, ReduceOp[op.name])

    def destroy(self) -> None:
        if self._group is not None:
            self._group.abort("it was destroyed")
            self._group.destroy()

    def get_transport_name(self) -> str:
        return "cpu"

    @classmethod
    def generate_communicator_id(cls) -> str:
        return uuid.uuid4().hex


__getattr__, __dir__ = names_behind(__name__, __all__)
