# SPDX-License-Identifier: Apache-2.0
"""NCCL and CUDA IPC for the fake device: what rcg calls of the two libraries, in main memory.

``FakeNccl`` has the part of ``cupy.cuda.nccl`` that rcg uses. Its ranks are processes, and it moves
bytes over Gloo, at once. Like NCCL it knows addresses, counts and numbers for dtypes, and no
tensors. ``FakeMemory`` reads the memory of another process (``process_vm_readv``).

Importing this module gives the fake device streams (``tests.harness.fake_streams``).
"""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from rcg.comm import Membership, ReduceOp
from rcg.comm.cuda_ipc import CudaIpcCommunicator
from rcg.comm.gloo import GlooCommunicator
from rcg.comm.nccl import NcclCommunicator
from rcg.errors import CommError
from tests.harness import fake_streams
from tests.harness.fake_device import DEVICE

fake_streams.install()


def over(address: int, count: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """Return a tensor of the CPU [count] over memory of the fake device."""
    raw = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(raw, dtype=dtype)


class Files:
    """A ``Store`` in a folder: what the unique id of NCCL leads to."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def _at(self, key: str) -> Path:
        return self._folder / key.replace("/", "_")

    def set(self, key: str, value: bytes) -> None:
        with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
            file.write(value)
        os.rename(file.name, self._at(key))

    def get(self, keys: Sequence[str], timeout_s: float | None = None) -> list[bytes]:
        while not self.has(keys):
            time.sleep(0.001)
        return [self._at(key).read_bytes() for key in keys]

    def has(self, keys: Sequence[str]) -> bool:
        return all(self._at(key).exists() for key in keys)

    def add(self, key: str, amount: int) -> int:
        raise NotImplementedError

    def close(self) -> None:
        pass


class NcclError(RuntimeError):
    """What the library raises."""


class FakeNccl:
    """Stands for the module ``cupy.cuda.nccl``."""

    available = True
    NCCL_INT8, NCCL_UINT8, NCCL_INT32, NCCL_INT64 = 0, 1, 2, 4
    NCCL_FLOAT16, NCCL_FLOAT32, NCCL_FLOAT64, NCCL_BFLOAT16 = 6, 7, 8, 9
    NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN = 0, 1, 2, 3

    def __init__(self) -> None:
        self._grouped: list[Callable[[], None]] | None = None

    def get_unique_id(self) -> bytes:
        return tempfile.mkdtemp(prefix="rcg-test-nccl-").encode().ljust(128, b"\0")

    def groupStart(self) -> None:
        assert self._grouped is None
        self._grouped = []

    def groupEnd(self) -> None:
        grouped, self._grouped = self._grouped, None
        assert grouped is not None
        for call in grouped:
            call()

    def NcclCommunicator(self, size: int, unique_id: bytes, rank: int) -> FakeComm:
        assert len(unique_id) == 128
        return FakeComm(self, size, unique_id.rstrip(b"\0").decode(), rank)

    def do(self, call: Callable[[], None]) -> None:
        if self._grouped is None:
            call()
        else:
            self._grouped.append(call)


_TYPES = {
    0: torch.int8, 1: torch.uint8, 2: torch.int32, 4: torch.int64,
    6: torch.float16, 7: torch.float32, 8: torch.float64, 9: torch.bfloat16,
}  # fmt: skip
_OPS = (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MAX, ReduceOp.MIN)


class FakeComm:
    """Stands for ``cupy.cuda.nccl.NcclCommunicator``."""

    def __init__(self, library: FakeNccl, size: int, folder: str, rank: int) -> None:
        self._library = library
        self._rank, self._size = rank, size
        self._folder = folder
        labels = tuple(map(str, range(size)))
        self._gloo = GlooCommunicator.open(Membership("fake", rank, labels, Files(folder)))

    def _do(self, stream: int, read: Any, written: Any, call: Callable[[], None]) -> None:
        """Do a call that reads memory at an address and writes it at another; 0 for none."""

        def act() -> None:
            if read:
                fake_streams.use_at(read, False, stream)
            try:
                call()
            except CommError as error:
                raise NcclError(f"NCCL_ERROR_REMOTE_ERROR: {error}") from error
            if written:
                fake_streams.use_at(written, True, stream)

        self._library.do(act)

    def send(self, buf: int, count: int, dtype: int, peer: int, stream: int) -> None:
        data = over(buf, count, _TYPES[dtype])
        self._do(stream, buf, 0, lambda: self._gloo.send([data], peer))

    def recv(self, buf: int, count: int, dtype: int, peer: int, stream: int) -> None:
        data = over(buf, count, _TYPES[dtype])
        self._do(stream, 0, buf, lambda: self._gloo.recv([data], peer))

    def bcast(self, buf: int, count: int, dtype: int, root: int, stream: int) -> None:
        data = over(buf, count, _TYPES[dtype])
        is_root = root == self._rank
        self._do(
            stream,
            buf if is_root else 0,
            0 if is_root else buf,
            lambda: self._gloo.broadcast([data], root),
        )

    def allReduce(self, source: int, to: int, count: int, dtype: int, op: int, stream: int) -> None:
        def call() -> None:
            made = over(source, count, _TYPES[dtype]).clone()
            self._gloo.allreduce(made, _OPS[op])
            over(to, count, _TYPES[dtype]).copy_(made)

        self._do(stream, source, to, call)

    def reduce(
        self, source: int, to: int, count: int, dtype: int, op: int, root: int, stream: int
    ) -> None:
        def call() -> None:
            made = over(source, count, _TYPES[dtype]).clone()
            self._gloo.reduce(made, root, _OPS[op])
            if root == self._rank:
                over(to, count, _TYPES[dtype]).copy_(made)

        self._do(stream, source, to if root == self._rank else 0, call)

    def allGather(self, source: int, to: int, count: int, dtype: int, stream: int) -> None:
        kind = _TYPES[dtype]
        parts = over(to, count * self._size, kind), over(source, count, kind)
        self._do(stream, source, to, lambda: self._gloo.allgather(*parts))

    def reduceScatter(
        self, source: int, to: int, count: int, dtype: int, op: int, stream: int
    ) -> None:
        kind = _TYPES[dtype]
        parts = over(to, count, kind), over(source, count * self._size, kind)
        self._do(stream, source, to, lambda: self._gloo.reducescatter(*parts, _OPS[op]))

    def check_async_error(self) -> None:
        pass

    def abort(self) -> None:
        self._gloo.abort("ncclCommAbort")
        shutil.rmtree(self._folder, ignore_errors=True)

    def destroy(self) -> None:
        self._gloo.destroy()
        shutil.rmtree(self._folder, ignore_errors=True)


class NcclOnFake(NcclCommunicator):
    """``NcclCommunicator`` of rcg, with the fake library on the fake device."""

    devices: ClassVar[frozenset[str]] = frozenset({DEVICE})

    @classmethod
    def library(cls) -> Any:
        return FakeNccl()


class _Part(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("size", ctypes.c_size_t)]  # an iovec


_read_of = ctypes.CDLL(None, use_errno=True).process_vm_readv
_read_of.restype = ctypes.c_ssize_t
_read_of.argtypes = (
    ctypes.c_int,
    *(ctypes.POINTER(_Part), ctypes.c_ulong, ctypes.POINTER(_Part), ctypes.c_ulong, ctypes.c_ulong),
)


class FakeMemory:
    """As ``CudaMemory``, of the fake device; a handle is a process and an address.

    Attributes:
        open_count: How many mappings are open, and how many have been.
    """

    mapped_count = 0
    open_count = 0

    def place_of(self, raw: Any) -> tuple[bytes, int]:
        fake_streams.use(raw, writes=False)
        base = raw.untyped_storage().data_ptr()
        return struct.pack("=QQ", os.getpid(), base).ljust(64, b"\0"), raw.data_ptr() - base

    def gpu(self) -> str:
        return "the fake one"

    def has(self, tensor: Any) -> bool:
        return bool(tensor.device.type == DEVICE)

    def open_handle(self, handle: bytes) -> Any:
        FakeMemory.mapped_count += 1
        FakeMemory.open_count += 1
        return struct.unpack_from("=QQ", handle)

    def view(self, mapping: Any, start: int, size: int) -> Any:
        pid, base = mapping
        made = torch.empty(size, dtype=torch.uint8, device=DEVICE)
        ours, theirs = _Part(made.data_ptr(), size), _Part(base + start, size)
        found = _read_of(pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
        if found != size:
            raise OSError(ctypes.get_errno(), "process_vm_readv")
        return made

    def unmap(self, mapping: Any) -> None:
        FakeMemory.open_count -= 1

    def event(self) -> Any:
        return fake_streams.Event()

    def export_event(self, event: Any) -> bytes:
        return b"event"

    def import_event(self, exported: bytes) -> Any:
        assert exported == b"event"
        return fake_streams.Event()

    def record(self, event: Any) -> None:
        event.record()

    def wait(self, event: Any) -> None:
        fake_streams.current_stream().wait_event(event)

    def finish(self) -> None:
        fake_streams.current_stream().synchronize()


class IpcOnFake(CudaIpcCommunicator):
    """``CudaIpcCommunicator`` of rcg, on the fake device."""

    devices: ClassVar[frozenset[str]] = frozenset({DEVICE})

    @classmethod
    def memory(cls, membership: Membership) -> Any:
        return FakeMemory()
