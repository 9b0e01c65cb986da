# SPDX-License-Identifier: Apache-2.0
"""NCCL: tensors in the memory of NVIDIA GPUs, one GPU a rank, by ``cupy.cuda.nccl``.

An operation returns when it is queued. The group has a stream of its own: what it queues there
comes after all that the caller has queued on its current stream, and before what the caller queues
next (``rcg.streams``). So "done" is the device's, as ``Communicator`` has it.

NCCL does not report a dead process: its kernels wait for ever. So the ranks are also connected over
Gloo, over which they meet, wait for each other and learn of a lost rank. ``ncclCommAbort`` ends a
wait inside a kernel. After that a tensor that was being received holds anything; the graph that
aborts is over and delivers nothing.

Messages between two ranks are matched by their order: NCCL has no tags. See
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, Self

from rcg.comm.base import Communicator, Membership, ReduceOp, check_tensors, exchange
from rcg.comm.gloo import GlooCommunicator
from rcg.comm.reduction import Reduction, as_bytes, find_reduction, unsupported_reduction
from rcg.comm.refusal import Refusal
from rcg.comm.sideline import LeftBehind, Sideline
from rcg.error_text import describe_error, shielding
from rcg.errors import OutOfThreads, RcgError, Unavailable
from rcg.options import Deadline
from rcg.streams import SideStream, of_type
from rcg.threads import start_thread

_MAX_TAG: Final = 1 << 31
_GLANCE_S: Final = 0.0005
_LAST_S: Final = 1.0  # for what is queued to be done before a group is destroyed
_INSTALL: Final = "pip install 'rcg[gpu]', or cupy-cuda13x nvidia-nccl-cu13"
# The names of NCCL's constants, by torch's name of the dtype. The rest is carried in one of these.
_DTYPES: Final = {
    "uint8": "NCCL_UINT8",
    "int8": "NCCL_INT8",
    "int32": "NCCL_INT32",
    "int64": "NCCL_INT64",
    "float16": "NCCL_FLOAT16",
    "bfloat16": "NCCL_BFLOAT16",
    "float32": "NCCL_FLOAT32",
    "float64": "NCCL_FLOAT64",
}
_OPS: Final = {
    ReduceOp.SUM: "NCCL_SUM",
    ReduceOp.PRODUCT: "NCCL_PROD",
    ReduceOp.MAX: "NCCL_MAX",
    ReduceOp.MIN: "NCCL_MIN",
}


class NcclCommunicator(Communicator):
    """A group of NCCL; see ``rcg.comm.Communicator``.

    Each rank is a process, on any machine, whose current device is a GPU that no other rank has.
    Between machines NCCL takes the network that it finds, or that ``NCCL_SOCKET_IFNAME`` names.
    """

    is_tagged: ClassVar[bool] = False
    is_queued: ClassVar[bool] = True
    devices: ClassVar[frozenset[str]] = frozenset({"cuda"})

    def __init__(self, membership: Membership, library: Any, connected: GlooCommunicator) -> None:
        super().__init__(membership)
        self._library = library
        self._connected = connected
        self._device = min(self.devices)
        self._side = SideStream(of_type(self._device))
        self._nccl: Any = None
        self._refusal = Refusal(membership)
        self._reserved: list[Any] = []
        self._sideline = Sideline(f"rcg-{membership.group}-nccl", self._look)
        self._aborting: dict[str, threading.Thread] = {}  # one, made in one step
        self._bytes_type = library.NCCL_UINT8

    @classmethod
    def library(cls) -> Any:
        """Return ``cupy.cuda.nccl``, or raise ``Unavailable``."""
        try:
            library = importlib.import_module("cupy.cuda.nccl")
        except ImportError as error:
            raise Unavailable(
                f"the transport nccl needs CuPy ({describe_error(error)}): {_INSTALL}",
                transport="nccl",
            ) from error
        if not library.available:
            raise Unavailable(
                f"the transport nccl needs libnccl, which CuPy does not find: {_INSTALL}",
                transport="nccl",
            )
        return library

    @classmethod
    def open(cls, membership: Membership) -> Self:
        """Meet the other ranks; see ``Communicator``.

        Raises:
            Unavailable: CuPy or NCCL is not installed, or torch finds no GPU.
        """
        library = cls.library()
        importlib.import_module("torch")
        if of_type(min(cls.devices)) is None:
            raise Unavailable(
                f"the transport nccl needs a GPU, and torch finds none in the process of rank "
                f"{membership.rank} ({membership.labels[membership.rank]}): give the actor one "
                "(num_gpus=1), and install a torch with CUDA",
                transport="nccl",
            )
        deadline = Deadline(membership.timeout_s)
        connected = GlooCommunicator.open(membership)
        opened: Communicator = connected
        try:
            opened = made = cls(membership, library, connected)
            made._connect(membership, deadline)
        except BaseException:
            opened.destroy()
            raise
        return made

    def _connect(self, membership: Membership, deadline: Deadline) -> None:
        """Build the communicator of NCCL.

        NCCL waits for all ranks without a limit. So they enter it together, and on a thread that is
        left behind if one is lost just then.
        """
        mine = self._library.get_unique_id() if self.rank == 0 else b""
        membership = replace(membership, timeout_s=deadline.remaining_s())
        unique_id = exchange(membership, "nccl", bytes(mine), deadline)[0]
        module = of_type(self._device)
        device = module.current_device()

        def initialize() -> None:
            module.set_device(device)  # the thread is another
            self._nccl = self._library.NcclCommunicator(self.size, unique_id, self.rank)

        try:
            self._sideline.run(initialize)
        except LeftBehind:
            raise self._refusal.error() from None
        except Exception as error:
            raise self._failure("initialization", error) from error
        self._check("initialization")

    def unsupported(self, dtype: Any, op: ReduceOp | None = None) -> str | None:
        """Return why a dtype cannot be reduced; every dtype can be moved."""
        return None if op is None else unsupported_reduction(dtype, op)

    def reserve(self, operation: str, tensors: Sequence[Any], op: ReduceOp | None = None) -> None:
        """Take the memory in which tensors are reduced; see ``Communicator``."""
        self._reserved = []
        if op is not None:
            for tensor in tensors:
                how = find_reduction(tensor.dtype, op)
                is_scattered = operation == "reducescatter"
                found = [how.memory_for(tensor, is_scattered and how.is_by_order)]
                if is_scattered:  # and for the part of this rank
                    part = tensor.detach().reshape(-1)[: tensor.numel() // self.size]
                    found.append(how.memory_for(part, False))
                self._reserved += [each for each in found if each is not None]

    # --- between two ranks

    def send(self, tensors: Sequence[Any], peer: int, tag: int = 0) -> None:
        """Queue the sending of tensors to a rank; see ``Communicator``."""
        self._check_peer(peer, tag, _MAX_TAG)
        check_tensors(tensors)
        self._move("send", [(each, peer) for each in tensors])

    def recv(self, tensors: Sequence[Any], peer: int, tag: int = 0) -> None:
        """Queue the receiving of tensors from a rank; see ``Communicator``."""
        self._check_peer(peer, tag, _MAX_TAG)
        check_tensors(tensors)
        self._move("recv", [(each, peer) for each in tensors])

    def _move(self, method: str, moves: Sequence[tuple[Any, int]]) -> None:
        """Send or receive each of these tensors, to or from the peer beside it, all at once."""
        kept = [(each, peer) for each, peer in moves if each.numel()]

        def queue(stream: int) -> None:
            call = getattr(self._nccl, method)
            for tensor, peer in kept:
                call(tensor.data_ptr(), tensor.nbytes, self._bytes_type, peer, stream)

        self._queue(method, queue, [each for each, _ in kept], is_group=len(kept) > 1)

    # --- among all

    def broadcast(self, tensors: Sequence[Any], root: int) -> None:
        """Give the tensors of a rank to all others; see ``Communicator``."""
        self._check_root(root, tensors)
        kept = [each for each in tensors if each.numel()]

        def queue(stream: int) -> None:
            for each in kept:
                self._nccl.bcast(each.data_ptr(), each.nbytes, self._bytes_type, root, stream)

        self._queue("broadcast", queue, kept, is_group=len(kept) > 1)

    def allreduce(self, tensor: Any, op: ReduceOp) -> None:
        """Combine the tensors of all ranks, in place; see ``Communicator``."""
        check_tensors((tensor,))
        how = find_reduction(tensor.dtype, op)
        carried = self._load(how, tensor)
        self._combine("allReduce", how, carried, carried, carried.numel())
        self._store(how, tensor, carried)

    def reduce(self, tensor: Any, root: int, op: ReduceOp) -> None:
        """Combine the tensors of all ranks at one; see ``Communicator``."""
        self._check_root(root, (tensor,))
        how = find_reduction(tensor.dtype, op)
        carried = self._load(how, tensor)
        self._combine("reduce", how, carried, carried, carried.numel(), root)
        if self.rank == root:
            self._store(how, tensor, carried)

    def reducescatter(self, output: Any, tensor: Any, op: ReduceOp) -> None:
        """Combine the tensors of all ranks, and give each its part; see ``Communicator``."""
        self._check_collected(tensor, output)
        how = find_reduction(tensor.dtype, op)
        carried = self._load(how, tensor, is_copied=how.is_by_order)
        part = how.carry(output) if how.is_view else self._memory(how, output)
        self._combine("reduceScatter", how, carried, part, part.numel())
        self._store(how, output, part)

    def allgather(self, output: Any, tensor: Any) -> None:
        """Put the tensors of all ranks one after another; see ``Communicator``."""
        self._check_collected(output, tensor)
        if not tensor.numel():
            return self._check("allgather")

        def queue(stream: int) -> None:
            self._nccl.allGather(
                tensor.data_ptr(), output.data_ptr(), tensor.nbytes, self._bytes_type, stream
            )

        return self._queue("allgather", queue, (output, tensor))

    def gather(self, output: Any | None, tensor: Any, root: int) -> None:
        """Put the tensors of all ranks one after another at one; see ``Communicator``."""
        self._check_gather(output, tensor, root)
        if self.rank != root:
            self._move("send", [(as_bytes(tensor), root)])
            return
        parts = as_bytes(output).reshape(self.size, -1)
        self._move("recv", [(parts[rank], rank) for rank in range(self.size) if rank != root])
        parts[root].copy_(as_bytes(tensor))

    def barrier(self) -> None:
        """Return when every rank has called it, and all that was queued here is done."""
        self._check("barrier")
        while not self._side.is_done():
            time.sleep(_GLANCE_S)
            self._look()
            self._check("barrier")
        try:
            self._connected.barrier()
        except RcgError as error:
            raise self._failure("barrier", error) from error

    def _load(self, how: Reduction, tensor: Any, *, is_copied: bool = False) -> Any:
        """Return what is reduced for a tensor, in reserved memory if it needs some."""
        if how.is_view and not is_copied:
            return how.load(tensor)
        return how.load(tensor, self._memory(how, tensor))

    def _memory(self, how: Reduction, tensor: Any) -> Any:
        """Return an uninitialized tensor in the carrier, which is no view of this one."""
        reserved = self._reserved.pop(0) if self._reserved else None
        return how.memory_for(tensor, True, reserved)

    def _combine(
        self, method: str, how: Reduction, source: Any, target: Any, count: int, *root: int
    ) -> None:
        """Queue a reduction of NCCL from a flat tensor to another, or to the same."""
        dtype = getattr(self._library, _DTYPES[str(how.carrier).removeprefix("torch.")])
        op = getattr(self._library, _OPS[how.op])

        def queue(stream: int) -> None:
            call = getattr(self._nccl, method)
            call(source.data_ptr(), target.data_ptr(), count, dtype, op, *root, stream)

        if count:
            self._queue(method, queue, (source, target))
        else:
            self._check(method)

    def _store(self, how: Reduction, tensor: Any, carried: Any) -> None:
        how.finish(carried, self.size)
        if not how.is_view:
            how.store(tensor, carried)

    def _queue(
        self,
        method: str,
        queue: Callable[[int], None],
        tensors: Sequence[Any],
        *,
        is_group: bool = False,
    ) -> None:
        """Queue an operation that uses ``tensors``; NCCL takes the calls of a group together."""
        self._check(method)
        if not tensors:
            return

        def together(stream: int) -> None:
            self._library.groupStart()
            try:
                queue(stream)
            finally:
                self._library.groupEnd()

        try:
            self._side.run(together if is_group else queue, tensors)
        except Exception as error:
            raise self._failure(method, error) from error
        if self._refusal.errors:  # aborted meanwhile: what NCCL has queued may be nothing
            raise self._refusal.error()

    def _check(self, method: str) -> None:
        """Raise if no operation can begin."""
        if self._refusal.errors:
            raise self._refusal.error()
        if self._connected.has_lost_a_rank():
            raise self._failure(method, "the connection to a rank is lost")
        if self._nccl is not None:
            try:
                self._nccl.check_async_error()
            except Exception as error:
                raise self._failure(method, error) from error

    # --- the end

    def abort(self, why: str) -> None:
        """End what is queued and pending, and refuse later operations; see ``Communicator``."""
        self._refusal.abort(why)
        self._connected.abort(why)
        self._abort_soon()

    def destroy(self) -> None:
        """Close all connections and end all threads; idempotent. No operation may be pending.

        What is queued has a second to be done; it is aborted after that.
        """
        was_ended = bool(self._refusal.errors)
        self._refusal.destroy()
        deadline = Deadline(_LAST_S)
        while not was_ended and not self._side.is_done() and not deadline.expired:
            time.sleep(_GLANCE_S)
        if was_ended or not self._side.is_done():
            self._abort_soon()
        for aborting in list(self._aborting.values()):
            with contextlib.suppress(RuntimeError):  # it could not start, or is about to
                aborting.join(_LAST_S)
        found, self._nccl = self._nccl, None
        if found is not None and not self._aborting:
            with shielding():
                found.destroy()
        self._connected.destroy()
        self._sideline.close()

    def _look(self) -> None:
        """Abort if a rank is lost: nothing else ends what waits for it."""
        if self._connected.has_lost_a_rank():
            self._refusal.fail(f"group {self.group}: the connection to a rank is lost")
            self._abort_soon()

    def _abort_soon(self) -> None:
        """Have NCCL abort on a thread of its own, because it may take a while; here without one."""
        name = f"rcg-{self.group}-abort"
        aborting = threading.Thread(target=self._abort_now, name=name, daemon=True)
        if self._aborting.setdefault("thread", aborting) is aborting:
            try:
                start_thread(aborting, "to abort operations of NCCL")
            except OutOfThreads:
                self._abort_now()

    def _abort_now(self) -> None:
        self._sideline.leave()
        found = self._nccl
        if found is not None:
            with shielding():
                found.abort()

    def _failure(self, method: str, why: object) -> RcgError:
        """Return the error for a failed operation. The peers' operations end, too."""
        text = describe_error(why) if isinstance(why, BaseException) else str(why)
        self._refusal.fail(f"{method} in group {self.group} failed: {text}")
        self._connected.abort(text)
        self._abort_soon()
        return self._refusal.error()
