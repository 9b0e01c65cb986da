# SPDX-License-Identifier: Apache-2.0
"""CUDA IPC: tensors among processes that use one GPU; each reads the others' memory directly.

A rank sends the others over Gloo where its tensors lie: an IPC handle of the allocation and the
place in it. They map the allocation, copy, and reply. Events across processes order the copies on
the device: a reader's copy comes after what the writer had queued, and what the writer queues after
the call comes after the copies.

Mapping takes a hundred times as long as starting a copy, so mappings are kept: torch's allocator
gives the same memory out again and again. An allocation that its owner has given back to the GPU
stays mapped, and so taken, until newer ones take its place in the cache.

Memory of torch's ``expandable_segments`` has no such handles, and is refused. See
https://docs.nvidia.com/cuda/cuda-c-programming-guide/ (interprocess communication).
"""

from __future__ import annotations

import ctypes
import importlib
import struct
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final, Self

from rcg.comm.base import Communicator, Membership, ReduceOp, check_tensors, exchange
from rcg.comm.gloo import GlooCommunicator
from rcg.comm.reduction import as_bytes, find_reduction, reduced, unsupported_reduction
from rcg.error_text import describe_error
from rcg.errors import CommError, Unavailable
from rcg.options import Deadline
from rcg.streams import of_type

_REPLY_TAG: Final = 1 << 30  # of replies to messages of a tag below
_CACHED: Final = 64  # mappings of a rank
PLACE: Final = struct.Struct("=64sQQ")
"""The handle of an allocation, where a tensor begins in it, and how many bytes it has."""
_LAZY_PEER_ACCESS: Final = 1  # cudaIpcMemLazyEnablePeerAccess, the only flag there is


class CudaMemory:
    """The current GPU's memory as processes share it, and the order of what they do with it."""

    def __init__(self) -> None:
        self._cuda = of_type("cuda")
        self._torch = importlib.import_module("torch")
        self._runtime = importlib.import_module("cupy.cuda.runtime")
        self._range_of = ctypes.CDLL("libcuda.so.1").cuMemGetAddressRange_v2
        self._device = int(self._cuda.current_device())

    def place_of(self, raw: Any) -> tuple[bytes, int]:
        """Return the handle, 64 bytes, of the allocation of a tensor, and where it begins there.

        Raises:
            CommError: The allocation has no handle.
        """
        base, size = ctypes.c_ulonglong(), ctypes.c_size_t()
        address = ctypes.c_ulonglong(raw.data_ptr())
        status = self._range_of(ctypes.byref(base), ctypes.byref(size), address)
        try:
            if status:
                raise CommError(f"cuMemGetAddressRange failed with status {status}")
            handle = bytes(self._runtime.ipcGetMemHandle(base.value))
        except Exception as error:
            raise CommError(
                "this memory of the GPU cannot be shared with other processes "
                f"({describe_error(error)}): if PYTORCH_CUDA_ALLOC_CONF (or PYTORCH_ALLOC_CONF) "
                "has expandable_segments:True, set it to False, or choose another transport"
            ) from error
        return handle, raw.data_ptr() - base.value

    def gpu(self) -> str:
        """Return the id of the GPU, which is the same in every process."""
        found = getattr(self._cuda.get_device_properties(self._device), "uuid", None)
        return str(found or self._runtime.deviceGetPCIBusId(self._device))

    def has(self, tensor: Any) -> bool:
        """Whether a tensor lies there."""
        return bool(tensor.device.type == "cuda" and tensor.get_device() == self._device)

    def open_handle(self, handle: bytes) -> int:
        """Map an allocation of another process; what is returned is for the two below."""
        return int(self._runtime.ipcOpenMemHandle(handle, _LAZY_PEER_ACCESS))

    def view(self, mapping: int, start: int, size: int) -> Any:
        """Return a tensor of uint8 [size] over a part of a mapped allocation."""
        part = _CudaBytes(mapping + start, size)
        return self._torch.as_tensor(part, device=f"cuda:{self._device}")

    def unmap(self, mapping: int) -> None:
        """Let go of an allocation that nothing uses any more."""
        self._runtime.ipcCloseMemHandle(mapping)

    def event(self) -> Any:
        """Return an event that ``export_event`` can pass to other processes."""
        return self._cuda.Event(interprocess=True)

    def export_event(self, event: Any) -> bytes:
        """Return what another process needs for ``import_event``."""
        event.record(self._cuda.current_stream())  # torch makes the event when it is first used
        return bytes(event.ipc_handle())

    def import_event(self, exported: bytes) -> Any:
        """Return the event of another process."""
        return self._cuda.Event.from_ipc_handle(self._torch.device("cuda", self._device), exported)

    def record(self, event: Any) -> None:
        """Record an event on the current stream."""
        event.record(self._cuda.current_stream())

    def wait(self, event: Any) -> None:
        """Have the current stream wait for the newest record of an event."""
        self._cuda.current_stream().wait_event(event)

    def finish(self) -> None:
        """Return when the current stream has done all that was queued."""
        self._cuda.current_stream().synchronize()


