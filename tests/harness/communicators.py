# SPDX-License-Identifier: Apache-2.0
"""What the members of a crew do: each function gets the state of its member first.

A function that is the same in all ranks knows the inputs of all ranks, computes with plain torch
what must come out, and compares.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import math
import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from rcg.comm import Communicator, Membership, ReduceOp, Store
from rcg.comm.gloo import GlooCommunicator
from rcg.comm.local_store import LocalStore
from rcg.comm.rays import RaysOpener
from rcg.comm.reduction import reduced, unsupported_reduction
from rcg.errors import RcgError
from rcg.runtime.control.stores import ControlStore
from rcg.testing import LocalCommunicator, OrderedLocalCommunicator
from tests.harness.peers import GUARD_S, no_threads, until
from tests.harness.rays_style import RaysStyle

State = dict[str, Any]
LONG_BYTES = 256 << 20
OPS = list(ReduceOp)

OPENERS: dict[str, Any] = {
    "gloo": GlooCommunicator.open,
    "local": LocalCommunicator.open,
    "ordered": OrderedLocalCommunicator.open,
    "rays": lambda membership: RaysOpener(RaysStyle.of(membership)).open(membership),
}


def races() -> list[str]:
    """What the streams of the fake device have found; see ``tests.harness.fake_streams``."""
    return []


with contextlib.suppress(ImportError):  # of a torch whose devices are all written in C++
    from tests.harness.fake_device import FakeCommunicator

    OPENERS["fake"] = FakeCommunicator.open

    from tests.harness.fake_cuda import IpcOnFake, NcclOnFake
    from tests.harness.fake_streams import races

    OPENERS |= {"nccl": NcclOnFake.open, "cuda_ipc": IpcOnFake.open}


@dataclass(frozen=True)
class Place:
    """The store of a group's ranks: one in memory, or the control of a graph."""

    store: LocalStore | None = None
    address: str = ""
    graph_id: str = ""
    secret: str = ""

    def open(self, group: str) -> Store:
        if self.store is not None:
            return self.store
        return ControlStore(self.address, self.graph_id, self.secret, group)


def on_its_device(act: Callable[..., Any]) -> Callable[..., Any]:
    """Have a member make its tensors on a device that the communicator of the group serves."""

    @functools.wraps(act)
    def acting(state: State, group: str, *args: Any) -> Any:
        devices = state[group].devices
        if "cpu" in devices:
            return act(state, group, *args)
        with torch.device(min(devices)):
            return act(state, group, *args)

    return acting


def open_group(
    state: State, kind: str, place: Place, group: str, rank: int, size: int, timeout_s: float | None
) -> None:
    store = place.open(group)
    state[f"store of {group}"] = store
    labels = tuple(f"member{number}" for number in range(size))
    try:
        state[group] = OPENERS[kind](Membership(group, rank, labels, store, timeout_s))
    finally:
        if place.store is None:
            store.close()


def close_store(state: State, group: str) -> None:
    until(lambda: f"store of {group}" in state)
    state[f"store of {group}"].close()


def abort(state: State, group: str, why: str) -> None:
    state[group].abort(why)
    state[group].abort("a second time")


def abort_without_threads(state: State, group: str, why: str) -> None:
    with no_threads():
        abort(state, group, why)


def destroy(state: State, group: str) -> None:
    comm = state.pop(group)
    comm.destroy()
    comm.destroy()
    state.pop(f"store of {group}", None)
    assert not races()


def counts(state: State) -> tuple[int, int]:
    """How many descriptors and threads this process has."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def warm(state: State) -> None:
    """Have torch start the threads that it keeps."""
    torch.set_num_threads(1)
    (torch.ones(1000, 100) @ torch.ones(100, 1000)).sum()


def refusal(call: Callable[[], object]) -> str:
    """What a call says that must be a ``ValueError``; a machine with a GPU may have no pytest."""
    try:
        call()
    except ValueError as error:
        return str(error)
    raise AssertionError("it was not refused")


# --- what goes in and what must come out


def numbers(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The input of a rank: small whole numbers, which every dtype and every order has exactly."""
    count = torch.Size(shape).numel()
    made = (3 * rank + 7 * torch.arange(count)) % 5 - 2
    if not dtype.is_signed and dtype != torch.bool:
        made = made.abs()
    if dtype.is_complex:
        made = made * (1 - 2j)
    return made.to(dtype).reshape(shape)


