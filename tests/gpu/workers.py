# SPDX-License-Identifier: Apache-2.0
"""Actors of the checks; they make tensors on the device that they are created with."""

from __future__ import annotations

import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import torch

import rcg


class Worker:
    """Makes tensors, computes with them and looks at them.

    Args:
        device: The type of the device.
        module: Imported first; it may give the process the device.
    """

    def __init__(self, device: str, module: str = "") -> None:
        if module:
            __import__(module)
        self._device = device
        self._weights: Any = None
        self._kept: Any = None

    def make(self, n: float, size: int = 1000) -> torch.Tensor:
        return torch.full((size,), float(n), device=self._device)

    def add(self, *tensors: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(tensors[0])
        for each in tensors:
            total += each
        return total

    def twice(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor * 2

    def totals(self, *tensors: torch.Tensor) -> list[tuple[str, float]]:
        return [(each.device.type, float(each.cpu().double().sum())) for each in tensors]

    def ways(self) -> list[str]:
        """How tensors that this actor got came here."""
        from rcg.rdt.process import here

        return sorted({each.transport for each in here().got})

    def forbid_mapping(self) -> None:
        """Have no memory of other processes on the device."""
        from rcg.rdt import gpu_memory

        def fail(*_: Any) -> Any:
            raise RuntimeError("it cannot be mapped")

        gpu_memory.shared[0].read = fail  # type: ignore[method-assign]

    def publish(self, number: float, count: int) -> None:
        """Publish a version of weights [count] that all are ``number``."""
        if self._kept is None:
            self._kept = torch.empty(count, device=self._device)
            self._weights = rcg.weights.publish("checked", {"weight": self._kept})
        self._kept.fill_(number)
        self._weights.push()

    def is_read(self) -> None:
        """Wait until every reader has the version."""
        self._weights.wait()

    def read_weights(self, count: int) -> list[tuple[str, float]]:
        if self._kept is None:
            self._kept = torch.zeros(count, device=self._device)
            self._weights = rcg.weights.subscribe("checked", {"weight": self._kept})
        self._weights.update()
        return self.totals(self._kept)

    def prepare(self, side: int, width: int) -> None:
        """Have what ``kept`` gives [side, side], and what ``multiplied`` multiplies it with."""
        self._kept = torch.ones(side, side, device=self._device)
        self._weights = torch.ones(side, width, device=self._device)

    def kept(self, _: int) -> torch.Tensor:
        return self._kept

    def lend(self, count: int) -> torch.Tensor:
        """The first ``count`` numbers of what ``prepare`` made."""
        return self._kept.reshape(-1)[:count]

    def multiplied(self, tensor: torch.Tensor) -> torch.Tensor:
        return (tensor @ self._weights)[0, :1].clone()

    def echo(self, number: int) -> int:
        return number

    def first(self, tensor: torch.Tensor) -> float:
        """The first number, once the tensor is there."""
        return float(tensor.reshape(-1)[:1].cpu()[0])

    def number(self, tensor: torch.Tensor) -> float:
        return float(tensor.cpu()[0])

    def seconds(self, what: str, tensor: torch.Tensor, repeats: int = 10) -> float:
        """How long a copy of a tensor of the CPU to the device takes, at best.

        Args:
            what: ``shared memory``, where it lies, or ``pageable`` or ``pinned`` memory.
            tensor: The tensor.
            repeats: How often it is tried.
        """
        if what == "pageable":
            tensor = tensor.clone()
        elif what == "pinned":
            tensor = tensor.pin_memory()
        room = torch.empty_like(tensor, device=self._device)
        best = float("inf")
        for _ in range(repeats):
            self._finish()
            started = time.perf_counter()
            room.copy_(tensor)
            self._finish()
            best = min(best, time.perf_counter() - started)
        return best

    def _finish(self) -> None:
        module = getattr(torch, self._device)
        if hasattr(module, "synchronize"):
            module.synchronize()


class ProcessGroup:
    """NCCL of ``torch.distributed`` with the methods of Ray's ``Communicator``, as in vLLM."""

    def __init__(self, size: int, ident: str, rank: int, handles: list[Any], *_: Any) -> None:
        self._size, self._handles, self._rank = size, handles, rank
        self._path = str(Path(tempfile.gettempdir(), ident))
        self._group: Any = None

    @classmethod
    def generate_communicator_id(cls) -> str:
        return uuid.uuid4().hex

    def initialize(self, rank: int) -> None:
        import torch.distributed as dist

        self._rank = rank
        store = dist.FileStore(self._path, self._size)
        options = dist.ProcessGroupNCCL.Options()
        self._group = dist.ProcessGroupNCCL(store, rank, self._size, options)

    def get_actor_handles(self) -> list[Any]:
        return self._handles

    def get_rank(self, actor: Any) -> int:
        return [each._actor_id for each in self._handles].index(actor._actor_id)

    def get_self_rank(self) -> int:
        return self._rank

    def get_world_size(self) -> int:
        return self._size

    def send(self, value: torch.Tensor, peer_rank: int) -> None:
        self._group.send([value], peer_rank, 0).wait()

    def recv(self, shape: Any, dtype: Any, peer_rank: int, allocator: Any = None) -> torch.Tensor:
        make = allocator or (lambda *how: torch.empty(how[0], dtype=how[1], device="cuda"))
        tensor: torch.Tensor = make(shape, dtype)
        self._group.recv([tensor], peer_rank, 0).wait()
        return tensor

    @property
    def recv_stream(self) -> Any:
        return torch.cuda.current_stream()

    @property
    def send_stream(self) -> Any:
        return torch.cuda.current_stream()

    def allgather(self, send_buf: torch.Tensor, recv_buf: torch.Tensor) -> None:
        self._group.allgather([list(recv_buf.chunk(self._size))], [send_buf]).wait()

    def allreduce(self, send_buf: torch.Tensor, recv_buf: torch.Tensor, op: Any = None) -> None:
        recv_buf.copy_(send_buf)
        self._group.allreduce([recv_buf]).wait()

    def reducescatter(self, send_buf: torch.Tensor, recv_buf: torch.Tensor, op: Any = None) -> None:
        self._group.reduce_scatter([recv_buf], [list(send_buf.chunk(self._size))]).wait()

    def destroy(self) -> None:
        self._group = None

    def get_transport_name(self) -> str:
        return "accelerator"
