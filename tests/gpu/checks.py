# SPDX-License-Identifier: Apache-2.0
"""What is tried on a GPU. Each check returns what it found, or says why it was not run."""

from __future__ import annotations

import importlib.util
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import rcg
from rcg.collective import allgather, allreduce, broadcast, reducescatter
from rcg.comm import registry
from rcg.dag import InputNode, MultiOutputNode
from rcg.errors import CommError
from rcg.experimental.channel.accelerator_context import register_accelerator_context
from rcg.experimental.collective import create_collective_group, destroy_collective_group
from tests.gpu import beside_ray
from tests.gpu.workers import ProcessGroup, Worker
from tests.harness import communicators as does
from tests.harness.communicators import Place
from tests.harness.crews import ProcessMember
from tests.harness.served import Served

GUARD_S = 120.0
MIB = 1 << 20
PROGRAMS = ("check_reductions", "check_averages", "check_moves", "check_messages")
PAIRS = ("check_order", "check_wrong_arguments")
# Several ranks on one GPU: NCCL 2.30 and later, experimental, and with few blocks of threads each.
MULTI_RANK = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MAX_CTAS": "4",
}
MULTI_RANK_SINCE = 23000
FAKE = "tests.gpu.fake"
COPIES = ("pinned", "pageable", "shared memory")


class NotRunError(Exception):
    """Something that a check needs is not there."""


@dataclass
class Machine:
    """Where the checks run.

    Attributes:
        device: The type of the device: ``cuda``, or ``fake`` to try the checks themselves.
        gpus: How many there are.
        nccl: The version of NCCL as it numbers itself, 0 without.
        is_plain: Whether actors are plain processes, because Ray is not installed.
        module: What a process imports to have the device.
    """

    device: str
    gpus: int
    nccl: int
    is_plain: bool
    module: str = ""
    facts: dict[str, str] = field(default_factory=dict)

    def names(self) -> list[str]:
        """The communicators of the device."""
        return ["nccl", "cuda_ipc"]

    def env(self, name: str, rank: int, size: int) -> dict[str, str]:
        """The variables for a rank.

        Raises:
            NotRunError: So many ranks cannot be.
        """
        if self.device != "cuda":
            return {}
        if name == "cuda_ipc":
            return {"CUDA_VISIBLE_DEVICES": "0"}
        if self.gpus >= size:
            return {"CUDA_VISIBLE_DEVICES": str(rank)}
        if self.nccl < MULTI_RANK_SINCE:
            raise NotRunError(
                f"{size} ranks need {size} GPUs or NCCL 2.30; here: {self.gpus}, "
                f"NCCL {_version(self.nccl)}"
            )
        return {"CUDA_VISIBLE_DEVICES": "0", **MULTI_RANK}


def _version(code: int) -> str:
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}" if code else "none"


@contextmanager
def crew(machine: Machine, name: str, size: int) -> Iterator[tuple[list[ProcessMember], str]]:
    """Yield the ranks of an open group, and its name."""
    members = [ProcessMember(machine.env(name, rank, size)) for rank in range(size)]
    served = Served()
    try:
        control = served.control
        place = Place(None, control.address, control.service_id, control.secret)
        _all(
            [
                each.submit(does.open_group, name, place, "g0", rank, size, GUARD_S)
                for rank, each in enumerate(members)
            ]
        )
        yield members, "g0"
    finally:
        for each in members:
            each.close()
        served.close()


def _all(futures: list[Any]) -> list[Any]:
    return [each.result(GUARD_S) for each in futures]


def conformance(machine: Machine, name: str, size: int) -> str:
    """Every operation, every dtype, against plain torch."""
    programs = [*PROGRAMS, *(PAIRS if size == 2 else ())]
    with crew(machine, name, size) as (members, group):
        for program in programs:
            _all([each.submit(getattr(does, program), group) for each in members])
        _all([each.submit(does.destroy, group) for each in members])
    return f"{len(programs)} programs among {size} ranks"


def abort(machine: Machine, name: str) -> str:
    """A rank waits for one that never comes; an abort ends that, here and there."""
    with crew(machine, name, 2) as (members, group):
        pending = members[0].submit(does.received_and_waited, group)
        time.sleep(1)
        if pending.done():
            raise AssertionError(f"it did not wait: {pending.exception()}")
        started = time.perf_counter()
        members[0].call(does.abort, group, "for the check")
        error = pending.exception(GUARD_S)
        took = time.perf_counter() - started
        if not isinstance(error, CommError) or took > 2:
            raise AssertionError(f"after {took:.1f} s: {error!r}")
    return f"ended after {took * 1e3:.0f} ms"