def combined(tensors: Sequence[torch.Tensor], op: ReduceOp) -> torch.Tensor:
    """What a reduction gives, by other means than rcg's."""
    dtype = tensors[0].dtype
    rows = [tensor.flatten().tolist() for tensor in tensors]
    result = []
    for column in zip(*rows, strict=True):
        total: Any = column[0]
        for value in column[1:]:
            match op:
                case ReduceOp.PRODUCT:
                    total = total * value
                case ReduceOp.MAX:
                    total = max(total, value)
                case ReduceOp.MIN:
                    total = min(total, value)
                case _:
                    total = total + value
        if op is ReduceOp.AVG:
            size = len(tensors)
            if isinstance(total, complex):
                total = complex(total.real / size, total.imag / size)
            else:
                total = int(total / size) if isinstance(total, int) else total / size
        result.append(total)
    is_whole = not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)
    if is_whole and dtype != torch.uint64:
        made = torch.tensor(result, dtype=torch.int64).to(dtype)
    elif dtype == torch.uint64:
        made = torch.tensor([value % (1 << 64) for value in result], dtype=dtype)
    else:
        made = torch.tensor(result, dtype=dtype)
    return made.reshape(tensors[0].shape)


def same(found: torch.Tensor, expected: torch.Tensor, *what: object) -> None:
    assert found.shape == expected.shape and found.dtype == expected.dtype, what
    flat, other = (each.flatten().tolist() for each in (found, expected))
    assert flat == other, (*what, flat, other)


DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
    torch.complex64,
    torch.complex128,
)
SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (3,), (2, 0, 3), (4, 5), (10_007,))


@on_its_device
def check_reductions(state: State, group: str) -> None:
    comm = state[group]
    size, me = comm.size, comm.rank
    for dtype in DTYPES:
        for op in OPS:
            if unsupported_reduction(dtype, op):
                continue
            for shape in SHAPES if dtype == torch.float32 else ((), (0,), (4, 5)):
                what = (dtype, op, shape)
                every = [numbers(rank, shape, dtype) for rank in range(size)]
                wanted = combined(every, op)
                mine = every[me].clone()
                comm.allreduce(mine, op)
                same(mine, wanted, "allreduce", *what)
                root = len(shape) % size
                mine = every[me].clone()
                comm.reduce(mine, root, op)
                if me == root:
                    same(mine, wanted, "reduce", *what)
                if not shape:
                    continue
                long = (size * shape[0], *shape[1:])
                every = [numbers(rank, long, dtype) for rank in range(size)]
                output = torch.full(shape, 1).to(dtype)
                kept = every[me].clone()
                comm.reducescatter(output, every[me], op)
                rows = slice(me * shape[0], (me + 1) * shape[0])
                same(output, combined(every_with(every, me, kept), op)[rows], "scatter", *what)
                same(every[me], kept, "the input of a reducescatter", *what)


def every_with(every: list[torch.Tensor], me: int, mine: torch.Tensor) -> list[torch.Tensor]:
    return [mine if rank == me else tensor for rank, tensor in enumerate(every)]


@on_its_device
def check_averages(state: State, group: str) -> None:
    """The average of whole numbers does not overflow where a wider dtype exists."""
    for dtype in DTYPES:
        if dtype.is_floating_point or dtype.is_complex or dtype.itemsize > 4 or dtype == torch.bool:
            continue
        for value in (torch.iinfo(dtype).max, torch.iinfo(dtype).min):
            tensor = torch.full((3,), value, dtype=dtype)
            state[group].allreduce(tensor, ReduceOp.AVG)
            same(tensor, torch.full((3,), value, dtype=dtype), dtype)