class _CudaBytes:
    """Memory of a GPU as torch takes it: by the CUDA array interface, version 3.

    See https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html.
    """

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }


def pack_place(memory: CudaMemory, raw: Any) -> bytes:
    """Return where a tensor of uint8 [n] lies, for ``Mappings.view`` of another process.

    Raises:
        CommError: It cannot be shared.
    """
    return PLACE.pack(*memory.place_of(raw), raw.numel())


class Mappings:
    """The allocations of other processes that were used last."""

    def __init__(self, memory: CudaMemory) -> None:
        self._memory = memory
        self._kept: OrderedDict[bytes, Any] = OrderedDict()

    def view(self, place: bytes) -> Any:
        """Return the tensor of uint8 [n] at a place that another process has sent."""
        handle, start, size = PLACE.unpack(place)
        mapping = self._kept.get(handle)
        if mapping is None:
            if len(self._kept) >= _CACHED:
                self._memory.finish()  # what was queued may use it
                self._memory.unmap(self._kept.popitem(last=False)[1])
            mapping = self._kept[handle] = self._memory.open_handle(handle)
        self._kept.move_to_end(handle)
        return self._memory.view(mapping, start, size)

    def close(self) -> None:
        """Let go of all."""
        if self._kept:
            self._memory.finish()
        while self._kept:
            self._memory.unmap(self._kept.popitem()[1])


