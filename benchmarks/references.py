# SPDX-License-Identifier: Apache-2.0
"""Tensors by reference in ordinary calls: rcg, Ray's direct transport, and what both stand on.

A sample is ``get(receiver.take.remote(sender.make.remote()))``: from the first submission until the
driver has the result. The sender keeps its tensors, so that their making does not count. Beside it
stand two calls with the same arguments that pass a number; the same calls with a tensor through
Ray's object store; and, for large tensors, what Gloo takes to bring one into fresh memory of the
receiver.

Contestants take turns. Ray's direct transport is one, where the installed Ray has it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import tempfile
import time
import warnings
from array import array
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Final

import ray

import rcg
from rcg.bench.contestants import ACTOR_OPTIONS, ending, resource
from rcg.bench.measure import Pace, Turn, call_turn, take_rounds
from rcg.bench.record import Figure, medians
from rcg.dag import InputNode
from rcg.rdt.collective_groups import create_collective_group, destroy_collective_group

__all__ = ["measure_references", "measure_references_across", "measure_references_by_nixl"]

_ROUNDS: Final = 6
_PACE_OF_SMALL: Final = Pace(60, int(2e9), 5)
_PACE_OF_LARGE: Final = Pace(2, int(4e9), 1)
_RCG: Final = "rcg"
_RAY: Final = "Ray's RDT"
_CALLS: Final = "two calls"
_STORE: Final = "object store"
_GLOO: Final = "raw Gloo"
_MAPPED: Final = "rcg, mapped"
_SOCKETS: Final = "raw sockets"
_NIXL: Final = "raw NIXL"
_MANY: Final = (1000, 25_000)  # tensors, and the numbers in each: 100 KB
_LARGE: Final = 25_000_000  # numbers: 100 MB
_DUPLEX: Final = 5_000_000
_AT_ONCE: Final = 6
_FREED_S: Final = 0.3  # unreferenced tensors are freed by then


class Worker:
    """Makes and takes tensors."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], Any] = {}

    def make(self, count: int, size: int) -> Any:
        """Return kept tensors of ones: one, or a list of several."""
        import torch

        found = self._kept.get((count, size))
        if found is None:
            found = self._kept[count, size] = [torch.ones(size) for _ in range(count)]
        return found[0] if count == 1 else found

    def lend(self, size: int) -> Any:
        """Return a kept tensor of ones in memory that can be mapped."""
        import torch

        if (0, size) not in self._kept:
            self._kept[0, size] = rcg.empty(size, torch.float32).fill_(1)
        return self._kept[0, size]

    def plain(self, count: int, size: int) -> Any:
        """As ``make``, through the object store."""
        return self.make(count, size)

    def number(self, *_: int) -> int:
        """Return a number, of as many arguments as ``make`` or ``take`` has."""
        return 1

    def echo(self, value: Any) -> Any:
        """Return the argument."""
        return value

    def take(self, tensors: Any) -> float:
        """Return the last number of one or several tensors."""
        last = tensors[-1] if isinstance(tensors, list) else tensors
        return float(last[-1])

    def meet(self, rank: int, path: str) -> None:
        """Open a process group of Gloo with the other one."""
        import os

        import torch.distributed as dist

        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)

    def listen(self) -> int:
        """Listen for ``bring``; returns the port."""
        import socket

        self._listener = socket.create_server(("", 0))
        return int(self._listener.getsockname()[1])

    def give(self, size: int, calls: int) -> None:
        """Send a tensor over a plain socket to the first who connects, each time he asks."""
        connection = self._listener.accept()[0]
        content = self.make(1, size).numpy().view("uint8").data
        with connection:
            for _ in range(calls):
                connection.recv(1)
                connection.sendall(content)

    def bring(self, host: str, port: int, size: int, calls: int) -> list[int]:
        """Get a tensor by a plain socket into fresh memory; returns how long each took."""
        import socket

        from rcg.rdt.runs import fresh_memory

        took = []
        with socket.create_connection((host, port)) as connection:
            for _ in range(calls):
                started_ns = time.perf_counter_ns()
                left = fresh_memory(4 * size, "cpu").numpy().data
                connection.send(b"x")
                while left:
                    left = left[connection.recv_into(left) :]
                took.append(time.perf_counter_ns() - started_ns)
        return took

    def offer(self, size: int) -> tuple[bytes, int]:
        """Let others read a tensor by NIXL; returns what they must know, and its address."""
        from rcg.rdt.nixl_agent import make_agent

        self._agent = make_agent(f"bench-{os.getpid()}")
        tensor = self.make(1, size)
        registered = self._agent.register_memory([tensor])
        return self._agent.get_partial_agent_metadata(registered, True), tensor.data_ptr()

    def read(self, metadata: bytes, address: int, size: int, calls: int) -> list[int]:
        """Read a tensor by NIXL into fresh memory; returns how long each took."""
        from rcg.rdt.nixl_agent import make_agent
        from rcg.rdt.runs import fresh_memory

        agent = make_agent(f"bench-{os.getpid()}-{calls}")
        name = agent.add_remote_agent(metadata).decode()
        there = agent.get_xfer_descs([(address, 4 * size, 0)], "DRAM")
        took = []
        for _ in range(calls):
            started_ns = time.perf_counter_ns()
            target = fresh_memory(4 * size, "cpu")
            registered = agent.register_memory([target])
            transfer = agent.initialize_xfer("READ", registered.trim(), there, name)
            state = agent.transfer(transfer)
            while state == "PROC":
                state = agent.check_xfer_state(transfer)
            took.append(time.perf_counter_ns() - started_ns)
            agent.release_xfer_handle(transfer)
            agent.deregister_memory(registered)
        return took

    def move(self, rank: int, size: int, calls: int) -> list[int]:
        """Send tensors, or receive them in fresh memory; returns how long each took."""
        import torch
        import torch.distributed as dist

        took = []
        for _ in range(calls):
            dist.barrier()
            started_ns = time.perf_counter_ns()
            if rank == 0:
                dist.send(self.make(1, size), 1)
            else:
                dist.recv(torch.empty(size), 0)
            took.append(time.perf_counter_ns() - started_ns)
        return took


