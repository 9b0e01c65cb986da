# SPDX-License-Identifier: Apache-2.0
"""Gloo: tensors in main memory, over sockets; of ranks on one machine, of the loopback device.

A lost process closes its sockets, which ends the operations of its peers, and ``abort`` closes
ours. But when a connection closes, Gloo (seen with PyTorch 2.13) does not end two kinds of waits:
for sending a message that is partly written, and for receiving one of which a part has come. So
long waits run on a thread that can be left behind (``sideline``); it ends with Gloo's time limit.
Waits for small messages do not: see ``docs/design/data-plane.md``. And ``abort`` closes our
connections when nothing moves on them any more: where all processes are alive, each message that is
under way arrives.

The sizes of what is sent and received must agree: Gloo ends a process that receives more bytes than
it has room for, and no exception can be caught there.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar, Final, Self

from rcg.comm import gloo_group
from rcg.comm.base import Communicator, Membership, ReduceOp, check_tensors
from rcg.comm.gloo_group import Group
from rcg.comm.reduction import Reduction, as_bytes, find_reduction, unsupported_reduction
from rcg.comm.refusal import Refusal
from rcg.comm.sideline import LeftBehind, Sideline
from rcg.errors import OutOfThreads, RcgError
from rcg.options import Deadline
from rcg.threads import start_thread

_NO_LIMIT: Final = timedelta(days=3650)
# Of what Gloo may forget. A process may be suspended, by a debugger, while others wait for it.
_LIMIT: Final = timedelta(minutes=10)
_MOMENT: Final = timedelta(milliseconds=250)  # a collective can be waited for again
# Messages of together no more bytes arrive whole: the buffers of a socket hold them all.
_WHOLE_BYTES: Final = 32 << 10
_STILL_S: Final = 0.3  # without progress for this long, a transfer is stuck
_GRACE_S: Final = 5.0  # for what moves
# What Gloo says besides: the line of its source, and a guess.
_ASIDE: Final = re.compile(r"^\[[^\]]*:\d+\] |\. This is typically .*$")
# Where struct tcp_info of Linux has tcpi_bytes_acked and tcpi_bytes_received.
_BYTES_MOVED: Final = struct.Struct("=120xQQ")
_LOST: Final = "the connection to a rank is lost"
_MAX_TAG: Final = (1 << 31) - 1
# Of the messages of ``gather`` and ``broadcast``; those of ``send`` and ``recv`` are smaller.
_GATHER_TAG: Final = _MAX_TAG
_BROADCAST_TAG: Final = _MAX_TAG - 1
# What Gloo's broadcast takes. It moves other dtypes as bytes.
_BROADCAST: Final = frozenset(
    ("float32", "float64", "float16", "bfloat16", "uint8", "int8", "int32", "int64")
)


class GlooCommunicator(Communicator):
    """A group of Gloo; see ``rcg.comm.Communicator``. Each rank is a process, on any machine."""

    is_tagged: ClassVar[bool] = True
    devices: ClassVar[frozenset[str]] = frozenset({"cpu"})

    def __init__(self, membership: Membership, group: Group) -> None:
        super().__init__(membership)
        dist = gloo_group.distributed()
        self._group = group.process_group
        self._connections = deque(group.connections)  # emptied by ``abort`` or ``destroy``
        self._hang_ups = select.poll()
        for connection in group.connections:
            self._hang_ups.register(connection, select.POLLRDHUP)
        self._refusal = Refusal(membership)
        self._reserved: list[Any] = []
        self._sideline = Sideline(f"rcg-{membership.group}-gloo", self._look)
        self._closing: dict[str, threading.Thread] = {}  # one, which any thread makes in one step
        self._is_destroyed = threading.Event()
        self._ops: dict[ReduceOp, Any] = {
            op: getattr(dist.ReduceOp, op.name) for op in ReduceOp if op is not ReduceOp.AVG
        }
        self._allreduce = {
            op: _with_fields(dist.AllreduceOptions(), reduceOp=found)
            for op, found in self._ops.items()
        }
        self._reduce = dist.ReduceOptions
        self._broadcast = dist.BroadcastOptions
        torch = importlib.import_module("torch")
        self._plain = frozenset(getattr(torch, name) for name in _BROADCAST)
        self._barrier = dist.BarrierOptions()
        self._allgather = dist.distributed_c10d.AllgatherOptions()

    @classmethod
    def open(cls, membership: Membership) -> Self:
        """Meet the other ranks; see ``Communicator``.

        Raises:
            Unavailable: PyTorch is not installed, or has no Gloo.
        """
        group = gloo_group.build(membership)
        try:
            return cls(membership, group)
        except BaseException:
            group.drop()
            raise

    def unsupported(self, dtype: Any, op: ReduceOp | None = None) -> str | None:
        """Return why a dtype cannot be reduced; every dtype can be moved."""
        return None if op is None else unsupported_reduction(dtype, op)

    def reserve(self, operation: str, tensors: Sequence[Any], op: ReduceOp | None = None) -> None:
        """Take the memory in which tensors are reduced; see ``Communicator``."""
        self._reserved = []
        if operation == "allgather":
            # Gloo takes as much as the outputs for itself; to have seen that there is some must do.
            for tensor in tensors:
                tensor.new_empty(self.size * tensor.numel())
        if op is not None:
            is_copied = operation == "reducescatter"
            for each in tensors:
                carrier = find_reduction(each.dtype, op).memory_for(each, is_copied)
                self._reserved += [] if carrier is None else [carrier]

    # --- between two ranks

    def send(self, tensors: Sequence[Any], peer: int, tag: int = 0) -> None:
        """Send tensors to a rank; see ``Communicator``."""
        if peer == self.rank or not 0 <= tag < _BROADCAST_TAG:
            self._check_peer(peer, tag, _BROADCAST_TAG)
        check_tensors(tensors)
        self._move("send", tensors, [peer] * len(tensors), tag)

    def recv(self, tensors: Sequence[Any], peer: int, tag: int = 0) -> None:
        """Receive tensors from a rank; see ``Communicator``."""
        if peer == self.rank or not 0 <= tag < _BROADCAST_TAG:
            self._check_peer(peer, tag, _BROADCAST_TAG)
        check_tensors(tensors)
        self._move("recv", tensors, [peer] * len(tensors), tag)

    # --- among all

    def broadcast(self, tensors: Sequence[Any], root: int) -> None:
        """Give the tensors of a rank to all others; see ``Communicator``."""
        self._check_root(root, tensors)
        if sum([each.nbytes for each in tensors]) <= _WHOLE_BYTES:
            options = _with_fields(self._broadcast(), rootRank=root, rootTensor=0)
            plain = self._plain
            self._collective(
                "broadcast",
                *(([each if each.dtype in plain else as_bytes(each)], options) for each in tensors),
            )
            return
        # Not with Gloo's: if a rank is lost, it cuts off the messages to all others.
        self._check("broadcast")
        group, (parent, children) = self._group, _tree(self.rank, root, self.size)
        try:
            self._sideline.run(lambda: _pass_on(group, tensors, parent, children))
        except RuntimeError as error:
            raise self._failure("broadcast", _reason_of(error)) from error

    def allreduce(self, tensor: Any, op: ReduceOp) -> None:
        """Combine the tensors of all ranks, in place; see ``Communicator``."""
        check_tensors((tensor,))
        how = find_reduction(tensor.dtype, op)
        is_direct = how.carrier is tensor.dtype
        carried = tensor if is_direct else self._load(how, tensor)
        self._collective("allreduce", ([carried], self._allreduce[how.op]))
        if not is_direct or how.has_quotient:
            how.finish(carried, self.size)
        if not how.is_view:
            how.store(tensor, carried)

    def allgather(self, output: Any, tensor: Any) -> None:
        """Put the tensors of all ranks one after another; see ``Communicator``."""
        self._check_collected(output, tensor)
        self._collective("_allgather_base", (as_bytes(output), as_bytes(tensor), self._allgather))

    def reducescatter(self, output: Any, tensor: Any, op: ReduceOp) -> None:
        """Combine the tensors of all ranks, and give each its part; see ``Communicator``."""
        self._check_collected(tensor, output)
        how = find_reduction(tensor.dtype, op)
        carried = self._load(how, tensor, is_copied=True)
        self._collective("allreduce", ([carried], self._allreduce[how.op]))
        part = carried.chunk(self.size)[self.rank] if carried.numel() else carried
        how.finish(part, self.size)
        how.store(output, part)

    def reduce(self, tensor: Any, root: int, op: ReduceOp) -> None:
        """Combine the tensors of all ranks at one; see ``Communicator``."""
        self._check_root(root, (tensor,))
        how = find_reduction(tensor.dtype, op)
        carried = self._load(how, tensor)
        options = _with_fields(
            self._reduce(), rootRank=root, rootTensor=0, reduceOp=self._ops[how.op]
        )
        self._collective("reduce", ([carried], options))
        if self.rank == root:
            how.finish(carried, self.size)
            if not how.is_view:
                how.store(tensor, carried)

    def gather(self, output: Any | None, tensor: Any, root: int) -> None:
        """Put the tensors of all ranks one after another at one; see ``Communicator``."""
        self._check_gather(output, tensor, root)
        if self.rank != root:
            self._move("send", [as_bytes(tensor)], [root], _GATHER_TAG, "gather")
            return
        parts = as_bytes(output).reshape(self.size, -1)
        others = [rank for rank in range(self.size) if rank != root]
        self._move("recv", [parts[rank] for rank in others], others, _GATHER_TAG, "gather")
        parts[root].copy_(as_bytes(tensor))

    def _load(self, how: Reduction, tensor: Any, *, is_copied: bool = False) -> Any:
        """Return what is reduced for a tensor, in reserved memory if it needs some."""
        if how.is_view and not is_copied:
            return how.load(tensor)
        reserved = self._reserved.pop(0) if self._reserved else None
        return how.load(tensor, how.memory_for(tensor, is_copied, reserved))

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self._collective("barrier", (self._barrier,))

    def _move(
        self,
        method: str,
        tensors: Sequence[Any],
        peers: Sequence[int],
        tag: int,
        operation: str = "",
    ) -> None:
        """Send or receive each of these tensors, to or from the peer at its position."""
        operation = operation or method
        self._check(operation)
        call = getattr(self._group, method)
        is_whole = sum([each.nbytes for each in tensors]) <= _WHOLE_BYTES
        try:
            if not is_whole:
                self._sideline.start()
            works = [call([each], peer, tag) for each, peer in zip(tensors, peers, strict=True)]
            if is_whole:
                limit = _NO_LIMIT if method == "recv" else _LIMIT
                for work in works:
                    work.wait(limit)
            else:
                self._sideline.run(lambda: _wait_for_all(works))
        except RuntimeError as error:
            raise self._failure(operation, _reason_of(error)) from error

    def _collective(self, method: str, *calls: tuple[Any, ...]) -> None:
        """Call a collective with each of these arguments, the last of which are its options."""
        self._check(method)
        group = self._group
        call = getattr(group, method)
        for *_, options in calls:
            options.timeout = _LIMIT
        try:
            works = [call(*arguments) for arguments in calls]
            interrupt = None
            try:
                for work in works:
                    work.wait(_MOMENT)
                return
            except RuntimeError:
                pass  # it takes longer, or has failed
            except BaseException as error:  # noqa: BLE001 - raised when the collective has ended
                interrupt = error
            self._sideline.run(lambda: _wait_for_all(works, _group=group))
            if interrupt is not None:
                raise interrupt
        except RuntimeError as error:
            raise self._failure(method, _reason_of(error)) from error

    def _check(self, method: str) -> None:
        """Raise if no operation can begin."""
        if self._refusal.errors:
            raise self._refusal.error()
        if self.has_lost_a_rank():
            raise self._failure(method, _LOST)

    # --- the end

    def has_lost_a_rank(self) -> bool:
        """Return whether a rank has closed its connections, as the end of its process does."""
        return bool(self._hang_ups.poll(0))

    def abort(self, why: str) -> None:
        """End the pending operation and refuse later ones; see ``Communicator``."""
        self._refusal.abort(why)
        self._close_soon()

    def destroy(self) -> None:
        """Close all connections and end all threads; idempotent. No operation may be pending."""
        self._refusal.destroy()
        self._is_destroyed.set()
        for closing in list(self._closing.values()):
            with contextlib.suppress(RuntimeError):  # it has not begun, and will have nothing to do
                closing.join()
        self._shut_down()
        self._group = None
        self._sideline.close()

    def _look(self) -> None:
        """Have the connections closed if a rank has closed one: what runs may never end then."""
        if self.has_lost_a_rank():
            self._close_soon()

    def _close_soon(self) -> None:
        """Close the connections when nothing moves on them any more; does not block."""
        if self._closing or self._is_destroyed.is_set():
            return
        name = f"rcg-{self.group}-closing"
        closing = threading.Thread(target=self._close_when_still, name=name, daemon=True)
        if self._closing.setdefault("thread", closing) is closing:
            try:
                start_thread(closing, "to close the connections of a group")
            except OutOfThreads:
                self._shut_down()

    def _close_when_still(self) -> None:
        grace, before = Deadline(_GRACE_S), -1
        while not grace.expired and (now := self._moved_bytes()) != before:
            before = now
            if self._is_destroyed.wait(min(_STILL_S, grace.remaining_s() or 0.0)):
                return
        self._refusal.fail(f"group {self.group}: {_LOST}")
        self._shut_down()

    def _moved_bytes(self) -> int:
        """Return how many bytes have been sent and received since the group was opened."""
        moved = 0
        with contextlib.suppress(OSError, struct.error):  # closed by ``abort``; an old kernel
            for connection in list(self._connections):
                facts = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                moved += sum(_BYTES_MOVED.unpack_from(facts))
        return moved

    def _shut_down(self) -> None:
        """Shut down the connections, which ends the operation that runs."""
        with contextlib.suppress(IndexError):  # another thread may take some of them
            while True:
                connection = self._connections.popleft()
                with contextlib.suppress(OSError):  # the peer has ended it
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()
        self._sideline.leave()

    def _failure(self, method: str, why: str) -> RcgError:
        """Return the error for a failed operation. The peers' operations end, too."""
        text = _ASIDE.sub("", why.partition("\n")[0])
        self._refusal.fail(f"{method.strip('_')} in group {self.group} failed: {text}")
        self._close_soon()
        return self._refusal.error()