class CudaIpcCommunicator(Communicator):
    """A group of processes that use one GPU; see ``rcg.comm.Communicator``."""

    is_tagged: ClassVar[bool] = True
    devices: ClassVar[frozenset[str]] = frozenset({"cuda"})

    def __init__(
        self, membership: Membership, connected: GlooCommunicator, memory: CudaMemory
    ) -> None:
        super().__init__(membership)
        self._connected = connected
        self._memory = memory
        self._mappings = Mappings(memory)
        self._torch = importlib.import_module("torch")
        # Recorded before tensors are offered to others, and when those of others have been read.
        self._offered, self._read = memory.event(), memory.event()
        self._others: list[tuple[Any, ...]] = []  # the former of each rank, and the latter

    @classmethod
    def memory(cls, membership: Membership) -> CudaMemory:
        """Return how this process reaches the memory of others, or raise ``Unavailable``."""
        importlib.import_module("torch")
        if of_type("cuda") is None:
            raise Unavailable(
                "the transport cuda_ipc needs a GPU, and torch finds none in the process of rank "
                f"{membership.rank} ({membership.labels[membership.rank]}): give the actor a part "
                "of one (num_gpus=0.5), and install a torch with CUDA",
                transport="cuda_ipc",
            )
        try:
            return CudaMemory()
        except (ImportError, OSError) as error:
            raise Unavailable(
                f"the transport cuda_ipc needs CuPy ({describe_error(error)}): "
                "pip install 'rcg[gpu]', or cupy-cuda13x",
                transport="cuda_ipc",
            ) from error

    @classmethod
    def open(cls, membership: Membership) -> Self:
        """Meet the other ranks; see ``Communicator``.

        Raises:
            Unavailable: CuPy is not installed, or torch finds no GPU.
        """
        memory = cls.memory(membership)
        deadline = Deadline(membership.timeout_s)
        connected = GlooCommunicator.open(membership)
        try:
            made = cls(membership, connected, memory)
            made._meet(membership, deadline)
        except BaseException:
            connected.destroy()
            raise
        return made

    def _meet(self, membership: Membership, deadline: Deadline) -> None:
        """Give the others this rank's events, and get theirs."""
        memory = self._memory
        mine = (self._offered, self._read)
        for step, ours in zip(("offered", "read"), mine, strict=True):
            handles = exchange(membership, step, memory.export_event(ours), deadline)
            self._others.append(
                tuple(
                    ours if rank == self.rank else memory.import_event(handle)
                    for rank, handle in enumerate(handles)
                )
            )

    def unsupported(self, dtype: Any, op: ReduceOp | None = None) -> str | None:
        """Return why a dtype cannot be reduced; every dtype can be moved."""
        return None if op is None else unsupported_reduction(dtype, op)

    def reserve(self, operation: str, tensors: Sequence[Any], op: ReduceOp | None = None) -> None:
        """See that there is memory in which tensors are reduced; see ``Communicator``."""
        if op is not None:
            for tensor in tensors:
                tensor.new_empty(3 * tensor.numel())  # the total, another rank's, the result

    # --- between two ranks

    def send(self, tensors: Sequence[Any], peer: int, tag: int = 0) -> None:
        """Have a rank copy tensors; see ``Communicator``."""
        self._check_peer(peer, tag, _REPLY_TAG)
        check_tensors(tensors)
        message = self._places(tensors)
        if message is None:
            return
        self._memory.record(self._offered)
        self._connected.send([message], peer, tag)
        self._connected.recv([self._reply()], peer, _REPLY_TAG + tag)
        self._memory.wait(self._others[1][peer])

    def recv(self, tensors: Sequence[Any], peer: int, tag: int = 0) -> None:
        """Copy tensors of a rank; see ``Communicator``."""
        self._check_peer(peer, tag, _REPLY_TAG)
        check_tensors(tensors)
        kept = [each for each in tensors if each.numel()]
        if not kept:
            return
        message = self._empty(len(kept))
        self._connected.recv([message], peer, tag)
        self._memory.wait(self._others[0][peer])
        for tensor, view in zip(kept, self._views(message), strict=True):
            as_bytes(tensor).copy_(view)
        self._memory.record(self._read)
        self._connected.send([self._reply()], peer, _REPLY_TAG + tag)

    # --- among all

    def broadcast(self, tensors: Sequence[Any], root: int) -> None:
        """Have all others copy the tensors of a rank; see ``Communicator``."""
        self._check_root(root, tensors)
        kept = [each for each in tensors if each.numel()]
        if not kept:
            return
        message = self._places(kept) if self.rank == root else self._empty(len(kept))
        if self.rank == root:
            self._memory.record(self._offered)
        self._connected.broadcast([message], root)
        if self.rank != root:
            self._memory.wait(self._others[0][root])
            for tensor, view in zip(kept, self._views(message), strict=True):
                as_bytes(tensor).copy_(view)
        self._end_reading()

    def allreduce(self, tensor: Any, op: ReduceOp) -> None:
        """Combine the tensors of all ranks, in place; see ``Communicator``."""
        check_tensors((tensor,))
        self._combine(tensor, tensor, op, slice(None), is_reader=True)

    def reduce(self, tensor: Any, root: int, op: ReduceOp) -> None:
        """Combine the tensors of all ranks at one; see ``Communicator``."""
        self._check_root(root, (tensor,))
        self._combine(tensor, tensor, op, slice(None), is_reader=self.rank == root)

    def reducescatter(self, output: Any, tensor: Any, op: ReduceOp) -> None:
        """Combine the tensors of all ranks, and give each its part; see ``Communicator``."""
        self._check_collected(tensor, output)
        count = output.numel()
        part = slice(self.rank * count, (self.rank + 1) * count)
        self._combine(output, tensor, op, part, is_reader=True)

    def _combine(
        self, output: Any, tensor: Any, op: ReduceOp, part: slice, *, is_reader: bool
    ) -> None:
        """Combine a part of the tensors of all ranks, from rank 0 upwards."""
        find_reduction(tensor.dtype, op)  # raises where there is none
        if not tensor.numel():
            return
        parts = [each.view(tensor.dtype)[part] for each in self._of_all(tensor)]
        result = reduced(parts, op) if is_reader else None
        del parts
        self._end_reading()
        if result is not None:
            as_bytes(output).copy_(as_bytes(result))

    def allgather(self, output: Any, tensor: Any) -> None:
        """Put the tensors of all ranks one after another; see ``Communicator``."""
        self._check_collected(output, tensor)
        self._collect(output, tensor)

    def gather(self, output: Any | None, tensor: Any, root: int) -> None:
        """Put the tensors of all ranks one after another at one; see ``Communicator``."""
        self._check_gather(output, tensor, root)
        self._collect(output if self.rank == root else None, tensor)

    def _collect(self, output: Any | None, tensor: Any) -> None:
        if not tensor.numel():
            return
        views = self._of_all(tensor)
        if output is not None:
            for row, view in zip(as_bytes(output).chunk(self.size), views, strict=True):
                row.copy_(view)
        del views
        self._end_reading()

    def barrier(self) -> None:
        """Return when every rank has called it, and all that was queued here is done."""
        self._memory.finish()
        self._connected.barrier()

    # --- places and views

    def _places(self, tensors: Sequence[Any]) -> Any:
        """Return the message that says where tensors lie; None if none has elements."""
        message = b""
        for tensor in tensors:
            if tensor.numel():
                raw = as_bytes(tensor)
                message += pack_place(self._memory, raw)
        if not message:
            return None
        return self._torch.frombuffer(bytearray(message), dtype=self._torch.uint8)

    def _empty(self, count: int) -> Any:
        """Return room for a message about tensors."""
        size = count * PLACE.size
        return self._torch.empty(size, dtype=self._torch.uint8, device="cpu")

    def _reply(self) -> Any:
        return self._torch.zeros(1, dtype=self._torch.uint8, device="cpu")

    def _views(self, message: Any) -> Iterator[Any]:
        places = message.numpy().tobytes()
        for start in range(0, len(places), PLACE.size):
            yield self._mappings.view(places[start : start + PLACE.size])

    def _of_all(self, tensor: Any) -> list[Any]:
        """Return the bytes of the tensors of all ranks, where they lie; this rank's are its own."""
        message = self._places([tensor])
        messages = self._empty(self.size)
        self._memory.record(self._offered)
        self._connected.allgather(messages, message)
        rows = messages.reshape(self.size, -1)
        found = []
        for rank in range(self.size):
            if rank == self.rank:
                found.append(as_bytes(tensor))
            else:
                self._memory.wait(self._others[0][rank])
                found += self._views(rows[rank])
        return found

    def _end_reading(self) -> None:
        """Have this rank's stream wait until all ranks have read what they read."""
        self._memory.record(self._read)
        self._connected.barrier()
        for rank, (_, read) in enumerate(zip(*self._others, strict=True)):
            if rank != self.rank:
                self._memory.wait(read)

    # --- the end

    def abort(self, why: str) -> None:
        """End the pending operation and refuse later ones; see ``Communicator``."""
        self._connected.abort(why)

    def destroy(self) -> None:
        """Close all connections and mappings; idempotent. No operation may be pending."""
        self._connected.destroy()
        self._mappings.close()