def kill(machine: Machine, name: str) -> str:
    """A rank dies by SIGKILL while another waits for it; that one is usable afterwards."""
    with crew(machine, name, 2) as (members, group):
        pending = members[0].submit(does.received_and_waited, group)
        time.sleep(1)
        started = time.perf_counter()
        members[1].kill()
        error = pending.exception(GUARD_S)
        took = time.perf_counter() - started
        if not isinstance(error, CommError) or took > 3:
            raise AssertionError(f"after {took:.1f} s: {error!r}")
        members[0].call(does.destroy, group)
        members[0].call(does.computes_on, machine.device)
    return f"noticed after {took * 1e3:.0f} ms, and the survivor computes"


@contextmanager
def actors(machine: Machine, name: str, count: int) -> Iterator[list[Any]]:
    """Yield actors that use a communicator of the device."""
    if not machine.is_plain and machine.device == "cuda":
        share = 1 if machine.gpus >= count and name == "nccl" else machine.gpus / count * 0.9
        options = [{"num_gpus": share, "num_cpus": 0}] * count
        options = [
            {**each, "runtime_env": {"env_vars": _without_device(machine.env(name, rank, count))}}
            for rank, each in enumerate(options)
        ]
    elif machine.is_plain:
        options = [{"env": machine.env(name, rank, count)} for rank in range(count)]
    else:
        options = [{"num_cpus": 0}] * count
    cls = rcg.remote(Worker)
    made = [cls.options(**each).remote(machine.device, machine.module) for each in options]
    try:
        yield made
    finally:
        for each in made:
            rcg.kill(each)


def _without_device(env: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name != "CUDA_VISIBLE_DEVICES"}


def graphs(machine: Machine, name: str, overlap: bool, backend: str = "") -> str:
    """Edges, a fan-out and collectives among three actors, several executions in flight."""
    device, backend = machine.device, backend or name
    with actors(machine, name, 3) as (a, b, c):
        with InputNode() as inp:
            first = a.make.bind(inp).with_tensor_transport(name)
            second = c.make.bind(inp).with_tensor_transport(name, _direct_return=True)
            third = a.twice.bind(first).with_tensor_transport(name, _static_shape=True)
            added = b.add.bind(first, second, third).with_tensor_transport(name)
            dag = c.totals.bind(added, second)
        _values(dag, overlap, backend, lambda n: [(device, 4000.0 * n), (device, 1000.0 * n)])
        with InputNode() as inp:
            value = a.make.bind(inp).with_tensor_transport(name)
            dag = MultiOutputNode([b.totals.bind(value), c.totals.bind(value)])
        _values(dag, overlap, backend, lambda n: [[(device, 1000.0 * n)]] * 2)
        with InputNode() as inp:
            made = [each.make.bind(inp) for each in (a, b, c)]
            reduced = allreduce.bind(made, transport=name)
            parts = reducescatter.bind(allgather.bind(reduced, transport=name), transport=name)
            again = [each.twice.bind(part) for each, part in zip((a, b, c), parts, strict=True)]
            given = broadcast.bind(again, transport=name)
            dag = MultiOutputNode(
                [each.totals.bind(part) for each, part in zip((a, b, c), given, strict=True)]
            )
        _values(dag, overlap, backend, lambda n: [[(device, 18000.0 * n)]] * 3)
    return "3 graphs, 12 executions each"


def _values(dag: Any, overlap: bool, backend: str, wanted: Callable[[int], Any]) -> None:
    with rcg.compile(dag, overlap=overlap) as graph:
        if {each.backend for each in graph.plan.groups} != {backend}:
            raise AssertionError(f"the groups are {graph.plan.groups}")
        refs = [graph.execute(n) for n in range(12)]
        for n, ref in enumerate(refs):
            found = rcg.get(ref, timeout=GUARD_S)
            if found != wanted(n):
                raise AssertionError(f"execution {n}: {found}, wanted {wanted(n)}")