def measure_references() -> tuple[Figure, ...]:
    """Measure all rows, on actors of their own."""
    marked = rcg.remote(_with_transport(rcg.method)).options(**ACTOR_OPTIONS)
    pair = (marked.remote(), marked.remote())
    group = create_collective_group(list(pair), backend="gloo")
    with tempfile.TemporaryDirectory(prefix="rcg-bench-") as folder, _rays() as rays, ending(pair):
        path = str(Path(folder, "store"))
        rcg.get([each.meet.remote(rank, path) for rank, each in enumerate(pair)])
        try:
            return _figures(pair, rays)
        finally:
            destroy_collective_group(group)


def measure_references_across() -> tuple[Figure, ...]:
    """Measure tensors that go from one Ray node to another, without a group."""
    marked = rcg.remote(_with_transport(rcg.method, "object_store"))
    pair = tuple(
        marked.options(num_cpus=0, resources={resource(number): 0.001}).remote()
        for number in (1, 0)
    )
    host = ray.util.get_node_ip_address()
    with ending(pair):
        small = _times(pair, None, 1, 256, _PACE_OF_SMALL)
        sockets = {_SOCKETS: _sockets_turn(pair, host, _LARGE)}
        large = _times(pair, None, 1, _LARGE, _PACE_OF_LARGE, sockets)
        many = _times(pair, None, *_MANY, _PACE_OF_LARGE)
    return (
        Figure("rdt-across-1kb", "1 KB to an actor on another node", "µs", small),
        Figure("rdt-across-many", "1,000 tensors of 100 KB to another node", "µs", many),
        Figure("rdt-across-100mb", "100 MB to an actor on another node", "µs", large),
        _ratio("rdt-across-1kb-calls", "1 KB, to two calls", small, _CALLS, 1.2),
        _ratio("rdt-across-sockets", "100 MB, to raw sockets", large, _SOCKETS, 1.25),
        _ratio("rdt-across-store", "100 MB, to the object store", large, _STORE, 0.35),
    )


def measure_references_by_nixl() -> tuple[Figure, ...]:
    """Measure tensors that are read by NIXL, beside Ray's transport of this name."""
    marked = rcg.remote(_with_transport(rcg.method, "nixl")).options(**ACTOR_OPTIONS)
    pair = (marked.remote(), marked.remote())
    with _rays("nixl") as rays, ending(pair):
        small = _times(pair, rays, 1, 256, _PACE_OF_SMALL)
        many = _times(pair, rays, *_MANY, _PACE_OF_LARGE)
        raw = {_NIXL: _nixl_turn(pair, _LARGE)}
        large = _times(pair, rays, 1, _LARGE, _PACE_OF_LARGE, raw)
    figures = [
        Figure("rdt-nixl-1kb", "1 KB from actor to actor by NIXL", "µs", small),
        Figure("rdt-nixl-many", "1,000 tensors of 100 KB by NIXL", "µs", many),
        Figure("rdt-nixl-100mb", "100 MB by NIXL", "µs", large),
        _ratio("rdt-nixl-raw", "100 MB, to raw NIXL into fresh memory", large, _NIXL, 1.1),
    ]
    if rays is not None:
        figures.append(_ratio("rdt-nixl-1kb-ray", "1 KB, to Ray's RDT by NIXL", small, _RAY, 0.5))
        many_title = "1,000 tensors, to Ray's RDT by NIXL"
        figures.append(_ratio("rdt-nixl-many-ray", many_title, many, _RAY, 0.5))
    return tuple(figures)