def _tree(rank: int, root: int, size: int) -> tuple[int | None, list[int]]:
    """Return the rank from which a rank receives a broadcast, and those to which it passes it on.

    They are a binomial tree: counted from the root, a rank has the number of its parent and one
    more bit, which is lower than all others. The child with the most descendants comes first.
    """
    number = (rank - root) % size
    lowest = number & -number or 1 << (size - 1).bit_length()
    parent = (number - lowest + root) % size if number else None
    steps = [1 << bit for bit in reversed(range(lowest.bit_length() - 1))]
    return parent, [(number + step + root) % size for step in steps if number + step < size]


def _reason_of(error: RuntimeError) -> str:
    return _LOST if isinstance(error, LeftBehind) else str(error)


def _pass_on(
    group: Any, tensors: Sequence[Any], parent: int | None, children: Sequence[int]
) -> None:
    """Receive tensors of a broadcast and send them on, one by one.

    A rank without memory receives all of them into the same piece of memory. So the next one is
    received when all children have this one.
    """
    for tensor in tensors:
        if parent is not None:
            group.recv([tensor], parent, _BROADCAST_TAG).wait(_LIMIT)
        works, failures = [], []
        for child in children:
            try:
                works.append(group.send([tensor], child, _BROADCAST_TAG))
            except RuntimeError as error:  # this child is lost
                failures.append(error)
        _wait_for_all(works, failures)


def _wait_for_all(
    works: list[Any], failures: list[RuntimeError] | None = None, _group: object = None
) -> None:
    """Wait for every part of an operation, also when one has failed, and raise the first failure.

    Gloo cuts off a message whose memory is given up, and the peer, which may live, would wait until
    Gloo's limit. The group of a collective must exist as long: when it ends, it waits for the
    threads that still run a part.
    """
    failures = [] if failures is None else failures
    for work in works:
        try:
            work.wait(_LIMIT)
        except RuntimeError as error:
            failures.append(error)
    if failures:
        first = failures[0]
        failures.clear()
        try:
            raise first
        finally:
            del first, works  # the traceback of an error must not hold the tensors


def _with_fields(options: Any, **fields: Any) -> Any:
    """Return options of Gloo with these fields."""
    for name, value in fields.items():
        setattr(options, name, value)
    return options