def registered(machine: Machine) -> str:
    """A class that a user registers for the device serves edges and collectives."""
    if machine.is_plain:
        raise NotRunError("Ray is not installed")
    if machine.device == "fake":
        raise NotRunError("torch.distributed's NCCL does not know the fake device")
    register_accelerator_context(machine.device, ProcessGroup)
    try:
        for is_on in (False, True):
            graphs(machine, "nccl", is_on, backend="accelerator")
    finally:
        registry._accelerators.clear()
    return "the graphs of nccl, without and with overlap"


def references(machine: Machine, name: str) -> str:
    """Tensors by reference in ordinary calls, both ways at once, and out of the device."""
    if machine.is_plain:
        raise NotRunError("Ray is not installed")
    device = machine.device
    with actors(machine, name, 2) as (a, b):
        group = create_collective_group([a, b], backend=name)
        there = [a.make.options(tensor_transport=name).remote(n) for n in range(6)]
        back = [b.twice.options(tensor_transport=name).remote(ref) for ref in there]
        found = rcg.get([a.totals.remote(*back), b.totals.remote(*there)], timeout=GUARD_S)
        wanted = [[(device, 1000.0 * n * factor) for n in range(6)] for factor in (2, 1)]
        if found != wanted:
            raise AssertionError(f"{found}, wanted {wanted}")
        large = a.make.options(tensor_transport=name).remote(1, 16 * MIB)
        if rcg.get(b.totals.remote(large), timeout=GUARD_S) != [(device, 16.0 * MIB)]:
            raise AssertionError("a tensor of 64 MiB is not what was sent")
        copied = rcg.get(there[5], _tensor_transport="object_store", timeout=GUARD_S)
        if float(copied.cpu().sum()) != 5000.0:
            raise AssertionError(f"the object store gave {copied}")
        destroy_collective_group(group)
    return "14 tensors"


def direct(machine: Machine, transport: str, wanted: list[str]) -> str:
    """Tensors by reference without a group, between actors on one GPU and to the driver."""
    if machine.is_plain:
        raise NotRunError("Ray is not installed")
    if transport == "nixl" and importlib.util.find_spec("nixl") is None:
        raise NotRunError("NIXL is not installed")
    device = machine.device
    if (transport, device) == ("nixl", "fake"):
        raise NotRunError("NIXL does not know the fake device")
    with actors(machine, "cuda_ipc", 2) as (a, b):
        for count in (1000, MIB, 16 * MIB):
            made = a.make.options(tensor_transport=transport).remote(1, count)
            back = b.twice.options(tensor_transport=transport).remote(made)
            found = rcg.get([b.totals.remote(made), a.totals.remote(back)], timeout=GUARD_S)
            if found != [[(device, float(count))], [(device, 2.0 * count)]]:
                raise AssertionError(f"{found} of {count} numbers")
            if float(rcg.get(made, timeout=GUARD_S).cpu().sum()) != count:
                raise AssertionError("the driver got other numbers")
        ways = rcg.get([each.ways.remote() for each in (a, b)], timeout=GUARD_S)
    if ways != [wanted] * 2:
        raise AssertionError(f"they came by {ways}")
    return "4 KB to 64 MiB, there and back"


def weights(machine: Machine) -> str:
    """Weights of a model on the device, published by name and read into tensors there."""
    if machine.is_plain:
        raise NotRunError("Ray is not installed")
    with actors(machine, "cuda_ipc", 3) as (trainer, *readers):
        for number in (1, 2):
            rcg.get(trainer.publish.remote(number, MIB))
            found = rcg.get([each.read_weights.remote(MIB) for each in readers], timeout=GUARD_S)
            wanted = [[(machine.device, float(number * MIB))]] * len(readers)
            if found != wanted:
                raise AssertionError(f"{found}, wanted {wanted}")
            rcg.get(trainer.is_read.remote(), timeout=GUARD_S)
    return "2 versions of 4 MiB, 2 readers"