def _turn_of(take: Callable[[int], list[int]]) -> Turn:
    """Return a turn of so many calls, whose times the actors measure."""
    return lambda pace: array("q", take(pace.warm_up + pace.calls)[pace.warm_up :])


def _sockets_turn(pair: tuple[Any, ...], host: str, size: int) -> Turn:
    sender, receiver = pair
    port = rcg.get(sender.listen.remote())

    def take(calls: int) -> Any:
        giving = sender.give.remote(size, calls)
        took = rcg.get(receiver.bring.remote(host, port, size, calls))
        rcg.get(giving)
        return took

    return _turn_of(take)


def _nixl_turn(pair: tuple[Any, ...], size: int) -> Turn:
    sender, receiver = pair
    offered = rcg.get(sender.offer.remote(size))
    return _turn_of(lambda calls: rcg.get(receiver.read.remote(*offered, size, calls)))


def _gloo_turn(pair: tuple[Any, Any], size: int) -> Turn:
    def take(calls: int) -> Any:
        return rcg.get([each.move.remote(rank, size, calls) for rank, each in enumerate(pair)])[1]

    return _turn_of(take)


def _figures(pair: tuple[Any, Any], rays: tuple[Any, Any] | None) -> tuple[Figure, ...]:
    small = _times(pair, rays, 1, 256, _PACE_OF_SMALL)
    many = _times(pair, rays, *_MANY, _PACE_OF_LARGE)
    gloo = {_GLOO: _gloo_turn(pair, _LARGE)}
    large = _times(pair, rays, 1, _LARGE, _PACE_OF_LARGE, gloo)
    read = _read_times(pair)
    ones, both = _duplex(pair)
    figures = [
        Figure("rdt-1kb", "1 KB from actor to actor", "µs", small),
        Figure("rdt-many", "1,000 tensors of 100 KB from actor to actor", "µs", many),
        Figure("rdt-100mb", "100 MB from actor to actor", "µs", large),
        _ratio("rdt-1kb-calls", "1 KB, to two calls", small, _CALLS, 1.3),
        _ratio("rdt-100mb-gloo", "100 MB, to raw Gloo into fresh memory", large, _GLOO, 1.2),
        _ratio("rdt-100mb-store", "100 MB, to the object store", large, _STORE, 0.35),
        Figure("rdt-read-100mb", "100 MB from actor to actor, without a group", "µs", read),
        _ratio("rdt-read-store", "100 MB read, to the object store", read, _STORE, 0.1),
        _ratio("rdt-map-store", "100 MB mapped, to the object store", read, _STORE, 0.02, _MAPPED),
        Figure(
            "rdt-duplex",
            "both directions at once, to one after the other",
            "of the time",
            {"rcg": both / ones},
            # One direction keeps two cores busy by itself.
            most=2 / 1.6 / 2 if len(os.sched_getaffinity(0)) > 2 else None,
        ),
        Figure(
            "rdt-echo",
            "echo by a graph, on an actor that holds tensors for others, to without",
            "of the time",
            {"rcg": _echoes(pair)},
            most=1.05,
        ),
    ]
    if rays is not None:
        figures.append(_ratio("rdt-1kb-ray", "1 KB, to Ray's RDT", small, _RAY, 0.5))
        figures.append(_ratio("rdt-many-ray", "1,000 tensors, to Ray's RDT", many, _RAY, 0.5))
    return tuple(figures)


def _times(
    pair: tuple[Any, ...],
    rays: tuple[Any, Any] | None,
    count: int,
    size: int,
    pace: Pace,
    others: Mapping[str, Turn] = MappingProxyType({}),
) -> dict[str, float]:
    """Return the median of each contestant, in microseconds."""
    sender, receiver = pair
    turns: dict[str, Turn] = {
        _RCG: call_turn(lambda: rcg.get(receiver.take.remote(sender.make.remote(count, size)))),
        _CALLS: call_turn(
            lambda: rcg.get(receiver.number.remote(sender.number.remote(count, size)))
        ),
        _STORE: call_turn(lambda: rcg.get(receiver.take.remote(sender.plain.remote(count, size)))),
    }
    turns |= others
    if rays is not None:
        one, other = rays
        turns[_RAY] = call_turn(lambda: ray.get(other.take.remote(one.make.remote(count, size))))
    samples = take_rounds(turns, pace, _ROUNDS, random.Random(f"rdt {count} {size}"))
    return medians(samples, 1e-3)  # from nanoseconds


