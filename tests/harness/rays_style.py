# SPDX-License-Identifier: Apache-2.0
"""Communicators as users write them for Ray: threads of one process, no tags, no abort."""

from __future__ import annotations

from enum import Enum
from typing import Any, ClassVar

from rcg.comm import Membership
from rcg.comm import ReduceOp as OurOp
from rcg.comm.local_store import LocalStore
from rcg.comm.rays import RaysOpener
from rcg.testing import OrderedLocalCommunicator


class ReduceOp(Enum):
    """As ``ray.experimental.util.types.ReduceOp``."""

    SUM = 0
    PRODUCT = 1
    MAX = 2
    MIN = 3
    AVG = 4


class RaysStyle:
    """Has the methods of Ray's ``Communicator`` and inherits from nothing."""

    def __init__(self, size: int, store: LocalStore) -> None:
        self._size = size
        self._store = store
        self._rank: int | None = None
        self._inner: Any = None

    @classmethod
    def of(cls, membership: Membership) -> RaysStyle:
        assert isinstance(membership.store, LocalStore)
        return cls(membership.size, membership.store.share("rays", LocalStore))

    def initialize(self, rank: int) -> None:
        self._rank = rank
        for each in range(self._size):  # it waits for nobody
            self._store.set(f"here/{each}", b"")
        labels = tuple(map(str, range(self._size)))
        self._inner = OrderedLocalCommunicator.open(Membership("rays", rank, labels, self._store))

    def get_actor_handles(self) -> list[Any]:
        return [f"actor{rank}" for rank in range(self._size)]

    def get_rank(self, actor: Any) -> int:
        return self.get_actor_handles().index(actor)

    def get_self_rank(self) -> int | None:
        return self._rank

    def get_world_size(self) -> int:
        return self._size

    def send(self, value: Any, peer_rank: int) -> None:
        self._inner.send([value], peer_rank)

    def recv(self, shape: Any, dtype: Any, peer_rank: int, allocator: Any = None) -> Any:
        import torch

        assert isinstance(shape, tuple)
        found = allocator(shape, dtype) if peer_rank else torch.empty(shape, dtype=dtype)
        self._inner.recv([found], peer_rank)
        return found

    def allgather(self, send_buf: Any, recv_buf: Any) -> None:
        self._inner.allgather(recv_buf, send_buf)

    def allreduce(self, send_buf: Any, recv_buf: Any, op: ReduceOp = ReduceOp.SUM) -> None:
        assert isinstance(op, ReduceOp)
        recv_buf.copy_(send_buf)
        self._inner.allreduce(recv_buf, OurOp[op.name])

    def reducescatter(self, send_buf: Any, recv_buf: Any, op: ReduceOp = ReduceOp.SUM) -> None:
        assert isinstance(op, ReduceOp)
        self._inner.reducescatter(recv_buf, send_buf, OurOp[op.name])

    def destroy(self) -> None:
        if self._inner is not None:
            self._inner.destroy()

    def get_transport_name(self) -> str:
        return "cpu"

    @classmethod
    def generate_communicator_id(cls) -> str:
        return "rays"


class Distorting(RaysStyle):
    """Gives another result than it was asked for: each rank once for each ``distort``.

    Opens as a communicator of rcg's does.
    """

    devices = RaysOpener.devices
    distort: ClassVar[Any] = None
    ranks: ClassVar[set[int]] = set()
    """The ranks that have not distorted anything yet."""

    @classmethod
    def open(cls, membership: Membership) -> Any:
        return RaysOpener(cls.of(membership)).open(membership)

    def recv(self, shape: Any, dtype: Any, peer_rank: int, allocator: Any = None) -> Any:
        found = super().recv(shape, dtype, peer_rank, allocator)
        return Distorting.distort(found) if self._is_to() else found

    def allgather(self, send_buf: Any, recv_buf: Any) -> Any:
        super().allgather(send_buf, recv_buf)
        return Distorting.distort(recv_buf) if self._is_to() else None

    def allreduce(self, send_buf: Any, recv_buf: Any, op: ReduceOp = ReduceOp.SUM) -> Any:
        super().allreduce(send_buf, recv_buf, op)
        return Distorting.distort(recv_buf) if self._is_to() else None

    def reducescatter(self, send_buf: Any, recv_buf: Any, op: ReduceOp = ReduceOp.SUM) -> Any:
        super().reducescatter(send_buf, recv_buf, op)
        return Distorting.distort(recv_buf) if self._is_to() else None

    def _is_to(self) -> bool:
        found = self._rank in self.ranks
        self.ranks.discard(self._rank)
        return found


def distorting(distort: Any, ranks: Any) -> None:
    """Have these ranks give another result the next time: ``distort`` of the right one."""
    Distorting.distort = staticmethod(distort)
    Distorting.ranks = set(ranks)