def kernels(machine: Machine) -> str:
    """What the device did is in a profile, with the execution that began it."""
    if machine.device == "fake":
        raise NotRunError("the fake device has no kernels")
    count = 5
    with actors(machine, "nccl", 2) as (a, b):
        with InputNode() as inp:
            dag = b.number.bind(b.twice.bind(a.make.bind(inp).with_tensor_transport("nccl")))
        with rcg.compile(dag) as graph:
            rcg.get(graph.execute(1), timeout=GUARD_S)
            with graph.profile(torch=True) as profile:
                for n in range(count):
                    rcg.get(graph.execute(n), timeout=GUARD_S)
    said = []
    for process, most in (("a0", "make"), ("a1", "twice")):
        lane = profile.graph().lane(process)
        executions = sorted(set(lane.kernels["execution"].tolist()))
        if executions != list(range(1, count + 1)):
            raise AssertionError(f"{most}: kernels of the executions {executions}")
        for kernel in lane.kernels:
            of = lane.events[lane.events["execution"] == kernel["execution"]]
            if not of["start_ns"].min() - 100_000 <= kernel["start_ns"] <= kernel["end_ns"]:
                raise AssertionError(f"{most}: a kernel began before its execution")
        names = {lane.span_name(int(op)) for op in lane.kernels["op"]}
        if not any(name.startswith("ncclDevKernel") for name in names):
            raise AssertionError(f"{most}: no kernel of NCCL's in {sorted(names)}")
        said.append(f"{most}: {len(lane.kernels)} of {', '.join(sorted(names))}")
    return "; ".join(said)


def arrival(machine: Machine) -> str:
    """A tensor of the CPU arrives on the devices of three actors."""
    device = machine.device
    with actors(machine, "cuda_ipc", 3) as made, InputNode() as inp:
        value = inp.with_tensor_transport(device=device)
        dag = MultiOutputNode([each.totals.bind(value) for each in made])
        with rcg.compile(dag) as graph:
            for count in (1, 1000, 4 * MIB):
                found = rcg.get(graph.execute(torch.ones(count)), timeout=GUARD_S)
                if found != [[(device, float(count))]] * 3:
                    raise AssertionError(str(found))
    return "4 B to 16 MiB, 3 readers"


def bandwidth(machine: Machine, size_mib: int) -> str:
    """Host to device: a tensor of the driver on its way to an actor, beside raw copies there.

    On its way it is copied into shared memory, and from there to the device.
    """
    tensor = torch.ones(size_mib * MIB // 4)
    kinds = ("pageable", "shared memory") if machine.device == "fake" else COPIES
    rates = {}
    with actors(machine, "cuda_ipc", 1) as (a,):
        with InputNode() as inp:
            dag = a.seconds.bind(inp.what, inp.value)
        with rcg.compile(dag) as graph:
            for what in kinds:
                seconds = rcg.get(graph.execute(what=what, value=tensor), timeout=GUARD_S)
                rates[what] = tensor.nbytes / seconds / 1e9
        with InputNode() as inp:
            dag = a.first.bind(inp.with_tensor_transport(device=machine.device))
        with rcg.compile(dag) as graph:
            times = []
            for _ in range(8):
                started = time.perf_counter()
                rcg.get(graph.execute(tensor), timeout=GUARD_S)
                times.append(time.perf_counter() - started)
        rates["driver to actor"] = tensor.nbytes / min(times) / 1e9
    return "GB/s: " + ", ".join(f"{what} {rate:.1f}" for what, rate in rates.items())


def overlap(machine: Machine, name: str, side: int, width: int) -> str:
    """Three senders and a receiver that computes: executions with overlap beside those without."""
    if name == "nccl" and machine.device == "cuda" and machine.gpus < 4:
        raise NotRunError("kernels of ranks on one GPU run by turns, which says nothing of speed")
    count = 10
    with actors(machine, name, 4) as (*senders, receiver):
        rcg.get([each.prepare.remote(side, width) for each in (*senders, receiver)])
        times: dict[bool, list[float]] = {False: [], True: []}
        compiled = {}
        for is_on in times:
            with InputNode() as inp:
                tensors = [
                    each.kept.bind(inp).with_tensor_transport(
                        name, _static_shape=True, _direct_return=True
                    )
                    for each in senders
                ]
                results = [receiver.number.bind(receiver.multiplied.bind(t)) for t in tensors]
                compiled[is_on] = rcg.compile(
                    MultiOutputNode(results), overlap=is_on, concurrent=True
                )
        for _ in range(7):
            for is_on, graph in compiled.items():
                started = time.perf_counter()
                for ref in [graph.execute(0) for _ in range(count)]:
                    rcg.get(ref, timeout=GUARD_S)
                times[is_on].append((time.perf_counter() - started) / count)
        for graph in compiled.values():
            graph.teardown()
    off, on = (statistics.median(times[is_on][1:]) for is_on in (False, True))
    return f"{off * 1e3:.2f} ms without, {on * 1e3:.2f} ms with: {on / off:.2f} of the time"


def speed(machine: Machine, counts: list[int]) -> str:
    """A tensor on its way between two actors, beside Ray's own ways."""
    if machine.is_plain:
        raise NotRunError("Ray is not installed")
    places: list[dict[str, Any]] = [{"num_cpus": 0}] * 2
    if machine.device == "cuda":
        environment = _without_device(machine.env("nccl", 0, 2))
        gpu = {"num_gpus": 0.05, "runtime_env": {"env_vars": environment}}
        places = [{**each, **gpu} for each in places]
    return beside_ray.compare(places, machine.module, machine.device, counts)


def seed(machine: Machine, program: str) -> str:
    """A program of the documents that rcg started from, with real actors of Ray."""
    from tests.cluster import test_seeds
    from tests.harness import documents

    if machine.is_plain:
        raise NotRunError("Ray is not installed")
    if machine.device == "fake":
        raise NotRunError("its actors ask Ray for GPUs")
    source = getattr(documents, program)
    said = "as it stands"
    if machine.gpus < 4:
        share = f"num_gpus={machine.gpus / 5:g}"
        source, changed = re.subn(r"num_gpus=1\b", share, source)
        said = f"with {share} in {changed} places for want of 4 GPUs"
    with tempfile.TemporaryDirectory() as folder:
        lines = test_seeds.run(source, Path(folder), starts_ray=True, **MULTI_RANK)
    return f"{said}: {lines[-1] if lines else 'nothing printed'}"


def machine_of(device: str) -> Machine:
    """Look at this machine.

    Raises:
        NotRunError: It has no such device.
    """
    is_plain = getattr(sys.modules.get("ray"), "__version__", "").endswith("+plain")
    facts = {
        "Python": sys.version.split()[0],
        "torch": str(torch.__version__),
        "Ray": "not installed: actors are plain processes"
        if is_plain
        else str(sys.modules["ray"].__version__),
    }
    if device == "fake":
        importlib.import_module(FAKE)
        return Machine(device, 8, 0, is_plain, FAKE, facts)
    if not torch.cuda.is_available():
        raise NotRunError("torch finds no GPU on this machine")
    nccl = 0
    if importlib.util.find_spec("cupy") is not None:
        from cupy.cuda import nccl as library

        nccl = library.get_version() if library.available else 0
        facts["CuPy"] = importlib.import_module("cupy").__version__
    facts["NCCL"] = _version(nccl)
    facts["GPUs"] = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=30)
        facts["driver"] = found.stdout.splitlines()[0]
    except (OSError, IndexError):
        facts["driver"] = "unknown"
    return Machine(device, torch.cuda.device_count(), nccl, is_plain, "", facts)