def _read_times(pair: tuple[Any, ...]) -> dict[str, float]:
    """Return the medians for tensors without a group: read where they lie, and mapped."""
    sender, receiver = pair
    make, lend = (
        getattr(sender, name).options(tensor_transport="auto") for name in ("make", "lend")
    )
    turns = {
        _RCG: call_turn(lambda: rcg.get(receiver.take.remote(make.remote(1, _LARGE)))),
        _MAPPED: call_turn(lambda: rcg.get(receiver.take.remote(lend.remote(_LARGE)))),
        _STORE: call_turn(lambda: rcg.get(receiver.take.remote(sender.plain.remote(1, _LARGE)))),
    }
    return medians(take_rounds(turns, _PACE_OF_LARGE, _ROUNDS, random.Random("rdt read")), 1e-3)


def _duplex(pair: tuple[Any, Any]) -> tuple[float, float]:
    """Return the time of several transfers there and then back, and of both at once."""

    def there(way: tuple[Any, Any]) -> list[Any]:
        made = way[0].make.remote(1, _DUPLEX)
        return [way[1].take.remote(made) for _ in range(_AT_ONCE)]

    back = pair[::-1]

    def one_by_one() -> None:
        rcg.get(there(pair))
        rcg.get(there(back))

    def at_once() -> None:
        rcg.get([*there(pair), *there(back)])

    turns = {"ones": call_turn(one_by_one), "both": call_turn(at_once)}
    found = take_rounds(turns, Pace(1, 0, 1), _ROUNDS, random.Random("rdt duplex"))
    return median(found["ones"]), median(found["both"])


def _echoes(pair: tuple[Any, Any]) -> float:
    """Return what a graph takes on an actor that holds tensors, to the same without them."""
    sender, receiver = pair
    refs: list[Any] = []
    with InputNode() as inp:
        graph = rcg.compile(sender.echo.bind(inp))
    echo = call_turn(lambda: rcg.get(graph.execute(1)))

    def holding(pace: Pace) -> array[int]:
        refs.extend(sender.make.remote(count, 256) for count in range(1, 11))
        rcg.get([receiver.take.remote(ref) for ref in refs])
        time.sleep(_FREED_S)
        return echo(pace)

    def plain(pace: Pace) -> array[int]:
        refs.clear()
        time.sleep(_FREED_S)
        return echo(pace)

    turns = {"holding": holding, "plain": plain}
    pace = Pace(2000, int(1e9), 200)
    found = take_rounds(turns, pace, 2 * _ROUNDS, random.Random("rdt echo"))
    refs.clear()
    graph.teardown()
    return median(found["holding"]) / median(found["plain"])


@contextlib.contextmanager
def _rays(transport: str = "gloo") -> Iterator[tuple[Any, Any] | None]:
    """Start two actors with Ray's own direct transport; None if this Ray has none.

    For NIXL it needs the package ``nixl``, which chooses among those for several versions of CUDA.
    """
    if transport == "nixl" and find_spec("nixl") is None:
        yield None
        return
    try:
        from ray.experimental import collective
    except ImportError:
        yield None
        return
    logging.getLogger("ray.experimental").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cls = ray.remote(**ACTOR_OPTIONS)(_with_transport(ray.method, transport))
        pair = (cls.remote(), cls.remote())
        group = None
        if transport == "gloo":
            group = collective.create_collective_group(list(pair), backend="torch_gloo")
        try:
            yield pair
        finally:
            if group is not None:
                collective.destroy_collective_group(group)
            for actor in pair:
                ray.kill(actor)


def _with_transport(method: Callable[..., Any], transport: str = "gloo") -> type:
    """Return the class with the transport of ``make`` declared by rcg, or by Ray."""

    class Marked(Worker):
        @method(tensor_transport=transport)  # type: ignore[untyped-decorator]
        def make(self, count: int, size: int) -> Any:
            return Worker.make(self, count, size)

    return Marked


def _ratio(
    name: str, title: str, times: dict[str, float], other: str, most: float, ours: str = _RCG
) -> Figure:
    return Figure(name, title, "of the time", {_RCG: times[ours] / times[other]}, most=most)