@on_its_device
def check_order_of_floats(state: State, group: str) -> None:
    """MAX and MIN keep a NaN of any rank, and order zeros by their signs: at all ranks alike."""
    comm = state[group]
    size, me = comm.size, comm.rank
    here = torch.empty(0).device
    edges = [math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, -1.5]
    columns = list(itertools.product(edges, repeat=size))  # each pair in both orders
    for dtype in (each for each in DTYPES if each.is_floating_point):
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        every = [torch.tensor(row, device="cpu").to(dtype) for row in zip(*columns, strict=True)]
        rows = torch.stack(every)
        for op, best, zero in ((ReduceOp.MAX, torch.amax, 0.0), (ReduceOp.MIN, torch.amin, -0.0)):
            wanted, plain, what = reduced(every, op), best(rows, dim=0), (dtype, op)
            same(wanted.nan_to_num(7), plain.nan_to_num(7), *what)
            wins = torch.tensor(zero, device="cpu").to(dtype).view(bits)  # the zero of this sign
            is_there = (rows.view(bits) == wins).any(dim=0)
            same((wanted.view(bits) == wins)[plain == 0], is_there[plain == 0], "zeros", *what)
            mine = every[me].clone().to(here)
            comm.allreduce(mine, op)
            same(mine.cpu().view(bits), wanted.view(bits), "allreduce", *what)
            mine = every[me].clone().to(here)
            comm.reduce(mine, 0, op)
            if me == 0:
                same(mine.cpu().view(bits), wanted.view(bits), "reduce", *what)
            part = slice(me * (len(columns) // size), (me + 1) * (len(columns) // size))
            given = every[me][: size * (len(columns) // size)]
            kept, output = given.clone().to(here), torch.zeros(len(columns) // size).to(dtype)
            comm.reducescatter(output, kept, op)
            same(output.cpu().view(bits), wanted[part].view(bits), "scatter", *what)
            same(kept.cpu().view(bits), given.view(bits), "its input", *what)


def check_large_broadcasts(state: State, group: str) -> None:
    """Several large tensors from each rank; each other rank in turn receives without memory."""
    comm: Communicator = state[group]
    for root in range(comm.size):
        for poor in range(comm.size):
            sent = [torch.full((20_000,), float(100 * root + number)) for number in range(3)]
            room = [torch.zeros(20_000) for _ in sent]
            if comm.rank == root:
                comm.broadcast(sent, root)
            elif comm.rank == poor:
                comm.broadcast([room[0]] * 3, root)
            else:
                comm.broadcast(room, root)
                assert all(map(torch.equal, room, sent)), (root, poor)


@on_its_device
def check_moves(state: State, group: str) -> None:
    comm = state[group]
    size, me = comm.size, comm.rank
    for dtype in DTYPES:
        for shape in SHAPES:
            what = (dtype, shape)
            every = [numbers(rank, shape, dtype) for rank in range(size)]
            root = len(shape) % size
            mine = every[me].clone()
            comm.broadcast([mine], root)
            same(mine, every[root], "broadcast", *what)
            if not shape:
                continue
            wanted = torch.cat([each.reshape(shape) for each in every])
            output = torch.full_like(wanted, 1)
            comm.allgather(output, every[me])
            same(output, wanted, "allgather", *what)
            output = torch.full_like(wanted, 1)
            comm.gather(output if me == root else None, every[me], root)
            if me == root:
                same(output, wanted, "gather", *what)
    for dtype in (torch.float32, torch.int16, torch.bool, torch.complex64):
        # A column of one row, as a batch of one has it: contiguous, with a stride of 4.
        every = [numbers(rank, (1, 4), dtype)[:, 1] for rank in range(size)]
        mine = torch.zeros(1, 4, dtype=dtype)[:, 1].copy_(every[me])
        assert mine.is_contiguous() and mine.stride() == (4,)
        output = torch.zeros(size, dtype=dtype)
        comm.allgather(output, mine)
        same(output, torch.cat(every), "allgather of a column", dtype)
        comm.allreduce(mine, ReduceOp.SUM)
        same(mine, combined(every, ReduceOp.SUM), "allreduce of a column", dtype)
        comm.broadcast([mine], 0)
    many = [numbers(0, shape, dtype) for dtype in DTYPES for shape in SHAPES]
    mine_too = [tensor.clone() if me == 0 else torch.full_like(tensor, 1) for tensor in many]
    comm.broadcast(mine_too, 0)
    for found, wanted in zip(mine_too, many, strict=True):
        same(found, wanted, "broadcast of many")
    comm.broadcast([], 0)
    comm.barrier()


@on_its_device
def check_messages(state: State, group: str) -> None:
    """Every pair in both directions: many tensors of every dtype and shape in one call."""
    comm = state[group]
    me = comm.rank
    for source in range(comm.size):
        for target in range(comm.size):
            sent = [numbers(source, shape, dtype) for dtype in DTYPES for shape in SHAPES]
            if me == source != target:
                comm.send(sent, target, 5)
                comm.send([], target, 5)
            elif me == target != source:
                found = [torch.full_like(tensor, 1) for tensor in sent]
                comm.recv(found, source, 5)
                comm.recv([], source, 5)
                for one, wanted in zip(found, sent, strict=True):
                    same(one, wanted, "message")


@on_its_device
def check_order(state: State, group: str) -> None:
    """Messages of one tag arrive in the order in which they are sent."""
    comm = state[group]
    for number in range(50):
        if comm.rank == 0:
            comm.send([torch.full((3,), number)], 1, 2)
        elif comm.rank == 1:
            found = torch.zeros(3, dtype=torch.int64)
            comm.recv([found], 0, 2)
            same(found, torch.full((3,), number))


@on_its_device
def check_wrong_arguments(state: State, group: str) -> None:
    comm = state[group]
    one = torch.ones(2)
    wrong = (
        lambda: comm.send([one], comm.rank),
        lambda: comm.recv([one], comm.rank),
        lambda: comm.send([one], 1 - comm.rank, -1),
        lambda: comm.recv([one], 1 - comm.rank, 1 << 31),
        lambda: comm.broadcast([one], 2),
        lambda: comm.reduce(one, -1, ReduceOp.SUM),
        lambda: comm.gather(None, one, 5),
        lambda: comm.gather(None, one, comm.rank),
        lambda: comm.allgather(one, one),
        lambda: comm.allgather(torch.ones(4, dtype=torch.int64), one),
        lambda: comm.reducescatter(one, one, ReduceOp.SUM),
    )
    for odd in (
        torch.ones(4, 4).t()[:2],
        torch.ones(4)[::2],
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.ones(2, dtype=torch.complex64).conj().imag,  # negated lazily
    ):
        count = odd.shape[0] // 2
        double = torch.ones(2 * odd.shape[0], *odd.shape[1:], dtype=odd.dtype)
        wrong += (
            lambda odd=odd: comm.send([one, odd], 1 - comm.rank),
            lambda odd=odd: comm.recv([one, odd], 1 - comm.rank),
            lambda odd=odd: comm.broadcast([one, odd], 0),
            lambda odd=odd: comm.allreduce(odd, ReduceOp.SUM),
            lambda odd=odd: comm.reduce(odd, 0, ReduceOp.SUM),
            lambda odd=odd, double=double: comm.allgather(double, odd),
            lambda odd=odd, count=count: comm.allgather(odd, odd[:count].clone()),
            lambda odd=odd, double=double: comm.gather(double, odd, 0),
            lambda odd=odd, count=count: comm.gather(odd, odd[:count].clone(), comm.rank),
            lambda odd=odd, count=count: comm.reducescatter(odd[:count].clone(), odd, ReduceOp.SUM),
            lambda odd=odd, double=double: comm.reducescatter(odd, double, ReduceOp.SUM),
        )
    for call in wrong:
        with pytest.raises(ValueError):
            call()


@on_its_device
def received_and_waited(state: State, group: str) -> None:
    """Receive from rank 1, and wait until that is done: it may be queued only."""
    comm = state[group]
    comm.recv([torch.ones(8)], 1)
    comm.barrier()


def computes_on(state: State, device: str) -> None:
    """Whether this process can use the device."""
    assert float((torch.ones(8, device=device) * 2).cpu().sum()) == 16


@on_its_device
def answered(state: State, group: str, op: str) -> None:
    """Take part, as the last rank, in the operation in which the other one is ``blocked``."""
    comm = state[group]
    tensor = torch.ones(8)
    match op:
        case "send":
            comm.recv([torch.ones(1 << 20), tensor], 0, 1)
        case "recv":
            comm.send([tensor, tensor], 0, 1)
        case _:
            blocked(state, group, op)


def destroy_and_keep(state: State, group: str) -> None:
    state[group].destroy()


@on_its_device
def send_number(state: State, group: str, peer: int, tag: int, number: int) -> None:
    state[group].send([torch.full((3,), number)], peer, tag)


@on_its_device
def recv_number(state: State, group: str, peer: int, tag: int) -> int:
    found = torch.zeros(3, dtype=torch.int64)
    state[group].recv([found], peer, tag)
    return int(found[0])


@on_its_device
def check_every_dtype(state: State, group: str, name: str) -> None:
    """``unsupported`` is right about the moves and the reductions of a dtype of torch."""
    comm = state[group]
    dtype = getattr(torch, name)
    assert comm.unsupported(dtype) is None
    raw = torch.arange(64, dtype=torch.uint8) % 2  # as bool it must be 0 or 1
    mine = raw.clone().view(dtype) if comm.rank == 0 else torch.zeros_like(raw).view(dtype)
    comm.broadcast([mine], 0)
    assert mine.view(torch.uint8).tolist() == raw.tolist()
    if comm.rank == 0:
        comm.send([mine], 1)
    else:
        mine = torch.zeros_like(raw).view(dtype)
        comm.recv([mine], 0)
        assert mine.view(torch.uint8).tolist() == raw.tolist()
    output = torch.zeros(comm.size * 64, dtype=torch.uint8).view(dtype)
    comm.allgather(output, mine)
    assert output.view(torch.uint8).tolist() == raw.tolist() * comm.size
    output = torch.zeros(comm.size * 64, dtype=torch.uint8).view(dtype)
    comm.gather(output if comm.rank == 1 else None, mine, 1)
    for op in OPS:
        why = comm.unsupported(dtype, op)
        for call in (
            lambda op=op: comm.allreduce(raw.clone().view(dtype), op),
            lambda op=op: comm.reduce(raw.clone().view(dtype), 0, op),
            lambda op=op: comm.reducescatter(raw[: 64 // comm.size].clone().view(dtype), mine, op),
        ):
            if why is None:
                call()
                continue
            assert refusal(call) == why and op.name in why


# --- operations that do not end


@on_its_device
def blocked(state: State, group: str, op: str) -> None:
    """Begin an operation that needs the last rank, which never enters it."""
    comm: Communicator = state[group]
    last = comm.size - 1
    peer = last if comm.rank != last else 0
    tensor = torch.ones(4 * comm.size)
    match op:
        case "send":
            comm.send([torch.ones(1 << 20), tensor], peer, 1)
        case "recv":
            comm.recv([tensor, tensor.clone()], peer, 1)
        case "broadcast":
            comm.broadcast([tensor, tensor.clone()], last)
        case "allreduce":
            comm.allreduce(tensor, ReduceOp.SUM)
        case "allgather":
            comm.allgather(torch.ones(4 * comm.size**2), tensor)
        case "reducescatter":
            comm.reducescatter(torch.ones(4), tensor, ReduceOp.SUM)
        case "reduce":
            comm.reduce(torch.ones(1 << 20), last, ReduceOp.SUM)
        case "gather":
            output = torch.ones(comm.size << 20) if comm.rank == last else None
            comm.gather(output, torch.ones(1 << 20), last)
        case "barrier":
            comm.barrier()


BLOCKING = (
    "send",
    "recv",
    "broadcast",
    "allreduce",
    "allgather",
    "reducescatter",
    "reduce",
    "gather",
    "barrier",
)


@on_its_device
def long_operation(state: State, group: str, op: str) -> None:
    """Take part in an operation that moves many bytes: an edge of two ranks, or among all."""
    comm: Communicator = state[group]
    tensor = torch.ones(LONG_BYTES // 4)
    match op:
        case "edge from 2" | "edge to 2" | "edge to 1":
            ends = {"edge from 2": (2, 0), "edge to 2": (0, 2), "edge to 1": (0, 1)}
            writer, reader = ends[op]
            if comm.rank == writer:
                comm.send([tensor], reader)
            elif comm.rank == reader:
                comm.recv([tensor], writer)
        case "small ones from 2":  # each fits into the buffers of a socket, all of them do not
            small = tensor.split(4 << 10)
            if comm.rank == 2:
                comm.send(small, 0)
            elif comm.rank == 0:
                comm.recv(small, 2)
        case "allreduce":
            comm.allreduce(tensor, ReduceOp.SUM)
        case "broadcast" | "broadcast in pieces":
            tensor.fill_(comm.rank == 2)
            comm.broadcast(tensor.split(4 << 20) if "pieces" in op else [tensor], 2)
            assert tensor.eq(1).all()


def signal_part_way(state: State, group: str, pid: int, number: int) -> None:
    """Send a signal to a process when a part of what this rank's operation moves has been moved.

    Signal 0 does nothing.
    """
    comm: Any = state[group]
    before = comm._moved_bytes()
    until(lambda: comm._moved_bytes() - before > LONG_BYTES // 16)
    os.kill(pid, number)


def refusals(state: State, group: str) -> list[tuple[str, str]]:
    """What each operation raises: the name of the class, and the text."""
    found = []
    for op in BLOCKING:
        try:
            blocked(state, group, op)
        except RcgError as error:
            found.append((type(error).__name__, error.message))
        else:
            found.append(("nothing", ""))
    return found


# --- others' sockets


def start_neighbours(state: State, port: int | None) -> int:
    """Open connections to another process again and again, and keep all; returns the own port."""
    listener = socket.create_server(("127.0.0.1", 0))
    state["neighbours"] = kept = [listener]
    state["stop"] = stop = threading.Event()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while not stop.is_set():
                kept.append(listener.accept()[0])

    def connect() -> None:
        while not stop.is_set() and len(kept) < 300:
            kept.append(socket.create_connection(("127.0.0.1", port), GUARD_S))
            stop.wait(0.001)

    threading.Thread(target=accept, daemon=True).start()
    if port is not None:
        threading.Thread(target=connect, daemon=True).start()
    own: int = listener.getsockname()[1]
    return own


def broken_neighbours(state: State) -> int:
    """How many of the connections have been shut down."""
    state["stop"].set()
    _, *kept = state["neighbours"]
    found = 0
    for connection in kept:
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            found += not connection.recv(1)
    return found


def close_neighbours(state: State) -> None:
    state.pop("stop").set()
    for each in state.pop("neighbours"):
        each.close()


def takes_the_numbers(state: State) -> None:
    """Open sockets until every free number below the highest is taken."""
    highest = max(map(int, os.listdir("/proc/self/fd")))
    state["pairs"] = pairs = []
    while not pairs or pairs[-1][0].fileno() < highest:
        pairs.append(socket.socketpair())


def cut_pairs(state: State) -> int:
    """How many of these sockets have been shut down."""
    found = 0
    for pair in state.pop("pairs"):
        for each in pair:
            each.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                found += not each.recv(1)
        for each in pair:
            each.close()
    return found


# --- the user's own group


def make_default_group(state: State) -> None:
    import torch.distributed as dist

    assert not dist.is_initialized()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    state["world"] = dist.group.WORLD


def check_default_group(state: State, is_there: bool) -> None:
    import torch.distributed as dist

    assert dist.is_initialized() == is_there
    if is_there:
        assert dist.group.WORLD is state["world"]
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [1, 1]
        dist.destroy_process_group()