def all_checks(machine: Machine) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the checks with their names."""
    is_fake = machine.device == "fake"
    for name in machine.names():
        for size in (2,) if is_fake else (1, 2, 3):
            yield f"{name}: {size} ranks", lambda n=name, s=size: conformance(machine, n, s)
        yield f"{name}: abort", lambda n=name: abort(machine, n)
        yield f"{name}: kill -9", lambda n=name: kill(machine, n)
        for is_on in (False, True):
            word = "with overlap" if is_on else "without overlap"
            yield f"{name}: graphs {word}", lambda n=name, on=is_on: graphs(machine, n, on)
        yield f"{name}: references", lambda n=name: references(machine, n)
        side, width = (64, 8) if is_fake else (8192, 512)
        yield (
            f"{name}: overlap on streams",
            lambda n=name, s=side, w=width: overlap(machine, n, s, w),
        )
    counts = [64] if is_fake else [256, MIB // 4, 16 * MIB]
    yield "speed, beside Ray's", lambda: speed(machine, counts)
    yield "registered accelerator", lambda: registered(machine)
    yield "auto: references", lambda: direct(machine, "auto", ["cuda_ipc", "shm"])
    yield "nixl: references", lambda: direct(machine, "nixl", ["nixl", "nixl: register"])
    yield "weights", lambda: weights(machine)
    yield "profile: kernels", lambda: kernels(machine)
    yield "host to device: arrival", lambda: arrival(machine)
    for size_mib in (1,) if is_fake else (1, 16, 256):
        yield (
            f"host to device: {size_mib} MiB",
            lambda size=size_mib: bandwidth(machine, size),
        )
    for program in ("TENSORS", "OVERLAP"):
        yield f"seed: {program.lower()}", lambda p=program: seed(machine, p)


os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
