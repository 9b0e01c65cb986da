# SPDX-License-Identifier: Apache-2.0
"""The actors between which transfers of tensors are measured, with a raw Gloo group of their own.

The group is built directly in the processes that a graph uses, so that both move the same bytes
between the same processes. Times are those of the monotonic clock, which all processes of a machine
share.
"""

from __future__ import annotations

import os
import time
from array import array
from datetime import timedelta
from typing import Any

__all__ = ["Peer"]

__rcg_user__ = True  # see rcg.frames

GUARD = timedelta(seconds=120)
HOST = "127.0.0.1"


class Peer:
    """One rank of the processes."""

    def __init__(self) -> None:
        self._tensor: Any = None
        self._group: Any = None
        self._rank = 0

    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    def meet(self, path: str, rank: int, size: int) -> None:
        """Build a process group of Gloo with the other ranks, which meet in a file."""
        import torch.distributed as dist

        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._timeout = GUARD
        options._devices = [gloo.create_device(hostname=HOST, lazy_init=False)]
        self._group = gloo(dist.FileStore(path, size), rank, size, options)
        self._rank = rank

    def hold(self, size_bytes: int) -> None:
        """Make the tensor that ``held`` returns, float32."""
        import torch

        self._tensor = torch.ones(size_bytes // 4)

    def held(self, _: object) -> Any:
        """Return the tensor."""
        return self._tensor

    def new(self, _: object) -> Any:
        """Return a tensor like it, which nothing else holds."""
        return self._tensor.clone()

    def take(self, tensor: Any) -> int:
        """Return how many numbers a tensor has, and forget it."""
        return int(tensor.numel())

    def ping_pong(self, calls: int, warm_up: int) -> list[int]:
        """Send a tensor as large as the held one to and fro; return half of each round trip."""
        import torch

        group, mine, other = self._group, [torch.ones_like(self._tensor)], 1 - self._rank
        samples = array("q")
        for _ in range(warm_up + calls):
            start = time.monotonic_ns()
            if self._rank == 0:
                group.send(mine, other, 0).wait()
                group.recv(mine, other, 0).wait()
            else:
                group.recv(mine, other, 0).wait()
                group.send(mine, other, 0).wait()
            samples.append((time.monotonic_ns() - start) // 2)
        return samples[warm_up:].tolist()

    def allreduce(self, calls: int, warm_up: int, is_kept: bool) -> list[tuple[int, int]]:
        """Combine tensors as large as the held one in place, or copies of it.

        Returns:
            When each call began and when it ended.
        """
        import torch

        group, mine = self._group, [torch.zeros_like(self._tensor).fill_(0.0)]
        found = []
        for _ in range(warm_up + calls):
            start = time.monotonic_ns()
            if is_kept:
                mine[0].copy_(self._tensor)
            group.allreduce(mine).wait()
            found.append((start, time.monotonic_ns()))
        return found[warm_up:]
